"""Runs that are stopped, killed or damaged, and go on: to the same bits, or with one sentence."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, load_file, save
from torch import nn

import fednag
from fednag import FednagError, cli
from fednag.algorithms import ALGORITHMS
from fednag.api import resume_all
from fednag.core.disk import Disk
from fednag.core.state import State
from fednag.data.dataset import Dataset
from fednag.runs import checkpoint, execute
from fednag.runs.folder import RunFolder
from fednag.simulate.run import Plan, Trainer, simulate

OFTEN = {"rounds": 1, "seconds": 0}
SMALL: dict[str, Any] = {
    "model": "logistic",
    "workers": 5,
    "tau": 3,
    "iterations": 24,
    "batch": 16,
    "training": {"participants": 3},
    "engine": {"chunk": 2, "threads": 2},
    "checkpoint": {"rounds": 2, "seconds": 0},
}


class Killed(BaseException):
    """What ends a process, for a process that has to go on."""


def until(rounds: int) -> Callable[..., Iterator[State]]:
    """A simulation that is killed when this many rounds are over."""

    def simulated(
        plan: Plan,
        resumed: State | None = None,
        trainer: Trainer | None = None,
        disk: Disk | None = None,
    ) -> Iterator[State]:
        for state in simulate(plan, resumed, trainer, disk):
            yield state
            if state.round >= rounds:
                raise Killed

    return simulated


def killed(monkeypatch: pytest.MonkeyPatch, rounds: int, *given: Any, **options: Any) -> None:
    """A run that does not come to its end."""
    with monkeypatch.context() as patched:
        patched.setattr(execute, "simulate", until(rounds))
        with pytest.raises(Killed):
            fednag.run(*given, **options)


def the_run(out: Path) -> RunFolder:
    (file,) = out.rglob("run.json")
    return RunFolder(file.parent)


def content(run: fednag.Run) -> tuple[list[Any], dict[str, bytes]]:
    """All that must be the same, to the bit: everything but the clock."""
    records = [json.loads(record.as_json()) | {"seconds": 0} for record in run.records]
    weights = {
        f"{which}.{name}": value.numpy().tobytes()
        for which, module in (("best", run.best), ("final", run.final))
        for name, value in module.state_dict().items()
    }
    return records, weights


def tree(folder: Path) -> dict[str, str]:
    """A digest of every file below."""
    files = [file for file in folder.rglob("*") if file.is_file() and file.name != ".lock"]
    return {str(f): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_goes_on_to_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fednag.run(name, **SMALL)
    killed(monkeypatch, 3, name, **SMALL, out=tmp_path)  # round 2 is saved, round 3 is not
    folder = the_run(tmp_path)
    assert len(folder.records()) == 4
    assert [file.stem for file in folder.checkpoints.iterdir()] == ["000000002"]
    killed(monkeypatch, 7, name, **SMALL, out=tmp_path, resume=True)
    resumed = fednag.run(name, **SMALL, out=tmp_path, resume=True)
    assert content(resumed) == content(whole)
    assert "went on from round 6 of 8 (checkpoint)" in resumed.notes
    assert folder.records() == resumed.records
    assert folder.info()["status"] == "finished"
    assert not folder.checkpoints.exists()


@pytest.mark.parametrize("model", ["cnn", "dropout"])
def test_other_models_and_seldom_evaluations_go_on_too(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
    options = {**SMALL, "model": net if model == "dropout" else model}
    options |= {"evaluation": {"every": 3, "per_worker": True}, "checkpoint": OFTEN}
    whole = fednag.run("scaffold", **options)
    for rounds in (1, 2, 5, 7):
        killed(monkeypatch, rounds, "scaffold", **options, out=tmp_path, resume=True)
    assert content(fednag.run("scaffold", **options, out=tmp_path, resume=True)) == content(whole)


def test_the_best_model_may_be_from_before(
    blobs: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A momentum above 1 overshoots: the best model comes early."""
    method = fednag.FedMom(lr=0.3, momentum=1.3)
    options = {"data": blobs, "model": "logistic", "workers": 3, "tau": 5, "iterations": 20}
    options |= {"checkpoint": OFTEN, "engine": {"chunk": 1, "threads": 1}}
    whole = fednag.run(method, **options)
    least = min(whole.records[1:], key=lambda record: record.loss or 0)
    assert least.round < 3
    killed(monkeypatch, 3, method, **options, out=tmp_path)
    assert content(fednag.run(method, **options, out=tmp_path, resume=True)) == content(whole)


def test_without_a_checkpoint_it_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SMALL, "checkpoint": {"rounds": 100}}
    killed(monkeypatch, 3, "fednag", **options, out=tmp_path)
    assert len(the_run(tmp_path).records()) == 4
    resumed = fednag.run("fednag", **options, out=tmp_path, resume=True)
    assert any("begun again" in note for note in resumed.notes)
    assert content(resumed) == content(fednag.run("fednag", **options))


def test_the_clock_goes_on_and_seconds_save_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**SMALL, "checkpoint": {"seconds": 1e-6}}
    killed(monkeypatch, 4, "fednag", **options, out=tmp_path)
    before = the_run(tmp_path).records()[-1].seconds
    resumed = fednag.run("fednag", **options, out=tmp_path, resume=True)
    seconds = [record.seconds for record in resumed.records]
    assert seconds == sorted(seconds)
    assert resumed.records[4].seconds == before  # of the rounds that were not run again


def test_what_is_over_is_read_and_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = ["fednag", "fedavg", fednag.FedNAG(lr=1e6, momentum=0.99)]
    whole = fednag.compare(methods, seeds=[0, 1], **SMALL, out=tmp_path)
    before = tree(tmp_path)
    monkeypatch.setattr(execute, "simulate", until(0))
    again = fednag.compare(methods, seeds=[0, 1], **SMALL, out=tmp_path, resume=True)
    assert [content(run) for run in again.runs] == [content(run) for run in whole.runs]
    assert str(again) == str(whole)
    assert tree(tmp_path) == before


def test_a_comparison_skips_goes_on_and_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = ["fednag", "fedavg", "fedmom"]
    whole = fednag.compare(methods, **SMALL)
    fednag.run("fednag", **SMALL, name="python", out=tmp_path)
    killed(monkeypatch, 5, "fedavg", **SMALL, out=tmp_path)
    resumed = fednag.compare(methods, **SMALL, out=tmp_path, resume=True)
    assert [content(run) for run in resumed.runs] == [content(run) for run in whole.runs]
    assert len(list(tmp_path.rglob("run.json"))) == 3


def test_a_sweep_goes_on(tmp_path: Path) -> None:
    axes = {"algorithm.momentum": [0.0, 0.9]}
    first = fednag.sweep(axes, **SMALL, out=tmp_path)
    again = fednag.sweep(
        {"algorithm.momentum": [0.0, 0.5, 0.9]}, **SMALL, out=tmp_path, resume=True
    )
    assert len(list(tmp_path.rglob("run.json"))) == 3
    assert again["momentum=0.9"].folder == first["momentum=0.9"].folder


def test_without_resume_a_new_folder_is_made(tmp_path: Path) -> None:
    first = fednag.run("fednag", **SMALL, out=tmp_path)
    second = fednag.run("fednag", **SMALL, out=tmp_path)
    third = fednag.run("fednag", **SMALL, out=tmp_path, resume=True)
    assert first.folder != second.folder == third.folder


@pytest.fixture
def stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    """A run with two checkpoints, after rounds 4 and 5, killed after round 5."""
    killed(monkeypatch, 5, "scaffold", **{**SMALL, "checkpoint": OFTEN}, out=tmp_path)
    folder = the_run(tmp_path)
    shutil.rmtree(folder.checkpoints / "x", ignore_errors=True)
    names = sorted(file.name for file in folder.checkpoints.iterdir())
    assert names == ["000000004.safetensors", "000000005.safetensors"]
    return folder


def newest(folder: RunFolder) -> Path:
    return max(folder.checkpoints.iterdir())


def rewrite(file: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change what a checkpoint says of itself, with a digest that fits."""
    raw = file.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    about = json.loads(json.loads(raw[8 : 8 + length])["__metadata__"]["fednag"])
    change(about)
    text, tensors = json.dumps(about), load(raw)
    header = {"fednag": text, "digest": checkpoint._digest(text, tensors)}
    file.write_bytes(save(tensors, metadata=header))


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "cut short": (lambda f: f.write_bytes(f.read_bytes()[:-7]), "damaged or cut short"),
    "empty": (lambda f: f.write_bytes(b""), "damaged or cut short"),
    "noise": (lambda f: f.write_bytes(os.urandom(4096)), "damaged or cut short"),
    "huge header": (lambda f: f.write_bytes(b"\xff" * 7 + b"\x7f" + b"{}"), "damaged or cut short"),
    "a flipped bit": (
        lambda f: f.write_bytes(f.read_bytes()[:-9] + b"?" + f.read_bytes()[-8:]),
        "its digest is not that of its content",
    ),
    "another file": (lambda f: f.write_bytes(save({"w": torch.ones(2)})), "not a checkpoint"),
    "newer": (lambda f: rewrite(f, lambda a: a.update(format=99)), "a newer fednag wrote it"),
    "foreign": (lambda f: rewrite(f, lambda a: a.update(owner="x")), "another configuration"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_an_older_checkpoint_serves_when_the_newest_is_bad(stopped: RunFolder, damage: str) -> None:
    harm, sentence = DAMAGE[damage]
    file = newest(stopped)
    harm(file)
    bad = file.read_bytes()
    (run,) = resume_all([stopped])
    assert any("000000005" in note and sentence in note for note in run.notes), run.notes
    assert file.with_name(file.name + ".unusable").read_bytes() == bad
    assert content(run) == content(fednag.run("scaffold", **SMALL))


@pytest.mark.parametrize("damage", DAMAGE)
def test_when_all_are_bad_nothing_is_touched(stopped: RunFolder, damage: str) -> None:
    harm, sentence = DAMAGE[damage]
    for file in list(stopped.checkpoints.iterdir()):
        harm(file)
    before = tree(stopped.path)
    with pytest.raises(FednagError, match=sentence) as error:
        resume_all([stopped])
    assert "\n" not in str(error.value)
    assert tree(stopped.path) == before


def test_what_was_half_written_is_removed(stopped: RunFolder) -> None:
    for file in (stopped.checkpoints / "000000006.safetensors.tmp", stopped.path / "run.json.tmp"):
        file.write_bytes(b"half")
    resume_all([stopped])
    assert not list(stopped.path.rglob("*.tmp"))
    assert not stopped.checkpoints.exists()


def test_records_that_were_changed_are_noticed(stopped: RunFolder) -> None:
    text = stopped.records_file.read_text()
    stopped.records_file.write_text(text.replace('"round": 1', '"round": 7'))
    before = tree(stopped.path)
    with pytest.raises(FednagError, match=r"records\.jsonl is not the one it was saved with"):
        resume_all([stopped])
    assert tree(stopped.path) == before


def test_records_that_lost_their_end_take_the_older_checkpoint(stopped: RunFolder) -> None:
    lines = stopped.records_file.read_text().splitlines(keepends=True)
    stopped.records_file.write_text("".join(lines[:5]) + lines[5][:20])
    (run,) = resume_all([stopped])
    assert content(run) == content(fednag.run("scaffold", **SMALL))


@pytest.mark.parametrize(
    ("was", "becomes"),
    [("lr = 0.01", "lr = 0.02"), ("chunk = 2", "chunk = 1"), ("tau = 3", "tau = 4")],
)
def test_a_changed_configuration_is_refused(stopped: RunFolder, was: str, becomes: str) -> None:
    text = stopped.config_file.read_text()
    assert was in text
    stopped.config_file.write_text(text.replace(was, becomes))
    before = tree(stopped.path)
    with pytest.raises(FednagError, match=r"config\.toml: it is not what the run began with"):
        resume_all([stopped])
    assert tree(stopped.path) == before


def test_threads_and_checkpoints_may_change(stopped: RunFolder) -> None:
    other = {"engine": {"chunk": 2, "threads": 1}, "checkpoint": {"rounds": 3}}
    run = fednag.run("scaffold", **SMALL | other, out=stopped.path.parents[1], resume=True)
    assert run.folder == stopped.path
    assert content(run) == content(fednag.run("scaffold", **SMALL))


def test_other_data_under_the_same_name_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = torch.randn(40, 3), torch.arange(40) % 2
    options = {"model": nn.Linear(3, 2), "tau": 2, "iterations": 8, "checkpoint": OFTEN}
    killed(monkeypatch, 2, "fednag", data=(x, y), **options, out=tmp_path)
    others = [{"data": (x + 1, y)}, {"data": (x, 1 - y)}, {"model": nn.Linear(3, 2)}]
    others += [{"model": nn.Sequential(options["model"], nn.Tanh())}]

    def refuse_all() -> None:
        for other in others:
            given = {"data": (x, y), **options, **other}
            with pytest.raises(FednagError, match="another model, other first weights or other"):
                fednag.run("fednag", **given, out=tmp_path, resume=True)

    refuse_all()
    with pytest.raises(FednagError, match="Python"):
        resume_all([the_run(tmp_path)])
    fednag.run("fednag", data=(x, y), **options, out=tmp_path, resume=True)
    refuse_all()  # when it is over, too


def test_other_versions_are_told(stopped: RunFolder) -> None:
    for file in stopped.checkpoints.iterdir():
        rewrite(file, lambda about: about["versions"].update(torch="0.9"))
    (run,) = resume_all([stopped])
    assert any("torch 0.9, now" in note for note in run.notes)


def cut_lines(file: Path) -> None:
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))


CHANGES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "cut records": ("records.jsonl", cut_lines),
    "more records": ("records.jsonl", lambda f: f.write_text(f.read_text() * 2)),
    "no records": ("records.jsonl", lambda f: f.unlink()),
    "a flipped model": ("final.safetensors", lambda f: f.write_bytes(f.read_bytes()[:-1] + b"?")),
    "no model": ("best.safetensors", lambda f: f.unlink()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_finished_run_that_was_changed_is_not_believed(change: str, tmp_path: Path) -> None:
    run = fednag.run("fednag", **SMALL, out=tmp_path)
    assert run.folder is not None
    name, harm = CHANGES[change]
    harm(run.folder / name)
    before = tree(tmp_path)
    with pytest.raises(FednagError, match=re.escape(name)):
        resume_all([RunFolder(run.folder)])
    assert tree(tmp_path) == before


def test_a_run_said_to_be_over_loses_no_checkpoint(stopped: RunFolder) -> None:
    text = stopped.info_file.read_text()
    stopped.info_file.write_text(text.replace('"interrupted"', '"finished"'))
    before = tree(stopped.path)
    with pytest.raises(FednagError, match=r"run\.json: .*its digest is not that of its content"):
        resume_all([stopped])
    assert tree(stopped.path) == before


def test_one_bad_run_holds_up_no_other(
    stopped: RunFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [])
    for number, file in enumerate(("run.json", "config.toml", "records.jsonl")):
        bad = stopped.path.with_name(f"a{number}")
        shutil.copytree(stopped.path, bad)
        (bad / file).write_text("?")
    words = [str(stopped.path.parent), "--quiet"]
    assert command(monkeypatch, "show", words[0]) == 2
    assert "interrupted" in capsys.readouterr().out
    assert command(monkeypatch, "resume", *words) == 2
    said = capsys.readouterr()
    assert "finished" in said.out
    assert "(and 2 more like that)" in said.err
    assert said.err.count("\n") == 1
    assert stopped.info()["status"] == "finished"


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    monkeypatch.setattr(sys, "argv", ["fednag", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_no_flip_in_the_header_of_a_checkpoint_goes_unnoticed(stopped: RunFolder) -> None:
    """The names of its entries and their digests, which stand in any order."""
    file = newest(stopped)
    good = file.read_bytes()
    plan = _plan(stopped)
    owner = checkpoint.identity(plan[1], plan[0].exact_key)
    entries = [good.index(name) for name in (b'"told"', b'"digest"', b'"fednag"')]
    places = sorted({place + step for place in entries for step in (1, 2, 8, 12, 20)})
    try:
        for place in places:
            file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            _, unusable = checkpoint.newest(stopped, plan[1], owner)
            assert list(unusable) == [file], place
    finally:
        file.write_bytes(good)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.booleans())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_no_flip_or_cut_of_a_checkpoint_goes_unnoticed(
    stopped: RunFolder, place: int, bit: int, cut: bool
) -> None:
    """Whatever byte is hit, the checkpoint is refused; it is never read as another state."""
    file = newest(stopped)
    good = file.read_bytes()
    place %= len(good)
    bad = bytearray(good)
    bad[place] ^= 1 << bit
    file.write_bytes(good[:place] if cut else bytes(bad))
    plan = _plan(stopped)
    owner = checkpoint.identity(plan[1], plan[0].exact_key)
    try:
        found, unusable = checkpoint.newest(stopped, plan[1], owner)
        assert found is not None
        assert found.state.round == 4
        assert list(unusable) == [file]
    finally:
        file.write_bytes(good)


_plans: dict[str, Any] = {}


def _plan(folder: RunFolder) -> Any:
    from fednag.config import parse, read
    from fednag.runs.build import Builder

    key = folder.config_file.read_text()
    if key not in _plans:
        _plans[key] = Builder().plan(parse(read(folder.config_file)))
    return _plans[key]


def test_a_second_process_is_refused(stopped: RunFolder) -> None:
    script = (
        "import sys, time; from pathlib import Path; from fednag.runs.folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).locked():\n"
        "    print('here', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", script, str(stopped.path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "here\n"
        before = tree(stopped.path)
        with pytest.raises(FednagError, match="another process is writing this run"):
            resume_all([stopped])
        assert tree(stopped.path) == before
    finally:
        other.kill()
        other.wait()
        other.stdout.close()
    resume_all([stopped])  # the lock went with the process that held it


def test_a_full_disk_is_a_sentence_and_keeps_what_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append, full = RunFolder.append, Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")

    def filling(self: RunFolder, record: Any) -> None:
        if record.round < 3:
            append(self, record)
        else:
            full.write_text("x")

    options = {**SMALL, "checkpoint": OFTEN}
    with monkeypatch.context() as patched:
        patched.setattr(RunFolder, "append", filling)
        with pytest.raises(FednagError, match=r"No space left on device.*fednag resume"):
            fednag.run("fednag", **options, out=tmp_path)
    assert [record.round for record in the_run(tmp_path).records()] == [0, 1, 2]
    resumed = fednag.run("fednag", **options, out=tmp_path, resume=True)
    assert content(resumed) == content(fednag.run("fednag", **options))


# From here on: real processes.

FEDNAG = [sys.executable, "-m", "fednag"]
LONG = """
name = "long"
data.name = "digits"
model.name = "cnn"
split.workers = 6
algorithm.name = "scaffold"
training = { tau = 2, iterations = 160, batch = 16, participants = 4 }
evaluation.samples = 200
engine = { chunk = 2, threads = 2 }
checkpoint = { rounds = 3, seconds = 0 }
"""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that nothing happens to."""
    folder = tmp_path_factory.mktemp("reference")
    (folder / "long.toml").write_text(LONG)
    done = subprocess.run(
        [*FEDNAG, "run", "long.toml", "--quiet"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return the_run(folder).path


def same(one: Path, other: Path) -> bool:
    """Whether two runs' records and models are the same, but for the clock."""
    for name in ("final.safetensors", "best.safetensors"):
        a, b = load_file(one / name), load_file(other / name)
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
    texts = [(path / "records.jsonl").read_text().splitlines() for path in (one, other)]
    other = {"seconds": 0, "digest": ""}
    records = [[json.loads(line) | other for line in lines] for lines in texts]
    return records[0] == records[1]


def started(folder: Path, *words: str, rounds: int, limit: int | None = None) -> Any:
    """A process that has come this far."""

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = subprocess.Popen(
        [*FEDNAG, *words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limited,
    )
    deadline = time.monotonic() + 120
    while process.poll() is None and time.monotonic() < deadline:
        files = []
        with suppress(FileNotFoundError):  # a folder that was tried out may vanish underneath
            files = list(folder.rglob("records.jsonl"))
        if files and files[0].read_bytes().count(b"\n") > rounds:
            break
        time.sleep(0.005)
    return process


def test_killed_again_and_again_it_is_the_same_run(tmp_path: Path, reference: Path) -> None:
    (tmp_path / "long.toml").write_text(LONG)
    words = ["run", "long.toml", "--quiet", "--resume"]
    for rounds in (1, 20, 45):
        process = started(tmp_path, *words, rounds=rounds)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
    done = subprocess.run(
        [*FEDNAG, "resume", "runs", "--quiet"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert same(the_run(tmp_path).path, reference)
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize(
    ("kind", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_saves_and_says_how_to_go_on(
    tmp_path: Path, reference: Path, kind: signal.Signals, code: int
) -> None:
    (tmp_path / "long.toml").write_text(LONG.replace("rounds = 3", "rounds = 1000"))
    process = started(tmp_path, "run", "long.toml", "--quiet", rounds=10)
    process.send_signal(kind)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "Traceback" not in err
    folder = the_run(tmp_path)
    assert f"`fednag resume {folder.path.relative_to(tmp_path)}`" in err
    assert folder.info()["status"] == "interrupted"
    (saved,) = folder.checkpoints.iterdir()
    assert int(saved.stem) == folder.records()[-1].round  # nothing has to be done twice
    done = subprocess.run(
        [*FEDNAG, "resume", str(folder.path), "--quiet"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert same(folder.path, reference)


def test_a_disk_that_is_full_for_checkpoints(tmp_path: Path, reference: Path) -> None:
    """Files may not grow past 50 kB, which records keep under, and checkpoints do not."""
    (tmp_path / "long.toml").write_text(LONG)
    process = started(tmp_path, "run", "long.toml", "--quiet", rounds=10**6, limit=50_000)
    _, err = process.communicate()
    assert process.returncode == 2
    assert "cannot be written" in err
    assert len(err.strip().splitlines()) == 1
    folder = the_run(tmp_path)
    assert [record.round for record in folder.records()] == [0, 1, 2, 3]
    assert not list(tmp_path.rglob("*.tmp"))
    done = subprocess.run(
        [*FEDNAG, "resume", "runs", "--quiet"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert same(folder.path, reference)


@pytest.mark.parametrize("where", ["a closed pipe", "/dev/full"])
def test_output_that_cannot_be_written_does_not_stop_training(where: str, tmp_path: Path) -> None:
    (tmp_path / "long.toml").write_text(LONG.replace("iterations = 160", "iterations = 8"))
    if where == "/dev/full":
        if not Path(where).exists():
            pytest.skip("no /dev/full here")
        out: Any = os.open(where, os.O_WRONLY)
    else:
        read, out = os.pipe()
        os.close(read)
    done = subprocess.run(
        [*FEDNAG, "run", "long.toml"], cwd=tmp_path, stdout=out, stderr=subprocess.PIPE, text=True
    )
    os.close(out)
    assert done.returncode == (2 if where == "/dev/full" else 0), done.stderr
    assert "Traceback" not in done.stderr
    assert "resume" not in done.stderr
    assert the_run(tmp_path).info()["status"] == "finished"


def test_starts_are_whole_numbers_of_every_worker(stopped: RunFolder) -> None:
    state = load_file(newest(stopped))
    assert state["starts"].dtype == torch.int64
    assert int(state["starts"].sum()) == 5 * 3 * 3  # rounds x participants x tau
    assert np.all(state["memory.c"].shape == (5, 650))
