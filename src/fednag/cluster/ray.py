"""Tasks on a Ray cluster.

A process of its own talks to Ray, because a driver ends with its cluster. The command watches
files: the runs' records, for progress, and the tasks' outcomes.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fednag.api import Started, resume_all
from fednag.cluster.slurm import OnSlurm
from fednag.cluster.tasks import Task, do, tidy, write_tasks
from fednag.config import Experiment
from fednag.core.algorithm import Algorithm
from fednag.core.digests import parsed
from fednag.core.state import State
from fednag.core.vectors import Vectors
from fednag.errors import FednagError
from fednag.results import Run
from fednag.runs.build import Builder
from fednag.runs.execute import Listener
from fednag.runs.folder import RunFolder
from fednag.runs.interrupts import Interrupted, Watch

REACHED = 20.0  # seconds within which a cluster answers
RETRIES = 20  # of a task whose machine is lost
PAUSE = 0.3  # seconds between two looks at the files
LAST_WORDS = 300  # characters of what went wrong
SAYS = "fednag: "  # begins what the driver says; the rest of its output is Ray's own


def place(text: str | None, script: Path | None = None) -> OnRay | OnSlurm | None:
    """What ``--on`` says: ``ray``, ``ray=ADDRESS``, ``ray://HOST:PORT`` or ``slurm``."""
    if text == "slurm":
        if script is None:
            raise FednagError("--on", "slurm needs a folder to write to", "give --script FOLDER")
        return OnSlurm(script)
    if script is not None:
        raise FednagError("--script", "goes with --on slurm alone", "leave it out")
    if text is None:
        return None
    kind, _, address = text.partition("=")
    if text.startswith("ray://"):
        kind, address = "ray", text
    if kind != "ray" or (text != "ray" and not address):
        raise FednagError(
            "--on", "no such place", "use ray, ray=ADDRESS, ray://HOST:PORT or slurm", given=text
        )
    return OnRay(address or None)


def cluster_at(text: str | None) -> OnRay | None:
    """The same for commands that go by what runs find, and so cannot leave them to Slurm."""
    if text == "slurm":
        raise FednagError("--on", "slurm goes with sweep and compare alone", "use ray", given=text)
    found = place(text)
    assert not isinstance(found, OnSlurm)
    return found


@dataclass
class OnRay:
    """Has runs done on a Ray cluster; without an address, on processes of this machine."""

    address: str | None = None
    _shown: dict[Path, int] = field(default_factory=dict)

    def __call__(
        self,
        experiments: Sequence[tuple[str, Experiment, Algorithm | None]],
        builder: Builder,
        out: Path,
        started: Started | None,
        resume: bool,
        watch: Watch | None,
    ) -> list[Run]:
        if importlib.util.find_spec("ray") is None:
            raise FednagError("--on", "Ray is not installed", "pip install 'fednag[ray]'")
        out.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix=".tasks-", dir=out.absolute()))
        waiting: list[tuple[str, Experiment, int]] = []
        try:
            tasks = write_tasks(
                root, experiments, out, resume, builder, lambda *told: waiting.append(told)
            )
        except BaseException:
            tidy(root, [Task(one) for one in root.iterdir()])
            raise
        listeners = [started(*told) if started else None for told in waiting]
        with (root / "ray.log").open("wb") as log:
            words = [sys.executable, "-m", "fednag.cluster", "--ray", str(root)]
            driver = subprocess.Popen(
                [*words, *([self.address] if self.address else [])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "PYTHONWARNINGS": "ignore"},
                start_new_session=True,  # Ctrl-C is for this process, which asks tasks to save
            )
        try:
            self._watched(tasks, listeners, driver, watch)
        except BaseException:
            driver.terminate()
            driver.wait()
            raise
        return self._over(root, out, tasks, driver, watch)

    def _watched(
        self,
        tasks: Sequence[Task],
        listeners: Sequence[Listener | None],
        driver: subprocess.Popen[bytes],
        watch: Watch | None,
    ) -> None:
        """Show progress until the driver is done; hand on what the user asks."""
        while driver.poll() is None:
            if watch is not None and watch.number is not None:
                tasks[0].stop.touch()
            self._show(tasks, listeners)
            time.sleep(PAUSE)
        self._show(tasks, listeners)

    def _show(self, tasks: Sequence[Task], listeners: Sequence[Listener | None]) -> None:
        for task, listener in zip(tasks, listeners, strict=True):
            if listener is None or (run := task.run) is None:
                continue
            with suppress(FednagError, OSError):  # it may be half-written
                size = run.records_file.stat().st_size
                if self._shown.get(task.folder) == size:
                    continue
                self._shown[task.folder] = size
                records = run.records()
                if records:
                    last = records[-1]
                    listener(
                        State(
                            Vectors(),
                            np.zeros(0, dtype=np.int64),
                            round=last.round,
                            iteration=last.iteration,
                            seconds=last.seconds,
                            record=last,
                        )
                    )

    def _over(
        self,
        root: Path,
        out: Path,
        tasks: Sequence[Task],
        driver: subprocess.Popen[bytes],
        watch: Watch | None,
    ) -> list[Run]:
        """The runs, or what ended them."""
        outcomes = [task.outcome for task in tasks]
        said = (root / "ray.log").read_text(encoding="utf-8", errors="replace")
        missing = sum(outcome is None for outcome in outcomes)
        failed = [o["error"] for o in outcomes if o is not None and o["status"] == "failed"]
        folders = [task.run for task in tasks]
        done = sum(o is not None and o["status"] == "over" for o in outcomes)
        tidy(root, tasks)
        if watch is not None and watch.number is not None:
            raise Interrupted(
                watch.number,
                f"interrupted: {done} of {len(tasks)} runs are over, and those begun are saved; go "
                "on by repeating the command",
            )
        if failed:
            raise FednagError.of(failed[0]).and_more(len(failed) - 1, " like that")
        if missing:
            where = f"the Ray cluster at {self.address}" if self.address else "Ray on this machine"
            why = _last_line(said) or f"its driver ended with {driver.returncode}"
            raise FednagError(
                "--on",
                f"{where} failed, and {missing} of {len(tasks)} runs are not over ({why})",
                "start it again and repeat the command with --resume",
            )
        whole = out.absolute()
        found = [folder.path.relative_to(whole) for folder in folders if folder is not None]
        return resume_all([RunFolder(out / path) for path in found])


def drive(root: Path, address: str | None) -> int:
    """Have Ray do all tasks of a folder; ends when they are over, or the command is gone."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    parent = os.getppid()
    given: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address is None and "RAY_ADDRESS" not in os.environ:
        given |= {"address": "local", "include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    elif address is not None:
        given["address"] = address
    try:
        if host := re.fullmatch(r"(?:ray://)?\[?([^/]+?)\]?:(\d+)", address or ""):
            # Ray itself would try for many minutes.
            socket.create_connection((host[1], int(host[2])), timeout=REACHED).close()
        ray.init(**given)
    except Exception as error:
        print(f"{SAYS}it cannot be reached: {_short(error)}")
        return 1
    tasks = sorted(folder for folder in root.iterdir() if folder.is_dir())
    remote = ray.remote(max_retries=RETRIES, scheduling_strategy="SPREAD")(_task)
    left = []
    for folder in tasks:
        threads = parsed((folder / "task.json").read_text(encoding="utf-8"))["threads"]
        left.append(remote.options(num_cpus=threads).remote(str(folder)))
    while left and os.getppid() == parent:
        ready, left = ray.wait(left, timeout=2.0)
        for one in ready:
            try:
                ray.get(one)
            except Exception as error:
                print(f"{SAYS}{type(error).__name__}: {_short(error)}", flush=True)
    ray.shutdown()
    return 0


def _task(folder: str) -> int:
    return do(Path(folder))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:LAST_WORDS]


def _last_line(text: str) -> str:
    """What the driver said at last."""
    lines = [line for line in text.splitlines() if line.startswith(SAYS)]
    return lines[-1].removeprefix(SAYS) if lines else ""
