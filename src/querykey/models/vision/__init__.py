"""Transformers over images: VisionTransformer (ViT), and DaViT."""
