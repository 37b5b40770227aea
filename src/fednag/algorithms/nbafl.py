"""NbAFL: FedProx with noise before and after aggregation."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import Annotated

from annotated_types import Ge, Gt, Lt

from fednag.aggregators import MeanWithNoise
from fednag.algorithms.fedavg import FedProx
from fednag.core.algorithm import Positive, WorkerData
from fednag.core.vectors import Vectors
from fednag.transforms import Noise

Count = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class NbAFL(FedProx):
    """FedProx whose models are clipped and noised by the workers, and noised by the server.

    Wei et al., "Federated Learning With Differential Privacy: Algorithms and Performance Analysis"
    (2020), with C ``norm``, L ``exposures`` (how often a worker's model is seen), T ``rounds``, N
    ``workers``, m ``samples`` (of the smallest worker) and c = sqrt(2 ln(1.25 / delta))::

        worker   w_i <- w_i / max(1, ||w_i|| / C) + N(0, s_U^2),    s_U = 2 c C L / (m epsilon)
        server   w   <- sum_i D_i w_i / D + N(0, s_D^2),
                 s_D = 2 c C sqrt(T^2 - L^2 N) / (m N epsilon)   if T > L sqrt(N),   else 0

    L, T, N and m are numbers of the method: give those of the run.

    **What it guarantees.** ``epsilon`` is what the paper claims. It rests on a sensitivity of
    2 C / m, as if a trained model were a mean over its samples; one sample may move it by 2 C. So
    [privacy] accounts for 2 C, and calls that alone a guarantee; it is larger by orders.

    >>> from fednag.algorithms import NbAFL
    >>> f"{NbAFL(norm=1.0, epsilon=50.0, delta=0.01, exposures=25, samples=512).sigma_up:.5f}"
    '0.00607'
    """

    norm: Positive = 1.0
    epsilon: Positive = 50.0
    delta: Annotated[float, Gt(0), Lt(1)] = 0.01
    exposures: Count = 25
    rounds: Count = 25
    workers: Count = 50
    samples: Count = 512

    @property
    def c(self) -> float:
        return sqrt(2 * log(1.25 / self.delta))

    @property
    def sigma_up(self) -> float:
        return 2 * self.c * self.norm * self.exposures / (self.samples * self.epsilon)

    @property
    def sigma_down(self) -> float:
        T, L, N = self.rounds, self.exposures, self.workers
        if L * sqrt(N) >= T:
            return 0.0
        root = sqrt(T**2 - L**2 * N)
        return 2 * self.c * self.norm * root / (self.samples * N * self.epsilon)

    @property
    def channel(self) -> tuple[Noise, ...]:
        return (Noise(self.sigma_up),)

    @property
    def aggregator(self) -> MeanWithNoise:
        return MeanWithNoise(self.sigma_down)

    @property
    def bound(self) -> float:
        return self.norm

    @property
    def claimed(self) -> float:
        return self.epsilon

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
    ) -> tuple[Vectors, Vectors]:
        length = local.w.norm(dim=-1, keepdim=True)
        return Vectors(w=local.w / (length / self.norm).clamp_min(1.0)), mine
