"""Folders of weights: reading and writing them, the families of Hugging Face, configs as JSON."""
