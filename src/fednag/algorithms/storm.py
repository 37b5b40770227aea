"""Momentum that corrects itself, with a batch's gradient at two points: STEM, FedGLOMO."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Decay, Grad, News, WorkerData
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class STEM(LocalSGD):
    """Local steps along STORM's gradient estimate, which is averaged with the weights.

    Khanduri et al., "STEM: A Stochastic Two-Sided Momentum Algorithm Achieving Near-Optimal
    Sample and Communication Complexities for Federated Learning" (2021); ``momentum`` is
    1 - their a::

        worker   d_i <- grad F_i(w_i) + momentum (d_i - grad F_i(x_i))      (the same mini-batch)
                 x_i <- w_i
                 w_i <- w_i - lr d_i
        server   d   <- sum_i D_i d_i / D
                 w   <- sum_i D_i w_i / D

    ``d`` is a gradient: it points uphill. ``x_i``, the point before w_i, is the mean of all
    workers' at the start of a round; that is w + lr d, so it need not be sent. The first d_i of all
    is grad F_i(w_i), here on one mini-batch of each worker, where the paper has the mean of large
    ones; a number ``k`` that is sent says whether there is a d. Costs two gradients a local
    iteration.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import STEM
    >>> rule = STEM(lr=0.1, momentum=0.5)
    >>> sent = rule.init(torch.ones(2)).but(d=torch.ones(2), k=torch.ones(1))
    >>> rule.step(rule.begin(sent, Vectors()), lambda w: w, sent, Vectors()).d
    tensor([0.9500, 0.9500])
    """

    momentum: Decay = 0.9

    down = ("w", "d", "k")
    up = ("w", "d")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, d=torch.zeros_like(w), k=torch.zeros_like(w[:1]))

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return sent.but(x=sent.w + self.lr * sent.d)

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        g, before = self.slope(grad, local.w), self.slope(grad, local.x)
        d = g + local.k * self.momentum * (local.d - before)
        return Vectors(w=local.w - self.lr * d, x=local.w, d=d, k=torch.ones_like(local.k))

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return mean.but(k=torch.ones_like(server.k))


@dataclass(frozen=True)
class FedGLOMO(LocalSGD):
    """STORM at the server, on the updates that workers find from its last two models.

    Das et al., "Faster Non-Convex Federated Learning via Global and Local Momentum" (2022),
    without its compression; ``momentum`` is 1 - their beta::

        worker   v_i <- grad F_i(w_i) + v_i - grad F_i(x_i)                 (the same mini-batch)
                 x_i <- w_i
                 w_i <- w_i - lr v_i                                               tau times
                 the same on the same mini-batches from the server's model before, w_i^
                 returns u_i = w_i - w and u_i^ = w_i^ - w^
        server   u   <- sum_i D_i u_i / D + momentum (u - sum_i D_i u_i^ / D)
                 w^  <- w,     w <- w + u

    ``u`` is a displacement. The first v_i of a round is grad F_i(w_i), the first u the mean of the
    u_i. Costs four gradients a local iteration. Workers are weighted by data size, as everywhere.

    >>> import torch
    >>> from fednag import News, Vectors
    >>> from fednag.algorithms import FedGLOMO
    >>> server = Vectors(w=torch.ones(1), before=torch.ones(1), u=torch.ones(1), k=torch.ones(1))
    >>> mean = Vectors(u=torch.tensor([0.2]), back=torch.tensor([0.4]))
    >>> FedGLOMO(momentum=0.5).update(server, mean, News()).u
    tensor([0.5000])
    """

    momentum: Decay = 0.9

    down = ("w", "before")
    up = ("u", "back")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, before=w, u=torch.zeros_like(w), k=torch.zeros_like(w[:1]))

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        zero, old = torch.zeros_like(sent.w), sent.before
        return Vectors(w=sent.w, x=sent.w, v=zero, w0=old, x0=old, v0=zero, k=zero[..., :1])

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        # k is 0 in the first iteration, where v is no gradient yet, and 1 after it.
        v = self.slope(grad, local.w) + local.k * (local.v - self.slope(grad, local.x))
        v0 = self.slope(grad, local.w0) + local.k * (local.v0 - self.slope(grad, local.x0))
        ahead = Vectors(w=local.w - self.lr * v, x=local.w, v=v)
        return ahead.but(w0=local.w0 - self.lr * v0, x0=local.w0, v0=v0, k=torch.ones_like(local.k))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(u=local.w - sent.w, back=local.w0 - sent.before), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        u = mean.u + server.k * self.momentum * (server.u - mean.back)
        return Vectors(w=server.w + u, before=server.w, u=u, k=torch.ones_like(server.k))
