"""What came of runs that have been written: ``fednag show``, ``report`` and ``export``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import NamedByDefault, answer, console, json_text, unless
from fednag.cli.options import Fleet, Json, Loss, Runs, Target, written_to
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.runs.view import RunView


def show(
    runs: Runs,
    each: Annotated[bool, typer.Option("--each", help="A line a run, not a method.")] = False,
    target: Target = None,
    loss: Loss = None,
    json: Json = False,
) -> None:
    """Tabulate runs that have been written: methods ranked, mean and spread over seeds.

    Example: fednag show runs/digits --target 0.8
    """
    from fednag.runs.labels import by_problem, distinguished
    from fednag.runs.statistics import ranked
    from fednag.runs.targets import given_target, settled
    from fednag.show.document import caveats
    from fednag.show.tables import best_first
    from fednag.show.tables import differences as told
    from fednag.show.terminal import differences, ranking

    wide = console().width
    asked = given_target(target, loss)
    views, failed = read_runs(runs)
    asked = settled(asked, views)
    goal = asdict(asked) if asked else None
    if each:
        rows = ranked([replace(view, label=str(view.folder)) for view in views], asked)
        origins = {str(view.folder): (view.label, view.seed) for view in views}
        title = f"{len(views)} runs, {best_first(rows)}"
        plain = [
            {"folder": row.label, **asdict(row)}
            | dict(zip(("label", "seed"), origins[row.label], strict=True))
            for row in rows
        ]
        shown = ranking(rows, title, origins, asked)
        answer(json, {"rows": plain, "target": goal}, shown, failed=failed)
        return
    # Methods on other data are not ranked against each other: a table for each problem.
    problems = by_problem(views)
    named, tables, said = [], list[Any](), list[str]()
    apart = list[dict[str, Any]]()
    for name, own in problems.items():
        about = name if len(problems) > 1 else ""
        lead, key = (f"{about}: ", {"problem": name}) if about else ("", {})
        kept, notes = distinguished(own)
        rows = ranked(kept, asked)
        title = f"{lead}{len(rows)} methods in {len(kept)} runs, {best_first(rows)}"
        tables += [ranking(rows, title, target=asked, width=wide), *differences(kept, rows)]
        said += [lead + note for note in (*notes, *caveats(kept))]
        named += [{**key, **asdict(row)} for row in rows]
        apart += [{**key, **one} for one in told(kept)]
    document = {"rows": named, "differences": apart, "target": goal}
    answer(json, document, *tables, notes=said, failed=failed)


def report(
    runs: Runs,
    out: Annotated[Path, written_to("The page to write.")] = Path("report.html"),
    target: Target = None,
    loss: Loss = None,
    fleet: Fleet = "",
    title: Annotated[str, typer.Option(help="Heading; default: the experiments' names.")] = "",
    json: Json = False,
) -> None:
    """Write one page about runs: ranking, charts, splits, settings. It needs no network.

    Without --target and --loss, methods are compared by what all of them reached, if that says
    something. With --fleet the runs are replayed on its devices, curves are drawn over their time
    too, and devices are shown over time; vehicles on a map that plays. Runs on several data sets
    get a page each.

    Example: fednag report runs/digits -o report.html
    """
    from fednag.runs.labels import by_problem
    from fednag.runs.targets import given_target, settled
    from fednag.show.document import bounds, document, recorded_times, write_page

    asked = given_target(target, loss)
    if out.is_dir():
        raise FednagError(
            "--out", "is a folder", f"name the page, e.g. {out / 'report.html'}", given=out
        )
    views, failed = read_runs(runs)
    asked = settled(asked, views)
    problems = by_problem(views)
    written, pages = list[Path](), dict[str, dict[str, Any]]()
    for name, own in problems.items():
        times, moments = recorded_times(own), list[dict[str, Any]]()
        if fleet:
            own, times, moments = _replayed(own, fleet)
        page = document(own, asked, title, bounds(own), times, moments)
        # Methods on other data are not ranked against each other: a page for each problem.
        path = out if len(problems) == 1 else out.with_name(f"{out.stem}-{name}{out.suffix}")
        written.append(write_page(page, path))
        pages[name] = page
    files = [str(path) for path in written]
    told = [
        {"rows": page["ranking"], "sentence": page["sentence"], "notes": page["notes"]}
        for page in pages.values()
    ]
    if len(pages) == 1:
        (page,) = pages.values()
        answer(
            json, {**told[0], "files": files}, page["sentence"], f"wrote {files[0]}", failed=failed
        )
        return
    lines = [f"{len(pages)} problems, so {len(pages)} pages: methods on other data are not ranked"]
    lines += [f"{name}: {page['sentence']}" for name, page in pages.items()]
    lines += [f"wrote {path}" for path in files]
    each = [{"problem": name, **one} for name, one in zip(pages, told, strict=True)]
    answer(json, {"pages": each, "files": files}, *lines, failed=failed)


MOST_LINES = 6  # methods whose devices are shown over time
MOST_ROWS = 300  # devices of each


def _replayed(
    views: Sequence[RunView], fleet: str
) -> tuple[list[RunView], list[dict[str, Any]], list[dict[str, Any]]]:
    """(the runs, their records with seconds on the fleet's clock; where the time goes; timelines
    of devices)."""
    import numpy as np

    from fednag.clock.runs import replay_runs, timed_run, where_time_goes
    from fednag.clock.scene import scene
    from fednag.clock.timeline import timelines
    from fednag.devices.fleet import load_fleet
    from fednag.runs.labels import distinguished
    from fednag.show.document import time_table

    where = load_fleet(fleet)
    kept, _ = distinguished(views)
    timed = replay_runs([timed_run(view) for view in kept if len(view.records) > 1], where)
    if not timed:
        raise FednagError("--fleet", "no run has a round yet", "wait for the first", given=fleet)
    ends = {one.run.folder: np.mean([p.ends for p in one.replays], axis=0) for one in timed}
    clocked = []
    for view in views:
        known = ends.get(view.folder) if view.folder else None
        if known is not None:
            records = [replace(r, clock=float(known[r.round])) for r in view.records]
            view = replace(view, records=records)
        clocked.append(view)
    count = max(len(one.replays) for one in timed)
    title = f"{where.title}, {count} replay{'s' * (count > 1)} of each run"
    lines = timelines(timed, where)[:MOST_LINES]
    moments = [{**line.as_data(MOST_ROWS), "map": scene(line)} for line in lines]
    parts = [asdict(p) for p in where_time_goes(timed, where)]
    return clocked, [time_table(title, parts)], moments


def read_runs(runs: list[Path]) -> tuple[list[RunView], list[FednagError]]:
    from fednag.runs.folder import find_runs
    from fednag.runs.view import RunView, read_all

    found, failed = read_all(find_runs(runs), RunView.read)
    views = [view for view in found if view.records]
    if not views:
        unless(failed)
        raise FednagError(runs[0], "its runs have no records yet", "wait for the first round")
    return views, failed


class FilesByDefault(NamedByDefault):
    """``fednag export RUN…`` is ``fednag export file RUN…``."""

    usual = "file"


export_app = typer.Typer(
    cls=FilesByDefault,
    no_args_is_help=True,
    help="Runs for other tools: `fednag export RUN… --format csv` writes a file; or TensorBoard, "
    "MLflow (extras of their names).",
)


@export_app.command(name="file")
def export_file(
    runs: Runs,
    format_: Annotated[
        str, typer.Option("--format", help="csv, latex or json; else by the ending of --out.")
    ] = "",
    of: Annotated[
        str,
        typer.Option(
            "--of", help="records (a row each), summary (a row a method) or differences (a pair)."
        ),
    ] = "",
    out: Annotated[Path | None, written_to("The file to write; printed when left out.")] = None,
    json: Json = False,
) -> None:
    """Write runs as a table: CSV, LaTeX or JSON; `fednag export RUN…` will do.

    CSV has a row a record unless --of says otherwise. LaTeX is the ranking, for the package
    booktabs, the best bold only where paired seeds decide it. JSON holds all three kinds of rows.

    Example: fednag export file runs/digits --format csv --out digits.csv
    """
    from fednag.show.export import csv_text, latex_text, record_documents, rows_of, written

    kind = _format(format_, out)
    if of and kind != "csv":
        raise FednagError("--of", f"{kind} has one form", "leave it out, or use --format csv")
    if of and of not in KINDS:
        raise FednagError("--of", remedy=f"use {', '.join(KINDS)}", given=of)
    views, failed = read_runs(runs)
    if kind == "csv":
        text = csv_text(rows_of(views, of or "records"))
    elif kind == "latex":
        text = latex_text(views)
    else:
        rows = {name: rows_of(views, name) for name in ("summary", "differences")}
        text = json_text({"runs": record_documents(views), **rows}) + "\n"
    if out is None:
        if json:
            answer(True, {"format": kind, "text": text}, failed=failed)
            return
        sys.stdout.write(text)
        unless(failed)
        return
    path = written(text, out, "--out")
    said = f"wrote {path}"
    answer(json, {"format": kind, "files": [str(path)]}, said, failed=failed)


KINDS = ("records", "summary", "differences")
ENDINGS = {".csv": "csv", ".tex": "latex", ".json": "json"}


def _format(given: str, out: Path | None) -> str:
    kinds = list(ENDINGS.values())
    if not given:
        return ENDINGS.get(out.suffix if out else "", "csv")
    if given not in kinds:
        raise FednagError("--format", remedy=f"use {', '.join(kinds)}", given=given)
    return given


@export_app.command()
def tensorboard(
    runs: Runs,
    out: Annotated[Path, written_to("Folder the events are written to.")] = Path("tensorboard"),
    json: Json = False,
) -> None:
    """Write runs as TensorBoard's event files; then `tensorboard --logdir tensorboard`.

    Example: fednag export tensorboard runs/digits
    """
    from fednag.show.trackers import write_tensorboard

    views, failed = read_runs(runs)
    folders = [str(folder) for folder in write_tensorboard(views, out)]
    said = f"wrote {len(folders)} runs; see them with `tensorboard --logdir {out}`"
    answer(json, {"folders": folders}, said, failed=failed)


@export_app.command()
def mlflow(
    runs: Runs,
    uri: Annotated[
        str, typer.Option(help="MLflow's store: a server's address, or a database.")
    ] = "sqlite:///mlflow.db",
    json: Json = False,
) -> None:
    """Write runs to an MLflow store: settings, curves, how they ended.

    Example: fednag export mlflow runs/digits --uri http://127.0.0.1:5000
    """
    from fednag.show.trackers import write_mlflow

    views, failed = read_runs(runs)
    written = write_mlflow(views, uri)
    answer(json, {"runs": written}, f"wrote {len(written)} runs to {uri}", failed=failed)
