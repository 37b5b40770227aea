"""Cohorts that are not drawn uniformly: by data size, and by loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from fednag.controllers.constant import Constant
from fednag.core.aggregator import Aggregator
from fednag.core.algorithm import Algorithm, Grad, News, WorkerData
from fednag.core.controller import Order, Setting
from fednag.core.keys import PARTICIPANTS, Indexes, chances, generator, sized_cohort
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError


@dataclass(frozen=True)
class CohortMean(Aggregator):
    """The mean that goes with cohorts drawn by size: weights are samples over chance::

        mean = sum_i p_i up_i,    p_i = (D_i / pi_i) / D,    pi_i the chance to be drawn

    The p_i of a cohort add up to 1. Who is drawn by chance counts alike, who is always in by its
    size. With ``equal``, all count alike.

    >>> import numpy as np
    >>> from fednag import Vectors
    >>> from fednag.controllers.cohorts import CohortMean
    >>> from fednag.core.controller import Setting
    >>> setting = Setting(seed=0, tau=5, iterations=50, cohort=2, sizes=np.array([80, 10, 10]))
    >>> mean = CohortMean().ready(Vectors(), setting)
    >>> mean.weight(80, 0), mean.weight(10, 0)
    (80.0, 20.0)
    """

    least: float = 0.0
    equal: bool = False

    def ready(self, kept: Vectors, setting: Setting) -> Aggregator:
        return replace(self, least=chances(setting.sizes, setting.cohort)[1])

    def weight(self, size: int, staleness: int) -> float:
        return 1.0 if self.equal else max(float(size), self.least)


@dataclass(frozen=True)
class BySize(Constant):
    """Cohorts in which a worker's chance is in proportion to its samples.

    Li et al., "On the Convergence of FedAvg on Non-IID Data" (ICLR 2020), whose scheme I draws with
    replacement; here without, by systematic sampling, so that nobody does the same work twice::

        pi_i = min(1, K D_i / D)      the places of those who are always in being taken out

    The mean that goes with it is unbiased: those drawn count alike, for they were drawn by size
    already.

    >>> import numpy as np
    >>> from fednag.controllers import BySize
    >>> from fednag.core.controller import Setting
    >>> setting = Setting(seed=0, tau=5, iterations=50, cohort=2, sizes=np.array([1, 1, 8, 1]))
    >>> [BySize().cohort(number, np.arange(4), setting).tolist() for number in (3, 4, 5)]
    [[2, 3], [0, 2], [1, 2]]
    """

    sampling = None

    @property
    def aggregator(self) -> Aggregator:
        return CohortMean()

    def cohort(self, number: int, free: Indexes, setting: Setting) -> Indexes:
        return sized_cohort(setting.seed, number, free, setting.sizes[free], setting.cohort)


@dataclass(frozen=True)
class AskLoss(Algorithm):
    """A stage that asks for the loss over all data at the server's ``w``: one number goes up.

    >>> from fednag.controllers.cohorts import AskLoss
    >>> AskLoss().asks, AskLoss().up
    (True, ('loss',))
    """

    up = ("loss",)
    asks = True
    elementwise = True
    whole = True

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors()  # nothing is trained: by this ``observe`` knows the stage

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return local

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(loss=data.loss(sent.w).to(sent.w)), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return Vectors()


@dataclass(frozen=True)
class PowerOfChoice(Constant):
    """Of ``candidates`` drawn by data size, the workers whose loss is highest take part.

    Cho, Wang, Joshi, "Towards Understanding Biased Client Selection in Federated Learning"
    (AISTATS 2022), pow-d: candidates are drawn without replacement, worker i first with probability
    D_i / D, and are sent the model; each answers with its loss over all its data. Those of highest
    loss train, as many as a round has participants, and count alike. It is biased towards workers
    that do badly, on purpose.

    Asking is an exchange of its own: the model goes down to every candidate, and a number comes up.
    With as many candidates as participants, it is a draw by size.

    >>> from fednag.controllers import PowerOfChoice
    >>> PowerOfChoice(candidates=6).before
    (AskLoss(),)
    """

    candidates: Annotated[int, Ge(1)] = 10

    before = (AskLoss(),)
    sampling = None

    @property
    def aggregator(self) -> Aggregator:
        return CohortMean(equal=True)

    def check(self, algorithm: Algorithm, setting: Setting) -> None:
        if self.candidates < setting.cohort:
            raise FednagError(
                "controller.candidates",
                f"of {self.candidates} candidates, {setting.cohort} workers a round cannot be "
                "chosen",
                "raise it, or lower training.participants",
            )

    def init(self) -> dict[str, Any]:
        return {"round": -1, "chosen": []}

    def observe(self, local: Vectors, sent: Vectors, data: WorkerData) -> Mapping[str, Vector]:
        return {"loss": data.loss(sent.w)} if not local else {}

    def next(
        self,
        state: dict[str, Any],
        news: News,
        free: Indexes,
        stage: Algorithm,
        setting: Setting,
    ) -> tuple[Order, dict[str, Any]]:
        order, state = super().next(state, news, free, stage, setting)
        if isinstance(stage, AskLoss):
            drawn = self.asked(news.round + 1, free, setting)
            return replace(order, cohort=drawn), self.init()
        if state["round"] != news.round:  # else a later stage: those who were chosen first
            losses = {worker: told.get("loss", np.nan) for worker, told in news.told.items()}
            known = [worker for worker, loss in losses.items() if isfinite(loss)]
            chosen = sorted(known, key=lambda worker: (-losses[worker], worker))[: setting.cohort]
            state = {"round": news.round, "chosen": sorted(chosen)}
        return replace(order, cohort=np.array(state["chosen"], dtype=np.int64)), state

    def asked(self, number: int, free: Indexes, setting: Setting) -> Indexes:
        """The candidates of round ``number``, in order."""
        if self.candidates >= len(free):
            return free
        sizes = setting.sizes[free]
        rng = generator(setting.seed, PARTICIPANTS, number)
        return np.sort(rng.choice(free, self.candidates, replace=False, p=sizes / sizes.sum()))
