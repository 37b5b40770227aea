"""How chunk and threads are chosen, with a clock that says what the test wants."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

import fednag
from fednag import FedNAG
from fednag.api import run_all
from fednag.config import parse, read
from fednag.problems.data import load
from fednag.problems.problem import Problem
from fednag.simulate import tuning
from fednag.simulate.tuning import choose, sizes


@pytest.fixture
def problem() -> Problem:
    torch.manual_seed(0)
    return Problem(load("digits"), nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


@dataclass(frozen=True)
class Alone(FedNAG):
    elementwise = False


def clock(monkeypatch: pytest.MonkeyPatch, seconds: dict[int, float]) -> list[tuple[int, int]]:
    """Replace the timer; returns the (chunk, threads) it is asked about."""
    asked: list[tuple[int, int]] = []

    def time_per_worker(iteration: tuning.Iteration, chunk: int, width: int, threads: int) -> float:
        asked.append((chunk, threads))
        return seconds[chunk]

    monkeypatch.setattr(tuning, "time_per_worker", time_per_worker)
    monkeypatch.setattr(tuning, "PATIENCE", 0.0)
    monkeypatch.setattr(tuning, "cores", lambda: 2)
    return asked


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


def test_the_fastest_chunk_is_taken(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = clock(monkeypatch, {1: 9.0, 2: 5.0, 4: 3.0, 8: 2.0, 16: 2.5, 32: 2.4})
    choice = choose(problem, FedNAG(), 32, 8)
    assert (choice.chunk, choice.threads, choice.notes) == (8, 2, ())
    assert asked == [(1, 2), (2, 2), (4, 2), (8, 2), (16, 2), (32, 1)]
    assert choice.seconds[16] == 2.5


def test_much_slower_ends_the_search(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = clock(monkeypatch, {1: 1.0, 2: 1.4})
    assert choose(problem, FedNAG(), 32, 8).chunk == 1
    assert asked == [(1, 2), (2, 2)]


def test_of_equals_the_smaller(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    clock(monkeypatch, {1: 2.0, 2: 1.01, 4: 1.0, 8: 1.01, 16: 1.02, 32: 1.0})
    assert choose(problem, FedNAG(), 32, 8).chunk == 2


def test_one_thread_must_be_clearly_faster(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, {1: 2.0, 2: 1.0, 4: 0.7})
    assert choose(problem, FedNAG(), 4, 8).chunk == 2
    clock(monkeypatch, {1: 2.0, 2: 1.0, 4: 0.6})
    assert choose(problem, FedNAG(), 4, 8).chunk == 4


def test_what_is_given_is_not_timed(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = clock(monkeypatch, {})
    assert choose(problem, FedNAG(), 32, 8, chunk=5).chunk == 5
    assert choose(problem, FedNAG(), 3, 8, chunk=5).chunk == 3
    assert choose(problem, FedNAG(), 32, 8, chunk=5, threads=7).threads == 7
    assert choose(problem, FedNAG(), 1, 8).chunk == 1
    assert choose(problem, Alone(), 32, 8).chunk == 1
    assert asked == []


def test_the_real_timer_times(problem: Problem) -> None:
    choice = choose(problem, FedNAG(), 8, 16, threads=2)
    assert choice.chunk in sizes(8, 2)
    assert all(0 < seconds < 1 for seconds in choice.seconds.values())


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
    assert asked == [(1, 2), (2, 2), (4, 1)]
    chunks = {run.label: run.experiment.engine.chunk for run in result.runs}
    assert chunks == {"fednag": 2, "csgd": 1, "fedavg": 2}
