"""Adaptive steps at workers: DiLoCo, with AdamW, and FedLion, with Lion."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Decay, Grad, News, NonNegative, Positive, WorkerData
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class DiLoCo(LocalSGD):
    """AdamW at the workers, Nesterov's momentum at the server.

    Douillard et al., "DiLoCo: Distributed Low-Communication Training of Language Models"
    (2023)::

        worker   t   <- t + 1,     g = grad F_i(w_i)
                 m_i <- first m_i + (1 - first) g
                 s_i <- second s_i + (1 - second) g^2
                 w_i <- (1 - lr weight_decay) w_i
                        - lr (m_i / (1 - first^t)) / (sqrt(s_i / (1 - second^t)) + epsilon)
        server   u   =  w - sum_i D_i w_i / D
                 b   <- momentum b + u
                 w   <- w - server_lr (u + momentum b)

    AdamW is torch's, its ``m_i``, ``s_i`` and t stay with the worker. ``b`` is a displacement that
    points uphill. Workers are weighted by data size, as everywhere; the paper's hold equal shares.
    With server_lr 1 and momentum 0 it is local AdamW, and the mean of the weights.

    >>> import torch
    >>> from fednag import News, Vectors
    >>> from fednag.algorithms import DiLoCo
    >>> rule = DiLoCo(server_lr=0.5, momentum=0.5)
    >>> rule.update(rule.init(torch.ones(2)), Vectors(w=torch.zeros(2)), News()).w
    tensor([0.2500, 0.2500])
    """

    lr: Positive = 1e-3
    momentum: Decay = 0.9
    server_lr: Positive = 0.7
    first: Decay = 0.9
    second: Decay = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NonNegative = field(default=0.1, kw_only=True)

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, b=torch.zeros_like(w))

    def memory(self, w: Vector) -> Vectors:
        return Vectors(m=torch.zeros_like(w), s=torch.zeros_like(w), t=torch.zeros_like(w[:1]))

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return mine.but(w=sent.w)

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        t, g = local.t + 1, self.clipped(grad(local.w))
        m = self.first * local.m + (1 - self.first) * g
        s = self.second * local.s + (1 - self.second) * g**2
        size = (s / (1 - self.second**t)).sqrt() + self.epsilon
        kept = (1 - self.lr * self.weight_decay) * local.w
        return Vectors(w=kept - self.lr * (m / (1 - self.first**t)) / size, m=m, s=s, t=t)

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return local.pick(self.up), local.without("w")

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        u = server.w - mean.w
        b = self.momentum * server.b + u
        return Vectors(w=server.w - self.server_lr * (u + self.momentum * b), b=b)


@dataclass(frozen=True)
class FedLion(LocalSGD):
    """Local steps of one size along signs, then the mean of the weights and of the momenta.

    Tang and Chang, "FedLion: Faster Adaptive Federated Optimization with Fewer Communication"
    (2024); ``momentum`` and ``decay`` are their beta_1 and beta_2::

        worker   g   =  grad F_i(w_i)
                 w_i <- w_i - lr (sign(momentum m_i + (1 - momentum) g) + weight_decay w_i)
                 m_i <- decay m_i + (1 - decay) g
        server   w   <- sum_i D_i w_i / D
                 m   <- sum_i D_i m_i / D

    ``m`` is a gradient: it points uphill. The paper sends (w_i - w) / lr, whole numbers without
    weight decay, in few bits; here it is w_i that travels, and ``quantise`` or ``entropy`` on the
    uplink make it short. Workers are weighted by data size, as everywhere.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import FedLion
    >>> local = Vectors(w=torch.ones(2), m=torch.tensor([0.0, -9.0]))
    >>> FedLion(lr=0.1, momentum=0.5).step(local, lambda w: w, Vectors(), Vectors()).w
    tensor([0.9000, 1.1000])
    """

    lr: Positive = 1e-3
    momentum: Decay = 0.9
    decay: Decay = 0.99

    down = up = ("w", "m")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, m=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        g = self.clipped(grad(local.w))
        way = (self.momentum * local.m + (1 - self.momentum) * g).sign()
        return Vectors(
            w=local.w - self.lr * (way + self.weight_decay * local.w),
            m=self.decay * local.m + (1 - self.decay) * g,
        )
