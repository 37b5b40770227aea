"""One process, many workers: time per worker-step and peak memory. Prints a line of JSON."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import torch

from fednag.algorithms import ALGORITHMS
from fednag.core.keys import Draws
from fednag.core.loop import Scheme
from fednag.data.dataset import Dataset
from fednag.data.partition import Partition
from fednag.problems import models
from fednag.problems.problem import Problem
from fednag.simulate.run import Plan, simulate
from fednag.simulate.tuning import choose

TAU, BATCH, HELD = 5, 64, 128


def main() -> None:
    """Every worker holds HELD samples, whatever their number: one sample may have many owners."""
    folder, workers, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    x = torch.from_numpy(np.load(folder / "x.npy"))
    y = torch.from_numpy(np.load(folder / "y.npy").astype(np.int64))
    dataset = Dataset("images", x, y, x[:64], y[:64], 10, 1 / 255)
    problem = Problem(dataset, models.build("logistic", dataset.shape, 10, 0))
    owned = tuple(np.random.default_rng(0).integers(0, len(y), (workers, HELD)))
    scheme = Scheme(ALGORITHMS["fednag"]())
    draws = Draws(0, [HELD] * workers, BATCH)
    choice = choose(problem, scheme, owned, draws, TAU, participants=workers)
    plan = Plan(
        problem=problem,
        partition=Partition(owned),
        scheme=scheme,
        tau=TAU,
        iterations=TAU * (rounds + 1),
        batch=BATCH,
        seed=0,
        evaluate_every=10**9,
        samples=64,
        chunk=choice.chunk,
        threads=choice.threads,
    )
    states = simulate(plan)
    next(states)
    next(states)
    began = time.perf_counter()
    for _ in states:
        pass
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024  # kilobytes on Linux
    found = {
        "per_worker_step": seconds / (rounds * workers * TAU),
        "peak_mb": peak,
        "chunk": choice.chunk,
        "threads": choice.threads,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
