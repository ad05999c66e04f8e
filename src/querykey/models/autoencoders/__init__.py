"""Autoencoders: of vectors, and of the patches of images."""
