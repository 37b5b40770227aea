"""Gaussian noise on every upload: local differential privacy."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from fednag.core.algorithm import BUFFERS, NonNegative
from fednag.core.keys import gaussian
from fednag.core.transform import Transform
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError


@dataclass(frozen=True)
class Noise(Transform):
    """Adds normal noise to every number of an upload::

        up <- up + N(0, sigma^2 / honest)

    Put ``clip`` right before it: noise protects what has a bound. A model's running statistics are
    left as they are. The noise is drawn by seed, round and worker, so that a simulation repeats;
    with ``secret``, as on silos, it comes from the operating system's cryptographic generator.

    ``honest`` is t of Truex et al., "A Hybrid Approach to Privacy-Preserving Federated Learning"
    (2019): under secure aggregation the server sees the sum alone, so t workers who can be trusted
    to add noise share what one would have to add; the noise of their sum is sigma.

    >>> import numpy as np, torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import Noise
    >>> x = Vectors(w=torch.zeros(10_000))
    >>> up, _ = Noise(sigma=2.0, honest=4).apply(x, Vectors(), np.random.default_rng(0))
    >>> round(float(up.w.std()), 1)
    1.0
    """

    sigma: NonNegative = 1.0
    honest: Annotated[int, Ge(1)] = 1
    secret: bool = False

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        if coded := [name for name, vector in up.items() if not vector.is_floating_point()]:
            raise FednagError(
                "noise",
                f"{', '.join(coded)} is encoded already by a transform before it",
                "put noise earlier",
            )
        if not self.sigma:
            return up, kept

        def noised(name: str, vector: Vector) -> Vector:
            if name == BUFFERS:
                return vector
            drawn = gaussian(len(vector), None if self.secret else rng)
            return vector + torch.from_numpy(self.sigma / sqrt(self.honest) * drawn).to(vector)

        return up.map_named(noised), kept
