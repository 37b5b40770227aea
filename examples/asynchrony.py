"""Seconds to an accuracy where not everyone is waited for: deadlines, over-selection, FedBuff.

    python examples/asynchrony.py [phones|paper-edge] [--seeds 3]

On ``phones`` a round has 100 of 1,000 workers, each of whom holds 20 samples of 3 classes, drawn
here; on ``paper-edge`` all four, who hold the embedded digits. A round that takes fewer answers is
shorter and worth less, so every run goes on until the target, and seconds are compared.
"""

from __future__ import annotations

import argparse
from statistics import mean
from typing import Any

import torch

import fednag

METHODS = ("fednag", "fedmom", "fedavg")
PHONES: dict[str, Any] = {
    "split": {"kind": "classes", "classes": 3, "workers": 1000},
    "model": {"name": "mlp", "hidden": [32]},
    "training": {"tau": 10, "batch": 10, "participants": 100},
    "evaluation": {"samples": 1000},
}
EDGE: dict[str, Any] = {
    "data": "digits",
    "split": {"kind": "dirichlet", "alpha": 0.5, "workers": 4},
    "model": {"name": "mlp", "hidden": [32]},
    "training": {"tau": 10, "batch": 32},
}
BUFF = {"kind": "staleness", "equal": True, "power": 0.5}
# What is given, the longest run, and rounds between evaluations.
Way = tuple[dict[str, Any], int, int]
WAYS: dict[str, dict[str, Way]] = {
    "phones": {
        "barrier: 100, all awaited": ({}, 2500, 1),
        "deadline 0.4 s, late ones lost": ({"clock": {"deadline": 0.4}}, 2500, 1),
        "deadline 0.4 s, late ones count": (
            {"clock": {"deadline": 0.4}, "controller": "semi-synchronous"},
            2500,
            1,
        ),
        "130 asked, the first 100": (
            {"controller": {"kind": "over-selection", "ask": 130}},
            2500,
            1,
        ),
        "FedBuff: 10 answers, 100 at work": (
            {"controller": {"kind": "buffered", "need": 10, "at_work": 100}, "aggregator": BUFF},
            3000,
            5,
        ),
    },
    "paper-edge": {
        "barrier: all four": ({}, 2500, 1),
        "deadline 12 ms, late ones lost": ({"clock": {"deadline": 0.012}}, 2500, 1),
        "deadline 12 ms, late ones count": (
            {"clock": {"deadline": 0.012}, "controller": "semi-synchronous"},
            2500,
            1,
        ),
        "4 asked, the first 3": (
            {
                "controller": {"kind": "over-selection", "ask": 4},
                "training": {"participants": 3},
            },
            2500,
            1,
        ),
        "FedBuff: 2 answers, 4 at work": (
            {"controller": {"kind": "buffered", "need": 2}, "aggregator": BUFF},
            5000,
            2,
        ),
    },
}
LR = {"phones": 0.05, "paper-edge": 0.01}
TARGET = {"phones": 0.8, "paper-edge": 0.85}


def clusters(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ten classes in 32 dimensions, not separable; ``seed`` draws samples, never the centres."""
    centres = torch.randn(10, 32, generator=torch.Generator().manual_seed(0))
    drawn = torch.Generator().manual_seed(seed + 1)
    y = torch.arange(count) % 10
    return 0.5 * centres[y] + torch.randn(count, 32, generator=drawn), y


def trained(fleet: str, name: str, way: Way, seed: int) -> fednag.Run:
    """A run until the target."""
    given, most, every = way
    known = EDGE
    if fleet == "phones":
        known = PHONES | {"data": clusters(20_000, seed), "test": clusters(2_000, seed + 100)}
    sections = {"clock": {}, "evaluation": {}, **known}
    for section, table in given.items():
        held = sections.get(section)
        both = isinstance(held, dict) and isinstance(table, dict)
        sections = sections | {section: {**held, **table} if both else table}
    sections["training"] = sections["training"] | {"iterations": most}
    sections["evaluation"] = sections["evaluation"] | {"every": every}
    sections["clock"] = sections["clock"] | {"fleet": fleet}
    cls = fednag.ALGORITHMS[name]
    return fednag.run(
        cls(lr=LR[fleet]),  # type: ignore[call-arg]
        seed=seed,
        stop={"accuracy": TARGET[fleet]},
        engine={"chunk": 25, "threads": 1},
        quiet=True,
        **sections,
    )


def told(runs: list[fednag.Run], target: float) -> str:
    """Seconds to the target, and the MB sent until then; means over seeds."""
    ends = [run.records[-1] for run in runs]
    best = mean(max(record.accuracy or 0 for record in run.records) for run in runs)
    if any((record.accuracy or 0) < target for record in ends):
        return f"not reached ({best:.1%})"
    seconds = mean(record.clock or 0 for record in ends)
    sent = mean(record.bytes_up + record.bytes_down for record in ends) / 1e6
    return f"{seconds:.3g} s, {sent:.3g} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fleet", nargs="?", choices=list(WAYS), default="phones")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    print(f"to accuracy {TARGET[given.fleet]} on {given.fleet} (synthetic), {given.seeds} seeds\n")
    print(f"| | {' | '.join(METHODS)} |")
    print(f"| --- |{' --- |' * len(METHODS)}")
    for title, way in WAYS[given.fleet].items():
        cells = []
        for name in METHODS:
            runs = [trained(given.fleet, name, way, seed) for seed in range(given.seeds)]
            cells.append(told(runs, TARGET[given.fleet]))
        print(f"| {title} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
