"""Mask helpers that `mask_grid.py` imports, as a project with a folder of helpers would."""

import torch


def lower_triangle(size, device=None):
    return torch.tril(torch.ones(size, size, device=device))
