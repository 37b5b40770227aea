"""``fednag show`` and ``fednag report``: what came of runs that have been written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fednag.cli.common import console, print_json, unless
from fednag.cli.options import Fleet, Json, Loss, Runs, Target, written_to
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.show.sheets import Sheet


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

    from fednag.runs.targets import given_target, settled
    from fednag.show.sheets import caveats, distinguished
    from fednag.show.tables import as_data, ranked
    from fednag.show.terminal import notes, ranking

    asked = given_target(target, loss)
    sheets, failed = read_runs(runs)
    asked = settled(asked, [s.curve.records for s in sheets], [s.config for s in sheets])
    said: list[str] = []
    if each:
        curves = [replace(s.curve, label=str(s.folder)) for s in sheets]
        rows = ranked(curves, asked)
        origins = {str(s.folder): (s.curve.label, s.curve.seed) for s in sheets}
        title = f"{len(sheets)} runs, best first, by final accuracy"
    else:
        kept, said = distinguished(sheets)
        rows, origins = ranked([sheet.curve for sheet in kept], asked), {}
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
    from fednag.show.document import document
    from fednag.show.overlay import bounds
    from fednag.show.page import write_page
    from fednag.show.timing import recorded_times

    asked = given_target(target, loss)
    if out.is_dir():
        raise FednagError(f"--out {out}: is a folder; name the page, e.g. {out / 'report.html'}")
    sheets, failed = read_runs(runs)
    asked = settled(asked, [s.curve.records for s in sheets], [s.config for s in sheets])
    times = recorded_times(sheets)
    if fleet:
        from fednag.cli.replaying import replayed

        sheets, times = replayed(sheets, fleet)
    page = document(sheets, asked, title, bounds(sheets), times)
    path = write_page(page, out)
    if json:
        told = {"files": [str(path)], "notes": page["notes"], "failed": failed}
        print_json({"rows": page["ranking"], "sentence": page["sentence"], **told})
    else:
        terminal = console()
        terminal.print(page["sentence"], soft_wrap=True, highlight=False)
        terminal.print(f"wrote {path}", soft_wrap=True, highlight=False)
    unless(failed)


def read_runs(runs: list[Path]) -> tuple[list[Sheet], list[str]]:
    from fednag.runs.folder import find_runs
    from fednag.show.sheets import read_sheets

    sheets, failed = read_sheets(find_runs(runs))
    if not sheets:
        unless(failed)
        raise FednagError(f"{runs[0]}: its runs have no records yet; wait for the first round")
    return sheets, failed
