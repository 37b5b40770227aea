"""Changes to an upload or a download on its way: rounding, clipping, leaving out.

What travels is a bag of flat tensors of any type, ``Vectors`` too: its bytes are the bytes of the
message. The receiver decodes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch

from fednag.core.algorithm import BUFFERS, Algorithm
from fednag.core.vectors import Vector, Vectors
from fednag.errors import FednagError, within


class Transform:
    """Changes the vectors that one worker sends or is sent.

    Subclasses are ``@dataclass(frozen=True)``; only ``apply`` must be written. Going up, a vector
    that the worker was sent travels as its difference from it: the update is rounded, not the
    model. What has to be remembered (the part that was left out, say) is ``kept``: ``init`` makes
    the first, ``apply`` the next. Where what travels is not the vectors themselves, ``decode``
    makes vectors of it again.

    >>> from dataclasses import dataclass
    >>> import torch
    >>> from fednag import Transform, Vectors
    >>> @dataclass(frozen=True)
    ... class Sign(Transform):
    ...     def apply(self, up, kept, rng):
    ...         return up.map(torch.sign), kept
    >>> Sign().apply(Vectors(w=torch.tensor([0.5, -3.0])), Vectors(), None)[0].w
    tensor([ 1., -1.])
    """

    exact: ClassVar[bool] = False
    """It changes no bit."""
    variable: ClassVar[bool] = False
    """How long a message is depends on its numbers, and not on their count alone."""
    compresses: ClassVar[bool] = False
    """It is there to save bytes; uploads of a method that are to travel ``whole`` go without it."""

    def init(self, like: Vectors) -> Vectors:
        """What a worker keeps before its first upload; ``like`` is as long as what it sends."""
        return Vectors()

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        """What travels instead of ``up``, and what is kept; ``rng`` is keyed by round, worker."""
        raise NotImplementedError

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        """The vectors a receiver makes of what travelled.

        ``like`` has the names, lengths and types of what ``apply`` was given; ``rng`` draws the
        same numbers again.
        """
        return wire.map_named(lambda name, vector: vector.to(like[name].dtype))

    def settle(self, kept: Vectors, gone: Vectors, arrived: Vectors) -> Vectors:
        """What is kept, once it is known what the receiver makes of what ``apply`` gave."""
        return kept


class Omitted(Transform):
    """Stands in a chain for a transform that is left out, and hands on what that one keeps."""

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        return up, kept


OMITTED = Omitted()


@dataclass(frozen=True)
class Chain(Transform):
    """Transforms one after the other; without any, nothing is done."""

    parts: tuple[Transform, ...] = ()

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return all(part.exact for part in self.parts)

    @property
    def variable(self) -> bool:  # type: ignore[override]
        return any(part.variable for part in self.parts)

    @property
    def remembers(self) -> bool:
        """Something is kept from one upload to the next."""
        return bool(self.init(Vectors(w=torch.zeros(16))))

    def of(self, algorithm: Algorithm) -> Chain:
        """The chain for uploads of these rules: without what compresses, if they go whole."""
        if not algorithm.whole:
            return self
        return Chain(tuple(OMITTED if part.compresses else part for part in self.parts))

    def init(self, like: Vectors) -> Vectors:
        named: dict[str, Vector] = {}
        for place, part in enumerate(self.parts):
            named |= {f"{place}.{name}": v for name, v in part.init(like).items()}
        return Vectors(**named)

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        wire, _, kept = self.carry(up, kept, rng)
        return wire, kept

    def decode(self, wire: Vectors, like: Vectors, rng: np.random.Generator) -> Vectors:
        given = self.layouts(like)[:-1]
        return self._decoded(wire, given, _seeds(rng, len(self.parts)))[0]

    def carry(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors, Vectors]:
        """What travels instead of ``up``, what the receiver makes of it, and what is kept."""
        seeds = _seeds(rng, len(self.parts))
        given, own = [up], []
        for place, part in enumerate(self.parts):
            mark = f"{place}."
            mine = {n.removeprefix(mark): v for n, v in kept.items() if n.startswith(mark)}
            gone, after = part.apply(
                given[-1], Vectors(**mine), np.random.default_rng(seeds[place])
            )
            given.append(gone)
            own.append(after)
        arrived = self._decoded(given[-1], given[:-1], seeds)
        named: dict[str, Vector] = {}
        for place, part in enumerate(self.parts):
            after = part.settle(own[place], given[place + 1], arrived[place + 1])
            named |= {f"{place}.{name}": vector for name, vector in after.items()}
        return given[-1], arrived[0], Vectors(**named)

    def check(self, like: Vectors, section: str, own: int = 0) -> None:
        """Raise what a part says of vectors like these, with its place in the ``section``.

        The first ``own`` parts are the method's, and not in it.
        """
        try:
            self.layouts(like)
        except FednagError:
            for place in range(own, len(self.parts)):
                with within(field=f"{section}.{place - own}"):
                    Chain(self.parts[: place + 1]).layouts(like)
            raise

    def layouts(self, like: Vectors) -> list[Vectors]:
        """Names, lengths and types of ``like`` after none of the parts, the first, and so on."""
        return _layouts(self, tuple((n, len(v), v.dtype) for n, v in like.items()))

    def _decoded(
        self, wire: Vectors, given: Sequence[Vectors], seeds: list[np.random.SeedSequence]
    ) -> list[Vectors]:
        """What the receiver has of the first part's input, of the second's, ..., of the wire."""
        found = [wire]
        for place in reversed(range(len(self.parts))):
            rng = np.random.default_rng(seeds[place])
            found.insert(0, self.parts[place].decode(found[0], given[place], rng))
        return found


@lru_cache(maxsize=64)
def _layouts(chain: Chain, like: tuple[tuple[str, int, torch.dtype], ...]) -> list[Vectors]:
    # Zeros are tried: how long a message is does not depend on its numbers, or is told by itself.
    vectors = Vectors(**{name: torch.zeros(size, dtype=dtype) for name, size, dtype in like})
    found, rng = [vectors], np.random.default_rng(0)
    for part in chain.parts:
        gone, _ = part.apply(found[-1], part.init(vectors), rng)
        found.append(gone)
    return [bag.map(lambda v: torch.zeros(1, dtype=v.dtype).expand(len(v))) for bag in found]


def _seeds(rng: np.random.Generator, parts: int) -> list[np.random.SeedSequence]:
    """A stream for each part, so that one part's draws do not depend on another's."""
    return rng.bit_generator.seed_seq.spawn(parts)  # type: ignore[attr-defined, no-any-return]


def compressible(up: Vectors, vectors: Sequence[str] = ()) -> list[str]:
    """The names of what a lossy transform works on: these vectors, or all that have real numbers.

    Single numbers, a model's running statistics, and what goes with a vector that is encoded
    already (``w.scale``) travel as they are.
    """
    if missing := [name for name in vectors if name not in up]:
        raise FednagError(
            "vectors", f"no {', '.join(missing)} travels here, only {', '.join(up) or 'nothing'}"
        )
    named = [n for n in up if n != BUFFERS and "." not in n and (not vectors or n in vectors)]
    found = [n for n in named if up[n].is_floating_point() and len(up[n]) > 1]
    if not found and any(not up[n].is_floating_point() for n in named):
        raise FednagError(
            "", "everything is encoded already by a transform before it", "put this one earlier"
        )
    return found
