"""How far the server goes along what workers return: FedNova, FedExP."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Decay, Grad, News, Positive, WorkerData
from fednag.core.vectors import Vectors


@dataclass(frozen=True)
class FedNova(LocalSGD):
    """Updates divided by how much their workers have done, before they are averaged.

    Wang et al., "Tackling the Objective Inconsistency Problem in Heterogeneous Federated
    Optimization" (2020), with local momentum that starts anew each round::

        worker   v_i <- momentum v_i + grad F_i(w_i),                    v_i = 0 at first
                 w_i <- w_i - lr v_i                                           tau_i times
                 a_i =  sum_k (1 - momentum^k) / (1 - momentum),       k from 1 to tau_i
                 returns d_i = (w_i - w) / a_i and a_i
        server   w   <- w + (sum_i D_i a_i / D) (sum_i D_i d_i / D)

    ``a_i`` is how often each gradient is in w_i, added up: tau_i without momentum. Where all
    workers do the same number of local iterations, and without momentum, it is FedAvg.

    >>> from fednag.algorithms import FedNova
    >>> FedNova().amount(3), FedNova(momentum=0.5).amount(3)
    (3.0, 4.25)
    """

    momentum: Decay = 0.0

    up = ("d", "a")

    def begin(self, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=sent.w, v=torch.zeros_like(sent.w))

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        v = self.momentum * local.v + self.slope(grad, local.w)
        return Vectors(w=local.w - self.lr * v, v=v)

    def amount(self, steps: int) -> float:
        """How much ``steps`` local iterations are."""
        return sum((1 - self.momentum**k) / (1 - self.momentum) for k in range(1, steps + 1))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        a = torch.full_like(local.w[..., :1], self.amount(steps))
        return Vectors(d=(local.w - sent.w) / a.clamp(min=1), a=a), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        return Vectors(w=server.w + mean.a * mean.d)


@dataclass(frozen=True)
class FedExP(LocalSGD):
    """A server step that is longer the more the workers' updates differ.

    Jhunjhunwala et al., "FedExP: Speeding Up Federated Averaging via Extrapolation" (2023)::

        worker   w_i <- w_i - lr grad F_i(w_i)
                 returns w_i and q_i = |w_i - w|^2
        server   u   =  sum_i D_i w_i / D - w
                 w   <- w + max(1, sum_i D_i q_i / D / (2 (|u|^2 + epsilon))) u

    The paper weights workers equally; here, as everywhere, by data size. It measures the mean of
    the last two models; here what is measured is w. With one worker it is FedAvg.

    >>> import torch
    >>> from fednag import News, Vectors
    >>> from fednag.algorithms import FedExP
    >>> mean = Vectors(w=torch.tensor([3.0, 4.0]), q=torch.tensor([104.0]))
    >>> FedExP(epsilon=1.0).update(Vectors(w=torch.zeros(2)), mean, News()).w
    tensor([6., 8.])
    """

    epsilon: Positive = 1e-3

    up = ("w", "q")

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        q = (local.w - sent.w).square().sum(-1, keepdim=True)
        return Vectors(w=local.w, q=q), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        u = mean.w - server.w
        far = mean.q / (2 * (u.square().sum() + self.epsilon))
        return Vectors(w=server.w + far.clamp(min=1) * u)
