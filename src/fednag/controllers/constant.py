"""Rounds whose local iterations are set beforehand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from annotated_types import Ge, MinLen

from fednag.core.controller import Controller, Order, Setting
from fednag.core.keys import Indexes, bernoulli_cohort


@dataclass(frozen=True)
class Constant(Controller):
    """Every round the same: a cohort drawn at random, training.tau local iterations each.

    >>> from fednag.controllers import Constant
    >>> Constant().before
    ()
    """

    sampling: ClassVar[str | None] = "fixed"


@dataclass(frozen=True)
class Poisson(Controller):
    """Every worker takes part with the same probability, whoever else does.

    A round has as many workers as training.participants says on average, and may have none. It is
    what accounts of differential privacy like best.

    >>> from fednag.controllers import Poisson
    >>> Poisson().sampling
    'poisson'
    """

    sampling = "poisson"

    def cohort(self, number: int, free: Indexes, setting: Setting) -> Indexes:
        rate = setting.cohort / len(setting.sizes)
        return bernoulli_cohort(setting.seed, number, free, rate)


@dataclass(frozen=True)
class StepsByWorker(Controller):
    """Every worker its own number of local iterations, e.g. because some are slow.

    Worker i does ``steps[i]``; where there are more workers than numbers, they begin again.

    >>> from fednag.controllers import StepsByWorker
    >>> StepsByWorker(steps=(5, 20)).steps
    (5, 20)
    """

    steps: Annotated[tuple[Annotated[int, Ge(1)], ...], MinLen(1)]

    sampling = "fixed"

    def changed(self, order: Order, setting: Setting) -> Order:
        own = [self.steps[int(worker) % len(self.steps)] for worker in order.cohort]
        return replace(order, steps=own)
