"""Attacks of one worker alone: its update turned round, made longer, noisy, constant or nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fednag.core.algorithm import NonNegative, Positive
from fednag.core.attack import Attack
from fednag.core.vectors import Vectors


@dataclass(frozen=True)
class SignFlip(Attack):
    """Sends its update the other way round::

        up <- -factor up

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.attacks import SignFlip
    >>> SignFlip(factor=2.0).forge(Vectors(w=torch.tensor([1.0, -3.0])), Vectors(), None).w
    tensor([-2.,  6.])
    """

    factor: Positive = 1.0

    def forge(self, update: Vectors, others: Vectors, rng: np.random.Generator) -> Vectors:
        return update.map(lambda vector: -self.factor * vector)


@dataclass(frozen=True)
class Scale(Attack):
    """Sends its update many times as long::

        up <- factor up

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.attacks import Scale
    >>> Scale().forge(Vectors(w=torch.tensor([1.0, -3.0])), Vectors(), None).w
    tensor([ 100., -300.])
    """

    factor: Positive = 100.0

    def forge(self, update: Vectors, others: Vectors, rng: np.random.Generator) -> Vectors:
        return update.map(lambda vector: self.factor * vector)


@dataclass(frozen=True)
class Noise(Attack):
    """Adds Gaussian noise to every number of its update::

        up_j <- up_j + N(0, deviation^2)

    >>> import numpy as np
    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.attacks import Noise
    >>> up = Noise(deviation=3.0).forge(
    ...     Vectors(w=torch.zeros(10_000)), Vectors(), np.random.default_rng(0)
    ... )
    >>> round(float(up.w.std()), 1)
    3.0
    """

    deviation: NonNegative = 1.0

    def forge(self, update: Vectors, others: Vectors, rng: np.random.Generator) -> Vectors:
        def noisy(vector: torch.Tensor) -> torch.Tensor:
            drawn = torch.from_numpy(rng.normal(0.0, self.deviation, tuple(vector.shape)))
            return vector + drawn.to(vector)

        return update.map(noisy)


@dataclass(frozen=True)
class Constant(Attack):
    """Sends the same number everywhere::

        up_j <- value

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.attacks import Constant
    >>> Constant(value=5.0).forge(Vectors(w=torch.zeros(2)), Vectors(), None).w
    tensor([5., 5.])
    """

    value: float = 1e30

    def forge(self, update: Vectors, others: Vectors, rng: np.random.Generator) -> Vectors:
        return update.map(lambda vector: torch.full_like(vector, self.value))


@dataclass(frozen=True)
class FreeRider(Attack):
    """Sends back what it was sent, as if it had trained; of all else zeros::

        up <- 0

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.attacks import FreeRider
    >>> FreeRider().forge(Vectors(w=torch.tensor([1.0, -3.0])), Vectors(), None).w
    tensor([0., 0.])
    """

    def forge(self, update: Vectors, others: Vectors, rng: np.random.Generator) -> Vectors:
        return update.map(torch.zeros_like)
