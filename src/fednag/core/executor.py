"""Runs the worker side of a round, on local threads or on remote machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednag.core.aggregator import Aggregator, Total
from fednag.core.algorithm import Algorithm
from fednag.core.keys import Indexes
from fednag.core.vectors import Vectors

Memories = Mapping[int, Vectors]
"""What workers keep between rounds; a worker without an entry has its first memory."""

Residues = Mapping[tuple[int, int], Vectors]
"""What transforms keep of a worker's uploads: (worker, stage) -> vectors."""


Tiers = tuple[tuple[int, int], ...]
"""Bytes (down, up) of each tier, that of workers and their edges first; () without edges."""


@dataclass(frozen=True, eq=False)
class Exchange:
    """A task for several workers, who are all sent the same vectors."""

    stage: Algorithm
    place: int  # of the stage in its round
    numbers: Mapping[str, float]  # of the stage that differ in this round
    round: int
    sent: Vectors
    workers: Indexes
    steps: Indexes  # of each of them
    starts: Indexes  # iterations each has done before
    staleness: int = 0
    as_differences: bool = False  # points come up as differences from what was sent
    base: Vectors | None = None  # and then count as differences from these; None: from that too
    wire: Vectors | None = None  # what was sent as it travels, where a transform changed it
    aggregator: Aggregator | None = None  # as it is in this exchange; None: the scheme's
    weight: float = 0.0  # the weight of all who were asked; 0: of its workers
    receipts: bool = False  # answers are to say what travelled

    @property
    def rules(self) -> Algorithm:
        """The stage with the round's numbers."""
        return replace(self.stage, **self.numbers) if self.numbers else self.stage  # type: ignore[type-var]

    def among(self, chosen: NDArray[np.bool_] | slice) -> Exchange:
        """The same for some of its workers."""
        return replace(
            self,
            workers=self.workers[chosen],
            steps=self.steps[chosen],
            starts=self.starts[chosen],
        )


@dataclass(frozen=True)
class Receipt:
    """What a worker sent in an exchange."""

    up: str | None  # the digest of its upload as it travelled; None without one
    samples: int
    signature: str | None = None  # its own, where it has a key


@dataclass(frozen=True, eq=False)
class Answers:
    """The workers' answers to an exchange, aggregated.

    Updates that cannot be used would spoil everyone's, so they are left out.
    """

    total: Total | None = None  # of the updates that can be used, None without any
    size: int = 0  # samples of the workers in it
    memories: Memories = field(default_factory=dict)
    residues: Residues = field(default_factory=dict)
    told: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    steps: Mapping[int, int] = field(default_factory=dict)  # done, where not those asked for
    refused: tuple[int, ...] = ()  # whose updates cannot be used
    missed: tuple[int, ...] = ()  # who did not answer
    down: int = 0  # bytes
    up: int = 0
    receipts: Mapping[int, Receipt] = field(default_factory=dict)  # if the exchange asks for them
    tiers: Tiers = ()  # bytes by tier, where there are edges


def joined(aggregator: Aggregator, a: Answers, b: Answers) -> Answers:
    """The answers of two groups of workers as those of all of them."""
    totals = [total for total in (a.total, b.total) if total is not None]
    both = aggregator.merge(*totals) if len(totals) == 2 else None
    return Answers(
        total=both or (totals[0] if totals else None),
        size=a.size + b.size,
        memories={**a.memories, **b.memories},
        residues={**a.residues, **b.residues},
        told={**a.told, **b.told},
        steps={**a.steps, **b.steps},
        refused=a.refused + b.refused,
        missed=a.missed + b.missed,
        down=a.down + b.down,
        up=a.up + b.up,
        receipts={**a.receipts, **b.receipts},
        tiers=added(a.tiers, b.tiers),
    )


def added(a: Tiers, b: Tiers) -> Tiers:
    """Bytes of two exchanges, tier by tier; one without any leaves the other's."""
    if not a or not b:
        return a or b
    return tuple((d + down, u + up) for (d, u), (down, up) in zip(a, b, strict=True))


def screened(aggregator: Aggregator, answers: Answers, sizes: Indexes) -> Answers:
    """The answers without the updates that the aggregator refuses."""
    if answers.total is None:
        return answers
    total, whose = aggregator.screen(answers.total)
    if not whose:
        return answers if total is answers.total else replace(answers, total=total)
    return replace(
        answers,
        total=total,
        size=answers.size - sum(int(sizes[worker]) for worker in whose),
        memories={w: kept for w, kept in answers.memories.items() if w not in whose},
        residues={k: left for k, left in answers.residues.items() if k[0] not in whose},
        refused=(*answers.refused, *whose),
    )


class Executor:
    """Runs the worker side of exchanges. Without a clock, everyone answers at once."""

    held: int
    """Samples of all workers."""
    keys: Mapping[int, str] = MappingProxyType({})
    """The public keys of workers who sign what they send."""
    between: tuple[str, ...] = ()
    """Vectors that are sent beside a stage's own, to those between server and workers."""
    counts_downloads: bool = False
    """Its answers say how many bytes went down; otherwise everyone reached is sent all of it."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        """Have the workers do their task, and aggregate what they return."""
        raise NotImplementedError

    def reachable(self, workers: Indexes, now: float) -> NDArray[np.bool_]:
        """Which of these workers can be sent something now."""
        return np.ones(len(workers), dtype=bool)

    def arrivals(self, asked: Exchange, now: float) -> NDArray[np.float64]:
        """When each worker's answer arrives, in seconds on the run's clock."""
        return np.full(len(asked.workers), now)

    def aggregation(self, asked: Exchange) -> float:
        """Seconds the server takes to aggregate the answers."""
        return 0.0

    def idle(self, workers: Indexes, now: float, deadline: float) -> float:
        """When the server gives up a round in which no worker can be reached."""
        return now
