"""A validation part: what is cut, what is evaluated on it, what the test samples are left for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fednag
from commands import Caller
from fednag.config import parse
from fednag.data.dataset import Dataset, dataset_of
from fednag.data.validation import cut
from fednag.errors import FednagError
from fednag.runs.build import Builder, Parts, load
from fednag.runs.folder import RunFolder
from fednag.runs.labels import by_problem
from fednag.runs.view import RunView

TABLES: dict[str, Any] = {
    "model": {"name": "logistic"},
    "training": {"tau": 2, "iterations": 6},
    "engine": {"chunk": 1, "threads": 1},
}


def numbered(count: int, classes: int = 3, **more: Any) -> Dataset:
    """Samples that say which they are; the test samples are the numbers from 1000 on."""
    x, y = torch.arange(float(count)).view(-1, 1), torch.arange(count) % classes
    test = torch.arange(1000.0, 1005.0).view(-1, 1), torch.arange(5) % classes
    return replace(dataset_of("numbered", x, y, test, None, None), **more)


@pytest.mark.parametrize(("count", "share"), [(30, 0.1), (31, 0.25), (100, 0.5), (7, 0.9)])
def test_every_sample_is_on_one_side_and_keeps_its_label(count: int, share: float) -> None:
    found = cut(numbered(count), share, seed=3)
    assert sorted(torch.cat([found.x, found.test_x]).flatten().tolist()) == list(range(count))
    assert len(found.test_x) == int(count * share)
    for x, y in ((found.x, found.y), (found.test_x, found.test_y)):
        assert (x.flatten().long() % 3).tolist() == y.tolist()
    # Of each class its share, but for what does not divide.
    for label in range(3):
        mine = sum(1 for sample in range(count) if sample % 3 == label)
        assert abs(int((found.test_y == label).sum()) - share * mine) <= 1
    assert found.held_back is not None
    assert found.held_back[0].flatten().tolist() == [1000, 1001, 1002, 1003, 1004]


def test_the_seed_decides_which() -> None:
    data = numbered(60)
    first, again, other = (cut(data, 0.2, seed).test_x.flatten().tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_who_trains_stays_the_same() -> None:
    owners = torch.arange(60) // 2  # two samples each
    found = cut(numbered(60, owners=owners), 0.6, seed=0)
    assert found.owners is not None
    assert set(found.owners.tolist()) == set(range(30))
    assert found.owners.tolist() == (found.x.flatten().long() // 2).tolist()
    assert len(found.test_x) < 36  # some had both of theirs cut, and got one back


def test_a_part_that_cannot_be() -> None:
    with pytest.raises(FednagError, match=r"data.validation: 0.01 of 30 samples is none; raise it"):
        cut(numbered(30), 0.01, seed=0)
    for share in (0.0, 1.0, -0.1):
        with pytest.raises(FednagError, match=r"data.validation"):
            parse({"data": {"validation": share}})
    stand_in = numbered(12)
    builder = Builder(Parts(dataset=stand_in, elsewhere=True))
    with pytest.raises(FednagError, match=r"data.validation: is cut by the simulator"):
        builder.plan(parse({**TABLES, "data": {"validation": 0.1}}))


def test_it_is_cut_before_the_split_and_from_no_test_sample() -> None:
    experiment = parse({**TABLES, "data": {"validation": 0.25}, "split": {"workers": 3}})
    plain, dataset = load(parse(TABLES)), load(experiment)
    _, plan, notes = Builder().plan(experiment)
    assert sum(len(mine) for mine in plan.owned) == len(dataset.x)
    assert len(dataset.x) + len(dataset.test_x) == len(plain.x)
    assert dataset.held_back is not None
    assert torch.equal(dataset.held_back[0], plain.test_x)
    known = {sample.numpy().tobytes() for sample in plain.x}
    assert {sample.numpy().tobytes() for sample in dataset.test_x} <= known
    assert any(f"on {len(dataset.test_x)} samples cut from" in note for note in notes)


def test_without_it_nothing_has_changed() -> None:
    plain, cut_off = parse(TABLES), parse({**TABLES, "data": {"validation": 0.1}})
    assert plain.key != cut_off.key
    assert "validation" not in plain.toml()
    run = fednag.run("fednag", **SHORT)
    assert not run.records[-1].tested
    assert "tested" not in run.records[-1].as_json()


SHORT: dict[str, Any] = {
    "model": "logistic",
    "tau": 2,
    "iterations": 6,
    "engine": {"chunk": 1, "threads": 1},
    "quiet": True,
}


def test_the_last_record_alone_is_tested_and_as_by_hand(tmp_path: Path) -> None:
    run = fednag.run("fednag", data={"name": "digits", "validation": 0.2}, out=tmp_path, **SHORT)
    assert not any(record.tested for record in run.records[:-1])
    tested = run.records[-1].tested
    digits = load(parse({}))
    with torch.no_grad():
        scores = run.final(digits.test_x.float() / 16)
    right = float((scores.argmax(-1) == digits.test_y).float().mean())
    loss = float(torch.nn.functional.cross_entropy(scores, digits.test_y))
    assert tested == pytest.approx({"accuracy": right, "test_loss": loss}, abs=1e-5)
    # What is evaluated during the run are other samples.
    found = load(parse({"data": {"validation": 0.2}}))
    with torch.no_grad():
        scores = run.final(found.test_x.float() / 16)
    mine = float((scores.argmax(-1) == found.test_y).float().mean())
    assert run.records[-1].accuracy == pytest.approx(mine)
    (note,) = [note for note in run.notes if note.startswith("on the test samples")]
    assert f"accuracy {right:.4g}" in note
    # From the folder they are read again.
    assert run.folder is not None
    assert RunFolder(run.folder).records() == run.records
    again = fednag.run(
        "fednag", data={"name": "digits", "validation": 0.2}, out=tmp_path, resume=True, **SHORT
    )
    assert again.folder == run.folder
    assert again.notes.count(note) == 1


def test_metrics_and_stopping_look_at_the_validation_part() -> None:
    data = {"name": "digits", "validation": 0.2}
    for stop in (0.05, 0.108):  # the first model is as good as the one, and not as the other
        run = fednag.run("fednag", data=data, metrics=["f1"], stop={"accuracy": stop}, **SHORT)
        assert run.ending.kind == "target"
        assert (run.records[-1].accuracy or 0) >= stop
        assert set(run.records[-1].tested) == {"accuracy", "test_loss", "f1"}
    diverged = fednag.run(fednag.FedNAG(lr=1e30), data=data, **SHORT)
    assert not diverged.records[-1].tested


def test_whatever_the_test_samples_are_training_is_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    runs = []
    for name, test_y in (("right", y[:20]), ("wrong", 1 - y[:20])):
        path = tmp_path / f"{name}.npz"
        np.savez(path, x=x, y=y, test_x=x[:20], test_y=test_y)
        data = {"name": "file", "path": str(path), "validation": 0.3}
        runs.append(fednag.run("fednag", data=data, **SHORT))
    one, other = (replace_seconds(run) for run in runs)
    assert one[:-1] == other[:-1]
    assert one[-1].tested["accuracy"] == pytest.approx(1 - (other[-1].tested["accuracy"] or 0))
    assert replace(one[-1], tested={}) == replace(other[-1], tested={})


def replace_seconds(run: fednag.Run) -> list[Any]:
    return [replace(record, seconds=0.0) for record in run.records]


def test_runs_that_were_evaluated_on_other_samples_are_not_ranked_together() -> None:
    views = [
        RunView.of(fednag.run("fednag", data=data, **SHORT))
        for data in ("digits", {"name": "digits", "validation": 0.2})
    ]
    assert [len(group) for group in by_problem(views).values()] == [1, 1]


def test_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("tiny.toml").write_text(
        '[data]\nvalidation = 0.2\n[model]\nname = "logistic"\n'
        "[training]\ntau = 2\niterations = 6\n[engine]\nchunk = 1\n"
    )
    done = Caller(monkeypatch, capsys)("run", "tiny.toml", "--quiet")
    assert done.code == 0
    assert "note: fednag: on the test samples, at the end: accuracy" in done.out
    told = "test losses are on 287 samples cut from the 1437 for training"
    assert told in done.out
