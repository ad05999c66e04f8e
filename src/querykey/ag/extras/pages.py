"""A call that tells the C library's allocator to keep its memory pages."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_pages() -> bool:
    """Tell glibc to keep freed memory for this process; return whether that worked.

    Without it, every large array is mapped from the kernel anew, and its page faults cost as much
    as the arithmetic between two matrix products. The whole process is affected, NumPy and PyTorch
    alike, and its memory does not shrink again. Where the C library is another, nothing happens.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, 1 << 30))
