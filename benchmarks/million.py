"""A million workers with memory, 1,000 a round: time per worker-step, memory and disk.

    python benchmarks/million.py [--turns 6] [--rounds 5] [--folder DIR]

SCAFFOLD on logistic regression, images of random bytes in MNIST's shape (60,000, 784 numbers each),
128 samples a worker, batch 64, tau 5. Three processes take turns at some rounds each: 100 workers
who all take part, with what they keep in memory; 1,000,000 workers, of whom 1,000 are drawn, with
what they keep on the disk; and 2,000 workers on the disk, so that after a few rounds every row is
read before it is written. Prints a table in Markdown; times are the best and the median of the
turns.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

TAU, BATCH, HELD = 5, 64, 128
ROWS = [("memory", 100, 100), ("disk", 1_000_000, 1000), ("disk", 2000, 1000)]


def child(memory: str, workers: int, per_round: int, rounds: int, folder: str) -> None:
    """Rounds on demand: a line on standard input for each turn, a line of JSON for its answer."""
    import numpy as np
    import torch

    from fednag.algorithms import ALGORITHMS
    from fednag.core.disk import Disk
    from fednag.core.keys import Draws
    from fednag.core.loop import Scheme
    from fednag.data.dataset import Dataset
    from fednag.data.partition import drawn
    from fednag.problems import models
    from fednag.problems.problem import Problem
    from fednag.simulate.run import Plan, simulate
    from fednag.simulate.tuning import choose

    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.integers(0, 256, (60_000, 1, 28, 28), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, 60_000))
    dataset = Dataset("images", x, y, x[:64], y[:64], 10, 1 / 255)
    problem = Problem(dataset, models.build("logistic", dataset.shape, 10, 0))
    deal = drawn(y.numpy(), workers, HELD, 0)
    scheme = Scheme(ALGORITHMS["scaffold"]())
    draws = Draws(0, deal.sizes, BATCH)
    choice = choose(problem, scheme, deal.workers, draws, TAU, participants=per_round)
    plan = Plan(
        problem=problem,
        partition=deal,
        scheme=scheme,
        tau=TAU,
        iterations=TAU * 10**6,
        batch=BATCH,
        seed=0,
        per_round=per_round,
        evaluate_every=10**9,
        samples=64,
        chunk=choice.chunk,
        threads=choice.threads,
        on_disk=memory == "disk",
    )
    disk = Disk(Path(folder)) if memory == "disk" else None
    states = simulate(plan, disk=disk)
    next(states)
    for _ in range(max(1, 1000 // per_round)):
        next(states)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        for _ in range(rounds):
            state = next(states)
        seconds = time.perf_counter() - began
        file = Path(folder) / "memory.rows"
        found = {
            "step": seconds / (rounds * per_round * TAU),
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "disk_mb": file.stat().st_blocks * 512 / 2**20 if file.exists() else 0,
            "kept": len(state.memories),
            "chunk": choice.chunk,
        }
        print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=5, help="of 1,000 workers, in a turn")
    parser.add_argument("--folder", help="where rows are written; by default a temporary folder")
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        memory, workers, per_round, rounds, folder = given.child
        child(memory, int(workers), int(per_round), int(rounds), folder)
        return
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        contenders = []
        for place, (memory, workers, per_round) in enumerate(ROWS):
            own = Path(folder) / str(place)
            own.mkdir()
            rounds = given.rounds * 1000 // per_round
            words = ["--child", memory, *map(str, (workers, per_round, rounds)), str(own)]
            contenders.append(
                subprocess.Popen(
                    [sys.executable, __file__, *words],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert contenders[-1].stdout is not None
            assert contenders[-1].stdout.readline() == "ready\n"
        found: list[list[dict[str, float]]] = [[] for _ in ROWS]
        for _ in range(given.turns):
            for mine, process in zip(found, contenders, strict=True):
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write("\n")
                process.stdin.flush()
                mine.append(json.loads(process.stdout.readline()))
        for process in contenders:
            process.communicate()
    load = f"load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    print(f"{given.turns} turns of {given.rounds * 1000} worker-rounds; {load}\n")
    print(
        "| workers | a round | what they keep | µs a worker-step, best (median) "
        "| against the first | peak MB | above the first | rows kept | MB on disk |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    first = found[0]
    for (memory, workers, per_round), turns in zip(ROWS, found, strict=True):
        best = min(turn["step"] for turn in turns) * 1e6
        base = min(turn["step"] for turn in first) * 1e6
        middle = median(turn["step"] for turn in turns) * 1e6
        # Turn by turn: what else the machine does hits neighbours alike.
        ratio = median(a["step"] / b["step"] for a, b in zip(turns, first, strict=True))
        peak, over = turns[-1]["peak_mb"], turns[-1]["peak_mb"] - first[-1]["peak_mb"]
        print(
            f"| {workers:,} | {per_round:,} | {memory} | {best:.1f} ({middle:.1f}) "
            f"| {best / base:.2f}x ({ratio:.2f}x) | {peak:.0f} | {over:+.0f} "
            f"| {int(turns[-1]['kept']):,} | {turns[-1]['disk_mb']:.0f} |"
        )


if __name__ == "__main__":
    main()
