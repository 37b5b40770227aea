"""Rounding to a few levels: QSGD's, as FedPAQ uses it, and signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le

from fednag.core.transform import Transform, compressible
from fednag.core.vectors import Vector, Vectors
from fednag.transforms.packing import bits_of, pack, unpack

SCALE = ".scale"  # after a vector's name: the lengths its levels are parts of


@dataclass(frozen=True)
class Quantise(Transform):
    """Rounds every number at random to one of ``levels`` parts of its vector's length.

    Alistarh et al., "QSGD" (2017); the quantiser of FedPAQ (Reisizadeh et al., 2020)::

        Q_j = ||x|| sign(x_j) (l + 1) / s    with probability |x_j| s / ||x|| - l
              ||x|| sign(x_j)  l      / s    otherwise,   l = floor(|x_j| s / ||x||)

    The mean of Q is x. A number takes 1 + ceil(log2(s + 1)) bits, a vector 32 more for its
    length. ``bucket`` numbers at a time have a length of their own, as in QSGD (0: all of a vector
    together): less noise, 32 bits more each. ``together`` rounds all vectors as one long one.
    ``vectors`` are the names of those that are rounded, all of them if there are none.

    >>> import numpy as np, torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import Quantise
    >>> wire, _ = Quantise(levels=1).apply(
    ...     Vectors(w=torch.tensor([0.0, -5.0])), Vectors(), np.random.default_rng(0)
    ... )
    >>> Quantise(levels=1).decode(wire, Vectors(w=torch.zeros(2)), None).w
    tensor([ 0., -5.])
    """

    levels: Annotated[int, Ge(1), Le(2**15 - 1)] = 127
    bucket: Annotated[int, Ge(0)] = 0
    together: bool = False
    vectors: tuple[str, ...] = ()

    compresses = True

    @property
    def bits(self) -> int:
        """Bits a number takes."""
        return 1 + bits_of(self.levels)

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        names = compressible(up, self.vectors)
        wire = dict(up)
        for group in self._groups(names):
            codes, scale = self._codes(torch.cat([up[name] for name in group]), rng)
            for name, own in zip(group, torch.split(codes, _sizes(up, group)), strict=True):
                wire[name] = pack(own, self.bits)
            wire[group[0] + SCALE] = scale
        return Vectors(**wire), kept

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        names = compressible(like, self.vectors)
        found = {name: wire[name] for name in like}
        for group in self._groups(names):
            codes = torch.cat([unpack(wire[n], self.bits, len(like[n])) for n in group])
            numbers = self._numbers(codes, wire[group[0] + SCALE], like[group[0]].dtype)
            found |= zip(group, torch.split(numbers, _sizes(like, group)), strict=True)
        return Vectors(**found)

    def _groups(self, names: list[str]) -> list[list[str]]:
        """Vectors that are rounded as one."""
        if self.together:
            return [names] if names else []
        return [[name] for name in names]

    def _codes(self, vector: Vector, rng: np.random.Generator) -> tuple[Vector, Vector]:
        """Level and sign of each number; the lengths they are parts of."""
        vector = vector.float()
        rows = _rows(vector, self.bucket)
        scale = torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64).float()
        factor = torch.where(scale > 0, self.levels / scale, torch.zeros(())).unsqueeze(1)
        level = rows.abs().mul_(factor).view(-1)[: len(vector)]
        level += torch.from_numpy(rng.random(len(vector), dtype=np.float32))
        # To whole numbers is towards 0, which is down here.
        code = level.clamp_(max=self.levels).to(torch.int16 if self.bits > 8 else torch.uint8)
        return code.mul_(2).add_(vector < 0), scale

    def _numbers(self, codes: Vector, scale: Vector, dtype: torch.dtype) -> Vector:
        narrow = torch.int8 if self.bits <= 8 else torch.int64
        sign = (codes & 1).to(narrow).mul_(-2).add_(1)
        level = (codes >> 1).to(narrow).mul_(sign).to(torch.float32)
        rows = _rows(level, self.bucket).mul_((scale / self.levels).unsqueeze(1))
        return rows.view(-1)[: len(codes)].to(dtype)


@dataclass(frozen=True)
class Sign(Transform):
    """Sends the sign of every number, and of each vector the mean of their sizes::

        C(x) = (||x||_1 / d) sign(x)

    Bernstein et al., "signSGD" (2018), scaled as in Karimireddy et al., "Error Feedback Fixes
    SignSGD" (2019). One bit a number, 32 more a vector. Its mean is not x: put error-feedback
    before it. The sign of 0 is taken as +.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import Sign
    >>> wire, _ = Sign().apply(Vectors(w=torch.tensor([3.0, -1.0])), Vectors(), None)
    >>> Sign().decode(wire, Vectors(w=torch.zeros(2)), None).w, wire.nbytes
    (tensor([ 2., -2.]), 5)
    """

    vectors: tuple[str, ...] = ()

    compresses = True

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        names = compressible(up, self.vectors)
        wire: dict[str, Vector] = {}
        for name, vector in up.items():
            if name in names:
                wire[name + SCALE] = vector.double().abs().mean().float().view(1)
                wire[name] = pack((vector < 0).to(torch.uint8), 1)
            else:
                wire[name] = vector
        return Vectors(**wire), kept

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        found = {}
        for name, vector in like.items():
            if name + SCALE in wire and name + SCALE not in like:
                negative = unpack(wire[name], 1, len(vector)).to(torch.float32)
                found[name] = (wire[name + SCALE] * (1 - 2 * negative)).to(vector.dtype)
            else:
                found[name] = wire[name]
        return Vectors(**found)


def _sizes(bag: Vectors, names: list[str]) -> list[int]:
    return [len(bag[name]) for name in names]


def _rows(vector: Vector, bucket: int) -> Vector:
    """(buckets, numbers); the last is filled up with zeros."""
    if not bucket or bucket >= len(vector):
        return vector.view(1, -1)
    padded = torch.zeros(-(-len(vector) // bucket) * bucket, dtype=vector.dtype)
    padded[: len(vector)] = vector
    return padded.view(-1, bucket)
