"""The state of a run between two rounds: all that is needed to go on from there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fednag.core.algorithm import News
from fednag.core.ending import Ending
from fednag.core.executor import Memories, Residues, Tiers
from fednag.core.keys import Indexes
from fednag.core.record import Record, RoundFacts
from fednag.core.vectors import Vector, Vectors


@dataclass(frozen=True, eq=False)
class Best:
    """w^f: the aggregated model of least global loss among those evaluated."""

    w: Vector
    loss: float
    iteration: int
    buffers: Vector | None = None  # where the model has some that training changes


@dataclass(frozen=True, eq=False)
class Flight:
    """A worker's task that was sent out and is not answered yet."""

    worker: int
    round: int  # in which it was sent
    steps: int
    start: int  # iterations the worker had done before
    arrival: float  # seconds on the run's clock
    sent: Vectors
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class State:
    """The state of a run after a round. The next round makes a new one, and never changes it."""

    server: Vectors
    starts: Indexes  # iterations each worker has done
    memories: Memories = field(default_factory=dict)
    residues: Residues = field(default_factory=dict)
    control: dict[str, Any] = field(default_factory=dict)  # what the controller remembers
    flying: tuple[Flight, ...] = ()
    news: News = field(default_factory=News)
    round: int = 0
    iteration: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    tiers: Tiers = ()  # the same by tier, where there are edges
    seconds: float = 0.0
    first_loss: float = float("inf")
    participants: int = 0  # workers who answered in this round
    refusals: int = 0
    refused: tuple[int, ...] = ()  # since the last record
    clock: float = 0.0  # simulated seconds; they pass only where an executor has a clock
    misses: int = 0
    missed: tuple[int, ...] = ()  # since the last record
    rounds: tuple[RoundFacts, ...] = ()  # since the last record, those that were not plain
    entries: tuple[Mapping[str, Any], ...] = ()  # of this round, for a ledger
    watched: float | None = None  # the best value of what patience watches
    waited: int = 0  # evaluations since then
    seen: tuple[float, ...] = ()  # the last values of what a plateau is looked for in
    dearest: int = 0  # most bytes of a round so far
    best: Best | None = None
    record: Record | None = None  # of this round, if it was evaluated
    ended: Ending | None = None  # why the run is over
    diverged: bool = False
