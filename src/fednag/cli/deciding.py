"""``fednag decide``: seeds one after the other, until it is decided which method is ahead."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import (
    beside,
    blaming,
    console,
    json_text,
    one_voice,
    print_json,
    set_fields,
    usable,
)
from fednag.cli.options import Algorithms, Json, Out, Quiet, Set, Verbose
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.decide import Decision

UNITS = {"s": 1, "min": 60, "h": 3600}


def decide(
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
    set_: Set = [],  # noqa: B006
    out: Out = Path("runs"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with runs that are in --out; skip finished ones."),
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Train methods on seed after seed until it is decided which is ahead, and by how much.

    Intervals hold although it looks after every seed. It stops when every pair of methods is
    decided, or when the budget is spent.

    Example: fednag decide examples/digits.toml --algorithms fednag,fedmom --budget 5min
    """
    from fednag.config import methods, override, read
    from fednag.decide import decide as find
    from fednag.runs.interrupts import Interrupted, Watch
    from fednag.show.terminal import RunsProgress

    one_voice(quiet, verbose)
    seconds = _seconds(budget)
    changes = set_fields(set_)
    raw = override(read(experiment), changes)
    names = [name.strip() for name in algorithms.split(",") if name.strip()]
    usable(out)
    terminal = beside(json)

    def labels() -> list[str]:
        return [label for label, _ in methods(raw, names, str(experiment))]

    try:
        with (
            blaming(dict.fromkeys(changes, "--set")),
            Watch() as watch,
            RunsProgress(
                terminal,
                [label for label, _ in methods(raw, names, str(experiment))],
                quiet,
                verbose,
            ) as progress,
        ):
            found = find(
                raw,
                algorithms=names,
                margin=margin,
                confidence=confidence,
                measure=measure,
                seconds=seconds,
                seeds=most_seeds,
                out=out,
                started=progress.started,
                told=None if quiet else lambda decision: _tell_so_far(terminal, decision),
                resume=resume,
                watch=watch,
                source=str(experiment),
            )
    except Interrupted as stopped:
        more = ", or all by repeating the command with --resume"
        print(f"fednag: {stopped}{more}", file=sys.stderr)
        sys.exit(128 + stopped.number)
    path = _write(found, out)
    if json:
        print_json({**_report(found), "files": [str(path)]})
    else:
        _tell(found, path)


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


def _report(found: Decision) -> dict[str, Any]:
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


def _tell(found: Decision, path: Path) -> None:
    from rich.table import Table

    from fednag.show.terminal import paths

    terminal = console()
    unit = "points" if found.shown(1.0).endswith("points") else found.measure
    table = Table(title=f"final {found.measure}, paired by seed", title_justify="left")
    table.add_column("pair", no_wrap=True)
    for heading in (f"difference\n({unit})", "deviation\nof a seed", "interval", "seeds"):
        table.add_column(heading, justify="right")
    table.add_column("decided")
    for pair in found.pairs:
        said = pair.evidence
        numbers = ["-"] * 3
        if said is not None:
            known = said.count > 1
            numbers = [
                f"{said.mean:+.3g}",
                f"{said.deviation:.3g}" if known else "-",
                f"{said.low:+.3g} to {said.high:+.3g}" if said.high < float("inf") else "not yet",
            ]
        verdict = {"ahead": f"{pair.first} ahead", "behind": f"{pair.second} ahead"}.get(
            pair.claim or "", pair.claim or "no"
        )
        style = "bold" if pair.claim else None
        name = f"{pair.first} - {pair.second}"
        table.add_row(name, *numbers, str(len(pair.differences)), verdict, style=style)
    terminal.print(table)
    for sentence in found.sentences:
        terminal.print(sentence, style="bold", soft_wrap=True, highlight=False)
    paths(terminal, [path], {})


def _write(found: Decision, out: Path) -> Path:
    from fednag.core.files import os_errors, write_atomically

    path = out / found.runs[0].experiment.name / "decide.json"
    with os_errors(f"{path}: cannot write it", "choose another with --out"):
        write_atomically(path, json_text(_report(found)) + "\n")
    return path
