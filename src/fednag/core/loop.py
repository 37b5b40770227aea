"""A round of training, written once, over the five parts it is made of.

The controller decides who does how much, the executor has the workers do it, transforms change what
travels, the aggregator combines the answers, and the algorithm says what workers and server do.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, cast

import numpy as np
import torch

from fednag.core.aggregator import Aggregator, Total
from fednag.core.algorithm import BUFFERS, Algorithm, News, lengths, server_round
from fednag.core.attack import Attack
from fednag.core.controller import Controller, Order, Schedule, Setting, steps_of, without
from fednag.core.disk import updated
from fednag.core.executor import (
    Answers,
    Exchange,
    Executor,
    Memories,
    Residues,
    Tiers,
    added,
    joined,
    screened,
)
from fednag.core.keys import AGGREGATION, DOWNLINK, Indexes, cohort, generator
from fednag.core.ledger import round_entry, upload_entries
from fednag.core.record import RoundFacts
from fednag.core.state import Flight, State
from fednag.core.transform import Chain
from fednag.core.vectors import Vectors, digest
from fednag.errors import FednagError

SERVER, AGGREGATOR = -1, -2  # whose residues are what a downlink and the aggregator keep

Asked = tuple[Exchange, Memories, Residues]
"""What an executor is given."""


@dataclass(frozen=True)
class GradientNoise:
    """What protects single samples: their gradients are clipped at ``norm``, the sums noised."""

    norm: float
    noise_multiplier: float
    secret: bool = False  # neither noise nor batches can be drawn again


@dataclass(frozen=True, eq=False)
class Scheme:
    """The parts a run's rounds are made of, all but the executor."""

    algorithm: Algorithm
    controller: Controller = field(default_factory=Controller)
    uplink: Chain = field(default_factory=Chain)
    downlink: Chain = field(default_factory=Chain)
    aggregator: Aggregator = field(default_factory=Aggregator)
    schedules: tuple[Schedule, ...] = ()
    gradient: GradientNoise | None = None
    by_round: bool = False
    """A worker's batches depend on the round, and not on how often it has taken part."""
    attacks: tuple[Attack, ...] = ()

    @property
    def stages(self) -> tuple[Algorithm, ...]:
        return (*self.controller.before, *self.algorithm.stages)

    @property
    def exact(self) -> bool:
        """Whether uploads and downloads arrive unchanged, so that whole vectors may travel."""
        return self.uplink.exact and self.downlink.exact and self.aggregator.exact

    def numbers(self, iteration: int, iterations: int) -> dict[str, float]:
        """The algorithm's numbers that schedules set, when so many iterations are done."""
        found = {}
        for schedule in self.schedules:
            name = schedule.field.removeprefix("algorithm.")
            found[name] = schedule.at(getattr(self.algorithm, name), iteration / iterations)
        return found


class Loop:
    """Takes a state from one round to the next; with ``ledger``, it says what travelled."""

    def __init__(
        self, scheme: Scheme, setting: Setting, executor: Executor, ledger: bool = False
    ) -> None:
        self.scheme, self.setting, self.executor = scheme, setting, executor
        self.ledger = ledger

    def advance(self, state: State) -> State:
        """One round: its exchanges, one after the other, and the server's rules."""
        going, answers = self.exchanges(state), None
        while True:
            try:
                asked = going.send(answers)
            except StopIteration as over:
                return cast(State, over.value)
            answers = self.executor.exchange(*asked)

    def exchanges(self, state: State) -> Generator[Asked, Answers | None, State]:
        """The same for one who has the answers later: takes those to each exchange it gives."""
        scheme, setting = self.scheme, self.setting
        stages = scheme.stages
        draft = _Draft(state)
        scheduled = scheme.numbers(state.iteration, setting.iterations)
        for place, stage in enumerate(stages):
            free = np.arange(len(setting.sizes))
            if draft.flying:
                busy = [flight.worker for flight in draft.flying]
                free = np.setdiff1d(free, busy, assume_unique=True)
            rules = replace(stage, **scheduled) if scheduled and not stage.asks else stage  # type: ignore[type-var]
            order, draft.control = scheme.controller.next(
                draft.control, draft.news, free, rules, setting
            )
            order = without(order, setting.without)
            if order.keeps and not (len(stages) == 1 and stage.rounds_alike):
                raise FednagError(
                    "controller.kind",
                    f"{type(scheme.controller).__name__} does not wait for all workers, and "
                    f"{type(scheme.algorithm).__name__} has rounds of several exchanges "
                    "or of different kinds",
                    "use another method or controller",
                )
            if order.need is not None and order.need > len(setting.sizes):
                raise FednagError(
                    "controller",
                    f"a round needs {order.need} answers, and there are {len(setting.sizes)} "
                    "workers",
                    "lower its need",
                )
            numbers = {} if stage.asks else {**scheduled, **order.numbers}
            lost = set(draft.lost)
            asked = self._asked(draft, order, place, numbers)
            if drawn := asked.rules.draw(setting.seed, asked.round):
                asked = replace(asked, numbers={**numbers, **drawn})
            taken = self._closed(draft, order, asked)
            lost = draft.lost - lost
            if self.ledger and lost:
                draft.entries += upload_entries(asked, lost)
            if not taken and not scheme.aggregator.always:
                break
            if not (yield from self._updated(draft, asked, taken)):
                break
        return self._next(state, draft)

    def _asked(
        self, draft: _Draft, order: Order, place: int, numbers: Mapping[str, float]
    ) -> Exchange:
        """What is asked of the workers of an order who can be reached."""
        scheme, state = self.scheme, draft.state
        stage = scheme.stages[place]
        steps = steps_of(order, 0 if stage.asks else self.setting.iterations - state.iteration)
        if not stage.asks:
            draft.ordered = order.cohort, steps
        workers = order.cohort
        if draft.lost:
            here = ~np.isin(workers, sorted(draft.lost))
            workers, steps = workers[here], steps[here]
        if place == 0:
            reached = self.executor.reachable(workers, draft.now)
            draft.lose(workers[~reached])
            workers, steps = workers[reached], steps[reached]
        sent, wire = self._sent(draft, place)
        kept = draft.residues.get((AGGREGATOR, place)) or scheme.aggregator.init()
        starts = state.starts[workers]
        return Exchange(
            stage=stage,
            place=place,
            numbers=numbers,
            round=state.round + 1,
            sent=sent,
            workers=workers,
            steps=steps,
            starts=np.full_like(starts, state.iteration) if scheme.by_round else starts,
            as_differences=not scheme.exact,
            wire=wire,
            aggregator=scheme.aggregator.ready(kept, self.setting),
            receipts=self.ledger,
        )

    def _sent(self, draft: _Draft, place: int) -> tuple[Vectors, Vectors | None]:
        """What workers receive, and what travels instead if the downlink has transforms."""
        scheme, server = self.scheme, draft.server
        own = place >= len(scheme.controller.before)
        down = (*scheme.stages[place].down, *self.executor.between)
        names = dict.fromkeys((*down, *(scheme.controller.reads * own)))
        if BUFFERS in server:
            names[BUFFERS] = None
        sent = server.pick(list(names))
        if not scheme.downlink.parts:
            return sent, None
        key = SERVER, place
        residue = draft.residues.get(key) or scheme.downlink.init(sent)
        rng = generator(self.setting.seed, DOWNLINK, draft.state.round + 1, place)
        wire, arrived, left = scheme.downlink.carry(sent, residue, rng)
        draft.residues = updated(draft.residues, {key: left})
        return arrived, wire

    def _updated(
        self, draft: _Draft, asked: Exchange, taken: list[Exchange]
    ) -> Generator[Asked, Answers | None, bool]:
        """The server's half of an exchange; False if no answer can be used."""
        scheme, server, aggregator = self.scheme, draft.server, asked.aggregator
        assert aggregator is not None
        answers = (yield from self._answers(draft, taken)) if taken else Answers()
        answers = screened(aggregator, answers, self.setting.sizes)
        draft.take(answers, taken)
        if self.ledger:
            for part in taken:
                draft.entries += upload_entries(asked, answers.missed, part, answers)
        total = answers.total
        if total is None and aggregator.always:
            sizes = lengths(scheme.algorithm, asked.stage, server.w).items()
            zeros = {n: torch.zeros(d, dtype=torch.float64) for n, d in sizes}
            total = Total(Vectors(**zeros).map(lambda vector: vector.to(server.w.device)), 0.0)
        if total is None:
            draft.usable = False
            return False
        draws = type(aggregator).finish is not Aggregator.finish
        key = self.setting.seed, AGGREGATION, asked.round, asked.place
        rng = generator(*key) if draws else None
        mean = aggregator.finish(total, rng)
        if rng is not None and (kept := aggregator.init()):
            keeper = AGGREGATOR, asked.place
            kept = draft.residues.get(keeper) or kept
            learnt = aggregator.learn(kept, total, rng)
            draft.residues = updated(draft.residues, {keeper: learnt})
        mean = mean.map(lambda vector: vector.to(server.w.dtype))
        if any(part.as_differences for part in taken) or (not taken and asked.as_differences):
            sent = asked.sent
            mean = mean.map_named(lambda name, v: v + server[name] if name in sent else v)
        if self.ledger:
            draft.aggregates.append(digest(mean))
        counts = [len(part.workers) for part in taken]
        done = [
            answers.steps.get(worker, steps)
            for part in taken
            for worker, steps in zip(part.workers.tolist(), part.steps.tolist(), strict=True)
        ]
        draft.news = News(
            # Who came, and with how much data, is no news where a result must not depend on it.
            share=self._expected if aggregator.always else answers.size / self._held,
            steps=float(np.mean(done)) if done else 0.0,
            staleness=tuple(np.repeat([part.staleness for part in taken], counts).tolist()),
            seconds=draft.now,
            bytes=draft.moved,
            round=draft.state.round,
            iteration=draft.state.iteration,
            told=answers.told,
            missed=tuple(sorted(draft.missed)),
        )
        after = server_round(
            asked.rules, server.without(BUFFERS), mean.without(BUFFERS), draft.news
        )
        # Buffers are averaged as they are, whatever the method does with the weights.
        held = mean if BUFFERS in mean else server
        draft.server = after.but(**{BUFFERS: held[BUFFERS]}) if BUFFERS in held else after
        return True

    @property
    def _held(self) -> int:
        """Samples of all who take part."""
        return self.executor.held - int(self.setting.sizes[list(self.setting.without)].sum())

    @property
    def _expected(self) -> float:
        """The part of all workers that a round is meant to have."""
        return self.setting.cohort / len(self.setting.sizes)

    def _closed(self, draft: _Draft, order: Order, asked: Exchange) -> list[Exchange]:
        """Wait until the exchange is over: whose answers are in it, by when they were asked.

        Who is later stays in flight where the order keeps them, and is left out otherwise.
        """
        executor, now = self.executor, draft.now
        arrivals = executor.arrivals(asked, now)
        if not self.scheme.algorithm.pooled:
            wire = asked.sent if asked.wire is None else asked.wire
            draft.stages.append((wire.nbytes, 0))
            if not executor.counts_downloads:
                draft.down += wire.nbytes * len(asked.workers)
        limit = min(now + order.seconds, order.until)
        flying = draft.flying
        coming = np.concatenate([[flight.arrival for flight in flying], arrivals])
        whose = np.concatenate([[flight.worker for flight in flying], asked.workers])
        there = (coming <= limit) & np.isfinite(coming)
        complete = bool(there.all())
        if order.need is not None and there.sum() >= order.need:
            first = np.lexsort((whose, np.where(there, coming, np.inf)))[: order.need]
            there, complete = np.isin(np.arange(len(coming)), first), True
        end = float(coming[there].max(initial=now))
        draft.now = end if complete or not isfinite(limit) else limit
        own = there[len(flying) :]
        draft.flying = tuple(f for f, here in zip(flying, there, strict=False) if not here)
        landed = [f for f, here in zip(flying, there, strict=False) if here]
        if order.keeps:
            late = np.flatnonzero(~own)
            draft.flying += tuple(_flight(asked, int(i), float(arrivals[i])) for i in late)
        elif not own.all():
            draft.lose(asked.workers[~own])
        taken = [asked.among(own)] if not own.all() else [asked]
        if landed:  # points that were sent in several rounds are averaged as differences
            base = draft.server if self.scheme.aggregator.mixes else None
            sent = {flight.round: flight for flight in landed}
            taken = [replace(part, as_differences=True) for part in taken]
            taken += [
                _landed([f for f in landed if f.round == number], asked, base)
                for number in sorted(sent)
            ]
        taken = [part for part in taken if len(part.workers)]
        if taken:
            everyone = np.concatenate([part.workers for part in taken])
            draft.now += executor.aggregation(replace(asked, workers=everyone))
        elif draft.now == draft.state.clock and asked.place == 0:
            draft.now = executor.idle(order.cohort, draft.now, order.seconds)
        if draft.now > order.until:  # the aggregate would be there too late
            draft.now = order.until
            for part in taken:
                draft.lose(part.workers)
            taken = []
        return taken

    def _answers(
        self, draft: _Draft, taken: list[Exchange]
    ) -> Generator[Asked, Answers | None, Answers]:
        """What the workers answer; work that was sent in several rounds is merged."""
        found: Answers | None = None
        for part in taken:
            came = yield part, draft.memories, draft.residues
            assert came is not None
            found = came if found is None else joined(self.scheme.aggregator, found, came)
        assert found is not None
        return found

    def _next(self, state: State, draft: _Draft) -> State:
        told = state.record is not None  # of those named so far
        missed, refused = draft.missed, draft.refused
        setting, server = self.setting, draft.server if draft.usable else state.server
        # A round that nobody could be ordered for still counts: time goes on.
        steps = int(draft.ordered[1].max(initial=0)) if draft.ordered else 0
        iteration = state.iteration + (
            steps or min(setting.tau, setting.iterations - state.iteration)
        )
        return replace(
            state,
            server=server,
            memories=draft.memories,
            residues=draft.residues,
            control=draft.control,
            flying=draft.flying,
            news=replace(
                draft.news,
                seconds=draft.now,
                bytes=draft.moved,
                round=state.round + 1,
                iteration=iteration,
                missed=tuple(sorted(missed)),
                refused=tuple(sorted(refused)),
            ),
            starts=draft.starts,
            round=state.round + 1,
            iteration=iteration,
            bytes_up=state.bytes_up + draft.up,
            bytes_down=state.bytes_down + draft.down,
            tiers=added(state.tiers, draft.tiers),
            participants=draft.answered,
            refusals=state.refusals + len(refused),
            refused=tuple(sorted({*(() if told else state.refused), *refused})),
            clock=draft.now,
            misses=state.misses + len(missed),
            missed=tuple(sorted({*(() if told else state.missed), *missed})),
            rounds=(*(() if told else state.rounds), *draft.facts(setting, self.scheme.exact)),
            entries=draft.sealed(server) if self.ledger else (),
            record=None,
            diverged=not draft.usable or not _finite(server),
        )


class _Draft:
    """What has happened so far in the round that is running."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.server = state.server
        self.usable = True  # whether an answer could be used, if there were any
        self.memories: Memories = state.memories
        self.residues: Residues = state.residues
        self.control: dict[str, Any] = state.control
        self.flying = state.flying
        self.news = state.news
        self.starts = state.starts.copy()
        self.now = state.clock
        self.down = self.up = 0
        self.tiers: Tiers = ()  # the same by tier
        self.stages: list[tuple[int, int]] = []  # bytes of one worker in each exchange
        self.lost: set[int] = set()  # to the clock: they are not asked again in this round
        self.missed: set[int] = set()
        self.refused: set[int] = set()
        self.answered = 0  # workers, in the last stage
        self.ordered: tuple[Indexes, Indexes] | None = None  # who was to train, how many steps
        self.entries: list[dict[str, Any]] = []  # for a ledger
        self.aggregates: list[str] = []  # of each exchange, their digests

    @property
    def moved(self) -> int:
        """Bytes since the start of the run."""
        return self.state.bytes_up + self.state.bytes_down + self.up + self.down

    def lose(self, workers: Indexes) -> None:
        self.lost |= {int(worker) for worker in workers}
        self.missed |= self.lost

    def take(self, answers: Answers, taken: list[Exchange]) -> None:
        self.memories = updated(self.memories, answers.memories)
        self.residues = updated(self.residues, answers.residues)
        self.down += answers.down
        self.up += answers.up
        self.tiers = added(self.tiers, answers.tiers)
        self.refused |= set(answers.refused)
        self.missed |= set(answers.missed)
        self.answered = 0
        for part in taken:
            if answers.missed:
                part = part.among(~np.isin(part.workers, answers.missed))
            self.starts[part.workers] += part.steps
            self.answered += len(part.workers)
        if self.stages and self.answered:
            self.stages[-1] = self.stages[-1][0], answers.up // self.answered

    def sealed(self, server: Vectors) -> tuple[dict[str, Any], ...]:
        """The entries of this round, workers of a stage in order."""
        entries = sorted(self.entries, key=lambda entry: (entry["stage"], entry["worker"]))
        return (*entries, round_entry(self.state.round + 1, self.aggregates, server))

    def facts(self, setting: Setting, exact: bool) -> tuple[RoundFacts, ...]:
        """What a record says of this round; nothing if it is a plain one."""
        if self.ordered is None:
            return ()
        number, (workers, steps) = self.state.round + 1, self.ordered
        drawn = cohort(setting.seed, number, np.arange(len(setting.sizes)), setting.cohort)
        tau = min(setting.tau, setting.iterations - self.state.iteration)
        as_drawn = np.array_equal(workers, drawn) and bool((steps == tau).all())
        if exact and not self.flying and as_drawn:
            return ()
        who, how = (None, None) if as_drawn else (tuple(workers.tolist()), tuple(steps.tolist()))
        stages = tuple(self.stages) if len(self.stages) > 1 or self.missed else None
        return (RoundFacts(number, self.down, self.up, who, how, stages),)


def _flight(asked: Exchange, place: int, arrival: float) -> Flight:
    """The task of one worker of an exchange, under way."""
    worker, steps, start = (int(of[place]) for of in (asked.workers, asked.steps, asked.starts))
    return Flight(worker, asked.round, steps, start, arrival, asked.sent, asked.numbers)


def _landed(flights: list[Flight], asked: Exchange, base: Vectors | None) -> Exchange:
    """The task of flights of one round that have arrived in the round of ``asked``."""
    flights = sorted(flights, key=lambda flight: flight.worker)
    first = flights[0]
    workers, steps, starts = (
        np.array([getattr(flight, name) for flight in flights], dtype=np.int64)
        for name in ("worker", "steps", "start")
    )
    return Exchange(
        asked.stage, asked.place, first.numbers, first.round, first.sent, workers, steps, starts,
        asked.round - first.round, True, base, receipts=asked.receipts,
    )  # fmt: skip


def _finite(vectors: Vectors) -> bool:
    return all(bool(torch.isfinite(vector).all()) for vector in vectors.values())
