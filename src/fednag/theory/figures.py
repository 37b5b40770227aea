"""What was measured on a run beside its bound, as rows for charts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fednag.theory.bounds import theorem3
from fednag.theory.constants import Constants
from fednag.theory.gaps import Array, h
from fednag.theory.trajectory import Trajectory

Rows = list[dict[str, Any]]


def gap_rows(trajectory: Trajectory, constants: Constants) -> Rows:
    """The gap and h over all iterations."""
    reach = _reach(trajectory, constants)
    return [
        {"x": m.t, "y": value, "series": name, "part": m.k}
        for m in trajectory.moments
        for name, value in (("gap", m.gap), ("h", float(reach[m.x])))
        if m.x >= 2
    ]


def interval_rows(trajectory: Trajectory, constants: Constants) -> Rows:
    """The largest gap after x iterations of any interval, and h(x)."""
    reach = _reach(trajectory, constants)
    rows: Rows = []
    for x in range(2, trajectory.tau + 1):
        worst = max(m.gap for m in trajectory.moments if m.x == x)
        rows += [
            {"x": x, "y": worst, "series": "gap", "part": 0},
            {"x": x, "y": float(reach[x]), "series": "h", "part": 0},
        ]
    return rows


def loss_rows(trajectory: Trajectory, constants: Constants) -> Rows:
    """F(w^f) - F(w*) after every round, and Theorem 3's bounds where they say something."""
    setting = constants.setting(trajectory.eta, trajectory.gamma, trajectory.tau)
    rows: Rows = []
    best = math.inf
    for end in trajectory.ends:
        best = min(best, end.loss - trajectory.lowest)
        values = {
            "F(w^f) - F(w*)": best,
            "bound, alpha paper": theorem3(setting, end.t, "paper").value,
            "bound, alpha tight": theorem3(setting, end.t, "tight").value,
            "bound, alpha measured": theorem3(
                setting, end.t, descent=constants.descent.value
            ).value,
        }
        rows += [
            {"x": end.t, "y": value, "series": name, "part": 0}
            for name, value in values.items()
            if value is not None
        ]
    return rows


def _reach(trajectory: Trajectory, constants: Constants) -> Array:
    x = np.arange(trajectory.tau + 1)
    reach: Array = h(
        x, trajectory.eta, constants.beta.value, trajectory.gamma, constants.delta.value
    )
    return reach
