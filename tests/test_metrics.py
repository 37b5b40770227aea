"""Metrics, the test loss, targets of any measure, and patience."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fednag
from commands import Caller
from fednag import FednagError, Metric
from fednag.config import parse
from fednag.core.keys import Draws
from fednag.core.record import Record
from fednag.core.state import State
from fednag.data.dataset import Dataset
from fednag.problems.metrics import METRICS, measured
from fednag.runs import checkpoint
from fednag.runs.build import Builder, Parts
from fednag.runs.folder import RunFolder
from fednag.runs.statistics import ranked
from fednag.runs.targets import Target, common_target, given_target, settled
from fednag.runs.view import RunView
from fednag.show.document import document
from fednag.show.tables import texts
from fednag.show.trackers import scalars
from fednag.show.watch import Follower, as_data, plain_line
from fednag.simulate.evaluator import Measures
from fednag.simulate.run import Local, Plan, simulate
from refusals import refused
from test_resume import content, killed, the_run

SMALL: dict[str, Any] = {"model": "logistic", "tau": 5, "iterations": 20}


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Caller:
    return Caller(monkeypatch, capsys)


@pytest.fixture(scope="module")
def line() -> Dataset:
    """Numbers to predict, with noise: twelve to learn from, four to test on."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(16, 2, generator=generator)
    y = x @ torch.tensor([1.0, -2.0]) + 0.1 * torch.randn(16, generator=generator)
    return Dataset("line", x[:12], y[:12], x[12:], y[12:], classes=None)


def answers(classes: int, *chosen: int) -> Tensor:
    """Outputs whose highest score is the class chosen."""
    return nn.functional.one_hot(torch.tensor(chosen), classes).float()


# Numbers computed by hand


def test_f1_by_hand() -> None:
    """Class 0: 2/(2+1). Class 1: 2/(2+2). Class 2 is never answered: 0."""
    output = answers(3, 0, 1, 1, 1)
    found = measured("f1", METRICS["f1"], output, torch.tensor([0, 0, 1, 2]))
    assert found == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)


def test_top5_by_hand() -> None:
    output = torch.arange(7, 0, -1.0).expand(3, 7)  # classes 0 to 4 are the five highest
    assert measured("top5", METRICS["top5"], output, torch.tensor([0, 4, 5])) == pytest.approx(
        2 / 3
    )
    assert measured("top5", METRICS["top5"], output[:, :5], torch.tensor([0, 4, 3])) == 1.0


def test_auc_of_two_classes_by_hand() -> None:
    """Of the four pairs of one of each class, three are in order."""
    margins = torch.tensor([3.0, 1.0, 2.0, 0.0])
    output = torch.stack([torch.zeros(4), margins], dim=1)
    assert measured("auc", METRICS["auc"], output, torch.tensor([1, 1, 0, 0])) == 0.75


def test_auc_of_many_classes_is_the_mean_of_pairs_in_order() -> None:
    generator = torch.Generator().manual_seed(5)
    output, target = torch.randn(60, 4, generator=generator), torch.arange(60) % 4
    shares = output.double().exp() / output.double().exp().sum(1, keepdim=True)
    areas = []
    for label in range(4):
        own, others = shares[target == label, label], shares[target != label, label]
        areas.append(float((own[:, None] > others[None, :]).double().mean()))
    found = measured("auc", METRICS["auc"], output, target)
    assert found == pytest.approx(sum(areas) / 4)


def test_regression_by_hand() -> None:
    """Residuals 0, 0, 1; the targets' squares about their mean are 1, 0, 1."""
    output, target = torch.tensor([[1.0], [2.0], [4.0]]), torch.tensor([1.0, 2.0, 3.0])
    assert measured("r2", METRICS["r2"], output, target) == pytest.approx(1 - 1 / 2)
    assert measured("mae", METRICS["mae"], output, target) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("name", "output", "target"),
    [
        ("auc", answers(2, 0, 1), torch.tensor([1, 1])),
        ("auc", answers(3, 0, 1), torch.tensor([0, 1])),
        ("r2", torch.tensor([[1.0], [2.0]]), torch.tensor([3.0, 3.0])),
        ("r2", torch.tensor([[1.0]]), torch.tensor([3.0])),
        ("f1", torch.full((2, 2), float("nan")), torch.tensor([0, 1])),
    ],
)
def test_what_is_not_defined_is_none(name: str, output: Tensor, target: Tensor) -> None:
    assert measured(name, METRICS[name], output, target) is None


# Records


def test_records_are_of_the_final_model_on_the_test_samples() -> None:
    """The test loss and F1, computed again without anything of ours."""
    from fednag.data.sets import load

    data = load("digits")
    run = fednag.run(**SMALL, evaluation={"metrics": ["f1"]})
    with torch.no_grad():
        scores = run.final(data.test_x.float() / 16)
    last = run.records[-1]
    loss = nn.functional.cross_entropy(scores, data.test_y).item()
    assert last.test_loss == pytest.approx(loss, rel=1e-5)
    found = []
    for label in range(10):
        said, true = scores.argmax(1) == label, data.test_y == label
        right = int((said & true).sum())
        found.append(2 * right / int(said.sum() + true.sum()))
    assert last.metrics["f1"] == pytest.approx(sum(found) / 10)


def test_regression_has_a_test_loss_too(line: Dataset) -> None:
    run = fednag.run(
        "fednag", data=line, model="linear", tau=2, iterations=10, workers=2, metrics=["r2", "mae"]
    )
    with torch.no_grad():
        error = run.final(line.test_x).reshape(-1) - line.test_y
    last = run.records[-1]
    assert last.accuracy is None
    assert last.test_loss == pytest.approx(float(error.square().mean()), rel=1e-5)
    assert last.metrics["mae"] == pytest.approx(float(error.abs().mean()), rel=1e-5)
    spread = (line.test_y - line.test_y.mean()).square().sum()
    assert last.metrics["r2"] == pytest.approx(float(1 - error.square().sum() / spread), rel=1e-4)


def test_asking_changes_no_other_number() -> None:
    options = {**SMALL, "engine": {"chunk": 2}}
    plain = fednag.run(**options)
    asked = fednag.run(**options, metrics=["auc", "accuracy"])
    stripped = [replace(record, seconds=0, metrics={}) for record in asked.records]
    assert stripped == [replace(record, seconds=0) for record in plain.records]
    assert set(asked.records[0].metrics) == {"auc"}  # the accuracy has a place of its own


def test_records_from_before_are_read(tmp_path: Path) -> None:
    old = (
        '{"iteration": 5, "round": 1, "loss": 0.5, "accuracy": 0.9, "train_accuracy": null, '
        '"bytes_up": 1, "bytes_down": 2, "seconds": 0.1, "participants": 4}'
    )
    (tmp_path / "records.jsonl").write_text(old + "\n")
    (record,) = RunFolder(tmp_path).records()
    assert (record.test_loss, record.metrics) == (None, {})
    assert json.loads(record.as_json()) == json.loads(old)  # and are written as they were


@pytest.mark.parametrize("metrics", ['{"f1": "high"}', '{"f1": true}', "[0.5]", "0.5"])
def test_metrics_that_are_none_are_no_record(metrics: str, tmp_path: Path) -> None:
    known = '"bytes_up": 1, "bytes_down": 2, "seconds": 0.1, "participants": 4'
    line = '{"iteration": 5, "round": 1, "loss": 1, "accuracy": null, "train_accuracy": null, '
    (tmp_path / "records.jsonl").write_text(f'{line}{known}, "metrics": {metrics}}}\n')
    with refused(says="line 1 is not a record"):
        RunFolder(tmp_path).records()


def test_a_metric_that_is_not_defined_is_noted_once(tmp_path: Path) -> None:
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    test = (x[:4], torch.zeros(4, dtype=torch.int64))  # of one class
    run = fednag.run(data=(x, y), test=test, **SMALL, metrics=["auc", "f1"], out=tmp_path)
    assert all(record.metrics["auc"] is None for record in run.records)
    assert all(record.metrics["f1"] is not None for record in run.records)
    (note,) = [note for note in run.notes if "auc" in note]
    assert "auc was defined at no evaluation (it needs every class" in note
    assert RunFolder(run.folder or tmp_path).records() == run.records


# Metrics of the user's own


def test_own_metrics_see_all_test_samples_and_say_what_is_better() -> None:
    shapes = []

    def worst(output: Tensor, target: Tensor) -> Tensor:
        shapes.append((tuple(output.shape), tuple(target.shape)))
        return nn.functional.cross_entropy(output, target, reduction="none").max()

    run = fednag.run(**SMALL, metrics={"worst": Metric(worst, better="lower"), "macro": "f1"})
    tests = len(run.records) * [((360, 10), (360,))]
    assert shapes == tests  # 1797 digits, a fifth of them for testing
    assert run.experiment.evaluation.own == {"worst": "lower", "macro": "higher"}
    assert 0 < (run.records[-1].metrics["macro"] or 0) < 1
    assert (run.records[-1].metrics["worst"] or 0) > (run.records[-1].test_loss or 0)


def test_metrics_that_do_not_fit_are_refused_before_training(line: Dataset) -> None:
    with refused("evaluation.metrics", "f1 is for classes"):
        fednag.run(data=line, model="linear", metrics=["f1"])
    bare = Dataset("bare", line.x, line.y, line.x[:0], line.y[:0], None)
    with refused("evaluation.metrics", "mae is taken on test samples"):
        fednag.run(data=bare, model="linear", metrics=["mae"])
    assert fednag.run(data=bare, model="linear", tau=2, iterations=2).records[-1].test_loss is None


def test_a_run_with_own_metrics_goes_on_from_python_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caller: Caller
) -> None:
    options = {**SMALL, "metrics": {"mine": lambda o, t: o.mean()}, "out": tmp_path}
    killed(monkeypatch, 2, "fednag", **options)
    folder = the_run(tmp_path)
    refused = caller("resume", str(folder.path))
    assert refused.code == 2
    assert "the metric mine of this run was a Python function; run it from Python" in refused.err
    done = fednag.run("fednag", **options, resume=True)
    assert done.folder == folder.path
    assert len(done.records) == 5


def test_sklearn_is_imported_only_where_it_is_used() -> None:
    code = (
        "import sys, torch, fednag; x, y = torch.randn(30, 2), torch.arange(30) % 2; "
        "run = lambda **more: fednag.run(data=(x, y), test=(x, y), model='logistic', tau=2, "
        "iterations=2, **more); run(); print('sklearn' in sys.modules); "
        "run(metrics=['f1']); print('sklearn' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "True"], done.stderr


# Fields


@pytest.mark.parametrize(
    ("stop", "words"),
    [
        ({"patience": 2, "watch": "test_loss"}, "stop.watch: test_loss is taken on test samples"),
        ({"patience": 2, "watch": "accuracy"}, "stop.watch: these targets are numbers"),
        ({"metrics": {"test_loss": 1.0}}, "stop.metrics: test_loss is taken on test samples"),
    ],
)
def test_waiting_for_what_never_comes_is_refused(
    stop: dict[str, Any], words: str, line: Dataset
) -> None:
    bare = Dataset("bare", line.x, line.y, line.x[:0], line.y[:0], None)
    with pytest.raises(FednagError, match=words):
        fednag.run(data=bare, model="linear", stop=stop)


# Patience


class Scripted(Local):
    """Trains, but is told what each evaluation finds."""

    def __init__(self, plan: Plan, found: list[Measures]) -> None:
        super().__init__(plan, Draws(plan.seed, [len(o) for o in plan.owned], plan.batch))
        self.found = found

    def measure(self, state: State) -> Measures:
        return self.found[state.round]


def played(blobs: Dataset, stop: dict[str, Any], found: list[Measures], **more: Any) -> list[State]:
    raw = {
        "data": {"name": "custom"},
        "model": {"name": "logistic"},
        "training": {"tau": 1, "iterations": len(found) - 1},
        "engine": {"chunk": 1},
        "stop": stop,
        **more,
    }
    _, plan, _ = Builder(Parts(dataset=blobs)).plan(parse(raw))
    return list(simulate(plan, trainer=Scripted(plan, found)))


def losses(*values: float | None) -> list[Measures]:
    return [Measures(1.0, 0.5, 0.5, test_loss=value) for value in values]


@pytest.mark.parametrize(
    ("stop", "values", "last"),
    [
        # Better at 1 and 3; then 4, 5 and 6 are not.
        ({"patience": 3}, [9, 8, 8.5, 7, 7, 7.5, 8, 1, 1], 6),
        ({"patience": 1}, [9, 8, 8, 1, 1], 2),
        ({"patience": 2}, [9, 9.5, 9.5, 1, 1], 2),  # the first model counts
        # A change of 0.5 does not count, and does not move what is compared with; 0.7 does.
        ({"patience": 2, "min_change": 0.6}, [9, 8.5, 8.45, 1], 2),
        ({"patience": 3, "min_change": 0.6}, [9, 8.5, 8.3, 8, 7.9, 7.8, 1, 1], 5),
        ({"patience": 2}, [9, None, 9, None, 9, 1, 1], 4),  # what is not known does not count
        ({"patience": 9}, [9, 9, 9], 2),
    ],
)
def test_patience_by_hand(
    stop: dict[str, Any], values: list[float | None], last: int, blobs: Dataset
) -> None:
    states = played(blobs, stop, losses(*values))
    assert states[-1].round == last
    over = last == len(values) - 1
    many = "evaluation" if stop["patience"] == 1 else "evaluations"
    waited = f"no better test_loss in {stop['patience']} {many}, at iteration {last}"
    assert str(states[-1].ended) == ("finished" if over else waited)


@pytest.mark.parametrize(
    ("stop", "values", "last"),
    [
        # Means of two: 9 to 7.5 at 3, 8.5 to 6.9 at 4, 7.5 to 6.85 at 5 (less than a tenth).
        ({"plateau": 0.1, "window": 2}, [10, 8, 9, 6, 7.8, 5.9, 1, 1], 5),
        ({"plateau": 0.1, "window": 1}, [9, 8, 7.3, 1, 1], 2),
        ({"plateau": 0.5, "window": 2}, [9, None, 9, 9, None, 9, 1], 5),
        ({"plateau": 0.1, "window": 4}, [9] * 6, 5),  # two windows are not full
        ({"plateau": 0.1, "window": 1}, [-1, -1.05, -9, -9], 1),  # a share of the size
    ],
)
def test_a_plateau_by_hand(
    stop: dict[str, Any], values: list[float | None], last: int, blobs: Dataset
) -> None:
    """Of the test loss; and of the accuracy, where higher is better, upside down."""
    states = played(blobs, stop, losses(*values))
    assert states[-1].round == last
    over = last == len(values) - 1
    off = f"test_loss has levelled off in {2 * stop['window']} evaluations, at iteration {last}"
    assert str(states[-1].ended) == ("finished" if over else off)
    rising = [
        Measures(1.0, 0.5, 0.5, metrics={"f1": None if value is None else -value})
        for value in values
    ]
    asked: dict[str, Any] = {"evaluation": {"metrics": ["f1"]}}
    turned = played(blobs, {**stop, "watch": "f1"}, rising, **asked)
    assert turned[-1].round == last


def test_a_plateau_is_the_same_after_resuming(blobs: Dataset, tmp_path: Path) -> None:
    raw: dict[str, Any] = {
        "model": {"name": "logistic"},
        "training": {"tau": 2, "iterations": 200},
        "engine": {"chunk": 1},
        "stop": {"plateau": 0.05, "window": 3},
    }
    _, plan, _ = Builder(Parts(dataset=blobs)).plan(parse(raw))
    whole = list(simulate(plan))
    assert whole[-1].ended is not None
    assert whole[-1].ended.kind == "plateau"
    folder = RunFolder(tmp_path)
    folder.records_file.touch()
    checkpoint.write(folder, whole[-3], 0, "me", {})
    saved, _ = checkpoint.newest(folder, plan, "me")
    assert saved is not None
    again = list(simulate(plan, saved.state))
    assert again[-1].ended == whole[-1].ended
    assert (again[-1].seen, again[-1].dearest) == (whole[-1].seen, whole[-1].dearest)


def test_patience_with_what_is_to_grow(blobs: Dataset) -> None:
    """The F1 falls while the test loss falls too: the one that is watched decides."""
    found = [
        Measures(1.0, 0.5, 0.5, test_loss=9.0 - i, metrics={"f1": f1})
        for i, f1 in enumerate([0.1, 0.5, 0.5, 0.45, 0.9])
    ]
    asked = {"evaluation": {"metrics": ["f1"]}}
    states = played(blobs, {"patience": 2, "watch": "f1"}, found, **asked)
    assert str(states[-1].ended) == "no better f1 in 2 evaluations, at iteration 3"
    assert (states[-1].watched, states[-1].waited) == (0.5, 2)
    assert str(played(blobs, {"patience": 2}, found, **asked)[-1].ended) == "finished"


def test_the_loss_is_watched_without_test_samples(blobs: Dataset) -> None:
    bare = replace(blobs, test_x=blobs.test_x[:0], test_y=blobs.test_y[:0])
    found = [Measures(value, None, 0.5) for value in (3.0, 2.0, 2.5, 2.5, 1.0)]
    states = played(bare, {"patience": 2}, found)
    assert str(states[-1].ended) == "no better loss in 2 evaluations, at iteration 3"


@pytest.mark.parametrize(
    ("level", "values", "last"),
    [({"f1": 0.5}, [0.1, 0.4, 0.5, 0.9], 2), ({"f1": 0.95}, [0.9] * 4, 3)],
)
def test_a_metric_stops_a_run(
    level: dict[str, float], values: list[float], last: int, blobs: Dataset
) -> None:
    found = [Measures(1.0, 0.5, 0.5, metrics={"f1": value}) for value in values]
    states = played(blobs, {"metrics": level}, found, evaluation={"metrics": ["f1"]})
    assert states[-1].round == last
    assert str(states[-1].ended) == ("f1 0.5 reached at iteration 2" if last == 2 else "finished")


def test_a_metric_that_is_to_fall_stops_a_run(line: Dataset) -> None:
    found = [Measures(1.0, None, None, metrics={"mae": v}) for v in (3.0, 2.0, 1.0, 0.5)]
    more: dict[str, Any] = {"evaluation": {"metrics": ["mae"]}, "model": {"name": "linear"}}
    states = played(line, {"metrics": {"mae": 1.0}}, found, **more)
    assert str(states[-1].ended) == "mae 1 reached at iteration 2"


def test_a_run_that_waits_goes_on_to_the_same_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it waits: what it waits for, and for how long, is remembered."""
    options: dict[str, Any] = {
        "model": "logistic",
        "tau": 1,
        "iterations": 60,
        "metrics": ["f1"],
        "stop": {"patience": 5, "watch": "f1", "min_change": 0.01},
        "engine": {"chunk": 2},
        "checkpoint": {"rounds": 1, "seconds": 0},
    }
    method = fednag.FedNAG(lr=0.3, momentum=0.9)
    whole = fednag.run(method, **options)
    assert whole.ended.startswith("no better f1 in 5 evaluations, at iteration ")
    end = whole.records[-1].round
    assert 5 < end < 60
    killed(monkeypatch, end - 2, method, **options, out=tmp_path)  # three of the five are over
    resumed = fednag.run(method, **options, out=tmp_path, resume=True)
    assert resumed.ended == whole.ended
    assert content(resumed) == content(whole)
    assert f"went on from round {end - 2} of 60 (checkpoint)" in resumed.notes


# Targets


def records(*found: float | None) -> list[Record]:
    return [
        Record(5 * i, i, 1.0, 0.5, None, 0, 0, 0.0, 4, test_loss=2.0 - i / 10, metrics={"f1": f1})
        for i, f1 in enumerate(found)
    ]


def test_targets_of_any_measure() -> None:
    assert Target("f1", 0.5).first(records(0.9, 0.4, None, 0.5, 0.9)).round == 3
    assert Target("f1", 0.95).first(records(0.1, 0.9)) is None
    assert Target("test_loss", 1.8).first(records(0.1, 0.1, 0.1, 0.1)).round == 2
    assert Target("mae", 0.5).better == "lower"
    assert Target("loss", 0.5).better == "lower"
    assert [str(Target(m, 0.5)) for m in ("accuracy", "f1", "test_loss")] == [
        "50%",
        "f1 0.5",
        "test loss 0.5",
    ]
    assert given_target("f1=0.9", None) == Target("f1", 0.9, "higher")
    assert given_target("0.9", None) == given_target(0.9, None) == Target("accuracy", 0.9)
    assert given_target("loss=0.9", None) == given_target(None, 0.9)
    stop = {"stop": {"metrics": {"f1": 0.3}}}
    assert common_target([RunView("a", 0, records(0.9, 0.4), config=stop)]) == Target("f1", 0.3)


@pytest.mark.parametrize("text", ["x", "f1=", "=0.9", "f1=nan", "f1=inf", "", "f1"])
def test_targets_that_are_none(text: str) -> None:
    with refused("--target", "^;"):
        given_target(text, None)


@pytest.mark.parametrize("text", ["2", "accuracy=2", "0", "loss=0", "test_loss=-1"])
def test_targets_that_cannot_be(text: str) -> None:
    with refused("--target", "above 0"):
        given_target(text, None)


def test_a_target_of_ones_own_goes_the_way_the_run_says() -> None:
    found = [
        Record(i, i, 1.0, None, None, 0, 0, 0.0, 4, metrics={"cost": cost})
        for i, cost in enumerate([9.0, 8.0, 3.0])
    ]
    run = RunView("a", 0, found, config={"evaluation": {"own": {"cost": "lower"}}})
    asked = settled(given_target("cost=4", None), [run])
    assert asked == Target("cost", 4.0, "lower")
    assert asked.first(found).round == 2
    with refused("--target", "not measured costs; use one of accuracy, loss"):
        settled(given_target("costs=4", None), [run])


# What is shown


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[fednag.Comparison, Path]:
    out = tmp_path_factory.mktemp("made")
    both = fednag.compare(["fednag", "fedavg"], **SMALL, metrics=["f1"], name="m", out=out)
    return both, out / "m"


def test_tables_have_a_column_each(made: tuple[fednag.Comparison, Path]) -> None:
    both, _ = made
    head, first, _ = str(both).splitlines()
    assert "best loss  test loss      f1  iterations" in head
    last = both["fednag"].records[-1]
    assert f"{last.test_loss:.4f}  {last.metrics['f1']:.4f}" in first
    assert ">f1</th>" in both._repr_html_()
    assert f">{last.metrics['f1']:.4f}</td>" in both._repr_html_()
    assert f"f1 {last.metrics['f1']:.4g}" in repr(both["fednag"])


def test_a_method_without_a_metric_has_a_dash(made: tuple[fednag.Comparison, Path]) -> None:
    plain = fednag.run("fedmom", **SMALL)
    rows = ranked([made[0]["fednag"].view, plain.view])
    assert list(texts(rows)[0]).count("f1") == 1
    page = document([made[0]["fednag"].view, plain.view])
    place = page["table"]["headings"].index("f1")
    assert sorted(row[place] == "-" for row in page["table"]["rows"]) == [False, True]


def test_the_page_has_charts_and_columns(made: tuple[fednag.Comparison, Path]) -> None:
    page = document(made[0].views, Target("f1", 0.3))
    assert [chart["key"] for chart in page["charts"]] == ["loss", "accuracy", "test_loss", "f1"]
    assert page["charts"][-1]["level"] == 0.3
    assert {"test loss", "f1", "iterations to f1 0.3"} <= set(page["table"]["headings"])
    last = made[0]["fednag"].records[-1]
    (track,) = [track for track in page["tracks"] if track["label"] == "fednag"]
    assert track["columns"]["f1"][-1] == pytest.approx(last.metrics["f1"], rel=1e-5)
    assert track["columns"]["test_loss"][-1] == pytest.approx(last.test_loss, rel=1e-5)


def test_the_command_line_shows_columns(
    made: tuple[fednag.Comparison, Path], caller: Caller, tmp_path: Path
) -> None:
    both, folder = made
    last = both["fednag"].records[-1]
    shown = caller("show", str(folder), "--target", "f1=0.05")
    for text in ("test loss", " f1 ", f"{last.metrics['f1']:.4f}", f"{last.test_loss:.4f}"):
        assert text in shown.out, text
    rows = caller("show", str(folder), "--json").document["rows"]
    (row,) = [row for row in rows if row["label"] == "fednag"]
    assert row["final_test_loss"]["mean"] == last.test_loss
    assert row["final_metrics"]["f1"]["mean"] == last.metrics["f1"]
    words = ("time", str(folder), "--fleet", "lan", "--target", "f1=0.05", "--out", str(tmp_path))
    timed = caller(*words, "--json").document
    assert timed["target"] == {"measure": "f1", "value": 0.05, "better": "higher"}
    assert all(method["seconds"] for method in timed["methods"])
    assert "time to f1 0.05 on lan" in caller(*words).out
    missing = caller("show", str(folder), "--target", "auc=0.5")
    assert missing.code == 2
    assert "have not measured auc; add it to evaluation.metrics, or use one of" in missing.err


def test_watch_and_trackers_have_them(made: tuple[fednag.Comparison, Path], caller: Caller) -> None:
    both, folder = made
    last = both["fednag"].records[-1]
    (view,) = [s for s in Follower(folder).look().views if s.label == "fednag"]
    assert as_data(view)["metrics"] == {"f1": last.metrics["f1"]}
    assert as_data(view)["test_loss"] == last.test_loss
    assert f"test loss {last.test_loss:.4f}, f1 {last.metrics['f1']:.4f}" in plain_line(view)
    seen = caller("watch", str(folder), "--once").out
    assert " f1 " in seen
    assert f"{last.metrics['f1']:.4f}" in seen
    assert f"{last.test_loss:.4f}" in seen
    found = scalars(last)
    assert (found["test_loss"], found["f1"]) == (last.test_loss, last.metrics["f1"])
    assert "f1" not in scalars(replace(last, metrics={"f1": None}))


def test_a_file_says_it_all(caller: Caller, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(
        'name = "mine"\n[model]\nname = "logistic"\n[training]\ntau = 5\niterations = 200\n'
        '[evaluation]\nmetrics = ["f1", "top5"]\n[stop]\nmetrics = {f1 = 0.3}\npatience = 30\n'
    )
    done = caller("run", "mine.toml", "--json")
    assert done.code == 0, done.err
    (row,) = done.document["rows"]
    assert row["ended"].startswith("f1 0.3 reached at iteration ")
    assert row["final_metrics"]["f1"]["mean"] >= 0.3
    (folder,) = done.document["runs"]
    again = caller("run", f"{folder}/config.toml", "--json").document["rows"]
    assert again[0]["final_metrics"] == row["final_metrics"]
    lines = Path(folder, "records.jsonl").read_text().splitlines()
    assert set(json.loads(lines[-1])["metrics"]) == {"f1", "top5"}
    wrong = caller("run", "mine.toml", "--set", "evaluation.metrics=['r2']")
    assert wrong.code == 2
    assert wrong.err.count("\n") == 1


def test_a_plan_to_a_metric(caller: Caller, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("p.toml").write_text(
        'name = "p"\n[model]\nname = "logistic"\n[training]\niterations = 60\n'
        "[algorithm]\nlr = 0.05\n[engine]\nchunk = 1\n"
    )
    words = ("time", "plan", "p.toml", "--fleet", "lan", "--taus", "5", "--algorithms", "fednag")
    done = caller(*words, "--target", "f1=0.3", "--json")
    assert done.code == 0, done.err
    assert done.document["target"] == {"measure": "f1", "value": 0.3, "better": "higher"}
    assert "to f1 0.3 on lan" in done.document["advice"][0]
    unknown = caller(*words, "--target", "acuracy=0.3")
    assert unknown.code == 2
    assert "no such measure (did you mean accuracy?)" in unknown.err
