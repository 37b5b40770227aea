"""Rounds that do not wait for everyone: asynchrony, deadlines, more workers than are needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

from annotated_types import Ge

from fednag.core.algorithm import Algorithm
from fednag.core.controller import Controller, Order, Setting
from fednag.core.keys import Indexes, cohort
from fednag.errors import FednagError


@dataclass(frozen=True)
class Buffered(Controller):
    """The server goes on as soon as ``need`` answers are here; late ones count when they come.

    Who is still at work is not asked again until it has answered. Needs a clock, which says who
    comes first ([clock] with a fleet). With ``need`` as many as there are workers, it is the plain
    round. With ``at_work`` so many workers are at work at any time: as many are drawn as have
    answered, which is FedBuff's rule (Nguyen et al., 2022), and with need 1 that of FedAsync (Xie
    et al., 2019); the aggregator ``staleness`` has their weights. Without it training.participants
    are drawn every round, whoever is at work.

    >>> from fednag.controllers import Buffered
    >>> Buffered(need=2).need
    2
    """

    need: Annotated[int, Ge(1)]
    at_work: Annotated[int, Ge(0)] = 0

    needs_clock = True
    waits = False
    keeps_late = True

    def changed(self, order: Order, setting: Setting) -> Order:
        return replace(order, need=self.need)

    def cohort(self, number: int, free: Indexes, setting: Setting) -> Indexes:
        if not self.at_work:
            return super().cohort(number, free, setting)
        busy = len(setting.sizes) - len(free)
        return cohort(setting.seed, number, free, max(0, self.at_work - busy))


@dataclass(frozen=True)
class SemiSynchronous(Controller):
    """A round ends at clock.deadline; who is late is not lost, and counts in the round it comes in.

    Who is still at work is not asked again until it has answered. A round in which everyone asked
    and all who were late have answered ends then. Needs a clock and its deadline. Where everyone is
    in time, it is the plain round.

    >>> from fednag.controllers import SemiSynchronous
    >>> SemiSynchronous().needs_clock
    True
    """

    needs_clock = True
    needs_deadline = True
    waits = False
    keeps_late = True

    def changed(self, order: Order, setting: Setting) -> Order:
        return replace(order, late="counts")


@dataclass(frozen=True)
class OverSelection(Controller):
    """More workers are asked than are needed; the first training.participants that answer count.

    The others' work is lost. Bonawitz et al., "Towards Federated Learning at Scale" (2019), ask 130
    and take 100. Needs a clock. With ``ask`` as many as there are participants, it is the plain
    round.

    >>> from fednag.controllers import OverSelection
    >>> OverSelection(ask=130).ask
    130
    """

    ask: Annotated[int, Ge(1)]

    needs_clock = True
    waits = False

    def check(self, algorithm: Algorithm, setting: Setting) -> None:
        if not setting.cohort <= self.ask <= len(setting.sizes):
            raise FednagError(
                "controller.ask",
                f"{self.ask} is not between the {setting.cohort} participants of a round and the "
                f"{len(setting.sizes)} workers",
                "change it, or training.participants",
            )

    def changed(self, order: Order, setting: Setting) -> Order:
        return replace(order, need=setting.cohort, late="lost")

    def cohort(self, number: int, free: Indexes, setting: Setting) -> Indexes:
        return cohort(setting.seed, number, free, self.ask)
