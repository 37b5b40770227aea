"""A run with one thing changed: who stays as they were, to the bit, and what is told of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fednag
from commands import Caller
from fednag import FednagError, News, Vectors
from fednag.core.executor import Exchange
from fednag.runs.folder import RunFolder
from fednag.simulate.engine import Engine
from fednag.whatif import what_if

SMALL: dict[str, Any] = {
    "model": "logistic",
    "workers": 5,
    "tau": 4,
    "iterations": 24,
    "batch": 16,
    "split": {"kind": "sizes", "skew": 1.0},
    "engine": {"chunk": 1, "threads": 1},
    "checkpoint": {"rounds": 2, "seconds": 0, "keep": True},
}
Sent = dict[tuple[int, int], tuple[int, Vectors]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sent]]:
    """(round, worker) -> iterations before, upload; of every run in turn, begun by a new table."""
    tables: list[Sent] = [{}]
    known = Engine.uploads

    def uploads(self: Engine, asked: Exchange, *rest: Any) -> Any:
        found = known(self, asked, *rest)
        for row, worker in enumerate(asked.workers.tolist()):
            own = found.up.map(lambda v, row=row: v[row].clone())  # type: ignore[misc]
            tables[-1][asked.round, worker] = int(asked.starts[row]), own
        return found

    monkeypatch.setattr(Engine, "uploads", uploads)
    return tables


def numbers(run: fednag.Run | None) -> list[dict[str, Any]]:
    """Records without what a machine's clock says."""
    assert run
    return [json.loads(record.as_json()) | {"seconds": 0} for record in run.records]


def same(one: Vectors, other: Vectors) -> bool:
    return set(one) == set(other) and all(torch.equal(one[n], other[n]) for n in one)


@pytest.mark.parametrize("chunk", [1, 4])
def test_without_a_worker_the_others_begin_as_they_did(chunk: int, sent: list[Sent]) -> None:
    given = SMALL | {"engine": {"chunk": chunk, "threads": 1}, "iterations": 8}
    fednag.run(**given)
    sent.append({})
    fednag.run(**given, training={"without": [3]})
    whole, less = sent
    assert set(less) == {key for key in whole if key[1] != 3}
    for (number, worker), (start, up) in less.items():
        assert start == whole[number, worker][0]  # the same batches, round after round
        if number == 1:
            assert same(up, whole[number, worker][1]), worker
    assert not same(less[2, 0][1], whole[2, 0][1])


def test_the_mean_is_that_of_those_left(sent: list[Sent]) -> None:
    run = fednag.run("fedavg", **SMALL | {"iterations": 4}, training={"without": [1, 3]})
    held = np.array(run.about["held"]).sum(1)
    left = [0, 2, 4]
    total = sum(held[i] * sent[0][1, i][1].w.double() for i in left) / held[left].sum()
    trained = torch.cat([p.detach().flatten() for p in run.final.parameters()])
    assert torch.equal(trained, total.to(trained.dtype))


def test_cohorts_keep_their_draws(sent: list[Sent]) -> None:
    given = SMALL | {"iterations": 40}
    drawn = {"participants": 2}
    fednag.run(**given, training=drawn)
    sent.append({})
    run = fednag.run(**given, training={**drawn, "without": [0]})
    assert set(sent[1]) == {key for key in sent[0] if key[1] != 0}
    assert any(worker == 0 for _, worker in sent[0])
    # Who was asked is what the records say.
    told = {f.round: set(f.cohort or ()) for r in run.records for f in r.rounds}
    for number, cohort in told.items():
        assert cohort == {worker for n, worker in sent[1] if n == number}
    assert sum(r.participants for r in run.records) == len(sent[1])


@dataclass(frozen=True)
class Shares(fednag.FedAvg):
    told: Any = None

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        self.told.append(news.share)
        return super().update(server, mean, news)


def test_those_left_are_all_there_are() -> None:
    told: list[float] = []
    fednag.run(Shares(told=told), **SMALL | {"checkpoint": {}}, training={"without": [2]})
    assert set(told) == {1.0}


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"training": {"without": [5]}}, "there is no worker 5"),
        ({"training": {"without": [0, 1, 2, 3, 4]}}, "nobody would be left"),
        (
            {"training": {"without": [1]}, "aggregator": {"kind": "noisy-mean"}},
            "use another aggregator",
        ),
    ],
)
def test_who_cannot_be_left_out(more: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FednagError, match=sentence):
        fednag.run(**SMALL | more)


def test_a_centralised_method_has_nobody_to_leave_out() -> None:
    with pytest.raises(FednagError, match=r"training.without: a centralised method has no workers"):
        fednag.run("cnag", **SMALL, training={"without": [0]})


def test_trust_is_not_learnt_of_who_was_not_asked() -> None:
    given = SMALL | {"controller": {"kind": "trust", "quality": False}}
    whole = fednag.run(**given, training={"participants": 4})
    less = fednag.run(**given, training={"participants": 4, "without": [1]})
    assert whole.records[-1].bytes_up > less.records[-1].bytes_up > 0


def test_an_equal_value_changes_nothing(tmp_path: Path) -> None:
    run = fednag.run(**SMALL, out=tmp_path)
    before = sorted(tmp_path.rglob("*"))
    found = what_if(run, {"training.tau": 4, "checkpoint.rounds": 1})
    assert found.run is None
    assert [effect.difference for effect in found.effects] == [0.0] * 4
    assert "that changes nothing" in found.notes[0]
    assert sorted(tmp_path.rglob("*")) == before


def test_a_fleet_changes_seconds_only(tmp_path: Path) -> None:
    run = fednag.run(**SMALL, out=tmp_path, clock={"fleet": "paper-edge"})
    found = what_if(run, fleet="silos-wan")
    assert found.run
    assert found.run.folder
    assert found.run.folder.parent.name == "python-what-if"
    first, second = numbers(run), numbers(found.run)
    assert [r.pop("clock") for r in first] != [r.pop("clock") for r in second]
    assert first == second
    differences = {effect.measure: effect.difference for effect in found.effects}
    assert differences.pop("seconds")
    assert set(differences.values()) == {0.0}


@pytest.mark.parametrize("name", ["fednag", "scaffold", "mime"])
def test_more_iterations_go_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    run = fednag.run(name, **SMALL, out=tmp_path)
    assert run.folder
    assert len(list((run.folder / "checkpoints").iterdir())) == 2
    found = what_if(run, {"training.iterations": 40})
    assert "it went on from round 6" in " ".join(found.notes)
    whole = fednag.run(name, **SMALL | {"iterations": 40})
    assert numbers(found.run) == numbers(whole)
    assert found.run
    for one, other in zip(found.run.final.parameters(), whole.final.parameters(), strict=True):
        assert torch.equal(one, other)
    # Asked again, it is read and not made.
    again = what_if(run.folder, {"training.iterations": 40})
    assert again.run
    assert again.run.folder == found.run.folder


def later(factor: float, share: float = 0.75) -> dict[str, Any]:
    table = {"kind": "steps", "field": "algorithm.lr", "at_shares": [share], "factor": factor}
    return {"schedule": [table]}


COSINE: dict[str, Any] = {"schedule": [{"kind": "cosine", "field": "algorithm.lr"}]}


def test_a_schedule_that_differs_later_goes_on(tmp_path: Path) -> None:
    run = fednag.run(**SMALL, out=tmp_path, **later(0.5))
    assert run.folder
    # The newest checkpoint is of round 6, where it differs already; that of round 4 does.
    found = what_if(run, {"schedule.0.factor": 0.1})
    assert "it went on from round 4" in " ".join(found.notes)
    assert numbers(found.run) == numbers(fednag.run(**SMALL, **later(0.1)))
    early = what_if(run, {"schedule.0.at_shares": [0.2]})
    assert "it was made from the start" in " ".join(early.notes)
    assert numbers(early.run) == numbers(fednag.run(**SMALL, **later(0.5, 0.2)))


@pytest.mark.parametrize(
    ("given", "changes", "why"),
    [
        ({}, {"training.batch": 8}, "training.batch may matter from the first round on"),
        ({"checkpoint": {}}, {"training.iterations": 28}, "the run has no checkpoint"),
        ({"iterations": 22}, {"training.iterations": 28}, None),
        ({"iterations": 22}, {"training.iterations": 14}, "before the run's checkpoints"),
        ({"stop": {"loss": 1.5}}, {"training.iterations": 28}, None),
        (
            {"controller": {"kind": "steps-by-worker", "steps": [4, 2]}},
            {"training.iterations": 28},
            None,
        ),
        (later(0.5), {"training.iterations": 44}, "it went on from round 4"),
        (COSINE, {"training.iterations": 44}, "before the run's checkpoints"),
    ],
    ids=["batch", "none", "cut", "shorter", "stopped", "steps", "later", "cosine"],
)
def test_what_may_matter_earlier_is_made_anew(
    given: dict[str, Any], changes: dict[str, Any], why: str | None, tmp_path: Path
) -> None:
    """Wherever it goes on from, it is the run that it would be from the start."""
    run = fednag.run(**SMALL | given, out=tmp_path)
    found = what_if(run, changes)
    if why:
        assert why in " ".join(found.notes)
    (field, value), *_ = changes.items()
    whole = fednag.run(**SMALL | given | {field.removeprefix("training."): value})
    assert numbers(found.run) == numbers(whole)


def test_a_run_that_is_not_over_is_compared_as_far_as_it_came(tmp_path: Path) -> None:
    run = fednag.run(**SMALL, out=tmp_path)
    assert run.folder
    folder = RunFolder(run.folder)
    info = folder.info()
    marked = replace(folder.mark(len(run.records)))
    for name in ("ended", "ending", "models"):
        info.pop(name)
    info.pop("format")
    folder.write_info({**info, "status": "interrupted", "records": vars(marked)})
    found = what_if(run.folder, without=[0], fleet="lan")
    assert "the run is not over: differences are those at iteration 24" in found.notes
    assert found.effects[-1].difference is None  # of two clocks
    assert found.run
    assert found.run.label == "fednag without worker 0, on lan"


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Caller:
    monkeypatch.chdir(tmp_path)
    tiny = SMALL | {"workers": 4, "tau": 2, "iterations": 10, "split": {}, "checkpoint": {}}
    fednag.run(**tiny, name="tiny", out="runs")
    return Caller(monkeypatch, capsys)


def test_the_command_writes_a_run_and_a_picture(
    command: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = command("what-if", "runs/tiny", "--without", "worker:3")
    assert shown.code == 0, shown.err
    assert "fednag without worker 3" in shown.out
    assert "points" in shown.out
    (folder,) = Path("runs/tiny-what-if").iterdir()
    assert (folder / "what-if.png").stat().st_size > 10_000
    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [stem])
    document = command("what-if", "runs/tiny", "--without", "worker:3", "--json").document
    assert json.loads((folder / "what-if.json").read_text())["key"] == document["key"]
    assert document["key"] in folder.name
    assert [row["measure"] for row in document["rows"]] == ["accuracy", "loss", "bytes", "seconds"]
    sent = document["rows"][2]
    assert sent["what_if"] / sent["run"] == 0.75
    assert RunFolder(folder).info()["what_if"]["changes"] == {"training.without": [3]}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "say what is to change, e.g. --without worker:0"),
        (["--without", "3"], "--without 3: write worker:K, e.g. worker:3"),
        (["--without", "worker:4"], "there is no worker 4; they are numbered from 0 to 3"),
        (["--set", "seed=1"], "every draw is to stay; change another field"),
        (["--set", "training.tua=1"], "--set training.tua: no such key (did you mean tau?)"),
        (["--set", "clock.fleet=lan", "--fleet", "paper-edge"], "it is given twice; leave one out"),
        (["--fleet", "paper-egde"], "did you mean paper-edge?"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], sentence: str, command: Caller) -> None:
    result = command("what-if", "runs/tiny", *words)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert result.err.count("\n") == 1
    assert not Path("runs/tiny-what-if").exists()
