"""Chunks chosen by timing, kept on disk: a machine times a model of one shape once.

A wrong choice costs time and changes no result beyond rounding, so what cannot be read or written
is passed over, and the chunk is timed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fednag.core.files import write_atomically
from fednag.core.keys import Draws, Indexes
from fednag.core.loop import Scheme
from fednag.problems.problem import Problem
from fednag.simulate import tuning
from fednag.simulate.tuning import Choice

KEPT_FOR = timedelta(days=30)  # a choice made on a busy day is not kept for ever
FORMAT = 2


def cache_folder() -> Path | None:
    """`$FEDNAG_CACHE` where set (nothing is kept where it is empty), else the user's cache."""
    chosen = os.environ.get("FEDNAG_CACHE")
    if chosen is None:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        return Path(base) / "fednag"
    return Path(chosen).expanduser() if chosen else None


def choose(
    problem: Problem,
    scheme: Scheme,
    owned: Sequence[Indexes],
    draws: Draws,
    tau: int,
    *,
    participants: int,
    iterations: int,
    chunk: int,
    threads: int,
    inner: int = 1,
) -> Choice:
    """`tuning.choose`, which times nothing where this machine has timed the same before."""

    def chosen(chunk: int, inner: int = inner) -> Choice:
        return tuning.choose(
            problem, scheme, owned, draws, tau,
            participants=participants, iterations=iterations, chunk=chunk, threads=threads,
            inner=inner,
        )  # fmt: skip

    folder = cache_folder()
    if chunk or folder is None:
        return chosen(chunk)
    description = described(problem, scheme, draws.width, tau, participants, threads)
    description |= {"inner": inner} if inner > 1 else {}
    text = json.dumps(description, sort_keys=True)
    file = folder / "chunks" / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.json"
    known = _read(file, description)
    if known is not None:
        found = chosen(known.chunk, known.inner)
        return replace(found, seconds=known.seconds, made=known.made)
    choice = chosen(0)
    if len(choice.seconds) > 1:
        _write(file, description, choice)
    return choice


def described(
    problem: Problem, scheme: Scheme, width: int, tau: int, participants: int, threads: int
) -> dict[str, Any]:
    """All that decides which chunk is fast: the model's shape, the work of a round, the machine."""
    links = (*scheme.uplink.parts, *scheme.downlink.parts)
    return {
        "format": FORMAT,
        "torch": torch.__version__,
        "machine": _processor(),
        "cores": tuning.cores(),
        "threads": threads,
        "device": str(problem.device),
        "dtype": str(problem.dtype),
        "model": hashlib.sha256(_told(problem.module).encode()).hexdigest(),
        "loss": type(problem.objective.given).__qualname__,
        "parameters": [list(p.shape) for p in problem.module.parameters()],
        "inputs": list(problem.x.shape[1:]),
        "batch": width,
        "steps": min(tau, tuning.MOST_STEPS),
        "participants": participants,
        "method": type(scheme.algorithm).__qualname__,
        "links": [type(part).__qualname__ for part in links],
    }


def _told(module: nn.Module) -> str:
    """A module's parts, without where they lie in memory."""
    try:
        return re.sub(r" at 0x[0-9a-f]+", "", repr(module))
    except Exception:  # a user's own __repr__
        return type(module).__qualname__


def _read(file: Path, description: Mapping[str, Any]) -> Choice | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        made = date.fromisoformat(found["made"])
        chunk, threads, inner = found["chunk"], found["threads"], found["inner"]
        seconds = {int(size): float(spent) for size, spent in found["seconds"].items()}
        sound = (
            found["for"] == description
            and timedelta() <= _today() - made < KEPT_FOR
            and chunk in seconds
            and type(chunk) is type(threads) is type(inner) is int
            and 1 <= threads <= tuning.cores()
            and 1 <= inner <= tuning.cores()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Choice(chunk, threads, inner, seconds=seconds, made=str(made)) if sound else None


def _write(file: Path, description: Mapping[str, Any], choice: Choice) -> None:
    found = {
        "for": description,
        "made": str(_today()),
        "chunk": choice.chunk,
        "threads": choice.threads,
        "inner": choice.inner,
        "seconds": {str(size): spent for size, spent in choice.seconds.items()},
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(found, indent=1) + "\n")
    except OSError:
        return  # a home that cannot be written to


def _today() -> date:
    return datetime.now(UTC).date()


def _processor() -> str:
    """The processor's name, as far as the system tells it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
