"""Clipping: no upload is longer than a bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fednag.core.algorithm import BUFFERS, Positive
from fednag.core.transform import Transform
from fednag.core.vectors import Vectors
from fednag.errors import FednagError


@dataclass(frozen=True)
class Clip(Transform):
    """Shortens an upload whose length is above ``norm``::

        up <- up min(1, norm / ||up||)

    The length is that of all vectors of the upload together, points as differences from what was
    sent; a model's running statistics are left as they are.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import Clip
    >>> up, _ = Clip(norm=1.0).apply(Vectors(w=torch.tensor([3.0, 4.0])), Vectors(), None)
    >>> up.w
    tensor([0.6000, 0.8000])
    """

    norm: Positive = 1.0

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        rules = up.without(BUFFERS)
        if encoded := [name for name, vector in rules.items() if not vector.is_floating_point()]:
            raise FednagError(
                "clip",
                f"{', '.join(encoded)} is encoded already by a transform before it",
                "put clip earlier",
            )
        squares = [vector.double().square().sum() for vector in rules.values()]
        length = float(torch.stack(squares).sum().sqrt())
        if length <= self.norm:
            return up, kept
        return up.but(**rules.map(lambda vector: vector * (self.norm / length))), kept
