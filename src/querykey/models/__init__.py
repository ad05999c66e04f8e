"""Transformers and autoencoders: build them, load real weights, generate, probe."""
