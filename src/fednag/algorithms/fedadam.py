"""Adaptive steps at the server: FedAdam, FedYogi, FedAdagrad. Workers run plain SGD."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Decay, News, Positive
from fednag.core.vectors import Vector, Vectors


class AdaptiveServer(LocalSGD):
    """Divides the mean update by the root of a mean of its squares, coordinate by coordinate."""

    momentum: Decay
    server_lr: Positive
    adaptivity: Positive

    @abstractmethod
    def squares(self, s: Vector, u: Vector) -> Vector:
        """The next ``s``, from the mean update."""

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, m=torch.zeros_like(w), s=torch.full_like(w, self.adaptivity**2))

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        u = mean.w - server.w
        m = self.momentum * server.m + (1 - self.momentum) * u
        s = self.squares(server.s, u)
        return Vectors(w=server.w + self.server_lr * m / (s.sqrt() + self.adaptivity), m=m, s=s)


@dataclass(frozen=True)
class FedAdam(AdaptiveServer):
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

    momentum: Decay = 0.9
    second: Decay = 0.99
    server_lr: Positive = 0.01
    adaptivity: Positive = 1e-3

    def squares(self, s: Vector, u: Vector) -> Vector:
        return self.second * s + (1 - self.second) * u**2


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam whose squares grow and shrink by the same amount.

    The same paper, with the second moment of Zaheer et al., "Adaptive Methods for Nonconvex
    Optimization" (2018); what is not written is FedAdam's::

        server   s   <- s - (1 - second) u^2 sign(s - u^2)

    >>> import torch
    >>> from fednag.algorithms import FedYogi
    >>> FedYogi(second=0.9).squares(torch.ones(2), torch.tensor([0.5, 2.0]))
    tensor([0.9750, 1.4000])
    """

    def squares(self, s: Vector, u: Vector) -> Vector:
        return s - (1 - self.second) * u**2 * (s - u**2).sign()


@dataclass(frozen=True)
class FedAdagrad(AdaptiveServer):
    """FedAdam whose squares only grow; as in the paper's experiments, without momentum.

    The same paper; what is not written is FedAdam's::

        server   s   <- s + u^2

    >>> import torch
    >>> from fednag.algorithms import FedAdagrad
    >>> FedAdagrad().squares(torch.ones(2), torch.tensor([0.5, 2.0]))
    tensor([1.2500, 5.0000])
    """

    momentum: Decay = 0.0
    server_lr: Positive = 0.01
    adaptivity: Positive = 1e-3

    def squares(self, s: Vector, u: Vector) -> Vector:
        return s + u**2
