"""What workers keep, on the disk: the same bits, whatever ends the process, or one sentence."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

import fednag
from fednag import FednagError, Vectors
from fednag.algorithms import ALGORITHMS
from fednag.config import parse
from fednag.core import keys
from fednag.core.disk import Disk, OnDisk, ResiduesOnDisk, RowFile, updated
from fednag.core.keys import Draws
from fednag.core.state import State
from fednag.data.partition import Drawn, Partition, drawn, held_by, sizes_of
from fednag.runs import execute
from fednag.runs.build import MOST_IN_MEMORY, Builder, on_disk
from fednag.runs.folder import RunFolder
from fednag.simulate.run import simulate

FEDNAG = [sys.executable, "-m", "fednag"]

REMEMBERING = [n for n, m in ALGORITHMS.items() if m().memory(torch.zeros(1))]
SMALL: dict[str, Any] = {
    "model": "logistic",
    "split": {"workers": 40, "samples": 16},
    "tau": 2,
    "iterations": 16,
    "batch": 8,
    "training": {"participants": 8},
    "engine": {"chunk": 4, "threads": 2},
    "checkpoint": {"rounds": 2, "seconds": 0},
}
DISK = {**SMALL, "engine": {**SMALL["engine"], "memory": "disk"}}


class Killed(BaseException):
    """What ends a process, for a process that has to go on."""


def killed(monkeypatch: pytest.MonkeyPatch, rounds: int, *given: Any, **options: Any) -> None:
    def simulated(*told: Any) -> Iterator[State]:
        for state in simulate(*told):
            yield state
            if state.round >= rounds:
                raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(execute, "simulate", simulated)
        with pytest.raises(Killed):
            fednag.run(*given, **options)


def weights(run: Any) -> list[Any]:
    losses = [(r.round, r.loss, r.accuracy, r.bytes_up) for r in run.records]
    return [losses, [v.tolist() for v in run.final.state_dict().values()]]


def the_run(out: Path) -> RunFolder:
    (file,) = out.rglob("run.json")
    return RunFolder(file.parent)


def bag(number: float) -> Vectors:
    return Vectors(c=torch.full((3,), number), d=torch.full((1,), number, dtype=torch.float64))


def content(held: Any) -> dict[int, float]:
    for worker in held:
        assert held[worker].c.tolist() == [held[worker].d.item()] * 3
    return {worker: held[worker].d.item() for worker in held}


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 9), st.sets(st.integers(0, 7), min_size=1))))
def test_every_version_that_is_left_says_what_it_said(steps: list[tuple[int, set[int]]]) -> None:
    """Any version may go on, as if there were no other, and any may be dropped."""
    versions: list[tuple[OnDisk, dict[int, float]]] = [(RowFile().empty(), {})]
    for number, (which, workers) in enumerate(steps):
        held, expected = versions[which % len(versions)]
        new = dict.fromkeys(workers, float(number))
        versions.append((held.updated({w: bag(v) for w, v in new.items()}), {**expected, **new}))
        if which % 3 == 0 and len(versions) > 2:
            del versions[which % (len(versions) - 1)]
        for version, told in versions:
            assert content(version) == told
            assert len(version) == len(told)
            assert version.get(99, None) is None


def test_rows_are_used_again_and_those_of_checkpoints_are_not() -> None:
    file = RowFile()
    held = file.empty().updated({w: bag(0) for w in range(100)})
    for number in range(50):
        held = held.updated({w: bag(number) for w in range(100)})
    assert len(file.digests) <= 300
    saved, told = held.slots.copy(), content(held)
    file.pin("saved", saved)
    for number in range(50, 100):
        held = held.updated({w: bag(number) for w in range(100)})
    assert content(OnDisk(file, saved)) == told
    assert set(content(held).values()) == {99.0}
    file.unpin("saved")
    for number in range(9):
        held = held.updated({w: bag(number) for w in range(100)})
    assert content(held) != told
    assert set(saved) & set(held.slots)
    file.digests[held.slots] ^= 1
    with pytest.raises(FednagError, match="is damaged or missing"):
        content(held)


def test_residues_lie_beside_and_the_servers_stay_in_memory() -> None:
    first = {(3, 0): bag(1), (3, 1): Vectors(other=torch.ones(2)), (-1, 0): bag(5)}
    held = Disk().residues(first)
    then = updated(held, {(3, 0): bag(2), (-2, 0): bag(6)})
    assert isinstance(then, ResiduesOnDisk)
    assert (len(held), len(then)) == (3, 4)
    assert held[3, 0].c.tolist() == [1] * 3
    assert then[3, 0].c.tolist() == [2] * 3
    assert then[3, 1].other.tolist() == [1, 1]
    assert then.get((4, 0)) is None
    assert then.get((4, 7)) is None
    odd = updated(then, {(50, 0): Vectors(other=torch.ones(3))})
    assert odd[50, 0].other.tolist() == [1] * 3
    assert isinstance(odd, ResiduesOnDisk)
    assert sorted(odd.others) == [(-2, 0), (-1, 0), (50, 0)]


@pytest.mark.parametrize("name", REMEMBERING)
def test_it_is_the_run_that_memory_gives(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fednag.run(name, **SMALL)
    killed(monkeypatch, 5, name, **DISK, out=tmp_path)
    assert (the_run(tmp_path).checkpoints / "memory.rows").is_file()
    resumed = fednag.run(name, **DISK, out=tmp_path, resume=True)
    assert weights(resumed) == weights(whole)
    assert "went on from round 4 of 8 (checkpoint)" in resumed.notes
    assert not the_run(tmp_path).checkpoints.exists()


def test_what_transforms_keep_is_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    feedback = [{"kind": "error-feedback"}, {"kind": "topk", "share": 0.1}]
    lossy = {"uplink": feedback, "downlink": [{"kind": "float16"}]}
    whole = fednag.run("fedavg", **SMALL, **lossy)
    killed(monkeypatch, 5, "fedavg", **DISK, **lossy, out=tmp_path)
    assert (the_run(tmp_path).checkpoints / "residue.0.rows").is_file()
    assert weights(fednag.run("fedavg", **DISK, **lossy, out=tmp_path, resume=True)) == weights(
        whole
    )


@pytest.mark.parametrize("to_disk", [True, False])
def test_a_run_may_go_on_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_disk: bool
) -> None:
    first, then = (SMALL, DISK) if to_disk else (DISK, SMALL)
    whole = fednag.run("scaffold", **SMALL)
    killed(monkeypatch, 5, "scaffold", **first, out=tmp_path)
    assert weights(fednag.run("scaffold", **then, out=tmp_path, resume=True)) == weights(whole)


def test_damage_is_found_and_the_checkpoint_before_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fednag.run("scaffold", **SMALL)
    killed(monkeypatch, 5, "scaffold", **DISK, out=tmp_path)
    folder = the_run(tmp_path)
    newer, older = (execute.checkpoint._header(f) for f in folder.checkpoint_files())
    assert newer != older
    slots = [_slots(file) for file in folder.checkpoint_files()]
    only_new = sorted(set(slots[0]) - set(slots[1]))
    rows = folder.checkpoints / "memory.rows"
    row = 650 * 4
    _flip(rows, only_new[0] * row + 5)
    resumed = fednag.run("scaffold", **DISK, out=tmp_path, resume=True)
    assert weights(resumed) == weights(whole)
    assert any("memory.rows is damaged" in note for note in resumed.notes)
    assert any("went on from round 2" in note for note in resumed.notes)


def test_damage_of_all_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed(monkeypatch, 5, "scaffold", **DISK, out=tmp_path)
    rows = the_run(tmp_path).checkpoints / "memory.rows"
    rows.write_bytes(bytes(len(rows.read_bytes())))
    with pytest.raises(FednagError, match=r"no checkpoint can be used .*memory\.rows is damaged"):
        fednag.run("scaffold", **DISK, out=tmp_path, resume=True)
    rows.unlink()
    with pytest.raises(FednagError, match=r"memory\.rows cannot be read"):
        fednag.run("scaffold", **DISK, out=tmp_path, resume=True)


def _slots(file: Path) -> list[int]:
    found: list[int] = load_file(file)["rows.memory.slots"].tolist()
    return found


def _flip(file: Path, place: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(place)
        byte = opened.read(1)[0]
        opened.seek(place)
        opened.write(bytes([byte ^ 1]))


LONG = """
name = "long"
model = {name = "logistic"}
algorithm = {name = "scaffold"}
split = {workers = 60, samples = 16}
training = {tau = 2, iterations = 160, batch = 8, participants = 15}
engine = {chunk = 5, threads = 1, memory = "disk"}
checkpoint = {rounds = 1, seconds = 0}
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_is_the_same_run(tmp_path: Path) -> None:
    """Killed between any two system calls: the rows of the checkpoints are whole."""
    (tmp_path / "long.toml").write_text(LONG)
    inside = [*FEDNAG, "run", "long.toml", "--quiet", "--set", "engine.memory=ram", "--out", "ram"]
    assert subprocess.run(inside, cwd=tmp_path).returncode == 0
    whole = the_run(tmp_path / "ram").records()
    words = [*FEDNAG, "run", "long.toml", "--quiet", "--resume"]
    rounds = 0
    for more in (1, 20):
        process = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.DEVNULL)
        rounds += more
        until = time.monotonic() + 300
        while time.monotonic() < until and not any(
            int(f.stem) >= rounds for f in tmp_path.rglob("*.safetensors") if f.stem.isdigit()
        ):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = the_run(tmp_path / "runs").records()
    assert [r.loss for r in found] == [r.loss for r in whole]


def test_what_is_large_goes_to_the_disk_by_itself() -> None:
    tables = {
        "model": {"name": "logistic"},
        "algorithm": {"name": "scaffold"},
        "split": {"workers": 10**6, "samples": 8},
        "training": {"participants": 1000, "tau": 1, "iterations": 1000, "batch": 8},
        "engine": {"chunk": 8, "threads": 1},
    }
    _, plan, _ = Builder().plan(parse(tables))
    assert MOST_IN_MEMORY < 10**6 * 650 * 4
    assert plan.on_disk
    assert not on_disk("ram", plan)
    few = {**tables, "training": {**tables["training"], "iterations": 100}}  # type: ignore[dict-item]
    assert not Builder().plan(parse(few))[1].on_disk
    without = {**tables, "algorithm": {"name": "fedavg"}}
    assert not Builder().plan(parse(without))[1].on_disk


def test_workers_who_draw_take_no_memory_and_always_hold_the_same() -> None:
    labels = np.repeat([0, 1, 2], [50, 30, 20])
    even = drawn(labels, 10**6, 20, seed=1).workers
    assert isinstance(even, Drawn)
    assert len(even) == 10**6
    assert np.array_equal(even[999_999], even[-1])
    assert not np.array_equal(even[0], even[1])
    assert len(even[5:8]) == 3
    with pytest.raises(IndexError):
        even[10**6]
    together = np.concatenate([even[w] for w in range(2000)])
    assert set(together) == set(range(100))
    assert np.bincount(together).std() / np.bincount(together).mean() < 0.1
    skewed = drawn(labels, 3000, 20, seed=1, alpha=0.1).workers
    shares = np.array([np.bincount(labels[skewed[w]], minlength=3) / 20 for w in range(3000)])
    assert np.allclose(shares.mean(0), [0.5, 0.3, 0.2], atol=0.03)
    assert (shares.max(1) > 0.9).mean() > 0.5
    assert held_by(even).tolist() == list(range(100))
    assert sizes_of(even[:3]).tolist() == [20] * 3
    assert Partition(even).pooled().workers[0].tolist() == list(range(100))


def test_who_draws_is_part_of_the_key_and_what_needs_samples_of_ones_own_is_refused() -> None:
    quick = {**SMALL, "iterations": 2}
    few = fednag.run("fedavg", **{**quick, "split": {"workers": 40, "samples": 8}})
    assert few.records[-1].loss != fednag.run("fedavg", **quick).records[-1].loss
    with pytest.raises(FednagError, match="honest workers hold too"):
        fednag.run("fedavg", **quick, attack=[{"kind": "label-flip"}])
    noise = {"unit": "sample", "delta": 1e-5, "norm": 1.0, "noise_multiplier": 1.0}
    with pytest.raises(FednagError, match=r"privacy\.unit.*several workers hold"):
        fednag.run("fedavg", **quick, privacy=noise)
    with pytest.raises(FednagError, match=r"split\.samples.*goes only with"):
        fednag.run("fedavg", **{**quick, "split": {"kind": "sizes", "samples": 3}})


def test_orders_that_are_let_go_are_drawn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [(worker, start, 5) for start in (0, 40, 3, 90) for worker in range(50)]
    free, bound = Draws(0, [300] * 50, 8), Draws(0, [300] * 50, 8)
    expected = [free.batches(*each) for each in asked]
    assert len(free._orders) == 50
    monkeypatch.setattr(keys, "MOST_HELD", 700)
    for each, order in zip(asked, expected, strict=True):
        assert np.array_equal(bound.batches(*each), order)
        assert len(bound._orders) <= 2
