"""What commands that train share: progress, signals, the table and the chart at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fednag.cli.common import console, output
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.algorithm import Algorithm
    from fednag.api import Started
    from fednag.config import Experiment
    from fednag.interrupts import Watch
    from fednag.results import Run


def run_and_report(
    experiments: list[tuple[str, Experiment, Algorithm | None]],
    out: Path,
    resume: bool,
    quiet: bool,
    chart: str | None,
    remarks: Sequence[str] = (),
) -> None:
    from fednag.api import run_all

    output(out)
    report(
        [label for label, _, _ in experiments],
        lambda started, watch: run_all(
            experiments, out=out, started=started, resume=resume, watch=watch
        ),
        quiet,
        chart,
        remarks,
    )


def report(
    labels: Sequence[str],
    work: Callable[[Started, Watch], list[Run]],
    quiet: bool,
    chart: str | None,
    remarks: Sequence[str] = (),
    again: str = " with --resume",
) -> None:
    """Do the work with progress, then a table and a chart of what came of it."""
    from fednag.interrupts import Interrupted, Watch
    from fednag.report.charts import curves_chart, save
    from fednag.report.tables import ranked
    from fednag.terminal import RunsProgress, notes, paths, ranking

    terminal = console()
    try:
        with Watch() as watch, RunsProgress(terminal, labels, quiet) as progress:
            runs = work(progress.started, watch)
    except Interrupted as stopped:
        more = f", or all runs by repeating the command{again}" if len(labels) > 1 else ""
        print(f"fednag: {stopped}{more}", file=sys.stderr)
        sys.exit(128 + stopped.number)
    if not runs:
        return
    curves = [run.curve for run in runs]
    terminal.print(
        ranking(ranked(curves), "best first, by final accuracy" if len(runs) > 1 else "result")
    )
    notes(terminal, [*remarks, *(f"{run.label}: {note}" for run in runs for note in run.notes)])
    written = [run.folder for run in runs if run.folder]
    stem = written[0] / "curves" if chart is None else written[0].parent / chart
    written += save(curves_chart(curves), stem)
    paths(terminal, written)


def given_seeds(text: str, otherwise: int) -> list[int]:
    if not text:
        return [otherwise]
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= s < 2**31 for s in seeds):
        raise FednagError(f"--seeds {text}: write different whole numbers from 0 up, e.g. 0,1,2")
    return seeds
