"""Fast ways to run what `querykey.attention` says, on torch tensors."""
