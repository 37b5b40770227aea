"""The theorems against a real trajectory: what holds, by how much; as verdicts and as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

import numpy as np

from fednag.core.gaps import Array, f_i, h, v_gap
from fednag.theory.bounds import KINDS, Bound, Setting, step_condition, theorem2, theorem3
from fednag.theory.constants import Constants
from fednag.theory.trajectory import Moment, Trajectory

ROUNDING = 1e-12  # of the largest weights, or of the losses
RELATIVE = 1e-9

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """One claim: the figure where it is closest to its bound, or why there is nothing to test."""

    claim: str
    verdict: Literal["holds", "FAILS", "vacuous"]
    measured: float | None = None
    bound: float | None = None
    tests: int = 0
    note: str = ""

    @property
    def slack(self) -> float | None:
        """How many times the bound is what was measured."""
        if self.bound is None or self.measured is None or min(self.bound, self.measured) <= 0:
            return None
        return self.bound / self.measured


def verdicts(trajectory: Trajectory, constants: Constants, central_gap: float) -> list[Verdict]:
    """Everything that can be tested; ``central_gap`` is what ``centralised_gap`` gave."""
    return [
        *_gaps(trajectory, constants),
        _at_most(
            "Proposition 1: FedNAG at tau = 1 is centralised NAG",
            [(central_gap, 0.0)],
            100 * ROUNDING * trajectory.scale,
        ),
        *_losses(trajectory, constants),
    ]


def _gaps(trajectory: Trajectory, constants: Constants) -> Iterator[Verdict]:
    eta, gamma, beta = trajectory.eta, trajectory.gamma, constants.beta.value
    x = np.arange(trajectory.tau + 1)
    room = ROUNDING * trajectory.scale
    reach = _reach(trajectory, constants)
    moments = trajectory.moments
    yield _at_most(
        "Theorem 1: ||w(t) - w_[k](t)|| <= h", [(m.gap, reach[m.x]) for m in moments], room
    )
    alone = [f_i(x, eta, beta, gamma, own) for own in constants.delta_i]
    pairs = [
        (gap, bound[m.x]) for m in moments for gap, bound in zip(m.worker_gaps, alone, strict=True)
    ]
    yield _at_most("Lemma 2: ||w_i(t) - w_[k](t)|| <= f_i", pairs, room)
    momenta = v_gap(x, eta, beta, gamma, constants.delta.value)
    pairs = [(m.momentum_gap, momenta[m.x]) for m in moments]
    yield _at_most("Lemma 3: ||v(t) - v_[k](t)|| within its bound", pairs, room)
    far = constants.rho.value * reach[trajectory.tau]
    pairs = [(m.loss - m.virtual_loss, far) for m in trajectory.ends]
    yield _at_most("F(w(k tau)) - F(w_[k](k tau)) <= rho h(tau)", pairs, _loss_room(trajectory))
    yield _at_most("h(0) = h(1) = 0", [(float(abs(value)), 0.0) for value in reach[:2]], 0.0)
    falls = [(float(before), float(after)) for before, after in pairwise(reach)]
    yield _at_most("h never falls", falls, 0.0)


def _losses(trajectory: Trajectory, constants: Constants) -> Iterator[Verdict]:
    setting = constants.setting(trajectory.eta, trajectory.gamma, trajectory.tau)
    room, low, ends = _loss_room(trajectory), trajectory.lowest, trajectory.ends
    first, last = trajectory.moments[0].loss - low, ends[-1].loss - low
    nearest = min(end.virtual_loss - low for end in ends)
    alphas = _alphas(setting, constants)
    small = step_condition(setting.eta, setting.beta, setting.gamma)
    for kind in KINDS:
        claim = f"a virtual step lowers F by alpha ||grad F||^2, alpha {kind}"
        if not small.met:
            yield Verdict(claim, "vacuous", note=f"{small.name} does not hold: {small.detail}")
            continue
        falls = [(alphas[kind] * now.steepness**2, fall) for now, fall in trajectory.falls]
        yield _at_most(claim, falls, room)
    for name, descent in alphas.items():
        bound = theorem2(
            setting,
            trajectory.iterations,
            min(nearest, last),
            lowest=nearest,
            last=last,
            descent=descent,
        )
        yield _bounded(f"Theorem 2: F(w(T)) - F(w*), alpha {name}", [(last, bound)], room, first)
    for name, descent in alphas.items():
        pairs = [(b, theorem3(setting, end.t, descent=descent)) for end, b in _best(trajectory)]
        yield _bounded(f"Theorem 3: F(w^f) - F(w*), alpha {name}", pairs, room, first)


def _bounded(
    claim: str, pairs: Sequence[tuple[float, Bound]], room: float, first: float
) -> Verdict:
    known = [(measured, bound.value) for measured, bound in pairs if bound.value is not None]
    if not known:
        return Verdict(claim, "vacuous", note=pairs[-1][1].reason)
    verdict = _at_most(claim, known, room)
    if not verdict.note and known[-1][1] >= first:
        return replace(verdict, note=f"no news: F(w(0)) - F(w*) is {first:.4g}")
    return verdict


def _at_most(claim: str, pairs: Sequence[tuple[float, float]], room: float) -> Verdict:
    """Test every (measured, bound); the pair that is shown is the one with the least to spare."""
    over = [pair for pair in pairs if not pair[0] <= pair[1] + RELATIVE * abs(pair[1]) + room]
    told = [pair for pair in pairs if pair[0] > room]  # the others are rounding
    measured, bound = max(over or told or pairs, key=_closeness)
    note = f"{len(over)} of {len(pairs)} fail" if over else ""
    verdict: Literal["holds", "FAILS"] = "FAILS" if over else "holds"
    return Verdict(claim, verdict, float(measured), float(bound), len(pairs), note)


def _closeness(pair: tuple[float, float]) -> float:
    measured, bound = pair
    if bound > 0:
        return measured / bound
    return math.inf if measured > bound else 0.0


def _loss_room(trajectory: Trajectory) -> float:
    return ROUNDING * max(abs(moment.loss) for moment in trajectory.moments)


def gap_rows(trajectory: Trajectory, constants: Constants) -> Rows:
    """The gap and h over all iterations, as rows for charts."""
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
        for name, value in (("gap", worst), ("h", float(reach[x]))):
            rows.append({"x": x, "y": value, "series": name, "part": 0})
    return rows


def loss_rows(trajectory: Trajectory, constants: Constants) -> Rows:
    """F(w^f) - F(w*) after every round, and Theorem 3's bounds where they say something."""
    setting = constants.setting(trajectory.eta, trajectory.gamma, trajectory.tau)
    rows: Rows = []
    for end, best in _best(trajectory):
        values: dict[str, float | None] = {"F(w^f) - F(w*)": best}
        for name, descent in _alphas(setting, constants).items():
            values[f"bound, alpha {name}"] = theorem3(setting, end.t, descent=descent).value
        rows += [
            {"x": end.t, "y": value, "series": name, "part": 0}
            for name, value in values.items()
            if value is not None
        ]
    return rows


def _reach(trajectory: Trajectory, constants: Constants) -> Array:
    """h(x) for x from 0 to tau, to 2 at least."""
    x = np.arange(max(trajectory.tau, 2) + 1)
    known = (trajectory.eta, constants.beta.value, trajectory.gamma, constants.delta.value)
    reach: Array = h(x, *known)
    return reach


def _best(trajectory: Trajectory) -> Iterator[tuple[Moment, float]]:
    """The end of every interval, and the least loss so far at one, less F(w*)."""
    best = math.inf
    for end in trajectory.ends:
        best = min(best, end.loss - trajectory.lowest)
        yield end, best


def _alphas(setting: Setting, constants: Constants) -> dict[str, float]:
    return {kind: setting.alpha(kind) for kind in KINDS} | {"measured": constants.descent.value}
