"""Ends what ``fednag flower up`` started, however that ended.

Run as a program of its own: it waits until the pipe on its standard input closes, which happens
when the process that holds the other end exits or is killed, then ends every process marked with
the deployment's token and removes its folder. It imports nothing but the standard library, so that
it is quick to start.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

MARK, PART = "FEDNAG_DEPLOYMENT", "FEDNAG_PART"
POLITE = 3.0  # seconds between asking and insisting


def marked(token: str, part: str | None = None) -> list[int]:
    """Processes that carry the token in their environment; none where there is no /proc.

    With ``part``, only those of one server or silo: its own process and what that started.
    """
    wanted = {f"{MARK}={token}".encode()}
    if part is not None:
        wanted.add(f"{PART}={part}".encode())
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted <= set((folder / "environ").read_bytes().split(b"\0")):
                found.append(int(folder.name))
    return [pid for pid in found if pid != os.getpid()]


def end(token: str) -> int:
    """End them all, first by asking; returns how many there were."""
    first = marked(token)
    _signal(first, signal.SIGTERM)
    until = time.monotonic() + POLITE
    while marked(token) and time.monotonic() < until:
        time.sleep(0.05)
    while left := marked(token):  # some start others while they end
        _signal(left, signal.SIGKILL)
        time.sleep(0.05)
    return len(first)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def main() -> None:
    token, folder = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    end(token)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
