"""Deciding who is ahead: intervals that hold at every seed, and runs seed after seed."""

from __future__ import annotations

import json
from math import exp, inf, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import integrate, stats

from commands import Caller
from fednag.decide import decide
from fednag.errors import FednagError
from fednag.runs.sequential import (
    PRIOR,
    Evidence,
    chance,
    half_width,
    judged,
    log_evidence,
)

TABLES: dict[str, Any] = {
    "name": "tiny",
    "model": {"name": "logistic"},
    "training": {"tau": 2, "iterations": 10},
    "engine": {"chunk": 1, "threads": 1},
}


@pytest.mark.parametrize(("count", "t"), [(2, 0.7), (5, 3.0), (12, -2.2), (40, 0.0)])
def test_evidence_is_the_mixed_likelihood_ratio_of_t(count: int, t: float) -> None:
    def density(effect: float) -> float:
        shifted = stats.nct.pdf(t, count - 1, effect * sqrt(count))
        return float(shifted * stats.norm.pdf(effect, scale=PRIOR))

    mixed = integrate.quad(density, -30, 30, limit=400, points=[0, t / sqrt(count)])[0]
    ratio = mixed / stats.t.pdf(t, count - 1)
    assert exp(log_evidence(count, t)) == pytest.approx(ratio, rel=1e-5)


@pytest.mark.parametrize("alpha", [0.2, 0.05, 0.001])
def test_the_interval_ends_where_the_evidence_is_one_over_alpha(alpha: float) -> None:
    for count in (8, 30, 500):
        half = half_width(count, alpha)
        assert exp(log_evidence(count, sqrt(count) * half)) == pytest.approx(1 / alpha)
    assert half_width(1, alpha) == inf
    assert half_width(500, alpha) < half_width(30, alpha) < half_width(8, alpha)


def test_who_looks_after_every_seed_is_seldom_wrong_and_students_interval_often() -> None:
    runs, most, alpha = 10_000, 60, 0.05
    values = np.random.default_rng(0).normal(0.3, 2.0, (runs, most))
    counts = np.arange(1, most + 1)
    means = values.cumsum(1) / counts
    squares = np.maximum((values**2).cumsum(1) - counts * means**2, 0)
    deviations = np.sqrt(squares[:, 1:] / (counts[1:] - 1))
    off = np.abs(means[:, 1:] - 0.3) / deviations
    halves = np.array([half_width(int(count), alpha) for count in counts[1:]])
    student = stats.t.ppf(1 - alpha / 2, counts[1:] - 1) / np.sqrt(counts[1:])
    wrong = float((off >= halves).any(1).mean())
    assert 0.002 < wrong <= alpha
    assert float((off >= student).any(1).mean()) > 4 * alpha
    # The same by the class that is used, on some of them.
    for row in range(200):
        found = Evidence.of(values[row], alpha)
        assert (found.low <= 0.3 <= found.high) == (not (off[row] >= halves).any())


def test_claims_by_hand() -> None:
    many = [1.0, 1.2, 0.8, 1.1, 0.9, 1.0, 1.2, 0.8, 1.0, 1.0]
    found = Evidence.of(many, 0.05)
    assert found.mean == pytest.approx(1.0)
    assert found.deviation == pytest.approx(sqrt(0.18 / 9), rel=0.06)
    assert found.claim(0.5) == "ahead"
    assert found.claim(2.0) == "level"
    assert found.claim(1.0) is None
    assert Evidence.of([-value for value in many], 0.05).claim(0.5) == "behind"
    assert Evidence.of([1.0], 0.05).claim(0.0) is None
    assert Evidence(9, 0.0, 1.0, 2.0, 1.0).claim(0.0) is None  # the intervals do not meet


def test_intervals_only_shrink() -> None:
    values = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0, -9.0]
    before, after = Evidence.of(values[:-1], 0.05), Evidence.of(values, 0.05)
    assert after.low >= before.low > 0
    assert after.high <= before.high
    assert chance(values, 0.0) <= chance(values[:-1], 0.0)


def test_equal_differences_prove_no_more_than_their_resolution() -> None:
    assert Evidence.of([0.5] * 6, 0.05).claim(0.4) == "ahead"  # as if there were no steps
    assert Evidence.of([0.5] * 6, 0.05, resolution=0.28).claim(0.4) is None


def test_seeds_that_would_do() -> None:
    values = [1.0, -0.6, 1.3, -0.2, 0.9]
    found = Evidence.of(values, 0.01)
    needed = found.needed(0.1, 0.01)
    assert needed is not None
    gap = found.mean - 0.1
    assert half_width(needed, 0.01) * found.deviation < gap
    assert half_width(needed - 1, 0.01) * found.deviation >= gap
    assert Evidence.of([1.0, -1.0] * 3, 0.01).needed(0.0, 0.01) is None
    assert Evidence.of([1e-9, -1.0, 1.0], 0.01).needed(0.0, 0.01) is None


def test_several_pairs_are_judged_together() -> None:
    strong = [1.0, 1.1, 0.9, 1.0, 1.1, 0.9, 1.0, 1.1]
    weak = [1.0, 0.2, 1.8, 0.4, 1.5, 0.9, 1.2, 0.8]
    alone = chance(weak, 0.0)
    assert chance(strong, 0.0) < alone / 2
    between = alone * 1.5  # enough for one, too little for one of two
    assert judged({"weak": weak}, 0.0, between)["weak"].claim(0.0) == "ahead"
    both = judged({"weak": weak, "strong": strong}, 0.0, between)
    assert [both[name].claim(0.0) for name in ("weak", "strong")] == ["ahead", "ahead"]
    # The second pair has half of alpha if the first decides nothing.
    split = judged({"weak": weak, "vague": [1.0, -1.0] * 4}, 0.0, between)
    assert [each.claim(0.0) for each in split.values()] == [None, None]


def test_pairs_are_wrong_together_no_more_often_than_alpha() -> None:
    draws = np.random.default_rng(1)
    wrong = 0
    for _ in range(400):
        own = draws.normal(size=(3, 12))
        pairs = {"ab": own[0] - own[1], "ac": own[0] - own[2], "bc": own[1] - own[2]}
        found = judged({name: list(v) for name, v in pairs.items()}, 0.0, 0.2)
        wrong += any(each.claim(0.0) for each in found.values())
    assert wrong <= 0.2 * 400


@pytest.fixture
def fednag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Caller:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(
        'name = "tiny"\nseed = 3\n[model]\nname = "logistic"\n[training]\ntau = 2\n'
        "iterations = 10\n[engine]\nchunk = 1\nthreads = 1\n"
    )
    return Caller(monkeypatch, capsys)


def test_a_real_decision_and_going_on_with_it(tmp_path: Path) -> None:
    asked: dict[str, Any] = {
        "algorithms": ["fednag", "fedavg"],
        "measure": "loss",
        "confidence": 0.9,
        "out": tmp_path,
    }
    short = decide(TABLES, **asked, seeds=2)
    assert not short.decided
    assert "not decided after 2 seeds; about" in short.sentences[0]
    found = decide(TABLES, **asked, resume=True)
    (pair,) = found.pairs
    assert pair.claim == "ahead"
    assert found.sentences == [
        f"fednag is ahead of fedavg (90%, after {len(pair.differences)} seeds)"
    ]
    assert [run.experiment.seed for run in found.runs[: len(pair.differences)]] == list(
        range(len(pair.differences))
    )
    # Lower losses are better: the first minus the second, the other way round.
    finals = {(run.label, run.experiment.seed): run.records[-1].loss for run in found.runs}
    for seed, difference in enumerate(pair.differences):
        assert difference == finals["fedavg", seed] - finals["fednag", seed]
    assert short.pairs[0].differences == pair.differences[:2]
    kept = {run.folder for run in short.runs}
    assert kept <= {run.folder for run in found.runs}  # what was finished was read
    assert len(list(tmp_path.glob("tiny/*/run.json"))) == len(found.runs)


def test_methods_that_are_the_same_are_level() -> None:
    same = [{"name": "fednag", "momentum": 0.0}, {"name": "fedavg"}]
    tables = {**TABLES, "algorithms": same}
    found = decide(tables, algorithms=[], margin=1.0, confidence=0.9, seeds=20)
    assert found.pairs[0].claim == "level"
    assert "are less than 1 points apart" in found.sentences[0]


def test_what_diverges_is_not_decided() -> None:
    tables = {**TABLES, "algorithms": [{"name": "fedavg"}, {"name": "fednag", "lr": 1e30}]}
    found = decide(tables, algorithms=[], seeds=5)
    assert not found.decided
    assert len(found.runs) == 2  # nobody trains on when nothing can be decided
    assert "fednag diverged" in found.sentences[0]


def test_on_the_command_line(fednag: Caller) -> None:
    words = ["decide", "tiny.toml", "--algorithms", "fednag,fedavg", "--measure", "loss"]
    words += ["--confidence", "0.9"]
    done = fednag(*words, "--json")
    told = json.loads(done.out)
    assert told["decided"]
    assert told["pairs"][0]["claim"] == "ahead"
    assert told["sentences"][0].startswith("fednag is ahead of fedavg (90%")
    assert json.loads(Path("runs/tiny/decide.json").read_text())["pairs"] == told["pairs"]
    shown = fednag(*words, "--resume", "--quiet")
    assert "fednag - fedavg" in shown.out
    assert told["sentences"][0] in shown.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--margin", "-1"], "--margin -1: give a number from 0 up"),
        (["--confidence", "1"], "--confidence 1: give a number from 0.5"),
        (["--budget", "soon"], "--budget soon: write a time"),
        (["--budget", "0s"], "--budget 0: give a time above 0"),
        (["--most-seeds", "1"], "--most-seeds 1: give 2 at least"),
        (["--algorithms", "fednag"], "name two methods at least"),
        (["--measure", "f2"], "--measure f2: no such measure; there are loss"),
    ],
)
def test_mistakes_get_one_sentence(fednag: Caller, words: list[str], sentence: str) -> None:
    given = words if "--algorithms" in words else [*words, "--algorithms", "fednag,fedavg"]
    done = fednag("decide", "tiny.toml", *given)
    assert done.code == 2
    assert sentence in done.err
    assert "Traceback" not in done.err


def test_a_budget_ends_it() -> None:
    found = decide(TABLES, algorithms=["fednag", "fedmom"], margin=50.0, seconds=1e-9)
    assert len(found.runs) == 2  # one seed is always run


def test_refusals_from_python() -> None:
    with pytest.raises(FednagError, match="no algorithm"):
        decide(TABLES, algorithms=["fednag", "fedmum"])
