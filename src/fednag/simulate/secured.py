"""Secure aggregation in the simulator: the sums and bytes of the protocol, or all of it."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch

from fednag.aggregators import Secure
from fednag.core.aggregator import Total
from fednag.core.executor import Answers, Exchange, Executor, Memories, Residues
from fednag.core.keys import VANISHING, generator
from fednag.core.vectors import Vectors
from fednag.errors import not_installed, within
from fednag.secure.terms import Terms, traffic
from fednag.simulate.engine import Engine


class Secured(Executor):
    """Has an engine compute exchanges whose updates are added up by the aggregator ``secure``."""

    def __init__(self, engine: Engine, aggregator: Secure) -> None:
        self.engine, self.aggregator = engine, aggregator
        self.held = engine.held
        if aggregator.masked and find_spec("cryptography") is None:
            raise not_installed("aggregator.masked: the package cryptography", "flower")

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        workers = len(asked.workers)
        threshold = self.aggregator.needed(workers)
        with within(f"round {asked.round}"):
            if self.aggregator.masked:
                return self._masked(asked, memories, residues, threshold)
            answers = self.engine.exchange(asked, memories, residues)
            there = workers - len(answers.refused)
            if there:  # otherwise the run has diverged
                Terms(b"", threshold, self.aggregator.bits).check_enough(there, 2)
        numbers = sum(map(len, answers.total.sums.values())) if answers.total else 0
        down, up = traffic(workers, numbers * self.aggregator.bits // 8, there)
        return replace(answers, down=down, up=up)

    def _masked(
        self, asked: Exchange, memories: Memories, residues: Residues, threshold: int
    ) -> Answers:
        """Workers one by one; what they send is masked, and unmasked as a sum."""
        from fednag.secure.masks import integers
        from fednag.secure.rehearsal import rehearse

        aggregator = self.aggregator
        workers = asked.workers.tolist()
        rng = generator(self.engine.draws.seed, VANISHING, asked.round, asked.place)
        lost, steps = (
            rng.random(len(workers)) < aggregator.dropouts,
            rng.integers(4, size=len(workers)),
        )
        gone = {worker: int(steps[i]) for i, worker in enumerate(workers) if lost[i]}
        missed = tuple(worker for worker in workers if gone.get(worker, 3) < 3)
        asked = replace(asked, weight=self.engine.weight(asked))
        found = {
            worker: self.engine.exchange(asked.among(asked.workers == worker), memories, residues)
            for worker in workers
            if worker not in missed
        }
        totals = {worker: one.total for worker, one in found.items() if one.total is not None}
        gone |= {worker: 2 for worker in found if worker not in totals}
        merged = _merged(list(found.values()), missed)
        if not totals:
            Terms(b"", threshold, aggregator.bits).check_enough(len(found), 2)
            down, up = traffic(len(workers), 0, 0)
            return replace(merged, down=down, up=up)
        like = next(iter(totals.values())).sums
        empty = torch.zeros(sum(map(len, like.values())), dtype=torch.int64)
        kind = integers(aggregator.bits)
        values = {
            worker: (
                torch.cat(list(totals[worker].sums.values())) if worker in totals else empty
            ).numpy().astype(kind)
            for worker in workers
        }  # fmt: skip
        sum_ = rehearse(values, threshold, aggregator.bits, gone)
        total = as_vectors(torch.from_numpy(sum_.total.astype(np.int64)), like)
        weight = sum(totals[worker].weight for worker in sum_.survivors)
        return replace(merged, total=Total(total, weight), down=sum_.down, up=sum_.up)


def as_vectors(flat: torch.Tensor, like: Vectors) -> Vectors:
    """One vector of all numbers as vectors of these names and lengths."""
    parts = torch.split(flat, [len(vector) for vector in like.values()])
    return Vectors(**dict(zip(like, parts, strict=True)))


def _merged(found: list[Answers], missed: tuple[int, ...]) -> Answers:
    """Answers without their sums."""
    return Answers(
        size=sum(one.size for one in found),
        memories={k: v for one in found for k, v in one.memories.items()},
        residues={k: v for one in found for k, v in one.residues.items()},
        refused=tuple(worker for one in found for worker in one.refused),
        missed=missed,
        receipts={k: v for one in found for k, v in one.receipts.items()},
    )
