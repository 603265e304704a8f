"""The table of tensor types: one row per type that GGUF or safetensors can store.

A GGUF type is a block format: `block_size` consecutive elements of a row share `type_size` bytes.
Sizes and ids are those of ggml (`ggml.h`, `ggml-common.h`); ids that ggml has retired or that
only a fork knows become opaque types, whose bytes can be carried but not read. safetensors types
are plain, except for the sub-byte floats, which count as blocks that fill whole bytes.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from quantkit.errors import FormatError


@dataclass(frozen=True)
class QType:
    """How the elements of a row are stored: `block_size` elements in `type_size` bytes.

    `gguf_id` and `safetensors_dtype` are None where that container has no such type.
    `needs_importance` marks the types that llama-quantize refuses to write without an importance
    matrix. An opaque type (id known, layout unknown) has size 0.
    """

    name: str
    block_size: int
    type_size: int
    gguf_id: int | None
    safetensors_dtype: str | None = None
    needs_importance: bool = False

    @property
    def is_opaque(self) -> bool:
        """True when only the id of the type is known."""
        return self.type_size == 0

    @property
    def bpw(self) -> float:
        """Bits per weight; FormatError for an opaque type."""
        self._require_layout()
        return 8.0 * self.type_size / self.block_size

    def nbytes(self, n_elements: int) -> int:
        """Bytes of `n_elements` (whole rows); FormatError unless they fill whole blocks."""
        self._require_layout()
        n_blocks, rest = divmod(n_elements, self.block_size)
        if rest or n_elements < 0:
            raise FormatError(
                f"{n_elements} elements do not fill whole {self.name} blocks",
                value=n_elements,
                rule=f"a multiple of {self.block_size} elements",
            )
        return n_blocks * self.type_size

    def fits_row(self, row_length: int) -> bool:
        """Whether rows of `row_length` elements consist of whole blocks (never, when opaque)."""
        return not self.is_opaque and row_length % self.block_size == 0

    def _require_layout(self) -> None:
        if self.is_opaque:
            raise FormatError(
                f"the layout of type {self.name} is unknown",
                value=self.gguf_id,
                rule="block and type size must be known",
                hint="tensors of this type can be copied as they are, but not read or resized",
            )


def _ggml(name: str, gguf_id: int, block_size: int, type_size: int, needs: bool = False) -> QType:
    return QType(name, block_size, type_size, gguf_id, needs_importance=needs)


def _both(name: str, gguf_id: int, type_size: int) -> QType:
    return QType(name, 1, type_size, gguf_id, safetensors_dtype=name)


def _safetensors(name: str, type_size: int, block_size: int = 1) -> QType:
    return QType(name, block_size, type_size, None, safetensors_dtype=name)


QTYPES: tuple[QType, ...] = (
    _both("F32", 0, 4),
    _both("F16", 1, 2),
    _ggml("Q4_0", 2, 32, 18),
    _ggml("Q4_1", 3, 32, 20),
    _ggml("Q5_0", 6, 32, 22),
    _ggml("Q5_1", 7, 32, 24),
    _ggml("Q8_0", 8, 32, 34),
    # ggml's struct has two halfs in front of the values; gguf-py still lists two floats (40 bytes).
    _ggml("Q8_1", 9, 32, 36),
    _ggml("Q2_K", 10, 256, 84),
    _ggml("Q3_K", 11, 256, 110),
    _ggml("Q4_K", 12, 256, 144),
    _ggml("Q5_K", 13, 256, 176),
    _ggml("Q6_K", 14, 256, 210),
    _ggml("Q8_K", 15, 256, 292),
    _ggml("IQ2_XXS", 16, 256, 66, needs=True),
    _ggml("IQ2_XS", 17, 256, 74, needs=True),
    _ggml("IQ3_XXS", 18, 256, 98, needs=True),
    _ggml("IQ1_S", 19, 256, 50, needs=True),
    _ggml("IQ4_NL", 20, 32, 18),
    _ggml("IQ3_S", 21, 256, 110),
    _ggml("IQ2_S", 22, 256, 82, needs=True),
    _ggml("IQ4_XS", 23, 256, 136),
    _both("I8", 24, 1),
    _both("I16", 25, 2),
    _both("I32", 26, 4),
    _both("I64", 27, 8),
    _both("F64", 28, 8),
    _ggml("IQ1_M", 29, 256, 56, needs=True),
    _both("BF16", 30, 2),
    _ggml("TQ1_0", 34, 256, 54),
    _ggml("TQ2_0", 35, 256, 66),
    _ggml("MXFP4", 39, 32, 17),
    _ggml("NVFP4", 40, 64, 36),
    _ggml("Q1_0", 41, 128, 18),
    _ggml("Q2_0", 42, 64, 18),
    _safetensors("BOOL", 1),
    _safetensors("U8", 1),
    _safetensors("U16", 2),
    _safetensors("U32", 4),
    _safetensors("U64", 8),
    _safetensors("C64", 8),
    _safetensors("F4", 1, block_size=2),
    _safetensors("F6_E2M3", 3, block_size=4),
    _safetensors("F6_E3M2", 3, block_size=4),
    _safetensors("F8_E4M3", 1),
    _safetensors("F8_E5M2", 1),
    _safetensors("F8_E8M0", 1),
    _safetensors("F8_E4M3FNUZ", 1),
    _safetensors("F8_E5M2FNUZ", 1),
)

# What llama-quantize writes instead when a row does not consist of whole blocks
# (llama-quant.cpp, tensor_type_fallback). It knows no substitute for NVFP4 and Q1_0.
ROW_FALLBACK: Mapping[str, str] = MappingProxyType(
    {
        "IQ1_S": "IQ4_NL",
        "IQ1_M": "IQ4_NL",
        "IQ2_XXS": "IQ4_NL",
        "IQ2_XS": "IQ4_NL",
        "IQ2_S": "IQ4_NL",
        "IQ3_XXS": "IQ4_NL",
        "IQ3_S": "IQ4_NL",
        "IQ4_XS": "IQ4_NL",
        "Q2_0": "Q4_0",
        "Q2_K": "Q4_0",
        "Q3_K": "Q4_0",
        "TQ1_0": "Q4_0",
        "TQ2_0": "Q4_0",
        "Q4_K": "Q5_0",
        "Q5_K": "Q5_1",
        "Q6_K": "Q8_0",
    }
)
LAST_FALLBACK = "F16"
_SMALLEST_SHARED_BLOCK = 32  # types with blocks up to this size fall back to LAST_FALLBACK

_BY_NAME = {qtype.name: qtype for qtype in QTYPES}
_BY_GGUF_ID = {qtype.gguf_id: qtype for qtype in QTYPES if qtype.gguf_id is not None}
_BY_DTYPE = {q.safetensors_dtype: q for q in QTYPES if q.safetensors_dtype is not None}


def by_name(name: str) -> QType:
    """The type of that name in any case; FormatError with close matches when there is none."""
    found = _BY_NAME.get(name.upper())
    if found is None:
        raise _unknown(name, list(_BY_NAME), "type name")
    return found


def by_gguf_id(type_id: int) -> QType:
    """The type with that id in a GGUF file; an opaque one when the id is not in the table."""
    found = _BY_GGUF_ID.get(int(type_id))
    return found or QType(f"TYPE_{int(type_id)}", 0, 0, int(type_id))


def by_safetensors_dtype(dtype: str) -> QType:
    """The type of that dtype in a safetensors header; FormatError when it is not one."""
    found = _BY_DTYPE.get(dtype)
    if found is None:
        raise _unknown(dtype, list(_BY_DTYPE), "safetensors dtype")
    return found


def fallback_for_row(qtype: QType, row_length: int) -> QType:
    """`qtype` if it can store rows of `row_length` elements, else what llama-quantize takes.

    FormatError where llama-quantize knows no substitute either.
    """
    if qtype.fits_row(row_length):
        return qtype
    substitute = ROW_FALLBACK.get(qtype.name)
    if substitute is None and (qtype.is_opaque or qtype.block_size > _SMALLEST_SHARED_BLOCK):
        raise FormatError(
            f"rows of {row_length} elements do not fit {qtype.name}",
            value=row_length,
            rule=f"a multiple of {qtype.block_size} elements; no substitute is defined",
            hint="choose a type with a smaller block, such as Q8_0 or IQ4_NL, for this tensor",
        )
    if substitute is not None and by_name(substitute).fits_row(row_length):
        return by_name(substitute)
    return by_name(LAST_FALLBACK)


def _unknown(name: str, known: list[str], kind: str) -> FormatError:
    close = difflib.get_close_matches(name.upper(), known, n=3, cutoff=0.5)
    return FormatError(
        f"unknown {kind} {name!r}",
        value=name,
        rule=f"one of {', '.join(known)}",
        hint=f"did you mean {' or '.join(close)}?" if close else None,
    )
