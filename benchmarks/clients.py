"""Logistic regression with 1000 clients, 10 a round, as in FLUTE's comparison of simulators."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import torch

import fednag
from fednag.data.dataset import Dataset


def main() -> None:
    folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
    x = torch.from_numpy(np.load(folder / "x.npy"))
    y = torch.from_numpy(np.load(folder / "y.npy").astype(np.int64))
    run = fednag.run(
        fednag.FedAvg(lr=0.03),
        data=Dataset("images", x, y, x[:10_000], y[:10_000], 10, 1 / 255),
        model="logistic",
        workers=1000,
        iterations=6 * rounds,
        tau=6,
        batch=10,
        training={"participants": 10},
        evaluation={"every": 10},
    )
    last = run.records[-1]
    print(json.dumps({"loss": last.loss, "evaluations": len(run.records)}))


if __name__ == "__main__":
    main()
