"""Threads that each compute on one core, and the memory that training frees.

Torch's own parallel kernels wait for each other at barriers, and collapse when another process
takes a core. So each of our threads uses one intra-op thread, and works on tasks of its own; only
for models so large that two at a time do not fit into the processor's caches it may be better to
compute one task at a time on all cores.
"""

from __future__ import annotations

import ctypes
import gc
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

# glibc's names for what mallopt sets (malloc.h).
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

KEPT = 1 << 30  # bytes
PAUSE = 5.0  # seconds; a collection takes a tenth of one

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one core inside: what is tried before a run must not wait for others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class ThreadPool:
    """``threads`` threads, each computing on ``inner`` cores; one is the caller's own."""

    def __init__(self, threads: int, inner: int = 1) -> None:
        self.threads, self.inner = threads, inner
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> ThreadPool:
        keep_freed_memory()
        self._before = torch.get_num_threads()
        torch.set_num_threads(self.inner)
        if self.threads > 1:
            self._pool = ThreadPoolExecutor(
                self.threads, initializer=torch.set_num_threads, initargs=(self.inner,)
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
        torch.set_num_threads(self._before)

    def ordered(self, task: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Results in the order of ``items``, with few tasks in flight: memory stays bounded."""
        if self._pool is None:
            yield from map(task, items)
            return
        pending: deque[Future[R]] = deque()
        for item in items:
            pending.append(self._pool.submit(task, item))
            if len(pending) > 2 * self.threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


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
