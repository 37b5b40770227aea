"""Bounds beside one another, as rows for charts and tables. Needs numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednag.core.gaps import Array
from fednag.theory.bounds import (
    KINDS,
    Kind,
    Setting,
    alpha_hat,
    eta_bar,
    f1,
    f2,
    floor,
    iterations_to,
    largest_eta,
    theorem3,
)

NAMES: dict[Kind, str] = {"paper": "FedNAG, alpha paper", "tight": "FedNAG, alpha tight"}
FEDAVG = "FedAvg"

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Axis:
    """The bounds along one symbol, the others held; nan where a bound is vacuous."""

    symbol: str
    grid: Array
    fednag: dict[Kind, Array]
    fedavg: Array

    def rows(self) -> Rows:
        lines = {NAMES[kind]: values for kind, values in self.fednag.items()} | {
            FEDAVG: self.fedavg
        }
        return [
            {"x": float(x), "y": float(y), "series": name, "part": 0}
            for name, values in lines.items()
            for x, y in zip(self.grid, values, strict=True)
            if np.isfinite(y)
        ]

    def where(self, kind: Kind) -> str:
        """Where FedNAG's bound is below FedAvg's, in words."""
        mine = self.fednag[kind]
        if not np.isfinite(mine).any():
            return "nowhere: vacuous everywhere"
        below = mine < self.fedavg
        if below.all():
            return "everywhere"
        pieces = _stretches(self.grid, below)
        silent = _stretches(self.grid, ~np.isfinite(mine))
        tail = f"; vacuous for {', '.join(silent)}" if silent else ""
        return (", ".join(pieces) if pieces else "nowhere") + tail


def _stretches(grid: Array, wanted: NDArray[np.bool_]) -> list[str]:
    found, first = [], None
    for place, yes in enumerate([*wanted, False]):
        if yes and first is None:
            first = place
        if not yes and first is not None:
            low, high = grid[first], grid[place - 1]
            found.append(f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}")
            first = None
    return found


def axes(setting: Setting, T: int, points: int = 121) -> list[Axis]:
    """f1 and f2 over T, tau, gamma and eta; p, omega and the rest are held, as in the paper."""
    most = largest_eta(setting.beta, setting.gamma)
    rounds = np.unique(np.logspace(0, np.log10(max(100 * T / setting.tau, 10)), points).round())
    grids = {
        "T": rounds * setting.tau,
        "tau": np.arange(1.0, max(2 * setting.tau, 40) + 1),
        "gamma": np.linspace(0.01, 0.99, points),
        "eta": most * np.logspace(-4, 0, points),
    }
    found = []
    for symbol, grid in grids.items():
        known: dict[str, Any] = {"T": T, **asdict(setting), symbol: grid}
        fednag = {kind: f1(kind=kind, **known) for kind in KINDS}
        found.append(Axis(symbol, grid, fednag, np.broadcast_to(f2(**known), grid.shape)))
    return found


def theorem4_rows(setting: Setting, T: int) -> list[dict[str, float | None]]:
    """For smaller and smaller eta: both alphas, FedAvg's, and the bounds (None: vacuous)."""
    most = largest_eta(setting.beta, setting.gamma)
    rows: list[dict[str, float | None]] = []
    for eta in most * np.logspace(0, -6, 7):
        here = replace(setting, eta=float(eta))
        rows.append(
            {
                "eta": here.eta,
                "alpha paper": here.alpha("paper"),
                "alpha tight": here.alpha("tight"),
                "alpha-hat": float(alpha_hat(here.eta, here.beta)),
                "f1 paper": theorem3(here, T, "paper").value,
                "f1 tight": theorem3(here, T, "tight").value,
                "f2": theorem3(here.fedavg, T).value,
            }
        )
    return rows


def thresholds(setting: Setting, T: int) -> dict[str, float | None]:
    """eta-bar under each alpha."""
    return {kind: eta_bar(setting, T, kind) for kind in KINDS}


def plan_rows(setting: Setting, taus: Sequence[int], gap: float | None) -> Rows:
    """For each tau: h, the floor and the iterations to the gap, under each alpha."""
    rows: Rows = []
    for tau in taus:
        here = replace(setting, tau=tau)
        row: dict[str, Any] = {"tau": tau, "h": here.h}
        for kind in KINDS:
            row[f"floor {kind}"] = floor(here, kind)
            row[f"T {kind}"] = None if gap is None else iterations_to(gap, here, kind)
        rows.append(row)
    return rows
