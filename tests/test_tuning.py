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
from fednag.algorithms import ALGORITHMS
from fednag.api import run_all
from fednag.compute.randomness import private_randomness
from fednag.config import parse, read
from fednag.core.algorithm import WorkerData
from fednag.core.keys import Draws
from fednag.core.loop import Scheme
from fednag.core.vectors import Vectors
from fednag.data.dataset import Dataset
from fednag.data.sets import load
from fednag.problems.problem import Problem
from fednag.simulate import tuning
from fednag.simulate.tuning import Trial, Turn, choose, sizes


@pytest.fixture
def problem() -> Problem:
    torch.manual_seed(0)
    return Problem(load("digits"), nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))


@dataclass(frozen=True)
class Alone(FedNAG):
    elementwise = False


def clock(
    monkeypatch: pytest.MonkeyPatch,
    alone: dict[int, float],
    rounds: dict[int, float] | None = None,
    walls: dict[int, float] | None = None,
) -> list[int]:
    """Replace the timers; returns the chunks that take turns, in their order."""
    turns: list[int] = []

    def round_of(trial: Trial, chunk: int, workers: int, threads: int, inner: int = 0) -> Turn:
        assert threads == min(2, -(-workers // chunk))
        turns.append(chunk)
        return Turn((walls or {}).get(chunk, 1.0), (rounds or {}).get(chunk, 1.0))

    monkeypatch.setattr(Trial, "alone", lambda trial, chunk: alone[chunk])
    monkeypatch.setattr(Trial, "round", round_of)
    timed(monkeypatch)
    monkeypatch.setattr(tuning, "cores", lambda: 2)
    return turns


def timed(monkeypatch: pytest.MonkeyPatch, seconds: float = 60.0, turns: int = 3) -> None:
    """Have chunks timed, however short the run: for so long, and so many turns at most."""
    monkeypatch.setattr(tuning, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "MOST_SECONDS", seconds)
    monkeypatch.setattr(tuning, "allowed", lambda run: seconds)
    monkeypatch.setattr(tuning, "MOST_TURNS", turns)


FEDNAG = FedNAG()


def choice_of(
    problem: Problem, workers: int, algorithm: FedNAG = FEDNAG, **options: int
) -> tuning.Choice:
    owned = [np.arange(20)] * workers
    draws = Draws(0, [20] * workers, 8)
    return choose(problem, Scheme(algorithm), owned, draws, 4, participants=workers, **options)


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


def test_the_fastest_in_whole_rounds_is_taken(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task alone says only who is worth a turn: in rounds the order may be another."""
    alone = {1: 9.0, 2: 5.0, 4: 2.5, 8: 2.0, 15: 2.1, 30: 4.0}
    turns = clock(monkeypatch, alone, rounds={4: 2.0, 8: 2.2, 15: 1.9})
    choice = choice_of(problem, 30)
    assert (choice.chunk, choice.threads, choice.notes) == (15, 2, ())
    assert set(turns) == {4, 8, 15}
    assert choice.seconds == {4: 2.0, 8: 2.2, 15: 1.9}


def test_the_best_of_several_turns_counts(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, {1: 9.0, 2: 2.0, 4: 2.0, 8: 9.0})
    said = {2: [1.0, 1.1, 1.2], 4: [9.0, 0.9, 9.0]}
    monkeypatch.setattr(Trial, "round", lambda trial, chunk, *_: Turn(1.0, said[chunk].pop(0)))
    assert choice_of(problem, 8).chunk == 4


def test_who_is_clearly_behind_takes_no_more_turns(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = {1: 9.0, 2: 2.0, 4: 2.0, 8: 2.0, 15: 9.0}
    turns = clock(monkeypatch, alone, rounds={2: 1.3, 4: 1.0, 8: 1.05})
    timed(monkeypatch, turns=40)
    assert choice_of(problem, 30).chunk == 4
    assert turns.count(2) == tuning.FAIR_TURNS
    assert turns.count(4) == turns.count(8) == tuning.MOST_TURNS


def test_timing_is_a_small_part_of_a_run(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a short run, less than a second of any but a long one."""
    now = [0.0]
    clock(monkeypatch, {1: 9.0, 2: 0.002, 4: 0.002, 8: 9.0})
    monkeypatch.undo()
    monkeypatch.setattr(tuning.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(tuning, "_plain_seconds", lambda *_: 0.001)
    monkeypatch.setattr(tuning, "cores", lambda: 2)

    def alone(trial: Trial, chunk: int) -> float:
        now[0] += 0.05
        return 0.002

    def round_of(trial: Trial, chunk: int, *_: int) -> Turn:
        now[0] += 0.05
        return Turn(1.0, 1.0)

    monkeypatch.setattr(Trial, "alone", alone)
    monkeypatch.setattr(Trial, "round", round_of)
    monkeypatch.setattr(Trial, "__init__", lambda *_: None)
    monkeypatch.setattr(Trial, "inner", 1, raising=False)
    spent = []
    for iterations in (500, 4_000, 12_000, 50_000, 10**9):  # 2, 16, 48, 200 seconds, and for ever
        now[0] = 0.0
        choice = choice_of(problem, 8, iterations=iterations)
        spent.append(round(now[0], 1))
    assert spent[0] == 0  # the rule: all that a thread has
    assert choice_of(problem, 8, iterations=500) == tuning.Choice(4, 2)
    assert spent[1:] == pytest.approx([0.48, 0.96, 4.0, 8.0], abs=0.3)
    assert choice.seconds


def test_the_rule_stacks_small_models_alone() -> None:
    def guess(module: nn.Module, shape: tuple[int, ...], plain: float, workers: int = 8) -> int:
        x, y = torch.zeros(4, *shape), torch.zeros(4, dtype=torch.int64)
        own = Problem(Dataset("own", x, y, x[:0], y[:0], 2), module)
        return tuning._guess(own, plain, workers, 2)

    small = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    assert guess(small, (1, 8, 8), 0.001) == 4
    assert guess(small, (1, 8, 8), 0.001, workers=1000) == 63
    assert guess(small, (1, 8, 8), 0.1) == 1
    assert guess(nn.Sequential(nn.Flatten(), nn.Linear(64, 10_000)), (1, 8, 8), 0.001) == 1
    assert (
        guess(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 2)), (1, 8, 8), 0.001)
        == 1
    )


@pytest.mark.parametrize("workers", [1, 4])
def test_a_large_model_may_have_all_cores_for_one_task(
    problem: Problem, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock(monkeypatch, {1: 1.0, 2: 1.6})
    monkeypatch.setattr(tuning, "_plain_seconds", lambda *_: 0.1)
    walls = {}

    def round_of(trial: Trial, chunk: int, many: int, threads: int, inner: int = 0) -> Turn:
        return Turn(walls[threads, inner], 1.0)

    monkeypatch.setattr(Trial, "round", round_of)
    apart = min(2, workers)
    for together, expected in ((0.9, (1, 1, 2)), (0.99, (1, 2, 1)), (1.2, (1, 2, 1))):
        walls.update({(apart, 1): 1.0, (1, 2): together})
        choice = choice_of(problem, workers)
        assert (choice.chunk, choice.threads, choice.inner) == expected
    assert choice_of(problem, workers, threads=2).inner == 1  # what is given stays
    # Without time to find out: by the rule.
    monkeypatch.setattr(tuning, "LEAST_SECONDS", 1e9)
    assert choice_of(problem, workers).inner == (2 if workers == 1 else 1)
    monkeypatch.setattr(tuning, "HEAVY", 10)
    assert choice_of(problem, workers).inner == 2


def test_tasks_on_several_cores_give_the_same_numbers(tmp_path: Path) -> None:
    arguments = {"model": "cnn", "workers": 2, "tau": 2, "iterations": 4, "batch": 8}
    runs = [
        fednag.run("fednag", **arguments, engine={"chunk": 1, "threads": t, "inner": n})
        for t, n in ((2, 1), (1, 2))
    ]
    losses = [[record.loss for record in run.records] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert torch.get_num_threads() >= 1


def test_much_slower_ends_the_search(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = clock(monkeypatch, {1: 1.0, 2: 1.6})  # of larger chunks nothing is asked
    assert choice_of(problem, 32).chunk == 1
    assert turns == []


def test_of_equals_the_smaller(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = {1: 9.0, 2: 2.0, 4: 2.0, 8: 2.0, 15: 9.0}
    clock(monkeypatch, alone, rounds={2: 1.1, 4: 1.01, 8: 1.0})
    assert choice_of(problem, 30).chunk == 4


def test_fewer_threads_must_be_clearly_faster_on_the_wall(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, rounds = {1: 2.0, 2: 1.0, 4: 0.7}, {2: 1.0, 4: 0.1}
    clock(monkeypatch, alone, rounds, walls={2: 1.0, 4: 0.95})
    assert choice_of(problem, 4).chunk == 2
    clock(monkeypatch, alone, rounds, walls={2: 1.0, 4: 0.85})
    assert choice_of(problem, 4).chunk == 4


def test_what_is_given_is_not_timed(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = clock(monkeypatch, {})
    assert choice_of(problem, 32, chunk=5).chunk == 5
    assert choice_of(problem, 3, chunk=5).chunk == 3
    assert choice_of(problem, 32, chunk=5, threads=7).threads == 7
    assert choice_of(problem, 1).chunk == 1
    assert choice_of(problem, 32, Alone()).chunk == 1
    assert turns == []


@pytest.mark.parametrize(
    ("name", "batch"), [*((name, 16) for name in ALGORITHMS), ("fednag", 0), ("mime", 0)]
)
def test_the_real_timer_times_every_method(
    problem: Problem, name: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed(monkeypatch, 0.2)
    owned = [np.arange(size) for size in (20, 300, 40, 5, 60, 70, 80, 90)]
    draws = Draws(0, [len(mine) for mine in owned], batch)
    choice = choose(problem, Scheme(ALGORITHMS[name]()), owned, draws, 3, participants=8, threads=2)
    assert choice.chunk in sizes(8, 2)
    assert set(choice.seconds) <= set(sizes(8, 2))
    assert all(0 < seconds < 1 for seconds in choice.seconds.values())


def test_what_others_compute_does_not_count(problem: Problem) -> None:
    """A thread that sleeps, as one does that waits for a core, takes no processor time."""
    owned, draws = [np.arange(20)] * 4, Draws(0, [20] * 4, 8)

    class Slept(FedNAG):
        def end(
            self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
        ) -> tuple[Vectors, Vectors]:
            time.sleep(0.2)
            return super().end(local, sent, mine, data, steps)

    slept = Trial(problem, Scheme(Slept()), owned, draws, 3)
    turn, workers = slept.round(2, 4, 2), 4
    assert turn.wall * workers * slept.steps(workers) >= 0.2
    assert 0 < turn.processor * workers * slept.steps(workers) < 0.2
    assert slept.alone(2) * 2 * slept.steps(1) < 0.2
    assert slept.steps(4) == 3  # all of them: they take next to nothing
    slept.step = tuning.MOMENT / 10
    assert [slept.steps(workers) for workers in (1, 5, 100)] == [3, 2, 1]


def test_what_a_round_costs_besides_is_not_taken_for_its_iterations(problem: Problem) -> None:
    """Else timed rounds would be cut short, and larger chunks, with fewer tasks, look better."""

    class Ending(FedNAG):
        def end(
            self, local: Vectors, sent: Vectors, mine: Vectors, data: WorkerData, steps: int
        ) -> tuple[Vectors, Vectors]:
            until = time.process_time() + 0.02
            while time.process_time() < until:
                pass
            return super().end(local, sent, mine, data, steps)

    trial = Trial(problem, Scheme(Ending()), [np.arange(20)] * 4, Draws(0, [20] * 4, 8), 20)
    assert trial.step < 0.02 / 5
    assert trial.steps(4) == 20


def test_what_a_gpu_computes_is_waited_for(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is needed: what is asked of torch is."""
    waited: list[bool] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: waited.append(True))
    tuning._clock_of(problem)()
    assert not waited
    monkeypatch.setattr(problem, "device", torch.device("cuda"))
    clock = tuning._clock_of(problem)
    assert 0 < clock() <= clock()
    assert len(waited) == 2


def test_generators_of_gpus_are_left_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    set_to: list[list[str]] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: ["before"])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", set_to.append)
    with private_randomness():
        assert set_to == []
    assert set_to == [["before"]]


def test_the_choice_is_kept_and_repeats_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"model": "logistic", "workers": 6, "tau": 3, "iterations": 12, "batch": 8}
    clock(monkeypatch, {1: 9.0, 2: 5.0, 3: 1.0, 6: 1.2})
    first = fednag.run(FedNAG(), **arguments, out=tmp_path / "a")
    assert first.folder is not None
    (note,) = first.notes
    assert note.startswith("chunk 3 chosen by timing; config.toml has it")
    kept = parse(read(first.folder / "config.toml"))
    assert (kept.engine.chunk, kept.engine.threads) == (3, 2)
    clock(monkeypatch, {})  # a second choice would fail here
    resumed = fednag.run(FedNAG(), **arguments, out=tmp_path / "a", resume=True)
    assert resumed.folder == first.folder
    (again,) = run_all([("fednag", kept, None)], None, tmp_path / "b")
    assert again.notes == []  # nothing was left to a timer
    assert [r.loss for r in again.records] == [r.loss for r in first.records]
    for name, value in again.final.state_dict().items():
        assert torch.equal(value, first.final.state_dict()[name])


@pytest.mark.parametrize("resume", [False, True])
def test_methods_that_are_compared_share_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    turns = clock(monkeypatch, {1: 2.0, 2: 1.0, 4: 1.2})
    arguments = {"model": "logistic", "workers": 4, "tau": 2, "iterations": 4, "batch": 8}
    result = fednag.compare(["fednag", "csgd", "fedavg"], **arguments, out=tmp_path, resume=resume)
    assert turns == [2, 4] * 3  # once for all
    chunks = {run.label: run.experiment.engine.chunk for run in result.runs}
    assert chunks == {"fednag": 2, "csgd": 1, "fedavg": 2}
    said = [run.label for run in result.runs if any("by timing" in n for n in run.notes)]
    assert said == ["fednag"]  # once for all
