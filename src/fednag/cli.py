"""The command line: parses and prints, nothing else. Heavy imports wait until a command runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.console import Console

    from fednag.algorithm import Algorithm
    from fednag.config import Experiment
    from fednag.results import Run

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="Momentum-based federated learning: train FedNAG beside its rivals and compare them.",
)
data_app = typer.Typer(no_args_is_help=True, help="Data sets: list, download, check, split.")
app.add_typer(data_app, name="data")

DEMO: dict[str, Any] = {
    "name": "digits",
    "data": {"name": "digits"},
    "model": {"name": "cnn"},
    "training": {"tau": 10, "iterations": 200, "batch": 32},
    "algorithms": ["fednag", "fedavg", "fedmom", "slowmo", "mime", "csgd", "cnag"],
}

Out = Annotated[Path, typer.Option(help="Folder the runs are written to.")]
Set = Annotated[
    list[str], typer.Option("--set", help="Change a field: section.key=value (repeatable).")
]
Seeds = Annotated[str, typer.Option(help="Seeds, e.g. 0,1,2; the file's own when left out.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only the result.")]


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"fednag {installed('fednag')}")
        raise typer.Exit


@app.command()
def compare(
    experiment: Annotated[
        Path | None, typer.Argument(help="TOML file; without one: the digits demonstration.")
    ] = None,
    algorithms: Annotated[
        str, typer.Option(help="Methods, e.g. fednag,fedavg; default: the file's `algorithms`.")
    ] = "",
    seeds: Seeds = "",
    set_: Set = [],  # noqa: B006
    out: Out = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Train several methods on the same problem: ranked table and chart.

    Example: fednag compare --algorithms fednag,fedavg,fedmom --set training.tau=40 --seeds 0,1,2
    """
    from fednag.config import assignments, methods, override, parse, read, value

    source = str(experiment) if experiment else "fednag compare"
    raw = read(experiment) if experiment else DEMO
    changes = assignments(set_, "--set")
    raw = override(raw, {field: value(text) for field, text in changes.items()})
    names = [name.strip() for name in algorithms.split(",") if name.strip()]
    chosen = methods(raw, names, source)
    if not chosen:
        raise FednagError(f"{source}: no methods to compare; give --algorithms fednag,fedavg")
    experiments: list[tuple[str, Experiment, Algorithm | None]] = []
    for label, table in chosen:
        for seed in _seeds(seeds, table.get("seed", 0)):
            experiments.append((label, parse({**table, "seed": seed}, source), None))
    _run_and_report(experiments, out, quiet, chart="comparison")


@app.command()
def run(
    experiment: Annotated[Path, typer.Argument(help="TOML file describing the run.")],
    set_: Set = [],  # noqa: B006
    out: Out = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Train one method as an experiment file says.

    Example: fednag run examples/digits.toml --set algorithm.momentum=0.5
    """
    from fednag.config import assignments, override, parse, read, value

    changes = assignments(set_, "--set")
    raw = override(read(experiment), {field: value(text) for field, text in changes.items()})
    raw.pop("algorithms", None)
    parsed = parse(raw, str(experiment))
    _run_and_report([(parsed.label, parsed, None)], out, quiet, chart=None)


@app.command()
def sweep(
    experiment: Annotated[Path, typer.Argument(help="TOML file; the swept fields are replaced.")],
    grid: Annotated[
        list[str],
        typer.Option("--grid", help="section.key=v1,v2,… (repeatable: all combinations)."),
    ],
    seeds: Seeds = "",
    set_: Set = [],  # noqa: B006
    out: Out = Path("runs"),
    quiet: Quiet = False,
) -> None:
    """Run every combination of some fields' values, for every seed: mean and spread.

    Example: fednag sweep examples/digits.toml --grid training.tau=5,10,20 --seeds 0,1,2
    """
    from fednag import api
    from fednag.config import assignments, override, read, value

    raw = read(experiment)
    raw.pop("algorithms", None)
    changes = assignments(set_, "--set")
    raw = override(raw, {field: value(text) for field, text in changes.items()})
    axes = {
        field: [value(v.strip()) for v in text.split(",") if v.strip()]
        for field, text in assignments(grid, "--grid").items()
    }
    experiments = api.grid(raw, axes, _seeds(seeds, raw.get("seed", 0)), str(experiment))
    _run_and_report(experiments, out, quiet, chart="sweep")


@app.command()
def show(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
) -> None:
    """Tabulate runs that have been written.

    Example: fednag show runs/digits
    """
    from fednag.records import find_runs
    from fednag.report.tables import Curve, ranked
    from fednag.terminal import ranking

    curves = []
    for folder in find_runs(runs):
        records, info = folder.records(), folder.info()
        if not records:
            continue
        status = str(info.get("ended") or info.get("status"))
        label = f"{info.get('label')}  {folder.path}"
        diverged = info.get("status") == "diverged"
        curves.append(Curve(label, int(info.get("seed", 0)), records, status, diverged))
    if not curves:
        raise FednagError(f"{runs[0]}: its runs have no records yet; wait for the first round")
    _console().print(ranking(ranked(curves), f"{len(curves)} runs, best first"))


@app.command()
def algorithms() -> None:
    """List the methods, what they send, and their numbers.

    Example: fednag algorithms
    """
    from dataclasses import fields

    from rich.table import Table

    from fednag.algorithms import ALGORITHMS

    table = Table("name", "what it does", "down", "up", "numbers (defaults)")
    for name, cls in ALGORITHMS.items():
        meaning = (cls.__doc__ or "").strip().splitlines()[0]
        numbers = ", ".join(f"{f.name}={f.default}" for f in fields(cls))  # type: ignore[arg-type]
        down, up = ("-", "-") if cls.pooled else (" ".join(cls.down), " ".join(cls.up))
        probe = " + probe" if cls.probes else ""
        table.add_row(name, meaning, down + probe, up + probe, numbers)
    _console().print(table)


@data_app.command("list")
def data_list() -> None:
    """List the data sets and whether their files are here.

    Example: fednag data list
    """
    from rich.table import Table

    from fednag.problems.data import NAMES
    from fednag.problems.sources import SOURCES, data_folder

    folder = data_folder()
    table = Table("name", "files")
    for name in [*NAMES, *(n for n in SOURCES if n not in NAMES)]:
        if name not in SOURCES:
            table.add_row(name, "built in")
            continue
        source = SOURCES[name]
        here = all((folder / source.folder / file.name).is_file() for file in source.files)
        table.add_row(name, "here" if here else f"missing: fednag data get {name}")
    console = _console()
    console.print(table)
    console.print(f"folder: {folder} (set FEDNAG_DATA to use another)", soft_wrap=True)


@data_app.command("get")
def data_get(name: Annotated[str, typer.Argument(help="Data set, e.g. mnist.")]) -> None:
    """Download a data set from its official address and verify it.

    Example: fednag data get mnist
    """
    from fednag.problems.download import get

    print(f"{name} is ready in {get(name)}")


@data_app.command("check")
def data_check(name: Annotated[str, typer.Argument(help="Data set, e.g. mnist.")]) -> None:
    """Verify the checksums of a data set's files.

    Example: fednag data check mnist
    """
    from fednag.problems.download import check

    statuses = check(name)
    for path, status in statuses:
        print(f"{status:8}{path}")
    bad = [path for path, status in statuses if status != "ok"]
    if bad:
        raise FednagError(f"{bad[0]}: not as published; run `fednag data get {name}`")


@data_app.command("split")
def data_split(
    name: Annotated[str, typer.Argument(help="Data set, e.g. digits.")] = "digits",
    kind: Annotated[str, typer.Option(help="iid, classes, dirichlet, sizes or natural.")] = "iid",
    workers: Annotated[int | None, typer.Option(help="How many workers.")] = None,
    classes: Annotated[int | None, typer.Option(help="classes: how many each holds.")] = None,
    assign: Annotated[str | None, typer.Option(help="classes: cover or random.")] = None,
    alpha: Annotated[float | None, typer.Option(help="dirichlet: concentration.")] = None,
    skew: Annotated[float | None, typer.Option(help="sizes: exponent.")] = None,
    seed: Annotated[int, typer.Option(help="Seed.")] = 0,
    out: Out = Path("runs"),
) -> None:
    """Show who would hold what: a table worker x class, and a picture of it.

    Example: fednag data split digits --kind classes --classes 3 --workers 4
    """
    from fednag.config import parse
    from fednag.experiment import load, split
    from fednag.report.charts import save, split_chart
    from fednag.terminal import notes, paths, split_table

    options = {
        "workers": workers,
        "classes": classes,
        "assign": assign,
        "alpha": alpha,
        "skew": skew,
    }
    given = {key: option for key, option in options.items() if option is not None}
    raw = {"data": {"name": name}, "split": {"kind": kind, **given}, "seed": seed}
    experiment = parse(raw, "fednag data split")
    dataset = load(experiment)
    deal = split(dataset, experiment.split, seed)
    counts = deal.table(dataset.y.numpy(), dataset.classes or 1).tolist()
    console = _console()
    console.print(split_table(counts))
    if len(counts) > 30:
        console.print(f"… and {len(counts) - 30} more workers")
    console.print(f"sizes: {min(deal.sizes)} to {max(deal.sizes)}, {sum(deal.sizes)} in all")
    notes(console, deal.notes)
    folder = _folder(out)
    written = save(split_chart(counts, f"{name}, {kind}"), folder / f"split-{name}-{kind}")
    paths(console, written)


def main() -> None:
    """Run the command line; what users can put right is one sentence on stderr, exit code 2."""
    try:
        app()
    except FednagError as error:
        print(f"fednag: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("fednag: interrupted; what was recorded is kept", file=sys.stderr)
        sys.exit(130)


def _run_and_report(
    experiments: list[tuple[str, Experiment, Algorithm | None]],
    out: Path,
    quiet: bool,
    chart: str | None,
) -> None:
    from fednag.api import run_all
    from fednag.report.charts import curves_chart, save
    from fednag.report.tables import ranked
    from fednag.terminal import RunsProgress, notes, paths, ranking

    console = _console()
    labels = [label for label, _, _ in experiments]
    with RunsProgress(console, labels, quiet) as progress:
        runs: list[Run] = run_all(experiments, out=out, started=progress.started)
    curves = [run.curve for run in runs]
    console.print(ranking(ranked(curves), "best first, by final accuracy"))
    notes(console, [f"{run.label}: {note}" for run in runs for note in run.notes])
    written = [run.folder for run in runs if run.folder]
    stem = written[0] / "curves" if chart is None else written[0].parent / chart
    written += save(curves_chart(curves), stem)
    paths(console, written)


def _seeds(text: str, otherwise: int) -> list[int]:
    try:
        return [int(part) for part in text.split(",")] if text else [otherwise]
    except ValueError:
        raise FednagError(f"--seeds {text}: write whole numbers, e.g. 0,1,2") from None


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FednagError(f"{path}: cannot be made ({error.strerror}); choose --out") from error
    return path


def _console() -> Console:
    from rich.console import Console

    # Piped, a table must not be cut to 80 columns.
    return Console(width=None if sys.stdout.isatty() else 160)
