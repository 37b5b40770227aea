"""Means with Gaussian noise: central differential privacy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from fednag.core.aggregator import Aggregator, Total
from fednag.core.algorithm import BUFFERS, NonNegative, Positive
from fednag.core.controller import Setting
from fednag.core.keys import gaussian
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class NoisyMean(Aggregator):
    """The sum of clipped uploads with normal noise, over the number of workers expected.

    McMahan et al., "Learning Differentially Private Recurrent Language Models" (2018)::

        mean = (sum_i c_i up_i min(1, norm / ||up_i||) + N(0, (noise_multiplier norm)^2)) / m

    The length is that of all vectors of an upload together, points as differences from what was
    sent. So nobody moves the sum by more than ``norm``, whatever arrives. m is the number of
    workers a round is meant to have (``cohort``; 0: training.participants), not of those who came,
    and a round to which nobody comes still has its noise. Every c_i is 1; with a ``cap`` it is
    min(1, samples / cap), and the paper's estimate of sum_i c_i is left out: it would have to be
    noised too. A model's running statistics are averaged as they are.

    The noise is drawn by seed and round, so that a simulation repeats; with ``secret``, as on real
    machines, it comes from the operating system's cryptographic generator.

    >>> import numpy as np, torch
    >>> from fednag import Vectors
    >>> from fednag.aggregators import NoisyMean
    >>> mean = NoisyMean(norm=1.0, noise_multiplier=0.0, cohort=4)
    >>> total = mean.lift(Vectors(w=torch.tensor([[3.0, 4.0], [0.0, 0.5]])), torch.ones(2))
    >>> mean.finish(total, np.random.default_rng(0)).w
    tensor([0.1500, 0.3250])
    """

    norm: Positive = 1.0
    noise_multiplier: NonNegative = 1.0
    cap: NonNegative = 0.0
    cohort: Annotated[int, Ge(0)] = 0
    secret: bool = False

    exact = False
    always = True

    def weight(self, size: int, staleness: int) -> float:
        return min(1.0, size / self.cap) if self.cap else 1.0

    def ready(self, kept: Vectors, setting: Setting) -> Aggregator:
        return replace(self, cohort=self.cohort or setting.cohort)

    @property
    def sigma(self) -> float:
        """The standard deviation of the noise on every number of the sum."""
        return self.noise_multiplier and self.noise_multiplier * self.norm

    def lift(self, rows: Vectors, weights: Vector) -> Total:
        shrunk = super().lift(rows, weights * self._factors(rows).to(weights))
        if BUFFERS not in rows:
            return Total(shrunk.sums, float(weights.sum()))
        whole = super().lift(rows.pick([BUFFERS]), weights)
        return Total(shrunk.sums.but(**whole.sums), whole.weight)

    def finish(self, total: Total, rng: np.random.Generator | None) -> Vectors:
        def noised(name: str, vector: Vector) -> Vector:
            if name == BUFFERS:
                return vector / (total.weight or 1.0)
            if self.sigma:
                drawn = gaussian(len(vector), None if self.secret else rng)
                vector = vector + torch.from_numpy(self.sigma * drawn).to(vector)
            return vector / (self.cohort or 1)

        return total.sums.map_named(noised)

    def _factors(self, rows: Vectors) -> Vector:
        """What shortens each worker's upload to the norm, (n,)."""
        lengths = self._lengths(rows)
        return torch.where(lengths > self.norm, self.norm / lengths, torch.ones_like(lengths))

    def _lengths(self, rows: Vectors) -> Vector:
        wide = (
            torch.float32 if any(v.device.type == "mps" for v in rows.values()) else torch.float64
        )
        squares = [v.to(wide).square().sum(1) for v in rows.without(BUFFERS).values()]
        return torch.stack(squares).sum(0).sqrt()
