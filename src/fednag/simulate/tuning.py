"""How many workers to stack per task, and how many threads."""

from __future__ import annotations

import os
from math import ceil

import torch
from torch import nn

from fednag.algorithm import Algorithm
from fednag.problems.problem import Problem

MOST_STACKED = 64  # larger stacks fall out of the processor's caches


def cores() -> int:
    """Processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose(
    problem: Problem,
    algorithm: Algorithm,
    participants: int,
    width: int,
    chunk: int = 0,
    threads: int = 0,
) -> tuple[int, int, list[str]]:
    """(chunk, threads, notes) for a run; 0 means: choose.

    Small dense models gain most from stacking, convolutions from running alone: stacked, they
    become grouped convolutions, which are slower. A model that cannot be stacked, or not even
    traced, runs one worker at a time, and a note says so.
    """
    on_cpu = problem.device.type == "cpu"
    threads = threads or (cores() if on_cpu else 1)
    if not chunk:
        convolves = any(isinstance(m, nn.modules.conv._ConvNd) for m in problem.module.modules())
        chunk = 1 if convolves and on_cpu else min(ceil(participants / threads), MOST_STACKED)
    chunk = min(chunk, participants)
    notes = []
    if chunk > 1 and not algorithm.elementwise:
        name = type(algorithm).__name__
        notes = [f"{name} does not say that it is elementwise: each worker is computed alone"]
        chunk = 1
    if not _traces(problem, 1, width):
        reason = problem.gradients.eager
        note = f"the model cannot be traced ({reason}): workers run one at a time, which is slower"
        return 1, 1, [*notes, note]
    if chunk > 1 and not _traces(problem, chunk, width):
        return 1, threads, ["the model cannot be stacked: each worker is computed alone"]
    return chunk, threads, notes


def _traces(problem: Problem, workers: int, width: int) -> bool:
    index = torch.zeros((workers, width), dtype=torch.int64, device=problem.device)
    weight = torch.full((workers, width), 1 / width, dtype=problem.dtype, device=problem.device)
    w = problem.initial.expand(workers, -1)
    x, y = problem.batch(problem.x, problem.y, index)
    return problem.gradients.prepare(w, x, y, weight)
