"""``fednag time``: how long runs take on given devices and links."""

from __future__ import annotations

from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli import completing
from fednag.cli.common import NamedByDefault, answer, console, output, table, unless, write_report
from fednag.cli.options import Fleet as FleetOption
from fednag.cli.options import Json, Loss, Replays, Runs, written_to
from fednag.cli.options import Target as TargetOption
from fednag.cli.planning import time_plan
from fednag.cli.recording import time_listen, time_record
from fednag.cli.traces import time_convert, time_get
from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.table import Table

    from fednag.clock.runs import Part, Row, TierRow, Timed, TimedRun
    from fednag.clock.timeline import Timeline
    from fednag.devices.fleet import Fleet
    from fednag.devices.workload import Workload
    from fednag.runs.targets import Target

SHORT = 1e-3  # seconds of an iteration in which its overhead may well be the larger part
MOST_ROUNDS = 100  # of a timeline
MOST_LINES = 3  # methods whose devices are drawn over time
MOST_SHOWN = 6  # methods whose devices are tabulated and drawn


class ReplayByDefault(NamedByDefault):
    """``fednag time RUN…`` is ``fednag time replay RUN…``."""

    usual = "replay"


time_app = typer.Typer(
    cls=ReplayByDefault,
    no_args_is_help=True,
    help="How long runs take on given devices: `fednag time RUN… --fleet F` replays them.",
)


@time_app.command("replay")
def time_replay(
    runs: Runs,
    fleet: FleetOption,
    target: TargetOption = None,
    loss: Loss = None,
    replays: Replays = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the first replay's delays.")] = 0,
    sampling: Annotated[
        str,
        typer.Option(
            help="bootstrap, recorded or lognormal, instead of the fleet file's.",
            autocompletion=completing.samplings,
        ),
    ] = "",
    flops: Annotated[
        float | None, typer.Option(help="Operations of a gradient a sample, for models unknown.")
    ] = None,
    rounds: Annotated[
        str, typer.Option(help="Rounds of the timeline, e.g. 1-5; else the first five.")
    ] = "",
    out: Annotated[Path | None, written_to("Folder for charts; else beside the first run.")] = None,
    json: Json = False,
) -> None:
    """Replay runs on a fleet: time to a target, reductions, where the time goes, who does what.

    Without --target and --loss, the target is one that all runs reached. The timeline shows what
    devices do in some rounds of the fastest methods' first runs.

    Example: fednag time runs/digits --fleet paper-edge --target 0.9
    """
    from fednag.clock.runs import (
        common_target,
        read_run,
        replay_runs,
        tier_by_tier,
        times_to_target,
        where_time_goes,
    )
    from fednag.devices.fleet import load_fleet
    from fednag.runs.folder import find_runs
    from fednag.runs.labels import distinguished
    from fednag.runs.targets import given_target, settled
    from fednag.runs.view import read_all

    where = load_fleet(fleet, checked_sampling(sampling))
    window = _window(rounds)
    asked = given_target(target, loss)
    if flops is not None and not 0 < flops < float("inf"):
        raise FednagError("--flops", remedy="give a number above 0", given=f"{flops:g}")
    read, failed = read_all(find_runs(runs), lambda folder: read_run(folder, flops))
    found, said = distinguished(read)
    if not found:
        unless(failed)
    asked = settled(asked, found)
    asked = asked or common_target(found)
    folder = output(out) if out else (found[0].folder or Path()).parent
    done, total = count(1), len(found) * (replays if where.varies else 1)
    with console(stderr=True).status("replaying") as status:
        timed = replay_runs(
            found,
            where,
            replays,
            seed,
            lambda: status.update(f"replay {next(done)} of {total}"),
        )
    rows = times_to_target(timed, target=asked)
    order = [row.label for row in rows]
    shown = [one for one in timed if one.run.label in order[:MOST_SHOWN]]
    shown.sort(key=lambda one: order.index(one.run.label))
    parts = where_time_goes(shown, where)
    said += remarks(found, where)
    if len(order) > MOST_SHOWN:
        said.append(f"where the time goes is shown for the {MOST_SHOWN} fastest")
    report = _report(timed, rows, parts, where, asked)
    lines = _timelines(timed, where, order[:MOST_LINES], window, seed)
    report["timelines"] = [line.as_data() for line in lines]
    written = _write(folder, report, timed, parts, where, asked)
    shown_tables = [times_table(rows, asked, where, report["replays"])]
    shown_tables += [reductions_table(rows)] * (
        sum(row.seconds is not None for row in rows) > 1
    ) + [parts_table(parts)]
    if tiers := tier_by_tier(timed):
        report["tiers"] = [asdict(row) for row in tiers]
        shown_tables.append(tiers_table(tiers))
    answer(json, report, *shown_tables, notes=said, files=written, failed=failed)


def _window(text: str) -> tuple[int, int | None]:
    """The rounds asked for: first and last, or None for as many as are usual."""
    first, dash, last = text.partition("-")
    sound = first.isdecimal() and (last.isdecimal() or not dash)
    if not text:
        return 1, None
    if not sound or not 1 <= int(first) <= int(last or first) < int(first) + MOST_ROUNDS:
        raise FednagError(
            "--rounds", remedy=f"write e.g. 1-5, at most {MOST_ROUNDS} of them", given=text
        )
    return int(first), int(last or first)


def _timelines(
    timed: list[Timed],
    fleet: Fleet,
    labels: list[str],
    window: tuple[int, int | None],
    seed: int,
) -> list[Timeline]:
    """What devices do in the first run of each of these methods that has gone so far."""
    from fednag.clock.timeline import timeline

    found = []
    for label in labels:
        group = [one for one in timed if one.run.label == label]
        one = min(group, key=lambda one: one.run.seed)
        if one.run.workload.tiers:  # rounds of edges are not drawn yet
            continue
        if one.run.rounds >= window[0]:
            found.append(timeline(one, fleet, *window, seed=seed))
    flat = [one for one in timed if not one.run.workload.tiers]
    if flat and not found:
        most = max(one.run.rounds for one in timed if one.run.label in labels)
        raise FednagError("--rounds", f"these runs have {most}", "choose earlier ones")
    return found


def checked_sampling(text: str) -> str | None:
    from fednag.config.messages import nearest
    from fednag.devices.times import SAMPLINGS

    if text and text not in SAMPLINGS:
        raise FednagError(
            "--sampling",
            f"no such way{nearest(text, SAMPLINGS)}",
            f"use {', '.join(SAMPLINGS)}",
            given=text,
        )
    return text or None


def remarks(runs: list[TimedRun], fleet: Fleet) -> list[str]:
    """What a reader of the times must know."""
    from fednag.devices.executor import notes_on
    from fednag.devices.times import duration

    notes = notes_on(fleet, max(run.workload.workers for run in runs))
    loads = {run.label: run.workload for run in runs}
    counted = sorted({f"{w.gradients * w.width(0) * w.flops:.3g}" for w in loads.values()})
    references = dict.fromkeys(device.compute.reference for device in fleet.devices)
    notes.append(
        f"compute is scaled by operations: {' or '.join(counted)} FLOP a local iteration, devices "
        f"given by {'; '.join(references)}"
    )
    shortest = min((s for w in loads.values() for s in _stated(w, fleet)), default=1.0)
    if shortest < SHORT:
        notes.append(
            f"computing here is by operations alone, {duration(shortest, digits=2)} an iteration: "
            "the overhead of an iteration is not counted; `fednag time record` measures it"
        )
    for label, load in loads.items():
        if load.pooled:
            notes.append(
                f"{label} is centralised: all data are on {fleet.device(0).name}, and nothing "
                "travels"
            )
        if load.full:
            notes.append(f"{label} computes full gradients too, {load.full} a round")
    if any(run.workload.per_round not in (None, run.workload.workers) for run in runs):
        notes.append("in each round the workers are those the run drew; the others wait")
    if any(run.experiment.clock.fleet for run in runs):
        notes.append("a run trained under this clock is replayed once, with the delays it had")
    if not fleet.varies:
        notes.append("this fleet's delays do not vary by chance: one replay tells all")
    if fleet.comes_and_goes and not all(run.experiment.clock.fleet for run in runs):
        notes.append("transfers wait while a device is out of reach, and rounds for them")
    stopped = [run.label for run in runs if run.ending is None]
    if stopped:
        notes.append(f"{', '.join(dict.fromkeys(stopped))}: not over yet; timed as far as it came")
    return [*notes, *(f"{run.label}: {note}" for run in runs for note in run.assumed)]


def _stated(load: Workload, fleet: Fleet) -> list[float]:
    """Seconds of an iteration on each device of which operations a second are all that is known."""
    speeds = [(worker, fleet.device(worker).compute) for worker in range(load.workers)]
    return [
        speed.times.mean * load.iteration_flops(worker) / speed.flops
        for worker, speed in speeds
        if speed.stated
    ]


def _report(
    timed: list[Timed], rows: list[Row], parts: list[Part], fleet: Fleet, target: Target
) -> dict[str, Any]:
    saved = {
        row.label: {other.label: row.less_than(other) for other in rows if other is not row}
        for row in rows
    }
    return {
        "fleet": fleet.as_data(),
        "target": asdict(target),
        "replays": max(len(one.replays) for one in timed),
        "methods": [asdict(row) for row in rows],
        "saved": saved,
        "parts": [asdict(part) for part in parts],
    }


def _write(
    folder: Path,
    report: dict[str, Any],
    timed: list[Timed],
    parts: list[Part],
    fleet: Fleet,
    target: Target,
) -> list[Path]:
    from fednag.clock.runs import KEYS, curve_rows
    from fednag.show.charts import save, time_chart, timeline_chart
    from fednag.show.terminal import count

    shares = [
        {"method": p.label, "device": p.device, "part": key, "seconds": getattr(p, key), "order": i}
        for p in parts
        for i, key in enumerate(KEYS)
    ]
    seeds, times = len({one.run.seed for one in timed}), report["replays"]
    title = f"{fleet.title}; {count(seeds, 'seed')}, {count(times, 'replay')}"
    if seeds * times > 1:
        title += "; band: ± one standard deviation"
    curves = curve_rows(timed, target.measure)
    chart = time_chart(curves, shares, title, target.measure, target.value)
    written = save(chart, folder / f"time-{fleet.name}")
    if report["timelines"]:
        lines = timeline_chart(
            report["timelines"], f"{fleet.title}; paler: in vain; line: a round's end"
        )
        written += save(lines, folder / f"timeline-{fleet.name}")
    return [*written, write_report(folder / f"time-{fleet.name}.json", report)]


def times_table(rows: list[Row], target: Target, fleet: Fleet, replays: int) -> Table:
    from fednag.devices.times import energy

    times = "once" if replays == 1 else f"{replays} times"
    # Bytes are a worker's in one round, beside totals: the heading has to say so.
    each = "\na worker\nand round"
    powered = fleet.powered
    numbers = ["time", "iterations", "rounds", "a round", f"kB down{each}", f"kB up{each}"]
    numbers += ["energy"] * powered
    last = ["target"] if any(row.seconds is None for row in rows) else []
    title = f"time to {target.words} on {fleet.title}, replayed {times}"
    made = table(["method"], numbers, last, title, whole=True)
    for row in rows:
        label = row.label if row.runs == 1 else f"{row.label} ({row.runs} runs)"
        sent = [f"{row.down / 1e3:,.1f}", f"{row.up / 1e3:,.1f}", *[energy(row.joules)] * powered]
        said = [row.missed("reached", target) or "reached"] * len(last)
        style = None if row.seconds is not None else "red"
        made.add_row(label, *time_cells(row), *sent, *said, style=style)
    return made


def tiers_table(rows: list[TierRow]) -> Table:
    """What travels in each tier of methods with edges, and how long its members are busy."""
    from fednag.devices.times import duration

    title = "tier by tier, in a round of the server"
    made = table(
        ["method", "tier"], ["members", "rounds", "kB down", "kB up", "each busy"], title=title
    )
    for row in rows:
        sent = f"{row.down / 1e3:,.1f}", f"{row.up / 1e3:,.1f}"
        counts = str(row.members), str(row.rounds)
        name = row.tier if row.tier == "workers" else f"edges {row.tier}"
        made.add_row(row.label, name, *counts, *sent, duration(row.seconds))
    return made


def time_cells(row: Row) -> list[str]:
    """A method's time to the target, iterations, rounds, and the time of one."""
    from fednag.devices.times import duration

    return [
        duration(row.seconds, row.deviation),
        "-" if row.iterations is None else f"{row.iterations:,.0f}",
        "-" if row.rounds is None else f"{row.rounds:,.1f}",
        duration(row.per_round),
    ]


def reductions_table(rows: list[Row], most: int = 8) -> Table:
    """Who saves how much of whose time; of many methods, only the fastest one does."""

    def part(one: Row, rival: Row) -> str:
        saved = None if rival is one else one.less_than(rival)
        return "-" if saved is None else f"{saved:.1%}"

    if len(rows) > most:
        made = table(["rival", f"time saved by {rows[0].label}"])
        for rival in rows[1:]:
            made.add_row(rival.label, part(rows[0], rival))
        return made
    title = "time saved against each rival (negative: it takes longer)"
    made = table(["method"], [f"vs {rival.label}" for rival in rows], title=title)
    for row in rows:
        made.add_row(row.label, *(part(row, rival) for rival in rows))
    return made


def parts_table(parts: list[Part]) -> Table:
    from fednag.clock.runs import KEYS
    from fednag.devices.times import duration, energy

    title = "where the time of an average round goes"
    powered = any(part.joules is not None for part in parts)
    made = table(["method", "device"], [*KEYS, *["energy"] * powered], title=title)
    before = ""
    for part in parts:
        numbers = [getattr(part, key) for key in KEYS]
        total = sum(numbers) or 1.0
        shown = [f"{duration(number)} ({number / total:.0%})" for number in numbers]
        shown += [energy(part.joules)] * powered
        made.add_row("" if part.label == before else part.label, part.device, *shown)
        before = part.label
    return made


@time_app.command("fleets")
def time_fleets(
    name: Annotated[
        str,
        typer.Argument(
            help="One to show; all are listed without.", autocompletion=completing.fleets
        ),
    ] = "",
    copy: Annotated[
        Path | None, typer.Option(help="Write the shipped fleet there, to be edited.")
    ] = None,
    json: Json = False,
) -> None:
    """List the fleets that come with fednag, show one, or copy one to edit it.

    Example: fednag time fleets paper-edge --copy my-fleet.toml
    """
    from tomllib import loads

    from fednag.devices.files import copy_fleet, read_fleet, shipped
    from fednag.devices.fleet import load_fleet

    if copy is not None:
        answer(json, {}, files=[copy_fleet(name, copy)])
        return
    if name:
        load_fleet(name)
        text = read_fleet(name).text
        answer(json, loads(text), text.rstrip())
        return
    rows: list[dict[str, Any]] = []
    made = table(["name", "devices", "comes and goes", "what it is"])
    for fleet in map(load_fleet, shipped()):
        about = f"{'synthetic: ' if fleet.synthetic else ''}{fleet.about}"
        count, comes = len(fleet.devices), fleet.comes_and_goes
        made.add_row(fleet.name, str(count), "yes" if comes else "no", about)
        row = {"name": fleet.name, "devices": count, "comes_and_goes": comes}
        rows.append({**row, "synthetic": fleet.synthetic, "about": fleet.about})
    answer(json, rows, made)


time_app.command("record")(time_record)
time_app.command("listen")(time_listen)
time_app.command("get")(time_get)
time_app.command("convert")(time_convert)
time_app.command("plan")(time_plan)
