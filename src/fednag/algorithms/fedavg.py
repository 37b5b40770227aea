"""FedAvg and FedProx: plain local descent, weights averaged; and cSGD, its centralised form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from fednag.algorithms.local import LocalSGD
from fednag.core.algorithm import Grad, NonNegative
from fednag.core.vectors import Vectors
from fednag.transforms import Quantise


@dataclass(frozen=True)
class FedAvg(LocalSGD):
    """Local SGD, then the mean of the weights.

    McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized Data"
    (2017)::

        worker   w_i <- w_i - lr grad F_i(w_i)            tau times
        server   w   <- sum_i D_i w_i / D

    >>> import torch
    >>> from fednag import FedAvg, Vectors
    >>> FedAvg(lr=0.1).step(Vectors(w=torch.ones(2)), lambda w: 2 * w, Vectors(), Vectors()).w
    tensor([0.8000, 0.8000])
    """


@dataclass(frozen=True)
class CSGD(FedAvg):
    """Centralised SGD: FedAvg with one worker that holds all the data.

    >>> from fednag import CSGD
    >>> CSGD(lr=0.1).pooled
    True
    """

    pooled = True


@dataclass(frozen=True)
class FedProx(LocalSGD):
    """FedAvg with a pull back to the model the worker was sent.

    Li et al., "Federated Optimization in Heterogeneous Networks" (2020), with tau SGD steps as
    the local solver::

        worker   w_i <- w_i - lr (grad F_i(w_i) + mu (w_i - w))       tau times
        server   w   <- sum_i D_i w_i / D

    >>> import torch
    >>> from fednag import FedProx, Vectors
    >>> local, sent = Vectors(w=torch.ones(2)), Vectors(w=torch.zeros(2))
    >>> FedProx(lr=0.1, mu=1.0).step(local, lambda w: 0 * w, sent, Vectors()).w
    tensor([0.9000, 0.9000])
    """

    mu: NonNegative = 0.01

    def step(self, local: Vectors, grad: Grad, sent: Vectors, mine: Vectors) -> Vectors:
        pull = self.mu * (local.w - sent.w)
        return Vectors(w=local.w - self.lr * (self.slope(grad, local.w) + pull))


@dataclass(frozen=True)
class FedPAQ(FedAvg):
    """FedAvg with quantised uploads, for rounds in which some workers take part.

    Reisizadeh et al., "FedPAQ: A Communication-Efficient Federated Learning Method with Periodic
    Averaging and Quantization" (2020)::

        worker   w_i <- w_i - lr grad F_i(w_i)                     tau times
        server   w   <- w + sum_i D_i Q(w_i - w) / D_S

    Q rounds at random to ``levels`` parts of the update's length (``quantise``), so that its mean
    is the update. The paper weights workers equally; here, as everywhere, by data size.

    >>> from fednag.algorithms import FedPAQ
    >>> FedPAQ(levels=7).channel
    (Quantise(levels=7, bucket=0, together=False, vectors=()),)
    """

    levels: Annotated[int, Ge(1), Le(2**15 - 1)] = 7
    bucket: Annotated[int, Ge(0)] = 0

    @property
    def channel(self) -> tuple[Quantise, ...]:
        return (Quantise(self.levels, self.bucket),)
