"""FedNAG and MFL: local momentum on every worker, weights and momenta averaged."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Grad, News, NonNegative, WorkerData
from fednag.core.vectors import Vector, Vectors


def nesterov(local: Vectors, g: Vector, lr: float, momentum: float) -> Vectors:
    """One step of Nesterov's accelerated gradient; ``v`` is a displacement and carries ``-lr``.

    The same step as ``torch.optim.SGD(nesterov=True)``, whose buffer is ``-v / lr``.
    """
    v = momentum * local.v - lr * g
    return Vectors(w=local.w + momentum * v - lr * g, v=v)


@dataclass(frozen=True)
class FedNAG(LocalSGD):
    """Local NAG, then the mean of the weights and of the momenta.

    Yang et al., "Federated Learning with Nesterov Accelerated Gradient" (2022)::

        worker   v_i <- momentum v_i - lr grad F_i(w_i)
                 w_i <- w_i + momentum v_i - lr grad F_i(w_i)      (the old w_i in both gradients)
        server   v   <- sum_i D_i v_i / D
                 w   <- sum_i D_i w_i / D

    ``v`` is a displacement. Sends twice FedAvg's payload each way.

    >>> import torch
    >>> from fednag import FedNAG, Vectors
    >>> local = Vectors(w=torch.ones(2), v=torch.zeros(2))
    >>> FedNAG(lr=0.1, momentum=0.5).step(local, lambda w: w, Vectors(), Vectors()).w
    tensor([0.8500, 0.8500])
    """

    momentum: NonNegative = 0.9

    down = up = ("w", "v")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, v=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return nesterov(local, self.slope(grad, local.w), self.lr, self.momentum)


@dataclass(frozen=True)
class HierMo(FedNAG):
    """Local NAG, momentum at the edges too, and the means of all edges at the cloud.

    Yang, Fu and Bao, "Hierarchical Federated Learning with Momentum Acceleration in Multi-Tier
    Networks" (2022). Workers do FedNAG's steps; every tau iterations, and every pi rounds of an
    edge::

        edge    v   <- sum_i D_i v_i / D_edge,      p' <- sum_i D_i w_i / D_edge
                w   <- p' + edge_momentum (p' - p),  p  <- p'
        cloud   w, v, p <- their means over edges, weighted by data size

    ``p`` is a point, the edge's last mean. Without [[tier]] there is one edge, the server: FedNAG
    with FedMom's server. With edge_momentum 0 it is FedNAG with edges, the paper's "three-tier
    FedNAG", and with pi 1 FedNAG. Workers send what FedNAG's send; between edges and cloud p
    travels too.

    >>> import torch
    >>> from fednag import News, Vectors
    >>> from fednag.algorithms import HierMo
    >>> state = Vectors(w=torch.zeros(1), v=torch.zeros(1), p=torch.ones(1))
    >>> mean = Vectors(w=torch.full((1,), 3.0), v=torch.ones(1))
    >>> HierMo(edge_momentum=0.5).edge(state, mean, News()).w
    tensor([4.])
    """

    edge_momentum: NonNegative = 0.5

    between = ("p",)

    def init(self, w: Vector) -> Vectors:
        return super().init(w).but(p=w)

    def plain_edge(self, nearest: bool) -> bool:
        return not nearest or self.edge_momentum == 0

    def edge(self, state: Vectors, mean: Vectors, news: News) -> Vectors:
        if "p" in mean:  # of edges, who have applied this rule
            return state.but(**mean)
        p = mean.w
        return state.but(w=p + self.edge_momentum * (p - state.p), v=mean.v, p=p)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return self.edge(server, mean, news)


@dataclass(frozen=True)
class MFL(FedNAG):
    """Local heavy-ball momentum, then the mean of the weights and of the momenta.

    Liu et al., "Accelerating Federated Learning via Momentum Gradient Descent" (2020), FedNAG's
    forerunner, with Polyak's momentum::

        worker   v_i <- momentum v_i - lr grad F_i(w_i)
                 w_i <- w_i + v_i
        server   v   <- sum_i D_i v_i / D
                 w   <- sum_i D_i w_i / D

    ``v`` is a displacement; the paper's d is -v / lr. Sends twice FedAvg's payload each way.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.algorithms import MFL
    >>> local = Vectors(w=torch.ones(2), v=torch.ones(2))
    >>> MFL(lr=0.1, momentum=0.5).step(local, lambda w: w, Vectors(), Vectors()).w
    tensor([1.4000, 1.4000])
    """

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        v = self.momentum * local.v - self.lr * self.slope(grad, local.w)
        return Vectors(w=local.w + v, v=v)


@dataclass(frozen=True)
class CNAG(FedNAG):
    """Centralised NAG: FedNAG with one worker that holds all the data.

    >>> from fednag import CNAG
    >>> CNAG(lr=0.1, momentum=0.5).pooled
    True
    """

    pooled = True


@dataclass(frozen=True)
class FedNAGLocal(LocalSGD):
    """FedNAG without the averaging of momenta: each worker keeps its own between rounds.

    An ablation: it shows what sending ``v`` buys, at FedAvg's payload::

        worker   FedNAG's step; v_i stays with the worker
        server   w   <- sum_i D_i w_i / D

    >>> from fednag import FedNAG, FedNAGLocal
    >>> FedNAG().up, FedNAGLocal().up
    (('w', 'v'), ('w',))
    """

    momentum: NonNegative = 0.9

    def memory(self, w: Vector) -> Vectors:
        return Vectors(v=torch.zeros_like(w))

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=sent.w, v=mine.v)

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return nesterov(local, self.slope(grad, local.w), self.lr, self.momentum)

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(w=local.w), Vectors(v=local.v)


@dataclass(frozen=True)
class FedNAGRebuilt(LocalSGD):
    """FedNAG whose momentum is not sent up: the server makes one from two models.

    An ablation: FedAvg's payload on the way up, FedNAG's on the way down::

        worker   FedNAG's step, from the v it was sent
        server   v   <- (sum_i D_i w_i / D - w) / tau
                 w   <- sum_i D_i w_i / D

    Where v does not change from step to step, v = momentum v - lr grad, and a step moves w by
    momentum v - lr grad = v: the mean step of a round stands in for the mean momentum. ``tau`` is
    the number of local iterations of the round, the mean over workers.

    >>> import torch
    >>> from fednag import News, Vectors
    >>> from fednag.algorithms import FedNAGRebuilt
    >>> server = Vectors(w=torch.ones(2), v=torch.zeros(2))
    >>> FedNAGRebuilt().update(server, Vectors(w=torch.zeros(2)), News(steps=4)).v
    tensor([-0.2500, -0.2500])
    """

    momentum: NonNegative = 0.9

    down = ("w", "v")

    def init(self, w: Vector) -> Vectors:
        return Vectors(w=w, v=torch.zeros_like(w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        return nesterov(local, self.slope(grad, local.w), self.lr, self.momentum)

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return Vectors(w=mean.w, v=(mean.w - server.w) / max(news.steps, 1.0))
