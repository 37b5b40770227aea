"""The C library's memory allocator, told what training needs of it."""

from __future__ import annotations

import ctypes
from functools import cache

# glibc's names for what mallopt sets (malloc.h).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

KEPT = 1 << 30  # bytes


@cache
def keep_freed_memory() -> None:
    """Keep freed memory for the next step instead of handing it back to the system.

    Every step frees and asks for the same few megabytes; having the system clear new pages for
    them takes longer than the arithmetic. Other C libraries than glibc are left as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library of no name
        return
    mallopt(M_TRIM_THRESHOLD, KEPT)
    mallopt(M_MMAP_THRESHOLD, KEPT)
