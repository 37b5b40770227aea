"""The theorems against a real trajectory: what holds, by how much, and what says nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from fednag.theory.bounds import KINDS, Bound, step_condition, theorem2, theorem3
from fednag.theory.constants import Constants
from fednag.theory.gaps import f_i, h, v_gap
from fednag.theory.trajectory import Moment, Trajectory

ROUNDING = 1e-12  # of the largest weights, or of the losses
RELATIVE = 1e-9


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
        *_shape(trajectory, constants),
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
    reach = h(x, eta, beta, gamma, constants.delta.value)
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
    far = constants.rho.value * reach[-1]
    pairs = [(m.loss - m.virtual_loss, far) for m in trajectory.ends]
    yield _at_most("F(w(k tau)) - F(w_[k](k tau)) <= rho h(tau)", pairs, _loss_room(trajectory))


def _shape(trajectory: Trajectory, constants: Constants) -> Iterator[Verdict]:
    x = np.arange(max(trajectory.tau, 2) + 1)
    known = (trajectory.eta, constants.beta.value, trajectory.gamma, constants.delta.value)
    reach = h(x, *known)
    yield _at_most("h(0) = h(1) = 0", [(float(abs(value)), 0.0) for value in reach[:2]], 0.0)
    falls = [(float(before), float(after)) for before, after in pairwise(reach)]
    yield _at_most("h never falls", falls, 0.0)


def _losses(trajectory: Trajectory, constants: Constants) -> Iterator[Verdict]:
    setting = constants.setting(trajectory.eta, trajectory.gamma, trajectory.tau)
    room, low, ends = _loss_room(trajectory), trajectory.lowest, trajectory.ends
    first, last = trajectory.moments[0].loss - low, ends[-1].loss - low
    nearest = min(end.virtual_loss - low for end in ends)
    alphas: dict[str, float] = {kind: setting.alpha(kind) for kind in KINDS}
    small = step_condition(setting.eta, setting.beta, setting.gamma)
    for name, descent in alphas.items():
        claim = f"a virtual step lowers F by alpha ||grad F||^2, alpha {name}"
        if not small.met:
            yield Verdict(claim, "vacuous", note=f"{small.name} does not hold: {small.detail}")
            continue
        falls = [(descent * now.steepness**2, fall) for now, fall in _falls(trajectory.moments)]
        yield _at_most(claim, falls, room)
    named = {**alphas, "measured": constants.descent.value}
    for name, descent in named.items():
        bound = theorem2(
            setting,
            trajectory.iterations,
            min(nearest, last),
            lowest=nearest,
            last=last,
            descent=descent,
        )
        yield _bounded(f"Theorem 2: F(w(T)) - F(w*), alpha {name}", [(last, bound)], room, first)
    for name, descent in named.items():
        pairs, best = [], math.inf
        for end in ends:
            best = min(best, end.loss - low)
            pairs.append((best, theorem3(setting, end.t, descent=descent)))
        yield _bounded(f"Theorem 3: F(w^f) - F(w*), alpha {name}", pairs, room, first)


def _falls(moments: Sequence[Moment]) -> Iterator[tuple[Moment, float]]:
    """Every virtual step: where it began, and how far F fell."""
    for now, later in pairwise(moments):
        if now.k == later.k:
            yield now, now.virtual_loss - later.virtual_loss


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
