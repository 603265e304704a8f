"""Architectures: geometry, roles and names of tensors, and the layer mathematics in torch.

Nothing here knows a container or a quantization type; weights arrive as float tensors by role.
"""
