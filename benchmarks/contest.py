"""Contenders in processes of their own, timed in turns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

CONTENDERS = Path(__file__).parent / "contenders"
PATIENCE = 300  # seconds to wait for an answer


class ContenderError(Exception):
    """A contender ended, or did not answer."""


@dataclass
class Contender:
    """A process that plays rounds when told to."""

    label: str
    script: str
    work: dict[str, Any]
    python: Path = Path(sys.executable)
    pausable: bool = True
    folder: Path = CONTENDERS
    startup: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    failure: str | None = None

    def start(self) -> None:
        command = [str(self.python), str(self.folder / self.script), json.dumps(self.work)]
        quiet = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_DEDUP_LOGS": "0",
        }
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **quiet, "PYTHONPATH": self._path()},
            start_new_session=True,
        )
        self._errors: list[str] = []
        threading.Thread(target=self._drain, daemon=True).start()
        self.startup = self._answer("ready")
        self._pause()

    def _path(self) -> str:
        """Where it imports from: the package beside its benchmarks goes before an installed one."""
        return os.pathsep.join([str(self.folder), str(self.folder.parents[1] / "src")])

    def play(self, rounds: int) -> float:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(f"{rounds}\n")
            self._process.stdin.flush()
        except OSError as error:
            raise ContenderError(self._why()) from error
        seconds = self._answer("seconds")
        self._pause()
        self.times.append(seconds)
        return seconds

    def _pause(self) -> None:
        """Out of turn, a contender stands still: a second process of it might work ahead."""
        if self.pausable:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def stop(self) -> None:
        """End the process and those it started."""
        if not hasattr(self, "_process"):
            return
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        self._signal(signal.SIGKILL)
        self._process.wait()

    @property
    def best(self) -> float:
        return min(self.times)

    def _answer(self, wanted: str) -> float:
        assert self._process.stdout is not None
        watch = threading.Timer(PATIENCE, self._process.kill)
        watch.start()
        try:
            for line in self._process.stdout:
                if line.startswith("@"):
                    found = json.loads(line[1:])
                    self.facts.update(found)
                    if wanted in found:
                        return float(found[wanted])
        finally:
            watch.cancel()
        raise ContenderError(self._why())

    def _drain(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._errors = [*self._errors[-20:], line.strip()]

    def _why(self) -> str:
        said = [line for line in self._errors if line]
        return said[-1] if said else "it ended without a word"


class Contest:
    """Starts contenders, lets them play in turns, and stops them whatever happens."""

    def __init__(self, contenders: list[Contender]) -> None:
        self.contenders = contenders

    def __enter__(self) -> Contest:
        for contender in self.contenders:
            try:
                contender.start()
            except ContenderError as error:
                contender.failure = str(error)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for contender in self.contenders:
            contender.stop()

    def play(self, turns: int, rounds: int) -> None:
        for _ in range(turns):
            for contender in self.contenders:
                if contender.failure is None:
                    try:
                        contender.play(rounds)
                    except ContenderError as error:
                        contender.failure = str(error)


def facts_of(contender: Contender) -> dict[str, Any]:
    known = asdict(contender)
    return {k: known[k] for k in ("label", "startup", "times", "failure", "facts")}
