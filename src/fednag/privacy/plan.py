"""How much noise a budget asks for."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Literal

from fednag.errors import FednagError
from fednag.privacy.accounting import Mechanism, multiplier_for
from fednag.privacy.promise import Unit

Cohorts = Literal["fixed", "poisson"]


@dataclass(frozen=True)
class NoisePlan:
    """The least noise that keeps a run within its budget, or what given noise costs."""

    noise_multiplier: float
    epsilon: float
    exactly: float | None  # by privacy loss distributions, where they know the sampling
    delta: float
    unit: Unit
    local: bool
    times: int  # the mechanism is used, on one unit
    mechanism: Mechanism
    budget: float

    @property
    def settings(self) -> str:
        """What to write into an experiment file."""
        z, sampled = f"{self.noise_multiplier:.4g}", self.mechanism.sampling == "poisson"
        lines = ["[privacy]", f"delta = {self.delta:g}", f"epsilon = {self.budget:.6g}"]
        if self.unit == "sample":
            return "\n".join([*lines, 'unit = "sample"', "norm = 1.0", f"noise_multiplier = {z}"])
        if self.local:
            clip, noise = '[[uplink]]\nkind = "clip"\nnorm = 1.0', '[[uplink]]\nkind = "noise"'
            return "\n".join([*lines, "", clip, "", noise, f"sigma = {z}  # times norm"])
        mean = ["[aggregator]", 'kind = "noisy-mean"', "norm = 1.0", f"noise_multiplier = {z}"]
        drawn = ["", "[controller]", 'kind = "poisson"'] if sampled else []
        return "\n".join([*lines, "", *mean, *drawn])


def plan_noise(
    *,
    delta: float,
    workers: int,
    rounds: int,
    per_round: int | None = None,
    epsilon: float | None = None,
    noise_multiplier: float | None = None,
    cohorts: Cohorts = "fixed",
    local: bool = False,
    samples: int | None = None,
    batch: int = 0,
    tau: int = 1,
) -> NoisePlan:
    """The noise for an ``epsilon``, or the epsilon of a ``noise_multiplier``: give one of them.

    Protected is a worker's whole data; with ``samples``, those of the smallest worker, one sample.

    >>> from fednag.privacy.plan import plan_noise
    >>> found = plan_noise(noise_multiplier=1.0, delta=1e-5, workers=100, per_round=10, rounds=100)
    >>> round(found.epsilon, 1)
    83.9
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise FednagError("", remedy="give epsilon or noise_multiplier, one of them")
    drawn = workers if per_round is None else per_round
    if drawn > workers:
        raise FednagError(
            "per_round", f"{drawn} is more than the {workers} workers there are", "lower it"
        )
    mechanism, times = Mechanism(1.0, cohorts, drawn, workers), rounds
    if samples is not None:
        mechanism = Mechanism(1.0, "poisson", min(batch or samples, samples), samples)
        times = rounds * tau
    elif local:
        mechanism = Mechanism(1.0)
    way = mechanism.sampling, mechanism.sample, mechanism.population
    if noise_multiplier is None:
        assert epsilon is not None
        least = multiplier_for(epsilon, delta, times, *way)
        digit = 10.0 ** (floor(log10(least)) - 3)
        noise_multiplier = float(f"{ceil(least / digit) * digit:.4g}")  # up: down would overspend
    found = Mechanism(noise_multiplier, *way)
    spent = found.epsilon(times, delta)
    return NoisePlan(
        noise_multiplier,
        spent,
        found.exactly(times, delta),
        delta,
        "worker" if samples is None else "sample",
        local or samples is not None,
        times,
        found,
        budget=spent if epsilon is None else epsilon,
    )
