"""``fednag time plan``: the tau and the method of least expected time."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import Out, console, output
from fednag.cli.running import given_seeds
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.planning import Advice


def time_plan(
    experiment: Annotated[
        Path | None, typer.Argument(help="TOML file; without one: the embedded digits.")
    ] = None,
    fleet: Annotated[str, typer.Option(help="A shipped fleet's name, or a fleet file.")] = ...,  # type: ignore[assignment]
    target: Annotated[float, typer.Option(help="Accuracy to reach.")] = ...,  # type: ignore[assignment]
    tau: Annotated[str, typer.Option(help="Values of tau to try.")] = "1,5,10,20,40,80",
    gamma: Annotated[
        str, typer.Option(help="Momenta to try, e.g. 0.5,0.9; the file's, else 0.9.")
    ] = "",
    methods: Annotated[
        str, typer.Option(help="Methods; the file's `algorithms`, else fednag,fedmom,fedavg.")
    ] = "",
    seeds: Annotated[str, typer.Option(help="Seeds, e.g. 0,1,2.")] = "",
    replays: Annotated[int, typer.Option(min=1, max=10_000, help="Replays of each run.")] = 20,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="T, at most; the file's when left out.")
    ] = None,
    set_: Annotated[
        list[str], typer.Option("--set", help="Change a field: section.key=value (repeatable).")
    ] = [],  # noqa: B006
    out: Out = Path("runs"),
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Recommend the tau and method that reach a target soonest on a fleet, with the curve.

    Runs are made, or used again if they are in --out: another fleet trains nothing anew.

    Example: fednag time plan --fleet silos-wan --target 0.95 --tau 1,5,10,20,40,80 --gamma 0.9
    """
    from fednag.clock.fleet import load_fleet
    from fednag.config import assignments, override, read, value
    from fednag.interrupts import Interrupted, Watch
    from fednag.planning import DIGITS, METHODS, candidates, plan
    from fednag.terminal import RunsProgress

    where = load_fleet(fleet)
    changes = {field: value(text) for field, text in assignments(set_, "--set").items()}
    if iterations is not None:
        changes["training.iterations"] = iterations
    raw = override(read(experiment) if experiment else DIGITS, changes)
    listed = raw.pop("algorithms", [])
    names = [name.strip() for name in methods.split(",") if name.strip()]
    if not isinstance(listed, list):
        raise FednagError(f'{experiment}: algorithms: write a list, e.g. ["fednag", "fedavg"]')
    own_names = [entry.get("name") if isinstance(entry, dict) else entry for entry in listed]
    names = names or [name for name in own_names if isinstance(name, str)] or list(METHODS)
    table = raw.get("algorithm")
    own = table.get("momentum", 0.9) if isinstance(table, dict) else 0.9
    chosen: dict[str, Any] = {
        "methods": names,
        "taus": _numbers(tau, "--tau", "whole numbers from 1 up, e.g. 1,5,20", int, 1),
        "gammas": _numbers(gamma, "--gamma", "numbers from 0 up, e.g. 0.5,0.9", float, 0) or [own],
        "seeds": given_seeds(seeds, raw.get("seed", 0)),
    }
    labels = [label for label, *_ in candidates(raw, target=target, **chosen)]
    output(out)
    terminal = console()
    try:
        with Watch() as watch, RunsProgress(terminal, labels, quiet) as progress:
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
    _tell(terminal, advice, out / str(raw.get("name", "run")))


def _numbers(text: str, option: str, wish: str, kind: Any, least: float) -> list[Any]:
    if not text:
        return []
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found) or not all(least <= n < 1e9 for n in found):
        raise FednagError(f"{option} {text}: write different {wish}")
    return found


def _tell(terminal: Any, advice: Advice, folder: Path) -> None:
    from rich.table import Table

    from fednag.cli.time import remarks, seconds_text
    from fednag.clock.attendance import notes_on
    from fednag.records import write_atomically
    from fednag.report.charts import save
    from fednag.report.clock import plan_chart
    from fednag.terminal import notes, paths

    best, fleet = advice.best, advice.fleet
    table = Table(
        title=f"expected seconds to accuracy {advice.target:g} on {fleet.title}",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for heading in ("tau", "seconds", "iterations", "rounds", "seconds a round"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for point in advice.points:
        row = point.row
        own = advice.best_of(point.method)
        said = "least of all" if point is best else "its least" if point is own else ""
        if row.seconds is None:
            part = f"{row.reached} of {row.runs} runs reach it" if row.reached else "never"
            said = part + ("" if row.best is None else f"; best {row.best:.4g}")
        table.add_row(
            point.method,
            str(point.tau),
            seconds_text(row.seconds, row.deviation),
            "-" if row.iterations is None else f"{row.iterations:,.0f}",
            "-" if row.rounds is None else f"{row.rounds:,.1f}",
            f"{row.per_round:,.4g}",
            said,
            style="bold" if point is best else "red" if row.seconds is None else None,
        )
    terminal.print(table)
    for sentence in advice.sentences:
        terminal.print(sentence, style="bold" if best else "red", soft_wrap=True, highlight=False)
    workers = max(run.workload.workers for run in advice.runs)
    notes(terminal, [*notes_on(fleet, workers), *remarks(_merged(advice.runs), fleet)])
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
        chart = plan_chart(drawn, title, f"accuracy {advice.target:g}")
        written = save(chart, folder / stem)
    report = {
        "fleet": {"name": fleet.name, "synthetic": fleet.synthetic, "digest": fleet.digest},
        "target": advice.target,
        "advice": advice.sentences,
        "points": [asdict(point) for point in advice.points],
    }
    path = folder / f"{stem}.json"
    write_atomically(path, json.dumps(report, indent=1) + "\n")
    paths(terminal, [*written, path])


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
