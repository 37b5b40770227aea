"""The least that logistic regression by FedNAG can cost in torch.

Gradients derived by hand, workers stacked, memory allocated once, one thread a core; no sampling,
no generality, nothing kept. The number of workers stacked is the best of a few.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from math import ceil

import numpy as np
import torch
from turnstile import Turnstile
from workload import LR, MOMENTUM, Work

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Stack:
    """Some workers' rounds, in memory of their own."""

    def __init__(
        self, work: Work, x: torch.Tensor, y: torch.Tensor, held: list[np.ndarray]
    ) -> None:
        n, b = len(held), work.batch
        positions = [np.arange(work.tau * b) % len(mine) for mine in held]
        index = np.stack([mine[at] for mine, at in zip(held, positions, strict=True)])
        index = index.reshape(n, work.tau, b).swapaxes(0, 1).reshape(work.tau, n * b)
        self.index = torch.from_numpy(np.ascontiguousarray(index))
        self.x, self.y, self.n, self.b = x, y, n, b
        self.raw = torch.empty(n * b, 784, dtype=torch.uint8)
        self.images = torch.empty(n * b, 784)
        self.labels = torch.empty(n * b, dtype=torch.int64)
        self.scores, self.slopes = torch.empty(n, 10, b), torch.empty(n, 10, 784)
        self.minus = torch.full((n, 1, b), -1.0)
        self.w, self.v = torch.empty(n, 10, 784), torch.empty(n, 10, 784)
        self.bias, self.bias_v = torch.empty(n, 10, 1), torch.empty(n, 10, 1)

    def round(self, server: list[torch.Tensor]) -> list[torch.Tensor]:
        state = [self.w, self.v, self.bias, self.bias_v]
        for mine, sent in zip(state, server, strict=True):
            mine.copy_(sent)
        images = self.images.view(self.n, self.b, 784)
        for index in self.index:
            torch.index_select(self.x, 0, index, out=self.raw)
            torch.index_select(self.y, 0, index, out=self.labels)
            self.images.copy_(self.raw).mul_(1 / 255)
            torch.baddbmm(self.bias, self.w, images.transpose(1, 2), out=self.scores)
            slopes = torch.softmax(self.scores, 1)
            slopes.scatter_add_(1, self.labels.view(self.n, 1, self.b), self.minus)
            slopes.mul_(1 / self.b)
            torch.bmm(slopes, images, out=self.slopes)
            bias_slopes = slopes.sum(2, keepdim=True)
            self.v.mul_(MOMENTUM).sub_(self.slopes, alpha=LR)
            self.w.add_(self.v, alpha=MOMENTUM).sub_(self.slopes, alpha=LR)
            self.bias_v.mul_(MOMENTUM).sub_(bias_slopes, alpha=LR)
            self.bias.add_(self.bias_v, alpha=MOMENTUM).sub_(bias_slopes, alpha=LR)
        return [value.sum(0) for value in state]


def main() -> None:
    work, turnstile = Work.given(), Turnstile()
    torch.set_num_threads(1)
    images, labels = work.arrays()
    x, y = torch.from_numpy(images).view(-1, 784), torch.from_numpy(labels.astype(np.int64))
    held = [work.share(worker, len(y)) for worker in range(work.workers)]
    pool = ThreadPoolExecutor(THREADS, initializer=torch.set_num_threads, initargs=(1,))

    def play(stacks: list[Stack], server: list[torch.Tensor]) -> list[torch.Tensor]:
        parts = pool.map(lambda stack: stack.round(server), stacks)
        return [torch.stack(values).sum(0) / work.workers for values in zip(*parts, strict=True)]

    def stacked(size: int) -> list[Stack]:
        groups = [held[i : i + size] for i in range(0, len(held), size)]
        return [Stack(work, x, y, group) for group in groups]

    server = [torch.zeros(10, 784), torch.zeros(10, 784), torch.zeros(10, 1), torch.zeros(10, 1)]
    times = {}
    for parts in (1, 2, 4, 8):
        size = ceil(work.workers / (THREADS * parts))
        stacks = stacked(size)
        for _ in range(3):
            began = time.perf_counter()
            play(stacks, server)
            times[size] = min(times.get(size, 1e9), time.perf_counter() - began)
    best = stacked(min(times, key=times.__getitem__))
    going = True
    with torch.no_grad():
        while going:
            server = play(best, server)
            going = turnstile.passed()


if __name__ == "__main__":
    main()
