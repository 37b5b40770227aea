"""The training loop: rounds, evaluations, the best model so far, when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isfinite
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fednag.aggregators import Secure
from fednag.core.algorithm import BUFFERS, Algorithm
from fednag.core.attack import attackers
from fednag.core.controller import Setting
from fednag.core.disk import Disk, in_memory
from fednag.core.ending import Ending
from fednag.core.executor import Executor
from fednag.core.keys import Draws, Indexes
from fednag.core.loop import Loop, Scheme
from fednag.core.record import Record
from fednag.core.state import Best, State
from fednag.core.vectors import Vector
from fednag.data.partition import Partition
from fednag.privacy.promise import Accountant
from fednag.problems.metrics import Better, Metric, as_good, improves
from fednag.problems.problem import Problem
from fednag.simulate.engine import Engine, first_state, round_bytes
from fednag.simulate.evaluator import Evaluator, Measures
from fednag.simulate.secured import Secured
from fednag.simulate.tiers import Edges, tiered

MOST_NAMED = 100  # workers refused or missed in a record; all are counted
BLOWN_UP = 100  # a loss this many times the first one does not come back to anything useful


@dataclass(frozen=True)
class Level:
    """A value that a measure has to reach for the run to stop."""

    measure: str
    value: float
    better: Better


@dataclass(frozen=True)
class Patience:
    """How many evaluations may go by without a better value of a measure."""

    evaluations: int
    measure: str
    better: Better
    change: float = 0.0  # by how much a value must be better to count


@dataclass(frozen=True)
class Plateau:
    """How much better, as a share, the mean of a measure has to get from window to window."""

    share: float
    window: int  # evaluations
    measure: str
    better: Better

    def reached(self, seen: Sequence[float]) -> bool:
        """Whether two windows are there, and the mean of the later one is hardly better."""
        if len(seen) < 2 * self.window:
            return False
        before, after = (float(np.mean(part)) for part in np.split(np.array(seen), 2))
        gain = after - before if self.better == "higher" else before - after
        return gain <= self.share * abs(before)


@dataclass(frozen=True, eq=False)
class Plan:
    """Everything that decides a run's numbers, resolved: nothing is left to be guessed."""

    problem: Problem
    partition: Partition
    scheme: Scheme
    tau: int
    iterations: int
    batch: int
    seed: int
    per_round: int | None = None
    evaluate_every: int = 1
    samples: int = 0
    per_worker: bool = False
    stop_accuracy: float | None = None
    stop_loss: float | None = None
    stop_seconds: float | None = None
    stop_metrics: tuple[Level, ...] = ()
    stop_bytes: int | None = None
    patience: Patience | None = None
    plateau: Plateau | None = None
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    chunk: int = 1
    threads: int = 1
    inner: int = 1  # cores that each thread computes on
    deadline: float = inf  # seconds
    without: tuple[int, ...] = ()  # workers who take part in nothing
    # Between workers and server, tier by tier, the workers' first; ``tau`` is that of the server.
    edges: tuple[Edges, ...] = ()
    ledger: bool = False  # whether rounds have entries for one
    on_disk: bool = False  # whether what workers keep between rounds is in files, not in memory
    clock: Callable[[Executor], Executor] | None = None
    """Puts an executor on a clock; without one, everyone answers at once."""
    pace: NDArray[np.float64] | None = None  # seconds of each worker's iteration, on that clock
    privacy: Accountant | None = None
    releasing: Callable[[int], None] | None = None
    """Told, before a round, how many rounds there will have been."""

    @property
    def algorithm(self) -> Algorithm:
        return self.scheme.algorithm

    @property
    def setting(self) -> Setting:
        """What is the same in all rounds, for the controller."""
        sizes = self.sizes
        cohort = min(self.per_round or len(sizes), len(sizes))
        # To count is to try the transforms.
        counts = self.stop_bytes is not None or self.scheme.controller.needs_bytes
        return Setting(
            self.seed,
            self.tau,
            self.iterations,
            cohort,
            sizes,
            self.deadline,
            self.without,
            self.batch,
            self.pace,
            round_bytes(self.scheme, self.problem) if counts else None,
        )

    @property
    def rounds(self) -> int:
        return ceil(self.iterations / self.tau)

    @property
    def owned(self) -> Sequence[Indexes]:
        """Each worker's samples; a centralised method has one worker with all of them."""
        return self._dealt.workers

    @property
    def sizes(self) -> Indexes:
        """How many samples each worker has."""
        return self._dealt.sizes

    @property
    def _dealt(self) -> Partition:
        return self.partition.pooled() if self.algorithm.pooled else self.partition


def trained_on(plan: Plan) -> Problem:
    """The plan's problem, with the labels that attackers of it change."""
    problem, dataset = plan.problem, plan.problem.dataset
    flipping = [attack for attack in plan.scheme.attacks if attack.flips]
    if not flipping:
        return problem
    assert dataset.classes is not None
    y = dataset.y.clone()
    for attack in flipping:
        for worker in attack.attackers(plan.seed, len(plan.owned)):
            mine = torch.from_numpy(plan.owned[worker])
            y[mine] = attack.labels(y[mine], dataset.classes)
    return problem.relabelled(y)


class Trainer(Protocol):
    """An executor, and how the server's model is evaluated."""

    @property
    def executor(self) -> Executor: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *_: object) -> None: ...

    def measure(self, state: State) -> Measures:
        """Evaluate the server's model."""

    def verify(self, state: State) -> None:
        """Compare the recordings with the user's module a last time."""

    def tested(self, state: State) -> Mapping[str, float | None]:
        """Measures on the test samples, of a run that was evaluated on a validation part."""


class Local:
    """Trains on threads of this machine, with all data at hand."""

    def __init__(self, plan: Plan, draws: Draws) -> None:
        self.scheme, self.iterations = plan.scheme, plan.iterations
        self.engine = Engine(
            trained_on(plan),
            plan.scheme,
            plan.owned,
            draws,
            chunk=plan.chunk,
            threads=plan.threads,
            inner=plan.inner,
            attackers=attackers(plan.scheme.attacks, plan.seed, len(plan.owned)),
        )
        executor: Executor = self.engine
        if isinstance(plan.scheme.aggregator, Secure):
            executor = Secured(self.engine, plan.scheme.aggregator)
        if plan.edges:
            executor = tiered(self.engine, plan.edges, plan.setting)
        self.executor = plan.clock(executor) if plan.clock else executor
        self.evaluator = Evaluator(
            self.engine, plan.owned, plan.seed, plan.samples, plan.per_worker, plan.metrics,
            plan.problem,
        )  # fmt: skip

    def __enter__(self) -> Local:
        self.engine.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.__exit__()

    def measure(self, state: State) -> Measures:
        return self.evaluator(state.server.w, self._buffers(state))

    def verify(self, state: State) -> None:
        numbers = self.scheme.numbers(state.iteration, self.iterations)
        self.engine.verify(state.server, state.memories, state.starts, numbers)
        self.evaluator.verify(state.server.w, self._buffers(state))

    def tested(self, state: State) -> Mapping[str, float | None]:
        mine = self.evaluator
        problem = mine.problem.on_held_back()
        if problem is None:
            return {}
        # One training sample: its loss is known.
        judge = Evaluator(self.engine, mine.owned, mine.seed, 1, False, mine.metrics, problem)
        found = judge(state.server.w, self._buffers(state))
        return {"accuracy": found.accuracy, "test_loss": found.test_loss, **found.metrics}

    def _buffers(self, state: State) -> Vector:
        """Those the model is measured with: (k,), or every worker's own, (n, k)."""
        first = self.engine.first_memory
        if BUFFERS in first:
            held = [state.memories.get(i, first)[BUFFERS] for i in range(len(state.starts))]
            return torch.stack(held)
        return state.server.get(BUFFERS, self.engine.problem.initial_buffers)


def simulate(
    plan: Plan,
    resumed: State | None = None,
    trainer: Trainer | None = None,
    disk: Disk | None = None,
) -> Iterator[State]:
    """Run a plan; yields the state before training and after every round.

    From the state of an earlier run it goes on as that one would have, to the bit. Without a
    ``trainer``, the workers' side is computed here. What workers keep goes to ``disk``, or to
    temporary files, if the plan says so.
    """
    first = _housed(plan, begun(plan) if resumed is None else resumed, disk)
    with trainer or Local(plan, Draws(plan.seed, plan.sizes, plan.batch)) as present:
        training = _Training(plan, present, plan.setting)
        state = training.start(first) if resumed is None else training.restart(first)
        del first  # rows of states that nothing refers to are used again
        yield state
        while state.ended is None:
            state = training.advance(state)
            yield state


def begun(plan: Plan) -> State:
    """The state before the first round."""
    return State(
        first_state(plan.algorithm, plan.problem),
        np.zeros(len(plan.owned), dtype=np.int64),
        control=plan.scheme.controller.init(),
    )


def _housed(plan: Plan, state: State, disk: Disk | None) -> State:
    """The state with what workers keep on the disk, or in memory, as the plan says."""
    if not plan.on_disk:
        kept = in_memory(state.memories), in_memory(state.residues)
    else:
        disk = disk or Disk()
        kept = disk.memories(state.memories), disk.residues(state.residues)
    return replace(state, memories=kept[0], residues=kept[1])


class _Training:
    """Rounds, evaluations, the best model so far, when to stop."""

    def __init__(self, plan: Plan, trainer: Trainer, setting: Setting) -> None:
        self.plan, self.trainer = plan, trainer
        self.loop = Loop(plan.scheme, setting, trainer.executor, plan.ledger)
        self.began = time.monotonic()

    def start(self, state: State) -> State:
        state = self._measure(state)
        if state.record is not None and state.record.loss is not None:
            state = replace(state, first_loss=state.record.loss)
        return self._ended(state)

    def restart(self, state: State) -> State:
        self.began -= state.seconds
        # Rounds that are replayed may have cost what there was left.
        if self._spent(state):
            assert self.plan.privacy is not None
            value = self.plan.privacy.budget
            return replace(state, ended=Ending("privacy", state.iteration, value=value))
        return state

    def advance(self, state: State) -> State:
        """A round, and an evaluation if it is due."""
        plan = self.plan
        if plan.releasing:
            plan.releasing(state.round + 1)
        before = state.bytes_up + state.bytes_down
        state = replace(self.loop.advance(state), seconds=time.monotonic() - self.began)
        dearest = max(state.dearest, state.bytes_up + state.bytes_down - before)
        state = replace(state, dearest=dearest)
        last = state.iteration >= plan.iterations
        out_of_time = _reached(state.seconds, plan.stop_seconds)
        last = last or out_of_time or state.diverged or self._spent(state)
        last = last or self._over(state) is not None
        if last or state.round % plan.evaluate_every == 0:
            state = self._measure(state)
        state = self._ended(state)
        if state.ended is not None and not state.diverged:
            self.trainer.verify(state)
        return state

    def _spent(self, state: State) -> bool:
        """Whether another round would cost more privacy than there is."""
        privacy = self.plan.privacy
        return privacy is not None and not privacy.allows(state.round + 1)

    def _over(self, state: State) -> Ending | None:
        """Why there is no further round: the controller says so, or the bytes would not do."""
        plan, setting, most = self.plan, self.loop.setting, self.plan.stop_bytes
        if ended := plan.scheme.controller.over(state.control, state.news, setting):
            return ended
        if most is None:
            return None
        next_one = max(state.dearest, (setting.bytes or 0) * setting.cohort)
        if state.bytes_up + state.bytes_down + next_one <= most:
            return None
        return Ending("budget", state.iteration, "bytes", most)

    def _measure(self, state: State) -> State:
        """Evaluate the server's model: a record, and w^f if it is the best so far."""
        found = self.trainer.measure(state)
        loss = found.loss
        blown_up = state.diverged or loss > BLOWN_UP * max(state.first_loss, 1e-3)
        blown_up = blown_up or not np.isfinite(loss)
        best = state.best
        if not blown_up and state.round and (best is None or loss < best.loss):
            held = state.server
            buffers = held.get(BUFFERS, None)
            best = Best(held.w, loss, state.iteration, buffers)
        record = Record(
            iteration=state.iteration,
            round=state.round,
            loss=None if blown_up else loss,
            accuracy=None if blown_up else found.accuracy,
            train_accuracy=None if blown_up else found.train_accuracy,
            bytes_up=state.bytes_up,
            bytes_down=state.bytes_down,
            seconds=round(time.monotonic() - self.began, 4),
            participants=state.participants,
            worker_losses=None if blown_up else found.worker_losses,
            refusals=state.refusals,
            refused=state.refused[:MOST_NAMED],
            clock=state.clock if self.plan.clock else None,
            misses=state.misses,
            missed=state.missed[:MOST_NAMED],
            test_loss=None if blown_up else found.test_loss,
            metrics=dict.fromkeys(found.metrics) if blown_up else found.metrics,
            rounds=state.rounds,
            epsilon=self._epsilon(state),
            tiers=state.tiers,
        )
        state = replace(state, record=record, best=best, diverged=blown_up)
        return self._waited(state, record)

    def _epsilon(self, state: State) -> float | None:
        epsilon = self.plan.privacy.epsilon(state.round) if self.plan.privacy else inf
        return epsilon if isfinite(epsilon) else None

    def _waited(self, state: State, record: Record) -> State:
        """Count evaluations without a better value; one without any value does not count."""
        patience, plateau = self.plan.patience, self.plan.plateau
        level = record.measured(plateau.measure) if plateau else None
        if plateau and level is not None:
            state = replace(state, seen=(*state.seen, level)[-2 * plateau.window :])
        value = record.measured(patience.measure) if patience else None
        if patience is None or value is None:
            return state
        best = state.watched
        if best is None or improves(value, best, patience.change, patience.better):
            return replace(state, watched=value, waited=0)
        return replace(state, waited=state.waited + 1)

    def _ended(self, state: State) -> State:
        plan, record, at = self.plan, state.record, state.iteration
        ended = None
        if state.diverged:
            ended = Ending("diverged", at)
        elif record and _reached(record.accuracy, plan.stop_accuracy):
            ended = Ending("target", at, "accuracy", plan.stop_accuracy)
        elif record and _reached(_negative(record.loss), _negative(plan.stop_loss)):
            ended = Ending("target", at, "loss", plan.stop_loss)
        elif level := self._level(record):
            ended = Ending("target", at, level.measure, level.value)
        elif at >= plan.iterations:
            ended = Ending("finished", at)
        elif over := self._over(state):
            ended = over
        elif plan.privacy and self._spent(state):
            ended = Ending("privacy", at, value=plan.privacy.budget)
        elif plan.patience and state.waited >= plan.patience.evaluations:
            ended = Ending("patience", at, plan.patience.measure, plan.patience.evaluations)
        elif record and plan.plateau and plan.plateau.reached(state.seen):
            ended = Ending("plateau", at, plan.plateau.measure, 2 * plan.plateau.window)
        elif _reached(state.seconds, plan.stop_seconds):
            ended = Ending("seconds", at, value=plan.stop_seconds)
        if ended is not None and record is not None and not state.diverged:
            record = replace(record, tested=self.trainer.tested(state))
        return replace(state, ended=ended, record=record)

    def _level(self, record: Record | None) -> Level | None:
        """The first of the metrics' levels that a record reaches."""
        for level in self.plan.stop_metrics if record else ():
            if record and as_good(record.measured(level.measure), level.value, level.better):
                return level
        return None


def _reached(value: float | None, target: float | None) -> bool:
    return value is not None and target is not None and value >= target


def _negative(value: float | None) -> float | None:
    return None if value is None else -value
