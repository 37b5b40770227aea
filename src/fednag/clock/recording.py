"""This machine, really timed, and its samples put into a fleet's folder beside those of others."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fednag.config import Experiment, read
from fednag.core.keys import Draws
from fednag.devices.files import (
    AGGREGATION,
    AGGREGATOR,
    FORMAT,
    Sample,
    describe,
    gather,
    read_fleet,
    write_fleet,
)
from fednag.devices.transfers import Peer
from fednag.errors import FednagError
from fednag.problems.flops import training_flops
from fednag.simulate.engine import Engine, first_state
from fednag.simulate.run import Plan

WARM_UP = 3  # iterations that are not counted: the first ones record the model


def reference(plan: Plan, experiment: Experiment) -> dict[str, Any]:
    """What the iterations are of, as a fleet file says it."""
    problem = plan.problem
    flops = training_flops(problem.module, problem.features(problem.x[:2]))
    if flops is None:
        raise FednagError("model", "its operations cannot be counted", "sample another model")
    width = Draws(0, [len(plan.owned[0])], plan.batch).width
    return {
        "model": experiment.model.name,
        "data": experiment.data.name,
        "batch": width,
        "flops": flops * width,
    }


def iteration_samples(plan: Plan, device: str, count: int) -> list[Sample]:
    """Seconds of single local iterations, one after the other, of the plan's first worker."""
    owned = plan.owned[:1]
    draws = Draws(plan.seed, [len(owned[0])], plan.batch)
    worker, starts = np.array([0]), np.zeros(1, dtype=np.int64)
    found = []
    engine = Engine(plan.problem, plan.scheme, owned, draws, chunk=1, threads=1)
    with engine:
        server = first_state(plan.algorithm, plan.problem)
        for number in range(count + WARM_UP):
            starts[0] = number
            began = time.perf_counter()
            engine.once(server, worker, starts, 1)
            seconds = time.perf_counter() - began
            if number >= WARM_UP:
                found.append(Sample(device, "iteration", None, seconds))
    return found


def aggregation_samples(plan: Plan, count: int) -> list[Sample]:
    """Seconds to take the weighted mean of all workers' models, with the bytes that came up."""
    rows = torch.randn(len(plan.owned), len(plan.problem.initial), dtype=plan.problem.dtype)
    sizes = torch.tensor([len(held) for held in plan.owned], dtype=torch.float64)
    found = []
    for number in range(count + 1):
        began = time.perf_counter()
        mean = (sizes @ rows.double()) / sizes.sum()
        mean.to(plan.problem.dtype)
        seconds = time.perf_counter() - began
        if number:
            found.append(Sample(AGGREGATOR, AGGREGATION, rows.nbytes, seconds))
    return found


def link_samples(peer: Peer, device: str, size: int, count: int) -> list[Sample]:
    """Transfers both ways of one and two models' size: what FedAvg and FedNAG send."""
    for way in (peer.up, peer.down):
        way(size)  # the first one opens the window
    found = []
    for _ in range(count):
        for bytes_ in (size, 2 * size):
            found.append(Sample(device, "up", bytes_, peer.up(bytes_)))
            found.append(Sample(device, "down", bytes_, peer.down(bytes_)))
    return found


def check_name(folder: Path, device: str) -> None:
    """Raise a sentence, before anything is measured, if the device cannot be added there."""
    where = {"up": {"mbit": 1.0}, "down": {"mbit": 1.0}}
    describe({"name": "new", "device": [{"name": device, "gflops": 1.0, **where}]}, "--device")
    if (folder / "fleet.toml").exists():
        found = read_fleet(folder)
        if device in [known.name for known in found.devices]:
            raise FednagError(
                folder, f"device {device} is there already", "choose another --device or --out"
            )


def add_device(
    folder: Path, device: str, reference: dict[str, Any], samples: Sequence[Sample], where: str
) -> Path:
    """The fleet in ``folder`` with one more device; a new one if there is none."""
    path = folder / "fleet.toml"
    table = {"name": device, "about": f"measured, transfers {where}", "reference": reference}
    if not path.exists():
        raw: dict[str, Any] = {
            "format": FORMAT,
            "name": _name(folder),
            "about": "measured with `fednag time record`",
            "synthetic": False,
            "sampling": "bootstrap",
            "device": [table],
        }
        return write_fleet(folder, raw, gather(samples))
    found, raw = read_fleet(folder), read(path)
    raw["device"] = [*raw["device"], table]
    kept = found.samples.all()
    # The aggregator is one: the first machine's samples of it stay.
    sampled = any(sample.who == AGGREGATOR for sample in kept) or found.aggregator.seconds
    added = [s for s in samples if not (sampled and s.who == AGGREGATOR)]
    return write_fleet(folder, raw, gather([*kept, *added]))


def _name(folder: Path) -> str:
    name = folder.resolve().name
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)
    return safe[:100] if safe[:1].isalnum() else "measured"
