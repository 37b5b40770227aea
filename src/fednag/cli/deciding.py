"""``fednag decide``: seeds one after the other, until it is decided which method is ahead."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import (
    answer,
    beside,
    blaming,
    listed,
    set_fields,
    table,
    usable,
    write_report,
)
from fednag.cli.options import Algorithms, Making, On, Telling, grouped
from fednag.cli.running import training
from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.table import Table

    from fednag.decide import Decision

UNITS = {"s": 1, "min": 60, "h": 3600}


@grouped
def decide(
    *,
    experiment: Annotated[Path, typer.Argument(help="TOML file; its seed is the first.")],
    algorithms: Algorithms = "",
    margin: Annotated[
        float, typer.Option("--margin", help="By how much; of accuracies, percentage points.")
    ] = 0.0,
    confidence: Annotated[
        float, typer.Option("--confidence", help="How sure to be, of all pairs together.")
    ] = 0.99,
    measure: Annotated[
        str, typer.Option("--measure", help="What is compared: its value at the end of a run.")
    ] = "accuracy",
    budget: Annotated[
        str, typer.Option("--budget", help="Time it may take, e.g. 90s, 30min or 2h.")
    ] = "",
    most_seeds: Annotated[
        int, typer.Option("--most-seeds", help="Seeds after which it gives up.")
    ] = 100,
    on: On = None,
    making: Making,
    telling: Telling,
) -> None:
    """Train methods on seed after seed until it is decided which is ahead, and by how much.

    Intervals hold although it looks after every seed. It stops when every pair of methods is
    decided, or when the budget is spent.

    Example: fednag decide examples/digits.toml --algorithms fednag,fedmom --budget 5min
    """
    from rich.text import Text

    from fednag.cluster import cluster_at
    from fednag.config import methods, override, read
    from fednag.decide import decide as find

    seconds = _seconds(budget)
    changes = set_fields(making.set_)
    raw = override(read(experiment), changes)
    names, source = listed(algorithms), str(experiment)
    usable(making.out)
    terminal = beside(telling.json)
    with blaming(dict.fromkeys(changes, "--set")):
        labels = [label for label, _ in methods(raw, names, source)]
        more = ", or all by repeating the command with --resume"
        with training(labels, telling, more) as (started, watch):
            found = find(
                raw,
                algorithms=names,
                margin=margin,
                confidence=confidence,
                measure=measure,
                seconds=seconds,
                seeds=most_seeds,
                out=making.out,
                started=started,
                told=None if telling.quiet else lambda now: _tell_so_far(terminal, now),
                resume=making.resume,
                watch=watch,
                source=source,
                on=cluster_at(on),
            )
    document = _document(found)
    path = making.out / found.runs[0].experiment.name / "decide.json"
    answer(
        telling.json,
        document,
        _table(found),
        *(Text(sentence, "bold") for sentence in found.sentences),
        files=[write_report(path, document)],
    )


def _seconds(text: str) -> float:
    """The seconds of a budget; without one there is no end."""
    if not text:
        return float("inf")
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text[len(number) :].strip() or "s"
    try:
        return float(number) * UNITS[unit]
    except (ValueError, KeyError):
        raise FednagError(
            "--budget", remedy="write a time, e.g. 90s, 30min or 2h", given=text
        ) from None


def _document(found: Decision) -> dict[str, Any]:
    return {
        "measure": found.measure,
        "margin": found.margin,
        "confidence": found.confidence,
        "decided": found.decided,
        "sentences": found.sentences,
        "pairs": [asdict(pair) for pair in found.pairs],
        "runs": [str(run.folder) for run in found.runs],
    }


def _tell_so_far(terminal: Any, found: Decision) -> None:
    """A line after every seed, so that a long wait has news."""
    open_ = sum(pair.claim is None for pair in found.pairs)
    count = max(len(pair.differences) for pair in found.pairs)
    if count > 1 and open_:
        of = f"{open_} of {len(found.pairs)} pairs" if len(found.pairs) > 1 else "the pair"
        terminal.print(f"after {count} seeds: {of} not decided yet", highlight=False)


def _table(found: Decision) -> Table:
    unit = "points" if found.shown(1.0).endswith("points") else found.measure
    numbers = [f"difference\n({unit})", "deviation\nof a seed", "interval", "seeds"]
    made = table(["pair"], numbers, ["decided"], f"final {found.measure}, paired by seed")
    for pair in found.pairs:
        said = pair.evidence
        cells = ["-"] * 3
        if said is not None:
            cells = [
                f"{said.mean:+.3g}",
                f"{said.deviation:.3g}" if said.count > 1 else "-",
                f"{said.low:+.3g} to {said.high:+.3g}" if said.high < float("inf") else "not yet",
            ]
        verdict = {"ahead": f"{pair.first} ahead", "behind": f"{pair.second} ahead"}.get(
            pair.claim or "", pair.claim or "no"
        )
        style = "bold" if pair.claim else None
        name = f"{pair.first} - {pair.second}"
        made.add_row(name, *cells, str(len(pair.differences)), verdict, style=style)
    return made
