"""The laws themselves, one file per subject; table.py lists them in the order of trial."""
