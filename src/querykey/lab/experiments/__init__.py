"""One file per experiment: its claims, what it measures, and how."""
