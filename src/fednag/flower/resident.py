"""A silo's trainer, found or started: the process that stays from message to message.

Flower starts a process for every message; torch and the data take it seconds to load. So it hands
the message to a trainer over a private Unix socket, and loads neither. The trainer ends with the
SuperNode; if it dies or does not answer in time, it is started anew. No torch is imported here.
"""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from flwr.app import Context, Message, RecordDict

from fednag.errors import FednagError
from fednag.flower import app_folder
from fednag.flower.frames import Frame

FOLDER = "FEDNAG_TRAINER"  # in the environment: the folder of sockets
RUNS = "FEDNAG_RUNS"  # in the environment: a folder with a file for each run that was agreed to
TRIES = 3  # how often a trainer may die over one message
START = 120.0  # seconds it may take to listen
GRACE = 30.0  # seconds that Flower keeps a message past its deadline
LEAST = 5.0  # seconds an answer may take, however late the message is
LONGEST = 100  # letters in a socket's path; systems allow 103 to 107
HERE = hasattr(socket, "AF_UNIX")  # whether this system has such sockets

STARTED: list[subprocess.Popen[bytes]] = []
"""Those that this process has started, which outlive it: nobody waits for them."""


class NoAnswerError(Exception):
    """The trainer gave none; the server is told why."""


@dataclass(frozen=True)
class Trainer:
    """That of one SuperNode; ``owner`` is the process of it that starts those for messages."""

    path: Path
    owner: int

    @classmethod
    def of_parent(cls) -> Trainer:
        owner = os.getppid()
        path = private_folder() / f"{owner}.sock"
        if len(str(path)) > LONGEST:
            raise FednagError(path.parent, "has too long a name", f"set {FOLDER} to another folder")
        return cls(path, owner)

    def ask(self, message: Message, context: Context) -> tuple[Message, RecordDict]:
        """(the answer, the silo's new state); raises NoAnswerError."""
        until = time.monotonic() + max(message.metadata.ttl - GRACE, LEAST)
        asked = Frame(self._facts(message, context), message, context.state)
        died = 0
        while died < TRIES:
            try:
                with self._connected(until) as link:
                    asked.write(link)
                    with link.makefile("rb") as given:
                        answer = Frame.read(given)
            except TimeoutError:
                self.kill()
                raise NoAnswerError("its trainer did not answer in time, and was ended") from None
            except (EOFError, ConnectionError):
                died += 1
                continue
            if "other" in answer.facts:  # it was another app's, and has ended
                continue
            if answer.message is None:
                raise NoAnswerError(str(answer.facts.get("failed")))
            return answer.message, answer.records or RecordDict()
        raise NoAnswerError(
            f"its trainer ended {TRIES} times over one message (for want of memory?)"
        )

    def kill(self) -> None:
        """End it at once; only for one that is connected to, so that the number is its own."""
        with suppress(OSError, ValueError):
            os.kill(int(self._pid.read_text()), signal.SIGKILL)

    @property
    def _pid(self) -> Path:
        return self.path.with_suffix(".pid")

    def _facts(self, message: Message, context: Context) -> dict[str, object]:
        return {
            "serves": [str(app_folder() or ""), version("fednag"), version("torch")],
            "app": str(app_folder() or ""),
            "run": context.run_id,
            "node": context.node_id,
            "series": context.series_id,
            "node-config": dict(context.node_config),
            "run-config": dict(context.run_config),
        }

    @contextmanager
    def _connected(self, until: float) -> Iterator[socket.socket]:
        """A connection, to a new trainer if there is none; raises TimeoutError."""
        with socket.socket(socket.AF_UNIX) as link:
            if not self._reached(link, until):
                with self._alone():
                    # Another message's process may have started it meanwhile.
                    if not self._reached(link, until):
                        self._start(link, min(until, time.monotonic() + START))
            link.settimeout(_left(until))
            yield link

    def _reached(self, link: socket.socket, until: float) -> bool:
        link.settimeout(_left(until))
        try:
            link.connect(str(self.path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        import fcntl  # not on systems without such sockets

        with self.path.with_suffix(".lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _start(self, link: socket.socket, until: float) -> None:
        self.path.unlink(missing_ok=True)
        # -P: what lies in the folder where the SuperNode was started is not imported.
        command = [sys.executable, "-P", "-m", "fednag.flower.trainer"]
        process = subprocess.Popen(
            [*command, str(self.path), str(self.owner)],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # it notices itself when its SuperNode ends
        )
        STARTED.append(process)
        self._pid.write_text(str(process.pid))
        while not self._reached(link, until):
            if process.poll() is not None:
                raise NoAnswerError(f"its trainer ended at once, with code {process.returncode}")
            time.sleep(0.02)


def private_folder() -> Path:
    """A folder for sockets that is this user's alone."""
    given = os.environ.get(FOLDER)
    folder = Path(given or Path(tempfile.gettempdir()) / f"fednag-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise FednagError(
            folder,
            "is not a folder of this user's alone, and a socket is to be in it",
            f"remove it, or set {FOLDER} to another",
        )
    return folder


def _left(until: float) -> float:
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
