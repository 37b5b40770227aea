"""SCAFFOLD: control variates that undo client drift; and SCAFFOLD-M, with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Decay, Grad, News, Positive, WorkerData
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class Scaffold(LocalSGD):
    """Local SGD corrected by the difference of two control variates.

    Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning"
    (2020), option II::

        worker   w_i  <- w_i - lr (grad F_i(w_i) - c_i + c)                       tau times
                 c_i' =  c_i - c + (w - w_i) / (tau lr)
                 returns w_i - w and c_i' - c_i, keeps c_i'
        server   w    <- w + server_lr sum_i D_i (w_i - w) / D_S
                 c    <- c + (D_S / D) sum_i D_i (c_i' - c_i) / D_S

    ``c`` and ``c_i`` are gradients. The paper weights workers equally; here, as everywhere, by
    data size, so that c stays the D_i-weighted mean of all c_i. D_S is the data that took part.

    With [[tier]] an edge applies the server's rule to its own (w, c), with server_lr 1 and its own
    data for D, and sends up how both have changed. So its workers step along::

        grad F_i(w_i) - c_i + c + (c_edge - c_edge as the server knows it)

    where c_edge is the mean of its c_i: two corrections, of workers within an edge and of edges, as
    in MTGC (Fang et al., "Hierarchical Federated Learning with Multi-Timescale Gradient
    Correction", 2024), whose correction of edges is of a whole round of the server where this one
    is of an edge's last. c stays the mean of all c_i; with pi 1 it is SCAFFOLD.

    >>> import torch
    >>> from fednag import Scaffold, Vectors
    >>> sent = Vectors(w=torch.ones(2), c=torch.ones(2))
    >>> Scaffold(lr=0.1).step(sent, lambda w: 0 * w, sent, Vectors(c=torch.zeros(2))).w
    tensor([0.9000, 0.9000])
    """

    server_lr: Positive = 1.0

    down: ClassVar[tuple[str, ...]] = ("w", "c")
    up = ("dw", "dc")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, c=torch.zeros_like(w))

    def memory(self, w: Vector) -> Vectors:
        return Vectors(c=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w - self.lr * (self.slope(grad, local.w) - mine.c + sent.c))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        c = mine.c - sent.c + (sent.w - local.w) / (steps * self.lr)
        return Vectors(dw=local.w - sent.w, dc=c - mine.c), Vectors(c=c)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return Vectors(w=server.w + self.server_lr * mean.dw, c=server.c + news.share * mean.dc)

    def plain_edge(self, nearest: bool) -> bool:
        return True

    def edge(self, state: Vectors, mean: Vectors, news: News) -> Vectors:
        return state.but(w=state.w + mean.dw, c=state.c + news.share * mean.dc)

    def edge_end(self, state: Vectors, sent: Vectors, news: News) -> Vectors:
        # The server weights edges by the data that took part, and c is over all data.
        return Vectors(dw=state.w - sent.w, dc=(state.c - sent.c) / news.share)


@dataclass(frozen=True)
class ScaffoldM(Scaffold):
    """SCAFFOLD's steps mixed with the server's momentum, held fixed during the round.

    Cheng et al., "Momentum Benefits Non-IID Federated Learning Simply and Provably" (2024),
    SCAFFOLD-M; ``momentum`` is 1 - their beta::

        worker   w_i  <- w_i - lr ((1 - momentum) (grad F_i(w_i) - c_i + c) + momentum m)
                 c_i' =  the mean of its tau gradients
                 returns w_i - w and c_i' - c_i, keeps c_i'
        server   m    <- -sum_i D_i (w_i - w) / (lr tau D_S)
                 w    <- w + server_lr sum_i D_i (w_i - w) / D_S
                 c    <- c + (D_S / D) sum_i D_i (c_i' - c_i) / D_S

    ``m``, ``c`` and ``c_i`` are gradients. The gradients' mean is computed from where the worker
    has come, as SCAFFOLD's option II does. tau is, at the server, the mean over workers; their
    gamma is server_lr lr tau. Workers are weighted by data size, as everywhere. Without momentum
    it is SCAFFOLD.

    >>> from fednag.algorithms import ScaffoldM
    >>> ScaffoldM().down, ScaffoldM().up
    (('w', 'c', 'm'), ('dw', 'dc'))
    """

    momentum: Decay = 0.9

    down = ("w", "c", "m")

    def init(self, w: Vector) -> Vectors:
        return super().init(w).but(m=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        g = self.slope(grad, local.w) - mine.c + sent.c
        return Vectors(w=local.w - self.lr * ((1 - self.momentum) * g + self.momentum * sent.m))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        mixed = (sent.w - local.w) / (steps * self.lr)
        c = mine.c - sent.c + (mixed - self.momentum * sent.m) / (1 - self.momentum)
        return Vectors(dw=local.w - sent.w, dc=c - mine.c), Vectors(c=c)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        m = -mean.dw / (self.lr * max(news.steps, 1.0))
        return super().update(server, mean, news).but(m=m)
