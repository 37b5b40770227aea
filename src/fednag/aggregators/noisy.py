"""Means with Gaussian noise: central differential privacy."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Lt

from fednag.core.aggregator import Aggregator, Total
from fednag.core.algorithm import BUFFERS, NonNegative, Positive
from fednag.core.controller import Setting
from fednag.core.keys import gaussian
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError


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

    def _drawn(self, size: int, rng: np.random.Generator | None) -> Vector:
        return torch.from_numpy(gaussian(size, None if self.secret else rng))

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
                vector = vector + (self.sigma * self._drawn(len(vector), rng)).to(vector)
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


BELOW = ".below"  # the sum that counts uploads no longer than the norm


@dataclass(frozen=True)
class AdaptiveNoisyMean(NoisyMean):
    """A noisy mean whose norm follows a quantile of the uploads' lengths.

    Andrew et al., "Differentially Private Learning with Adaptive Clipping" (2021)::

        b    = (sum_i (1[||up_i|| <= norm] - 1/2) + N(0, count_noise^2)) / m + 1/2
        norm <- norm exp(-rate (b - quantile))

    ``norm`` is the first one. Sum and count are paid for together: with noise_multiplier z for
    both, the sum's own is (z^-2 - (2 count_noise)^-2)^(-1/2), as in the paper. ``count_noise`` is
    m / 20 unless it is given. The server shortens uploads, so that the norm need not be sent.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.aggregators import AdaptiveNoisyMean
    >>> mean = AdaptiveNoisyMean(norm=1.0, noise_multiplier=0.0, cohort=2, rate=1.0)
    >>> total = mean.lift(Vectors(w=torch.tensor([[3.0], [4.0]])), torch.ones(2))
    >>> round(float(mean.learn(mean.init(), total, None).norm), 4)  # exp(1/2): both were longer
    1.6487
    """

    quantile: Annotated[float, Gt(0), Lt(1)] = 0.5
    rate: NonNegative = 0.2
    count_noise: NonNegative = 0.0

    def init(self) -> Vectors:
        return Vectors(norm=torch.tensor([self.norm], dtype=torch.float64))

    def ready(self, kept: Vectors, setting: Setting) -> Aggregator:
        cohort = self.cohort or setting.cohort
        noise = self.noise_multiplier and (self.count_noise or cohort / 20)
        if noise and 2 * noise <= self.noise_multiplier:
            raise FednagError(
                "aggregator.count_noise",
                f"{noise:g} must be above half of noise_multiplier, {self.noise_multiplier:g}: the "
                "count is a part of what is paid for",
                "raise it",
            )
        return replace(self, norm=float(kept.norm), cohort=cohort, count_noise=noise)

    @property
    def sigma(self) -> float:
        z, count = self.noise_multiplier, self.count_noise
        if not (z and count):
            return super().sigma
        return float(self.norm * (z**-2 - (2 * count) ** -2) ** -0.5)

    def lift(self, rows: Vectors, weights: Vector) -> Total:
        total = super().lift(rows, weights)
        below = ((self._lengths(rows) <= self.norm).to(weights) - 0.5).sum().view(1)
        return Total(total.sums.but(**{BELOW: below}), total.weight)

    def finish(self, total: Total, rng: np.random.Generator | None) -> Vectors:
        return super().finish(Total(total.sums.without(BELOW), total.weight), rng)

    def learn(self, kept: Vectors, total: Total, rng: np.random.Generator | None) -> Vectors:
        below = float(total.sums[BELOW]) if BELOW in total.sums else 0.0
        if self.count_noise:
            below += self.count_noise * float(self._drawn(1, rng))
        share = below / (self.cohort or 1) + 0.5
        return Vectors(norm=kept.norm * exp(-self.rate * (share - self.quantile)))


@dataclass(frozen=True)
class MeanWithNoise(Aggregator):
    """The mean weighted by data size, with normal noise of deviation ``sigma`` on the result.

    It is the server's noise of NbAFL. Nobody's weight is bounded: it promises nothing by itself.

    >>> from fednag.aggregators import MeanWithNoise
    >>> MeanWithNoise(sigma=0.1).weight(size=30, staleness=0)
    30.0
    """

    sigma: NonNegative = 0.0
    secret: bool = False

    def finish(self, total: Total, rng: np.random.Generator | None) -> Vectors:
        def noised(name: str, vector: Vector) -> Vector:
            if name == BUFFERS or not self.sigma:
                return vector
            drawn = gaussian(len(vector), None if self.secret else rng)
            return vector + torch.from_numpy(self.sigma * drawn).to(vector)

        return super().finish(total, rng).map_named(noised)
