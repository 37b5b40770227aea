"""``fednag paper``: the paper's figures, run again and judged."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import console, output
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.paper.checks import Finding
    from fednag.paper.figure import Figure

paper_app = typer.Typer(
    no_args_is_help=True,
    help="The FedNAG paper's figures from one command, each claim with a verdict.",
)

PPI = 80  # charts are committed: small ones will do
COMMITTED = Path("docs/paper")  # the results that come with the repository

ScaleOption = Annotated[
    str, typer.Option("--scale", help="smoke (digits, seconds), laptop, or full (a GPU).")
]
Experiments = Annotated[
    Path | None, typer.Option(help="Folder of figure files; else those that come with fednag.")
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for runs, records and charts.")]
Known = Annotated[
    Path | None,
    typer.Option("--known", help="Runs whose records are there count as run, e.g. docs/paper."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]


@paper_app.command("list")
def paper_list(scale: ScaleOption = "laptop", experiments: Experiments = None) -> None:
    """List the figures: what they are in the paper, runs and checks at a scale.

    Example: fednag paper list
    """
    from rich.table import Table

    from fednag.paper.figure import read_figures

    _known(scale)
    table = Table("figure", "what it shows", "in the paper", "series", "seeds", "checks")
    for figure in read_figures(experiments).values():
        content = figure.content
        seeds = ",".join(str(seed) for seed in figure.scale(scale).seeds)
        series, checks = len(figure.series(scale)), len(content.check)
        table.add_row(figure.name, content.title, content.paper, str(series), seeds, str(checks))
    console().print(table)


@paper_app.command("run")
def paper_run(
    figure: Annotated[str, typer.Argument(help="Its name in `fednag paper list`.")],
    scale: ScaleOption = "smoke",
    experiments: Experiments = None,
    out: Out = Path("runs/paper"),
    known: Known = None,
    quiet: Quiet = False,
) -> None:
    """Run a figure, draw it and judge it; what has been run is not run again.

    Example: fednag paper run convergence-logistic --scale smoke
    """
    from fednag.paper.figure import pick, read_figures
    from fednag.paper.jobs import missing

    _known(scale)
    chosen = pick(read_figures(experiments), figure)
    if why := missing(chosen, scale):
        raise FednagError(why)
    _run([chosen], scale, out, known, quiet)


@paper_app.command("all")
def paper_all(
    scale: ScaleOption = "smoke",
    experiments: Experiments = None,
    out: Out = Path("runs/paper"),
    known: Known = None,
    quiet: Quiet = False,
) -> None:
    """Run every figure whose data are here: the quick ones, then a seed of each, then the rest.

    Example: fednag paper all --scale smoke
    """
    from fednag.paper.figure import read_figures
    from fednag.paper.jobs import missing

    _known(scale)
    figures = list(read_figures(experiments).values())
    absent = {f.name: why for f in figures if (why := missing(f, scale))}
    there = [figure for figure in figures if figure.name not in absent]
    if not there:
        raise FednagError(next(iter(absent.values())))
    _run(there, scale, out, known, quiet, list(absent.values()))


@paper_app.command("verdict")
def paper_verdict(
    scale: ScaleOption = "",
    experiments: Experiments = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Folder of runs and records; else runs/paper, or docs/paper."
        ),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Also put records and charts there, beside those it has.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Fill this page's tables, e.g. docs/paper.md.")
    ] = None,
) -> None:
    """Judge what has been run: every claim with ours beside the paper's.

    Example: fednag paper verdict --out docs/paper --scale laptop
    """
    from fednag.paper.figure import SCALES, read_figures
    from fednag.paper.jobs import gather_all
    from fednag.paper.page import refresh
    from fednag.terminal import paths

    figures = read_figures(experiments)
    out = out or next((p for p in (Path("runs/paper"), COMMITTED) if p.is_dir()), None)
    if out is None or not out.is_dir():
        raise FednagError(
            f"{out or 'runs/paper'}: nothing has been run there; `fednag paper run` does, or give "
            "the folder with --out"
        )
    if scale:
        _known(scale)
    scales = [scale] if scale else [s for s in SCALES if _has(out, s)]
    if not scales:
        raise FednagError(f"{out}: no runs or records there; `fednag paper run` makes some")
    written: list[Path] = []
    for one in scales:
        place = output(write) if write else out
        # Runs are gathered where there are any; committed records stand for themselves.
        if (out / one).is_dir():
            gather_all(figures, one, out, place, before=write)
        elif write and write != out:
            raise FednagError(f"{out}: no runs there to take records from; leave out --write")
        if write or (out / one).is_dir():
            written += _draw(figures.values(), one, place)
        _report(list(figures.values()), one, place)
        if page:
            written.append(refresh(page, figures, one, place))
    if written:
        paths(console(), written)


def _has(out: Path, scale: str) -> bool:
    return (out / scale).is_dir() or (out / "records" / scale).is_dir()


def _known(scale: str) -> None:
    from fednag.config.sentences import nearest
    from fednag.paper.figure import SCALES

    if scale not in SCALES:
        hint = nearest(scale, SCALES)
        raise FednagError(f"--scale {scale}: no such scale{hint}; use {', '.join(SCALES)}")


def _run(
    figures: Sequence[Figure],
    scale: str,
    out: Path,
    before: Path | None,
    quiet: bool,
    remarks: Sequence[str] = (),
) -> None:
    from fednag.interrupts import Interrupted, Watch
    from fednag.paper.jobs import gather_all, queue, run_queue, waiting
    from fednag.paper.kept import known
    from fednag.terminal import RunsProgress, notes, paths

    output(out)
    if before and not (before / "records").is_dir():
        raise FednagError(f"--known {before}: no records there; give a folder such as docs/paper")
    named = {figure.name: figure for figure in figures}
    jobs = waiting(figures, scale, out, known(before, scale, named) if before else {})
    terminal = console()
    terminal.print(f"{len(figures)} figures, {len(queue(figures, scale))} runs, {len(jobs)} to do")
    stopped = None
    labels = [f"{job.label} {job.figure} #{job.experiment.seed}" for job in jobs]
    if jobs:
        try:
            with Watch() as watch, RunsProgress(terminal, labels, quiet) as progress:
                run_queue(jobs, out, progress.started, watch)
        except Interrupted as caught:
            stopped = caught
    written = gather_all(named, scale, out, out, before)
    written += _draw(figures, scale, out)
    _report(figures, scale, out)
    notes(terminal, remarks)
    paths(terminal, written)
    if stopped:
        print("fednag: interrupted and saved; repeat the command to go on", file=sys.stderr)
        sys.exit(128 + stopped.number)


def _draw(figures: Iterable[Figure], scale: str, place: Path) -> list[Path]:
    from fednag.paper.page import records_of
    from fednag.paper.panels import panels
    from fednag.report.charts import save
    from fednag.report.paper import paper_chart
    from fednag.report.png import squeeze

    written = []
    for figure in figures:
        found = panels(figure, records_of(figure, scale, place))
        if found:
            folder = output(place / "charts" / scale)
            columns = 3 if len(found) == 3 else 2
            written += save(paper_chart(found, columns), folder / figure.name, ["png"], PPI)
            squeeze(written[-1])
    return written


def _report(figures: Sequence[Figure], scale: str, place: Path) -> None:
    from fednag.paper.page import findings, records_of
    from fednag.terminal import notes

    terminal = console()
    if scale == "smoke":
        notes(terminal, ["smoke runs show that all works; their verdicts say nothing of the paper"])
    everything: list[Finding] = []
    for figure in figures:
        everything += findings(figure, records_of(figure, scale, place))
    terminal.print(_verdicts(everything, scale))
    counts = {v: sum(f.verdict == v for f in everything) for v in _STYLES}
    terminal.print(", ".join(f"{number} {verdict}" for verdict, number in counts.items()))


_STYLES: Mapping[str, str | None] = {
    "reproduced": "green",
    "not reproduced": "red",
    "undecided": "yellow",
    "not run": "dim",
}


def _verdicts(found: Sequence[Finding], scale: str) -> Any:
    from rich.table import Table

    table = Table(title=f"verdicts at scale {scale}", title_justify="left")
    for heading in ("figure", "check", "the paper", "ours", "verdict"):
        table.add_column(heading, overflow="fold")
    for one in found:
        note = f" ({one.note})" if one.note else ""
        ours = one.ours or "-"
        cells = (one.figure, one.check.name, one.check.paper, ours, one.words + note)
        table.add_row(*cells, style=_STYLES[one.verdict])
    return table
