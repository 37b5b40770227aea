"""Federated EMNIST's shape: 3,400 clients, 10 a round, a CNN, batch 20, one epoch, 1,500 rounds.

    python benchmarks/femnist.py [--rounds 100]

The row that FLUTE and FedML are compared by. Random images of that shape (28x28, 62 classes), 198
samples a client, as many as FEMNIST has on average; the CNN is ``cnn`` with a layer of 128 before
the last. No evaluation is timed. Prints seconds a round over the rounds that were run, and what
1,500 rounds would take at that pace.
"""

from __future__ import annotations

import argparse
import os
import time
from statistics import median

import numpy as np
import torch

from fednag.algorithms import ALGORITHMS
from fednag.core.keys import Draws
from fednag.core.loop import Scheme
from fednag.data.dataset import Dataset
from fednag.data.partition import drawn
from fednag.problems import models
from fednag.problems.problem import Problem
from fednag.simulate.run import Plan, simulate
from fednag.simulate.tuning import choose

CLIENTS, PER_ROUND, BATCH, ROUNDS = 3400, 10, 20, 1500
HELD = 198  # samples of a client: 671,585 among 3,400
TAU = -(-HELD // BATCH)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (60_000, 1, 28, 28), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 62, 60_000))
    dataset = Dataset("images", x, y, x[:64], y[:64], 62, 1 / 255)
    problem = Problem(dataset, models.build("cnn", dataset.shape, 62, 0, (128,)))
    deal = drawn(y.numpy(), CLIENTS, HELD, 0)
    scheme = Scheme(ALGORITHMS["fedavg"]())
    draws = Draws(0, deal.sizes, BATCH)
    choice = choose(problem, scheme, deal.workers, draws, TAU, participants=PER_ROUND)
    plan = Plan(
        problem=problem,
        partition=deal,
        scheme=scheme,
        tau=TAU,
        iterations=TAU * 10**6,
        batch=BATCH,
        seed=0,
        per_round=PER_ROUND,
        evaluate_every=10**9,
        samples=64,
        chunk=choice.chunk,
        threads=choice.threads,
    )
    states = simulate(plan)
    next(states)
    next(states)
    seconds, spent = [], time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        next(states)
        seconds.append(time.perf_counter() - began)
    spent = (time.process_time() - spent) / rounds
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    print(f"{len(problem.initial):,} parameters, chunk {choice.chunk}, {choice.threads} threads")
    print(f"load {load} at the end; {rounds} rounds in {sum(seconds):.1f} s")
    for what, each in (("mean", sum(seconds) / rounds), ("median", median(seconds))):
        print(f"{what} {each:.3f} s a round: {ROUNDS} rounds would take {_clock(each * ROUNDS)}")
    print(f"{spent:.3f} processor seconds a round: {_clock(spent * ROUNDS)} of one processor")
    print(f"best {min(seconds):.3f} s a round: {_clock(min(seconds) * ROUNDS)}")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 3600}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


if __name__ == "__main__":
    main()
