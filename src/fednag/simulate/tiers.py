"""Edges between workers and the cloud: an edge is a worker whose steps are rounds.

Tiers stand on each other: what an edge asks of those below it is an exchange like the server's own,
and those below are workers, or edges again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from fednag.core.aggregator import Total
from fednag.core.algorithm import BUFFERS, Algorithm, News
from fednag.core.controller import Setting
from fednag.core.disk import updated
from fednag.core.executor import Answers, Exchange, Executor, Memories, Residues, joined
from fednag.core.keys import UPLINK, Indexes, generator
from fednag.core.loop import Scheme
from fednag.core.vectors import Vectors
from fednag.simulate.engine import Engine


@dataclass(frozen=True, eq=False)
class Edges:
    """A tier: which workers are behind which edge, and how often edges aggregate."""

    groups: tuple[Indexes, ...]  # workers, also where there are edges between
    tau: int  # local iterations of a round of an edge
    pi: int  # rounds of an edge in one of those above it


def tiered(engine: Engine, tiers: Sequence[Edges], setting: Setting) -> Executor:
    """The engine with tiers of edges above it, the workers' own first."""
    found: Executor = engine
    first = len(setting.sizes)  # edges are numbered after the workers
    for edges in tiers:
        found = Tiered(found, engine.scheme, edges, setting, first, engine.wide)
        first += len(edges.groups)
    return found


class Tiered(Executor):
    """Has edges do what a worker is asked: rounds of tau iterations with those below them.

    Every edge starts from what it was sent, applies the method's ``edge`` rule after each of its
    rounds, and returns what ``edge_end`` makes of its state, weighted by the samples of the workers
    who answered it. What it sends goes through the uplink's transforms, as its workers' does.
    """

    counts_downloads = True

    def __init__(
        self,
        below: Executor,
        scheme: Scheme,
        edges: Edges,
        setting: Setting,
        first: int = 0,
        wide: torch.dtype = torch.float64,
    ) -> None:
        self.below, self.scheme, self.edges, self.setting = below, scheme, edges, setting
        self.first, self.wide = first, wide
        self.held = below.held
        self.between = scheme.algorithm.between
        self.nearest = not isinstance(below, Tiered)
        absent = [*setting.without]
        self.sizes = [
            int(setting.sizes[members[~np.isin(members, absent)]].sum()) for members in edges.groups
        ]

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        """The edges' rounds, one edge after the other."""
        here = [np.isin(asked.workers, members) for members in self.edges.groups]
        if (
            self.edges.pi == 1
            and asked.rules.plain_edge(self.nearest)
            and not self.scheme.uplink.parts
        ):
            return self._passed_on(asked, sum(bool(own.any()) for own in here), memories, residues)
        answers, found = Answers(), []
        for edge, own in enumerate(here):
            if own.any():
                one, up = self._edge(edge, asked.among(own), memories, residues)
                answers = joined(self.scheme.aggregator, answers, one)
                found += [] if up is None else [(one.size, up)]
        return replace(answers, total=self._total(found))

    def _passed_on(
        self, asked: Exchange, edges: int, memories: Memories, residues: Residues
    ) -> Answers:
        """The mean of the edges' means is that of all workers: here it is, to the bit."""
        came = self._asked(replace(asked, sent=self._downwards(asked.sent)), memories, residues)
        up = asked.rules.edge_end(asked.sent.without(BUFFERS), asked.sent, News()).nbytes
        up += asked.sent.nbytes - asked.sent.without(BUFFERS).nbytes
        return self._with_bytes(came, edges * asked.sent.nbytes, edges * up)

    def _asked(self, part: Exchange, memories: Memories, residues: Residues) -> Answers:
        """What those below answer, their bytes by tier."""
        came = self.below.exchange(part, memories, residues)
        if self.below.counts_downloads:
            return came
        down = part.sent.nbytes * len(part.workers)
        return replace(came, down=down, tiers=((down, came.up),))

    def _with_bytes(self, came: Answers, down: int, up: int) -> Answers:
        """The answers with what has travelled between the edges and those above them."""
        return replace(
            came, down=came.down + down, up=came.up + up, tiers=(*came.tiers, (down, up))
        )

    def _downwards(self, state: Vectors) -> Vectors:
        """What an edge sends to those below it."""
        hidden = self.between if self.nearest else ()
        return state.pick([name for name in state if name not in hidden])

    def _total(self, found: list[tuple[int, Vectors]]) -> Total | None:
        """What edges send as weighted sums."""
        used = [(size, up) for size, up in found if size]
        if len(used) < 2:  # one edge is the mean itself, to the bit
            return Total(used[0][1], 1.0) if used else None
        weighted = [_times(size, up, self.wide) for size, up in used]
        sums = weighted[0]
        for more in weighted[1:]:
            sums = sums.map_with(more, torch.add)
        return Total(sums, float(sum(size for size, _ in used)))

    def _edge(
        self, edge: int, asked: Exchange, memories: Memories, residues: Residues
    ) -> tuple[Answers, Vectors | None]:
        """An edge's rounds, and what arrives of its upload; None if nobody's can be used."""
        aggregator, tau = self.scheme.aggregator, self.edges.tau
        state, answers = asked.sent, Answers()
        used: set[int] = set()
        for number in range(self.edges.pi):
            done = number * tau
            steps = np.clip(asked.steps - done, 0, tau)
            if not steps.any():
                break
            # Draws and schedules of an edge's rounds differ as those of rounds do.
            place = (asked.round - 1) * self.edges.pi + number
            part = replace(
                asked,
                numbers={
                    **asked.numbers,
                    **self.scheme.numbers(place * tau, self.setting.iterations),
                },
                round=place + 1,
                sent=self._downwards(state),
                steps=steps,
                starts=asked.starts + done,
            )
            came = self._asked(
                part, updated(memories, answers.memories), updated(residues, answers.residues)
            )
            answers = joined(aggregator, replace(answers, total=None), replace(came, total=None))
            if came.total is None:
                continue
            used |= set(part.workers.tolist()) - {*came.refused, *came.missed}
            mean = aggregator.finish(came.total, None)
            mean = mean.map(lambda vector: vector.to(state.w.dtype))  # noqa: B023
            if asked.as_differences:
                mean = _added(mean, part.sent)
            news = News(came.size / self.sizes[edge], float(steps.mean()), round=place)
            state = edge_round(part.rules, state, mean, news).pick([*asked.sent])
        size = sum(int(self.setting.sizes[worker]) for worker in used)
        share = News(size / self.sizes[edge], float(asked.steps.mean()), round=asked.round - 1)
        up, left, sent = self._sent_up(edge, asked, state, share if used else News(), residues)
        usable = bool(used) and all(bool(vector.isfinite().all()) for vector in up.values())
        refused = dict.fromkeys((*answers.refused, *(() if usable else used)))
        if usable:
            answers = replace(answers, residues={**answers.residues, **left})
        answers = replace(answers, size=size if usable else 0, refused=tuple(refused))
        return self._with_bytes(answers, asked.sent.nbytes, sent), up if usable else None

    def _sent_up(
        self, edge: int, asked: Exchange, state: Vectors, news: News, residues: Residues
    ) -> tuple[Vectors, Residues, int]:
        """What arrives of an edge's upload, what its transforms keep, and the bytes of it."""
        up = asked.rules.edge_end(state.without(BUFFERS), asked.sent, news)
        if BUFFERS in state:
            up = up.but(**{BUFFERS: state[BUFFERS]})
        sent = asked.sent
        if asked.as_differences:
            up = up.map_named(lambda name, v: v - sent[name] if name in sent else v)
        uplink = self.scheme.uplink.of(asked.rules)
        if not uplink.parts:
            return up, {}, up.nbytes
        key = self.first + edge, asked.place
        rng = generator(self.setting.seed, UPLINK, asked.round, *key)
        wire, arrived, left = uplink.carry(up, residues.get(key) or uplink.init(up), rng)
        return arrived, {key: left} if left else {}, wire.nbytes


def _times(size: int, up: Vectors, wide: torch.dtype) -> Vectors:
    return up.map(lambda vector: size * vector.to(wide))


def _added(mean: Vectors, sent: Vectors) -> Vectors:
    """Points that came up as differences."""
    return mean.map_named(lambda name, v: v + sent[name] if name in sent else v)


def edge_round(rules: Algorithm, state: Vectors, mean: Vectors, news: News) -> Vectors:
    """An edge's half of one of its rounds; running statistics are averaged as they are."""
    after = rules.edge(state.without(BUFFERS), mean.without(BUFFERS), news)
    held = mean if BUFFERS in mean else state
    return after.but(**{BUFFERS: held[BUFFERS]}) if BUFFERS in held else after
