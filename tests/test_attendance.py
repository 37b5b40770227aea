"""Deadlines and availability in training: who is left out, and that it is the same every time."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fednag
from fednag.api import resume_all
from fednag.clock import load_fleet, read_run, replay
from fednag.config import parse
from fednag.runs.folder import RunFolder
from fednag.runs.interrupts import Interrupted
from refusals import refused

FLEET = """
name = "three"
[[device]]
name = "quick"
count = 2
gflops = 1.0
spread = 0.3
up = { mbit = 10, spread = 0.3 }
down = { mbit = 10, spread = 0.3 }
[[device]]
name = "slow"
gflops = 0.02
spread = 0.3
up = { mbit = 1, spread = 0.3 }
down = { mbit = 1, spread = 0.3 }
"""

KNOWN: dict[str, Any] = {
    "model": "logistic",
    "workers": 3,
    "tau": 4,
    "iterations": 24,
    "batch": 16,
    "engine": {"chunk": 1, "threads": 1},
}


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    path = tmp_path / "three.toml"
    path.write_text(FLEET)
    return str(path)


def numbers(run: fednag.Run) -> list[str]:
    return [replace(record, seconds=0.0).as_json() for record in run.records]


def test_a_deadline_leaves_the_slow_one_out(fleet: str) -> None:
    run = fednag.run("fednag", clock={"fleet": fleet, "deadline": 0.05}, **KNOWN)
    last = run.records[-1]
    assert all(2 in record.missed for record in run.records[1:])
    assert last.misses >= 6
    assert last.participants <= 2
    down, up = 2 * 650 * 4, 2 * 650 * 4
    assert last.bytes_down == 6 * 3 * down  # who is late was sent the model all the same
    assert last.bytes_up == (6 * 3 - last.misses) * up
    assert last.clock is not None
    assert last.clock == pytest.approx(6 * 0.05)  # waited for every time
    assert any("missed" in note for note in run.notes)


def test_who_is_left_out_has_no_part_in_the_mean(fleet: str) -> None:
    """With one of three always late, it is the run of the two others alone."""
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    owners = torch.arange(30) % 3
    known = KNOWN | {"model": torch.nn.Linear(4, 3), "split": {"kind": "natural"}}
    known["evaluation"] = {"every": 1}
    late = fednag.run(
        "fednag",
        data=(x, y),
        owners=owners,
        clock={"fleet": fleet, "deadline": 0.0006},
        **known,
    )
    assert {record.missed for record in late.records[1:]} == {(2,)}
    two = owners < 2
    pair = known | {"workers": 2}
    alone = fednag.run("fednag", data=(x[two], y[two]), owners=owners[two], **pair)
    for a, b in zip(late.final.parameters(), alone.final.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_no_deadline_leaves_nobody_out_and_changes_no_number(fleet: str) -> None:
    timed = fednag.run("fednag", clock={"fleet": fleet}, **KNOWN)
    plain = fednag.run("fednag", **KNOWN)
    without = [json.loads(replace(r, seconds=0.0, clock=None).as_json()) for r in timed.records]
    assert without == [json.loads(text) for text in numbers(plain)]
    clocks = [record.clock for record in timed.records]
    assert clocks[0] == 0.0
    assert np.all(np.diff(np.array(clocks, dtype=float)) > 0)


def test_a_round_to_which_nobody_comes_does_nothing(fleet: str) -> None:
    run = fednag.run("fedavg", clock={"fleet": fleet, "deadline": 1e-6}, **KNOWN)
    assert {record.loss for record in run.records} == {run.records[0].loss}
    assert run.records[-1].clock == pytest.approx(6e-6)
    assert run.records[-1].misses == 18
    assert run.records[-1].bytes_up == 0
    assert run.ended == "finished"


def test_who_is_away_is_sent_nothing() -> None:
    run = fednag.run("fedavg", clock={"fleet": "vehicles"}, **(KNOWN | {"workers": 8}))
    first = run.records[1]
    away = 8 - first.participants
    assert away > 0
    assert len(first.missed) == away
    assert first.bytes_down == first.participants * 650 * 4


def test_the_centralised_have_no_deadline(fleet: str) -> None:
    run = fednag.run("csgd", clock={"fleet": fleet, "deadline": 1e-6}, **KNOWN)
    assert run.records[-1].misses == 0
    assert run.records[-1].loss < run.records[0].loss  # type: ignore[operator]


def test_seeds_decide(fleet: str) -> None:
    def run(seed: int) -> fednag.Run:
        clock = {"fleet": fleet, "deadline": 0.009}
        return fednag.run("scaffold", clock=clock, seed=seed, **KNOWN)

    assert numbers(run(1)) == numbers(run(1))
    assert 0 < run(1).records[-1].misses < 18
    assert [r.missed for r in run(1).records] != [r.missed for r in run(2).records]


@pytest.mark.parametrize("method", ["fednag", "scaffold", "mime"])
def test_it_goes_on_to_the_same_bits(fleet: str, tmp_path: Path, method: str) -> None:
    """Also between evaluations: who missed since the last record is remembered."""

    class Asked:
        number: int | None = None

    known = KNOWN | {
        "clock": {"fleet": fleet, "deadline": 0.009},
        "evaluation": {"every": 4},
        "checkpoint": {"rounds": 1},
    }
    whole = fednag.run(method, out=tmp_path / "whole", **known)
    (folder,) = (tmp_path / "whole").glob("*/*/run.json")
    text = (folder.parent / "config.toml").read_text()

    from fednag.config import read
    from fednag.runs.build import Builder
    from fednag.runs.execute import Execution

    experiment = parse(read(folder.parent / "config.toml"))
    resolved, plan, notes = Builder().plan(experiment)
    asked = Asked()

    def listen(state: Any) -> None:
        asked.number = 2 if state.round == 3 else None

    with pytest.raises(Interrupted):
        Execution(resolved, plan, method, notes, listen, asked).start(tmp_path / "cut")  # type: ignore[arg-type]
    (cut,) = (tmp_path / "cut").glob("*/*/run.json")
    assert (cut.parent / "config.toml").read_text() == text
    (again,) = resume_all([RunFolder(cut.parent)])
    assert numbers(again) == numbers(whole)
    assert 0 < whole.records[-1].misses < 18
    for a, b in zip(again.final.parameters(), whole.final.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_replay_of_such_a_run_is_the_run(fleet: str, tmp_path: Path) -> None:
    fednag.run("mime", clock={"fleet": fleet, "deadline": 0.009}, out=tmp_path, **KNOWN)
    (folder,) = tmp_path.glob("*/*/run.json")
    run = read_run(RunFolder(folder.parent))
    played = replay(load_fleet(fleet), run.workload, run.rounds, run.seed, 0.009, leave_out=True)
    assert played.ends.tolist() == [record.clock for record in run.records]


def test_the_fleet_is_part_of_a_run(fleet: str, tmp_path: Path) -> None:
    known = KNOWN | {"clock": {"fleet": fleet, "deadline": 0.009}, "out": tmp_path / "runs"}
    fednag.run("fedavg", **known)
    again = fednag.run("fedavg", resume=True, **known)
    assert len(list((tmp_path / "runs").glob("*/*"))) == 1
    other = KNOWN | {"clock": {"fleet": fleet, "deadline": 0.007}, "out": tmp_path / "runs"}
    fednag.run("fedavg", resume=True, **other)
    assert len(list((tmp_path / "runs").glob("*/*"))) == 2
    assert again.folder is not None
    Path(fleet).write_text(FLEET.replace("gflops = 0.02", "gflops = 0.03"))
    with refused("clock.fleet", "is not what it was"):
        resume_all([RunFolder(again.folder)])
    fednag.run("fedavg", resume=True, **known)  # with the new fleet it is another run
    assert len(list((tmp_path / "runs").glob("*/*"))) == 3
