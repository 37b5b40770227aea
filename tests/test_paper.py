"""The paper's figures: their files, their runs at the smallest scale, and how they are judged."""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

from fednag.errors import FednagError
from fednag.paper import SCALES, folder
from fednag.paper import records as kept
from fednag.paper.checks import Region, judge, located, marks, measure
from fednag.paper.figure import Check, Figure, Value, read_figure, read_figures
from fednag.paper.page import block, refresh
from fednag.paper.records import FigureRecords, Kept
from fednag.runs.folder import RunFolder
from fednag.runs.statistics import interval
from fednag.runs.view import RunView

ROOT = Path(__file__).parents[1]
FIGURES = read_figures()

# What Table 1 of the paper says: tau, gamma, T, N (None: varied in the figure).
SETTINGS: dict[str, tuple[Any, ...]] = {
    "convergence-linear": (20, 0.9, 1000, 4),
    "convergence-logistic": (20, 0.9, 1000, 4),
    "convergence-cnn": (40, 0.9, 1000, 4),
    "convergence-cnn-cifar10": (40, 0.9, 10000, 4),
    "convergence-vgg16-cifar10": (40, 0.9, 10000, 4),
    "convergence-vgg16-cifar100": (40, 0.9, 10000, 4),
    "tau": (None, 0.5, 1000, 4),
    "tau-reach": (None, 0.5, None, 4),
    "gamma": (4, None, 1000, 4),
    "gamma-loss": (4, None, 1000, 4),
    "gamma-one": (4, None, 1000, 4),
    "workers": (4, 0.9, 1000, None),
    "noniid": (40, 0.9, 1000, 4),
    "noniid-random": (40, 0.9, 1000, 4),
}


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    from fednag.cli import main

    monkeypatch.setattr(sys, "argv", ["fednag", *words])
    with pytest.raises(SystemExit) as stopped:
        main()
    return int(stopped.value.code or 0)


def run(
    values: list[float | None],
    seed: int = 0,
    accuracy: list[float | None] | None = None,
    **more: Any,
) -> Kept:
    """A planted run, evaluated every 10 iterations; its losses are the values."""
    steps = tuple(10 * i for i in range(len(values)))
    return Kept(
        seed=seed,
        key="planted",
        iterations=steps[-1],
        iteration=steps,
        loss=tuple(values),
        accuracy=tuple(accuracy or [0.5] * len(values)),
        train_accuracy=tuple([0.5] * len(values)),
        megabytes=more.pop("megabytes", tuple(float(step) for step in steps)),
        **more,
    )


def planted(**finals: list[float]) -> FigureRecords:
    """Series whose runs end at these losses, a seed each."""
    series = {
        label: tuple(run([2.0, 1.0, last], seed) for seed, last in enumerate(ends))
        for label, ends in finals.items()
    }
    return FigureRecords("planted", "laptop", (0, 1, 2), series)


def check(test: str = "order", series: tuple[str, ...] = ("a", "b"), **more: Any) -> Check:
    value = more.pop("value", {"of": "loss"})
    words = {"name": "c", "gist": "g", "paper": "p", "kind": "order"}
    return Check(test=test, series=list(series), value=Value(**value), **words, **more)


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_a_figure_file_is_valid_at_every_scale(name: str) -> None:
    figure = FIGURES[name]
    for scale in SCALES:
        jobs = figure.jobs(scale)
        assert len(jobs) == len(figure.series(scale)) * len(figure.scale(scale).seeds)
    full = figure.experiment("full", figure.content.series[0], 0)
    assert full.engine.device == "auto"
    assert full.training.batch == 64 or name.startswith("tuned")
    assert figure.content.check, "a figure without a check has no verdict"


@pytest.mark.parametrize("name", sorted(SETTINGS))
def test_full_scale_is_the_papers_table(name: str) -> None:
    figure = FIGURES[name]
    for series in figure.series("full"):
        e = figure.experiment("full", series, 0)
        gamma = e.algorithm.get("momentum")
        found = (e.training.tau, gamma, e.training.iterations, e.split.workers)
        for ours, paper in zip(found, SETTINGS[name], strict=True):
            assert paper is None or ours is None or ours == paper, (series.label, found)
        assert e.algorithm["lr"] == 0.01


def test_three_seeds_unless_runs_are_long() -> None:
    for figure in FIGURES.values():
        for scale in ("laptop", "full"):
            chosen = figure.scale(scale)
            if len(chosen.seeds) < 3:
                assert chosen.why, f"{figure.name} at {scale} does not say why"


def test_mnist_figures_keep_the_papers_iterations_on_a_laptop() -> None:
    for name in (
        "convergence-linear",
        "convergence-logistic",
        "convergence-cnn",
        "gamma",
        "noniid",
    ):
        for job in FIGURES[name].jobs("laptop"):
            assert job.experiment.training.iterations == 1000
            assert job.experiment.data.name == "mnist"


def test_what_a_scale_changes_is_said() -> None:
    said = FIGURES["convergence-cnn-cifar10"].departures("laptop")
    assert "training.iterations = 1000 instead of 10000" in said
    assert FIGURES["convergence-cnn-cifar10"].departures("full") == []


# --- verdicts, by hand


def test_intervals_by_hand() -> None:
    """Mean 2, deviation 1, Student's 4.3027 for two degrees of freedom: ± 4.3027 / sqrt(3)."""
    low, high = interval([1.0, 2.0, 3.0]) or (0.0, 0.0)
    assert (low, high) == pytest.approx((2 - 2.48414, 2 + 2.48414), abs=1e-4)
    # Two seeds have no interval: their mean 1.5 ± the margin decides.
    assert interval([1.0, 2.0]) is None
    assert located([1.0, 2.0], Region(low=1.0), 0.25) == "reproduced"
    assert located([1.0, 2.0], Region(low=1.3), 0.25) == "undecided"
    assert located([1.0, 2.0], Region(low=1.8), 0.25) == "not reproduced"


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.1, 0.9, "reproduced"),
        (-0.2, -0.1, "not reproduced"),
        (1.1, 1.2, "not reproduced"),
        (-0.1, 0.5, "undecided"),
        (0.5, 1.5, "undecided"),
        (0.0, 0.0, "undecided"),
    ],
)
def test_regions(low: float, high: float, expected: str) -> None:
    assert Region(0.0, 1.0).holds(low, high) == expected


def test_regions_without_an_upper_border() -> None:
    assert Region(low=0.0).holds(0.5, inf) == "reproduced"
    assert located([1.0, inf, 2.0], Region(low=0.0), 0.1) == "reproduced"
    assert located([-1.0, inf, 2.0], Region(low=0.0), 0.1) == "undecided"


def test_an_order_is_judged_by_its_spread_over_seeds() -> None:
    clear = planted(a=[0.30, 0.31, 0.29], b=[0.50, 0.52, 0.49])
    assert judge(check(), clear).verdict == "reproduced"
    assert judge(check(series=("b", "a")), clear).verdict == "not reproduced"
    noisy = planted(a=[0.30, 0.60, 0.40], b=[0.50, 0.40, 0.55])
    assert judge(check(), noisy).verdict == "undecided"
    # Paired: both move with the seed, and one is always a little ahead.
    paired = planted(a=[0.30, 0.60, 0.90], b=[0.33, 0.632, 0.931])
    assert judge(check(), paired).verdict == "reproduced"


def test_accuracy_is_better_when_higher() -> None:
    series = {
        label: tuple(run([1.0, 1.0], s, [0.1, last + s / 1000]) for s in range(3))
        for label, last in (("a", 0.9), ("b", 0.8))
    }
    records = FigureRecords("planted", "laptop", (0, 1, 2), series)
    found = judge(check(value={"of": "accuracy"}), records)
    assert found.verdict == "reproduced"
    assert found.ours == "a 90.10% ± 0.10%; b 80.10% ± 0.10%"


def test_one_wrong_pair_breaks_an_order_and_one_open_pair_leaves_it_open() -> None:
    ends = {"a": [0.1, 0.11, 0.1], "b": [0.2, 0.21, 0.2], "c": [0.15, 0.16, 0.15]}
    wrong = judge(check(series=("a", "b", "c")), planted(**ends))
    assert wrong.verdict == "not reproduced"
    assert [part.verdict for part in wrong.parts] == ["reproduced", "not reproduced"]
    ends["c"] = [0.1, 0.3, 0.25]
    assert judge(check(series=("a", "b", "c")), planted(**ends)).verdict == "undecided"
    assert judge(check("best", ("a", "b", "c")), planted(**ends)).verdict == "undecided"
    ends["c"] = [0.15, 0.16, 0.15]
    assert judge(check("best", ("a", "b", "c")), planted(**ends)).verdict == "reproduced"


def test_few_seeds_are_judged_by_the_margin_and_say_so() -> None:
    one = planted(a=[0.30], b=[0.32])
    assert judge(check(), one).verdict == "undecided"
    assert judge(check(margin=0.05), one).verdict == "reproduced"
    assert judge(check(), one).note == "1 of 3 seeds: by margin, not spread"
    assert judge(check(), planted(a=[0.3] * 3, b=[0.4] * 3)).note == ""


def test_what_was_not_run_is_not_judged() -> None:
    found = judge(check(), planted(a=[0.3, 0.3, 0.3]))
    assert (found.verdict, found.note) == ("not run", "")


def test_seeds_that_only_one_has_are_left_out() -> None:
    records = planted(a=[0.3, 0.3, 0.3], b=[0.1])
    assert judge(check(), records).seeds == 1


def test_a_diverged_run_loses() -> None:
    records = planted(b=[0.3, 0.3, 0.3])
    gone = tuple(run([2.0, 1.0, None], seed, diverged=True) for seed in range(3))
    records = replace(records, series={**records.series, "a": gone})
    assert judge(check(), records).verdict == "not reproduced"
    assert judge(check(series=("b", "a")), records).verdict == "reproduced"
    assert judge(check("fails", ("a",), low=0.5), records).verdict == "reproduced"
    assert judge(check("fails", ("b",), low=0.5), records).verdict == "not reproduced"
    assert measure(gone[0], Value(of="accuracy")) == 0.0


def test_numbers_differences_and_ratios() -> None:
    records = planted(a=[0.40, 0.41, 0.40], b=[0.80, 0.82, 0.80], c=[1.6, 1.64, 1.6])
    within = check("within", ("a",), low=0.35, high=0.45)
    assert judge(within, records).verdict == "reproduced"
    assert judge(check("within", ("b",), low=0.35, high=0.45), records).verdict == "not reproduced"
    half = check("reduction", ("a", "b"), low=0.45, high=0.55)
    assert judge(half, records).verdict == "reproduced"
    assert judge(check("difference", ("a", "b"), low=-0.5, high=-0.3), records).verdict == (
        "reproduced"
    )
    twice = check("ratio", ("a", "b", "c"), low=1.5)
    assert judge(twice, records).verdict == "reproduced"
    assert judge(check("ratio", ("a", "b"), low=0.667, high=1.5), records).verdict == (
        "not reproduced"
    )


def test_an_optimum_inside_a_sweep() -> None:
    ends = {"a": [3.0, 3.1, 3.0], "b": [1.0, 1.1, 1.0], "c": [2.0, 2.1, 2.0]}
    sweep = check("interior", ("a", "b", "c"))
    assert judge(sweep, planted(**ends)).verdict == "reproduced"
    assert judge(check("interior", ("b", "c", "a")), planted(**ends)).verdict == "not reproduced"


def test_a_gap_that_closes() -> None:
    close = {
        "a": tuple(run([2.0, 1.0, 0.5], s) for s in range(3)),
        "b": tuple(run([2.0, 1.5 + s / 100, 0.51], s) for s in range(3)),
    }
    records = FigureRecords("planted", "laptop", (0, 1, 2), close)
    assert judge(check("closer", early=0.5), records).verdict == "reproduced"
    widening = {"a": close["a"], "b": tuple(run([2.0, 1.01, 0.9], s) for s in range(3))}
    assert judge(check("closer", early=0.5), replace(records, series=widening)).verdict == (
        "not reproduced"
    )


def test_equal_bytes_compares_at_what_the_thriftiest_sent() -> None:
    """b is behind at every iteration, but has sent half as much when it gets there."""
    series = {
        "a": tuple(run([2.0, 1.0, 0.5], s, megabytes=(0.0, 20.0, 40.0)) for s in range(3)),
        "b": tuple(run([2.0, 1.5, 0.9], s, megabytes=(0.0, 10.0, 20.0)) for s in range(3)),
    }
    records = FigureRecords("planted", "laptop", (0, 1, 2), series)
    assert judge(check(), records).verdict == "reproduced"
    equal = check(value={"of": "loss", "equal_bytes": True})
    assert judge(equal, records).verdict == "not reproduced"


def test_questions_of_our_own_are_answered() -> None:
    found = judge(check(beyond=True), planted(a=[0.3] * 3, b=[0.5] * 3))
    assert found.words == "yes"


def test_first_last_and_mean_time_a_target_is_reached() -> None:
    """Met at 10, lost at 30, met again at 40; w(0) does not count."""
    one = run([0.1, 0.4, 0.5, 0.7, 0.3, 0.2])
    assert marks(one, 0.5, None) == (10, 25, 40)
    assert marks(one, 0.05, None) == (inf, inf, inf)
    up = run([1.0] * 4, accuracy=[0.1, 0.9, 0.5, 0.85])
    assert marks(up, None, 0.85) == (10, 20, 30)
    assert measure(one, Value(of="iterations", to_loss=0.5, mark="last")) == 40
    never = check("order", value={"of": "iterations", "to_loss": 0.05})
    assert judge(never, planted(a=[1.0] * 3, b=[1.0] * 3)).verdict == "undecided"


def test_a_rival_that_never_arrives_refutes_but_never_confirms() -> None:
    """a arrives at 10; b was watched until 20, so at least half is saved, perhaps more."""
    series = {
        "a": tuple(run([2.0, 0.1, 0.1], s) for s in range(3)),
        "b": tuple(run([2.0, 1.0, 1.0], s) for s in range(3)),
    }
    records = FigureRecords("planted", "laptop", (0, 1, 2), series)
    value = {"of": "iterations", "to_loss": 0.5}
    for low, high, expected in [
        (0.4, 0.6, "undecided"),
        (0.6, 0.9, "undecided"),
        (0.1, 0.4, "not reproduced"),
    ]:
        claim = check("reduction", value=value, low=low, high=high)
        assert judge(claim, records).verdict == expected
    assert judge(check("order", value=value), records).verdict == "reproduced"


def test_a_group_stands_as_its_best_member_once_all_have_run() -> None:
    ends = {"m lr 1": [0.5, 0.6], "m lr 2": [0.4, 0.5, 0.1], "n": [1.0]}
    groups = {"m lr 1": "m", "m lr 2": "m"}
    found = kept.tuned(planted(**ends), groups)
    assert set(found.series) == {"m", "n"}
    assert [one.loss[-1] for one in found.series["m"]] == [0.4, 0.5]
    assert found.series["m"][0].notes == ("tuned: m lr 2",)
    waiting = kept.tuned(planted(**ends), {**groups, "m lr 3": "m"})
    assert set(waiting.series) == {"n"}


def test_records_survive_and_thin(tmp_path: Path) -> None:
    from fednag.core.ending import Ending
    from fednag.core.record import Record

    records = [Record(i, i, 1 / (i + 1), None, None, i, i, float(i), 4) for i in range(500)]
    one = kept.keep(RunView("a", 0, records, Ending("finished"), info={"key": "k"}), 499)
    assert (one.ended, one.diverged, one.key) == ("finished", False, "k")
    assert len(one.iteration) == kept.MOST_POINTS
    assert (one.iteration[0], one.iteration[-1]) == (0, 499)
    whole = FigureRecords("f", "laptop", (0,), {"a": (one,)})
    kept.write(tmp_path, whole)
    assert kept.load(tmp_path, "laptop", "f") == whole
    assert kept.load(tmp_path, "smoke", "f") is None


# --- bad input


def test_mistakes_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDNAG_DATA", str(tmp_path / "none"))
    (tmp_path / "bad" / "records" / "laptop").mkdir(parents=True)
    (tmp_path / "bad" / "records" / "laptop" / "tau.json").write_text('{"runs": 3}')
    wrong = {
        ("run", "tua"): "did you mean tau?",
        ("run", "tau", "--scale", "laptp"): "did you mean laptop?",
        ("run", "tau", "--scale", "laptop"): "mnist is not here; `fednag data get mnist`",
        ("list", "--experiments", "nowhere"): "no figure files there",
        ("run", "tau", "--known", "nowhere"): "--known nowhere: no records there",
        ("verdict",): "nothing has been run there",
        ("verdict", "--out", "bad"): "is not a figure's records",
    }
    for words, expected in wrong.items():
        assert call(monkeypatch, "paper", *words) == 2
        said = capsys.readouterr().err
        assert expected in said, words
        assert len(said.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('label = "gamma 1"', 'label = "gamma 0.9"', "is there twice"),
        ('series = ["gamma 1"]', 'series = ["gamma 2"]', "did you mean gamma"),
        ("low = 0.5", "", "check gamma-one-fails: fails needs low or high"),
        ("low = 0.5", "low = 0.5\nhigh = 0.4", "low is above high"),
        ('test = "fails"', 'test = "order"', "order needs at least 2 series"),
        ('series = ["gamma 1"]', 'series = ["gamma 1", "gamma 1"]', "a series is there twice"),
        ('label = "gamma 1"', 'label = "gamma 1"\ngroup = "gamma 0.9"', "a group and a series"),
        ('label = "gamma 1"', 'label = "gamma 1"\ngroup = "g"', "tuned; name its group 'g'"),
        ("seeds = [0, 1, 2]", "seeds = [0, 1, 1]", "one is there twice"),
        ("place = 15", 'place = 15\nfleet = "nowhere"', "fleet: nowhere"),
        ("place = 15", 'place = 15\n[draw]\nacross = "seconds"', "draw.across"),
        ("place = 15", 'place = 15\n[draw]\nkind = "reach"', "draw: reach needs"),
        ("place = 15", "place = 15\n[draw]\nmeasures = []", "draw.measures"),
        ('value = { of = "loss" }', 'value = { of = "seconds", to_loss = 0.5 }', "need a fleet"),
        ('test = "fails"', 'test = "fall"', "is not allowed"),
        ("tau = 4", "tau = -4", "training.tau"),
        ("[scale.full]", "[scale.huge]", "is not allowed"),
        ("place = 15", "palce = 15", "did you mean place?"),
    ],
)
def test_a_wrong_figure_file_is_named(tmp_path: Path, old: str, new: str, expected: str) -> None:
    text = (folder() / "gamma-one.toml").read_text()
    assert old in text
    path = tmp_path / "wrong.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(FednagError, match="wrong") as caught:
        read_figure(path)
    assert expected in str(caught.value)


def test_a_figure_finds_its_data_from_its_own_folder(tmp_path: Path) -> None:
    text = (folder() / "gamma-one.toml").read_text()
    (tmp_path / "mine.csv").write_text("a,label\n1,0\n2,1\n")
    path = tmp_path / "own.toml"
    path.write_text(text.replace('name = "mnist"', 'name = "file"\npath = "mine.csv"', 1))
    job = read_figure(path).jobs("full")[0]
    assert job.experiment.data.path is not None
    assert Path(job.experiment.data.path) == tmp_path / "mine.csv"


# --- end to end


@pytest.fixture(scope="module")
def smoked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every figure at the smallest scale, once."""
    out = tmp_path_factory.mktemp("paper")
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("FEDNAG_DATA", raising=False)
        assert call(patch, "paper", "all", "--scale", "smoke", "--out", str(out), "-q") == 0
    return out


def test_every_figure_runs_is_drawn_and_judged(
    smoked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for figure in FIGURES.values():
        records = kept.load(smoked, "smoke", figure.name)
        assert records is not None
        assert records.runs == len(figure.jobs("smoke")), figure.name
        image = smoked / "charts" / "smoke" / f"{figure.name}.png"
        assert image.read_bytes().startswith(b"\x89PNG"), figure.name
    assert call(monkeypatch, "paper", "verdict", "--out", str(smoked)) == 0
    printed = capsys.readouterr().out
    assert "say nothing of the paper" in printed
    assert ", 0 not run" in printed


def test_charts_are_packed_tightly_and_show_the_same(tmp_path: Path) -> None:
    import struct
    import zlib

    from fednag.show.charts import SIGNATURE, squeeze

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    pixels = b"".join(b"\0" + bytes([row, 0, 0] * 64) for row in range(64))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 64, 64, 8, 2, 0, 0, 0))
    stored = zlib.compress(pixels, 0)
    halves = chunk(b"IDAT", stored[:100]) + chunk(b"IDAT", stored[100:])
    path = tmp_path / "chart.png"
    path.write_bytes(SIGNATURE + head + halves + chunk(b"IEND", b""))
    squeeze(path)
    packed = path.read_bytes()
    data = chunk(b"IDAT", zlib.compress(pixels, 9))
    assert packed == SIGNATURE + head + data + chunk(b"IEND", b"")


def test_what_has_been_run_is_not_run_again(
    smoked: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path: path.stat().st_mtime_ns for path in smoked.rglob("records.jsonl")}
    assert call(monkeypatch, "paper", "run", "gamma-one", "--out", str(smoked), "-q") == 0
    assert "2 runs, 0 to do" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in smoked.rglob("records.jsonl")}


def test_what_was_kept_counts_as_run(
    smoked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Records are committed, run folders are not: on another machine the rest goes on."""
    place, out = tmp_path / "kept", tmp_path / "runs"
    (place / "records" / "smoke").mkdir(parents=True)
    for name in ("gamma-loss", "convergence-cnn"):
        shutil.copy(kept.path_of(smoked, "smoke", name), kept.path_of(place, "smoke", name))
    where = ("--out", str(out), "--known", str(place), "-q")
    assert call(monkeypatch, "paper", "run", "gamma", *where) == 0
    assert "4 runs, 0 to do" in capsys.readouterr().out
    assert kept.load(out, "smoke", "gamma") == kept.load(smoked, "smoke", "gamma")
    assert call(monkeypatch, "paper", "run", "gamma-one", *where) == 0
    assert "2 runs, 1 to do" in capsys.readouterr().out
    here = ("--out", str(out), "--write", str(place), "--scale", "smoke")
    assert call(monkeypatch, "paper", "verdict", *here) == 0
    for name in ("gamma", "gamma-loss", "gamma-one", "convergence-cnn"):
        found, whole = kept.load(place, "smoke", name), kept.load(smoked, "smoke", name)
        assert found is not None
        assert whole is not None
        assert found.runs == whole.runs, name


def test_seconds_on_a_fleet_are_not_taken_from_a_figure_without(smoked: Path) -> None:
    from fednag.paper.jobs import waiting

    figures = [FIGURES["time"]]
    needed = len(FIGURES["time"].jobs("smoke"))
    before = kept.known(smoked, "smoke")
    assert waiting(figures, "smoke", Path("nowhere"), before) == []
    without = {name: run for name, run in before.items() if name[0] != "time"}
    assert len(waiting(figures, "smoke", Path("nowhere"), without)) == needed
    assert all(run.seconds == () for (name, _), run in before.items() if name == "")


def test_figures_share_runs(smoked: Path) -> None:
    needed = sum(len(figure.jobs("smoke")) for figure in FIGURES.values())
    assert len(list(smoked.rglob("run.json"))) < needed * 0.8
    keys = [
        {run.key for runs in found.series.values() for run in runs}
        for name in ("gamma", "gamma-loss")
        if (found := kept.load(smoked, "smoke", name))
    ]
    assert keys[0] < keys[1]


def test_a_page_is_filled_from_records_and_only_its_blocks(smoked: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Before.\n<!-- figure tau -->\nold\n<!-- end -->\nAfter.\n")
    refresh(page, FIGURES, "smoke", smoked)
    text = page.read_text()
    assert text.startswith("Before.\n")
    assert text.endswith("After.\n")
    assert "old" not in text
    assert "larger-tau-worse-loss" in text
    refresh(page, FIGURES, "smoke", smoked)
    assert page.read_text() == text
    assert "**Not yet run.**" in block(FIGURES["tau"], "laptop", smoked)


def test_killed_runs_are_not_taken_for_finished_ones(
    smoked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fednag.paper.jobs import found

    figure: Figure = FIGURES["gamma-one"]
    job = figure.jobs("smoke")[0]
    folder_ = found(smoked, job.experiment)
    assert folder_ is not None
    copy = tmp_path / "smoke" / folder_.path.name
    shutil.copytree(folder_.path, copy)
    assert found(tmp_path, job.experiment) is not None
    RunFolder(copy).write_info(RunFolder(copy).info() | {"status": "running"})
    assert found(tmp_path, job.experiment) is None


def test_a_run_that_another_process_writes_is_left_to_it(
    smoked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two may work on one queue: neither waits, and the rest is run."""
    from fednag.paper.jobs import found

    first, second = FIGURES["gamma-one"].jobs("smoke")
    done = found(smoked, first.experiment)
    assert done is not None
    copy = RunFolder(tmp_path / "smoke" / done.path.name)
    shutil.copytree(done.path, copy.path)
    info = copy.info()
    copy.write_info({**info, "status": "running"})
    words = ("paper", "run", "gamma-one", "--out", str(tmp_path))
    with copy.locked():
        assert call(monkeypatch, *words) == 0
    printed = capsys.readouterr().out
    assert "1 figure, 2 runs, 2 to do" in printed
    assert "1 run left to another process" in printed
    assert "repeat the command when it is done" in " ".join(printed.split())
    assert f"gamma-one, {second.series}: " in printed
    assert found(tmp_path, second.experiment) is not None
    assert found(tmp_path, first.experiment) is None
    copy.write_info(info)
    assert call(monkeypatch, *words) == 0
    printed = capsys.readouterr().out
    assert "2 runs, 0 to do" in printed
    assert "left to another" not in printed


def test_the_committed_page_is_what_the_committed_records_say(tmp_path: Path) -> None:
    page = ROOT / "docs" / "paper.md"
    copy = tmp_path / "paper.md"
    shutil.copy(page, copy)
    (tmp_path / "paper").symlink_to(ROOT / "docs" / "paper")
    refresh(copy, FIGURES, "laptop", tmp_path / "paper")
    assert copy.read_text() == page.read_text(), "run the command the page names"
    for name in FIGURES:
        assert f"<!-- figure {name} -->" in page.read_text(), name


# --- numbers that leave nothing to divide by, and single seeds


@pytest.mark.parametrize("test", ["reduction", "ratio", "difference", "closer", "fails"])
@pytest.mark.parametrize("of", ["loss", "accuracy"])
def test_zeros_and_divergence_are_judged_not_raised(test: str, of: str) -> None:
    ends: list[list[float | None]] = [[0.0, 0.0, 0.0], [2.0, 1.0, 0.0], [2.0, 1.0, 0.5]]
    runs = [run(values, accuracy=values) for values in ends]
    runs.append(replace(runs[1], diverged=True))
    more = {"early": 0.5} if test == "closer" else {"low": 0.1}
    for a in runs:
        for b in runs:
            records = FigureRecords("planted", "laptop", (0,), {"a": (a,), "b": (b,)})
            found = judge(check(test, value={"of": of}, **more), records)
            assert found.verdict in ("reproduced", "not reproduced", "undecided")


def test_a_sweep_of_two_has_no_inside() -> None:
    with pytest.raises(ValueError, match="interior needs at least 3 series"):
        check("interior")


def test_a_run_dearer_than_all_others_from_the_start_counts_at_its_start() -> None:
    cheap, dear = run([2.0, 1.0, 0.5]), run([2.0, 1.0, 0.5], megabytes=(30.0, 60.0, 90.0))
    records = FigureRecords("planted", "laptop", (0,), {"a": (cheap,), "b": (dear,)})
    found = judge(check(value={"of": "loss", "equal_bytes": True}), records)
    assert found.ours == "a 0.5; b 2"


@pytest.mark.parametrize("test", ["order", "reduction", "difference", "closer"])
def test_one_seed_decides_only_what_is_clear_of_the_margin(test: str) -> None:
    """The margin is a tenth of the values compared, also where their difference is judged."""
    more: dict[str, Any] = {
        "reduction": {"low": 0.0},
        "difference": {"high": 0.0},
        "closer": {"early": 0.5},
    }.get(test, {})

    def verdict(a: float, b: float) -> str:
        runs = {"a": (run([2.0, 1.0, a]),), "b": (run([2.0, 1.0 + 5 * abs(a - b), b]),)}
        if test != "closer":
            runs["b"] = (run([2.0, 1.0, b]),)
        return judge(check(test, **more), FigureRecords("p", "laptop", (0,), runs)).verdict

    assert verdict(0.999, 1.0) == "undecided"
    assert verdict(0.5, 1.0) == "reproduced"


def test_what_is_compared_is_shown_on_the_seeds_it_is_compared_on() -> None:
    found = judge(check(), planted(a=[1.0, 1.0, 9.0], b=[2.0, 2.0]))
    assert found.ours == "a 1 ± 0; b 2 ± 0"
    alone = judge(check("within", ("a", "b"), low=0.0), planted(a=[1.0, 1.0, 9.0], b=[2.0, 2.0]))
    assert alone.ours.startswith("a 3.667")


# --- records that are damaged, stale, or not here


def spoilt(text: str, field: str, new: str) -> str:
    return re.sub(rf'"{field}": (\[[^]]*\]|"[^"]*"|[^,}}]+)', f'"{field}": {new}', text, count=2)


@pytest.mark.parametrize(
    ("field", "new"),
    [
        ("loss", '["2", 1, 1]'),
        ("loss", "[[2], 1, 1]"),
        ("loss", f"[1{'0' * 400}, 1, 1]"),
        ("loss", "[NaN, 1, 1]"),
        ("loss", "[true, 1, 1]"),
        ("loss", "[1, 1]"),
        ("loss", "[" * 100_000),
        ("iteration", "null"),
        ("iteration", "[0, 1.5, 2]"),
        ("iterations", '"20"'),
        ("megabytes", "[null, 1, 2]"),
        ("minutes", '"long"'),
        ("ended", "3"),
        ("notes", "[1]"),
        ("diverged", '"no"'),
        ("seed", '"0"'),
        ("seeds", '"abc"'),
        ("seeds", "[]"),
        ("series", "3"),
        ("figure", '"another"'),
        ("scale", '"smoke"'),
    ],
)
def test_damaged_records_are_one_sentence(tmp_path: Path, field: str, new: str) -> None:
    one = run([2.0, 1.0, 0.5], diverged=True, minutes=1.0, notes=("n",))
    path = kept.write(tmp_path, FigureRecords("f", "laptop", (0,), {"a": (one,)}))
    whole = path.read_text()
    path.write_text(spoilt(whole, field, new))
    assert path.read_text() != whole
    with pytest.raises(FednagError, match=r"f\.json: is not a figure's records") as caught:
        kept.load(tmp_path, "laptop", "f")
    assert "\n" not in str(caught.value)
    assert "remove it and make it again" in str(caught.value)


def test_runs_made_with_other_settings_are_not_judged(
    smoked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = kept.path_of(tmp_path, "smoke", "gamma-one")
    place.parent.mkdir(parents=True)
    shutil.copy(kept.path_of(smoked, "smoke", "gamma-one"), place)
    (tmp_path / "figures").mkdir()
    text = (folder() / "gamma-one.toml").read_text()
    figure = tmp_path / "figures" / "gamma-one.toml"
    figure.write_text(text)
    words = ("paper", "verdict", "--out", str(tmp_path), "--experiments", str(figure.parent))
    assert call(monkeypatch, *words) == 0
    printed = capsys.readouterr().out
    assert "0 not run" in printed
    assert "other settings" not in printed
    figure.write_text(text.replace("tau = 4", "tau = 2"))
    assert call(monkeypatch, *words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 not run" in printed
    assert "gamma-one: 2 of its runs were made with other settings and are left out" in printed


def test_a_verdict_loses_no_records_that_came_from_elsewhere(
    smoked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are known from a folder of records; judged without it, they are still there."""
    known = tmp_path / "known" / "records" / "smoke"
    known.mkdir(parents=True)
    path = kept.path_of(smoked, "smoke", "gamma-one")
    head, first, *_ = path.read_text().splitlines()
    (known / "gamma-one.json").write_text(f"{head}\n{first.rstrip(',')}\n]}}\n")
    out = tmp_path / "out"
    words = ("--out", str(out), "-q")
    known_words = ("--known", str(known.parent.parent))
    assert call(monkeypatch, "paper", "run", "gamma-one", *words, *known_words) == 0
    whole = kept.load(out, "smoke", "gamma-one")
    assert whole is not None
    assert whole.runs == 2
    assert call(monkeypatch, "paper", "verdict", "--out", str(out)) == 0
    assert kept.load(out, "smoke", "gamma-one") == whole


# --- the page


PAGE = "Before.\n<!-- figure tau -->\nold\n<!-- end -->\n## Mine\n<!-- summary -->\n<!-- end -->\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PAGE.replace("old\n<!-- end -->\n", ""), "figure 'tau' is not closed"),
        (PAGE.replace("<!-- summary -->\n<!-- end -->\n", "<!-- summary -->\n"), "summary is not"),
        (PAGE.replace("tau", "tua"), "no figure 'tua'"),
        ("Nothing here.\n", "nothing to fill"),
        ("<!--figure tau-->\n<!-- end -->\n", "nothing to fill"),
        (PAGE.encode("utf-16").decode("latin-1"), "it is not UTF-8"),
    ],
)
def test_a_page_that_cannot_be_filled_stays_as_it_is(
    smoked: Path, tmp_path: Path, text: str, expected: str
) -> None:
    page = tmp_path / "page.md"
    page.write_bytes(text.encode("latin-1"))
    with pytest.raises(FednagError, match=r"page\.md") as caught:
        refresh(page, FIGURES, "smoke", smoked)
    assert expected in str(caught.value)
    assert page.read_bytes() == text.encode("latin-1")


def test_a_page_is_a_file_or_a_link_to_one(smoked: Path, tmp_path: Path) -> None:
    page, link = tmp_path / "page.md", tmp_path / "link.md"
    page.write_text(PAGE)
    link.symlink_to(page)
    refresh(link, FIGURES, "smoke", smoked)
    assert link.is_symlink()
    assert "larger-tau-worse-loss" in page.read_text()
    assert "## Mine" in page.read_text()
    for wrong in (tmp_path, Path(os.devnull), tmp_path / "absent.md"):
        with pytest.raises(FednagError, match="is no file"):
            refresh(wrong, FIGURES, "smoke", smoked)
    assert not Path(os.devnull).is_file()


def test_a_page_links_to_the_charts_where_they_are(smoked: Path, tmp_path: Path) -> None:
    page = tmp_path / "docs" / "page.md"
    page.parent.mkdir()
    page.write_text(PAGE)
    refresh(page, FIGURES, "smoke", smoked)
    (target,) = re.findall(r"!\[.*?\]\((.*?)\)", page.read_text())
    assert (page.parent / target).read_bytes().startswith(b"\x89PNG")


def test_a_page_is_checked_before_anything_is_written(
    smoked: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "place"
    words = ("verdict", "--out", str(smoked), "--write", str(place), "--scale", "smoke")
    assert call(monkeypatch, "paper", *words, "--page", str(tmp_path / "absent.md")) == 2
    assert "absent.md: is no file" in capsys.readouterr().err
    assert not place.exists()
