"""Who takes part in a round, for how many local iterations, and how long the server waits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from fednag.core.aggregator import Aggregator
from fednag.core.algorithm import Algorithm, News, WorkerData
from fednag.core.ending import Ending
from fednag.core.keys import Indexes, cohort
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True, eq=False)
class Order:
    """The server's decision for one exchange.

    >>> import numpy as np
    >>> from fednag import Order
    >>> order = Order(cohort=np.array([0, 3]), steps=[10, 5])
    >>> order.need is None  # everyone is waited for
    True
    """

    cohort: Indexes
    """The workers asked, in order."""
    steps: int | Sequence[int]
    """Local iterations: one number, or one for each of them."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The algorithm's numbers that differ in this round, such as ``lr``."""
    need: int | None = None
    """Answers that end the exchange. None: all."""
    seconds: float = inf
    """How long the server waits for them."""
    late: Literal["counts", "lost"] | None = None
    """Whether who is later stays in flight, and counts in the round it comes in, or is left out.
    None: it counts where an order has a need."""
    until: float = inf
    """When the run's clock must not go further: what is not over by then, with its aggregation, is
    lost, and the clock stands there."""

    @property
    def keeps(self) -> bool:
        """Whether who is late stays in flight."""
        return self.late == "counts" or (self.late is None and self.need is not None)


@dataclass(frozen=True, eq=False)
class Setting:
    """What is the same in all rounds of a run."""

    seed: int
    tau: int
    iterations: int
    cohort: int  # workers of a round
    sizes: Indexes  # samples of each worker
    deadline: float = inf  # seconds
    without: tuple[int, ...] = ()  # workers who take part in nothing
    batch: int | None = None  # samples of a mini-batch, 0: all; None: workers alone know
    pace: NDArray[np.float64] | None = None  # seconds of each worker's iteration, on a clock
    bytes: int | None = None  # most that a worker sends and is sent in a round; None: not known


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
    """It goes by a fleet's times, so the run needs a clock."""
    needs_deadline: ClassVar[bool] = False
    """That clock must have a deadline."""
    needs_bytes: ClassVar[bool] = False
    """It asks how many bytes a round has."""
    waits: ClassVar[bool] = True
    """Rounds last until all have answered, or are lost."""
    keeps_late: ClassVar[bool] = False
    """Late answers count in later rounds, so that answers of all rounds must mean the same."""
    reads: ClassVar[tuple[str, ...]] = ()
    """Vectors made by those stages that are sent to workers beside the method's own."""
    sampling: ClassVar[str | None] = None
    """How ``cohort`` draws, "fixed" or "poisson", where it alone decides who takes part and looks
    at no data: what accounting for privacy rests on."""

    @property
    def aggregator(self) -> Aggregator | None:
        """The mean that goes with its cohorts, where the experiment has the plain one; or None."""
        return None

    def check(self, algorithm: Algorithm, setting: Setting) -> None:
        """Raise FednagError for a run that it cannot decide."""

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
        """The next exchange, and what is remembered.

        ``free`` are the workers not in flight; ``stage`` has the numbers that schedules set.
        """
        drawn = self.cohort(news.round + 1, free, setting)
        plain = Order(drawn, setting.tau, seconds=setting.deadline)
        return self.changed(plain, setting), state

    def changed(self, order: Order, setting: Setting) -> Order:
        """The plain round's order, for a controller that remembers nothing to change."""
        return order

    def cohort(self, number: int, free: Indexes, setting: Setting) -> Indexes:
        """The workers of round ``number``, in order."""
        return cohort(setting.seed, number, free, setting.cohort)

    def over(self, state: Mapping[str, Any], news: News, setting: Setting) -> Ending | None:
        """Why there is no further round; None: there is one."""
        return None

    def observe(self, local: Vectors, sent: Vectors, data: WorkerData) -> Mapping[str, Vector]:
        """Numbers workers report at the end of an exchange, (n, 1) each."""
        return {}

    @property
    def observes(self) -> bool:
        return type(self).observe is not Controller.observe


class Schedule:
    """How a number of the algorithm changes over rounds.

    Subclasses are ``@dataclass(frozen=True)``. ``field`` names it, e.g. ``algorithm.lr``.

    >>> from dataclasses import dataclass
    >>> from fednag import Schedule
    >>> @dataclass(frozen=True)
    ... class Linear(Schedule):
    ...     field: str
    ...     def at(self, first, done):
    ...         return first * (1 - done)
    >>> Linear("algorithm.lr").at(0.1, 0.5)
    0.05
    """

    field: str

    @classmethod
    def of(cls, function: Callable[[float, float], float]) -> type[Schedule]:
        """A schedule whose ``at`` is a function of ``first`` and ``done``.

        >>> from fednag import Schedule
        >>> Schedule.of(lambda first, done: first / (1 + done))("algorithm.lr").at(0.1, 1.0)
        0.05
        """

        @dataclass(frozen=True)
        class Own(Schedule):
            field: str

            def at(self, first: float, done: float) -> float:
                return float(function(first, done))

        Own.__name__ = Own.__qualname__ = getattr(function, "__name__", "schedule")
        return Own

    def at(self, first: float, done: float) -> float:
        """Its value when the share ``done`` of all iterations is done; ``first`` is the file's."""
        raise NotImplementedError


def without(order: Order, absent: tuple[int, ...]) -> Order:
    """The order for all but these workers; what it says of the others stays."""
    if not absent:
        return order
    here = ~np.isin(order.cohort, absent)
    steps = np.asarray(order.steps)
    return replace(
        order, cohort=order.cohort[here], steps=steps[here].tolist() if steps.ndim else order.steps
    )


def steps_of(order: Order, most: int) -> Indexes:
    """Local iterations of each worker of an order; none does more than are left."""
    asked = np.broadcast_to(np.asarray(order.steps, dtype=np.int64), (len(order.cohort),))
    return np.clip(asked, 0, most)
