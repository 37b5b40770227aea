"""Workers that lie, to see in the simulator what an aggregator withstands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Gt, Le
from torch import Tensor

from fednag.core.keys import ATTACKERS, generator
from fednag.core.vectors import Vectors
from fednag.errors import FednagError

Share = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """What some workers send in place of their updates, or train on in place of their labels.

    Subclasses are ``@dataclass(frozen=True)``, and write ``forge`` or ``labels``. Attackers are the
    workers named, or else a ``share`` of all, drawn by the seed: the same for every attack of that
    share. They train as others do, and forge before transforms act; what is an update of a vector
    that was sent is its difference from that.

    >>> from dataclasses import dataclass
    >>> import torch
    >>> from fednag import Attack, Vectors
    >>> @dataclass(frozen=True)
    ... class Zero(Attack):
    ...     def forge(self, update, others, rng):
    ...         return update.map(torch.zeros_like)
    >>> Zero(workers=(0,)).forge(Vectors(w=torch.ones(2)), Vectors(), None).w
    tensor([0., 0.])
    """

    share: Share = 0.2
    workers: tuple[Annotated[int, Ge(0)], ...] = ()

    sees: ClassVar[bool] = False
    """It needs the updates of the exchange's honest workers; otherwise it is not given them."""

    def forge(self, update: Vectors, others: Vectors, rng: np.random.Generator) -> Vectors:
        """What travels in place of ``update``, (d,) each; ``others`` are the honest, (n, d)."""
        return update

    def labels(self, y: Tensor, classes: int) -> Tensor:
        """What attackers train on in place of the labels ``y``, from 0 to ``classes`` - 1."""
        return y

    @property
    def flips(self) -> bool:
        return type(self).labels is not Attack.labels

    def attackers(self, seed: int, workers: int) -> tuple[int, ...]:
        """Who attacks, of so many workers."""
        if self.workers:
            return self.workers
        drawn = generator(seed, ATTACKERS).permutation(workers)
        return tuple(sorted(drawn[: max(1, round(self.share * workers))].tolist()))


Forged = dict[int, list[tuple[int, Attack]]]
"""The attacks of each attacker, with their places in the experiment."""


def attackers(attacks: Sequence[Attack], seed: int, workers: int) -> Forged:
    """Who attacks how; an attacker's attacks follow one another."""
    found: Forged = {}
    for place, attack in enumerate(attacks):
        for worker in attack.attackers(seed, workers):
            if worker >= workers:
                raise FednagError(
                    f"attack.{place}.workers",
                    f"there is no worker {worker}",
                    f"name some of 0 to {workers - 1}",
                )
            found.setdefault(worker, []).append((place, attack))
    return found
