"""A federation in one process: the real server and silos, on a grid of function calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message, RecordDict

import fednag.flower.handlers as client_module
from fednag.api import run_all
from fednag.core.vectors import Vector, ravel
from fednag.flower.handlers import app
from fednag.flower.inprocess import Fault, InProcessGrid
from fednag.flower.protocol import ARRAYS, CONFIG
from fednag.flower.server import serve
from fednag.flower.settings import Deployment, read_run_config
from fednag.flower.silo import Silo
from fednag.runs.outcome import Outcome


def config_of(out: Path, **changes: Any) -> dict[str, Any]:
    """Three silos of unequal sizes; ``__`` in a name stands for a dot."""
    config = {
        "name": "kit",
        "seed": 3,
        "rounds": 3,
        "model.name": "logistic",
        "data.name": "digits",
        "training.tau": 3,
        "training.batch": 16,
        "split.kind": "sizes",
        "split.skew": 0.7,
        "split.workers": 3,
        "engine.dtype": "float64",
        "algorithm.lr": 0.05,
        "flower.out": str(out),
        "flower.deadline": 0.2,
        "flower.join": 0.2,
    }
    return config | {key.replace("__", "."): value for key, value in changes.items()}


def grid_of(
    config: Mapping[str, Any],
    silos: Iterable[int] = (2, 0, 1),
    faults: Mapping[int, Fault] | None = None,
    **node_config: Any,
) -> InProcessGrid:
    """Nodes for these silos; ``faults`` are by silo."""
    grid = InProcessGrid(app, config, [{"partition-id": k, **node_config} for k in silos])
    for silo, fault in (faults or {}).items():
        grid.faults[node_of(grid, silo)] = fault
    return grid


MADE: dict[str, Silo] = {}


def silos_made_once(patch: pytest.MonkeyPatch) -> None:
    """A silo is made anew for every message, which takes most of the time: here, once."""

    def once(deployment: Deployment, node_config: Mapping[str, Any]) -> Silo:
        key = repr((deployment.digest, sorted(node_config.items())))
        if key not in MADE:
            MADE[key] = Silo(deployment, node_config)
        return MADE[key]

    patch.setattr(client_module, "Silo", once)


def node_of(grid: InProcessGrid, silo: int) -> int:
    nodes = [n for n, c in grid.contexts.items() if c.node_config.get("partition-id") == silo]
    return nodes[-1]


def play(config: Mapping[str, Any], grid: InProcessGrid, said: list[str] | None = None) -> Outcome:
    return serve(grid, read_run_config(config), said.append if said is not None else lambda _: None)


def simulated(deployment: Deployment, out: Path) -> Outcome:
    (run,) = run_all([("simulated", deployment.experiment, None)], out=out)
    return run


def weights(run: Outcome) -> Vector:
    return ravel(run.final)


def gap(a: Outcome, b: Outcome) -> float:
    return float((weights(a) - weights(b)).abs().max())


def altered(
    change: Callable[[RecordDict], None], kind: str = "train", rounds: Iterable[int] | None = None
) -> Fault:
    """A silo that changes its answers to one kind of message."""

    def fault(asked: Message, answered: Message) -> Message:
        about = dict(asked.content.config_records[CONFIG])
        meant = rounds is None or about.get("round") in rounds
        if asked.metadata.message_type == kind and meant:
            change(answered.content)
        return answered

    return fault


def silent(kind: str = "train", rounds: Iterable[int] | None = None) -> Fault:
    """A silo that does what it is asked, and whose answers do not arrive."""

    def fault(asked: Message, answered: Message) -> Message | None:
        about = dict(asked.content.config_records[CONFIG])
        meant = rounds is None or about.get("round") in rounds
        return None if asked.metadata.message_type == kind and meant else answered

    return fault


def relabel(**changes: Any) -> Callable[[RecordDict], None]:
    def change(content: RecordDict) -> None:
        for key, value in changes.items():
            content.config_records[CONFIG][key] = value

    return change


def vector_of(content: RecordDict, name: str = "w") -> Vector:
    array = content.array_records[ARRAYS][name]
    return torch.frombuffer(bytearray(array.data), dtype=torch.float64)
