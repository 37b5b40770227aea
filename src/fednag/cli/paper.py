"""``fednag paper``: the paper's figures, run again and judged."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli import completing
from fednag.cli.common import answer, beside, console, output, print_json, table
from fednag.cli.options import Json, On, Telling, grouped, written_to
from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from fednag.paper.checks import Finding
    from fednag.paper.figure import Figure

paper_app = typer.Typer(
    no_args_is_help=True,
    help="The FedNAG paper's figures from one command, each claim with a verdict.",
)

PPI = 80  # charts are committed: small ones will do
COMMITTED = Path("docs/paper")  # the results that come with the repository
STYLES: Mapping[str, str | None] = {
    "reproduced": "green",
    "not reproduced": "red",
    "undecided": "yellow",
    "not run": "dim",
}

ScaleOption = Annotated[
    str,
    typer.Option(
        "--scale",
        help="smoke (digits, seconds), laptop, or full (a GPU).",
        autocompletion=completing.scales,
    ),
]
Experiments = Annotated[
    Path | None, typer.Option(help="Folder of figure files; else those that come with fednag.")
]


@dataclass(frozen=True)
class Running:
    """Which figures are run, at which scale, and where."""

    scale: ScaleOption = "smoke"
    experiments: Experiments = None
    out: Annotated[Path, written_to("Folder for runs, records and charts.")] = Path("runs/paper")
    known: Annotated[
        Path | None,
        typer.Option("--known", help="Runs whose records are there count as run, e.g. docs/paper."),
    ] = None
    on: On = None


@paper_app.command("list")
def paper_list(
    scale: ScaleOption = "laptop", experiments: Experiments = None, json: Json = False
) -> None:
    """List the figures: what they are in the paper, runs and checks at a scale.

    Example: fednag paper list
    """
    from fednag.paper.figure import read_figures

    _known(scale)
    rows: list[dict[str, Any]] = [
        {
            "figure": figure.name,
            "title": figure.content.title,
            "paper": figure.content.paper,
            "series": len(figure.series(scale)),
            "seeds": figure.scale(scale).seeds,
            "checks": len(figure.content.check),
        }
        for figure in read_figures(experiments).values()
    ]
    shown = table(["figure", "what it shows", "in the paper", "series", "seeds", "checks"])
    for row in rows:
        seeds = ",".join(str(seed) for seed in row["seeds"])
        series, checks = str(row["series"]), str(row["checks"])
        shown.add_row(row["figure"], row["title"], row["paper"], series, seeds, checks)
    answer(json, rows, shown)


@paper_app.command("run")
@grouped
def paper_run(
    *,
    figure: Annotated[
        str,
        typer.Argument(help="Its name in `fednag paper list`.", autocompletion=completing.figures),
    ],
    running: Running,
    telling: Telling,
) -> None:
    """Run a figure, draw it and judge it; what has been run is not run again.

    Example: fednag paper run convergence-logistic --scale smoke
    """
    from fednag.paper.figure import pick, read_figures
    from fednag.paper.jobs import missing

    _known(running.scale)
    chosen = pick(read_figures(running.experiments), figure)
    if why := missing(chosen, running.scale):
        raise why
    _run([chosen], running, telling)


@paper_app.command("all")
@grouped
def paper_all(*, running: Running, telling: Telling) -> None:
    """Run every figure whose data are here: the quick ones, then a seed of each, then the rest.

    Example: fednag paper all --scale smoke
    """
    from fednag.paper.figure import read_figures
    from fednag.paper.jobs import missing

    _known(running.scale)
    figures = list(read_figures(running.experiments).values())
    absent = {f.name: why for f in figures if (why := missing(f, running.scale))}
    there = [figure for figure in figures if figure.name not in absent]
    if not there:
        raise next(iter(absent.values()))
    _run(there, running, telling, [str(why) for why in absent.values()])


@paper_app.command("verdict")
def paper_verdict(
    scale: ScaleOption = "",
    experiments: Experiments = None,
    out: Annotated[
        Path | None,
        written_to("Folder of runs and records; else runs/paper, or docs/paper."),
    ] = None,
    write: Annotated[
        Path | None, typer.Option(help="Also put records and charts there, beside those it has.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option(help="Fill this page's tables, e.g. docs/paper.md.")
    ] = None,
    json: Json = False,
) -> None:
    """Judge what has been run: every claim with ours beside the paper's.

    Example: fednag paper verdict --out docs/paper --scale laptop
    """
    from fednag.paper import SCALES
    from fednag.paper.figure import read_figures
    from fednag.paper.jobs import gather_all
    from fednag.paper.page import read_page, refresh
    from fednag.show.terminal import paths

    figures = read_figures(experiments)
    out = out or next((p for p in (Path("runs/paper"), COMMITTED) if p.is_dir()), None)
    if out is None or not out.is_dir():
        raise FednagError(
            "",
            "nothing has been run there",
            "`fednag paper run` does, or give the folder with --out",
            source=out or "runs/paper",
        )
    if scale:
        _known(scale)
    scales = [scale] if scale else [s for s in SCALES if _has(out, s)]
    if not scales:
        raise FednagError(out, "no runs or records there", "`fednag paper run` makes some")
    if page:
        read_page(page, figures)
        if len(scales) > 1:
            raise FednagError(
                "--page", f"{out} has {', '.join(scales)}", "say which --scale", given=page
            )
    if write and write != out and (bare := [s for s in scales if not (out / s).is_dir()]):
        raise FednagError(out, f"no {bare[0]} runs there to take records from", "omit --write")
    written: list[Path] = []
    judged: list[Judged] = []
    place = output(write, "--write") if write else out
    for one in scales:
        # Runs are gathered where there are any; committed records stand for themselves.
        if (out / one).is_dir():
            gather_all(figures, one, out, place)
        if write or (out / one).is_dir():
            written += _draw(figures.values(), one, place)
        judged.append(judge(list(figures.values()), one, place))
        if page:
            written.append(refresh(page, figures, one, place))
    if json:
        files = [str(path) for path in written]
        print_json({"scales": [one.as_data() for one in judged], "files": files})
        return
    for found in judged:
        show(console(), found)
    if written:
        paths(console(), written)


def _has(out: Path, scale: str) -> bool:
    return (out / scale).is_dir() or (out / "records" / scale).is_dir()


def _known(scale: str) -> None:
    from fednag.config.messages import nearest
    from fednag.paper import SCALES

    if scale not in SCALES:
        hint = nearest(scale, SCALES)
        raise FednagError(
            "--scale", f"no such scale{hint}", f"use {', '.join(SCALES)}", given=scale
        )


def _run(
    figures: Sequence[Figure], running: Running, telling: Telling, remarks: Sequence[str] = ()
) -> None:
    from fednag.cluster import cluster_at
    from fednag.paper.jobs import gather_all, queue, run_queue, waiting
    from fednag.paper.records import known
    from fednag.runs.interrupts import Interrupted, Watch
    from fednag.show.terminal import RunsProgress, count, notes, paths

    scale, out, before = running.scale, running.out, running.known
    if before and not (before / "records").is_dir():
        raise FednagError(
            "--known", "no records there", "give a folder such as docs/paper", given=before
        )
    output(out)
    named = {figure.name: figure for figure in figures}
    jobs = waiting(figures, scale, out, known(before, scale) if before else {})
    terminal = console()
    told = beside(telling.json)
    runs = len(queue(figures, scale))
    told.print(f"{count(len(figures), 'figure')}, {count(runs, 'run')}, {len(jobs)} to do")
    stopped, busy = None, 0
    labels = [job.title for job in jobs]
    if jobs:
        try:
            with (
                Watch() as watch,
                RunsProgress(told, labels, telling.quiet, telling.verbose) as progress,
            ):
                busy = run_queue(jobs, out, progress.started, watch, cluster_at(running.on))
        except Interrupted as caught:
            stopped = caught
    if busy:
        left = f"{count(busy, 'run')} left to another process that is writing in {out}"
        remarks = [*remarks, f"{left}; repeat the command when it is done"]
    written = gather_all(named, scale, out, out, before)
    written += _draw(figures, scale, out)
    judged = judge(figures, scale, out)
    if telling.json:
        more = {"notes": [*judged.notes, *remarks], "files": [str(path) for path in written]}
        print_json({**judged.as_data(), "runs": runs, "made": len(jobs) - busy, **more})
    else:
        show(terminal, judged)
        notes(terminal, remarks)
        paths(terminal, written)
    if stopped:
        print("fednag: interrupted and saved; repeat the command to go on", file=sys.stderr)
        sys.exit(128 + stopped.number)


def _draw(figures: Iterable[Figure], scale: str, place: Path) -> list[Path]:
    from fednag.paper.page import records_of
    from fednag.paper.panels import panels, paper_chart
    from fednag.show.charts import save, squeeze

    written = []
    for figure in figures:
        found = panels(figure, records_of(figure, scale, place))
        if found:
            folder = output(place / "charts" / scale)
            columns = 3 if len(found) == 3 else 2
            written += save(paper_chart(found, columns), folder / figure.name, ["png"], PPI)
            squeeze(written[-1])
    return written


@dataclass(frozen=True)
class Judged:
    """The verdicts on figures at a scale."""

    scale: str
    findings: list[Finding]
    stale: Mapping[str, int]  # figure -> runs left out

    @property
    def counts(self) -> dict[str, int]:
        """Of the paper's claims alone."""
        claims: list[str] = [one.verdict for one in self.findings if not one.check.beyond]
        return {verdict: claims.count(verdict) for verdict in STYLES}

    @property
    def answers(self) -> dict[str, int]:
        """To our own questions."""
        found = [one.words for one in self.findings if one.check.beyond]
        return {words: found.count(words) for words in ("yes", "no", "undecided", "not run")}

    @property
    def notes(self) -> list[str]:
        said = "smoke runs show that all works; their verdicts say nothing of the paper"
        left_out = [
            f"{name}: {number} of its runs were made with other settings and are left out; run it "
            "again"
            for name, number in self.stale.items()
        ]
        return [said, *left_out] if self.scale == "smoke" else left_out

    def as_data(self) -> dict[str, Any]:
        verdicts = [
            {
                "figure": one.figure,
                "check": one.check.name,
                "gist": one.check.gist,
                "paper": one.check.paper,
                "ours": one.ours or None,
                "verdict": one.verdict,
                "beyond": one.check.beyond,
                "late": one.check.late,
                "seeds": one.seeds,
                "planned": one.planned,
                "note": one.note,
                "parts": [asdict(part) for part in one.parts],
            }
            for one in self.findings
        ]
        counts = {"counts": self.counts, "answers": self.answers}
        return {"scale": self.scale, **counts, "notes": self.notes, "verdicts": verdicts}


def judge(figures: Sequence[Figure], scale: str, place: Path) -> Judged:
    from fednag.paper.page import findings, records_of

    kept = {figure.name: records_of(figure, scale, place) for figure in figures}
    found = [one for figure in figures for one in findings(figure, kept[figure.name])]
    stale = {name: records.stale for name, records in kept.items() if records.stale}
    return Judged(scale, found, stale)


def show(terminal: Console, judged: Judged) -> None:
    from fednag.show.terminal import notes

    notes(terminal, judged.notes)
    terminal.print(_verdicts(judged.findings, judged.scale))
    for whose, counts in (("the paper's claims", judged.counts), ("ours", judged.answers)):
        if any(counts.values()):
            words = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
            terminal.print(f"{whose}: {words}")


def _verdicts(found: Sequence[Finding], scale: str) -> Table:
    title = f"verdicts at scale {scale}"
    made = table(["figure", "check", "the paper", "ours", "verdict"], title=title)
    for column in made.columns:
        column.overflow = "fold"
    for one in found:
        note = f" ({one.note})" if one.note else ""
        ours = one.ours or "-"
        cells = (one.figure, one.check.name + one.marks, one.check.paper, ours, one.words + note)
        made.add_row(*cells, style=STYLES[one.verdict])
    return made
