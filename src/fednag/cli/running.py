"""What commands that train share: progress, signals, the table and the chart at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fednag.cli.common import beside, console, one_voice, print_json, usable

if TYPE_CHECKING:
    from fednag.api import Started
    from fednag.config import Experiment
    from fednag.core.algorithm import Algorithm
    from fednag.errors import FednagError
    from fednag.results import Run
    from fednag.runs.interrupts import Watch


def run_and_report(
    experiments: list[tuple[str, Experiment, Algorithm | None]],
    out: Path,
    resume: bool,
    quiet: bool,
    chart: str | None,
    remarks: Sequence[str] = (),
    verbose: bool = False,
    json: bool = False,
) -> None:
    from fednag.api import run_all

    usable(out)
    report(
        [label for label, _, _ in experiments],
        lambda started, watch: run_all(
            experiments, out=out, started=started, resume=resume, watch=watch
        ),
        quiet,
        chart,
        remarks,
        verbose=verbose,
        json=json,
    )


def report(
    labels: Sequence[str],
    work: Callable[[Started, Watch], list[Run]],
    quiet: bool,
    chart: str | None,
    remarks: Sequence[str] = (),
    again: str = " with --resume",
    verbose: bool = False,
    json: bool = False,
    failed: Sequence[FednagError] = (),
) -> None:
    """Do the work with progress, then a table, a chart and a page of what came of it."""
    from fednag.runs.interrupts import Interrupted, Watch
    from fednag.runs.statistics import ranked
    from fednag.show.charts import PICTURES, curves_chart, save
    from fednag.show.document import document, write_page
    from fednag.show.tables import as_data
    from fednag.show.terminal import RunsProgress, notes, paths, ranking

    one_voice(quiet, verbose)
    terminal = console()
    try:
        with Watch() as watch, RunsProgress(beside(json), labels, quiet, verbose) as progress:
            runs = work(progress.started, watch)
    except Interrupted as stopped:
        more = f", or all runs by repeating the command{again}" if len(labels) > 1 else ""
        print(f"fednag: {stopped}{more}", file=sys.stderr)
        sys.exit(128 + stopped.number)
    if not runs:
        return
    views = [run.view for run in runs]
    rows = ranked(views)
    said = [*remarks, *(f"{run.label}: {note}" for run in runs for note in run.notes)]
    if not json:
        terminal.print(
            ranking(rows, "best first, by final accuracy" if len(runs) > 1 else "result")
        )
        notes(terminal, said)
    written = [run.folder for run in runs if run.folder]
    stem = written[0] / "curves" if chart is None else written[0].parent / chart
    made = save(curves_chart(views), stem, PICTURES)
    made.append(write_page(document(views), stem.with_name(f"{stem.name}.html")))
    if json:
        folders = [str(run.folder) for run in runs if run.folder]
        files = [str(path) for path in made]
        told = {"runs": folders, "files": files, "notes": said, "failed": failed}
        print_json({"rows": [as_data(row) for row in rows], **told})
    else:
        several = len({run.experiment.seed for run in runs}) > 1
        named = {r.folder: f"{r.label}, seed {r.experiment.seed}" for r in runs if r.folder}
        paths(terminal, [*written, *made], named if several else None)
