"""Flower's processes on this machine: started on loopback, and ended whatever happens."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from fednag.errors import FednagError, not_installed
from fednag.flower import guardian
from fednag.flower.journal import JOURNAL

SOONEST = 0.1  # seconds between two looks for something to do
START = 60.0  # seconds a server may take to listen


class Processes:
    """A folder and the processes of one deployment; both are gone when it is left.

    A guardian process sees to that even when this one is killed.
    """

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self.folder = Path(tempfile.mkdtemp(prefix="fednag-flower-"))  # for its owner alone
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self._guardian: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Processes:
        (self.folder / "home").mkdir()
        command = [sys.executable, guardian.__file__, self.token, str(self.folder)]
        self._guardian = subprocess.Popen(
            command, stdin=subprocess.PIPE, start_new_session=True, cwd=tempfile.gettempdir()
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self.started.values():
            if process.poll() is None:
                process.terminate()
        guardian.end(self.token)
        for process in self.started.values():
            process.kill()  # where there is no /proc to find them by
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self._guardian and self._guardian.stdin:
            self._guardian.stdin.close()
            self._guardian.wait()

    @property
    def environment(self) -> dict[str, str]:
        """No telemetry, no look for updates, and a Flower home apart from the user's."""
        scripts = str(Path(sys.executable).parent)
        return {
            **os.environ,
            "PATH": os.pathsep.join([scripts, os.environ.get("PATH", "")]),
            "FLWR_HOME": str(self.folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            guardian.MARK: self.token,
            JOURNAL: str(self.journal),
        }

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program of Flower's; its output goes to a log in the folder."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                [self._program(command[0]), *command[1:]],
                env={**self.environment, guardian.PART: name},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for us to see to
            )
        self.started[name] = process
        return process

    def kill(self, name: str) -> None:
        """End one of them and all it started at once, as a power cut would."""
        for pid in guardian.marked(self.token, name):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.started[name].kill()
        self.started[name].wait()

    def call(self, command: Sequence[str], seconds: float = 60.0) -> str:
        """Run a program of Flower's to its end; raises a sentence if it fails."""
        try:
            done = subprocess.run(
                [self._program(command[0]), *command[1:]],
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                cwd=self.folder,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise FednagError(f"`{' '.join(command[:3])}` took longer than {seconds:g} s") from None
        if done.returncode:
            said = " ".join((done.stdout + done.stderr).split())[-500:]
            raise FednagError(f"`{' '.join(command[:3])}` failed: {said}")
        return done.stdout

    @property
    def journal(self) -> Path:
        """Where the server app notes what the command must know."""
        return self.folder / "journal.jsonl"

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def wait_for_port(self, name: str, port: int) -> None:
        until = time.monotonic() + START
        while time.monotonic() < until:
            if self.started[name].poll() is not None:
                raise FednagError(f"{name} ended at once: {self.last_words(name)}")
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise FednagError(f"{name} does not listen after {START:g} s: {self.last_words(name)}")

    def last_words(self, name: str) -> str:
        try:
            text = self.log(name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "it left no log"
        return " ".join(text.split())[-500:]

    @staticmethod
    def _program(name: str) -> str:
        path = Path(sys.executable).parent / name
        found = str(path) if path.exists() else shutil.which(name)
        if found is None:
            raise not_installed(name, "flower")
        return found


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
