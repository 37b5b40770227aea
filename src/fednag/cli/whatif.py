"""``fednag what-if``: a run again with one thing changed, and the difference."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import answer, blaming, set_fields, table, usable, write_report
from fednag.cli.options import Fleet, Set, Telling, grouped, written_to
from fednag.cli.running import training
from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.table import Table

    from fednag.whatif import Effect, WhatIf


@grouped
def what_if(
    *,
    run: Annotated[Path, typer.Argument(help="Folder of the run that is changed.")],
    without: Annotated[
        list[str],
        typer.Option("--without", help="Who takes part in nothing: worker:K (repeatable)."),
    ] = [],  # noqa: B006
    set_: Set = [],  # noqa: B006
    fleet: Fleet = "",
    out: Annotated[
        Path | None, written_to("Folder the run is written to; beside the other when left out.")
    ] = None,
    telling: Telling,
) -> None:
    """Repeat a run with one thing changed and all other random draws kept; show the difference.

    Say what changes with --without, --set or --fleet. Workers keep their data, batches and
    cohorts.

    Example: fednag what-if runs/digits/fednag-1a2b3c4d --without worker:3
    """
    from fednag.whatif import what_if as find

    changes = set_fields(set_)
    workers = [_worker(text) for text in without]
    if out is not None:
        usable(out)
    options = dict.fromkeys(changes, "--set") | {"training.without": "--without"}
    label = f"{run.name}, changed"
    with blaming(options), training([label], telling) as (started, watch):
        found = find(
            run,
            changes,
            without=workers,
            fleet=fleet or None,
            out=out,
            started=lambda _, experiment, rounds: started(label, experiment, rounds),
            watch=watch,
        )
    document = {
        "run": str(found.base.folder),
        "what_if": str(found.run.folder) if found.run else str(found.base.folder),
        "key": found.key,
        "changes": found.changes,
        "rows": [{**asdict(one), "difference": one.difference} for one in found.effects],
    }
    answer(
        telling.json,
        document,
        _table(found),
        notes=[*found.notes, f"key {found.key}"],
        files=lambda: _write(found, document),
    )


def _worker(text: str) -> int:
    kind, _, number = text.partition(":")
    if kind != "worker" or not (number.isascii() and number.isdecimal()):
        raise FednagError("--without", remedy="write worker:K, e.g. worker:3", given=text)
    return int(number)


def _table(found: WhatIf) -> Table:
    labels = [view.label for view in found.views]
    made = table(["at the end"], [labels[0], labels[-1], "difference"], whole=True)
    for effect in found.effects:
        made.add_row(effect.measure, *_texts(effect))
    return made


def _texts(effect: Effect) -> list[str]:
    """Both values and their difference, in the measure's unit."""
    from fednag.devices.times import duration
    from fednag.runs.frontier import amount
    from fednag.runs.paired import SHARES

    def shown(value: float | None) -> str:
        if value is None:
            return "-"
        if effect.measure in SHARES:
            return f"{value:.2%}"
        known: dict[str, Any] = {"bytes": amount, "seconds": duration}
        return str(known[effect.measure](value)) if effect.measure in known else f"{value:.4f}"

    gap = effect.difference
    if gap is None:
        told = "-"
    elif effect.measure in SHARES:
        told = f"{100 * gap:+.2f} points"
    else:
        told = ("-" if gap < 0 else "+" if gap else "") + shown(abs(gap))
    return [shown(effect.run), shown(effect.what_if), told]


def _write(found: WhatIf, document: dict[str, Any]) -> list[Path]:
    from fednag.show.charts import PICTURES, save, what_if_chart

    if found.run is None or found.run.folder is None:
        return []
    stem = found.run.folder / "what-if"
    written = save(what_if_chart(*found.views), stem, PICTURES)
    return [*written, write_report(stem.with_name("what-if.json"), document)]
