"""``fednag show`` and ``fednag report``: what came of runs that have been written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednag.cli.common import console, print_json, unless
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
    from dataclasses import asdict, replace

    from fednag.runs.labels import distinguished
    from fednag.runs.statistics import ranked
    from fednag.runs.targets import given_target, settled
    from fednag.show.document import caveats
    from fednag.show.tables import as_data
    from fednag.show.terminal import notes, ranking

    asked = given_target(target, loss)
    views, failed = read_runs(runs)
    asked = settled(asked, views)
    said: list[str] = []
    if each:
        rows = ranked([replace(view, label=str(view.folder)) for view in views], asked)
        origins = {str(view.folder): (view.label, view.seed) for view in views}
        title = f"{len(views)} runs, best first, by final accuracy"
    else:
        kept, said = distinguished(views)
        rows, origins = ranked(kept, asked), {}
        said += caveats(kept)
        title = f"{len(rows)} methods in {len(kept)} runs, best first, by final accuracy"
    if json:
        plain = [as_data(row) for row in rows]
        if each:
            plain = [
                {"folder": row.label, **data, "label": origins[row.label][0]}
                | {"seed": origins[row.label][1]}
                for row, data in zip(rows, plain, strict=True)
            ]
        told = {"target": asdict(asked) if asked else None, "notes": said, "failed": failed}
        print_json({"rows": plain, **told})
    else:
        terminal = console()
        terminal.print(ranking(rows, title, origins, asked))
        notes(terminal, said)
    unless(failed)


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

    Without --target and --loss, methods are compared by what all of them reached. With --fleet the
    runs are replayed on its devices, and curves are drawn over their time too.

    Example: fednag report runs/digits -o report.html
    """
    from fednag.runs.targets import given_target, settled
    from fednag.show.document import bounds, document, recorded_times, write_page

    asked = given_target(target, loss)
    if out.is_dir():
        raise FednagError(
            "--out", "is a folder", f"name the page, e.g. {out / 'report.html'}", given=out
        )
    views, failed = read_runs(runs)
    asked = settled(asked, views)
    times = recorded_times(views)
    if fleet:
        from fednag.cli.replaying import replayed

        views, times = replayed(views, fleet)
    page = document(views, asked, title, bounds(views), times)
    path = write_page(page, out)
    if json:
        told = {"files": [str(path)], "notes": page["notes"], "failed": failed}
        print_json({"rows": page["ranking"], "sentence": page["sentence"], **told})
    else:
        terminal = console()
        terminal.print(page["sentence"], soft_wrap=True, highlight=False)
        terminal.print(f"wrote {path}", soft_wrap=True, highlight=False)
    unless(failed)


def read_runs(runs: list[Path]) -> tuple[list[RunView], list[str]]:
    from fednag.runs.folder import find_runs
    from fednag.runs.view import read_views

    views, failed = read_views(find_runs(runs))
    if not views:
        unless(failed)
        raise FednagError(runs[0], "its runs have no records yet", "wait for the first round")
    return views, failed
