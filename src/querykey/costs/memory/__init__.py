"""The peak of memory: what a pass takes and gives back, as formulas and at sizes."""
