"""The process that stays on a silo: it answers the messages that Flower's processes hand it.

    python -m fednag.flower.trainer SOCKET OWNER

It ends with its owner, the process of the SuperNode that starts those for messages; when nobody
has asked for a while; and when it is asked on behalf of another app than the first time, whose
code must not meet this one's.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import sys
import threading
import time
import traceback
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from flwr.app import Context, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from fednag.flower.frames import Frame
from fednag.flower.resident import RUNS

IDLE = "FEDNAG_TRAINER_IDLE"  # in the environment: seconds without a message, and it ends
PATIENCE = 900.0
READING = 60.0  # seconds a message may take to come from a process of this machine


def serve(listener: socket.socket, idle: float) -> None:
    """Answer one message after the other; returns when nobody asks any more."""
    from fednag.flower import handlers

    handlers.CACHE.room = 1
    serves: object = None
    while True:
        listener.settimeout(idle)
        try:
            link, _ = listener.accept()
        except TimeoutError:
            return
        with link, suppress(OSError, EOFError):  # whoever asked may be gone
            if not _is_ours(link):
                continue
            link.settimeout(READING)
            with link.makefile("rb") as given:
                asked = Frame.read(given)
            serves = serves or asked.facts["serves"]
            if asked.facts["serves"] != serves:
                listener.close()
                Frame({"other": True}).write(link)
                return
            answer = answered(handlers, asked)
            link.settimeout(READING)
            answer.write(link)


def answered(handlers: ModuleType, asked: Frame) -> Frame:
    """What the silo says to a message, and its new state; or that it failed."""
    facts: Any = asked.facts
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = facts["run"], facts["node"], 1
    agreed = os.environ.get(RUNS)
    if agreed and not (Path(agreed) / str(facts["run"])).exists():
        return Frame({"failed": "the run's app is not one that this silo's operator agreed to"})
    state = asked.records or RecordDict()
    names = facts["run"], facts["node"], facts["node-config"], state, facts["run-config"]
    context = Context(*names, facts["series"])
    try:
        reply = handlers.answered(asked.message, context, Path(facts["app"]))
        return Frame({}, reply, context.state)
    except Exception as error:
        traceback.print_exc()
        return Frame({"failed": f"{type(error).__name__}: {error}"})


def _is_ours(link: socket.socket) -> bool:
    """Whether a process of the same user asks; the socket's folder lets in no other anyway."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    found = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, user, _ = struct.unpack("3i", found)
    return bool(user == os.getuid())


def _end_with(owner: int, path: Path) -> None:
    """Wait until the owner has ended, and end."""
    try:
        select.select([os.pidfd_open(owner)], [], [])
    except (AttributeError, OSError):
        while _is_there(owner):
            time.sleep(0.5)
    for suffix in (".sock", ".pid", ".lock"):
        path.with_suffix(suffix).unlink(missing_ok=True)
    os._exit(0)


def _is_there(process: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process, 0)
        return True
    return False


def main() -> None:
    path, owner = Path(sys.argv[1]), int(sys.argv[2])
    threading.Thread(target=_end_with, args=(owner, path), daemon=True).start()
    with socket.socket(socket.AF_UNIX) as listener:
        before = os.umask(0o177)
        listener.bind(str(path))
        os.umask(before)
        listener.listen(8)
        serve(listener, float(os.environ.get(IDLE, PATIENCE)))


if __name__ == "__main__":
    main()
