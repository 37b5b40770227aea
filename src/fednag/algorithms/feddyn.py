"""FedDyn: local losses bent so that their stationary points agree with the global loss's."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Grad, News, Positive, WorkerData
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class FedDyn(LocalSGD):
    """FedProx whose workers and server keep what the pull has held back so far.

    Acar et al., "Federated Learning Based on Dynamic Regularization" (2021), with tau SGD steps
    as the local solver::

        worker   w_i <- w_i - lr (grad F_i(w_i) - h_i + alpha (w_i - w))           tau times
                 h_i <- h_i - alpha (w_i - w)
        server   u   =  sum_i D_i w_i / D_S - w
                 h   <- h - alpha (D_S / D) u
                 w   <- w + u - h / alpha

    ``h_i`` is a gradient: the worker's own where it has come to rest. ``h`` is the mean of all
    h_i, weighted by data size as everywhere (the paper has equal weights); D_S is the data that
    took part. As alpha goes to 0 the workers are FedAvg's, and the server is not: h / alpha is
    minus the sum of all u so far.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import FedDyn
    >>> local, sent, mine = (Vectors(w=torch.tensor([x]), h=torch.ones(1)) for x in (3.0, 1.0, 0))
    >>> FedDyn(lr=0.1, alpha=0.5).step(local, lambda w: w, sent, mine).w
    tensor([2.7000])
    """

    alpha: Positive = 0.1

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, h=torch.zeros_like(w))

    def memory(self, w: Vector) -> Vectors:
        return Vectors(h=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        g = self.slope(grad, local.w) - mine.h + self.alpha * (local.w - sent.w)
        return Vectors(w=local.w - self.lr * g)

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(w=local.w), Vectors(h=mine.h - self.alpha * (local.w - sent.w))

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        u = mean.w - server.w
        h = server.h - self.alpha * news.share * u
        return Vectors(w=mean.w - h / self.alpha, h=h)
