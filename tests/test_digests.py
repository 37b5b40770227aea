"""Digests inside files, and run folders that are damaged: the right values, or a sentence."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fednag
from fednag import FednagError
from fednag.api import resume_all
from fednag.core import digests
from fednag.runs import execute
from fednag.runs.folder import RunFolder
from fednag.runs.ledger import verify
from fednag.runs.view import RunView

OLD = Path(__file__).parent / "fixtures" / "run-0.1.0" / "old"
SMALL: dict[str, Any] = {"model": "logistic", "workers": 3, "tau": 2, "iterations": 12}
SMALL |= {"engine": {"chunk": 1, "threads": 1}, "checkpoint": {"rounds": 2, "seconds": 0}}
SMALL |= {"ledger": {"kind": "chain"}}

texts = st.dictionaries(st.text(max_size=5), st.integers(0, 9) | st.text(max_size=5), min_size=1)


@given(tables=st.lists(texts, max_size=4), plain=st.integers(0, 4))
def test_chained_lines_are_read_as_they_were_written(
    tables: list[dict[str, Any]], plain: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also after lines of a time without digests; and whatever is left out or moved is noticed."""
    path = tmp_path_factory.mktemp("lines") / "lines"
    told = [json.dumps(table) for table in tables]
    path.write_text("".join(f"{text}\n" for text in told[:plain]))
    for text in told[plain:]:
        digests.append(path, [text])
    content = path.read_bytes()
    assert digests.lines(content) == told
    assert digests.lines(content + b"half a li") == told
    if not plain:
        assert digests.chained(told) == content
    whole = content.splitlines(keepends=True)
    for place in range(min(plain, len(whole) - 1), len(whole) - 1):
        if len(whole) - place > 1 + (place < plain):
            with pytest.raises(digests.DamagedError):
                digests.lines(b"".join(whole[:place] + whole[place + 1 :]))


def test_a_sealed_table_notices_every_change() -> None:
    table = {"seed": 3, "list": [1.5, None], "text": "ä"}
    sealed = digests.sealed(table)
    assert digests.unsealed(json.loads(json.dumps(sealed, indent=3))) == table
    for other in ({**sealed, "seed": 4}, {**sealed, "more": 1}, {**sealed, "digest": None}, table):
        with pytest.raises(ValueError, match="its digest is not that of its content"):
            digests.unsealed(other)


@pytest.mark.parametrize(
    "text",
    ["NaN", "-Infinity", "1e999", "9" * 400, "9223372036854775808", '"\\ud800"', "[" * 10**5, "{"],
)
def test_what_nothing_writes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        digests.parsed(text)
    assert digests.parsed("[9223372036854775807, -9223372036854775808, 0.1]")[2] == 0.1


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    """A run that is over; one that was stopped; one that was killed, beyond its checkpoint."""
    out = tmp_path_factory.mktemp("runs")
    found: dict[str, RunFolder] = {}
    with pytest.MonkeyPatch.context() as patched:
        stop_after(patched, 5)
        with pytest.raises(KeyboardInterrupt):
            fednag.run("scaffold", **SMALL, out=out / "stopped")
    (file,) = (out / "stopped").rglob("run.json")
    found["stopped"] = RunFolder(file.parent)
    found["killed"] = RunFolder(out / "killed")
    shutil.copytree(file.parent, out / "killed")
    info = {k: v for k, v in found["killed"].info().items() if k != "records"}
    found["killed"].write_info({**info, "status": "running"})
    run = fednag.run("scaffold", **SMALL, out=out / "over")
    assert run.folder is not None
    found["over"] = RunFolder(run.folder)
    return found


def stop_after(patched: pytest.MonkeyPatch, rounds: int) -> None:
    simulate = execute.simulate

    def cut(*given: Any) -> Iterator[Any]:
        for state in simulate(*given):
            yield state
            if state.round == rounds:
                raise KeyboardInterrupt

    patched.setattr(execute, "simulate", cut)


def shown(folder: RunFolder) -> dict[str, Any]:
    """All that tables, charts, pages and trackers know of a run."""
    view = RunView.read(folder)
    return {name: own for name, own in vars(view).items() if name != "folder"}


def attempted(action: Callable[[], Any]) -> tuple[Any, str]:
    """What comes of it; or None, and the one sentence that says why."""
    try:
        return action(), ""
    except FednagError as error:
        sentence = str(error)
    assert "\n" not in sentence
    return None, sentence


def changes(content: bytes, count: int) -> Iterator[bytes]:
    """The content with a byte changed, and cut there, at places all over it."""
    for place in range(0, len(content), max(1, len(content) // count)):
        flipped = bytes([content[place] ^ (1 << place % 8)])
        yield content[:place] + flipped + content[place + 1 :]
        yield content[:place]


@pytest.mark.parametrize("state", ["over", "stopped", "killed"])
def test_a_damaged_run_is_shown_as_it_was_or_not_at_all(
    state: str, folders: dict[str, RunFolder], tmp_path: Path
) -> None:
    good = folders[state]
    whole, names = shown(good), [file.name for file in verified(good)]
    copy = RunFolder(Path(shutil.copytree(good.path, tmp_path / "run")))
    refused = dict.fromkeys(names, 0)
    for file in verified(copy):
        content = file.read_bytes()
        for changed in changes(content, 25):
            file.write_bytes(changed)
            found, sentence = attempted(lambda: shown(copy))
            if found is None:
                assert file.name in sentence
                refused[file.name] += 1
                continue
            if state == "killed" and file == copy.records_file:  # as if killed earlier
                found["records"] += whole["records"][len(found["records"]) :]
            assert found == whole, (file, changed)
        file.write_bytes(content)
    assert shown(copy) == whole
    for name in (
        "run.json",
        "config.toml",
        "records.jsonl",
        *["best.safetensors"] * ("best" in names),
    ):
        assert refused[name] > 20, (name, refused)


def verified(folder: RunFolder) -> list[Path]:
    return sorted(file for file in folder.path.rglob("*") if file.is_file() and file.stat().st_size)


def test_lost_records_of_a_killed_run_are_noticed_by_its_checkpoint(
    folders: dict[str, RunFolder], tmp_path: Path
) -> None:
    copy = RunFolder(Path(shutil.copytree(folders["killed"].path, tmp_path / "run")))
    lines = copy.records_file.read_bytes().splitlines(keepends=True)
    assert len(lines) == 6
    copy.records_file.write_bytes(b"".join(lines[:5]))  # up to the checkpoint
    assert len(RunView.read(copy).records) == 5
    copy.records_file.write_bytes(b"".join(lines[:4]))
    with pytest.raises(FednagError, match=r"records\.jsonl: it is not the one that the newest"):
        RunView.read(copy)


@pytest.mark.parametrize("state", ["over", "killed"])
@pytest.mark.parametrize("name", ["run.json", "config.toml", "records.jsonl", "ledger.jsonl"])
def test_a_damaged_run_goes_on_rightly_or_not_at_all(
    state: str, name: str, folders: dict[str, RunFolder], tmp_path: Path
) -> None:
    good = [record.as_json() for record in without_seconds(folders["over"])]
    for number, changed in enumerate(changes((folders[state].path / name).read_bytes(), 3)):
        copy = RunFolder(Path(shutil.copytree(folders[state].path, tmp_path / f"run-{number}")))
        (copy.path / name).write_bytes(changed)
        runs, sentence = attempted(lambda copy=copy: resume_all([copy]))
        if runs is None:
            assert name in sentence or "checkpoint" in sentence
            continue
        assert [record.as_json() for record in without_seconds(copy)] == good
        assert [run.ending.kind for run in runs] == ["finished"]


def without_seconds(folder: RunFolder) -> list[Any]:
    return [execute.replace(record, seconds=0.0) for record in folder.records()]


def test_a_kill_at_any_moment_leaves_a_run_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before every file that is opened, renamed, cut or removed, the folder is read as it is."""
    seen: list[str] = []
    watching = True
    busy = False

    def look(event: str, given: Any) -> None:
        nonlocal busy
        if not watching or busy:
            return
        changing = event in ("os.rename", "os.remove", "os.truncate", "os.mkdir")
        changing |= event == "open" and str(given[1]) not in ("r", "rb")
        if not changing:
            return
        busy = True
        try:
            for file in tmp_path.rglob("run.json"):
                folder = RunFolder(file.parent)
                if folder.records_file.exists():
                    RunView.read(folder)
                    assert not folder.info().get("ledger") or verify(folder).fault is None
                    seen.append(event)
        finally:
            busy = False

    sys.addaudithook(look)
    try:
        with monkeypatch.context() as patched:
            stop_after(patched, 5)
            with pytest.raises(KeyboardInterrupt):
                fednag.run("scaffold", **SMALL, out=tmp_path)
        (file,) = tmp_path.rglob("run.json")
        # Its newest checkpoint cannot be used, so that it goes on from the one before.
        newest = max((file.parent / "checkpoints").iterdir())
        newest.write_bytes(newest.read_bytes()[:-1])
        fednag.run("scaffold", **SMALL, out=tmp_path, resume=True)
    finally:
        watching = False
    assert {"open", "os.rename", "os.remove"} <= set(seen)
    assert len(seen) > 30


def test_folders_of_before_are_read_and_go_on_covered(tmp_path: Path) -> None:
    for folder in sorted(OLD.iterdir()):
        copy = RunFolder(Path(shutil.copytree(folder, tmp_path / folder.name)))
        before = RunView.read(copy)
        assert before.records
        assert "config" not in before.info
        resume_all([copy])
        after = RunView.read(copy)
        assert after.ended == "finished"
        if before.ended == "finished":
            continue
        assert after.info["config"] == copy.config_digest()
        text = copy.records_file.read_text()
        assert '"digest"' not in text.splitlines()[0]
        assert '"digest"' in text.splitlines()[-1]
        copy.records_file.write_text(text.replace('"round": 1', '"round": 0', 1))
        with pytest.raises(FednagError, match=r"records\.jsonl: line \d+ is not a record"):
            copy.records()


WRONG: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no metric is beyond 64 bits": lambda r: r.update(round=10**400),
    "rounds descend": lambda r: r.update(round=0, iteration=0),
    "bytes are lost": lambda r: r.update(bytes_up=0),
    "ragged": lambda r: r.update(worker_losses=[1.0, 2.0]),
    "infinite": lambda r: r.update(seconds=float("inf")),
    "half a character": lambda r: r.update(metrics={"\ud800": 1.0}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_records_that_no_run_writes_are_refused(wrong: str, tmp_path: Path) -> None:
    """In a folder of before, where no digest tells."""
    copy = RunFolder(Path(shutil.copytree(OLD / "fedavg-6b679bd3", tmp_path / "run")))
    lines = [json.loads(line) for line in copy.records_file.read_text().splitlines()]
    lines[1]["worker_losses"] = [1.0, 2.0, 3.0]
    WRONG[wrong](lines[2])
    copy.records_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(FednagError, match="line 3 is not a record") as error:
        RunView.read(copy)
    assert "\n" not in str(error.value)
