"""``fednag time``: how long runs take on given devices and links."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fednag.cli.common import console, output, unless
from fednag.cli.fleets import time_fleets
from fednag.cli.planning import time_plan
from fednag.cli.recording import time_listen, time_record
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.clock.fleet import Fleet
    from fednag.clock.runs import TimedRun
    from fednag.clock.summary import Part, Row, Timed

MOST_SHOWN = 6  # methods whose devices are tabulated and drawn


class ReplayByDefault(TyperGroup):
    """``fednag time RUN…`` is ``fednag time replay RUN…``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = ["replay", *args]
        return super().parse_args(ctx, args)


time_app = typer.Typer(
    cls=ReplayByDefault,
    no_args_is_help=True,
    help="How long runs take on given devices: `fednag time RUN… --fleet F` replays them.",
)

FleetOption = Annotated[
    str, typer.Option("--fleet", help="A shipped fleet's name, a fleet file, or its folder.")
]


@time_app.command("replay")
def time_replay(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders of runs.")],
    fleet: FleetOption,
    target: Annotated[
        float | None,
        typer.Option(help="Accuracy to reach; when left out, the highest % that all runs reach."),
    ] = None,
    loss: Annotated[float | None, typer.Option(help="Loss to reach, instead of accuracy.")] = None,
    replays: Annotated[int, typer.Option(min=1, max=10_000, help="Replays of each run.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the first replay's delays.")] = 0,
    sampling: Annotated[
        str, typer.Option(help="bootstrap, recorded or lognormal, instead of the fleet file's.")
    ] = "",
    flops: Annotated[
        float | None, typer.Option(help="Operations of a gradient a sample, for models unknown.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for charts; else beside the first run.")
    ] = None,
) -> None:
    """Replay runs on a fleet: time to a target, reductions, where the time goes.

    Example: fednag time runs/digits --fleet paper-edge --target 0.9
    """
    from fednag.clock.attendance import notes_on
    from fednag.clock.fleet import load_fleet
    from fednag.clock.runs import common_target, told_apart
    from fednag.clock.summary import replay_runs, times_to_target, where_time_goes
    from fednag.records import find_runs
    from fednag.terminal import notes, paths

    where = load_fleet(fleet, checked_sampling(sampling))
    if target is not None and loss is not None:
        raise FednagError("--loss: goes without --target; leave one out")
    for name, given in (("--target", target), ("--loss", loss), ("--flops", flops)):
        if given is not None and not 0 < given < float("inf"):
            raise FednagError(f"{name} {given:g}: give a number above 0")
    failed: list[str] = []
    found = told_apart(_read(find_runs(runs), flops, failed))
    if not found:
        unless(failed)
    if loss is None and target is None:
        target = common_target(found)
    folder = output(out) if out else found[0].folder.path.parent
    terminal = console()
    done, total = count(1), len(found) * (replays if where.varies else 1)
    with terminal.status("replaying") as status:
        timed = replay_runs(
            found,
            where,
            replays,
            seed,
            lambda: status.update(f"replay {next(done)} of {total}"),
        )
    rows = times_to_target(timed, target, loss)
    order = [row.label for row in rows]
    shown = [one for one in timed if one.run.label in order[:MOST_SHOWN]]
    shown.sort(key=lambda one: order.index(one.run.label))
    parts = where_time_goes(shown, where)
    words = f"accuracy {target:g}" if target is not None else f"loss {loss:g}"
    most = max(len(one.replays) for one in timed)
    terminal.print(_table(rows, words, where, most))
    if len(rows) > 1:
        terminal.print(_reductions(rows))
    terminal.print(_parts_table(parts))
    workers = max(run.workload.workers for run in found)
    said = [*notes_on(where, workers), *remarks(found, where)]
    if len(order) > MOST_SHOWN:
        said.append(f"where the time goes is shown for the {MOST_SHOWN} fastest")
    notes(terminal, said)
    paths(terminal, _write(folder, timed, rows, parts, where, target, loss, words))
    unless(failed)


def checked_sampling(text: str) -> str | None:
    from fednag.clock.times import SAMPLINGS
    from fednag.config.sentences import nearest

    if text and text not in SAMPLINGS:
        raise FednagError(
            f"--sampling {text}: no such way{nearest(text, SAMPLINGS)}; use {', '.join(SAMPLINGS)}"
        )
    return text or None


def _read(folders: list[Any], flops: float | None, failed: list[str]) -> list[TimedRun]:
    from fednag.clock.runs import read_run

    found = []
    for folder in folders:
        try:
            found.append(read_run(folder, flops))
        except FednagError as error:
            failed.append(str(error))
    return found


def remarks(runs: list[TimedRun], fleet: Fleet) -> list[str]:
    """What a reader of the times must know."""
    notes = []
    loads = {run.label: run.workload for run in runs}
    counted = sorted({f"{w.gradients * w.width(0) * w.flops:.3g}" for w in loads.values()})
    references = dict.fromkeys(device.compute.reference for device in fleet.devices)
    notes.append(
        f"compute is scaled by operations: {' or '.join(counted)} FLOP a local iteration, devices "
        f"given by {'; '.join(references)}"
    )
    for label, load in loads.items():
        if load.pooled:
            notes.append(
                f"{label} is centralised: all data are on {fleet.device(0).name}, and nothing "
                "travels"
            )
        if load.full or load.probes:
            notes.append(f"{label} computes full gradients too, {load.full + load.probes} a round")
    if any(run.workload.per_round not in (None, run.workload.workers) for run in runs):
        notes.append("in each round the workers are those the run drew; the others wait")
    if any(run.experiment.clock.fleet for run in runs):
        notes.append("a run trained under this clock is replayed once, with the delays it had")
    if not fleet.varies:
        notes.append("this fleet's delays do not vary by chance: one replay tells all")
    if fleet.comes_and_goes and not all(run.experiment.clock.fleet for run in runs):
        notes.append("transfers wait while a device is out of reach, and rounds for them")
    stopped = [run.label for run in runs if run.ended in ("running", "interrupted")]
    if stopped:
        notes.append(f"{', '.join(dict.fromkeys(stopped))}: not over yet; timed as far as it came")
    return [*notes, *(f"{run.label}: {note}" for run in runs for note in run.notes)]


def _table(rows: list[Row], words: str, fleet: Fleet, replays: int) -> Any:
    from rich.table import Table

    times = "once" if replays == 1 else f"{replays} times"
    table = Table(title=f"time to {words} on {fleet.title}, replayed {times}", title_justify="left")
    table.add_column("method", no_wrap=True)
    headings = ("seconds", "iterations", "rounds", "seconds a round", "kB down", "kB up")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        said = ""
        if row.seconds is None:
            part = f"{row.reached} of {row.runs} runs reached it" if row.reached else "never"
            best = "" if row.best is None else f"; best {row.best:.4g}"
            said = f"{part}{best}"
        table.add_row(
            row.label if row.runs == 1 else f"{row.label} ({row.runs} runs)",
            seconds_text(row.seconds, row.deviation),
            "-" if row.iterations is None else f"{row.iterations:,.0f}",
            "-" if row.rounds is None else f"{row.rounds:,.1f}",
            f"{row.per_round:,.4g}",
            f"{row.down / 1e3:,.1f}",
            f"{row.up / 1e3:,.1f}",
            said,
            style=None if row.seconds is not None else "red",
        )
    return table


def seconds_text(seconds: float | None, deviation: float | None) -> str:
    if seconds is None:
        return "-"
    digits = 2 if seconds >= 1 else 4
    spread = "" if deviation is None else f" ± {deviation:,.{digits}f}"
    return f"{seconds:,.{digits}f}{spread}"


def _reductions(rows: list[Row], most: int = 8) -> Any:
    """Who saves how much of whose time; of many methods, only the fastest one does."""
    from rich.table import Table

    if len(rows) > most:
        table = Table("rival", f"time saved by {rows[0].label}")
        for rival in rows[1:]:
            part = rows[0].less_than(rival)
            table.add_row(rival.label, "-" if part is None else f"{part:.1%}")
        return table
    table = Table(title="time saved against each rival", title_justify="left")
    table.add_column("method", no_wrap=True)
    for rival in rows:
        table.add_column(f"vs {rival.label}", justify="right")
    for row in rows:
        saved = [row.less_than(rival) for rival in rows]
        if any(part is not None and part > 0 for part in saved):  # the slowest saves nothing
            table.add_row(
                row.label, *("" if not part or part < 0 else f"{part:.1%}" for part in saved)
            )
    return table


def _parts_table(parts: list[Part]) -> Any:
    from rich.table import Table

    from fednag.clock.summary import KEYS

    table = Table(title="where the time goes: seconds of an average round", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("device", no_wrap=True)
    for key in KEYS:
        table.add_column(key, justify="right")
    before = ""
    for part in parts:
        numbers = [getattr(part, key) for key in KEYS]
        total = sum(numbers) or 1.0
        shown = [f"{number:.4g} ({number / total:.0%})" for number in numbers]
        table.add_row("" if part.label == before else part.label, part.device, *shown)
        before = part.label
    return table


def _write(
    folder: Path,
    timed: list[Timed],
    rows: list[Row],
    parts: list[Part],
    fleet: Fleet,
    target: float | None,
    loss: float | None,
    words: str,
) -> list[Path]:
    from fednag.clock.summary import KEYS, curve_rows
    from fednag.records import write_atomically
    from fednag.report.charts import save
    from fednag.report.clock import time_chart

    measure = "loss" if loss is not None else "accuracy"
    shares = [
        {"method": p.label, "device": p.device, "part": key, "seconds": getattr(p, key), "order": i}
        for p in parts
        for i, key in enumerate(KEYS)
    ]
    seeds, times = len({one.run.seed for one in timed}), max(len(one.replays) for one in timed)
    title = f"{fleet.title}; {seeds} seed{'s' * (seeds > 1)}, {times} replay{'s' * (times > 1)}"
    if seeds * times > 1:
        title += "; band: ± one standard deviation"
    chart = time_chart(
        curve_rows(timed, measure), shares, title, measure, loss if target is None else target
    )
    written = save(chart, folder / f"time-{fleet.name}")
    report = {
        "fleet": {"name": fleet.name, "synthetic": fleet.synthetic, "digest": fleet.digest},
        "target": words,
        "replays": times,
        "methods": [asdict(row) for row in rows],
        "parts": [asdict(part) for part in parts],
    }
    path = folder / f"time-{fleet.name}.json"
    try:
        write_atomically(path, json.dumps(report, indent=1) + "\n")
    except OSError as error:
        raise FednagError(f"{path}: cannot be written ({error.strerror}); use --out") from error
    return [*written, path]


time_app.command("fleets")(time_fleets)
time_app.command("record")(time_record)
time_app.command("listen")(time_listen)
time_app.command("plan")(time_plan)
