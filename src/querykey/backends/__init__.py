"""Fast ways to run the same spec on torch tensors, and the equation for the rest."""
