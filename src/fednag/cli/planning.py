"""``fednag time plan``: the tau and the method of least expected time."""

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
    given_seeds,
    json_text,
    one_voice,
    print_json,
    set_fields,
    usable,
)
from fednag.cli.options import Algorithms, Fleet, Json, Out, Quiet, Replays, Seeds, Set, Verbose
from fednag.cli.timetables import time_text
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.planning import Advice


def time_plan(
    experiment: Annotated[
        Path | None, typer.Argument(help="TOML file; without one: the embedded digits.")
    ] = None,
    fleet: Fleet = ...,  # type: ignore[assignment]
    target: Annotated[
        str,
        typer.Option("--target", help="Accuracy to reach, e.g. 0.9, or another measure: f1=0.9."),
    ] = ...,  # type: ignore[assignment]
    taus: Annotated[
        str, typer.Option("--taus", "--tau", help="Values of tau to try, e.g. 1,5,20.")
    ] = "1,5,10,20,40,80",
    gammas: Annotated[
        str,
        typer.Option(
            "--gammas", "--gamma", help="Momenta to try, e.g. 0.5,0.9; the file's, else 0.9."
        ),
    ] = "",
    algorithms: Algorithms = "",
    seeds: Seeds = "",
    replays: Replays = 20,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="T, at most; the file's when left out.")
    ] = None,
    set_: Set = [],  # noqa: B006
    out: Out = Path("runs"),
    quiet: Quiet = False,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Recommend the tau and method that reach a target soonest on a fleet, with the curve.

    Runs are made in OUT/NAME-plan, or used again if they are there: another fleet trains nothing
    anew. Without --algorithms and a file that has some, fednag, fedmom and fedavg are tried.

    Example: fednag time plan --fleet silos-wan --target 0.95 --taus 1,5,10,20,40,80 --gammas 0.9
    """
    from fednag.cli.time import remarks
    from fednag.config import override, read
    from fednag.devices.executor import notes_on
    from fednag.devices.fleet import load_fleet
    from fednag.planning import DIGITS, METHODS, candidates, plan, plan_name
    from fednag.runs.interrupts import Interrupted, Watch
    from fednag.show.terminal import RunsProgress

    one_voice(quiet, verbose)
    where = load_fleet(fleet)
    changes = set_fields(set_)
    options = dict.fromkeys(changes, "--set")
    if iterations is not None:
        changes["training.iterations"], options["training.iterations"] = iterations, "--iterations"
    raw = override(read(experiment) if experiment else DIGITS, changes)
    listed = raw.pop("algorithms", [])
    names = [name.strip() for name in algorithms.split(",") if name.strip()]
    if not isinstance(listed, list):
        raise FednagError(
            "algorithms", remedy='write a list, e.g. ["fednag", "fedavg"]', source=experiment
        )
    own_names = [entry.get("name") if isinstance(entry, dict) else entry for entry in listed]
    names = names or [name for name in own_names if isinstance(name, str)] or list(METHODS)
    table = raw.get("algorithm")
    own = table.get("momentum", 0.9) if isinstance(table, dict) else 0.9
    chosen: dict[str, Any] = {
        "methods": names,
        "taus": _numbers(taus, "--taus", "whole numbers from 1 up, e.g. 1,5,20", int, 1),
        "gammas": _numbers(gammas, "--gammas", "numbers from 0 up, e.g. 0.5,0.9", float, 0)
        or [own],
        "seeds": given_seeds(seeds, raw.get("seed", 0)),
    }
    if gammas:
        options["algorithm.momentum"] = "--gammas"
    source = str(experiment or "fednag time plan")
    with blaming(options):
        labels = [label for label, *_ in candidates(raw, target=target, source=source, **chosen)]
    usable(out)
    try:
        with Watch() as watch, RunsProgress(beside(json), labels, quiet, verbose) as progress:
            advice = plan(
                where,
                target,
                experiment=raw,
                replays=replays,
                out=out,
                started=progress.started,
                watch=watch,
                **chosen,
            )
    except Interrupted as stopped:
        print(f"fednag: {stopped}, or all by repeating the command", file=sys.stderr)
        sys.exit(128 + stopped.number)
    workers = max(run.workload.workers for run in advice.runs)
    said = [*notes_on(where, workers), *remarks(_merged(advice.runs), where)]
    report = _report(advice)
    written = _write(advice, report, out / plan_name(raw))
    if json:
        print_json({**report, "notes": said, "files": [str(path) for path in written]})
    else:
        _tell(advice, said, written)


def _numbers(text: str, option: str, wish: str, kind: Any, least: float) -> list[Any]:
    if not text:
        return []
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found) or not all(least <= n < 1e9 for n in found):
        raise FednagError(option, remedy=f"write different {wish}", given=text)
    return found


def _report(advice: Advice) -> dict[str, Any]:
    fleet = advice.fleet
    return {
        "fleet": {"name": fleet.name, "synthetic": fleet.synthetic, "digest": fleet.digest},
        "target": asdict(advice.target),
        "replays": advice.replays,
        "advice": advice.sentences,
        "best": asdict(advice.best) if advice.best else None,
        "points": [asdict(point) for point in advice.points],
    }


def _tell(advice: Advice, said: list[str], written: list[Path]) -> None:
    from rich.table import Table

    from fednag.devices.times import duration
    from fednag.show.terminal import notes, paths

    terminal, best, fleet = console(), advice.best, advice.fleet
    table = Table(
        title=f"expected time to {advice.target.words} on {fleet.title}",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for heading in ("tau", "time", "iterations", "rounds", "a round"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("remark")
    for point in advice.points:
        row = point.row
        own = advice.best_of(point.method)
        remark = "least of all" if point is best else "its least" if point is own else ""
        if row.seconds is None:
            part = f"{row.reached} of {row.runs} runs reach it" if row.reached else "never"
            remark = part + ("" if row.best is None else f"; best {row.best:.4g}")
        table.add_row(
            point.method,
            str(point.tau),
            time_text(row.seconds, row.deviation),
            "-" if row.iterations is None else f"{row.iterations:,.0f}",
            "-" if row.rounds is None else f"{row.rounds:,.1f}",
            duration(row.per_round),
            remark,
            style="bold" if point is best else "red" if row.seconds is None else None,
        )
    terminal.print(table)
    for sentence in advice.sentences:
        terminal.print(sentence, style="bold" if best else "red", soft_wrap=True, highlight=False)
    notes(terminal, said)
    paths(terminal, written)


def _write(advice: Advice, report: dict[str, Any], folder: Path) -> list[Path]:
    from fednag.core.files import write_atomically
    from fednag.show.charts import plan_chart, save

    best, fleet = advice.best, advice.fleet
    written: list[Path] = []
    drawn = [
        {
            "method": p.method,
            "tau": p.tau,
            "seconds": p.row.seconds,
            "low": max(p.row.seconds - (p.row.deviation or 0.0), p.row.seconds / 10),
            "high": p.row.seconds + (p.row.deviation or 0.0),
            "best": p is best,
        }
        for p in advice.points
        if p.row.seconds is not None
    ]
    stem = f"plan-{fleet.name}"
    if drawn:
        seeds = len({run.seed for run in advice.runs})
        counts = [_several(seeds, "seed"), _several(advice.replays, "replay")]
        title = f"{fleet.title}; {', '.join(counts)}; ring: least of all"
        never = dict.fromkeys(p.method for p in advice.points if advice.best_of(p.method) is None)
        if never:
            title += f"; never there: {', '.join(never)}"
        chart = plan_chart(drawn, title, advice.target.words)
        written = save(chart, folder / stem)
    path = folder / f"{stem}.json"
    write_atomically(path, json_text(report) + "\n")
    return [*written, path]


def _several(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _merged(runs: list[Any]) -> list[Any]:
    """One run a method: remarks are about methods, not about every tau."""
    from dataclasses import replace

    found: dict[str, Any] = {}
    for run in runs:
        name = run.experiment.label
        found.setdefault(name, replace(run, label=name))
    return list(found.values())
