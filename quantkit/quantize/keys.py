"""The key-value pairs of a quantized file: the source's, its new type, and where it comes from.

Besides the `quantkit.*` keys that every written model has (the sources by name, file and hash),

    quantkit.rules                 strings   `pattern=TYPE` in order
    quantkit.importance.file       string    name of the importance file
    quantkit.importance.sha256     string    its hash
    quantize.imatrix.*             llama.cpp's own keys for the same

A file whose tensors are all copied keeps the pairs it has.
"""

from __future__ import annotations

from collections.abc import Sequence

import quantkit
from quantkit.artifacts.store import FileId
from quantkit.containers.gguf import ValueType, pack_kv
from quantkit.containers.gguf.values import key_of
from quantkit.quantize.plan import Plan, file_type
from quantkit.quantize.rules import Rule

FILE_TYPE_KEY = "general.file_type"
VERSION_KEY = "general.quantization_version"
QUANTIZATION_VERSION = 2
KEYS_VERSION = 1
SOURCE = "source"


def _strings(key: str, values: Sequence[str]) -> bytes:
    return pack_kv(key, ValueType.ARRAY, list(values), ValueType.STRING)


def quantized_pairs(
    plan: Plan, rules: Sequence[Rule], files: Sequence[FileId], importance: FileId | None
) -> list[bytes]:
    """The packed pairs of the output; `files` are those of the source."""
    pairs = {key_of(raw): raw for raw in plan.source.pairs}
    if all(e.is_copy for e in plan.encodings):
        return list(pairs.values())
    own = [
        pack_kv(FILE_TYPE_KEY, ValueType.UINT32, file_type(plan.encodings)),
        pairs.get(VERSION_KEY) or pack_kv(VERSION_KEY, ValueType.UINT32, QUANTIZATION_VERSION),
        pack_kv("quantkit.schema_version", ValueType.UINT32, KEYS_VERSION),
        pack_kv("quantkit.tool_version", ValueType.STRING, quantkit.__version__),
        _strings("quantkit.source.names", [SOURCE] * len(files)),
        _strings("quantkit.source.files", [file.name for file in files]),
        _strings("quantkit.source.sha256", [file.sha256 for file in files]),
        _strings("quantkit.rules", [rule.text for rule in rules]),
    ]
    if plan.importance and importance:
        dataset = ", ".join(plan.importance.datasets)
        own += [
            pack_kv("quantkit.importance.file", ValueType.STRING, importance.name),
            pack_kv("quantkit.importance.sha256", ValueType.STRING, importance.sha256),
            pack_kv("quantize.imatrix.file", ValueType.STRING, importance.name),
            pack_kv("quantize.imatrix.dataset", ValueType.STRING, dataset),
            pack_kv(
                "quantize.imatrix.entries_count",
                ValueType.UINT32,
                len(plan.importance.entries),
            ),
            pack_kv("quantize.imatrix.chunks_count", ValueType.UINT32, plan.importance.chunk_count),
        ]
    # A dict keeps the place of a key that is replaced, and puts new ones at the end.
    pairs |= {key_of(raw): raw for raw in own}
    return list(pairs.values())
