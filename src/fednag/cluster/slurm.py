"""Tasks as an array of Slurm's: a script to submit, and a folder for each task."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fednag.api import Started
from fednag.cluster.tasks import write_tasks
from fednag.config import Experiment
from fednag.core.algorithm import Algorithm
from fednag.core.files import write_atomically
from fednag.errors import FednagError
from fednag.results import Run
from fednag.runs.build import Builder
from fednag.runs.interrupts import Watch

SCRIPT = """#!/bin/bash
#SBATCH --job-name=fednag
#SBATCH --array=0-{last}
#SBATCH --cpus-per-task={threads}
#SBATCH --requeue
#SBATCH --signal=TERM@120
#SBATCH --output={logs}/%a.txt
# Submit it with `sbatch`; time limits, partitions and memory are options of that command. A task
# that is stopped has saved its run, and goes on there when it is done again: submit the script once
# more, and what is over ends at once. Then repeat the command with --resume, without --on: it reads
# what the tasks have found.
task=$(printf '%05d' "${{SLURM_ARRAY_TASK_ID:-$1}}")
exec {python} -m fednag.cluster {tasks}/"$task"
"""


@dataclass
class OnSlurm:
    """Writes a task for each run, and a script that has Slurm do them."""

    folder: Path

    def __call__(
        self,
        experiments: Sequence[tuple[str, Experiment, Algorithm | None]],
        builder: Builder,
        out: Path,
        started: Started | None,
        resume: bool,
        watch: Watch | None,
    ) -> list[Run]:
        root = self.folder.absolute()
        if root.exists() and any(root.iterdir()):
            raise FednagError("--script", "is not empty", "choose another folder", given=root)
        out.mkdir(parents=True, exist_ok=True)
        # A task that is done again goes on, and the command reads what was found: both look for it.
        tasks = write_tasks(root / "tasks", experiments, out, True, builder)
        logs = root / "logs"
        logs.mkdir()
        threads = max(experiment.engine.threads or 1 for _, experiment, _ in experiments)
        script = SCRIPT.format(
            last=len(tasks) - 1,
            threads=threads,
            logs=_quoted(logs),
            tasks=shlex.quote(str(root / "tasks")),
            python=shlex.quote(sys.executable),
        )
        write_atomically(root / "array.sbatch", script)
        return []

    @property
    def script(self) -> Path:
        return self.folder / "array.sbatch"


def _quoted(path: Path) -> str:
    """A path in a comment of Slurm's, where the shell does not read it."""
    if any(letter.isspace() for letter in str(path)):
        raise FednagError("--script", "Slurm takes no spaces there", "choose another", given=path)
    return str(path).replace("%", "%%")
