"""Changes to an upload or a download on its way: rounding, clipping, leaving out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fednag.core.vectors import Vector, Vectors


class Transform:
    """Changes the vectors that one worker sends or is sent.

    Subclasses are ``@dataclass(frozen=True)``; only ``apply`` must be written. Going up, a vector
    that the worker was sent travels as its difference from it: the update is rounded, not the
    model. What has to be remembered (the part that was left out, say) is ``kept``: ``init`` makes
    the first, ``apply`` the next.

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

    def init(self, like: Vectors) -> Vectors:
        """What a worker keeps before its first upload; ``like`` is as long as what it sends."""
        return Vectors()

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        """What travels instead of ``up``, and what is kept; ``rng`` is keyed by round, worker."""
        raise NotImplementedError

    def nbytes(self, up: Vectors) -> int:
        """Bytes on the wire of what ``apply`` gave."""
        return up.nbytes


@dataclass(frozen=True)
class Chain(Transform):
    """Transforms one after the other; without any, nothing is done."""

    parts: tuple[Transform, ...] = ()

    @property
    def exact(self) -> bool:  # type: ignore[override]
        return all(part.exact for part in self.parts)

    def init(self, like: Vectors) -> Vectors:
        named: dict[str, Vector] = {}
        for place, part in enumerate(self.parts):
            named |= {f"{place}.{name}": v for name, v in part.init(like).items()}
        return Vectors(**named)

    def apply(
        self, up: Vectors, kept: Vectors, rng: np.random.Generator
    ) -> tuple[Vectors, Vectors]:
        named: dict[str, Vector] = {}
        for place, part in enumerate(self.parts):
            mark = f"{place}."
            own = {n.removeprefix(mark): v for n, v in kept.items() if n.startswith(mark)}
            up, own_next = part.apply(up, Vectors(**own), rng)
            named |= {f"{mark}{name}": vector for name, vector in own_next.items()}
        return up, Vectors(**named)

    def nbytes(self, up: Vectors) -> int:
        return self.parts[-1].nbytes(up) if self.parts else up.nbytes
