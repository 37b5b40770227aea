"""Floating-point operations: what this machine's matrix products reach, and what a model needs."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.utils.flop_counter import FlopCounterMode
from turnstile import Turnstile, tell
from workload import Work

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
SIZE, PRODUCTS = 1024, 12


def needed(work: Work) -> int:
    """Operations of one round: forward and backward passes of all workers."""
    model = work.module()
    x, y = torch.rand(work.batch, 1, 28, 28), torch.randint(0, 10, (work.batch,))
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.cross_entropy(model(x), y).backward()
    return int(counter.get_total_flops()) * work.workers * work.tau


def main() -> None:
    work, turnstile = Work.given(), Turnstile()
    torch.set_num_threads(1)
    tell(operations=needed(work))
    pool = ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,))
    matrices = [[torch.rand(SIZE, SIZE) for _ in range(3)] for _ in range(THREADS)]

    def multiply(abc: list[torch.Tensor]) -> None:
        for _ in range(PRODUCTS):
            torch.mm(abc[0], abc[1], out=abc[2])

    going = True
    while going:
        began = time.perf_counter()
        list(pool.map(multiply, matrices))
        tell(peak=THREADS * PRODUCTS * 2 * SIZE**3 / (time.perf_counter() - began))
        going = turnstile.passed()


if __name__ == "__main__":
    main()
