"""What a run asks of its devices: who takes part, how much is computed, what travels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
import torch

from fednag.core.algorithm import (
    BUFFERS,
    Algorithm,
    News,
    Slopes,
    lengths,
    local_round,
    payloads,
)
from fednag.core.keys import Indexes, cohort, generator
from fednag.core.loop import Scheme
from fednag.core.record import RoundFacts
from fednag.core.vectors import Vector, Vectors
from fednag.problems.flops import training_flops
from fednag.simulate.engine import first_state
from fednag.simulate.run import Plan

MOST_LISTED = 20_000  # workers; equal sizes of more are not written one by one
MOST_WORKERS = 10**9  # as experiments have


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


@dataclass(frozen=True)
class Stage:
    """What one participant does in one exchange of a round.

    >>> from fednag.clock import Stage
    >>> Stage(down=80, up=80).gradients
    1
    """

    down: int  # bytes
    up: int
    gradients: int = 1  # of a mini-batch, each local iteration
    full: int = 0  # gradients over all of a worker's data
    asks: bool = False  # no local iterations


@dataclass(frozen=True)
class Tier:
    """Edges of one tier, as far as time is concerned.

    >>> from fednag.clock import Tier
    >>> Tier(groups=((0, 1), (2,)), pi=4, down=80, up=80).pi
    4
    """

    groups: tuple[tuple[int, ...], ...]  # the workers behind each
    pi: int  # rounds of an edge in one of those above
    down: int  # bytes of an edge in one of those above
    up: int


@dataclass(frozen=True, eq=False)
class Workload:
    """A run, as far as time is concerned.

    >>> from fednag.clock import Stage, Workload
    >>> work = Workload(
    ...     tau=5, iterations=12, batch=10, seed=0, sizes=(100, 40), flops=1e6,
    ...     stages=(Stage(down=80, up=80),),
    ... )
    >>> [work.steps(number, 0) for number in (1, 2, 3)], work.iteration_flops(0)
    ([5, 5, 2], 10000000.0)
    """

    tau: int
    iterations: int
    batch: int  # 0: all a worker has
    seed: int
    sizes: tuple[int, ...]  # samples of each worker
    flops: float  # of a gradient, a sample
    stages: tuple[Stage, ...]
    per_round: int | None = None
    pooled: bool = False  # nothing travels
    rounds: Mapping[int, RoundFacts] = field(default_factory=dict)  # those that were not plain
    tiers: tuple[Tier, ...] = ()  # of edges, the workers' first; ``tau`` is that of workers

    @property
    def workers(self) -> int:
        return len(self.sizes)

    @property
    def rows(self) -> int:
        """Workers and edges."""
        return self.workers + sum(len(tier.groups) for tier in self.tiers)

    def edge(self, row: int) -> tuple[int, int]:
        """The tier and the number in it of an edge, by its row after those of workers."""
        row -= self.workers
        for place, tier in enumerate(self.tiers):
            if row < len(tier.groups):
                return place, row
            row -= len(tier.groups)
        raise IndexError(row)

    @property
    def repeats(self) -> int:
        """Rounds of a worker's edge in one of the server."""
        return prod(tier.pi for tier in self.tiers)

    @property
    def down(self) -> int:
        """Bytes one participant gets in a plain round."""
        return self.repeats * sum(stage.down for stage in self.stages)

    @property
    def up(self) -> int:
        """Bytes one participant sends in a plain round."""
        return self.repeats * sum(stage.up for stage in self.stages)

    @property
    def gradients(self) -> int:
        """Gradients of a mini-batch, each local iteration."""
        return self.stages[-1].gradients

    @property
    def full(self) -> int:
        """Gradients over all of a worker's data, each round."""
        return sum(stage.full for stage in self.stages)

    def participants(self, number: int) -> Indexes:
        """The workers of a round: those the run drew, or those its records name."""
        facts = self.rounds.get(number)
        if facts is not None and facts.cohort is not None:
            return np.array(facts.cohort, dtype=np.int64)
        everyone = np.arange(self.workers)
        return cohort(self.seed, number, everyone, self.per_round or self.workers)

    def before(self, number: int) -> int:
        """Iterations of the run before a round."""
        plain = (number - 1) * self.tau
        if not self.rounds or self.tiers:  # of edges, rounds are numbered through
            return plain
        return sum(max(self._steps(earlier), default=0) for earlier in range(1, number))

    def steps(self, number: int, worker: int) -> int:
        """A worker's local iterations in a round; the last one may be shorter."""
        facts = self.rounds.get(number)
        if facts is not None and facts.steps is not None and worker in (facts.cohort or ()):
            return facts.steps[facts.cohort.index(worker)]  # type: ignore[union-attr]
        return max(0, min(self.tau, self.iterations - self.before(number)))

    def _steps(self, number: int) -> list[int]:
        facts = self.rounds.get(number)
        return list(facts.steps) if facts and facts.steps is not None else [self.tau]

    def width(self, worker: int) -> int:
        """Samples of a worker's mini-batch: all it has, if that is less than a batch."""
        size = self.sizes[worker]
        return min(self.batch, size) if self.batch else size

    def iteration_flops(self, worker: int) -> float:
        """Operations of a worker's local iteration."""
        return self.gradients * self.width(worker) * self.flops

    def exchanges(self, number: int, worker: int) -> list[Exchange]:
        """A worker's round, exchange by exchange."""
        steps, facts = self.steps(number, worker), self.rounds.get(number)
        stages, moved = self.stages, [(stage.down, stage.up) for stage in self.stages]
        if facts and facts.stages:
            asking = (Stage(0, 0, 0, 1, asks=True),) * (len(facts.stages) - len(stages))
            stages, moved = (*asking, *stages), list(facts.stages)
        elif facts and len(stages) == 1:
            asked = max(len(self.participants(number)), 1)
            moved = [(facts.down // asked, facts.up // asked)]
        # A round that nobody answered ended early, and it does not say what an answer has.
        return [
            self.exchange(stage, worker, steps, down, up or self._usual(place, stage.up))
            for place, (stage, (down, up)) in enumerate(zip(stages, moved, strict=False))
        ]

    def _usual(self, place: int, otherwise: int) -> int:
        """Bytes of an upload in an exchange, as another round has it."""
        told = (facts.stages for facts in self.rounds.values() if facts.stages)
        return next((s[place][1] for s in told if len(s) > place and s[place][1]), otherwise)

    def exchange(self, stage: Stage, worker: int, steps: int, down: int, up: int) -> Exchange:
        """One exchange of a worker that does so many local iterations."""
        local = () if stage.asks else ((steps, stage.gradients * self.width(worker) * self.flops),)
        return Exchange(down, (*local, *([self._full(worker)] * stage.full)), up)

    def _full(self, worker: int) -> tuple[int, float]:
        """A full gradient, as so many mini-batches."""
        size, width = self.sizes[worker], self.width(worker)
        count = -(-size // width)
        return count, size * self.flops / count

    def facts(self) -> dict[str, Any]:
        """What cannot be told from an experiment file alone, for ``run.json``."""
        stages = [asdict(stage) for stage in self.stages]
        sizes: Any = list(self.sizes)
        if len(sizes) > MOST_LISTED and len(set(sizes)) == 1:
            sizes = {"workers": len(sizes), "each": sizes[0]}
        rest = {"flops": self.flops, "pooled": self.pooled, "sizes": sizes}
        tiers = {"tiers": [asdict(tier) for tier in self.tiers]} if self.tiers else {}
        return {**rest, "stages": stages, **tiers}


def workload_of(plan: Plan, flops: float) -> Workload:
    """The workload of a plan; ``flops`` are those of a gradient, a sample."""
    return Workload(
        tau=plan.edges[0].tau if plan.edges else plan.tau,
        iterations=plan.iterations,
        batch=plan.batch,
        seed=plan.seed,
        sizes=tuple(plan.sizes.tolist()),
        flops=flops,
        stages=_stages(plan),
        per_round=plan.per_round,
        pooled=plan.algorithm.pooled,
        tiers=tiers_of(plan),
    )


def _stages(plan: Plan) -> tuple[Stage, ...]:
    """What a plan asks of a participant; with edges, uploads are as transforms make them."""
    server = first_state(plan.algorithm, plan.problem)
    stages = stages_of(plan.algorithm, server)
    if not plan.edges or not plan.scheme.uplink.parts:
        return stages
    (stage,), (rules,), w = stages, plan.scheme.stages, plan.problem.initial
    sizes = lengths(plan.algorithm, rules, w)
    if BUFFERS in server:
        sizes[BUFFERS] = len(server[BUFFERS])
    like = Vectors(**{name: w.new_zeros(size) for name, size in sizes.items()})
    return (replace(stage, up=uploaded(plan.scheme, like)),)


def tiers_of(plan: Plan) -> tuple[Tier, ...]:
    """What the edges of a plan ask of their links."""
    method, server = plan.algorithm, first_state(plan.algorithm, plan.problem)
    rules = server.without(BUFFERS)
    buffers = [BUFFERS] * (BUFFERS in server)
    down = server.pick([*method.down, *method.between, *buffers])
    up = method.edge_end(rules, rules, News()).but(**server.pick(buffers))
    return tuple(
        Tier(
            tuple(tuple(members.tolist()) for members in edges.groups),
            edges.pi,
            down.nbytes,
            uploaded(plan.scheme, up),
        )
        for edges in plan.edges
    )


def uploaded(scheme: Scheme, like: Vectors, rules: Algorithm | None = None) -> int:
    """Bytes of an upload: those of the transforms, tried on vectors of the same lengths."""
    uplink = scheme.uplink.of(rules or scheme.algorithm)
    if not uplink.parts:
        return like.nbytes
    tried = like.map(lambda vector: torch.linspace(-1, 1, len(vector), dtype=vector.dtype))
    wire, _ = uplink.apply(tried, uplink.init(tried), generator(0, 0))
    return wire.nbytes


def workload_facts(plan: Plan) -> dict[str, Any] | None:
    """What ``run.json`` keeps for replays; None for a model whose operations cannot be counted."""
    flops = training_flops(plan.problem.module, plan.problem.features(plan.problem.x[:2]))
    return None if flops is None else workload_of(plan, flops).facts()


def stages_of(algorithm: Algorithm, server: Vectors) -> tuple[Stage, ...]:
    """What a method asks of a participant, stage by stage."""
    return tuple(
        Stage(down, up, *gradients_of(algorithm, stage), asks=stage.asks)
        for stage, (down, up) in zip(algorithm.stages, payloads(algorithm, server), strict=True)
    )


def gradients_of(algorithm: Algorithm, stage: Algorithm | None = None) -> tuple[int, int]:
    """Gradients a local iteration takes, and full ones an exchange: seen on four numbers."""
    counts = {"batch": 0, "full": 0}
    stage = stage or algorithm

    def counting(kind: str) -> Any:
        def gradient(w: Vector) -> Vector:
            counts[kind] += 1
            return torch.zeros_like(w)

        return gradient

    w = torch.zeros(4, dtype=torch.float64)
    try:
        rows = algorithm.init(w).pick(stage.down).map(lambda vector: vector.repeat(1, 1))
        mine: Vectors = algorithm.memory(w).map(lambda vector: vector.repeat(1, 1))
        local_round(stage, rows, mine, [counting("batch")], Slopes(counting("full")))
    except Exception:
        return 1, 0  # a rule of the user's own that cannot be tried out so; it may still train
    return (0 if stage.asks else max(1, counts["batch"])), counts["full"]


def from_facts(
    facts: Mapping[str, Any],
    *,
    tau: int,
    iterations: int,
    batch: int,
    seed: int,
    per_round: int | None,
    rounds: Iterable[RoundFacts] = (),
) -> Workload:
    """A workload from what ``facts`` once wrote; ValueError if it is something else."""
    given = facts["sizes"]
    sizes: Sequence[Any] = given
    if isinstance(given, dict):
        count, each = given["workers"], given["each"]
        if type(count) is not int or not 0 < count <= MOST_WORKERS:
            raise ValueError("a number of `work` is not one")
        sizes = (each,) * count
    flops = facts["flops"]
    stages = [Stage(**stage) for stage in facts["stages"]] if "stages" in facts else _old(facts)
    numbers = [n for s in stages for n in (s.down, s.up, s.gradients, s.full)]
    tiers = tuple(
        Tier(tuple(map(tuple, tier["groups"])), tier["pi"], tier["down"], tier["up"])
        for tier in facts.get("tiers", ())
    )
    numbers += [n for t in tiers for n in (t.pi, t.down, t.up, *sum(t.groups, ()))]
    if not sizes or not stages or any(type(n) is not int or n < 0 for n in [*numbers, *sizes]):
        raise ValueError("a number of `work` is not one")
    if min(sizes) < 1 or type(flops) not in (int, float) or not flops > 0:
        raise ValueError("a number of `work` is not above 0")
    return Workload(
        tau=tau,
        iterations=iterations,
        batch=batch,
        seed=seed,
        sizes=tuple(sizes),
        flops=float(flops),
        stages=tuple(stages),
        per_round=per_round,
        pooled=bool(facts["pooled"]),
        rounds={facts.round: facts for facts in rounds},
        tiers=tiers,
    )


def _old(facts: Mapping[str, Any]) -> list[Stage]:
    """The stages of a run of version 0.1.0, which wrote down the sums of at most two."""
    down, up, vector = (facts[name] for name in ("down", "up", "vector"))
    proper = facts["gradients"], facts["full"]
    if not facts["probes"]:
        return [Stage(down, up, *proper)]
    first = Stage(vector, vector, 0, 1, asks=True)
    return [first, Stage(down - vector, up - vector, *proper)]
