"""A round of training, written once, over the five parts it is made of.

The controller orders, the executor has the workers do it, transforms act on what travels, the
aggregator makes one of the answers, and the algorithm's rules say what workers and server do.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from math import isfinite
from typing import Any, cast

import numpy as np
import torch

from fednag.core.aggregator import Aggregator
from fednag.core.algorithm import BUFFERS, Algorithm, News, server_round
from fednag.core.controller import Controller, Order, Schedule, Setting, steps_of
from fednag.core.executor import Answers, Exchange, Executor, Memories, Residues
from fednag.core.keys import AGGREGATION, DOWNLINK, Indexes, cohort, generator
from fednag.core.record import RoundFacts
from fednag.core.state import Flight, State
from fednag.core.transform import Chain
from fednag.core.vectors import Vectors
from fednag.errors import FednagError

SERVER = -1  # whose residue a downlink's is

Asked = tuple[Exchange, Memories, Residues]
"""What an executor is given."""


@dataclass(frozen=True, eq=False)
class Scheme:
    """What rounds are made of."""

    algorithm: Algorithm
    controller: Controller = field(default_factory=Controller)
    uplink: Chain = field(default_factory=Chain)
    downlink: Chain = field(default_factory=Chain)
    aggregator: Aggregator = field(default_factory=Aggregator)
    schedules: tuple[Schedule, ...] = ()

    @property
    def stages(self) -> tuple[Algorithm, ...]:
        return (*self.controller.before, *self.algorithm.stages)

    @property
    def exact(self) -> bool:
        """Whether what travels arrives to the bit, and may travel as it is."""
        return self.uplink.exact and self.downlink.exact and self.aggregator.exact

    def numbers(self, iteration: int, iterations: int) -> dict[str, float]:
        """The algorithm's numbers that schedules set, when so many iterations are done."""
        found = {}
        for schedule in self.schedules:
            name = schedule.field.removeprefix("algorithm.")
            found[name] = schedule.at(getattr(self.algorithm, name), iteration / iterations)
        return found


class Loop:
    """Takes a state from one round to the next."""

    def __init__(self, scheme: Scheme, setting: Setting, executor: Executor) -> None:
        self.scheme, self.setting, self.executor = scheme, setting, executor

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
        scheme, setting, number = self.scheme, self.setting, state.round + 1
        stages = scheme.stages
        draft = _Draft(state)
        left = setting.iterations - state.iteration
        scheduled = scheme.numbers(state.iteration, setting.iterations)
        for place, stage in enumerate(stages):
            busy = {flight.worker for flight in draft.flying}
            free = np.array([i for i in range(len(setting.sizes)) if i not in busy], dtype=np.int64)
            order, draft.control = scheme.controller.next(
                draft.control, draft.news, free, stage, setting
            )
            if order.need is not None and len(stages) > 1:
                raise FednagError(
                    f"controller.kind: {type(scheme.controller).__name__} does not wait for all "
                    f"workers, and {type(scheme.algorithm).__name__} has rounds of several "
                    "exchanges; use another method or controller"
                )
            numbers = {} if stage.asks else {**scheduled, **order.numbers}
            steps = steps_of(order, 0 if stage.asks else left)
            own = place >= len(scheme.controller.before)
            if not stage.asks:
                draft.ordered = order.cohort, steps
            if not (yield from self._exchange(draft, order, stage, place, numbers, steps, own)):
                break
        news = replace(draft.news, round=number, iteration=state.iteration + draft.advanced)
        return self._next(state, draft, news)

    def _exchange(
        self,
        draft: _Draft,
        order: Order,
        stage: Algorithm,
        place: int,
        numbers: dict[str, float],
        steps: Indexes,
        own: bool,
    ) -> Generator[Asked, Answers | None, bool]:
        """One stage of a round; False if there is nothing for the next to build on."""
        scheme, executor, number = self.scheme, self.executor, draft.state.round + 1
        here = np.array([int(worker) not in draft.lost for worker in order.cohort], dtype=bool)
        workers, steps = order.cohort[here], steps[here]
        if place == 0:
            reached = executor.reachable(workers, draft.now)
            draft.lose(workers[~reached])
            workers, steps = workers[reached], steps[reached]
        if len(steps):
            draft.advanced = max(draft.advanced, int(steps.max()))
        elif not stage.asks:
            most = self.setting.iterations - draft.state.iteration
            draft.advanced = max(draft.advanced, int(steps_of(order, most).max(initial=0)))
        sent, wire = self._sent(draft, stage, place, own)
        as_differences = not scheme.exact or order.need is not None
        asked = Exchange(
            stage, place, numbers, number, sent, workers, steps,
            draft.state.starts[workers], 0, as_differences, wire,
        )  # fmt: skip
        taken = self._closed(draft, order, asked)
        if not taken:
            return False
        answers, staleness = yield from self._answers(draft, taken)
        draft.take(answers, taken)
        if answers.total is None:
            draft.server = None
            return False
        rng = generator(self.setting.seed, AGGREGATION, number, place)
        dtype = draft.server.w.dtype  # type: ignore[union-attr]
        mean = scheme.aggregator.finish(answers.total, rng)
        mean = mean.map(lambda vector: vector.to(dtype))
        assert draft.server is not None
        if as_differences:
            mean = mean.map_named(lambda name, v: v + draft.server[name] if name in sent else v)  # type: ignore[index]
        rules = replace(stage, **numbers) if numbers else stage  # type: ignore[type-var]
        steps_done = [
            answers.steps.get(worker, steps)
            for part in taken
            for worker, steps in zip(part.workers.tolist(), part.steps.tolist(), strict=True)
        ]
        draft.news = News(
            share=float(answers.size / executor.held),
            steps=float(np.mean(steps_done)),
            staleness=staleness,
            seconds=draft.now,
            round=draft.state.round,
            iteration=draft.state.iteration,
            told=answers.told,
            missed=tuple(sorted(draft.missed)),
        )
        updated = server_round(
            rules, draft.server.without(BUFFERS), mean.without(BUFFERS), draft.news
        )
        # Buffers are averaged as they are, whatever the method does with the weights.
        held = mean if BUFFERS in mean else draft.server
        draft.server = updated.but(**{BUFFERS: held[BUFFERS]}) if BUFFERS in held else updated
        return True

    def _sent(
        self, draft: _Draft, stage: Algorithm, place: int, own: bool
    ) -> tuple[Vectors, Vectors | None]:
        """What goes down: the vectors the stage declares, through the downlink; and how."""
        assert draft.server is not None
        names = dict.fromkeys((*stage.down, *(self.scheme.controller.reads if own else ())))
        if BUFFERS in draft.server:
            names[BUFFERS] = None
        sent = draft.server.pick(list(names))
        downlink = self.scheme.downlink
        if not downlink.parts:
            return sent, None
        key = SERVER, place
        residue = draft.residues.get(key) or downlink.init(sent)
        rng = generator(self.setting.seed, DOWNLINK, draft.state.round + 1, place)
        wire, draft.residues[key] = downlink.apply(sent, residue, rng)
        return wire.map_named(lambda name, vector: vector.to(sent[name].dtype)), wire

    def _closed(self, draft: _Draft, order: Order, asked: Exchange) -> list[Exchange]:
        """Wait until the exchange is over: whose answers are in it, by worker.

        With ``need`` the rest stays in flight; otherwise who comes after ``seconds`` is left out.
        """
        executor, now = self.executor, draft.now
        arrivals = executor.arrivals(asked, now)
        if not self.scheme.algorithm.pooled and not executor.counts_downloads:
            size = (
                asked.sent.nbytes if asked.wire is None else self.scheme.downlink.nbytes(asked.wire)
            )
            draft.down += size * len(asked.workers)
        if order.need is None:
            limit = now + order.seconds
            there = (arrivals <= limit) & np.isfinite(arrivals)
            end = float(arrivals[there].max(initial=now))
            if not there.all():
                end = limit if isfinite(limit) else end
                draft.lose(asked.workers[~there])
            taken = [asked.among(there)] if not there.all() else [asked]
            draft.now = end
        else:
            flights = [
                Flight(
                    int(worker), asked.round, int(asked.steps[i]), int(asked.starts[i]),
                    float(arrivals[i]), asked.sent, asked.numbers,
                )
                for i, worker in enumerate(asked.workers)
            ]  # fmt: skip
            waiting = sorted((*draft.flying, *flights), key=lambda f: (f.arrival, f.worker))
            ready = [f for f in waiting if isfinite(f.arrival)][: order.need]
            draft.flying = tuple(f for f in waiting if f not in ready)
            draft.now = max([now, *(f.arrival for f in ready)])
            taken = [_landed(f, asked) for f in sorted(ready, key=lambda f: f.worker)]
        taken = [part for part in taken if len(part.workers)]
        if taken:
            draft.now += sum(executor.aggregation(part) for part in taken)
        elif draft.now == draft.state.clock and asked.place == 0:
            draft.now = executor.idle(order.cohort, draft.now, order.seconds)
        return taken

    def _answers(
        self, draft: _Draft, taken: list[Exchange]
    ) -> Generator[Asked, Answers | None, tuple[Answers, tuple[int, ...]]]:
        """What the workers answer; work that was sent in several rounds is merged."""
        found: Answers | None = None
        staleness: list[int] = []
        for part in taken:
            came = yield part, draft.memories, draft.residues
            assert came is not None
            staleness += [part.staleness] * len(part.workers)
            found = came if found is None else self._merged(found, came)
        assert found is not None
        return found, tuple(staleness)

    def _merged(self, a: Answers, b: Answers) -> Answers:
        totals = [total for total in (a.total, b.total) if total is not None]
        both = self.scheme.aggregator.merge(*totals) if len(totals) == 2 else None
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
        )

    def _next(self, state: State, draft: _Draft, news: News) -> State:
        told = state.record is not None  # of those named so far
        missed, refused = draft.missed, draft.refused
        server = draft.server
        facts = draft.facts(self.setting, self.scheme.exact)
        return replace(
            state,
            server=state.server if server is None else server,
            memories=draft.memories,
            residues=draft.residues,
            control=draft.control,
            flying=draft.flying,
            news=news,
            starts=draft.starts,
            round=state.round + 1,
            iteration=state.iteration + draft.advanced,
            bytes_up=state.bytes_up + draft.up,
            bytes_down=state.bytes_down + draft.down,
            participants=len(draft.answered),
            refusals=state.refusals + len(refused),
            refused=tuple(sorted({*(() if told else state.refused), *refused})),
            clock=draft.now,
            misses=state.misses + len(missed),
            missed=tuple(sorted({*(() if told else state.missed), *missed})),
            rounds=(*(() if told else state.rounds), *facts),
            record=None,
            diverged=server is None or not _finite(server),
        )


class _Draft:
    """A round that is under way."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.server: Vectors | None = state.server
        self.memories = dict(state.memories)
        self.residues = dict(state.residues)
        self.control: dict[str, Any] = state.control
        self.flying = state.flying
        self.news = state.news
        self.starts = state.starts.copy()
        self.now = state.clock
        self.down = self.up = 0
        self.advanced = 0
        self.lost: set[int] = set()  # to the clock: they are not asked again in this round
        self.missed: set[int] = set()
        self.refused: set[int] = set()
        self.answered: set[int] = set()
        self.ordered: tuple[Indexes, Indexes] | None = None  # who was to train, how many steps

    def lose(self, workers: Indexes) -> None:
        self.lost |= {int(worker) for worker in workers}
        self.missed |= self.lost

    def take(self, answers: Answers, taken: list[Exchange]) -> None:
        self.memories.update(answers.memories)
        self.residues.update(answers.residues)
        self.down += answers.down
        self.up += answers.up
        self.refused |= set(answers.refused)
        self.missed |= set(answers.missed)
        self.answered = set()
        for part in taken:
            for worker, steps in zip(part.workers.tolist(), part.steps.tolist(), strict=True):
                if worker not in answers.missed:
                    self.starts[worker] += steps
                    self.answered.add(worker)

    def facts(self, setting: Setting, exact: bool) -> tuple[RoundFacts, ...]:
        """What a record keeps of a round, unless it is the plain one."""
        if self.ordered is None:
            return ()
        number, (workers, steps) = self.state.round + 1, self.ordered
        drawn = cohort(setting.seed, number, np.arange(len(setting.sizes)), setting.cohort)
        tau = min(setting.tau, setting.iterations - self.state.iteration)
        as_drawn = np.array_equal(workers, drawn) and bool((steps == tau).all())
        if exact and not self.flying and as_drawn:
            return ()
        who = (None, None) if as_drawn else (tuple(workers.tolist()), tuple(steps.tolist()))
        return (RoundFacts(number, self.down, self.up, *who),)


def _landed(flight: Flight, asked: Exchange) -> Exchange:
    """A flight's task, as it was asked, answered in the round of ``asked``."""
    one = np.array([flight.worker], dtype=np.int64)
    return Exchange(
        asked.stage, asked.place, flight.numbers, flight.round, flight.sent, one,
        np.array([flight.steps]), np.array([flight.start]), asked.round - flight.round, True,
    )  # fmt: skip


def _finite(vectors: Vectors) -> bool:
    return all(bool(torch.isfinite(vector).all()) for vector in vectors.values())
