"""Mime and MimeLite: workers step along a momentum that only the server updates."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fednag.core.algorithm import Algorithm, Decay, FullGradient, Grad, News, Positive, WorkerData
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class MimeLite(Algorithm):
    """Local SGD steps mixed with the server's momentum, held fixed during the round.

    Karimireddy et al., "Breaking the Centralized Barrier for Cross-Device Federated Learning"
    (2021), MimeLite with SGD with momentum; what FedNAG's paper tabulates as Mime::

        worker   w_i <- w_i - lr ((1 - momentum) grad F_i(w_i) + momentum v)
                 returns w_i and grad F_i(w), over all its data, at the model it was sent
        server   v   <- (1 - momentum) sum_i D_i grad F_i(w) / D + momentum v
                 w   <- sum_i D_i w_i / D

    ``v`` is a gradient: it points uphill. FedNAG's table writes grad F_i in the server's rule
    where the mean over workers is meant, and an index that would make the workers' ``v`` one
    aggregation older than Mime's; here workers get the server's latest, as in Mime.

    >>> import torch
    >>> from fednag import MimeLite, Vectors
    >>> sent = Vectors(w=torch.ones(2), v=torch.ones(2))
    >>> MimeLite(lr=0.1, momentum=0.9).step(sent, lambda w: 0 * w, sent, Vectors()).w
    tensor([0.9100, 0.9100])
    """

    lr: Positive = 0.01
    momentum: Decay = 0.9

    elementwise = True

    down = ("w", "v")
    up = ("w", "g")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, v=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        mixed = (1 - self.momentum) * grad(local.w) + self.momentum * sent.v
        return Vectors(w=local.w - self.lr * mixed)

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(w=local.w, g=data.gradient(sent.w)), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return Vectors(w=mean.w, v=(1 - self.momentum) * mean.g + self.momentum * server.v)


@dataclass(frozen=True)
class Mime(Algorithm):
    """MimeLite with a variance-reduced local gradient.

    The same paper's Mime with SGD with momentum. Each round first collects the mean full
    gradient c at w, then::

        worker   g_i =  grad F_i(w_i) - grad F_i(w) + c      (both on the same mini-batch)
                 w_i <- w_i - lr ((1 - momentum) g_i + momentum v)
        server   v   <- (1 - momentum) c + momentum v
                 w   <- sum_i D_i w_i / D

    ``v`` and ``c`` are gradients: they point uphill. Costs two gradients a local iteration.

    >>> from fednag import Mime
    >>> [type(stage).__name__ for stage in Mime().stages], Mime().down, Mime().up
    (['FullGradient', 'Mime'], ('w', 'v', 'c'), ('w',))
    """

    lr: Positive = 0.01
    momentum: Decay = 0.9

    elementwise = True

    down = ("w", "v", "c")

    @property
    def stages(self) -> tuple[Algorithm, ...]:
        return FullGradient(into="c"), self

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, v=torch.zeros_like(w), c=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        g = grad(local.w) - grad(sent.w) + sent.c
        return Vectors(w=local.w - self.lr * ((1 - self.momentum) * g + self.momentum * sent.v))

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return server.but(w=mean.w, v=(1 - self.momentum) * server.c + self.momentum * server.v)
