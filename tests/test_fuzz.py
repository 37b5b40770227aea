"""Damaged files and random words: success, or exit code 2 and one sentence; never a surprise."""

from __future__ import annotations

import gzip
import json
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fednag
from fednag import FednagError, cli
from fednag.config import parse, read
from fednag.data.sets import load, read_cifar, record_bytes
from fednag.runs import execute
from fednag.runs.folder import RunFolder

EXAMPLES = Path(__file__).parents[1] / "examples"
RELAXED = [HealthCheck.function_scoped_fixture]

damages = st.one_of(
    st.tuples(st.just("flip"), st.integers(0, 10**7), st.integers(0, 7)),
    st.tuples(st.just("cut"), st.integers(0, 10**7), st.just(0)),
    st.tuples(st.just("insert"), st.integers(0, 10**7), st.integers(0, 255)),
)


def damaged(content: bytes, damage: tuple[str, int, int]) -> bytes:
    kind, place, detail = damage
    place %= max(len(content), 1)
    if kind == "cut":
        return content[:place]
    if kind == "insert":
        return content[:place] + bytes([detail]) + content[place:]
    return content[:place] + bytes([content[place] ^ (1 << detail)]) + content[place + 1 :]


class Terminal:
    """The command line in this process."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], folder: Path
    ) -> None:
        self.monkeypatch, self.capsys, self.folder = monkeypatch, capsys, folder
        monkeypatch.chdir(folder)
        monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [])

    def code(self, *words: str) -> int:
        """The exit code, once it is clear that nothing else but one sentence came of it."""
        self.monkeypatch.setattr(sys, "argv", ["fednag", *words])
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        err = self.capsys.readouterr().err
        code = ended.value.code
        assert code in (0, 2), (words, code, err)
        # Without a command there is help instead of a sentence.
        assert code == 0 or err.count("\n") <= 1, (words, err)
        assert code == 0 or not err or err.startswith("fednag: "), (words, err)
        assert not list(self.folder.rglob("*.tmp"))
        assert isinstance(code, int)
        return code


@pytest.fixture
def terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Terminal:
    return Terminal(monkeypatch, capsys, tmp_path)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunFolder, fednag.Run]:
    """A run that was killed, with two checkpoints; and what it would have come to."""
    out = tmp_path_factory.mktemp("stopped")
    options: dict[str, Any] = {"model": "logistic", "workers": 3, "tau": 2, "iterations": 12}
    options |= {"engine": {"chunk": 1, "threads": 1}, "checkpoint": {"rounds": 1}}
    simulate = execute.simulate

    def cut(*given: Any) -> Any:
        for state in simulate(*given):
            yield state
            if state.round == 4:
                raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(execute, "simulate", cut)
        with pytest.raises(KeyboardInterrupt):
            fednag.run("scaffold", **options, out=out)
    (file,) = out.rglob("run.json")
    return RunFolder(file.parent), fednag.run("scaffold", **options)


FILES = ["config.toml", "records.jsonl", "run.json", "checkpoints/000000004.safetensors"]


@pytest.mark.parametrize("name", FILES)
@given(damage=damages)
@settings(max_examples=20, deadline=None, suppress_health_check=RELAXED)
def test_a_damaged_run_is_resumed_rightly_or_not_at_all(
    name: str,
    damage: tuple[str, int, int],
    stopped: tuple[RunFolder, fednag.Run],
    terminal: Terminal,
) -> None:
    good, whole = stopped
    folder = RunFolder(terminal.folder / "run")
    shutil.rmtree(folder.path, ignore_errors=True)
    shutil.copytree(good.path, folder.path)
    file = folder.path / name
    file.write_bytes(damaged(file.read_bytes(), damage))
    terminal.code("show", "run")
    if terminal.code("resume", "run", "--quiet"):
        return
    found = [json.loads(record.as_json()) for record in folder.records()]
    expected = [json.loads(record.as_json()) for record in whole.records]
    assert [r | {"seconds": 0} for r in found] == [r | {"seconds": 0} for r in expected]


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
@given(damage=damages)
@settings(max_examples=100, deadline=None, suppress_health_check=RELAXED)
def test_a_damaged_experiment_file_is_one_or_a_sentence(
    example: Path, damage: tuple[str, int, int], tmp_path: Path
) -> None:
    file = tmp_path / "e.toml"
    file.write_bytes(damaged(example.read_bytes(), damage))
    allowed(lambda: parse({k: v for k, v in read(file).items() if k != "algorithms"}, "e.toml"))


def allowed(action: Callable[[], Any]) -> Any:
    """What comes of it, or None with one sentence."""
    try:
        return action()
    except FednagError as error:
        sentence = str(error)
    assert "\n" not in sentence
    return None


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


@given(damage=damages, which=st.integers(0, 3))
@settings(max_examples=150, deadline=None, suppress_health_check=RELAXED)
def test_damaged_mnist_files(damage: tuple[str, int, int], which: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "mnist").mkdir(exist_ok=True)
    contents = {}
    for part, count in (("train", 6), ("t10k", 3)):
        contents[f"{part}-images-idx3-ubyte.gz"] = idx(rng.integers(0, 256, (count, 28, 28)))
        contents[f"{part}-labels-idx1-ubyte.gz"] = idx(rng.integers(0, 10, count))
    for number, (name, content) in enumerate(contents.items()):
        hit = damaged(content, damage) if number == which else content
        (tmp_path / "mnist" / name).write_bytes(hit)
    dataset = allowed(lambda: load("mnist", tmp_path))
    if dataset is not None:
        dataset.check()
        assert dataset.x.shape == (6, 1, 28, 28)


@pytest.mark.parametrize("classes", [10, 100])
@given(damage=damages)
@settings(max_examples=60, deadline=None, suppress_health_check=RELAXED)
def test_damaged_cifar_files(classes: Any, damage: tuple[str, int, int], tmp_path: Path) -> None:
    content = bytes([1] * record_bytes(classes) * 3)
    (tmp_path / "a.bin").write_bytes(damaged(content, damage))
    found = allowed(lambda: read_cifar(tmp_path / "a.bin", classes, 3))
    if found is not None:
        assert found[1].max() < classes


WORDS = [
    *("run", "compare", "sweep", "resume", "show", "algorithms", "parts", "data", "list"),
    *("split", "check"),
    *("--set", "--seeds", "--out", "--quiet", "--grid", "--resume", "--algorithms", "--help"),
    *("--kind", "--workers", "--classes", "--alpha", "--skew", "--assign", "--seed", "--version"),
    *("e.toml", "out", "training.tau=2", "training.tau=1,2", "seed=1", "=", "a=b", "0,1", "-1"),
    *("fednag", "fednag,fedavg", "digits", "classes", "dirichlet", "natural", "3", "0.5", "1e999"),
    *("nan", "", "\0", "\x1b[31m", "--", "-", "..", "/", "é" * 300, "9" * 400, "[", "{", "'"),
]


@example(words=["run", "\0"])
@given(words=st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=7))
@settings(max_examples=300, deadline=None, suppress_health_check=RELAXED)
def test_whatever_is_typed(words: list[str], terminal: Terminal) -> None:
    def reached(*_: Any, **__: Any) -> Any:
        raise FednagError("training: would begin here")

    for name in ("run_all", "resume_all"):
        terminal.monkeypatch.setattr(f"fednag.api.{name}", reached)
    (terminal.folder / "e.toml").write_text((EXAMPLES / "digits.toml").read_text())
    terminal.code(*words)
