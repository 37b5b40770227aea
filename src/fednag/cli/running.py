"""What commands that train share: progress, signals, the table and the chart at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fednag.cli.common import answer, beside, console, folders_of, unless, usable
from fednag.cli.options import Making, Placing, Telling
from fednag.errors import printable

if TYPE_CHECKING:
    from fednag.api import Started
    from fednag.config import Experiment
    from fednag.core.algorithm import Algorithm
    from fednag.errors import FednagError
    from fednag.results import Run
    from fednag.runs.interrupts import Watch


@contextmanager
def training(
    labels: Sequence[str], telling: Telling, again: str = ""
) -> Iterator[tuple[Started, Watch]]:
    """Progress and signals while runs are made; ``again`` says how all go on, once interrupted."""
    from fednag.runs.interrupts import Interrupted, Watch
    from fednag.show.terminal import RunsProgress

    terminal = beside(telling.json)
    try:
        with (
            Watch() as watch,
            RunsProgress(terminal, labels, telling.quiet, telling.verbose) as progress,
        ):
            yield progress.started, watch
    except Interrupted as stopped:
        print(f"fednag: {printable(str(stopped))}{again}", file=sys.stderr)
        sys.exit(128 + stopped.number)


def run_and_report(
    experiments: list[tuple[str, Experiment, Algorithm | None]],
    making: Making,
    telling: Telling,
    chart: str | None,
    remarks: Sequence[str] = (),
    placing: Placing | None = None,
) -> None:
    from fednag.api import run_all

    usable(making.out)
    on = None
    if placing is not None and (placing.on or placing.script):
        from fednag.cluster import OnSlurm, place

        on = place(placing.on, placing.script)
        if isinstance(on, OnSlurm):
            run_all(experiments, out=making.out, resume=making.resume, on=on)
            answer(
                telling.json,
                {"tasks": len(experiments)},
                f"{len(experiments)} tasks; submit them with `sbatch {on.script}`, then repeat "
                "this command with --resume in place of --on and --script",
                files=[on.script],
            )
            return
    report(
        [label for label, _, _ in experiments],
        lambda started, watch: run_all(
            experiments, out=making.out, started=started, resume=making.resume, watch=watch, on=on
        ),
        telling,
        chart,
        remarks,
    )


def report(
    labels: Sequence[str],
    work: Callable[[Started, Watch], list[Run]],
    telling: Telling,
    chart: str | None,
    remarks: Sequence[str] = (),
    again: str = " with --resume",
    failed: Sequence[FednagError] = (),
) -> None:
    """Do the work with progress, then a table, a chart and a page of what came of it."""
    from fednag.runs.statistics import ranked
    from fednag.show.charts import PICTURES, curves_chart, save
    from fednag.show.document import document, write_page
    from fednag.show.tables import best_first
    from fednag.show.tables import differences as told
    from fednag.show.terminal import differences, ranking

    more = f", or all runs by repeating the command{again}" if len(labels) > 1 else ""
    with training(labels, telling, more) as (started, watch):
        runs = work(started, watch)
    if not runs:
        unless(failed)
        return
    views, folders = [run.view for run in runs], folders_of(runs)
    rows = ranked(views)
    several = len({run.experiment.seed for run in runs}) > 1

    def drawn() -> list[Path]:
        first = next(iter(folders))
        stem = first / "curves" if chart is None else first.parent / chart
        made = save(curves_chart(views), stem, PICTURES)
        return [*made, write_page(document(views), stem.with_name(f"{stem.name}.html"))]

    answer(
        telling.json,
        {"rows": [asdict(row) for row in rows], "differences": told(views)},
        ranking(rows, best_first(rows) if len(runs) > 1 else "result", width=console().width),
        *differences(views, rows),
        notes=[*remarks, *(f"{run.label}: {note}" for run in runs for note in run.notes)],
        runs=folders if several else dict.fromkeys(folders, ""),
        files=drawn,
        failed=failed,
    )
