"""What runs asked of their devices, replayed: time to a target, reductions, where time goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fednag.algorithms import ALGORITHMS
from fednag.config import CUSTOM, Experiment, build_algorithm, parse, participants, read
from fednag.config.sections import is_own
from fednag.controllers import CONTROLLERS
from fednag.devices.fleet import Device, Edge, Fleet
from fednag.devices.replay import Clock, Meter, Replay, Table, replay
from fednag.devices.workload import Stage, Workload, from_facts, stages_of
from fednag.errors import FednagError
from fednag.problems.flops import named_flops
from fednag.runs.folder import RunFolder
from fednag.runs.labels import grouped
from fednag.runs.statistics import Spread, arrivals, average
from fednag.runs.targets import Target, given_target
from fednag.runs.targets import common_target as shared
from fednag.runs.view import RunView

GRID = 120  # points of a curve over time
KEYS = ("compute", "down", "up", "waiting")


@dataclass(frozen=True, eq=False, kw_only=True)
class TimedRun(RunView):
    """A run, and what it asked of its devices."""

    workload: Workload
    experiment: Experiment
    assumed: tuple[str, ...] = ()  # what its folder does not say


def read_run(folder: RunFolder, flops: float | None = None) -> TimedRun:
    """A run's records and workload; ``flops`` a sample, where they cannot be told.

    >>> import tempfile
    >>> import fednag
    >>> from fednag.clock import read_run
    >>> from fednag.runs.folder import RunFolder
    >>> with tempfile.TemporaryDirectory() as out:
    ...     short = {"model": "logistic", "tau": 5, "iterations": 10}
    ...     done = fednag.compare(["fednag", "fedavg"], **short, out=out)
    ...     runs = [read_run(RunFolder(run.folder)) for run in done.runs]
    >>> runs[0].label, runs[0].rounds, runs[0].workload.tau
    ('fednag', 2, 5)
    """
    return timed_run(RunView.read(folder), flops)


def timed_run(view: RunView, flops: float | None = None) -> TimedRun:
    """The same for a run that has been read, or was made here.

    >>> import fednag
    >>> from fednag.clock import timed_run
    >>> run = timed_run(fednag.run("fednag", model="logistic", tau=5, iterations=10).view)
    >>> run.rounds, run.workload.workers
    (2, 4)
    """
    folder = RunFolder(view.folder or Path(view.label))
    if len(view.records) < 2:
        raise FednagError(folder.path, "it has no round yet", "wait for the first")
    raw = dict(view.config or read(folder.config_file))
    table = raw.get("algorithm")
    name = table.get("name") if isinstance(table, dict) else None
    known = isinstance(name, str) and name in ALGORITHMS
    # A method made in Python cannot be built, and one in a file is not imported only to be read of:
    # the records say what it sent.
    named = known or is_own(name)
    tables = raw if named else {**raw, "algorithm": {"name": CUSTOM}}
    experiment = parse(tables, str(folder.path), code=False)
    if experiment.tier and not isinstance(view.info.get("work"), dict):
        raise FednagError(
            "tier",
            "its run.json does not say what its edges were sent",
            "leave that run out, or run it again",
            source=folder.path,
        )
    assumed: list[str] = []
    try:
        facts = view.info.get("work")
        if not isinstance(facts, dict):
            facts = _derived(view, experiment, known, flops, assumed)
        if flops is not None:
            facts = {**facts, "flops": flops}
        training = experiment.training
        workload = from_facts(
            facts,
            tau=training.tau,
            iterations=training.iterations,
            batch=training.batch,
            seed=experiment.seed,
            per_round=participants(experiment, len(facts["sizes"])),
            rounds=(each for record in view.records for each in record.rounds),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FednagError(
            folder.info_file, f"cannot be used for timing ({error})", "restore it, or run again"
        ) from error
    told = {"workload": workload, "experiment": experiment, "assumed": tuple(assumed)}
    return TimedRun(**{**vars(view), **told})


def _derived(
    view: RunView, experiment: Experiment, known: bool, flops: float | None, assumed: list[str]
) -> dict[str, Any]:
    """What ``run.json`` does not say of an older run, from its configuration and records."""
    info, last = view.info, view.records[-1]
    model = experiment.model
    counted = flops or named_flops(model.name, experiment.data.name, model.hidden)
    if counted is None:
        raise FednagError(
            "",
            "its model or data came from Python, so its operations are not known",
            "give --flops, those of a gradient a sample",
            source=view.folder,
        )
    workers, samples = int(info["workers"]), int(info["samples"])
    if experiment.split.kind != "iid":
        assumed.append("run.json has no sizes of workers: they are taken to be equal")
    facts: dict[str, Any] = {
        "flops": counted,
        "sizes": [samples // workers + (i < samples % workers) for i in range(workers)],
    }
    if known:
        algorithm = build_algorithm(experiment.algorithm)
        w = torch.empty(int(info["parameters"]), dtype=getattr(torch, experiment.engine.dtype))
        stages = [asdict(stage) for stage in stages_of(algorithm, algorithm.init(w))]
        return facts | {"stages": stages, "pooled": algorithm.pooled}
    times = max(1, last.round * participants(experiment, workers))
    assumed.append("its method came from Python: sizes are its records', one gradient an iteration")
    sent = Stage(last.bytes_down // times, last.bytes_up // times)
    return facts | {"stages": [asdict(sent)], "pooled": False}


def common_target(runs: Sequence[RunView]) -> Target:
    """A target to compare runs by; raises a sentence if there is none.

    >>> import fednag
    >>> from fednag.clock import common_target, timed_run
    >>> done = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=10)
    >>> runs = [timed_run(view) for view in done.views]
    >>> target = common_target(runs)
    >>> target.measure, 0 < target.value < 1
    ('accuracy', True)
    """
    found = shared(runs)
    if found is None:
        raise FednagError(
            "--target", "there is none that every run has reached", "give it, or --loss"
        )
    return found


@dataclass(frozen=True, eq=False)
class Timed:
    """A run and its replays."""

    run: TimedRun
    replays: list[Replay]

    def times_to(self, target: Target) -> list[float]:
        """Seconds to the target, one a replay; none if the run never reached it."""
        record = target.first(self.run.records)
        return [] if record is None else [float(r.ends[record.round]) for r in self.replays]

    def joules_to(self, target: Target) -> list[float]:
        """The same in joules of all workers; none where the power of devices is not known."""
        record = target.first(self.run.records)
        tables = [] if record is None else [r.joules for r in self.replays]
        return [float(j[record.round]) for j in tables if j is not None and record is not None]


@dataclass(frozen=True)
class Row:
    """A method's time to a target."""

    label: str
    runs: int
    reached: int
    seconds: float | None  # mean over seeds and replays; None unless every run reached it
    deviation: float | None
    iterations: float | None  # mean over the runs that reached it
    rounds: float | None
    best: float | None  # of what the target is about, the best value of the worst run
    per_round: float  # seconds
    down: int  # bytes one worker gets in a round
    up: int
    joules: float | None = None  # of all workers by then; None where their power is not known

    def missed(self, verb: str, target: Target) -> str:
        """Who did not reach the target, and the best that was; empty if all did."""
        if self.seconds is not None:
            return ""
        who = f"{self.reached} of {self.runs} runs {verb} it" if self.reached else "never"
        return who + ("" if self.best is None else f"; best {target.shown(self.best)}")

    def less_than(self, rival: Row) -> float | None:
        """The part of the rival's time that is saved; negative where it is faster."""
        if self.seconds is None or not rival.seconds:
            return None
        return 1 - self.seconds / rival.seconds


@dataclass(frozen=True)
class Part:
    """Where a device's time goes in an average round, in seconds, and its energy in joules."""

    label: str
    device: str
    compute: float
    down: float
    up: float
    waiting: float
    joules: float | None = None


def replay_runs(
    runs: Sequence[TimedRun],
    fleet: Fleet,
    replays: int = 20,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> list[Timed]:
    """Each run on the fleet, ``replays`` times; a run trained under a clock as it was, once.

    Methods share their delays (seed, round and worker decide them), so differences are theirs.

    >>> import fednag
    >>> from fednag.clock import load_fleet, replay_runs, timed_run
    >>> done = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=10)
    >>> runs = [timed_run(view) for view in done.views]
    >>> timed = replay_runs(runs, load_fleet("lan"), replays=2)
    >>> [(one.run.label, len(one.replays)) for one in timed]
    [('fednag', 2), ('fedavg', 2)]
    """
    found = []
    for run in runs:
        section = run.experiment.clock
        if section.fleet is not None:
            if section.digest != fleet.digest:
                raise FednagError(
                    "",
                    f"who missed which round of it was decided on the fleet {section.fleet}",
                    "replay it on that one, or train it anew",
                    source=run.folder,
                )
            played = [_as_trained(run, fleet)]
        else:
            count = replays if fleet.varies else 1
            played = []
            for number in range(count):
                played.append(replay(fleet, run.workload, run.rounds, seed + number))
                advance()
        found.append(Timed(run, played))
    return found


def _as_trained(run: TimedRun, fleet: Fleet) -> Replay:
    """A run trained on this fleet's clock, with the delays it had."""
    kind = run.experiment.controller["kind"]
    if kind in CONTROLLERS and CONTROLLERS[kind].waits:
        deadline = run.experiment.clock.deadline
        return replay(fleet, run.workload, run.rounds, run.seed, deadline, leave_out=True)
    # Its rounds may not wait for everyone, and its records say when they were over.
    known = [(record.round, record.clock) for record in run.records if record.clock is not None]
    rounds, seconds = zip(*known, strict=True)
    ends = np.interp(np.arange(run.rounds + 1), rounds, seconds)
    clock, load = Clock(fleet, run.workload, run.seed), run.workload
    busy = np.zeros((load.workers, 3))
    meter, joules = Meter.of(fleet, load.workers), np.zeros(run.rounds + 1)
    for number in range(1, run.rounds + 1):
        spent: dict[int, Table] = {}
        for phase, stage in enumerate(load.stages):
            for worker in load.participants(number).tolist():
                work = load.exchange(
                    stage, worker, load.steps(number, worker), stage.down, stage.up
                )
                delays = clock.delays(number, worker, phase, work)
                took = delays.busy(fleet.device(worker), ends[number - 1])
                busy[worker] += took
                spent[worker] = spent.get(worker, 0.0) + took
        if meter is not None:
            joules[number] = joules[number - 1]
            who = np.array(list(spent), dtype=np.int64)
            table = np.array(list(spent.values())).reshape(-1, 3)
            joules[number] += meter.joules(float(ends[number] - ends[number - 1]), who, table)
    return Replay(ends, busy, 0.0, run.rounds, None if meter is None else joules)


def timed_by_label(timed: Sequence[Timed]) -> dict[str, list[Timed]]:
    return grouped(timed, lambda one: one.run.label)


def times_to_target(
    timed: Sequence[Timed],
    accuracy: float | None = None,
    loss: float | None = None,
    target: Target | None = None,
) -> list[Row]:
    """A row a method, fastest first; those that did not reach the target last.

    The target is an accuracy, a loss, or for any other measure a ``fednag.runs.targets.Target``.

    >>> import fednag
    >>> from fednag.clock import load_fleet, replay_runs, timed_run, times_to_target
    >>> done = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=10)
    >>> runs = [timed_run(view) for view in done.views]
    >>> rows = times_to_target(replay_runs(runs, load_fleet("lan"), replays=2), accuracy=0.05)
    >>> rows[0].seconds <= rows[1].seconds, rows[0].reached
    (True, 1)
    """
    target = target or given_target(accuracy, loss)
    if target is None:
        raise FednagError("--target, --loss", remedy="give one of them")
    found = [_row(label, group, target) for label, group in timed_by_label(timed).items()]
    way = -1 if target.better == "higher" else 1

    def order(row: Row) -> tuple[bool, float]:
        return row.seconds is None, row.seconds or way * (row.best or 0)

    return sorted(found, key=order)


def _row(label: str, group: Sequence[Timed], target: Target) -> Row:
    reached = arrivals([one.run for one in group], target)
    times = Spread.of(second for one in group for second in one.times_to(target))
    whole = times if len(reached) == len(group) else None
    spent = [joules for one in group for joules in one.joules_to(target)]
    workload = group[0].run.workload
    best = [target.best(one.run.values(target.measure)) for one in group]
    return Row(
        label=label,
        runs=len(group),
        reached=len(reached),
        seconds=whole.mean if whole else None,
        deviation=whole.deviation if whole else None,
        iterations=average(r.iteration for r in reached) if reached else None,
        rounds=average(r.round for r in reached) if reached else None,
        # The best value of the run that has come least far.
        best=target.worst([value for value in best if value is not None]),
        per_round=average(float(r.ends[-1]) / r.rounds for one in group for r in one.replays),
        down=workload.down,
        up=workload.up,
        joules=average(spent) if whole and spent else None,
    )


@dataclass(frozen=True)
class TierRow:
    """What travels and how long it takes in an average round of the server, in one tier.

    >>> from fednag.clock import TierRow
    >>> TierRow("fedavg", "0", members=2, rounds=1, down=5200, up=5200, seconds=0.5).members
    2
    """

    label: str
    tier: str  # workers, or the number of a tier of edges
    members: int  # workers or edges that take part
    rounds: int  # of theirs in one of the server's
    down: int  # bytes of all of them, from those above
    up: int
    seconds: float  # each of them is busy, the mean: transfers, computing, aggregations


def tier_by_tier(timed: Sequence[Timed]) -> list[TierRow]:
    """A row a method and tier, of methods with edges; the workers' first.

    >>> import fednag
    >>> from fednag.clock import load_fleet, replay_runs, tier_by_tier, timed_run
    >>> short = {"model": "logistic", "tau": 5, "iterations": 20}
    >>> run = timed_run(fednag.run("fedavg", **short, tier=[{"groups": 2, "pi": 2}]).view)
    >>> rows = tier_by_tier(replay_runs([run], load_fleet("three-tier"), replays=2))
    >>> [(row.tier, row.members, row.rounds, row.down) for row in rows]
    [('workers', 4, 2, 20800), ('0', 2, 1, 5200)]
    """
    found = []
    for label, group in timed_by_label(timed).items():
        load = group[0].run.workload
        if not load.tiers:
            continue
        busy = np.mean(
            [r.busy.sum(axis=1) / max(1, r.rounds) for one in group for r in one.replays], axis=0
        )
        who, (stage,) = min(load.per_round or load.workers, load.workers), load.stages
        times, first = load.repeats, load.workers
        found.append(
            TierRow(
                label,
                "workers",
                who,
                times,
                times * who * stage.down,
                times * who * stage.up,
                float(busy[:first].mean()),
            )
        )
        for number, tier in enumerate(load.tiers):
            edges, times = len(tier.groups), times // tier.pi
            own = float(busy[first : first + edges].mean())
            sent = times * edges * tier.down, times * edges * tier.up
            found.append(TierRow(label, str(number), edges, times, *sent, own))
            first += edges
    return found


def where_time_goes(timed: Sequence[Timed], fleet: Fleet, most: int = 12) -> list[Part]:
    """Where time goes: a row a method and device; of more than ``most`` workers, a row a kind.

    >>> import fednag
    >>> from fednag.clock import load_fleet, replay_runs, timed_run, where_time_goes
    >>> done = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=10)
    >>> runs = [timed_run(view) for view in done.views]
    >>> fleet = load_fleet("lan")
    >>> part = where_time_goes(replay_runs(runs, fleet, replays=2), fleet)[0]
    >>> part.label, part.device, part.compute > 0, part.waiting >= 0
    ('fednag', '0 desktop-1', True, True)
    """
    found = []
    many = max(one.run.workload.workers for one in timed) > most
    for label, group in timed_by_label(timed).items():
        shares: dict[str, list[list[float]]] = {}
        for one in group:
            for played in one.replays:
                table = np.column_stack([played.busy, played.waiting]) / max(1, played.rounds)
                for worker, seconds in enumerate(table.tolist()):
                    device: Device | Edge
                    if worker < one.run.workload.workers:
                        device, place = fleet.device(worker), f"{worker}"
                    else:
                        tier, edge = one.run.workload.edge(worker)
                        there = fleet.edges_of(tier)
                        device, place = there[edge % len(there)], f"edge {tier}.{edge}"
                    name = f"{device.kind} (mean)" if many else f"{place} {device.name}"
                    power = device.power if isinstance(device, Device) else None
                    joules = 0.0 if power is None else power.of(*seconds)
                    shares.setdefault(name, []).append([*seconds, joules])
        for name, listed in shares.items():
            *seconds, joules = np.mean(listed, axis=0).tolist()
            compute, down, up, waiting = seconds
            known = joules if fleet.powered else None
            found.append(Part(label, name, compute, down, up, waiting, known))
    return found


def curve_rows(timed: Sequence[Timed], measure: str = "accuracy") -> list[dict[str, Any]]:
    """Points (method, seconds, mean, low, high) of a measure over time.

    The band is one deviation over seeds and replays; a run that is over keeps its last value.
    """
    found = []
    for label, group in timed_by_label(timed).items():
        lines = []
        for one in group:
            known = [(r, r.measured(measure)) for r in one.run.records]
            points = [record for record, value in known if value is not None]
            if points:
                values = [value for _, value in known if value is not None]
                lines += [(r.ends[[p.round for p in points]], values) for r in one.replays]
        if not lines:
            continue
        grid = np.linspace(0, max(float(times[-1]) for times, _ in lines), GRID)
        table = np.array([np.interp(grid, times, values) for times, values in lines])
        for seconds, values in zip(grid.tolist(), table.T.tolist(), strict=True):
            spread = Spread.of(values)
            assert spread is not None
            low, high = spread.band or (spread.mean, spread.mean)
            point = {"method": label, "seconds": seconds, measure: spread.mean}
            found.append({**point, "low": low, "high": high})
    return found
