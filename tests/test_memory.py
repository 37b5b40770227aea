"""Memory between runs: what one leaves behind does not stay until the last is over."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import fednag.api
from fednag.compute.threads import tidied
from fednag.config import parse
from fednag.runs.execute import Execution
from fednag.runs.folder import RunFolder


class Node:
    """Refers to itself, as a problem and its recordings do."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_what_an_item_left_is_freed_before_the_next(no_collector: None) -> None:
    left: list[weakref.ref[Node]] = []
    for number in tidied(range(3), pause=0):
        assert [one() for one in left] == [None] * number
        left.append(weakref.ref(Node()))


def test_short_items_are_not_held_up(no_collector: None) -> None:
    left = [weakref.ref(Node()) for _ in tidied(range(3), pause=1000)]
    assert None not in [one() for one in left]


@pytest.fixture
def problems(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many earlier runs' problems are in memory, whenever a run begins."""
    monkeypatch.setattr(fednag.api, "tidied", partial(tidied, pause=0))
    seen: list[weakref.ref[object]] = []
    alive: list[int] = []
    start = Execution.__init__

    def counted(self: Execution, *given: object, **named: object) -> None:
        start(self, *given, **named)  # type: ignore[arg-type]
        alive.append(sum(one() is not None for one in seen))
        seen.append(weakref.ref(self.plan.problem))

    monkeypatch.setattr(Execution, "__init__", counted)
    return alive


def test_many_runs_hold_one_problem_at_a_time(
    tmp_path: Path, problems: list[int], no_collector: None
) -> None:
    """The model's seed differs, so that no two runs can share a problem."""
    short = {"training": {"tau": 2, "iterations": 2}, "model": {"name": "logistic"}}
    experiments = [(f"run{n}", parse({**short, "seed": n}, "here"), None) for n in range(4)]
    fednag.api.run_all(experiments, out=tmp_path)
    assert problems == [0, 1, 1, 1]  # the builder keeps the newest for a run that can share it

    problems.clear()
    folders = [RunFolder(path.parent) for path in sorted(tmp_path.rglob("run.json"))]
    fednag.api.resume_all(folders)
    assert len(folders) == 4
    assert max(problems) <= 1


KEPT = """
import ctypes, re, sys
from pathlib import Path
from fednag.compute.threads import keep_freed_memory, tidied

def resident():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

keep_freed_memory()
for number in tidied(range(2), pause=0):
    if number == 0:
        before = resident()
        blocks = [ctypes.create_string_buffer(b"x" * 1_000_000) for _ in range(200)]
        last = blocks[-1]
        del blocks
        kept = resident() - before
    else:
        print(kept, resident() - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")
def test_freed_memory_goes_back_to_the_system() -> None:
    """Kept while an item lasts, even below a block that is still in use; given back after it."""
    done = subprocess.run([sys.executable, "-c", KEPT], capture_output=True, text=True, check=True)
    kept, after = map(int, done.stdout.split())
    assert kept > 150_000  # KiB
    assert after < 20_000
