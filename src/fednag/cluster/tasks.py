"""A task: one run of several, as a folder that whoever does it needs alone.

The folder holds ``experiment.toml``, the user's own files it names, and ``task.json``. What does
the task writes ``run``, the folder of the run, as soon as there is one, so that whoever does the
task again goes on there, and at last ``outcome.json``. A file ``stop`` beside the folders asks all
tasks to save their runs and end.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fednag.api import located
from fednag.config import CUSTOM, Experiment, parse, read
from fednag.core.algorithm import Algorithm
from fednag.core.digests import parsed
from fednag.core.files import os_errors, write_atomically
from fednag.errors import BusyError, FednagError
from fednag.runs.build import Builder
from fednag.runs.execute import Execution
from fednag.runs.folder import RunFolder
from fednag.runs.interrupts import Interrupted, Watch

STOP = "stop"
PATIENCE = 120.0  # seconds until a process that was doing the run is gone
PAUSE = 1.0


@dataclass(frozen=True)
class Task:
    """One run of several, and where it is described."""

    folder: Path

    @property
    def stop(self) -> Path:
        return self.folder.parent / STOP

    @property
    def run(self) -> RunFolder | None:
        """Where the run is, once it has begun."""
        try:
            return RunFolder(Path((self.folder / "run").read_text(encoding="utf-8")))
        except OSError:
            return None

    @property
    def outcome(self) -> dict[str, Any] | None:
        """What came of it, once it is over: the status, and an error where there was one."""
        try:
            return dict(parsed((self.folder / "outcome.json").read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return None

    def told(self, status: str, **more: Any) -> None:
        write_atomically(self.folder / "outcome.json", json.dumps({"status": status, **more}))


class StopFile(Watch):
    """A watch that also obeys a file: whoever writes it asks for all tasks to stop."""

    def __init__(self, file: Path) -> None:
        self._own: int | None = None
        self.file = file
        super().__init__()

    @property
    def number(self) -> int | None:
        if self._own is None and self.file.exists():
            self._own = int(signal.SIGTERM)
        return self._own

    @number.setter
    def number(self, value: int | None) -> None:
        self._own = value


def write_tasks(
    root: Path,
    experiments: Sequence[tuple[str, Experiment, Algorithm | None]],
    out: Path,
    resume: bool,
    builder: Builder,
    planned: Callable[[str, Experiment, int], None] = lambda *_: None,
) -> list[Task]:
    """A task for each experiment, checked and planned here first, so that mistakes show at once."""
    tasks = []
    for number, (label, experiment, algorithm) in enumerate(experiments):
        if algorithm is not None or CUSTOM in (experiment.data.name, experiment.model.name):
            raise FednagError(
                "--on", "parts that are Python objects do not travel", "put them into a file"
            )
        engine = experiment.engine
        engine = engine.model_copy(update={"threads": engine.threads or 1})
        experiment = experiment.model_copy(update={"engine": engine})
        _, resolved, plan, _ = located(builder, label, experiment, None, out, resume)
        # The processors of the machine that does it are not those of this one.
        chosen = resolved.engine.model_copy(
            update={"threads": engine.threads, "device": engine.device}
        )
        planned(label, resolved, plan.rounds)
        task = Task(root / f"{number:05}")
        task.folder.mkdir(parents=True)
        written = resolved.model_copy(update={"engine": chosen})
        write_atomically(task.folder / "experiment.toml", written.carried_to(task.folder))
        about = {"label": label, "out": str(out.absolute()), "resume": resume}
        about |= {"version": version("fednag"), "threads": engine.threads}
        write_atomically(task.folder / "task.json", json.dumps(about))
        tasks.append(task)
    return tasks


def do(folder: Path, signals: bool = False) -> int:
    """Do a task, whoever has begun it; what came of it is written there. Returns the exit code."""
    task = Task(folder)
    try:
        with StopFile(task.stop) if signals else nullcontext(StopFile(task.stop)) as watch:
            _do(task, watch)
    except Interrupted as stopped:
        task.told("interrupted")
        return 128 + stopped.number
    except FednagError as error:
        task.told("failed", error=error.to_dict())
        return 2
    except Exception as error:
        sentence = f"{type(error).__name__}: {error}"
        task.told("failed", error=FednagError(str(folder), sentence).to_dict())
        return 1
    task.told("over")
    return 0


def _do(task: Task, watch: Watch) -> None:
    with os_errors(task.folder, "cannot be read here", "use a folder that all machines share"):
        about = parsed((task.folder / "task.json").read_text(encoding="utf-8"))
    if about["version"] != (own := version("fednag")):
        raise FednagError(
            "--on",
            f"this machine has fednag {own}, and the command {about['version']}",
            "install the same everywhere",
        )
    out = Path(about["out"])
    if not out.is_dir():
        raise FednagError(
            out,
            "is not a folder on the machine that does this run",
            "share --out with all machines",
        )
    if watch.number is not None:
        raise Interrupted(watch.number, "asked to stop")
    experiment = parse(read(task.folder / "experiment.toml"), str(task.folder))
    builder, begun = Builder(), task.run
    label = about["label"]
    if begun is not None and (begun.path / "run.json").is_file():
        experiment = parse(read(begun.own_config()), str(begun.config_file))
        resolved, plan, notes = builder.plan(experiment)
        folder: RunFolder | None = begun
    else:
        folder, resolved, plan, notes = located(
            builder, label, experiment, None, out, about["resume"]
        )

    def opened(run: RunFolder) -> None:
        write_atomically(task.folder / "run", str(run.path))

    until = time.monotonic() + PATIENCE
    while True:
        try:
            execution = Execution(resolved, plan, label, notes, watch=watch, opened=opened)
            if folder is None:
                execution.start(out)
            else:
                opened(folder)
                execution.resume(folder)
            return
        except BusyError:  # the process of a machine that was lost may still be there
            if time.monotonic() > until:
                raise
            time.sleep(PAUSE)


def tidy(root: Path, tasks: Iterable[Task]) -> None:
    """Remove tasks that are over: the runs' folders say all."""
    with suppress(OSError):
        for task in tasks:
            shutil.rmtree(task.folder)
        for file in root.iterdir():
            file.unlink()
        os.rmdir(root)
