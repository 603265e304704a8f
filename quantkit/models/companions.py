"""Tensors of a GGUF that belong to a weight: the scales of two-level types such as NVFP4.

llama.cpp looks for `<weight>.scale`, which every product with the weight is multiplied by (one
factor, or one for each expert), and for `<weight>.input_scale`, which kernels that quantize the
input too may use (src/llama-model.cpp). Where a hybrid takes a weight from, it takes these.
"""

from __future__ import annotations

from collections.abc import Iterable

SCALE_SUFFIX = ".scale"
INPUT_SCALE_SUFFIX = ".input_scale"
ALIGNMENT = 32
"""What the writer pads the header and every tensor to."""


def companion_names(weight: str) -> tuple[str, str]:
    """Names of the scale and the input scale that may stand beside `weight`."""
    stem = weight.removesuffix(".weight")
    return stem + SCALE_SUFFIX, stem + INPUT_SCALE_SUFFIX


def companion_owner(name: str) -> str | None:
    """The weight that the companion `name` would stand beside; None for other names."""
    for suffix in (INPUT_SCALE_SUFFIX, SCALE_SUFFIX):
        if name.endswith(suffix):
            return name.removesuffix(suffix) + ".weight"
    return None


def _record_bytes(name: str) -> int:
    """A vector's record in the header: name, one axis, type and offset (docs/gguf.md of ggml)."""
    return 8 + len(name.encode()) + 4 + 8 + 4 + 8


def padded_record_bytes(name: str) -> int:
    """What a companion's record counts in a size: with padding, so that sizes add up."""
    return -(-_record_bytes(name) // ALIGNMENT) * ALIGNMENT


def header_slack_bytes(names: Iterable[str]) -> int:
    """What a header has to be filled up with so that the records of `names` take what they count.

    Whoever writes a file whose size was predicted adds this to its own padding.
    """
    return sum(padded_record_bytes(name) - _record_bytes(name) for name in names)
