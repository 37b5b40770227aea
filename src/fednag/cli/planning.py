"""``fednag time plan``: the choices of least expected time."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli.common import (
    answer,
    blaming,
    given_seeds,
    listed,
    set_fields,
    table,
    usable,
    write_report,
)
from fednag.cli.options import (
    TARGET,
    Algorithms,
    Fleet,
    Out,
    Replays,
    Seeds,
    Set,
    Telling,
    grouped,
)
from fednag.cli.running import training
from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.table import Table

    from fednag.planning import Advice, Point


@grouped
def time_plan(
    *,
    experiment: Annotated[
        Path | None, typer.Argument(help="TOML file; without one: the embedded digits.")
    ] = None,
    fleet: Fleet,
    target: Annotated[str, TARGET],
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
    participants: Annotated[
        str, typer.Option(help="Workers of a round to try, e.g. 10,50; the file's when left out.")
    ] = "",
    uplinks: Annotated[
        str, typer.Option(help="Chains of transforms to try, e.g. none,topk:share=0.01.")
    ] = "",
    deadlines: Annotated[
        str,
        typer.Option(help="Seconds of a round to try, e.g. none,0.5,2: who is late is left out."),
    ] = "",
    race: Annotated[
        bool | None,
        typer.Option(
            "--race/--full",
            help="Cut off what cannot be first (so if more than tau and method is chosen), or not.",
        ),
    ] = None,
    seeds: Seeds = "",
    replays: Replays = 20,
    iterations: Annotated[
        int | None, typer.Option(min=1, help="T, at most; the file's when left out.")
    ] = None,
    set_: Set = [],  # noqa: B006
    out: Out = Path("runs"),
    telling: Telling,
) -> None:
    """Recommend method, tau, cohort, uplink and deadline that reach a target soonest on a fleet.

    Runs are made in OUT/NAME-plan, or used again if they are there: another fleet trains nothing
    anew. Without --algorithms and a file that has some, fednag, fedmom and fedavg are tried.

    Example: fednag time plan --fleet silos-wan --target 0.95 --taus 1,5,10,20,40,80 --gammas 0.9
    """
    from rich.text import Text

    from fednag.cli.time import remarks
    from fednag.config import override, read
    from fednag.devices.fleet import load_fleet
    from fednag.planning import DIGITS, METHODS, candidates, plan, plan_name

    where = load_fleet(fleet)
    changes = set_fields(set_)
    options = dict.fromkeys(changes, "--set")
    if iterations is not None:
        changes["training.iterations"], options["training.iterations"] = iterations, "--iterations"
    raw = override(read(experiment) if experiment else DIGITS, changes)
    own = raw.pop("algorithms", [])
    if not isinstance(own, list):
        raise FednagError(
            "algorithms", remedy='write a list, e.g. ["fednag", "fedavg"]', source=experiment
        )
    own_names = [entry.get("name") if isinstance(entry, dict) else entry for entry in own]
    names = listed(algorithms) or [name for name in own_names if isinstance(name, str)]
    numbers = raw.get("algorithm")
    gamma = numbers.get("momentum", 0.9) if isinstance(numbers, dict) else 0.9
    chosen: dict[str, Any] = {
        "methods": names or list(METHODS),
        "taus": _numbers(taus, "--taus", "whole numbers from 1 up, e.g. 1,5,20", int, 1),
        "gammas": _numbers(gammas, "--gammas", "numbers from 0 up, e.g. 0.5,0.9", float, 0)
        or [gamma],
        "seeds": given_seeds(seeds, raw.get("seed", 0)),
        "participants": _numbers(
            participants, "--participants", "whole numbers from 1 up, e.g. 10,50", int, 1
        ),
        "uplinks": _different(listed(uplinks), "--uplinks", "chains, e.g. none,sign"),
        "deadlines": _numbers(
            deadlines.replace("none", "0"),
            "--deadlines",
            "seconds, or none, e.g. none,0.5,2",
            float,
            0,
        ),
    }
    if participants:
        options["training.participants"] = "--participants"
    if gammas:
        options["algorithm.momentum"] = "--gammas"
    source = str(experiment or "fednag time plan")
    with blaming(options):
        labels = [
            label
            for label, *_ in candidates(raw, target=target, source=source, fleet=where, **chosen)
        ]
    usable(out)
    with training(labels, telling, ", or all by repeating the command") as (started, watch):
        advice = plan(
            where,
            target,
            experiment=raw,
            race=race,
            replays=replays,
            out=out,
            started=started,
            watch=watch,
            **chosen,
        )
    document = _document(advice)
    style = "bold" if advice.best else "red"
    answer(
        telling.json,
        document,
        _table(advice),
        *(Text(sentence, style) for sentence in advice.sentences),
        notes=remarks(_merged(advice.runs), where),
        files=_write(advice, document, out / plan_name(raw)),
    )


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


def _different(names: list[str], option: str, wish: str) -> list[str]:
    if len(set(names)) < len(names):
        raise FednagError(option, "one is there twice", f"write different {wish}")
    return names


def _document(advice: Advice) -> dict[str, Any]:
    return {
        "fleet": advice.fleet.as_data(),
        "target": asdict(advice.target),
        "replays": advice.replays,
        "advice": advice.sentences,
        "best": asdict(advice.best) if advice.best else None,
        "surety": asdict(advice.surety) if advice.surety else None,
        "points": [asdict(point) for point in advice.points],
    }


def _table(advice: Advice) -> Table:
    from fednag.cli.time import time_cells
    from fednag.devices.times import duration, energy

    title = f"expected time to {advice.target.words} on {advice.fleet.title}"
    powered = advice.fleet.powered
    axes = _axes(advice)
    numbers = ["tau", *axes, "time", "iterations", "rounds", "a round", *["energy"] * powered]
    made = table(["method"], numbers, ["remark"], title, whole=True)
    points = advice.points
    if axes:  # a grid of several dimensions is read from its best
        points = sorted(points, key=_order)
    for point in points:
        row, best = point.row, point is advice.best
        least = "its least" if point is advice.best_of(point.method) else ""
        cut = "" if point.later_than is None else f"later than {duration(point.later_than)}"
        remark = "least of all" if best else cut or row.missed("reach", advice.target) or least
        style = "bold" if best else "red" if row.seconds is None and not cut else None
        cells = [*time_cells(row), *[energy(row.joules)] * powered]
        chosen = [_cell(axis, getattr(point, axis)) for axis in axes]
        made.add_row(point.method, str(point.tau), *chosen, *cells, remark, style=style)
    return made


AXES = ("participants", "uplink", "deadline")


def _axes(advice: Advice) -> list[str]:
    """What was chosen beside method and tau."""
    return [axis for axis in AXES if any(getattr(p, axis) is not None for p in advice.points)]


def _cell(axis: str, value: Any) -> str:
    if axis != "deadline":
        return str(value)
    return f"{value:g} s" if value else "none"


def _order(point: Point) -> tuple[bool, float]:
    return point.row.seconds is None, point.row.seconds or point.later_than or float("inf")


def _write(advice: Advice, document: dict[str, Any], folder: Path) -> list[Path]:
    from fednag.show.charts import choices_chart, plan_chart, save
    from fednag.show.terminal import count

    stem = folder / f"plan-{advice.fleet.name}"
    drawn = [
        {
            "method": p.method,
            "tau": p.tau,
            "seconds": p.row.seconds,
            "low": max(p.row.seconds - (p.row.deviation or 0.0), p.row.seconds / 10),
            "high": p.row.seconds + (p.row.deviation or 0.0),
            "best": p is advice.best,
        }
        for p in advice.points
        if p.row.seconds is not None
    ]
    written: list[Path] = []
    if drawn:
        counts = count(len({run.seed for run in advice.runs}), "seed")
        title = f"{advice.fleet.title}; {counts}, {count(advice.replays, 'replay')}"
        title += "; ring: least of all"
        never = dict.fromkeys(p.method for p in advice.points if advice.best_of(p.method) is None)
        if never:
            title += f"; never there: {', '.join(never)}"
        if _axes(advice):
            rows = [
                {
                    "choice": point.choice.words,
                    "method": point.method,
                    "seconds": point.row.seconds or point.later_than,
                    "deviation": point.row.deviation or 0.0,
                    "reached": point.row.seconds is not None,
                }
                for point in sorted(advice.points, key=_order)
                if point.row.seconds or point.later_than
            ]
            written = save(choices_chart(rows, title.split("; ring")[0], advice.target.words), stem)
        else:
            written = save(plan_chart(drawn, title, advice.target.words), stem)
    return [*written, write_report(stem.with_name(f"{stem.name}.json"), document)]


def _merged(runs: list[Any]) -> list[Any]:
    """One run a method: remarks are about methods, not about every tau."""
    from dataclasses import replace

    found: dict[str, Any] = {}
    for run in runs:
        name = run.experiment.label
        found.setdefault(name, replace(run, label=name))
    return list(found.values())
