"""FedNAG as fednag runs it."""

from __future__ import annotations

import numpy as np
import torch
from turnstile import Turnstile, tell
from workload import CHARACTERS, LR, MOMENTUM, Work

from fednag.config import parse
from fednag.data.dataset import Dataset
from fednag.runs.build import Builder, Parts
from fednag.simulate.run import simulate

FOR_EVER = 10**9


def main() -> None:
    work, turnstile = Work.given(), Turnstile()
    x, y = work.arrays()
    images, labels = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    classes, scale = (CHARACTERS, 1.0) if work.is_text else (10, 1 / 255)
    dataset = Dataset("own", images, labels, images[:64], labels[:64], classes, scale)
    parts = Parts(dataset=dataset, module=work.module() if work.is_text else None)
    experiment = parse(
        {
            "data": {"name": "custom"},
            "model": {"name": "custom" if work.is_text else work.model},
            "split": {"workers": work.workers},
            "algorithm": {"name": "fednag", "lr": LR, "momentum": MOMENTUM},
            "training": {"tau": work.tau, "iterations": FOR_EVER, "batch": work.batch},
            "evaluation": {"every": FOR_EVER, "samples": 64},
            "engine": {"chunk": work.chunk, "threads": work.threads},
        }
    )
    resolved, plan, _ = Builder(parts).plan(experiment)
    tell(
        chosen={
            "chunk": resolved.engine.chunk,
            "threads": resolved.engine.threads,
            "inner": resolved.engine.inner,
        }
    )
    states = simulate(plan)
    next(states)
    for _ in states:
        if not turnstile.passed():
            break


if __name__ == "__main__":
    main()
