"""Local iterations that differ by worker: by its data, and by its speed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Annotated

from annotated_types import Gt, Le

from fednag.core.controller import Controller, Order, Setting
from fednag.errors import FednagError


@dataclass(frozen=True)
class Epochs(Controller):
    """Every worker goes through its data so many times a round, as in FedAvg's paper (2017)::

        steps_i = ceil(epochs D_i / b),    b the samples of a mini-batch (all, if it has fewer)

    training.tau plays no part. The iterations of a run count those of the worker that does most.

    >>> from fednag.controllers import Epochs
    >>> Epochs(epochs=2).steps(samples=100, batch=64), Epochs(epochs=2).steps(100, batch=0)
    (4, 2)
    """

    epochs: Annotated[float, Gt(0), Le(10**6)] = 1.0

    def steps(self, samples: int, batch: int) -> int:
        """A worker's local iterations in a round."""
        return ceil(self.epochs * samples / min(batch or samples, samples))

    def changed(self, order: Order, setting: Setting) -> Order:
        if setting.batch is None:
            raise FednagError(
                "controller",
                "the server does not know how many samples are in a batch of these nodes",
                "leave tau and the controller out: nodes then do epochs of their own",
            )
        own = [self.steps(size, setting.batch) for size in setting.sizes[order.cohort].tolist()]
        return replace(order, steps=own)


@dataclass(frozen=True)
class BySpeed(Controller):
    """Slower workers do fewer local iterations, so that a round's computing ends for all at once::

        steps_i = max(1, floor(tau c_fastest / c_i)),    c_i seconds of worker i's iteration

    c_i is the mean by the fleet of [clock], for the worker's own mini-batch. The fastest worker of
    a round does training.tau iterations. Transfers are not looked at.

    >>> import numpy as np
    >>> from fednag import FedAvg, News
    >>> from fednag.controllers import BySpeed
    >>> from fednag.core.controller import Setting
    >>> known = dict(seed=0, tau=20, iterations=100, cohort=3, sizes=np.array([9, 9, 9]))
    >>> setting = Setting(**known, pace=np.array([0.1, 0.4, 9.0]))
    >>> BySpeed().next({}, News(), np.arange(3), FedAvg(), setting)[0].steps
    [20, 5, 1]
    """

    needs_clock = True

    def changed(self, order: Order, setting: Setting) -> Order:
        assert setting.pace is not None
        pace = setting.pace[order.cohort]
        # A quotient that is a whole number must not be missed by a rounding.
        own = [max(1, int(setting.tau * pace.min() / c * (1 + 1e-12))) for c in pace.tolist()]
        return replace(order, steps=own)
