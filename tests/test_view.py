"""A run as all readers see it: how it ended, old folders and damaged ones."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import fednag
from fednag.core.ending import Ending
from fednag.errors import FednagError
from fednag.runs.folder import RunFolder
from fednag.runs.view import RunView, ending_of, read_all

ENDINGS = {
    "finished": Ending("finished"),
    "diverged at iteration 5": Ending("diverged", 5),
    "accuracy 0.9 reached at iteration 65": Ending("target", 65, "accuracy", 0.9),
    "loss 1e-05 reached at iteration 1": Ending("target", 1, "loss", 1e-5),
    "my cost reached -3 reached at iteration 7": Ending("target", 7, "my cost reached", -3.0),
    "no better test_loss in 1 evaluation, at iteration 40": Ending("patience", 40, "test_loss", 1),
    "no better f1 in 12 evaluations, at iteration 40": Ending("patience", 40, "f1", 12),
    "1.5 seconds are over at iteration 3": Ending("seconds", 3, value=1.5),
}
SHORT: dict[str, Any] = {"model": "logistic", "tau": 5, "iterations": 10}


def told(said: object, **more: object) -> dict[str, Any]:
    status = "diverged" if str(said).startswith("diverged") else "finished"
    return {"label": "a", "seed": 0, "status": status, "ended": said, **more}


@pytest.mark.parametrize(("sentence", "ending"), ENDINGS.items())
def test_endings_and_their_sentences(sentence: str, ending: Ending) -> None:
    """The sentence; the table that run.json has; and the sentence of folders without a table."""
    folder = RunFolder(Path("x"))
    assert str(ending) == sentence
    table = json.loads(json.dumps(asdict(ending)))
    assert ending_of(folder, told(sentence, ending=table)) == ending
    assert ending_of(folder, told(sentence)) == ending


@pytest.mark.parametrize(
    ("status", "said", "ending"),
    [
        ("finished", None, Ending("finished")),
        ("finished", "something else", Ending("finished")),
        ("finished", "x y reached at iteration 5", Ending("finished")),  # y is no number
        ("finished", f"f1 0.5 reached at iteration {'9' * 5000}", Ending("finished")),
        ("diverged", None, Ending("diverged")),
        ("diverged", "finished", Ending("diverged")),
        ("finished", "diverged at iteration 5", Ending("finished")),
        ("running", None, None),
        ("interrupted", "finished", None),
        (None, None, None),
        ([], None, None),
    ],
)
def test_the_status_decides_where_sentences_are_odd(
    status: object, said: object, ending: Ending | None
) -> None:
    assert ending_of(RunFolder(Path("x")), told(said) | {"status": status}) == ending


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"kind": "tired"},
        {"kind": "target", "iteration": 5},
        {"kind": "finished", "mood": 1},
        {"kind": []},
        [1],
        "finished",
    ],
)
def test_a_damaged_ending_is_a_sentence(table: object) -> None:
    with pytest.raises(FednagError, match=r"run\.json: cannot be read .*; restore it"):
        ending_of(RunFolder(Path("x")), told("finished", ending=table))


def test_a_folder_and_the_run_itself_are_seen_alike(tmp_path: Path) -> None:
    run = fednag.run("fednag", **SHORT, stop={"accuracy": 0.05}, out=tmp_path)
    assert run.folder is not None
    here, there = run.view, RunView.read(RunFolder(run.folder))
    assert here.ending == there.ending == run.ending == Ending("target", 0, "accuracy", 0.05)
    assert here.ended == there.ended == run.ended == "accuracy 0.05 reached at iteration 0"
    for name in ("label", "seed", "records", "running", "settings", "folder", "started", "rounds"):
        assert getattr(here, name) == getattr(there, name), name
    said = json.loads((run.folder / "run.json").read_text())
    assert said["ended"] == run.ended
    assert said["ending"] == asdict(run.ending)


def test_what_is_not_over_is_running_or_interrupted(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, "x", "a")
    folder.records_file.touch()
    folder.write_info({"label": "a", "seed": 0, "status": "running"})
    assert RunView.read(folder).ended == "interrupted"
    with folder.locked():
        assert RunView.read(folder).ended == "running"
    folder.config_file.write_text("name = ")
    views, (failed,) = read_all([folder], RunView.read)
    assert views == []
    assert (failed.source, failed.remedy) == (str(folder.config_file), "restore it")


def test_an_older_run_is_resumed_with_its_ending(tmp_path: Path) -> None:
    """A folder from before endings were tables: only its sentence says how it ended."""
    run = fednag.run("fednag", **SHORT, out=tmp_path)
    assert run.folder is not None
    info = json.loads((run.folder / "run.json").read_text())
    del info["ending"]
    info["ended"] = "loss 5 reached at iteration 10"
    RunFolder(run.folder).write_info({k: v for k, v in info.items() if k != "digest"})
    again = fednag.run("fednag", **SHORT, out=tmp_path, resume=True)
    assert again.ending == Ending("target", 10, "loss", 5.0)
