"""What a run asks of its devices: who takes part, how much is computed, what travels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fednag.core.algorithm import Algorithm, local_round, payload
from fednag.core.vectors import Vector, Vectors
from fednag.simulate.engine import first_state
from fednag.simulate.run import Plan
from fednag.simulate.schedule import Indexes, Schedule


@dataclass(frozen=True)
class Exchange:
    """A download, some computing and an upload, by one worker; all wait for the slowest.

    >>> from fednag.clock import Exchange
    >>> one = Exchange(down=1000, compute=((5, 1e6),), up=1000)
    >>> sum(count * flops for count, flops in one.compute)
    5000000.0
    """

    down: int  # bytes
    compute: tuple[tuple[int, float], ...]  # (iterations, operations of each)
    up: int  # bytes


@dataclass(frozen=True, eq=False)
class Workload:
    """A run, as far as time is concerned.

    >>> from fednag.clock import Workload
    >>> work = Workload(
    ...     tau=5, iterations=12, batch=10, seed=0, sizes=(100, 40),
    ...     flops=1e6, down=80, up=80, vector=80,
    ... )
    >>> [work.steps(number) for number in (1, 2, 3)], work.iteration_flops(0)
    ([5, 5, 2], 10000000.0)
    """

    tau: int
    iterations: int
    batch: int  # 0: all a worker has
    seed: int
    sizes: tuple[int, ...]  # samples of each worker
    flops: float  # of a gradient, a sample
    down: int  # bytes one participant gets in a round
    up: int
    vector: int  # bytes of the model
    per_round: int | None = None
    gradients: int = 1  # of a mini-batch, each local iteration
    full: int = 0  # gradients over all of a worker's data, each round
    probes: bool = False  # a full gradient at the server's model comes first
    pooled: bool = False  # nothing travels
    _schedule: Schedule = field(init=False, repr=False)

    def __post_init__(self) -> None:
        schedule = Schedule(self.seed, self.sizes, self.batch, self.per_round)
        object.__setattr__(self, "_schedule", schedule)

    @property
    def workers(self) -> int:
        return len(self.sizes)

    def participants(self, number: int) -> Indexes:
        """The workers of a round: those the run drew."""
        return self._schedule.participants(number)

    def steps(self, number: int) -> int:
        """Local iterations of a round; the last one may be shorter."""
        return max(0, min(self.tau, self.iterations - (number - 1) * self.tau))

    def width(self, worker: int) -> int:
        """Samples of a worker's mini-batch: all it has, if that is less than a batch."""
        size = self.sizes[worker]
        return min(self.batch, size) if self.batch else size

    def iteration_flops(self, worker: int) -> float:
        """Operations of a worker's local iteration."""
        return self.gradients * self.width(worker) * self.flops

    def exchanges(self, worker: int, steps: int) -> list[Exchange]:
        """A worker's round: one exchange, or two where full gradients are asked for first."""
        local = (steps, self.iteration_flops(worker))
        full = self._full(worker)
        proper = (local, *([full] * self.full))
        if not self.probes:
            return [Exchange(self.down, proper, self.up)]
        probe = Exchange(self.vector, (full,), self.vector)
        return [probe, Exchange(self.down - self.vector, proper, self.up - self.vector)]

    def _full(self, worker: int) -> tuple[int, float]:
        """A full gradient, as so many mini-batches."""
        size, width = self.sizes[worker], self.width(worker)
        count = -(-size // width)
        return count, size * self.flops / count

    def facts(self) -> dict[str, Any]:
        """What cannot be told from an experiment file alone, for ``run.json``."""
        names = ("flops", "down", "up", "vector", "gradients", "full", "probes", "pooled")
        return {name: getattr(self, name) for name in names} | {"sizes": list(self.sizes)}


def workload_of(plan: Plan, flops: float) -> Workload:
    """The workload of a plan; ``flops`` are those of a gradient, a sample."""
    algorithm = plan.algorithm
    down, up = payload(algorithm, first_state(algorithm, plan.problem))
    gradients, full = gradients_of(algorithm)
    return Workload(
        tau=plan.tau,
        iterations=plan.iterations,
        batch=plan.batch,
        seed=plan.seed,
        sizes=tuple(len(held) for held in plan.owned),
        flops=flops,
        down=down,
        up=up,
        vector=plan.problem.initial.nbytes,
        per_round=plan.per_round,
        gradients=gradients,
        full=full,
        probes=algorithm.probes,
        pooled=algorithm.pooled,
    )


def gradients_of(algorithm: Algorithm) -> tuple[int, int]:
    """Gradients a local iteration takes, and full ones a round ends with: seen on four numbers."""
    counts = {"batch": 0, "full": 0}

    def counting(kind: str) -> Any:
        def gradient(w: Vector) -> Vector:
            counts[kind] += 1
            return torch.zeros_like(w)

        return gradient

    w = torch.zeros(4, dtype=torch.float64)
    try:
        server = algorithm.init(w)
        if algorithm.probes:
            server = algorithm.probed(server, torch.zeros_like(w))
        mine: Vectors = algorithm.memory(w).map(lambda vector: vector.repeat(1, 1))
        sent = server.pick(algorithm.down)
        local_round(algorithm, sent, mine, [counting("batch")], counting("full"))
    except Exception:
        return 1, 0  # a rule of the user's own that cannot be tried out so; it may still train
    return max(1, counts["batch"]), counts["full"]


def from_facts(
    facts: Mapping[str, Any],
    *,
    tau: int,
    iterations: int,
    batch: int,
    seed: int,
    per_round: int | None,
) -> Workload:
    """A workload from what ``facts`` once wrote; ValueError if it is something else."""
    whole = {name: facts[name] for name in ("down", "up", "vector", "gradients", "full")}
    sizes: Sequence[Any] = facts["sizes"]
    flops = facts["flops"]
    if not sizes or any(type(n) is not int or n < 0 for n in [*whole.values(), *sizes]):
        raise ValueError("a number of `work` is not one")
    if min(sizes) < 1 or type(flops) not in (int, float) or not flops > 0:
        raise ValueError("a number of `work` is not above 0")
    flags = {name: bool(facts[name]) for name in ("probes", "pooled")}
    return Workload(
        tau=tau,
        iterations=iterations,
        batch=batch,
        seed=seed,
        sizes=tuple(sizes),
        flops=float(flops),
        per_round=per_round,
        **whole,
        **flags,
    )
