"""Why the smallest file is not smaller: what is fixed, and which types its rows allow.

A block format needs rows that consist of whole blocks, so the width of a tensor's rows decides
which types can hold it, whatever a file is called (ggml, `GGML_QUANT_SIZES`).
"""

from __future__ import annotations

from collections.abc import Sequence

from quantkit.artifacts.sensitivity import Sensitivity, TensorSize
from quantkit.qtypes import QTYPES, QType
from quantkit.select.candidates import Candidate, Slot

LARGEST_FIXED = 3
BLOCK_TYPES = sorted(
    (q for q in QTYPES if q.gguf_id is not None and q.block_size > 1), key=lambda q: q.bpw
)
BY_NAME = {q.name: q for q in QTYPES}


def floor_reasons(
    sensitivity: Sensitivity, slots: Sequence[Slot], smallest: Sequence[Candidate]
) -> tuple[str, ...]:
    """One sentence for the fixed part, for its largest tensors and for each kind of slot.

    `smallest` is the candidate of least bytes per slot.
    """
    fixed = sensitivity.fixed_bytes
    reasons = [
        f"{size_text(fixed)} are the base's own in every hybrid: everything outside the experts, "
        f"and the header"
    ]
    largest = sorted(sensitivity.fixed_tensors, key=lambda t: (-t.bytes, t.name))[:LARGEST_FIXED]
    for tensor in largest:
        share = tensor.bytes / max(1, fixed)
        reasons.append(
            f"{tensor.name} takes {size_text(tensor.bytes)} of it ({share:.0%}): {_why(tensor)}"
        )
    return (*reasons, *_slot_reasons(slots, smallest))


def _slot_reasons(slots: Sequence[Slot], smallest: Sequence[Candidate]) -> list[str]:
    """Slots with the same source, types and rows share a sentence."""
    kinds: dict[tuple[object, ...], list[tuple[Slot, Candidate]]] = {}
    for slot, candidate in zip(slots, smallest, strict=True):
        shapes = tuple(dict.fromkeys((t.qtype, t.row_length) for t in candidate.tensors))
        kinds.setdefault((slot.unit, candidate.source, shapes), []).append((slot, candidate))
    reasons = []
    for members in kinds.values():
        slot, candidate = members[0]
        layers = span_text([member.layer for member, _ in members])
        total = sum(chosen.bytes for _, chosen in members)
        parts = dict.fromkeys(_why(tensor) for tensor in candidate.tensors)
        reasons.append(
            f"{slot.unit} of {layers}: {size_text(total)}, least from '{candidate.source}'; "
            + "; ".join(parts)
        )
    return reasons


def _why(tensor: TensorSize) -> str:
    """What a row of this width allows, and how the type at hand compares with it."""
    fitting = [q for q in BLOCK_TYPES if q.fits_row(tensor.row_length)]
    if not fitting:
        return (
            f"{tensor.qtype}, rows of {tensor.row_length} values: no block type fits, "
            "only unquantized values do"
        )
    blocks = sorted({q.block_size for q in fitting})
    text = f"{_type_text(tensor.qtype)}, rows of {tensor.row_length} values"
    blocked = sorted({q.block_size for q in BLOCK_TYPES} - set(blocks))
    if blocked:
        text += f": only blocks of {_list_text(blocks)} fit, not of {_list_text(blocked)}"
    own = BY_NAME.get(tensor.qtype)
    smaller = [q for q in fitting if own is None or q.bpw < own.bpw]
    if not smaller:
        return f"{text}, and no smaller type exists for them"
    return f"{text}; smaller types that would fit: {', '.join(_bits_text(q) for q in smaller[:4])}"


def _type_text(name: str) -> str:
    found = BY_NAME.get(name)
    return name if found is None else _bits_text(found)


def _bits_text(qtype: QType) -> str:
    return f"{qtype.name} ({qtype.bpw:g} bits)"


def _list_text(values: Sequence[int]) -> str:
    *head, last = (str(value) for value in values)
    return f"{', '.join(head)} or {last}" if head else last


def span_text(layers: Sequence[int]) -> str:
    """Rising layer numbers as text: "layers 0-2, 5"."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    parts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return f"{'layer' if len(layers) == 1 else 'layers'} {', '.join(parts)}"


def size_text(n_bytes: int) -> str:
    """Bytes in GB (1e9), with three decimals; in MB below 0.1 GB."""
    return f"{n_bytes / 1e9:.3f} GB" if n_bytes >= 1e8 else f"{n_bytes / 1e6:.3f} MB"
