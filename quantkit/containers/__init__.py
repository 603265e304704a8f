"""Containers: names for bytes. Tensors are found, copied, hashed and written, never decoded."""
