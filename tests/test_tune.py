"""The fair fight: one space and as many trials for all, test samples unseen, borders moved."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednag
from commands import Caller
from fednag.algorithms import ALGORITHMS
from fednag.config import parse, read
from fednag.errors import FednagError
from fednag.runs.execute import Execution
from fednag.runs.search import MOMENTA, MORE_MOMENTA, Region, Scale, border, moved, ranked, rungs
from fednag.tuning import Trial, Tuned, Tuning, _best, _borders, _Tuner, _widened

TABLES: dict[str, Any] = {
    "name": "tiny",
    "model": {"name": "logistic"},
    "training": {"tau": 2, "iterations": 18},
    "engine": {"chunk": 1, "threads": 1},
}


@pytest.mark.parametrize(
    ("budget", "iterations", "tau", "expected"),
    [
        (40, 1000, 20, [(40, 120), (13, 340), (4, 1000)]),
        (9, 90, 5, [(9, 10), (3, 30), (1, 90)]),
        (3, 9, 1, [(3, 1), (1, 3), (1, 9)]),
        (10, 10, 5, [(10, 5), (1, 10)]),  # rounds are not cut, so two rungs are one
        (10, 4, 5, [(10, 4)]),
    ],
)
def test_halving_by_hand(
    budget: int, iterations: int, tau: int, expected: list[tuple[int, int]]
) -> None:
    found = rungs(budget, iterations, tau)
    assert [(rung.trials, rung.iterations) for rung in found] == expected


def test_the_sequence_by_hand() -> None:
    region = Region(0.01, 10.0)
    step, momenta = region.point(0)
    assert step == pytest.approx(0.1**0.5)
    assert momenta == (0.8, 0.8)
    root = 1.2207440846057596
    assert root**4 == pytest.approx(root + 1)
    step, momenta = region.point(1)
    assert step == pytest.approx(0.01 * 1000 ** ((0.5 + 1 / root) % 1))
    assert momenta == tuple(MOMENTA[int((0.5 + root**-p) % 1 * 7)] for p in (2, 3))


def test_the_sequence_fills_the_space_evenly() -> None:
    region = Region(0.01, 10.0)
    points = [region.point(number) for number in range(70)]
    tenths = np.histogram([np.log10(step) for step, _ in points], bins=10, range=(-2, 1))[0]
    assert min(tenths) >= 5
    assert max(tenths) <= 9
    for place in (0, 1):
        counts = [sum(momenta[place] == m for _, momenta in points) for m in MOMENTA]
        assert min(counts) >= 8


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (fednag.FedAvg(lr=0.1), 0.1),
        (fednag.FedNAG(lr=0.1, momentum=0.9), 1.0),
        (fednag.MFL(lr=0.1, momentum=0.5), 0.2),
        (fednag.FedMom(lr=0.1, momentum=0.9), 1.0),
        (fednag.SlowMo(lr=0.1, momentum=0.8, slow_lr=0.5), 0.25),
        (fednag.FedAvgM(lr=0.1, momentum=0.5, server_lr=2.0), 0.4),
        (fednag.GHBM(lr=0.1, momentum=0.5), 0.2),
        (fednag.MimeLite(lr=0.1, momentum=0.9), 0.1),
        (fednag.Mime(lr=0.1, momentum=0.9), 0.1),
        (fednag.FedCM(lr=0.1, momentum=0.9), 0.1),
        (fednag.Scaffold(lr=0.1), 0.1),
        (fednag.CNAG(lr=0.1, momentum=0.9), 1.0),
        (fednag.DIANA(lr=0.1), 0.02),  # one step a round, whatever tau is
    ],
    ids=lambda rule: type(rule).__name__ if not isinstance(rule, float) else None,
)
def test_how_far_a_method_goes_by_hand(rule: Any, expected: float) -> None:
    for slope in (1.0, 0.01):
        assert moved(rule, slope, tau=5) / slope == pytest.approx(expected, rel=0.01)


# Their displacement is not in proportion to lr: lr counts as the step itself.
NOT_LINEAR = {"acgd", "adiana", "feddyn"}
BY_THE_SERVER = {"fedadam", "fedyogi", "fedadagrad"}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_at_one_point_all_methods_go_as_far(name: str) -> None:
    scale = Scale.of(ALGORITHMS[name](), slope=0.01, tau=5)
    assert scale.is_linear == (name not in NOT_LINEAR)
    assert scale.number == ("server_lr" if name in BY_THE_SERVER else "lr")
    numbers = scale.numbers((0.3, (0.8, 0.5)))
    there = replace(ALGORITHMS[name](), **numbers)  # type: ignore[type-var]
    assert [numbers[m] for m in scale.momenta] == [0.8, 0.5][: len(scale.momenta)]
    if name in NOT_LINEAR:
        assert numbers["lr"] == 0.3
    else:
        bare = replace(there, **{n: 0.0 for n in ("weight_decay",) if hasattr(there, n)})  # type: ignore[type-var]
        assert moved(bare, 0.01, tau=5) / 0.01 == pytest.approx(0.3, rel=0.06)


def trial(step: float, value: float | None, momentum: float = 0.5) -> Trial:
    order = None if value is None else (-value,)
    return Trial({"lr": step, "momentum": momentum}, step, 1, value, order)


def test_what_diverged_comes_last() -> None:
    assert ranked([None, (3.0,), (1.0, 2.0), (1.0, 1.0), None]) == [3, 2, 1, 0, 4]


def test_borders_by_hand() -> None:
    region = Region(0.01, 10.0)  # a tenth of three decades is a factor of two
    assert border(0.0199, region) == "low"
    assert border(0.0201, region) is None
    assert border(4.9, region) is None
    assert border(5.1, region) == "high"


def test_who_lies_at_a_border_widens_it_for_all() -> None:
    region = Region(0.01, 10.0)
    inside, low, high = trial(1.0, 0.9), trial(0.011, 0.9), trial(9.9, 0.9, momentum=0.98)
    assert _widened(region, {"a": inside, "b": None}, 5) == (region, [], [])
    wide, strips, said = _widened(region, {"a": inside, "b": low}, 5)
    assert (wide.low, wide.high, wide.momenta) == (pytest.approx(0.001), 10.0, MOMENTA)
    assert [(strip.low, strip.high) for strip in strips] == [(pytest.approx(0.001), 0.01)]
    asked = "b: best at the lowest step, so there are steps down to 0.001"
    assert said == [f"{asked}, with 5 trials more for every method"]
    wide, strips, said = _widened(region, {"a": high, "b": low}, 5)
    assert (wide.low, wide.high) == (pytest.approx(0.001), 100.0)
    assert wide.momenta == (*MOMENTA, *MORE_MOMENTA)
    assert [strip.momenta for strip in strips] == [MOMENTA, MOMENTA, MORE_MOMENTA]
    assert len(said) == 3


def test_the_best_is_of_those_that_went_furthest() -> None:
    short, full, lost = trial(1.0, 0.9), replace(trial(2.0, 0.5), iterations=9), trial(3.0, None)
    assert _best([short, full, lost]) == full
    assert _best([short, replace(lost, iterations=9)]) == short
    assert _best([lost]) is None
    # Of equal accuracies the lower loss, then the first.
    tied = [replace(full, order=(-0.5, loss), step=loss) for loss in (3.0, 2.0, 2.0)]
    assert _best(tied) == tied[1]


def test_the_better_third_goes_on_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, list[float]]] = []

    def tried(self: Any, label: str, trials: Any, iterations: int) -> list[Trial]:
        asked.append((iterations, [each.step for each in trials]))
        # The nearest to 1 is best; steps above 4 diverge.
        values = [None if t.step > 4 else -abs(np.log(t.step)) for t in trials]
        return [
            replace(t, iterations=iterations, value=v, order=None if v is None else (-v,))
            for t, v in zip(trials, values, strict=True)
        ]

    monkeypatch.setattr(_Tuner, "_tried", tried)
    tuner = _Tuner({}, "accuracy", 0.1, "", None, False, None, None)
    scale = Scale.of(fednag.FedAvg(), 1.0, 1)
    found = tuner._halved("fedavg", scale, Region(0.01, 10.0), range(9), rungs(9, 9, 1))
    (_, first), (_, second), (_, third) = asked
    assert [iterations for iterations, _ in asked] == [1, 3, 9]
    by_hand = sorted((s for s in first if s <= 4), key=lambda s: abs(np.log(s)))
    assert (len(first), second, third) == (9, by_hand[:3], by_hand[:1])
    assert len(found) == 9  # each is there once, as far as it came
    assert sorted(each.iterations for each in found) == [1] * 6 + [3] * 2 + [9]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tuning, Path]:
    out = tmp_path_factory.mktemp("tuned")
    return _tuned(["fednag", "fedavg"], out=out), out


def _tuned(names: list[str], **more: Any) -> Tuning:
    given: dict[str, Any] = {"budget": 6, "seeds": [0, 1], "steps": (0.5, 50.0), **more}
    return fednag.tune(TABLES, algorithms=names, **given)


def test_all_methods_have_the_same_steps_and_as_many_trials(tuned: tuple[Tuning, Path]) -> None:
    found, out = tuned
    steps = {each.method: sorted(t.step for t in each.trials) for each in found.tuned}
    assert set(steps) == {"fednag", "fedavg"}
    assert steps["fednag"] == steps["fedavg"]
    assert len(steps["fednag"]) >= 6
    for each in found.tuned:
        assert each.best in each.trials
        assert each.best is not None
        assert each.best.iterations == 18
        rivals = [t for t in each.trials if t.iterations == 18 and t.value is not None]
        assert each.best.value == max(t.value for t in rivals if t.value is not None)
    # Common random numbers: one seed and one validation part, for trials of all methods.
    configs = [read(path) for path in out.glob("tiny-trials/*/config.toml")]
    assert {(c["seed"], c["data"]["validation"]) for c in configs} == {(0, 0.1)}
    assert all(run.experiment.data.validation is None for run in found.runs)


def test_the_choice_does_not_depend_on_the_order_of_methods(tuned: tuple[Tuning, Path]) -> None:
    found, _ = tuned
    again = _tuned(["fedavg", "fednag"])
    assert [each.method for each in again.tuned] == [each.method for each in found.tuned]
    for one, other in zip(found.tuned, again.tuned, strict=True):
        assert (one.best, one.values) == (other.best, other.values)
        assert sorted(map(repr, one.trials)) == sorted(map(repr, other.trials))
    assert again.toml == found.toml


def test_the_file_is_one_that_compare_takes_and_repeats_the_figures(
    tuned: tuple[Tuning, Path], tmp_path: Path
) -> None:
    found, _ = tuned
    path = found.write(tmp_path / "tuned.toml")
    raw = read(path)
    assert raw["algorithm"] == raw["algorithms"][0]
    assert [table["name"] for table in raw["algorithms"]] == [t.method for t in found.tuned]
    for each in found.tuned:
        (table,) = (t for t in raw["algorithms"] if t["name"] == each.method)
        again = fednag.compare(
            [table],
            quiet=True,
            seeds=[0, 1],
            **{key: raw[key] for key in ("model", "training", "engine")},
        )
        assert [run.records[-1].accuracy for run in again.runs] == each.values
        keys = {run.experiment.key for run in again.runs}
        assert keys == {run.experiment.key for run in each.runs}


def test_finished_trials_are_read_again(
    tuned: tuple[Tuning, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, out = tuned
    folders = sorted(out.rglob("run.json"))

    def never(*_: object) -> None:
        raise AssertionError("a trial was run again")

    monkeypatch.setattr(Execution, "_train", never)
    again = _tuned(["fednag", "fedavg"], out=out, resume=True)
    assert [each.best for each in again.tuned] == [each.best for each in found.tuned]
    assert sorted(out.rglob("run.json")) == folders
    monkeypatch.undo()
    more = _tuned(["fednag", "fedavg", "fedmom"], out=out, resume=True)
    new = {path.parent.name.split("-")[0] for path in {*out.rglob("run.json")} - {*folders}}
    assert len(more.tuned) == 3
    assert new == {"fedmom"}


def test_no_test_sample_is_looked_at_before_the_choice(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4)).astype(np.float32)
    y = (x[:, 0] + 0.5 * rng.normal(size=120) > 0).astype(np.int64)
    found = []
    for name, test_x, test_y in (("good", x[:30], y[:30]), ("bad", 1e6 * x[:30], 1 - y[:30])):
        path = tmp_path / f"{name}.npz"
        np.savez(path, x=x, y=y, test_x=test_x, test_y=test_y)
        tables = {**TABLES, "data": {"name": "file", "path": str(path)}}
        # One that stops where it is tested may not do so.
        tables["stop"] = {"accuracy": 0.1}
        found.append(
            fednag.tune(
                tables,
                algorithms=["fednag", "fedavg"],
                budget=3,
                out=tmp_path / name,
                validation=0.2,
            )
        )
    good, bad = ({each.method: each for each in one.tuned} for one in found)
    for method in good:
        assert good[method].trials == bad[method].trials
        assert good[method].best == bad[method].best
        assert good[method].runs[0].records[-1].loss == bad[method].runs[0].records[-1].loss
        assert good[method].values != bad[method].values
        assert good[method].runs[0].ending.kind == "finished"
    for records in tmp_path.glob("*/tiny-trials/*/records.jsonl"):
        assert '"tested"' not in records.read_text()


def test_a_best_at_a_border_widens_for_all_and_is_told() -> None:
    found = _tuned(["fedavg", "fednag"], steps=(1e-5, 1e-4), seeds=[0], budget=4)
    assert found.region.high == pytest.approx(1e-3)
    assert any("so there are steps up to 0.001" in said for said in found.sentences)
    assert {len(each.trials) for each in found.tuned} == {4 + len(found.widened)}
    for each in found.tuned:
        assert each.best is not None
        assert each.best.step > 1e-4
        assert each.border == _borders(each.best, found.region)


def test_a_best_that_is_at_a_border_still_is_told() -> None:
    region = Region(0.01, 10.0)
    assert _borders(trial(1.0, 0.9), region) == ()
    ends = _borders(trial(9.9, 0.9, momentum=0.98), region)
    assert ends == ("the highest step, 10", "the largest momentum, 0.98")
    found = Tuning(
        "accuracy", 0, region, [], (), [Tuned("fedavg", trial(9.9, 0.9), ends, ())], {}, {}
    )
    (said,) = found.sentences
    assert said == f"fedavg: its best lies at {ends[0]} and {ends[1]}"


def test_numbers_that_all_diverge() -> None:
    tables = {**TABLES, "model": {"name": "linear"}}
    found = fednag.tune(tables, algorithms=["fedavg"], budget=3, steps=(1e30, 1e31))
    (each,) = found.tuned
    assert (each.best, each.mean, each.diverged) == (None, None, 3)
    assert found.sentences == ["fedavg: every trial diverged, so it has no numbers"]
    assert "algorithms" not in found.experiment


def test_a_space_of_ones_own() -> None:
    pytest.importorskip("optuna")
    tables = {**TABLES, "training": {"tau": 2, "iterations": 6}}

    def found(names: list[str]) -> dict[str, Tuned]:
        space = ["lr=0.1:10:log", "mu=0:1"]
        made = fednag.tune(tables, algorithms=names, budget=4, space=space)
        assert (made.region, made.widened) == (None, ())
        return {each.method: each for each in made.tuned}

    first, again = found(["fedprox", "fedavg"]), found(["fedavg", "fedprox"])
    for method, numbers in (("fedprox", {"lr", "mu"}), ("fedavg", {"lr"})):
        one = first[method]
        assert len(one.trials) == 4
        assert {frozenset(t.numbers) for t in one.trials} == {frozenset(numbers)}
        assert len({t.numbers["lr"] for t in one.trials}) == 4
        assert all(0.1 <= t.numbers["lr"] <= 10 for t in one.trials)
        assert {t.iterations for t in one.trials} <= {2, 6}
        assert one.trials[0].iterations == 6  # the best so far goes on
        assert [t.numbers for t in one.trials] == [t.numbers for t in again[method].trials]
        assert one.best is not None
        assert one.best.iterations == 6


def test_a_space_of_ones_own_needs_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(FednagError, match="--space: needs optuna; install it"):
        fednag.tune(TABLES, algorithms=["fedavg"], space=["lr=0.1:1"])


def test_who_has_none_of_its_numbers_is_told() -> None:
    pytest.importorskip("optuna")
    with pytest.raises(FednagError, match="--space mu: fedavg has none of these numbers; it has"):
        fednag.tune(TABLES, algorithms=["fedprox", "fedavg"], space=["mu=0:1"])


def test_regression_is_judged_by_its_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(80, 3))
    np.savez(tmp_path / "line.npz", x=x, y=x @ [1.0, -2.0, 0.5] + 0.1)
    tables = {**TABLES, "model": {"name": "linear"}}
    tables["data"] = {"name": "file", "path": str(tmp_path / "line.npz")}
    found = fednag.tune(tables, algorithms=["fedavg"], budget=4)
    (each,) = found.tuned
    assert found.measure == "test_loss"
    assert each.best is not None
    full = [t for t in each.trials if t.iterations == each.best.iterations]
    assert each.best.value == min(t.value for t in full if t.value is not None)


@pytest.fixture
def fednag_(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Caller:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(
        'name = "tiny"\n[model]\nname = "logistic"\n[training]\ntau = 2\niterations = 6\n'
        "[engine]\nchunk = 1\nthreads = 1\n"
    )
    # A chart takes a second and has nothing to do with what is asked here.
    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [Path(f"{stem}.png")])
    return Caller(monkeypatch, capsys)


def test_on_the_command_line(fednag_: Caller) -> None:
    words = ["tune", "tiny.toml", "--methods", "fednag,fedavg", "--budget", "3"]
    done = fednag_(*words, "--json")
    told = done.document
    assert "fednag: 3 trials of 2 iterations; best " in done.err
    assert [rung["trials"] for rung in told["rungs"]] == [3, 1]
    assert {each["method"] for each in told["methods"]} == {"fednag", "fedavg"}
    assert "runs/tiny/tuning.png" in told["files"]
    assert json.loads(Path("runs/tiny/tuning.json").read_text())["methods"] == told["methods"]
    first = told["methods"][0]
    assert read(Path("runs/tiny/tuned.toml"))["algorithm"]["lr"] == first["numbers"]["lr"]
    before = sorted(Path("runs").rglob("run.json"))
    shown = fednag_(*words, "--resume", "--quiet")
    assert shown.code == 0
    assert "tuned, best on the test samples first" in shown.out
    compared = fednag_("compare", "runs/tiny/tuned.toml", "--resume", "--quiet")
    assert compared.code == 0
    assert sorted(Path("runs").rglob("run.json")) == before  # compare found those very runs


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--budget", "2"], "--budget 2: give 3 trials at least"),
        (["--budget", "5min"], "--budget 5min: write a number of trials"),
        (["--space", "lr=1:0.1"], "--space lr=1:0.1: write e.g. mu=0:1, or lr=0.001:1:log"),
        (["--space", "lr=0:1:log"], "--space lr=0:1:log: write e.g. mu=0:1"),
        (["--space", "lr"], "--space lr: write e.g. mu=0:1"),
        (["--steps", "1,0.1"], "--steps 1,0.1: give two numbers above 0, the lower first"),
        (["--steps", "much"], "--steps much: write two numbers"),
        (["--validation", "1"], "--validation 1: give a share between 0 and 1"),
        (["--measure", "f2"], "--measure f2: no such measure; there are loss"),
        (["--algorithms", "fedavg"], "--algorithms, --methods: give one of them, not both"),
        (["--set", "training.tau=0"], "--set training.tau: 0 is not allowed"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else None,
)
def test_mistakes_get_one_sentence(fednag_: Caller, words: list[str], sentence: str) -> None:
    done = fednag_("tune", "tiny.toml", "--methods", "fednag,fedavg", *words)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert not Path("runs").exists()


def test_of_all_methods_those_that_cannot_run_it_are_left_out() -> None:
    tables = {**TABLES, "controller": {"kind": "buffered", "need": 2}, "clock": {"fleet": "lan"}}
    tuner = _Tuner(
        {n: {**tables, "algorithm": {"name": n}} for n in ("fedavg", "mime")},
        "accuracy", 0.1, "", None, False, None, None,
    )  # fmt: skip
    left_out = tuner.check(skip=True)
    assert (list(left_out), list(tuner.listed)) == (["mime"], ["fedavg"])
    with pytest.raises(FednagError, match="fedmum"):
        fednag.tune(TABLES, algorithms=["fedmum"])
    with pytest.raises(FednagError, match="no methods to tune"):
        fednag.tune(TABLES)
    assert parse(TABLES).key
