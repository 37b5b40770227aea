"""Heavy-ball momentum over several rounds, for cohorts that differ: GHBM, LocalGHBM, FedHBM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Grad, News, NonNegative, Share, WorkerData
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class GHBM(LocalSGD):
    """Local steps with the mean move of the last ``window`` rounds as their momentum.

    Zaccone et al., "Communication-Efficient Heterogeneous Federated Learning with Generalized
    Heavy-Ball Momentum" (2025); ``window`` is their tau, ``momentum`` their beta::

        worker   w_i <- w_i - lr grad F_i(w_i) + momentum m                        tau times
        server   w'  <- sum_i D_i w_i / D
                 m   <- (w' - w of window - 1 rounds ago) / (window tau)

    ``m`` is a displacement, 0 until there have been ``window`` rounds; over as many as it takes
    for all workers to have had their turn, it is a move along everyone's gradients. The server
    keeps ``window`` models in ``past``. tau is the mean over the workers of the last round, where
    the paper's worker divides by its own. With window 1 it is FedCM in other numbers.

    >>> import torch
    >>> from fednag import News, Vectors
    >>> from fednag.algorithms import GHBM
    >>> rule = GHBM(window=2)
    >>> server = rule.init(torch.ones(2))
    >>> for number in range(2):
    ...     server = rule.update(server, Vectors(w=server.w - 1), News(steps=5, round=number))
    ...     server.m
    tensor([0., 0.])
    tensor([-0.2000, -0.2000])
    """

    momentum: NonNegative = 0.9
    window: Annotated[int, Ge(1)] = 5

    down = ("w", "m")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, m=torch.zeros_like(w), past=w.repeat(self.window))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w - self.lr * self.slope(grad, local.w) + self.momentum * sent.m)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        d = len(server.w)
        past = torch.cat([server.past[d:], server.w])
        m = (mean.w - past[:d]) / (self.window * max(news.steps, 1.0))
        full = news.round + 1 >= self.window
        return Vectors(w=mean.w, m=m if full else torch.zeros_like(m), past=past)


@dataclass(frozen=True)
class LocalGHBM(LocalSGD):
    """GHBM at FedAvg's payload: a worker's momentum is the move since it last took part.

    The same paper's LocalGHBM, for cohorts of a fixed share ``participation`` of the workers::

        worker   w_i <- w_i - lr grad F_i(w_i) + momentum m_i                      tau times
                 m_i =  participation (w - a_i) / tau,       a_i <- w
        server   w   <- sum_i D_i w_i / D

    ``a_i`` is the model the worker was sent when it last took part: 1 / participation rounds ago,
    on average. In a worker's first round m_i is 0. tau is its local iterations of then, where the
    paper has those of now.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import LocalGHBM
    >>> rule = LocalGHBM(participation=0.5)
    >>> mine = Vectors(a=torch.zeros(1, 2), rate=torch.tensor([[0.2]]))
    >>> rule.begin(Vectors(w=torch.ones(1, 2)), mine).m
    tensor([[0.1000, 0.1000]])
    """

    momentum: NonNegative = 0.9
    participation: Share = 1.0

    def memory(self, w: Vector) -> Vectors:
        return Vectors(a=w, rate=torch.zeros_like(w[:1]))

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=sent.w, m=self.participation * mine.rate * (sent.w - mine.a))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        moved = self.momentum * local.m - self.lr * self.slope(grad, local.w)
        return Vectors(w=local.w + moved, m=local.m)

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        rate = torch.full_like(mine.rate, 1 / max(steps, 1))
        return Vectors(w=local.w), Vectors(a=sent.w, rate=rate)


@dataclass(frozen=True)
class FedHBM(LocalGHBM):
    """LocalGHBM whose momentum follows the worker's own model from iteration to iteration.

    The same paper's FedHBM::

        worker   w_i <- w_i - lr grad F_i(w_i) + momentum participation (w_i - a_i) / tau
                 a_i <- w_i,                                             after tau times
        server   w   <- sum_i D_i w_i / D

    ``a_i`` is the model the worker had trained when it last took part. The rest is as in
    LocalGHBM.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import FedHBM
    >>> mine = Vectors(a=torch.zeros(1, 2), rate=torch.tensor([[0.2]]))
    >>> local = Vectors(w=torch.ones(1, 2))
    >>> FedHBM(lr=0.1, participation=0.5).step(local, lambda w: w, Vectors(), mine).w
    tensor([[1., 1.]])
    """

    momentum: NonNegative = 1.0

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return sent

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        m = self.participation * mine.rate * (local.w - mine.a)
        return Vectors(w=local.w - self.lr * self.slope(grad, local.w) + self.momentum * m)

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        rate = torch.full_like(mine.rate, 1 / max(steps, 1))
        return Vectors(w=local.w), Vectors(a=local.w, rate=rate)
