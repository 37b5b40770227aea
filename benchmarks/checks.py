"""What it costs to compare recordings with the user's own module.

    python benchmarks/checks.py            a few models, about two minutes
    python benchmarks/checks.py --quick    that it works; its numbers mean little

Each run is made with and without the comparisons, in turns, in one process; the best of the turns
counts. The cost is told in seconds a run, and in local iterations of one worker.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fednag.config import parse
from fednag.data.dataset import Dataset
from fednag.problems.checks import Checked
from fednag.runs.build import Builder, Parts
from fednag.simulate.run import simulate

ROWS: dict[str, tuple[str, tuple[int, ...], int, int, int]] = {
    # model, shape of a sample, batch, tau, rounds
    "logistic, 28x28": ("logistic", (1, 28, 28), 64, 20, 64),
    "mlp, 28x28": ("mlp", (1, 28, 28), 64, 20, 32),
    "cnn, 28x28": ("cnn", (1, 28, 28), 64, 20, 16),
    "resnet20, 32x32": ("resnet20", (3, 32, 32), 16, 10, 4),
}
WORKERS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    print("| model | a run | with checks | checks | worker iterations of that | of the run |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in list(ROWS)[:1] if quick else ROWS:
        report(name, turns=1 if quick else 3)


def report(name: str, turns: int) -> None:
    model, shape, batch, tau, rounds = ROWS[name]
    best = {True: float("inf"), False: float("inf")}
    for _ in range(turns):
        for checked in (False, True):
            best[checked] = min(best[checked], timed(model, shape, batch, tau, rounds, checked))
    cost = best[True] - best[False]
    step = best[False] / (WORKERS * tau * rounds)
    print(
        f"| {name}, N {WORKERS}, batch {batch}, tau {tau}, {rounds} rounds | {best[False]:.2f} s "
        f"| {best[True]:.2f} s | {cost:.2f} s | {cost / step:.0f} of {WORKERS * tau * rounds} "
        f"| {cost / best[False]:.1%} |"
    )


def timed(
    model: str, shape: tuple[int, ...], batch: int, tau: int, rounds: int, checked: bool
) -> float:
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2000, *shape), generator=draw, dtype=torch.uint8)
    y = torch.randint(0, 10, (2000,), generator=draw)
    settings: dict[str, Any] = {
        "data": {"name": "custom"},
        "model": {"name": model},
        "split": {"workers": WORKERS},
        "training": {"tau": tau, "iterations": tau * rounds, "batch": batch},
        "evaluation": {"every": 10**6},
        "engine": {"chunk": 1, "threads": 1},
    }
    dataset = Dataset("images", x, y, x[:0], y[:0], 10, 1 / 255)
    with checks(checked):
        began = time.perf_counter()
        _, plan, _ = Builder(Parts(dataset=dataset)).plan(parse(settings))
        for _ in simulate(plan):
            pass
        return time.perf_counter() - began


@contextmanager
def checks(wanted: bool) -> Iterator[None]:
    """With ``wanted`` false, every recording is taken as it is."""
    original = Checked._check
    if not wanted:
        Checked._check = _taken_on_trust  # type: ignore[method-assign]
    try:
        yield
    finally:
        Checked._check = original  # type: ignore[method-assign]


def _taken_on_trust(self: Checked, recording: Any, given: Any, due: int, padded: bool) -> None:
    recording.checked[padded] = due


if __name__ == "__main__":
    main()
