"""A chunk that was timed is kept for the machine, and nothing but its speed depends on it."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fednag
from fednag.runs import choices
from fednag.simulate import tuning

WORK: dict[str, Any] = {"model": "logistic", "workers": 4, "tau": 2, "iterations": 4, "batch": 8}


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Chunks given to the timer, 0 where it had to time; choices are kept in a folder."""
    asked: list[int] = []
    monkeypatch.setattr(tuning, "LEAST_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "allowed", lambda run: 0.1)
    real = tuning.choose

    def choose(*given: Any, chunk: int, **options: Any) -> tuning.Choice:
        asked.append(chunk)
        return real(*given, chunk=chunk, **options)

    monkeypatch.setattr(tuning, "choose", choose)
    monkeypatch.setattr(choices, "cache_folder", lambda: tmp_path / "kept")
    return asked


def file_of(tmp_path: Path) -> Path:
    (file,) = (tmp_path / "kept" / "chunks").iterdir()
    return file


def test_what_was_timed_once_is_not_timed_again(timed: list[int], tmp_path: Path) -> None:
    first = fednag.run("fednag", **WORK)
    held = json.loads(file_of(tmp_path).read_text())
    # The lr and the seed do not change what is fast.
    again = fednag.run(fednag.FedNAG(lr=0.02), seed=3, **WORK)
    assert timed == [0, held["chunk"]]
    assert first.experiment.engine == again.experiment.engine
    assert any(f"by timing on {date.today()}" in note for note in again.notes)


@pytest.mark.parametrize(
    "other",
    [
        {"batch": 9},
        {"workers": 5},
        {"model": nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Linear(9, 10))},
        {"engine": {"dtype": "float64"}},
        {"engine": {"threads": 1}},
        {"uplink": ["float16"]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_other_work_is_timed_for_itself(timed: list[int], other: dict[str, Any]) -> None:
    fednag.run("fednag", **WORK)
    fednag.run("fednag", **{**WORK, **other})
    assert timed == [0, 0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda held: "",
        lambda held: "[1]",
        lambda held: json.dumps(held)[:-9],
        lambda held: json.dumps(held | {"chunk": 3}),
        lambda held: json.dumps(held | {"chunk": True}),
        lambda held: json.dumps(held | {"threads": 10**6}),
        lambda held: json.dumps(held | {"inner": 0}),
        lambda held: json.dumps({name: own for name, own in held.items() if name != "inner"}),
        lambda held: json.dumps(held | {"seconds": [1]}),
        lambda held: json.dumps(held | {"made": "2020-01-01"}),
        lambda held: json.dumps(held | {"made": "3020-01-01"}),
        lambda held: json.dumps(held | {"for": {}}),
    ],
)
def test_what_is_damaged_or_old_is_timed_again(
    timed: list[int], tmp_path: Path, damage: Any
) -> None:
    fednag.run("fednag", **WORK)
    file = file_of(tmp_path)
    held = json.loads(file.read_text())
    file.write_text(damage(held))
    fednag.run("fednag", **WORK)
    assert timed == [0, 0]
    assert json.loads(file.read_text())["for"] == held["for"]


def test_a_folder_that_cannot_be_written_is_no_matter(
    timed: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_text("a file where the folder should be")
    assert fednag.run("fednag", **WORK).ended == "finished"
    monkeypatch.setattr(choices, "cache_folder", lambda: None)
    assert fednag.run("fednag", **WORK).ended == "finished"
    assert timed == [0, 0]


def test_a_model_that_cannot_be_stacked_says_so_every_time(timed: list[int]) -> None:
    class Branching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.flatten(1)
            return self.line(x if float(x.sum()) > 0 else -x)

    notes = [fednag.run("fednag", **{**WORK, "model": Branching()}).notes for _ in range(2)]
    assert notes[0] == notes[1] != []


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("FEDNAG_CACHE", str(tmp_path))
    assert choices.cache_folder() == tmp_path
    monkeypatch.setenv("FEDNAG_CACHE", "")
    assert choices.cache_folder() is None
    monkeypatch.delenv("FEDNAG_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert choices.cache_folder() == tmp_path / "fednag"
