"""Rounds that end with the first few answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import Ge

from fednag.core.algorithm import Algorithm, News
from fednag.core.controller import Controller, Order, Setting
from fednag.core.keys import Indexes


@dataclass(frozen=True)
class Buffered(Controller):
    """The server goes on as soon as ``need`` answers are here; late ones count when they come.

    Who is still at work is not asked again until it has answered. Needs a clock, which says who
    comes first ([clock] with a fleet). With ``need`` as many as there are workers, it is the plain
    round.

    >>> from fednag.controllers import Buffered
    >>> Buffered(need=2).need
    2
    """

    need: Annotated[int, Ge(1)]

    needs_clock = True
    waits = False

    def next(
        self,
        state: dict[str, Any],
        news: News,
        free: Indexes,
        stage: Algorithm,
        setting: Setting,
    ) -> tuple[Order, dict[str, Any]]:
        order, state = super().next(state, news, free, stage, setting)
        return replace(order, need=self.need), state
