"""Edges between workers and the cloud: an edge is a worker whose steps are rounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from fednag.core.aggregator import Total
from fednag.core.algorithm import BUFFERS, Algorithm
from fednag.core.disk import updated
from fednag.core.executor import Answers, Exchange, Executor, Memories, Residues, joined
from fednag.core.keys import Indexes
from fednag.core.vectors import Vectors
from fednag.simulate.engine import Engine


@dataclass(frozen=True, eq=False)
class Edges:
    """Which workers belong to which edge, and how often edges aggregate before the cloud does."""

    groups: tuple[Indexes, ...]
    tau: int  # local iterations between two aggregations of an edge
    pi: int  # aggregations of an edge between two of the cloud


class Tiered(Executor):
    """Has edges do what a worker is asked: rounds of tau iterations with their own workers.

    Every edge starts from what the cloud sent, applies the method's ``edge`` rule after each of its
    rounds, and returns its state, weighted by the samples of those who answered it.
    """

    counts_downloads = True

    def __init__(self, engine: Engine, edges: Edges) -> None:
        self.engine, self.edges = engine, edges
        self.held = engine.held
        self.between = engine.scheme.algorithm.between

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        """The edges' rounds, one edge after the other."""
        here = [np.isin(asked.workers, members) for members in self.edges.groups]
        owns = [asked.among(own) for own in here if own.any()]
        if self.edges.pi == 1 and asked.rules.plain_edges:
            return self._passed_on(asked, len(owns), memories, residues)
        found = [self._edge(own, memories, residues) for own in owns]
        answers = Answers()
        for one, _ in found:
            answers = joined(self.engine.scheme.aggregator, answers, one)
        return replace(answers, total=self._total([(one.size, state) for one, state in found]))

    def _passed_on(
        self, asked: Exchange, edges: int, memories: Memories, residues: Residues
    ) -> Answers:
        """The mean of the edges' means is that of all workers: here it is, to the bit."""
        sent = asked.sent.pick([name for name in asked.sent if name not in self.between])
        came = self.engine.exchange(replace(asked, sent=sent), memories, residues)
        down = edges * asked.sent.nbytes + len(asked.workers) * sent.nbytes
        return replace(came, down=down, up=came.up + edges * asked.sent.nbytes)

    def _total(self, found: list[tuple[int, Vectors]]) -> Total | None:
        """The edges' states as weighted sums."""
        used = [(size, state) for size, state in found if size]
        if len(used) < 2:  # one edge is the mean itself, to the bit
            return Total(used[0][1], 1.0) if used else None
        wide = self.engine.wide
        weighted = [_times(size, state, wide) for size, state in used]
        sums = weighted[0]
        for more in weighted[1:]:
            sums = sums.map_with(more, torch.add)
        return Total(sums, float(sum(size for size, _ in used)))

    def _edge(
        self, asked: Exchange, memories: Memories, residues: Residues
    ) -> tuple[Answers, Vectors]:
        """An edge's rounds, and its state after them."""
        rules, aggregator = asked.rules, self.engine.scheme.aggregator
        state, sizes = asked.sent, self.engine.draws.sizes
        lower = [name for name in asked.sent if name not in self.between]
        down = up = asked.sent.nbytes  # from the cloud, and back to it
        answers = Answers()
        used: set[int] = set()
        for number in range(self.edges.pi):
            done = number * self.edges.tau
            steps = np.clip(asked.steps - done, 0, self.edges.tau)
            if not steps.any():
                break
            part = replace(
                asked,
                # Draws of an edge's rounds differ as those of rounds do.
                round=(asked.round - 1) * self.edges.pi + number + 1,
                sent=state.pick(lower),
                steps=steps,
                starts=asked.starts + done,
            )
            came = self.engine.exchange(part, updated(memories, answers.memories), residues)
            down += part.sent.nbytes * len(part.workers)
            up += came.up
            answers = joined(aggregator, replace(answers, total=None), replace(came, total=None))
            if came.total is None:
                continue
            used |= set(part.workers.tolist()) - set(came.refused)
            mean = aggregator.finish(came.total, None)
            state = edge_round(rules, state, mean).pick([*asked.sent])
        size = sum(int(sizes[worker]) for worker in used)
        refused = tuple(dict.fromkeys(answers.refused))
        return replace(answers, size=size, refused=refused, down=down, up=up), state


def _times(size: int, state: Vectors, wide: torch.dtype) -> Vectors:
    return state.map(lambda vector: size * vector.to(wide))


def edge_round(rules: Algorithm, state: Vectors, mean: Vectors) -> Vectors:
    """An edge's half of one of its rounds; running statistics are averaged as they are."""
    mean = mean.map(lambda vector: vector.to(state.w.dtype))
    after = rules.edge(state.without(BUFFERS), mean.without(BUFFERS))
    held = mean if BUFFERS in mean else state
    return after.but(**{BUFFERS: held[BUFFERS]}) if BUFFERS in held else after
