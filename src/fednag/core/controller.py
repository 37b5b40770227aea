"""Who takes part in a round, for how many local iterations, and how long the server waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar

import numpy as np

from fednag.core.algorithm import Algorithm, News, WorkerData
from fednag.core.keys import Indexes, cohort
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True, eq=False)
class Order:
    """The server's decision for one exchange."""

    cohort: Indexes
    """The workers asked, in order."""
    steps: int | Sequence[int]
    """Local iterations: one number, or one for each of them."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The algorithm's numbers that differ in this round, such as ``lr``."""
    need: int | None = None
    """Answers that end the exchange; the others stay in flight. None: all."""
    seconds: float = inf
    """How long the server waits; who is later is left out."""


@dataclass(frozen=True, eq=False)
class Setting:
    """What is the same in all rounds of a run."""

    seed: int
    tau: int
    iterations: int
    cohort: int  # workers of a round
    sizes: Indexes  # samples of each worker
    deadline: float = inf  # seconds


class Controller:
    """Decides every exchange. Subclasses are ``@dataclass(frozen=True)``.

    The defaults are the plain round: a cohort drawn at random, tau local iterations each,
    everyone is waited for. ``state`` is what the controller remembers: a table of numbers, texts
    and lists of them, so that it can be saved.

    >>> from fednag import Controller
    >>> Controller().init()
    {}
    """

    before: ClassVar[tuple[Algorithm, ...]] = ()
    """Stages that go ahead of the method's own, e.g. to ask for losses."""
    needs_clock: ClassVar[bool] = False
    """It goes by who answers first, which only a clock can tell."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Vectors those stages left with the server that workers are sent with the method's."""

    def init(self) -> dict[str, Any]:
        """What it remembers before the first round."""
        return {}

    def next(
        self,
        state: dict[str, Any],
        news: News,
        free: Indexes,
        stage: Algorithm,
        setting: Setting,
    ) -> tuple[Order, dict[str, Any]]:
        """The next exchange, and what is remembered. ``free`` are the workers not in flight."""
        drawn = cohort(setting.seed, news.round + 1, free, setting.cohort)
        return Order(drawn, setting.tau, seconds=setting.deadline), state

    def observe(self, local: Vectors, sent: Vectors, data: WorkerData) -> Mapping[str, Vector]:
        """Numbers workers report at the end of an exchange, (n, 1) each."""
        return {}

    @property
    def observes(self) -> bool:
        return type(self).observe is not Controller.observe


class Schedule:
    """A number of the algorithm over rounds. Subclasses are ``@dataclass(frozen=True)``.

    ``field`` names it, e.g. ``algorithm.lr``.

    >>> from fednag import CONTROLLERS, SCHEDULES
    >>> sorted(SCHEDULES)
    ['cosine']
    """

    field: str

    def at(self, first: float, done: float) -> float:
        """Its value when the share ``done`` of all iterations is done; ``first`` is the file's."""
        raise NotImplementedError


def steps_of(order: Order, most: int) -> Indexes:
    """Local iterations of each worker of an order; none does more than are left."""
    asked = np.broadcast_to(np.asarray(order.steps, dtype=np.int64), (len(order.cohort),))
    return np.clip(asked, 0, most)
