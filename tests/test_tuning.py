"""How chunk and threads are chosen, with a clock that says what the test wants."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fednag
from fednag import FedNAG
from fednag.algorithm import Algorithm, Grad
from fednag.algorithms import ALGORITHMS
from fednag.api import run_all
from fednag.config import parse, read
from fednag.problems.data import load
from fednag.problems.problem import Problem
from fednag.simulate import tuning
from fednag.simulate.schedule import Schedule
from fednag.simulate.tuning import choose, sizes
from fednag.vectors import Vectors


@pytest.fixture
def problem() -> Problem:
    torch.manual_seed(0)
    return Problem(load("digits"), nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


@dataclass(frozen=True)
class Alone(FedNAG):
    elementwise = False


def clock(
    monkeypatch: pytest.MonkeyPatch,
    seconds: dict[int, float],
    walls: dict[int, float] | None = None,
) -> list[int]:
    """Replace the timers; returns the chunks whose processor time is asked for."""
    asked: list[int] = []

    def processor(trial: tuning.Trial, chunk: int) -> float:
        asked.append(chunk)
        return seconds[chunk]

    def wall(trial: tuning.Trial, chunk: int, workers: int, threads: int) -> float:
        assert threads == min(2, -(-workers // chunk))
        return (walls or {}).get(chunk, 1.0)

    monkeypatch.setattr(tuning.Trial, "processor", processor)
    monkeypatch.setattr(tuning.Trial, "wall", wall)
    monkeypatch.setattr(tuning, "PATIENCE", 0.0)
    monkeypatch.setattr(tuning, "cores", lambda: 2)
    return asked


FEDNAG = FedNAG()


def choice_of(
    problem: Problem, workers: int, algorithm: FedNAG = FEDNAG, **options: int
) -> tuning.Choice:
    owned = [np.arange(20)] * workers
    schedule = Schedule(0, [20] * workers, 8)
    return choose(problem, algorithm, owned, schedule, 4, **options)


def test_sizes_share_workers_evenly() -> None:
    assert sizes(100, 2) == [1, 2, 4, 7, 13, 25, 50]
    assert sizes(4, 2) == [1, 2, 4]
    assert sizes(1, 2) == [1]
    assert sizes(3, 8) == [1, 2, 3]
    assert sizes(10, 4) == [1, 2, 3, 5, 10]
    assert max(sizes(10_000, 2)) <= tuning.MOST_STACKED
    for participants in range(1, 70):
        for threads in (1, 2, 3):
            found = sizes(participants, threads)
            assert found[0] == 1
            assert -(-participants // threads) in found or participants > tuning.MOST_STACKED
            assert found[-1] <= participants


ALONE = {1: 9.0, 2: 5.0, 4: 2.5, 8: 2.0, 16: 2.1, 32: 4.0}


def test_the_fastest_in_whole_rounds_is_taken(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task alone says only who is worth a round: there the order may be another."""
    asked = clock(monkeypatch, ALONE, walls={4: 2.0, 8: 2.2, 16: 1.5, 32: 9.0})
    choice = choice_of(problem, 32)
    assert (choice.chunk, choice.threads, choice.notes) == (16, 2, ())
    assert asked == [1, 2, 4, 8, 16, 32, 32]
    assert choice.seconds == {4: 2.0, 8: 2.2, 16: 1.5, 32: 9.0}


def test_the_best_of_several_turns_counts(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, ALONE)
    turns = {4: [1.4, 1.4], 8: [9.0, 1.0], 16: [1.2, 9.0], 32: [9.0, 9.0]}
    monkeypatch.setattr(tuning.Trial, "wall", lambda trial, chunk, *_: turns.get(chunk, [1]).pop(0))
    monkeypatch.setattr(tuning.Trial, "__init__", lambda *_: None)
    assert choice_of(problem, 32).chunk == 8
    assert all(not left for left in turns.values())


def test_much_slower_ends_the_search(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = clock(monkeypatch, {1: 1.0, 2: 1.4})
    assert choice_of(problem, 32).chunk == 1
    assert asked == [1, 2, 2]


def test_of_equals_the_smaller(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, ALONE, walls={4: 1.1, 8: 1.01, 16: 1.0, 32: 1.0})
    assert choice_of(problem, 32).chunk == 8


def test_fewer_threads_must_be_clearly_faster(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {1: 2.0, 2: 1.0, 4: 0.7}
    clock(monkeypatch, seconds, walls={2: 1.0, 4: 0.95})
    assert choice_of(problem, 4).chunk == 2
    clock(monkeypatch, seconds, walls={2: 1.0, 4: 0.85})
    assert choice_of(problem, 4).chunk == 4


def test_what_is_given_is_not_timed(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = clock(monkeypatch, {})
    assert choice_of(problem, 32, chunk=5).chunk == 5
    assert choice_of(problem, 3, chunk=5).chunk == 3
    assert choice_of(problem, 32, chunk=5, threads=7).threads == 7
    assert choice_of(problem, 1).chunk == 1
    assert choice_of(problem, 32, Alone()).chunk == 1
    assert asked == []


@pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
@pytest.mark.parametrize("batch", [16, 0])
def test_the_real_timer_times_every_method(
    problem: Problem, algorithm: type[Algorithm], batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "PATIENCE", 0.0)
    owned = [np.arange(size) for size in (20, 300, 40, 5, 60, 70, 80, 90)]
    schedule = Schedule(0, [len(mine) for mine in owned], batch)
    choice = choose(problem, algorithm(), owned, schedule, 3, threads=2)
    assert choice.chunk in sizes(8, 2)
    assert set(choice.seconds) <= set(sizes(8, 2))
    assert all(0 < seconds < 1 for seconds in choice.seconds.values())


def test_what_others_compute_does_not_count(problem: Problem) -> None:
    """A thread that sleeps, as one does that waits for a core, takes no processor time."""
    owned, schedule = [np.arange(20)] * 4, Schedule(0, [20] * 4, 8)
    trial = tuning.Trial(problem, FedNAG(), owned, schedule, 3)

    class Slept(FedNAG):
        def end(
            self, local: Vectors, sent: Vectors, mine: Vectors, full: Grad, steps: int
        ) -> tuple[Vectors, Vectors]:
            time.sleep(0.2)
            return super().end(local, sent, mine, full, steps)

    slept = tuning.Trial(problem, Slept(), owned, schedule, 3)
    assert slept.wall(2, 2, 1) * 2 * slept.steps >= 0.2
    assert slept.processor(2) * 2 * slept.steps < 0.2
    assert trial.steps == 3


def test_the_choice_is_kept_and_repeats_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"model": "logistic", "workers": 6, "tau": 3, "iterations": 12, "batch": 8}
    clock(monkeypatch, {1: 9.0, 2: 5.0, 3: 1.0, 6: 1.2})
    first = fednag.run(FedNAG(), **arguments, out=tmp_path / "a")
    assert first.folder is not None
    kept = parse(read(first.folder / "config.toml"))
    assert (kept.engine.chunk, kept.engine.threads) == (3, 2)
    clock(monkeypatch, {})  # a second choice would fail here
    (again,) = run_all([("fednag", kept, None)], None, tmp_path / "b")
    assert [r.loss for r in again.records] == [r.loss for r in first.records]
    for name, value in again.final.state_dict().items():
        assert torch.equal(value, first.final.state_dict()[name])


def test_methods_that_are_compared_share_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = clock(monkeypatch, {1: 2.0, 2: 1.0, 4: 1.2})
    arguments = {"model": "logistic", "workers": 4, "tau": 2, "iterations": 4, "batch": 8}
    result = fednag.compare(["fednag", "csgd", "fedavg"], **arguments)
    assert asked == [1, 2, 4]
    chunks = {run.label: run.experiment.engine.chunk for run in result.runs}
    assert chunks == {"fednag": 2, "csgd": 1, "fedavg": 2}
