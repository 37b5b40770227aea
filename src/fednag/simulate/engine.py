"""Runs the worker side of exchanges here: chunks of stacked workers, spread over threads.

Sums are taken in worker order whatever finishes first, so a run repeats bit for bit; only ``chunk``
may change it, and only by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednag.aggregators import Secure
from fednag.compute.randomness import private_randomness
from fednag.compute.threads import ThreadPool
from fednag.core.aggregator import Total
from fednag.core.algorithm import BUFFERS, Algorithm, Grad, lengths, local_round
from fednag.core.attack import Forged
from fednag.core.executor import (
    Answers,
    Exchange,
    Executor,
    Memories,
    Receipt,
    Residues,
    joined,
)
from fednag.core.keys import ATTACK, MODEL, UPLINK, Draws, Indexes, generator
from fednag.core.loop import Scheme
from fednag.core.transform import Chain
from fednag.core.vectors import Vector, Vectors, digest
from fednag.problems.problem import Problem
from fednag.simulate.private import PrivateBatch, no_data
from fednag.simulate.steps import Carried, MiniBatch, recorded_steps, replaced, stacked

Mask = NDArray[np.bool_]

Change = Callable[[Exchange, Vectors], Vectors]
"""What stacked workers send in place of their updates, a row each."""

EVALUATION_BLOCK = 500  # samples a task; fixed, so that results do not depend on threads
GRADIENT_BLOCK = 256  # samples of each worker a task takes at a time for a full gradient


def is_checked(number: int) -> bool:
    """Whether round ``number`` is one in which recordings are compared with the module again.

    Rounds 1, 4, 16, 64 and so on: early, where training moves the weights most, then seldom.
    """
    return number > 0 and number & (number - 1) == 0 and number % 3 == 1


@dataclass(frozen=True, eq=False)
class Uploads:
    """What n stacked workers send and keep, a row each."""

    workers: Indexes
    up: Vectors
    kept: Vectors  # nothing, where they keep what they had
    left: list[Vectors]  # what transforms keep of each worker's
    told: Mapping[str, Vector]
    finite: Mask
    nbytes: int
    wires: list[Vectors]  # each worker's upload as it travels, where transforms changed it


class Engine(Executor):
    """Computes exchanges of a scheme for workers who own the samples in ``owned``."""

    def __init__(
        self,
        problem: Problem,
        scheme: Scheme,
        owned: Sequence[Indexes],
        draws: Draws,
        *,
        chunk: int,
        threads: int,
        inner: int = 1,
        attackers: Forged | None = None,
    ) -> None:
        self.problem, self.scheme, self.draws = problem, scheme, draws
        self.owned = owned
        self.chunk = chunk
        self.held = int(draws.sizes.sum())
        self._attackers = attackers or {}
        self.first_memory = first_memory(scheme.algorithm, problem)
        # The mean over many workers keeps more digits than the vectors themselves.
        self.wide = torch.float32 if problem.device.type == "mps" else torch.float64
        self._steps = recorded_steps(scheme, problem)
        # Random draws are keyed by worker, and there is one generator for all threads.
        self._pool = ThreadPool(1 if problem.gradients.plain else threads, inner)
        aggregator = scheme.aggregator
        self._secure = aggregator if isinstance(aggregator, Secure) else None
        self._sums = None if problem.shares is None else self._sums_of_shares(problem.shares)

    def __enter__(self) -> Engine:
        self._pool.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.__exit__()

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        """Compute the exchange; a worker whose update is refused keeps the memory it had."""
        if not asked.stage.asks and is_checked(asked.round):
            self.problem.check_again()
        if self._secure and not asked.weight:
            asked = replace(asked, weight=self.weight(asked))
        if self._attackers:
            return self._attacked(asked, memories, residues)
        return self._exchanged(asked, memories, residues)

    def _exchanged(
        self, asked: Exchange, memories: Memories, residues: Residues, change: Change | None = None
    ) -> Answers:
        if not len(asked.workers):
            return Answers()
        parts = self._pool.ordered(
            lambda group: self._group(group, memories, residues, change), self._groups(asked)
        )
        answers: dict[str, Any] = {"memories": {}, "residues": {}, "told": {}, "receipts": {}}
        total, size, up = None, 0, 0
        refused: list[int] = []
        for part in parts:
            size, up = size + part.size, up + part.up
            refused += part.refused
            for name, table in answers.items():
                table.update(getattr(part, name))
            if part.total is not None:
                merge = self.scheme.aggregator.merge
                total = part.total if total is None else merge(total, part.total)
        return Answers(total, size, **answers, refused=tuple(refused), up=up)

    def weight(self, asked: Exchange) -> float:
        """The weight of all workers of an exchange."""
        weight = self.scheme.aggregator.weight
        return sum(
            weight(size, asked.staleness) for size in self.draws.sizes[asked.workers].tolist()
        )

    def _attacked(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        """The honest workers first, for some attackers see what these send."""
        false = np.isin(asked.workers, list(self._attackers))
        attacks = [a for w in asked.workers[false].tolist() for _, a in self._attackers[w]]
        seen: dict[int, Vectors] = {}

        def keep(group: Exchange, updates: Vectors) -> Vectors:
            seen[int(group.workers[0])] = updates.map(torch.clone)
            return updates

        def forge(group: Exchange, updates: Vectors) -> Vectors:
            rows = []
            for row, worker in enumerate(group.workers.tolist()):
                own = _row(updates, row)
                for place, attack in self._attackers[worker]:
                    key = self.draws.seed, ATTACK, asked.round, worker, asked.place, place
                    own = attack.forge(own, others, generator(*key))
                rows.append(own)
            return updates.map_named(lambda name, _: torch.stack([own[name] for own in rows]))

        watched = keep if any(attack.sees for attack in attacks) else None
        honest = self._exchanged(asked.among(~false), memories, residues, watched)
        bags = [seen[first] for first in sorted(seen)]
        named = bags[0] if bags else Vectors()
        others = named.map_named(lambda name, _: torch.cat([bag[name] for bag in bags]))
        forged = self._exchanged(asked.among(false), memories, residues, forge)
        return joined(self.scheme.aggregator, honest, forged)

    def once(self, server: Vectors, workers: Indexes, starts: Indexes, steps: int) -> Answers:
        """One exchange of local iterations, outside of any run; nothing is compared."""
        stages = self.scheme.stages
        stage, place = stages[-1], len(stages) - 1
        sent = server.pick([*stage.down, *([BUFFERS] if BUFFERS in server else [])])
        each = np.full(len(workers), steps)
        return self.exchange(Exchange(stage, place, {}, 0, sent, workers, each, starts), {}, {})

    def _group(
        self, asked: Exchange, memories: Memories, residues: Residues, change: Change | None
    ) -> Answers:
        """The aggregated answers of stacked workers."""
        found = self.uploads(asked, memories, residues, change)
        workers = found.workers
        good = [row for row in range(len(workers)) if found.finite[row]]
        return Answers(
            total=self._lifted(found.up, asked, found.finite),
            size=int(self.draws.sizes[workers][found.finite].sum()),
            memories={int(workers[i]): _row(found.kept, i) for i in good if found.kept},
            residues={(int(workers[i]), asked.place): found.left[i] for i in good if found.left},
            told={
                int(workers[i]): {name: float(values[i]) for name, values in found.told.items()}
                for i in range(len(workers) if found.told else 0)
            },
            refused=tuple(int(worker) for worker in workers[~found.finite]),
            up=0 if self.scheme.algorithm.pooled else found.nbytes,
            receipts=self._receipts(found) if asked.receipts else {},
        )

    def _receipts(self, found: Uploads) -> dict[int, Receipt]:
        """Of each worker: the digest of its upload as it travels, unless it is not finite."""
        return {
            worker: Receipt(
                digest(found.wires[row] if found.wires else found.up.map(lambda v, row=row: v[row]))  # type: ignore[misc]
                if found.finite[row]
                else None,
                int(self.draws.sizes[worker]),
            )
            for row, worker in enumerate(found.workers.tolist())
        }

    def uploads(
        self, asked: Exchange, memories: Memories, residues: Residues, change: Change | None = None
    ) -> Uploads:
        """What stacked workers send, all of whom do the same number of steps."""
        group, sent, stage = asked.workers, asked.sent, asked.stage
        with self._draws(asked):
            # A worker's rules always see a row for each worker, also of what was sent.
            rows = sent.without(BUFFERS).map(lambda vector: stacked(vector, len(group)))
            mine = self._memory(group, memories)
            rules_mine = mine.without(BUFFERS)
            carried = Carried(self._buffers(sent, mine, len(group)))
            up, kept, told = local_round(
                asked.rules,
                rows,
                rules_mine,
                self._grads(asked, carried),
                GroupData(self, group, carried),
                self._steps[asked.place].with_numbers(asked.numbers),
                self.scheme.controller.observe if self.scheme.controller.observes else None,
            )
        if BUFFERS in sent and not stage.asks:
            up = up.but(**{BUFFERS: carried.rows})
        if BUFFERS in mine and not stage.asks:
            kept = kept.but(**{BUFFERS: carried.rows})
        elif kept is rules_mine:
            kept = Vectors()  # nothing new
        up = up.map(lambda vector: vector.expand(len(group), vector.shape[-1]))
        if asked.as_differences or change:
            up = up.map_named(lambda name, rows: rows - sent[name] if name in sent else rows)
        if change:
            up = change(asked, up)
            if not asked.as_differences:
                up = up.map_named(lambda name, rows: rows + sent[name] if name in sent else rows)
        finite = self._finite(group, up, kept)
        wires, up, left = self._uplinked(asked, up, residues)
        size = sum(wire.nbytes for wire in wires) if wires else up.nbytes
        if wires:  # a transform may have gone out of range
            finite &= self._finite(group, up)
        if self._secure:
            finite &= self._secure.takes(up).cpu().numpy()
        if asked.base is not None:
            base = asked.base
            up = up.map_named(
                lambda name, rows: rows + (sent[name] - base[name]) if name in sent else rows
            )
        if type(stage).settle is not Algorithm.settle:
            arrived = up.without(BUFFERS)
            if asked.as_differences:
                arrived = arrived.map_named(lambda n, r: r + sent[n] if n in sent else r)
            kept = asked.rules.settle(kept or rules_mine, arrived)
        return Uploads(group, up, kept, left, told, finite, size, wires)

    def _uplinked(
        self, asked: Exchange, up: Vectors, residues: Residues
    ) -> tuple[list[Vectors], Vectors, list[Vectors]]:
        """What travels from each worker, what the server makes of it, and what the worker keeps."""
        uplink = self.scheme.uplink.of(asked.rules)
        if not uplink.parts:
            return [], up, []
        wires, changed, left = [], [], []
        for row, worker in enumerate(asked.workers.tolist()):
            own = _row(up, row)
            residue = residues.get((worker, asked.place)) or self.scheme.uplink.init(own)
            named = int(self.draws.numbers[worker])
            rng = generator(self.draws.seed, UPLINK, asked.round, named, asked.place)
            gone, arrived, after = uplink.carry(own, residue, rng)
            wires.append(gone)
            changed.append(arrived)
            left.append(after)
        names = list(changed[0])
        stack = {name: torch.stack([each[name] for each in changed]) for name in names}
        return wires, Vectors(**stack), left

    def _lifted(self, up: Vectors, asked: Exchange, finite: Mask) -> Total | None:
        """The aggregate of the updates that are finite."""
        if not finite.any():
            return None
        aggregator = asked.aggregator or self.scheme.aggregator
        held = self.draws.sizes[asked.workers][finite].tolist()
        weights = [aggregator.weight(size, asked.staleness) for size in held]
        if self._secure:
            weights = [self._secure.share(weight, asked.weight) for weight in weights]
        discount = aggregator.discount(asked.staleness)
        kept = up.map(lambda rows: _rows(rows, finite))
        if discount != 1.0:
            kept = kept.map(lambda rows: discount * rows)
        return aggregator.gather(
            kept,
            torch.tensor(weights, dtype=self.wide).to(self.problem.device),
            asked.workers[finite].tolist(),
        )

    def _memory(self, group: Indexes, memories: Memories) -> Vectors:
        """What these workers keep, a row each."""
        if not self.first_memory:
            return self.first_memory
        held = [memories.get(int(worker), self.first_memory) for worker in group]
        return self.first_memory.map_named(
            lambda name, _: torch.stack([each[name] for each in held])
        )

    def verify(
        self, server: Vectors, memories: Memories, starts: Indexes, numbers: Mapping[str, float]
    ) -> None:
        """Compare the recorded steps with the module once more, at the weights of the end."""
        self.problem.check_again()
        for place, stage in enumerate(self.scheme.stages):
            if stage.asks:
                continue
            everyone = np.arange(min(len(self.owned), self.chunk))
            sent = server.pick([*stage.down, *([BUFFERS] if BUFFERS in server else [])])
            steps = np.ones_like(everyone)
            asked = Exchange(stage, place, numbers, 0, sent, everyone, steps, starts)
            asked = self._groups(asked)[0]
            with self._draws(asked):
                mine = self._memory(asked.workers, memories)
                workers = len(asked.workers)
                carried = Carried(self._buffers(sent, mine, workers))
                rows = sent.without(BUFFERS).map(lambda v, n=workers: stacked(v, n))  # type: ignore[misc]
                rules = mine.without(BUFFERS)
                grad = next(iter(self._grads(asked, carried)))
                step = self._steps[place].with_numbers(numbers)
                step(replaced(stage, numbers).begin(rows, rules), grad, rows, rules)

    def evaluate(
        self, w: Vector, b: Vector, x: Tensor, y: Tensor, index: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Loss and hit (1 or 0) of each sample in ``index``, at ``w`` and the buffers ``b``."""

        def task(block: Tensor) -> tuple[Tensor, Tensor]:
            return self.problem.evaluate(w, b, x, y, block)

        parts = list(self._pool.ordered(task, self.blocks(index)))
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def outputs(self, w: Vector, b: Vector, x: Tensor, index: Tensor) -> Any:
        """What the model gives for each sample in ``index``, at ``w`` and the buffers ``b``."""

        def task(block: Tensor) -> Any:
            return self.problem.outputs(w, b, x, block)

        return _joined(list(self._pool.ordered(task, self.blocks(index))))

    def blocks(self, index: Tensor) -> tuple[Tensor, ...]:
        """Samples that are evaluated at a time: all, where they depend on each other."""
        width = len(index) if self.problem.facts.mixes_settled else EVALUATION_BLOCK
        return torch.split(index, max(width, 1))

    def _draws(self, asked: Exchange) -> AbstractContextManager[None]:
        """Random draws of the group's models, keyed by round and worker."""
        if self.problem.gradients.plain is None:
            return nullcontext()
        named = int(self.draws.numbers[asked.workers[0]])
        # The stage that trains has the stream of its own; those before it have theirs.
        stream = (asked.place + 1,) if asked.stage.asks else ()
        return private_randomness(_key(self.draws.seed, MODEL, asked.round, named, *stream))

    def _buffers(self, sent: Vectors, mine: Vectors, workers: int) -> Vector:
        """The buffers workers begin with: the server's, their own, or the model's first."""
        if BUFFERS in mine:
            return mine[BUFFERS]
        first = sent.get(BUFFERS, self.problem.initial_buffers)
        return stacked(first, workers).contiguous()

    def _groups(self, asked: Exchange) -> list[Exchange]:
        """Consecutive workers who can be stacked: the same steps, batches of the same width."""
        chunk = 1 if self.problem.gradients.plain else self.chunk
        kinds = asked.steps
        if self.problem.batchwise:  # batches of other widths cannot be stacked without padding
            widths = np.array([self._width(int(worker)) for worker in asked.workers])
            kinds = kinds * (1 + int(widths.max(initial=0))) + widths
        if len(kinds) and bool((kinds == kinds[0]).all()):
            bounds = list(range(0, len(kinds), chunk))
        else:
            bounds = []
            for place in range(len(kinds)):
                begins = not bounds or place - bounds[-1] >= chunk
                if begins or kinds[place] != kinds[bounds[-1]]:
                    bounds.append(place)
        ends = [*bounds[1:], len(kinds)]
        return [asked.among(slice(first, last)) for first, last in zip(bounds, ends, strict=True)]

    def _width(self, worker: int) -> int:
        size = int(self.draws.sizes[worker])
        return min(self.draws.batch, size) if self.draws.batch else size

    def _finite(self, group: Indexes, *bags: Vectors) -> Mask:
        """For each worker of a group, whether all its vectors are finite."""
        found = np.ones(len(group), dtype=bool)
        for vector in (vector for bag in bags for vector in bag.values()):
            # Most are, and one that is not makes the sum so: to add up is the faster way to see it.
            if not bool(vector.sum().isfinite()):
                found &= vector.isfinite().all(-1).cpu().numpy()
        return found

    def _grads(self, asked: Exchange, carried: Carried) -> Iterator[Grad]:
        """Each iteration's mini-batch gradient; a batch is gathered when its turn comes."""
        group, steps = asked.workers, int(asked.steps[0])
        if not steps:
            return
        if self.scheme.gradient:
            given = self.problem, self.scheme.gradient, self.draws, self.owned, carried.rows, group
            for step in range(steps):
                yield PrivateBatch(*given, asked.starts + step)
            return
        if not self.draws.batch:
            for _ in range(steps):
                yield self._full(group, carried, moves=True)
            return
        drawn = [
            self.draws.batches(int(worker), int(start), steps)
            for worker, start in zip(group, asked.starts, strict=True)
        ]
        width = max(positions.shape[1] for positions in drawn)
        width = width if self.problem.batchwise else self.draws.width
        index = np.zeros((steps, len(group), width), dtype=np.int64)
        weight = np.zeros((len(group), width))
        for row, (worker, positions) in enumerate(zip(group, drawn, strict=True)):
            used, mine = positions.shape[1], self.owned[worker]
            index[:, row, :used] = mine[positions]
            index[:, row, used:] = mine[0]
            weight[row, :used] = 1 / used
        weights = self._tensor(weight).to(self.problem.dtype)
        padded = any(positions.shape[1] < width for positions in drawn)
        for rows in self._tensor(index):
            yield MiniBatch(self.problem, rows, self._shared(rows, weights), carried, padded)

    def _shared(self, index: Tensor, weight: Tensor) -> Tensor:
        """Weights of samples that have different shares in a mean: 1 over the batch's shares."""
        if self.problem.shares is None:
            return weight
        used = weight != 0
        total = (self.problem.shares[index] * used).sum(1, keepdim=True)
        # A batch of ignored samples moves nothing, as in torch.
        return torch.where(total > 0, used / total, torch.zeros_like(total)).to(weight)

    def _full(self, group: Indexes, carried: Carried, moves: bool = False) -> Grad:
        """The gradient over all the data of each worker, block by block where that is the same.

        With ``moves``, it is the gradient of an iteration, and the workers' buffers move on.
        """
        sizes = self.draws.sizes[group]
        whole = self.problem.batchwise
        width = int(sizes.max()) if whole else min(GRADIENT_BLOCK, int(sizes.max()))
        moved = not moves

        def full(w: Vector) -> Vector:
            nonlocal moved
            w = stacked(w, len(group)).contiguous()
            if whole and len(set(sizes.tolist())) > 1:
                return self._one_by_one(group, carried, w)
            total = torch.zeros((), device=self.problem.device, dtype=self.wide)
            for first in range(0, int(sizes.max()), width):
                index = np.empty((len(group), width), dtype=np.int64)
                weight = np.zeros((len(group), width))
                for row, worker in enumerate(group):
                    mine = self.owned[worker]
                    block = mine[first : first + width]
                    index[row, : len(block)], index[row, len(block) :] = block, mine[0]
                    total_share = self._total(int(worker))
                    weight[row, : len(block)] = 1 / total_share if total_share else 0.0
                weights = self._tensor(weight).to(self.problem.dtype)
                padded = int(sizes.min()) < first + width
                batch = MiniBatch(
                    self.problem, self._tensor(index), weights, Carried(carried.rows), padded
                )
                total = total + batch(w).to(self.wide)
                if not moved and first + width >= int(sizes.max()):
                    carried.rows, moved = batch.carried.rows, True
            return total.to(self.problem.dtype)

        return full

    def _one_by_one(self, group: Indexes, carried: Carried, w: Vector) -> Vector:
        """Full gradients of workers who cannot be stacked, for they hold different numbers."""
        found = []
        for row in range(len(group)):
            own = Carried(carried.rows[row : row + 1])
            found.append(self._full(group[row : row + 1], own)(w[row : row + 1]))
        return torch.cat(found)

    def _total(self, worker: int) -> float:
        """What a worker's sum of losses is divided by."""
        return float(self.draws.sizes[worker] if self._sums is None else self._sums[worker])

    def _sums_of_shares(self, shares: Tensor) -> NDArray[np.float64]:
        held = shares.cpu().numpy()
        return np.array([held[mine].sum() for mine in self.owned])

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.problem.device)


def first_state(algorithm: Algorithm, problem: Problem) -> Vectors:
    """The server's state before the first round, with the model's buffers if they travel."""
    server = algorithm.init(problem.initial)
    if problem.batch_norm == "averaged" and len(problem.buffers):
        return server.but(**{BUFFERS: problem.initial_buffers})
    return server


def round_bytes(scheme: Scheme, problem: Problem) -> int | None:
    """Most bytes a worker sends and is sent in a round; None where that depends on the numbers."""
    algorithm, controller = scheme.algorithm, scheme.controller
    if algorithm.pooled:
        return 0
    uplink = scheme.uplink
    if any(part.variable for part in (*uplink.parts, *scheme.downlink.parts)):
        return None
    if type(algorithm).draw is not Algorithm.draw:  # its uploads may go whole
        uplink = Chain(tuple(part for part in uplink.parts if not part.compresses))
    w, server = problem.initial, first_state(algorithm, problem)
    total = 0
    for place, stage in enumerate(scheme.stages):
        read = controller.reads if place >= len(controller.before) else ()
        down = {name: len(server.get(name, w)) for name in (*stage.down, *read)}
        up = lengths(algorithm, stage, w)
        if BUFFERS in server:
            down[BUFFERS] = len(server[BUFFERS])
            up |= {} if stage.asks else {BUFFERS: down[BUFFERS]}
        for chain, sizes in ((scheme.downlink, down), (uplink.of(stage), up)):
            like = Vectors(**{n: w.new_zeros(1).expand(size) for n, size in sizes.items()})
            total += chain.layouts(like)[-1].nbytes
    return total


def first_memory(algorithm: Algorithm, problem: Problem) -> Vectors:
    """A worker's first memory: the vectors it keeps between rounds."""
    first = algorithm.memory(problem.initial)
    if problem.batch_norm == "local" and len(problem.buffers):
        return first.but(**{BUFFERS: problem.initial_buffers})
    return first


class GroupData:
    """All the data of n stacked workers, as the rules see them."""

    def __init__(self, engine: Engine, group: Indexes, carried: Carried) -> None:
        self.engine, self.group, self.carried = engine, group, carried

    def gradient(self, w: Vector) -> Vector:
        if self.engine.scheme.gradient:
            raise no_data()
        return self.engine._full(self.group, self.carried)(w)

    def loss(self, w: Vector) -> Vector:
        engine, problem = self.engine, self.engine.problem
        if engine.scheme.gradient:
            raise no_data()
        found = []
        for row, worker in enumerate(self.group):
            index = torch.from_numpy(engine.owned[worker]).to(problem.device)
            at = stacked(w, len(self.group))[row]
            parts = [
                problem.evaluate(at, self.carried.rows[row], problem.x, problem.y, block)[0]
                for block in engine.blocks(index)
            ]
            found.append(problem.mean_loss(torch.cat(parts), problem.y[index]))
        return torch.tensor(found, dtype=torch.float64).unsqueeze(1)


def _row(rows: Vectors, row: int) -> Vectors:
    """One worker's vectors, in memory of their own."""
    return rows.map(lambda vector: vector[min(row, len(vector) - 1)].clone())


def _rows(vector: Vector, wanted: Mask) -> Vector:
    return vector if wanted.all() else vector[torch.from_numpy(wanted).to(vector.device)]


def _joined(parts: list[Any]) -> Any:
    """Outputs of blocks as that of all samples: tensors, or tuples, lists and tables of them."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, Mapping):
        return {name: _joined([part[name] for part in parts]) for name in first}
    if isinstance(first, list | tuple):
        return tuple(_joined([part[i] for part in parts]) for i in range(len(first)))
    return first


def _key(*parts: int) -> int:
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> 1)
