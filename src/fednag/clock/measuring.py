"""Iterations and aggregations of this machine, really done and timed."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from fednag.config import Experiment
from fednag.core.keys import Draws
from fednag.devices.samples import AGGREGATION, AGGREGATOR, Sample
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
        raise FednagError("model: its operations cannot be counted; sample another model")
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
