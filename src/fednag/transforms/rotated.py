"""A random rotation, then a few bits a number: DRIVE and EDEN."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le

from fednag.core.transform import Transform, compressible
from fednag.core.vectors import Vector, Vectors
from fednag.transforms.packing import pack, unpack
from fednag.transforms.quantise import SCALE

LEAST = 64  # numbers of a block: a rotation of fewer hides too little
MOST = 1 << 16  # of more would be slow: this many stay in a core's cache from step to step
FEW = 31  # borders: with more, searching is faster than comparing with each
RADIX = 64  # of the Hadamard transform: products with small matrices beat passes of sums


@dataclass(frozen=True)
class Eden(Transform):
    """Rotates a vector at random, and rounds every number to the nearest of 2^bits centroids::

        send c(z) and S,   z = R x sqrt(d) / ||x||,   S = ||x||^2 / <R x, c(z)>
        take x' = S R^T c(z)

    Vargaftik et al., "EDEN" (2022). c rounds to the centroids that are best for a normal
    distribution (Lloyd-Max), which is what a rotated vector's numbers have. R is random signs, then
    a Hadamard transform; both sides draw the same signs, and nothing of them travels. S is such
    that <x', x> = ||x||^2: with a uniformly random rotation the mean of x' is x. With the Hadamard
    transform that holds up to an error that vanishes as vectors grow, as the paper says.

    Vectors are cut into blocks whose lengths are powers of two, from 64 to 65536, the last one
    filled with zeros; each has an S of 32 bits. (The paper rotates the whole vector, filled up to
    a power of two.)

    >>> import numpy as np, torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import Eden
    >>> x, code = Vectors(w=torch.linspace(-1, 1, 256)), Eden(bits=4)
    >>> wire, _ = code.apply(x, Vectors(), np.random.default_rng(0))
    >>> found = code.decode(wire, x, np.random.default_rng(0))
    >>> wire.nbytes, bool((found.w - x.w).norm() < 0.15 * x.w.norm())
    (132, True)
    """

    bits: Annotated[int, Ge(1), Le(8)] = 4
    vectors: tuple[str, ...] = ()

    compresses = True

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        names = compressible(up, self.vectors)
        wire: dict[str, Vector] = {}
        for name, vector in up.items():
            if name not in names:
                wire[name] = vector
                continue
            codes, scales = [], []
            for block, sign in _blocks(vector, rng):
                rotated = hadamard(block * sign)
                length = torch.linalg.vector_norm(block, dtype=torch.float64)
                code = self._nearest(rotated, len(block) ** 0.5 / length)
                inner = (rotated * self._centroids(code, rotated.dtype)).sum(dtype=torch.float64)
                scales.append(torch.where(length > 0, length.square() / inner, 0.0))
                codes.append(code)
            wire[name] = pack(torch.cat(codes), self.bits)
            wire[name + SCALE] = torch.stack(scales).float()
        return Vectors(**wire), kept

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        found = {}
        for name, vector in like.items():
            if name + SCALE not in wire or name + SCALE in like:
                found[name] = wire[name]
                continue
            sizes = block_sizes(len(vector))
            codes = torch.split(unpack(wire[name], self.bits, sum(sizes)), sizes)
            numbers = []
            for code, scale in zip(codes, wire[name + SCALE], strict=True):
                centroids = self._centroids(code, vector.dtype)
                back = hadamard(centroids) * _signs(len(code), rng).to(vector.dtype)
                numbers.append(back * scale.to(vector.dtype))
            found[name] = torch.cat(numbers)[: len(vector)]
        return Vectors(**found)

    def _nearest(self, rotated: Vector, factor: Vector) -> Vector:
        """The number of each one's centroid, the numbers times ``factor`` being standard normal."""
        middles = [(a + b) / 2 for a, b in pairwise(normal_centroids(self.bits))]
        borders = (torch.tensor(middles, dtype=torch.float64) / factor).to(rotated.dtype)
        if len(borders) > FEW:
            return torch.bucketize(rotated, borders, out_int32=True).to(torch.uint8)
        code = torch.zeros(len(rotated), dtype=torch.uint8)
        for border in borders:
            code += rotated > border
        return code

    def _centroids(self, code: Vector, dtype: torch.dtype) -> Vector:
        return torch.tensor(normal_centroids(self.bits), dtype=dtype)[code.int()]


@dataclass(frozen=True)
class Drive(Eden):
    """Rotates a vector at random, and sends signs::

        send sign(R x) and S = ||x||^2 / ||R x||_1,   take x' = S R^T sign(R x)

    Vargaftik et al., "DRIVE" (2021), with the scale whose mean is x. One bit a number; R, blocks
    and what is said of the mean as in eden, whose case of one bit this is.

    >>> import numpy as np, torch
    >>> from fednag import Vectors
    >>> from fednag.transforms import Drive
    >>> x = Vectors(w=torch.linspace(-1, 1, 256))
    >>> wire, _ = Drive().apply(x, Vectors(), np.random.default_rng(0))
    >>> found = Drive().decode(wire, x, np.random.default_rng(0))
    >>> wire.nbytes, round(float((found.w @ x.w) / (x.w @ x.w)), 4)
    (36, 1.0)
    """

    bits: Annotated[int, Ge(1), Le(1)] = 1

    def _nearest(self, rotated: Vector, factor: Vector) -> Vector:
        return (rotated > 0).to(torch.uint8)

    def _centroids(self, code: Vector, dtype: torch.dtype) -> Vector:
        return code.to(dtype) * 2 - 1


def block_sizes(size: int) -> list[int]:
    """Powers of two up to MOST that make up ``size``, or up to LEAST more.

    >>> block_sizes(140_000)
    [65536, 65536, 8192, 512, 256]
    """
    full, rest = divmod(-(-size // LEAST), MOST // LEAST)
    places = [place for place in reversed(range(rest.bit_length())) if rest >> place & 1]
    return [MOST] * full + [LEAST << place for place in places]


def hadamard(vector: Vector) -> Vector:
    """The Walsh-Hadamard transform of 2^n numbers, which is its own inverse.

    >>> import torch
    >>> hadamard(torch.tensor([1.0, 0.0, 0.0, 0.0]))
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    done = 1
    while done < len(vector):
        radix = min(RADIX, len(vector) // done)
        rows = _matrix(radix, vector.dtype)
        if done == 1:
            vector = (vector.view(-1, radix) @ rows).view(-1)
        else:
            vector = torch.matmul(rows, vector.view(-1, radix, done)).view(-1)
        done *= radix
    return vector


@lru_cache(maxsize=32)
def _matrix(size: int, dtype: torch.dtype) -> Vector:
    rows = torch.ones(1, 1, dtype=dtype)
    while len(rows) < size:
        rows = torch.cat([torch.cat([rows, rows], 1), torch.cat([rows, -rows], 1)]) * 0.5**0.5
    return rows


def _signs(size: int, rng: np.random.Generator) -> Vector:
    drawn = np.frombuffer(rng.bytes(size // 8), np.uint8)
    return torch.from_numpy(np.unpackbits(drawn)).to(torch.int8) * 2 - 1


def _blocks(vector: Vector, rng: np.random.Generator) -> list[tuple[Vector, Vector]]:
    """A vector's blocks, and the signs drawn for each."""
    sizes = block_sizes(len(vector))
    filled = torch.nn.functional.pad(vector, (0, sum(sizes) - len(vector)))
    return [(block, _signs(len(block), rng)) for block in torch.split(filled, sizes)]


@lru_cache(maxsize=8)
def normal_centroids(bits: int) -> tuple[float, ...]:
    """2^bits numbers, to the nearest of which a standard normal one is rounded with least error.

    Lloyd's algorithm: each is the mean of what is rounded to it.

    >>> [round(c, 4) for c in normal_centroids(2)]
    [-1.5104, -0.4528, 0.4528, 1.5104]
    """
    count = 2**bits
    rank = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    found = (6**0.5) * torch.erfinv(2 * rank - 1)  # close to it where there are many
    edge = torch.tensor([torch.inf], dtype=torch.float64)
    for _ in range(20_000):
        borders = torch.cat([-edge, (found[1:] + found[:-1]) / 2, edge])
        density = torch.exp(-borders.square() / 2) / (2 * torch.pi) ** 0.5
        below = torch.special.ndtr(borders)
        mean = (density[:-1] - density[1:]) / (below[1:] - below[:-1])
        mean = (mean - mean.flip(0)) / 2  # symmetric to the bit
        close = bool((mean - found).abs().max() < 1e-9)
        found = mean
        if close:
            break
    return tuple(found.tolist())
