"""Cohorts by trust learnt from what each worker delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge, Gt, Le

from fednag.core.algorithm import Algorithm, News, WorkerData
from fednag.core.controller import Controller, Order, Setting
from fednag.core.keys import PARTICIPANTS, Indexes, generator
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class Trust(Controller):
    """Cohorts drawn by how far workers can be relied on, learnt from what each delivered.

    The idea, selection by a learnt trust, is that of blockchain-supported federated learning (Otoum
    et al. 2022); the score is the Beta reputation of Jøsang and Ismail (2002). After a round every
    worker i that was asked has evidence e_i in [0, 1]::

        e_i = 0                          if it did not answer, or its update was refused
        e_i = min(1, before / after)     otherwise: its loss on all its data, at the model it was
                                         sent and at the one it trained, as it reports them
        good_i <- forget good_i + e_i    bad_i <- forget bad_i + 1 - e_i
        T_i = (good_i + 1) / (good_i + bad_i + 2)

    Of all others, evidence is forgotten alike, so trust goes back to 1/2, and whoever lost it is
    asked again some day. A cohort is drawn without replacement, worker i with a probability in
    proportion to T_i^weight; where everyone takes part in every round, nothing is chosen. With
    weight 0 it is the plain round, and nothing is learnt.

    What a worker reports of itself may be a lie: the score tells who is reliable, not who is
    honest. ``quality = false`` leaves the report out, and its two evaluations: e_i is then 1 for
    all whose update was used.

    >>> from fednag.controllers import Trust
    >>> Trust().scores({"good": [0.0, 2.0], "bad": [3.0, 0.0]}).tolist()
    [0.2, 0.75]
    """

    weight: Annotated[float, Ge(0), Le(16)] = 2.0
    forget: Annotated[float, Gt(0), Le(1)] = 0.9
    quality: bool = True

    def init(self) -> dict[str, Any]:
        return {"round": -1, "asked": [], "good": [], "bad": []}

    @property
    def observes(self) -> bool:
        return self.quality and self.weight > 0

    def observe(self, local: Vectors, sent: Vectors, data: WorkerData) -> Mapping[str, Vector]:
        """The losses before and after; nothing of a stage in which nothing was trained."""
        if local is sent or "w" not in local:
            return {}
        return {"before": data.loss(sent.w), "after": data.loss(local.w)}

    def next(
        self,
        state: dict[str, Any],
        news: News,
        free: Indexes,
        stage: Algorithm,
        setting: Setting,
    ) -> tuple[Order, dict[str, Any]]:
        order, state = super().next(state, news, free, stage, setting)
        if not self.weight:
            return order, state
        if state["round"] == news.round:  # a later stage: those who were asked first
            return replace(order, cohort=np.array(state["asked"], dtype=np.int64)), state
        state = self.learnt(state, news, len(setting.sizes))
        if setting.cohort < len(free):
            odds = self.scores(state)[free] ** self.weight
            rng = generator(setting.seed, PARTICIPANTS, news.round + 1)
            drawn = rng.choice(free, setting.cohort, replace=False, p=odds / odds.sum())
            order = replace(order, cohort=np.sort(drawn))
        asked = [w for w in order.cohort.tolist() if w not in setting.without]
        return order, {**state, "round": news.round, "asked": asked}

    def learnt(self, state: dict[str, Any], news: News, workers: int) -> dict[str, Any]:
        """What is remembered of all workers, after a round of which there is news."""
        good, bad = (np.array(state[name] or [0.0] * workers) for name in ("good", "bad"))
        good, bad = self.forget * good, self.forget * bad
        for worker in state["asked"]:
            evidence = self.evidence(worker, news)
            good[worker] += evidence
            bad[worker] += 1 - evidence
        return {**state, "good": good.tolist(), "bad": bad.tolist()}

    def evidence(self, worker: int, news: News) -> float:
        """How well a worker that was asked did, from 0 to 1."""
        if worker in news.missed or worker in news.refused:
            return 0.0
        if not self.quality:
            return 1.0
        told = news.told.get(worker, {})
        before, after = (told.get(name, np.nan) for name in ("before", "after"))
        if not np.isfinite(before) or not np.isfinite(after):
            return 0.0
        if after <= before:
            return 1.0
        return before / after if before > 0 else 0.0

    def scores(self, state: Mapping[str, Any]) -> Any:
        """T of every worker."""
        good, bad = np.array(state["good"]), np.array(state["bad"])
        return (good + 1) / (good + bad + 2)
