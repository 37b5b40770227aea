"""The C library's memory allocator, told what training needs of it."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

# glibc's names for what mallopt sets (malloc.h).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

KEPT = 1 << 30  # bytes
PAUSE = 5.0  # seconds; a collection takes a tenth of one

T = TypeVar("T")


@cache
def keep_freed_memory() -> None:
    """Keep freed memory for the next step instead of handing it back to the system.

    Every step frees and asks for the same few megabytes; having the system clear new pages for
    them takes longer than the arithmetic. Other C libraries than glibc are left as they are.
    """
    if mallopt := _function("mallopt"):
        mallopt(M_TRIM_THRESHOLD, KEPT)
        mallopt(M_MMAP_THRESHOLD, KEPT)


def tidied(items: Iterable[T], pause: float = PAUSE) -> Iterator[T]:
    """The items; between two, what the one left behind goes back to the system.

    A problem and its recordings refer to each other, so only the garbage collector frees its data,
    and it counts objects, not bytes; the pieces of the next one need not fit the gaps it leaves.
    """
    last = time.monotonic()
    for item in items:
        yield item
        if time.monotonic() - last >= pause:
            gc.collect()
            if trim := _function("malloc_trim"):
                trim(0)
            last = time.monotonic()


def _function(name: str) -> Callable[..., int] | None:
    try:
        found: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # TypeError: Windows has no library of no name
        return None
    return found
