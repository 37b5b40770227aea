"""Only some of the numbers travel: the largest, or some drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Gt, Le

from fednag.core.transform import Transform, compressible
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError
from fednag.transforms.packing import bits_of, pack, unpack

INDEX = ".index"  # after a vector's name: where its numbers belong

Share = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True)
class TopK(Transform):
    """Sends the ``k`` largest numbers of each vector, by absolute value, and their places::

        C(x)_j = x_j    if |x_j| is among the k largest,    0 otherwise

    ``share`` is the part of a vector's numbers that travels; ``k``, if it is not 0, their count.
    A place takes ceil(log2 d) bits, a number what it takes anyway. Put error-feedback before it:
    its mean is not x.

    >>> import torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import TopK
    >>> wire, _ = TopK(k=1).apply(Vectors(w=torch.tensor([1.0, -3.0, 2.0])), Vectors(), None)
    >>> wire.w, TopK(k=1).decode(wire, Vectors(w=torch.zeros(3)), None).w
    (tensor([-3.]), tensor([ 0., -3.,  0.]))
    """

    share: Share = 0.01
    k: Annotated[int, Ge(0)] = 0
    vectors: tuple[str, ...] = ()

    compresses = True

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        names = compressible(up, self.vectors)
        wire: dict[str, Vector] = {}
        for name, vector in up.items():
            if name in names:
                places = largest(vector, count(self.k, self.share, name, len(vector)))
                wire[name] = vector[places]
                wire[name + INDEX] = pack(places, bits_of(len(vector) - 1))
            else:
                wire[name] = vector
        return Vectors(**wire), kept

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        found = {}
        for name, vector in like.items():
            if name + INDEX in wire and name + INDEX not in like:
                size = len(vector)
                places = unpack(wire[name + INDEX], bits_of(size - 1), len(wire[name])).long()
                if len(places) and int(places.max()) >= size:
                    raise FednagError(
                        f"{name} has a number for place {int(places.max())} of {size}"
                    )
                found[name] = torch.zeros(size, dtype=vector.dtype)
                found[name][places] = wire[name].to(vector.dtype)
            else:
                found[name] = wire[name]
        return Vectors(**found)


@dataclass(frozen=True)
class RandK(Transform):
    """Sends ``k`` numbers of each vector, drawn at random without replacement, times d / k::

        C(x)_j = (d / k) x_j    if j is drawn,    0 otherwise

    The mean of C(x) is x, and its variance is (d / k - 1) ||x||². Both sides draw the same places,
    so that these do not travel. ``share`` and ``k`` as in topk. ``scaled = false`` leaves out the
    factor, for use behind error-feedback.

    >>> import numpy as np, torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import RandK
    >>> half = RandK(share=0.5)
    >>> wire, _ = half.apply(Vectors(w=torch.ones(4)), Vectors(), np.random.default_rng(0))
    >>> float(half.decode(wire, Vectors(w=torch.ones(4)), np.random.default_rng(0)).w.sum())
    4.0
    """

    share: Share = 0.01
    k: Annotated[int, Ge(0)] = 0
    scaled: bool = True
    vectors: tuple[str, ...] = ()

    compresses = True

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        names, wire = compressible(up, self.vectors), {}
        for name, vector in up.items():
            if name not in names:
                wire[name] = vector
                continue
            places = self._places(name, len(vector), rng)
            factor = len(vector) / len(places) if self.scaled else 1.0
            wire[name] = vector[places] * factor
        return Vectors(**wire), kept

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        names, found = compressible(like, self.vectors), {}
        for name, vector in like.items():
            if name not in names:
                found[name] = wire[name]
                continue
            found[name] = torch.zeros(len(vector), dtype=vector.dtype)
            found[name][self._places(name, len(vector), rng)] = wire[name].to(vector.dtype)
        return Vectors(**found)

    def _places(self, name: str, size: int, rng: np.random.Generator) -> Vector:
        k = count(self.k, self.share, name, size)
        drawn = rng.choice(size, k, replace=False, shuffle=False)
        return torch.from_numpy(np.sort(drawn))


def count(k: int, share: float, name: str, size: int) -> int:
    """How many of a vector's numbers travel."""
    if k > size:
        raise FednagError("k", f"{k} numbers of {name} should travel, and it has {size}", "lower k")
    return k or max(1, round(share * size))


def largest(vector: Vector, k: int) -> Vector:
    """The places of the k largest absolute values, in order.

    The sizes are counted by their first bits, so that only a few have to be compared.
    """
    size = vector.abs().float()
    if k >= len(size):
        return torch.arange(len(size))
    if len(size) < 10_000:
        return torch.topk(size, k).indices.sort().values
    first = (size.view(torch.int32) >> 15).to(torch.int64)
    counts = torch.bincount(first)
    above = counts.flip(0).cumsum(0).flip(0)  # how many are in this bin or a higher one
    border = int((above >= k).nonzero().max())
    over = (first > border).nonzero().view(-1)
    level = (first == border).nonzero().view(-1)
    chosen = level[torch.topk(size[level], k - len(over)).indices]
    return torch.cat([over, chosen]).sort().values
