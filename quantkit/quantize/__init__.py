"""Stages that write a model's tensors in another type or container."""

from quantkit.quantize.convert import convert_checkpoint, converted_bytes

__all__ = ["convert_checkpoint", "converted_bytes"]
