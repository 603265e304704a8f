"""safetensors: read and write, one file or shards with an index."""

from quantkit.containers.safetensors.read import SafetensorsModel, open_safetensors
from quantkit.containers.safetensors.write import write_safetensors

__all__ = ["SafetensorsModel", "open_safetensors", "write_safetensors"]
