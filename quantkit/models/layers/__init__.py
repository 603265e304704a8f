"""The blocks that architectures are made of, as pure functions over float tensors."""
