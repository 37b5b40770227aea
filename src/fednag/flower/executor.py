"""Flower's SuperExec on a silo, with a process for each message that is there at once.

Flower starts a Python program for every message, which takes a second of computing to load before
it does anything. Here a process that has loaded it all forks for each message, so apps are as
separate from each other as they were. ``fednag flower silo`` puts this program in the place of
``flower-superexec``. Nothing of torch is loaded.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_utils import ObjectUnavailableError
from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor
from flwr.supercore.superexec.executor.types import ExecutionSpec, LaunchResult

from fednag.flower.processes import SOONEST

SOON = 40  # quick looks for an object on its way
NAME = "flower-superexec"
PRELOADED = ("flwr.supernode.runtime.run_clientapp", "httpcore", "fednag.flower.client")
PROGRAM = """#!{python}
from fednag.flower.executor import main
main()
"""


def put_before(folder: Path, path: str) -> str:
    """The PATH with which Flower finds this program; on systems that cannot fork, as it was."""
    if not hasattr(os, "fork"):
        return path
    folder.mkdir(mode=0o700)
    program = folder / NAME
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o700)
    return os.pathsep.join([str(folder), path])


class Forking(SubprocessExecutor):
    """Has a process fork for each message; other tasks are started as Flower does."""

    def __init__(self, forks: BinaryIO) -> None:
        self._forks = forks

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        if spec.task_type != TaskType.CLIENT_APP or spec.suppress_output:
            return super().launch(spec)
        try:
            self._forks.write(json.dumps(asdict(spec)).encode() + b"\n")
            self._forks.flush()
        except OSError as error:
            return LaunchResult.failed(f"the process that forks has ended ({error})")
        return LaunchResult.accepted()


def promptly(pull: Callable[..., bytes]) -> Callable[..., bytes]:
    """Asks for an object again at once while it is on its way; Flower waits a second, then two."""

    def pulled(*given: Any) -> bytes:
        for _ in range(SOON):
            try:
                return pull(*given)
            except ObjectUnavailableError:
                time.sleep(SOONEST)
        return pull(*given)

    return pulled


def fork_for_each(orders: BinaryIO) -> None:
    """Fork for every line, until there are no more."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends who writes the lines
    while line := orders.readline():
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            np.random.seed()  # or all would draw the same
            orders.close()
            run(json.loads(line))


def run(spec: dict[str, Any]) -> None:
    """Be the process of one message, and end."""
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    program = cast(Any, import_module("flwr.supernode.runtime.run_clientapp"))
    made = program.make_pull_object_fn_protobuf
    program.make_pull_object_fn_protobuf = lambda *given: promptly(made(*given))
    code = 1
    try:
        insecure = spec["insecure"]
        program.run_clientapp(
            runtime_api_address=spec["runtime_api_address"],
            token=spec["token"],
            insecure=insecure,
            certificates=validate_and_resolve_root_certificates(
                spec["root_certificates_path"], insecure
            ),
            parent_pid=spec["parent_pid"],
            runtime_dependency_install=spec["runtime_dependency_install"],
        )
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> None:
    """Be ``flower-superexec``."""
    for name in PRELOADED:
        import_module(name)
    orders, forks = os.pipe()
    if os.fork() == 0:
        os.close(forks)
        sys.argv[0] = "flwr-clientapp"
        with os.fdopen(orders, "rb") as lines:
            fork_for_each(lines)
        os._exit(0)
    os.close(orders)
    sys.argv[0] = NAME
    program = cast(Any, import_module("flwr.supercore.superexec.run_superexec"))
    executor = Forking(os.fdopen(forks, "wb"))
    program.get_executor = lambda *given, **named: executor
    import_module("flwr.supercore.cli.flower_superexec").flower_superexec()
