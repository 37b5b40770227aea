"""Momentum at the server only: FedMom, FedACG, SlowMo, FedAvgM."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Grad, News, NonNegative, Positive
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class FedMom(LocalSGD):
    """Nesterov extrapolation of the averaged model.

    Huo et al., "Faster On-Device Training Using New Federated Momentum Algorithm" (2020), with
    the server's step size 1::

        worker   w_i <- w_i - lr grad F_i(w_i)
        server   v'  <- sum_i D_i w_i / D
                 w   <- v' + momentum (v' - v)

    ``v`` is a point: the mean of the workers' models, w(0) at first.

    >>> import torch
    >>> from fednag import FedMom, News, Vectors
    >>> server = Vectors(w=torch.ones(2), v=torch.ones(2))
    >>> FedMom(momentum=0.5).update(server, Vectors(w=torch.zeros(2)), News()).w
    tensor([-0.5000, -0.5000])
    """

    momentum: NonNegative = 0.9

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, v=w)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        v = mean.w
        return Vectors(w=v + self.momentum * (v - server.v), v=v)


@dataclass(frozen=True)
class FedACG(FedMom):
    """Local steps from a point ahead along the server's momentum, pulled back to that point.

    Kim et al., "Communication-Efficient Federated Learning with Accelerated Client Gradient"
    (2024); ``momentum`` is their lambda, ``mu`` their beta, theta the mean of the models, m its
    momentum::

        worker   w_i <- w_i - lr (grad F_i(w_i) + mu (w_i - w))     from w = theta + momentum m
        server   m   <- momentum m + sum_i D_i (w_i - w) / D,       theta <- theta + m

    Then theta + m is the mean of the w_i, so that the server's half is FedMom's: ``v`` is theta,
    and w, which is sent, is v + momentum times its last change. Without mu it is FedMom. The paper
    measures theta; here, as for FedMom, what is measured is w. It weights workers equally; here,
    as everywhere, by data size.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import FedACG
    >>> local, sent = Vectors(w=torch.ones(2)), Vectors(w=torch.zeros(2))
    >>> FedACG(lr=0.1, mu=1.0).step(local, lambda w: 0 * w, sent, Vectors()).w
    tensor([0.9000, 0.9000])
    """

    momentum: NonNegative = 0.85
    mu: NonNegative = 0.01

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        pull = self.mu * (local.w - sent.w)
        return Vectors(w=local.w - self.lr * (self.slope(grad, local.w) + pull))


@dataclass(frozen=True)
class SlowMo(LocalSGD):
    """Slow momentum: heavy-ball steps between aggregations, in units of the local step size.

    Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow Momentum"
    (2020), with plain SGD as the base optimiser; ``slow_lr`` is their alpha::

        worker   w_i <- w_i - lr grad F_i(w_i)
        server   v   <- momentum v + (w - sum_i D_i w_i / D) / lr
                 w   <- w - slow_lr lr v

    ``v`` is a scaled displacement, a sum of gradients: it points uphill.

    >>> import torch
    >>> from fednag import SlowMo, News, Vectors
    >>> server = Vectors(w=torch.ones(2), v=torch.zeros(2))
    >>> SlowMo(lr=0.1, momentum=0.5).update(server, Vectors(w=torch.zeros(2)), News()).v
    tensor([10., 10.])
    """

    momentum: NonNegative = 0.9
    slow_lr: Positive = 1.0

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, v=torch.zeros_like(w))

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        v = self.momentum * server.v + (server.w - mean.w) / self.lr
        return Vectors(w=server.w - self.slow_lr * self.lr * v, v=v)


@dataclass(frozen=True)
class FedAvgM(LocalSGD):
    """Heavy-ball momentum on the mean update.

    Hsu et al., "Measuring the Effects of Non-Identical Data Distribution for Federated Visual
    Classification" (2019)::

        worker   w_i <- w_i - lr grad F_i(w_i)
        server   v   <- momentum v + (w - sum_i D_i w_i / D)
                 w   <- w - server_lr v

    ``v`` is a displacement that points uphill. With ``server_lr`` 1 this is SlowMo with
    ``slow_lr`` 1, in other units.

    >>> import torch
    >>> from fednag import FedAvgM, News, Vectors
    >>> server = Vectors(w=torch.ones(2), v=torch.ones(2))
    >>> FedAvgM(momentum=0.5).update(server, Vectors(w=torch.zeros(2)), News()).w
    tensor([-0.5000, -0.5000])
    """

    momentum: NonNegative = 0.9
    server_lr: Positive = 1.0

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, v=torch.zeros_like(w))

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        v = self.momentum * server.v + (server.w - mean.w)
        return Vectors(w=server.w - self.server_lr * v, v=v)
