"""GGUF: read, write, split; see header.py for the layout of a file."""

from quantkit.containers.base import TensorSpec
from quantkit.containers.gguf.read import GGUFFile, Metadata, open_gguf
from quantkit.containers.gguf.values import ValueType, pack_kv
from quantkit.containers.gguf.write import gguf_file_bytes, gguf_header_bytes, write_gguf

__all__ = [
    "GGUFFile",
    "Metadata",
    "TensorSpec",
    "ValueType",
    "gguf_file_bytes",
    "gguf_header_bytes",
    "open_gguf",
    "pack_kv",
    "write_gguf",
]
