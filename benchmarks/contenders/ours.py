"""FedNAG as fednag runs it."""

from __future__ import annotations

import numpy as np
import torch
from turnstile import Turnstile, tell
from workload import LR, MOMENTUM, Work

from fednag.config import parse
from fednag.data.dataset import Dataset
from fednag.runs.build import Builder, Parts
from fednag.simulate.run import simulate

FOR_EVER = 10**9


def main() -> None:
    work, turnstile = Work.given(), Turnstile()
    x, y = work.arrays()
    images, labels = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    dataset = Dataset("images", images, labels, images[:64], labels[:64], 10, 1 / 255)
    experiment = parse(
        {
            "data": {"name": "custom"},
            "model": {"name": work.model},
            "split": {"workers": work.workers},
            "algorithm": {"name": "fednag", "lr": LR, "momentum": MOMENTUM},
            "training": {"tau": work.tau, "iterations": FOR_EVER, "batch": work.batch},
            "evaluation": {"every": FOR_EVER, "samples": 64},
            "engine": {"chunk": work.chunk, "threads": work.threads},
        }
    )
    resolved, plan, _ = Builder(Parts(dataset=dataset)).plan(experiment)
    tell(chosen={"chunk": resolved.engine.chunk, "threads": resolved.engine.threads})
    states = simulate(plan)
    next(states)
    for _ in states:
        if not turnstile.passed():
            break


if __name__ == "__main__":
    main()
