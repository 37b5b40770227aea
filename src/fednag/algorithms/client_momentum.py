"""The server's momentum in every local iteration: FedCM, FedADC, DOMO."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Decay, Grad, News, NonNegative, Positive, WorkerData
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class FedCM(LocalSGD):
    """Local steps mixed with the direction of the last round.

    Xu et al., "FedCM: Federated Learning with Client-level Momentum" (2021); the same as FedAvg-M
    of Cheng et al., "Momentum Benefits Non-IID Federated Learning Simply and Provably" (2024).
    ``momentum`` is 1 - their alpha (Cheng: beta)::

        worker   w_i <- w_i - lr ((1 - momentum) grad F_i(w_i) + momentum m)       tau times
        server   m   <- (w - sum_i D_i w_i / D) / (lr tau)
                 w   <- w - server_lr (w - sum_i D_i w_i / D)

    ``m`` is a gradient: it points uphill. tau is the mean over workers; the papers' server step
    size is server_lr lr tau. They weight workers equally; here, as everywhere, by data size.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import FedCM
    >>> sent = Vectors(w=torch.ones(2), m=torch.ones(2))
    >>> FedCM(lr=0.1, momentum=0.9).step(sent, lambda w: 0 * w, sent, Vectors()).w
    tensor([0.9100, 0.9100])
    """

    momentum: Decay = 0.9
    server_lr: Positive = 1.0

    down = ("w", "m")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, m=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        mixed = (1 - self.momentum) * self.slope(grad, local.w) + self.momentum * sent.m
        return Vectors(w=local.w - self.lr * mixed)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        move = server.w - mean.w
        m = move / (self.lr * max(news.steps, 1.0))
        return Vectors(w=server.w - self.server_lr * move, m=m)


@dataclass(frozen=True)
class FedADC(LocalSGD):
    """Server momentum, part of which is spread over the local iterations of the next round.

    Ozfatura et al., "FedADC: Accelerated Federated Learning with Drift Control" (2021), its
    heavy-ball form; ``momentum`` is their beta_global, ``local_momentum`` beta_local::

        worker   w_i <- w_i - lr (grad F_i(w_i) + local_momentum m)                tau times
        server   m   <- (w - sum_i D_i w_i / D) / (lr tau) + (momentum - local_momentum) m
                 w   <- w - server_lr lr tau m

    ``m`` is a gradient: it points uphill; the paper's m is tau m. tau is the mean over workers.
    What workers have added comes back to the server, so that of the old m the share ``momentum``
    stays. They are weighted by data size, as everywhere.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import FedADC
    >>> sent = Vectors(w=torch.ones(2), m=torch.ones(2))
    >>> FedADC(lr=0.1, local_momentum=0.5).step(sent, lambda w: w, sent, Vectors()).w
    tensor([0.8500, 0.8500])
    """

    momentum: Decay = 0.9
    local_momentum: Decay = 0.9
    server_lr: Positive = 1.0

    down = ("w", "m")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, m=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        g = self.slope(grad, local.w) + self.local_momentum * sent.m
        return Vectors(w=local.w - self.lr * g)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        span = self.lr * max(news.steps, 1.0)
        m = (server.w - mean.w) / span + (self.momentum - self.local_momentum) * server.m
        return Vectors(w=server.w - self.server_lr * span * m, m=m)


@dataclass(frozen=True)
class DOMO(LocalSGD):
    """Momentum at workers and at the server, the server's added to every local iteration.

    Xu and Huang, "Coordinating Momenta for Cross-silo Federated Learning" (2022), DOMO-S, whose
    fusion is in every iteration (DOMO's is at once, before the first)::

        worker   v_i <- local_momentum v_i + grad F_i(w_i),              v_i = 0 at first
                 w_i <- w_i - lr (v_i + fusion m)                                  tau times
                 returns d_i, the mean of its tau v_i
        server   m   <- momentum m + sum_i D_i d_i / D
                 w   <- w - server_lr lr tau m

    ``v_i``, ``d_i`` and ``m`` are gradients: they point uphill. The mean of the v_i is computed
    from where the worker has come. tau is, at the server, the mean over workers. In the paper
    workers make m of two models they were sent; here it is sent. They are weighted by data size,
    as everywhere.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import DOMO
    >>> rule = DOMO(lr=0.1, fusion=0.5)
    >>> sent = Vectors(w=torch.ones(2), m=torch.ones(2))
    >>> rule.step(rule.begin(sent, Vectors()), lambda w: w, sent, Vectors()).w
    tensor([0.8500, 0.8500])
    """

    momentum: Decay = 0.9
    local_momentum: Decay = 0.9
    fusion: NonNegative = 0.5
    server_lr: Positive = 1.0

    down = ("w", "m")
    up = ("d",)

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, m=torch.zeros_like(w))

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=sent.w, v=torch.zeros_like(sent.w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        v = self.local_momentum * local.v + self.slope(grad, local.w)
        return Vectors(w=local.w - self.lr * (v + self.fusion * sent.m), v=v)

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(d=(sent.w - local.w) / (self.lr * steps) - self.fusion * sent.m), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        m = self.momentum * server.m + mean.d
        return Vectors(w=server.w - self.server_lr * self.lr * max(news.steps, 1.0) * m, m=m)
