"""Matrices of low rank: PowerSGD."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge

from fednag.core.transform import Transform, compressible
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True)
class LowRank(Transform):
    """Sends two narrow matrices whose product is close to the vector, laid out as a matrix M::

        P = M Q,   P <- orthonormal columns of P,   Q <- M^T P,   take P Q^T

    Vogels et al., "PowerSGD" (2019): one step of the power method, from the Q of the last time,
    which the worker keeps; the first is drawn. Put error-feedback before it: its mean is not x.

    It departs from the paper in two ways. Vectors are flat, and M is not a layer's matrix: it has
    ceil(sqrt d) rows, filled up with zeros. And each worker sends a P and a Q of its own, where
    the paper's workers agree on one P. A vector that would not become shorter travels as it is.

    >>> import numpy as np, torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import LowRank
    >>> x, code = Vectors(w=torch.arange(1.0, 101.0)), LowRank(rank=2)
    >>> wire, _ = code.apply(x, code.init(x), np.random.default_rng(0))
    >>> len(wire.w), bool(torch.allclose(code.decode(wire, x, None).w, x.w, rtol=1e-3))
    (40, True)
    """

    rank: Annotated[int, Ge(1)] = 2
    vectors: tuple[str, ...] = ()

    compresses = True

    def init(self, like: Vectors) -> Vectors:
        kept = {}
        for name in compressible(like, self.vectors):
            _, columns, rank = self._shape(len(like[name]))
            if rank:
                kept[name] = torch.zeros(columns * rank, dtype=like[name].dtype)
        return Vectors(**kept)

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        for name in compressible(up, self.vectors):
            rows, columns, rank = self._shape(len(up[name]))
            if not rank:
                continue
            M = torch.nn.functional.pad(up[name], (0, rows * columns - len(up[name])))
            M = M.view(rows, columns)
            Q = kept.get(name)
            if Q is None or len(Q) != columns * rank or not Q.any():  # none yet, or of a zero M
                Q = torch.from_numpy(rng.standard_normal(columns * rank)).to(M.dtype)
            P, _ = torch.linalg.qr(M @ Q.view(columns, rank))
            Q = M.T @ P
            up = up.but(**{name: torch.cat([P.reshape(-1), Q.reshape(-1)])})
            kept = kept.but(**{name: Q.reshape(-1)})
        return up, kept

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        found: dict[str, Vector] = {}
        names = compressible(like, self.vectors)
        for name, vector in like.items():
            rows, columns, rank = self._shape(len(vector))
            found[name] = wire[name]
            if name in names and rank:
                sizes = [rows * rank, columns * rank]
                P, Q = torch.split(wire[name].to(vector.dtype), sizes)
                product = P.view(rows, rank) @ Q.view(columns, rank).T
                found[name] = product.reshape(-1)[: len(vector)]
        return Vectors(**found)

    def _shape(self, size: int) -> tuple[int, int, int]:
        """Rows and columns of the matrix, and its rank; 0 where two matrices would be longer."""
        rows = isqrt(size - 1) + 1 if size else 0
        columns = -(-size // rows) if size else 0
        rank = min(self.rank, columns)
        return rows, columns, rank if (rows + columns) * rank < size else 0
