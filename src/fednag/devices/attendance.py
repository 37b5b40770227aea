"""Deadlines and availability: who arrives in time, decided while a run trains."""

from __future__ import annotations

from typing import Any

import numpy as np

from fednag.devices.fleet import Fleet
from fednag.devices.replay import Clock
from fednag.devices.workload import workload_of
from fednag.errors import FednagError
from fednag.problems.flops import training_flops
from fednag.simulate.run import Attend, Attendance, Plan
from fednag.simulate.schedule import Indexes


def attendance(plan: Plan, fleet: Fleet, deadline: float | None) -> tuple[Attend, list[str]]:
    """Who attends each round of a plan, and notes on what that rests on.

    The delays are those that ``replay`` draws for the run's own seed.
    """
    problem = plan.problem
    flops = training_flops(problem.module, problem.features(problem.x[:2]))
    if flops is None:
        raise FednagError(
            "clock.fleet: the operations of this model cannot be counted, so its iterations cannot "
            "be timed; leave clock out, and use `fednag time` with --flops afterwards"
        )
    clock = Clock(fleet, workload_of(plan, flops), plan.seed)

    def attend(number: int, workers: Indexes, start: float) -> Attendance:
        played = clock.round(number, workers, start, deadline, leave_out=True)
        arrived = np.array(played.arrived, dtype=np.int64)
        return Attendance(arrived, len(workers) - len(played.absent), played.end)

    return attend, notes_on(fleet, clock.workload.workers)


def workload_facts(plan: Plan) -> dict[str, Any] | None:
    """What ``run.json`` keeps for replays; None for a model whose operations cannot be counted."""
    flops = training_flops(plan.problem.module, plan.problem.features(plan.problem.x[:2]))
    return None if flops is None else workload_of(plan, flops).facts()


def notes_on(fleet: Fleet, workers: int) -> list[str]:
    """What every output about a fleet says of it."""
    notes = [fleet.placing(workers)]
    if fleet.synthetic:
        notes.insert(0, f"{fleet.name} is synthetic: chosen from public facts, not measured")
    return notes
