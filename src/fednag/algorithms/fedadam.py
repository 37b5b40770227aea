"""FedAdam: an adaptive step at the server. Workers run plain SGD."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fednag.core.algorithm import Algorithm, Decay, Grad, News, Positive
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class FedAdam(Algorithm):
    """Adam, without bias correction, on the mean update.

    Reddi et al., "Adaptive Federated Optimization" (2021); ``adaptivity`` is their tau::

        worker   w_i <- w_i - lr grad F_i(w_i)
        server   u   =  sum_i D_i w_i / D - w
                 m   <- momentum m + (1 - momentum) u
                 s   <- second s + (1 - second) u^2
                 w   <- w + server_lr m / (sqrt(s) + adaptivity)

    ``m`` is a displacement, ``s`` a squared one that starts at ``adaptivity`` squared.

    >>> import torch
    >>> from fednag import FedAdam, News, Vectors
    >>> rule = FedAdam(server_lr=0.1)
    >>> rule.update(rule.init(torch.zeros(2)), Vectors(w=torch.ones(2)), News()).w
    tensor([0.0990, 0.0990])
    """

    lr: Positive = 0.01
    momentum: Decay = 0.9
    second: Decay = 0.99
    server_lr: Positive = 0.01
    adaptivity: Positive = 1e-3

    elementwise = True

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, m=torch.zeros_like(w), s=torch.full_like(w, self.adaptivity**2))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w - self.lr * grad(local.w))

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        u = mean.w - server.w
        m = self.momentum * server.m + (1 - self.momentum) * u
        s = self.second * server.s + (1 - self.second) * u**2
        return Vectors(w=server.w + self.server_lr * m / (s.sqrt() + self.adaptivity), m=m, s=s)
