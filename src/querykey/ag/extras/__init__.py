"""What makes the engine faster, watchful and at home in other libraries; it runs without.

slices.py keeps gradients small, aliasing.py notices changed arrays, array_api/ is the namespace of
the Python array API, einops.py registers with einops, pages.py spares the allocator page faults.
"""

from querykey.ag.extras import array_api
from querykey.ag.extras.aliasing import ChecksumWatch
from querykey.ag.extras.einops import when_einops_is_imported
from querykey.ag.extras.pages import keep_pages
from querykey.ag.extras.slices import slice_gradient
from querykey.ag.hooks import hooks

__all__ = ["install", "keep_pages"]


def install() -> None:
    """Set every hook of the engine, and register with einops."""
    hooks.small_gradient = slice_gradient
    hooks.watch = ChecksumWatch()
    hooks.namespace = array_api
    when_einops_is_imported()
