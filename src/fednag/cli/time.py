"""``fednag time``: how long runs take on given devices and links."""

from __future__ import annotations

from dataclasses import asdict
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from fednag.cli import completing
from fednag.cli.common import console, json_text, output, print_json, unless
from fednag.cli.fleets import time_fleets
from fednag.cli.options import Fleet as FleetOption
from fednag.cli.options import Json, Loss, Replays, Runs, written_to
from fednag.cli.options import Target as TargetOption
from fednag.cli.planning import time_plan
from fednag.cli.recording import time_listen, time_record
from fednag.cli.timetables import parts_table, reductions_table, times_table
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.clock.runs import Part, Row, Timed, TimedRun
    from fednag.devices.fleet import Fleet
    from fednag.devices.workload import Workload
    from fednag.runs.targets import Target

SHORT = 1e-3  # seconds of an iteration in which its overhead may well be the larger part
MOST_SHOWN = 6  # methods whose devices are tabulated and drawn


class ReplayByDefault(TyperGroup):
    """``fednag time RUN…`` is ``fednag time replay RUN…``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = args if self._mistyped(args[0]) else ["replay", *args]
        return super().parse_args(ctx, args)

    def _mistyped(self, word: str) -> bool:
        """Not a path that is there, and nearly a command's name."""
        return bool(get_close_matches(word, self.commands)) and not Path(word).exists()


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
    out: Annotated[Path | None, written_to("Folder for charts; else beside the first run.")] = None,
    json: Json = False,
) -> None:
    """Replay runs on a fleet: time to a target, reductions, where the time goes.

    Without --target and --loss, the target is one that all runs reached.

    Example: fednag time runs/digits --fleet paper-edge --target 0.9
    """
    from fednag.clock.runs import common_target, replay_runs, times_to_target, where_time_goes
    from fednag.devices.executor import notes_on
    from fednag.devices.fleet import load_fleet
    from fednag.runs.folder import find_runs
    from fednag.runs.labels import distinguished
    from fednag.runs.targets import given_target, settled
    from fednag.show.terminal import notes, paths

    where = load_fleet(fleet, checked_sampling(sampling))
    asked = given_target(target, loss)
    if flops is not None and not 0 < flops < float("inf"):
        raise FednagError("--flops", remedy="give a number above 0", given=f"{flops:g}")
    failed: list[str] = []
    found, said = distinguished(_read(find_runs(runs), flops, failed))
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
    said += [*notes_on(where, max(run.workload.workers for run in found)), *remarks(found, where)]
    if len(order) > MOST_SHOWN:
        said.append(f"where the time goes is shown for the {MOST_SHOWN} fastest")
    report = _report(timed, rows, parts, where, asked)
    written = _write(folder, report, timed, parts, where, asked)
    if json:
        files = [str(path) for path in written]
        print_json({**report, "notes": said, "files": files, "failed": failed})
    else:
        terminal = console()
        terminal.print(times_table(rows, asked.words, where, report["replays"]))
        if len(rows) > 1:
            terminal.print(reductions_table(rows))
        terminal.print(parts_table(parts))
        notes(terminal, said)
        paths(terminal, written)
    unless(failed)


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
    from fednag.devices.times import duration

    notes = []
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
        "fleet": {"name": fleet.name, "synthetic": fleet.synthetic, "digest": fleet.digest},
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
    from fednag.core.files import write_atomically
    from fednag.show.charts import save, time_chart

    shares = [
        {"method": p.label, "device": p.device, "part": key, "seconds": getattr(p, key), "order": i}
        for p in parts
        for i, key in enumerate(KEYS)
    ]
    seeds, times = len({one.run.seed for one in timed}), report["replays"]
    title = f"{fleet.title}; {seeds} seed{'s' * (seeds > 1)}, {times} replay{'s' * (times > 1)}"
    if seeds * times > 1:
        title += "; band: ± one standard deviation"
    curves = curve_rows(timed, target.measure)
    chart = time_chart(curves, shares, title, target.measure, target.value)
    written = save(chart, folder / f"time-{fleet.name}")
    path = folder / f"time-{fleet.name}.json"
    try:
        write_atomically(path, json_text(report) + "\n")
    except OSError as error:
        raise FednagError(path, f"cannot be written ({error.strerror})", "use --out") from error
    return [*written, path]


time_app.command("fleets")(time_fleets)
time_app.command("record")(time_record)
time_app.command("listen")(time_listen)
time_app.command("plan")(time_plan)
