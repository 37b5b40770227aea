"""Local iterations chosen anew for every round, by a convergence bound and what a budget buys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fednag.core.algorithm import Algorithm, FullGradient, News, NonNegative, Positive, WorkerData
from fednag.core.controller import Controller, Order, Setting
from fednag.core.ending import Ending
from fednag.core.gaps import h as drift
from fednag.core.keys import Indexes
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError

NAMES = ("rho", "beta", "delta")
LEAST_BETA = 1e-5
FURTHER = 10  # times the tau chosen before is the largest that is tried


@dataclass(frozen=True)
class AdaptiveTau(Controller):
    """Chooses tau for every round by a convergence bound, within a budget that is never overspent.

    Wang et al., "Adaptive Federated Learning in Resource Constrained Edge Computing Systems" (IEEE
    JSAC 2019). At the end of a round, each worker reports::

        rho_i = |F_i(w_i) - F_i(w)| / |w_i - w|        beta_i = |g_i(w_i) - g_i(w)| / |w_i - w|
        delta_i = |g_i(w) - g(w)|

    with w the model it was sent, w_i the one it trained, g_i its gradient over all its data, and g
    their mean, for which an exchange goes ahead of every round. rho, beta (at least 1e-5) and delta
    are the means by data size. With c and b the cost of an iteration and of the rest of a round, R
    the budget, and R' = R - b - c, the tau is chosen that minimises::

        1/(2 T eta phi) + sqrt((1/(2 T eta phi))^2 + rho h(tau) / (eta phi tau)) + rho h(tau),
        T = R' tau / (c tau + b)

    over 1 to ten times the last choice, at most ``max_tau``; it begins with 1. A round is cut to
    what is left, and where not even one iteration fits, the run is over.

    h bounds how far tau local steps drift: ``h = "fedavg"`` is Wang's, ``"fednag"`` that of
    FedNAG's Theorem 1, with the method's momentum; the rest of the bound is FedAvg's still, with
    phi for all that is not known of the problem. eta is the method's lr.

    ``unit`` says what the budget is of. ``seconds`` are those of a fleet's clock: c is the mean of
    the slowest worker of the round, b what rounds took beyond it. ``bytes`` are all that travel: c
    is 0. Of ``iterations`` c is 1, and b is ``aggregation``, what a round is held to cost beside.

    The paper's w in rho_i and beta_i is the new mean, which a worker would have to compare with a
    model of the round before; here it has both at hand. What workers report, three numbers, is in
    no count of bytes, and the gradients and losses they take for it are in no count of time.

    >>> from fednag.controllers import AdaptiveTau
    >>> rule = AdaptiveTau(budget=1000, unit="iterations")
    >>> known = dict(rho=1.0, beta=2.0, delta=0.0)  # workers who do not pull apart
    >>> rule.choice(known, c=1.0, b=10.0, eta=0.01, gamma=0.0, most=100)
    100
    """

    budget: Positive
    unit: Literal["seconds", "bytes", "iterations"] = "bytes"
    h: Literal["fedavg", "fednag"] = "fedavg"
    phi: Positive = 0.025
    max_tau: Annotated[int, Ge(1), Le(10_000)] = 100
    aggregation: NonNegative = 0.0

    before = (FullGradient(into="asked"),)
    reads = ("asked",)

    @property
    def needs_clock(self) -> bool:  # type: ignore[override]
        return self.unit == "seconds"

    @property
    def needs_bytes(self) -> bool:  # type: ignore[override]
        return self.unit == "bytes"

    def check(self, algorithm: Algorithm, setting: Setting) -> None:
        if not hasattr(algorithm, "lr"):
            raise FednagError(
                "controller.kind",
                f"the bound needs a learning rate, and {type(algorithm).__name__} has no lr",
                "use another method or controller",
            )
        if self.unit == "bytes" and setting.bytes is None:
            raise FednagError(
                "controller.unit",
                "how many bytes a round has is not known beforehand, for the messages of a "
                "transform are as long as the numbers in them ask for",
                "leave entropy out, or give a budget of seconds or iterations",
            )

    def init(self) -> dict[str, Any]:
        start = {"round": -1, "began": 0.0, "computing": 0.0, "costs": 0.0}
        return {**start, "choice": 1, "tau": 1, "known": {}}

    def observe(self, local: Vectors, sent: Vectors, data: WorkerData) -> Mapping[str, Vector]:
        if local is sent or "w" not in local or "asked" not in sent:
            return {}  # of a stage in which nothing was trained
        here, there = data.gradient(sent.w), data.gradient(local.w)
        far, steep = _norm(local.w - sent.w), (data.loss(local.w) - data.loss(sent.w)).abs()
        return {
            "rho": _over(steep.to(far), far),
            "beta": _over(_norm(there - here), far),
            "delta": _norm(here - sent.asked),
        }

    def next(
        self,
        state: dict[str, Any],
        news: News,
        free: Indexes,
        stage: Algorithm,
        setting: Setting,
    ) -> tuple[Order, dict[str, Any]]:
        order, state = super().next(state, news, free, stage, setting)
        if state["round"] != news.round:  # a round begins
            state = self.learnt(state, news, setting)
        if not stage.asks:
            state = self.planned(state, order.cohort, stage, setting)
        until = self.budget if self.unit == "seconds" else inf
        return replace(order, steps=state["tau"], until=until), state

    def over(self, state: Mapping[str, Any], news: News, setting: Setting) -> Ending | None:
        """The run is over when not even one more iteration fits."""
        state = self.learnt(dict(state), news, setting)
        c, b = self.costs(state, np.arange(len(setting.sizes)), setting)
        if self.unit == "bytes":  # of a cohort, not of everyone
            b = b * setting.cohort / len(setting.sizes)
        if c + b <= self.budget - self.spent(news):
            return None
        return Ending("budget", news.iteration, self.unit, self.budget)

    def spent(self, news: News) -> float:
        """What has been spent of the budget."""
        if self.unit == "iterations":
            return news.iteration + self.aggregation * news.round
        return news.seconds if self.unit == "seconds" else float(news.bytes)

    def costs(
        self, state: Mapping[str, Any], cohort: Indexes, setting: Setting
    ) -> tuple[float, float]:
        """What an iteration and the rest of a round of these workers cost."""
        if self.unit == "iterations":
            return 1.0, self.aggregation
        if self.unit == "seconds":
            assert setting.pace is not None
            beyond = state["costs"] / max(state["round"], 1)
            return float(setting.pace[cohort].max(initial=0.0)), beyond
        assert setting.bytes is not None
        return 0.0, float(len(cohort) * setting.bytes)

    def learnt(self, state: dict[str, Any], news: News, setting: Setting) -> dict[str, Any]:
        """What is remembered when a round begins: what the last one cost, and what it showed."""
        spent, costs, known = self.spent(news), state["costs"], state["known"]
        if state["round"] >= 0:
            costs += max(0.0, spent - state["began"] - state["computing"])
        told = {
            worker: numbers
            for worker, numbers in news.told.items()
            if set(NAMES) <= set(numbers) and all(map(isfinite, numbers.values()))
        }
        if told:
            sizes = setting.sizes[list(told)]
            known = {
                name: float(np.average([own[name] for own in told.values()], weights=sizes))
                for name in NAMES
            }
            known["beta"] = max(known["beta"], LEAST_BETA)
        return {**state, "round": news.round, "began": spent, "costs": costs, "known": known}

    def planned(
        self, state: dict[str, Any], cohort: Indexes, stage: Algorithm, setting: Setting
    ) -> dict[str, Any]:
        """What is remembered when tau is chosen."""
        numbers: Any = stage
        eta, gamma = numbers.lr, getattr(stage, "momentum", 0.0)
        c, b = self.costs(state, cohort, setting)
        choice = state["choice"]
        if state["known"]:
            most = min(FURTHER * choice, self.max_tau)
            choice = self.choice(state["known"], c, b, eta, gamma, most)
        fits = (self.budget - state["began"] - b) / c if c else inf
        tau = max(1, int(min(choice, fits)))
        return {**state, "choice": choice, "tau": tau, "computing": c * tau}

    def choice(
        self, known: Mapping[str, float], c: float, b: float, eta: float, gamma: float, most: int
    ) -> int:
        """The tau from 1 to ``most`` of the least bound, the smallest of several."""
        left = self.budget - b - c
        if left <= 0:
            return 1
        taus, rho = np.arange(1, most + 1), known["rho"]
        momentum = gamma if self.h == "fednag" else 0.0
        apart: NDArray[np.float64] = drift(taus, eta, known["beta"], momentum, known["delta"])
        with np.errstate(all="ignore"):
            half = (c + b / taus) / (2 * left * eta * self.phi)
            bound = half + np.sqrt(half**2 + rho * apart / (eta * self.phi * taus)) + rho * apart
        return 1 + int(np.argmin(np.where(np.isnan(bound), inf, bound)))


def _norm(rows: Vector) -> Vector:
    found: Vector = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
    return found


def _over(above: Vector, far: Vector) -> Vector:
    """A quotient of what changed and how far the worker went; 0 for one that stayed."""
    return torch.where(far > 0, above / far, torch.zeros_like(far))
