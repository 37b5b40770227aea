"""Half precision: half the bytes of float32."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fednag.core.transform import Transform
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class Float16(Transform):
    """Rounds every number to half precision, two bytes each.

    Points travel as differences from what was sent, so what is rounded is the update, not the
    model. Numbers beyond 65504 overflow, and such an update is refused.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import Float16
    >>> up, _ = Float16().apply(Vectors(w=torch.tensor([0.1, 2.0])), Vectors(), None)
    >>> up.w, up.nbytes
    (tensor([0.1000, 2.0000], dtype=torch.float16), 4)
    """

    compresses = True

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        return up.map(lambda vector: _narrowed(vector, torch.float16)), kept


@dataclass(frozen=True)
class BFloat16(Transform):
    """Rounds every number to 8 significant bits with the range of float32, two bytes each.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import BFloat16
    >>> up, _ = BFloat16().apply(Vectors(w=torch.tensor([1e30])), Vectors(), None)
    >>> bool(up.w.isfinite()), up.nbytes
    (True, 2)
    """

    compresses = True

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        return up.map(lambda vector: _narrowed(vector, torch.bfloat16)), kept


def _narrowed(vector: Vector, dtype: torch.dtype) -> Vector:
    return vector.to(dtype) if vector.is_floating_point() else vector  # codes stay as they are
