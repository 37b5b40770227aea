"""Threads that each compute on one core.

Torch's own parallel kernels wait for each other at barriers, and collapse when another process
takes a core. So each of our threads uses one intra-op thread, and works on tasks of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from fednag.compute.allocator import keep_freed_memory

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
    """``threads`` threads; with one, the caller's own does the work."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> ThreadPool:
        keep_freed_memory()
        self._before = torch.get_num_threads()
        torch.set_num_threads(1)
        if self.threads > 1:
            self._pool = ThreadPoolExecutor(self.threads, initializer=_one_thread)
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


def _one_thread() -> None:
    torch.set_num_threads(1)
