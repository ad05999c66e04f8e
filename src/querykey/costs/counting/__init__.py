"""What ran in one pass over a model, for which module, and at what price."""
