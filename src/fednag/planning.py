"""Which method, tau, cohort, uplink and deadline reach a target soonest on a fleet.

Every choice is run and replayed. In a race runs go on side by side in simulated time, and end where
the fastest has reached the target by far: what has not reached it by then cannot be faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import ceil, inf
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fednag.algorithms import ALGORITHMS
from fednag.api import Started, run_all, run_until
from fednag.clock.runs import Row, Timed, TimedRun, read_run, replay_runs, times_to_target
from fednag.config import Experiment, numbers_of, override, parse
from fednag.config.messages import nearest
from fednag.config.own import placed_name, short, short_names
from fednag.config.sections import is_own
from fednag.config.uplinks import read_uplink
from fednag.devices.files import shipped
from fednag.devices.fleet import Fleet, load_fleet
from fednag.devices.times import duration
from fednag.errors import FednagError, within
from fednag.runs.build import Builder
from fednag.runs.folder import RunFolder
from fednag.runs.interrupts import Watch
from fednag.runs.statistics import interval
from fednag.runs.targets import Target, read_target, with_measure

__all__ = ["Advice", "Candidate", "Choice", "Point", "Surety", "advise", "candidates", "plan"]

METHODS = ("fednag", "fedmom", "fedavg")
TAUS = (1, 5, 10, 20, 40, 80)
EVERY = 10  # iterations between evaluations, or a round if that is longer

# Small enough to be planned in a minute or two: the embedded digits.
DIGITS: dict[str, Any] = {
    "name": "digits",
    "data": {"name": "digits"},
    "model": {"name": "cnn"},
    "training": {"iterations": 1000, "batch": 32},
}


MARGIN = 0.25  # a race goes on for so much longer than its winner takes


class Choice(NamedTuple):
    """What a plan chooses; None where it is left as the experiment has it."""

    method: str
    tau: int
    participants: int | None = None
    uplink: str | None = None
    deadline: float | None = None  # seconds; 0: rounds wait

    @property
    def words(self) -> str:
        """
        >>> from fednag.planning import Choice
        >>> Choice("fednag", 20, participants=10, uplink="sign", deadline=2.0).words
        'fednag with tau 20, 10 participants, uplink sign, deadline 2 s'
        """
        return f"{self.method} with tau {self.tau}{self._rest(', ')}"

    @property
    def label(self) -> str:
        return f"{self.method} tau={self.tau}{self._rest(' ')}"

    def _rest(self, between: str) -> str:
        told = []
        if self.participants is not None:
            told.append(f"{self.participants} participants")
        if self.uplink is not None:
            told.append(f"uplink {self.uplink}")
        if self.deadline is not None:
            told.append(f"deadline {self.deadline:g} s" if self.deadline else "no deadline")
        return "".join(f"{between}{one}" for one in told)


class Candidate(NamedTuple):
    """A run of a plan."""

    label: str
    choice: Choice
    experiment: Experiment


@dataclass(frozen=True)
class Point:
    """A choice, and its time to the target.

    ``later_than`` is how far the race went where it was cut off before the target.
    """

    method: str
    tau: int
    row: Row
    participants: int | None = None
    uplink: str | None = None
    deadline: float | None = None
    later_than: float | None = None

    @property
    def choice(self) -> Choice:
        return Choice(self.method, self.tau, self.participants, self.uplink, self.deadline)


@dataclass(frozen=True)
class Surety:
    """How sure a recommendation is.

    In ``first`` of ``pairs`` replays, whose delays and seeds all choices share, no other was
    earlier. The interval is that of the mean time (95 %), over seeds, or over replays of less than
    three.
    """

    first: int
    pairs: int
    low: float | None
    high: float | None
    over: str  # "seeds" or "replays"

    @property
    def share(self) -> float:
        return self.first / self.pairs


@dataclass(frozen=True, eq=False)
class Advice:
    """The expected time of every candidate, and the one to take."""

    target: Target
    fleet: Fleet
    points: list[Point]
    runs: list[TimedRun]
    replays: int
    timed: Mapping[Choice, Sequence[Timed]] = field(default_factory=dict, repr=False)

    @property
    def best(self) -> Point | None:
        """The candidate of least expected time; None if none reached the target."""
        reached = [point for point in self.points if point.row.seconds is not None]
        return min(reached, key=lambda p: (p.row.seconds or 0.0, p.tau), default=None)

    def best_of(self, method: str) -> Point | None:
        own = [p for p in self.points if p.method == method and p.row.seconds is not None]
        return min(own, key=lambda p: (p.row.seconds or 0.0, p.tau), default=None)

    @property
    def surety(self) -> Surety | None:
        """How sure it is that the best one is best; None if nothing reached the target."""
        best = self.best
        if best is None or best.choice not in self.timed:
            return None
        tables = {choice: self._table(group) for choice, group in self.timed.items()}
        mine = tables.pop(best.choice)
        others = np.stack([np.broadcast_to(t, mine.shape) for t in tables.values()] or [mine])
        first = (mine <= others.min(axis=0)).sum()
        by_seed = mine.mean(axis=1).tolist()
        found, over = interval(by_seed), "seeds"
        if found is None:
            found, over = interval(mine.ravel().tolist()), "replays"
        low, high = found or (None, None)
        return Surety(int(first), mine.size, low, high, over)

    def _table(self, group: Sequence[Timed]) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Seconds to the target, a row a seed, a column a replay; of what was not awaited, those
        at which it had not reached it."""
        rows = []
        for one in sorted(group, key=lambda one: one.run.seed):
            times = one.times_to(self.target)
            if not times:
                over = one.run.ending is not None
                times = [inf if over else float(r.ends[-1]) for r in one.replays]
            # A run trained on the clock has the delays of its seed alone.
            rows.append(np.resize(times, self.replays))
        return np.array(rows)

    @property
    def sentences(self) -> list[str]:
        """What to do, and how sure that is."""
        best = self.best
        if best is None:
            way = "lower" if self.target.better == "higher" else "raise"
            return [f"nothing reached {self.target.words}: raise T, or {way} the target"]
        said = [
            f"take {best.choice.words}: {duration(best.row.seconds or 0.0)} expected "
            f"to {self.target.words} on {self.fleet.title}"
        ]
        sure = self.surety
        if sure is not None and sure.pairs > 1 and len(self.points) > 1:
            where = ""
            if sure.low is not None and sure.high is not None:
                bounds = f"{duration(max(sure.low, 0.0))} to {duration(sure.high)}"
                where = f"; its mean time is {bounds} (95 %, over {sure.over})"
            said.append(f"it is the first in {sure.first} of {sure.pairs} paired replays{where}")
        taus = sorted({point.tau for point in self.points})
        if len(taus) > 1 and best.tau in (taus[0], taus[-1]):
            way = "smallest" if best.tau == taus[0] else "largest"
            if best.tau > 1:
                said.append(f"tau {best.tau} is the {way} that was tried: try beyond it")
        reached = [p for p in self.points if p.row.seconds is not None]
        others = sorted((p for p in reached if p is not best), key=lambda p: p.row.seconds or 0.0)
        if others:
            second, spread = others[0], best.row.deviation or 0.0
            later = (second.row.seconds or 0.0) - (best.row.seconds or 0.0)
            close = "; that is within one deviation" if later < spread else ""
            said.append(f"next is {second.choice.words}, {duration(later)} later{close}")
        for method in dict.fromkeys(point.method for point in self.points):
            own = [point for point in self.points if point.method == method]
            never = [p for p in own if p.row.seconds is None and p.later_than is None]
            if never:
                best_seen = self.target.best([p.row.best for p in never if p.row.best is not None])
                shown = "" if best_seen is None else f" (best {self.target.shown(best_seen)})"
                which = (
                    "at any tau"
                    if len(never) == len(own)
                    else "at tau " + ", ".join(dict.fromkeys(str(point.tau) for point in never))
                )
                said.append(
                    f"{method} does not reach it {which} in "
                    f"{self.runs[0].workload.iterations} iterations{shown}"
                )
        cut = [point for point in self.points if point.later_than is not None]
        if cut:
            one = f"{len(cut)} others were" if len(cut) > 1 else "one other was"
            said.append(
                f"{one} not run to the end: {'they' if len(cut) > 1 else 'it'} had not reached it "
                f"{duration(min(p.later_than or 0.0 for p in cut))} after the start, or later"
            )
        return said


def plan(
    fleet: str | Path | Fleet,
    target: float | str | Target,
    *,
    experiment: Mapping[str, Any] | None = None,
    methods: Sequence[str] = METHODS,
    taus: Sequence[int] = TAUS,
    gammas: Sequence[float] = (0.9,),
    participants: Sequence[int] = (),
    uplinks: Sequence[str] = (),
    deadlines: Sequence[float] = (),
    race: bool | None = None,
    seeds: Sequence[int] = (0,),
    replays: int = 20,
    out: str | Path = "runs",
    started: Started | None = None,
    watch: Watch | None = None,
) -> Advice:
    """Run every method at every tau and momentum until ``target``, and time it on ``fleet``.

    The target is an accuracy, or another measure with its value, such as ``"f1=0.9"``. With
    ``participants``, ``uplinks`` (chains such as ``"topk:share=0.01"``) and ``deadlines`` (seconds
    of a round, 0 for none) these are chosen too. In a race, which it then is unless ``race`` says
    otherwise, what cannot be first is not run to its end.

    ``experiment`` is an experiment file's tables (the embedded digits without one). Runs are kept
    in ``out``/NAME-plan, apart from the experiment's own because they stop at the target, and used
    again: another fleet, or more replays, train nothing anew.

    >>> import tempfile
    >>> from fednag.planning import plan
    >>> tables = {"model": {"name": "logistic"}, "training": {"iterations": 20}}
    >>> with tempfile.TemporaryDirectory() as out:
    ...     advice = plan("lan", 0.2, experiment=tables, methods=["fednag"], taus=[2, 5], out=out)
    >>> [(point.method, point.tau) for point in advice.points], advice.best in advice.points
    ([('fednag', 2), ('fednag', 5)], True)
    """
    where = fleet if isinstance(fleet, Fleet) else load_fleet(fleet)
    listed = candidates(
        experiment or DIGITS,
        methods,
        taus,
        gammas,
        seeds,
        target,
        participants=participants,
        uplinks=uplinks,
        deadlines=deadlines,
        fleet=where,
    )
    _check(listed)
    if race is None:
        race = bool(participants or uplinks or deadlines)
    if race:
        asked = target if isinstance(target, Target) else read_target(target)
        racing = _Race(where, asked, replays, Path(out), started, watch)
        runs = racing.run(listed)
    else:
        found = run_all(
            [(label, parsed, None) for label, _, parsed in listed],
            out=Path(out),
            started=started,
            resume=True,
            watch=watch,
        )
        runs = [read_run(RunFolder(run.folder)) for run in found if run.folder is not None]
    return advise(where, target, [choice for _, choice, _ in listed], runs, replays)


def _check(listed: Sequence[Candidate]) -> None:
    """Plan a run of every cohort: what is wrong is told before hours of training."""
    builder = Builder()
    for one in {one.choice.participants: one for one in listed}.values():
        if one.choice.participants is not None:
            with within(f"--participants {one.choice.participants}"):
                engine = one.experiment.engine.model_copy(update={"chunk": 1})
                builder.plan(one.experiment.model_copy(update={"engine": engine}))


class _Entrant:
    """A choice in a race: its runs, as far as they have come."""

    def __init__(self, runs: list[Candidate]) -> None:
        self.runs = runs
        self.timed: list[Timed] = []
        self.rounds = 0
        self.every = runs[0].experiment.evaluation.every

    @property
    def is_over(self) -> bool:
        return bool(self.timed) and all(one.run.ending is not None for one in self.timed)

    def time_to(self, target: Target) -> float | None:
        """Its mean time, if it has reached the target with every seed."""
        times = [one.times_to(target) for one in self.timed]
        if not times or not all(times):
            return None
        return float(np.mean([second for own in times for second in own]))

    @property
    def far(self) -> float:
        """How far it has come in simulated time: the least of its replays that still run."""
        ends = [one for one in self.timed if one.run.ending is None]
        return min((float(r.ends[-1]) for one in ends for r in one.replays), default=inf)


@dataclass(frozen=True)
class _Race:
    """Runs side by side in simulated time, further and further, until somebody is first by far."""

    fleet: Fleet
    target: Target
    replays: int
    out: Path
    started: Started | None
    watch: Watch | None
    builder: Builder = field(default_factory=Builder)

    def run(self, listed: Sequence[Candidate]) -> list[TimedRun]:
        groups: dict[Choice, list[Candidate]] = {}
        for one in listed:
            groups.setdefault(one.choice, []).append(one)
        entrants = [_Entrant(group) for group in groups.values()]
        for entrant in entrants:
            self.go_on(entrant, entrant.every)
        horizon = min(entrant.far for entrant in entrants)
        while True:
            for entrant in entrants:
                self.reach(entrant, min(horizon, self.limit(entrants)))
            if self.limit(entrants) <= horizon or all(e.is_over for e in entrants):
                break
            horizon *= 2
        found = {
            id(candidate): timed.run
            for entrant in entrants
            for candidate, timed in zip(entrant.runs, entrant.timed, strict=True)
        }
        return [found[id(candidate)] for candidate in listed]

    def limit(self, entrants: Sequence[_Entrant]) -> float:
        """From when on nobody who has not reached the target is waited for."""
        known = [t for entrant in entrants if (t := entrant.time_to(self.target)) is not None]
        return min(known, default=inf) * (1 + MARGIN)

    def reach(self, entrant: _Entrant, moment: float) -> None:
        """Go on until so many seconds have passed in every replay."""
        while not entrant.is_over and entrant.far < moment:
            share = moment / max(entrant.far, 1e-12)
            # Not by far more at once, for rounds differ in length.
            self.go_on(entrant, ceil(entrant.rounds * min(share, 4.0) * 1.02))

    def go_on(self, entrant: _Entrant, rounds: int) -> None:
        rounds = max(rounds, entrant.rounds + 1)
        entrant.rounds = ceil(rounds / entrant.every) * entrant.every
        runs = [
            read_run(
                run_until(
                    one.label,
                    one.experiment,
                    entrant.rounds,
                    self.out,
                    self.builder,
                    self.started,
                    self.watch,
                )
            )
            for one in entrant.runs
        ]
        entrant.timed = replay_runs(runs, self.fleet, self.replays)


def advise(
    fleet: Fleet,
    target: float | str | Target,
    candidates: Sequence[Choice | tuple[str, int]],
    runs: Sequence[TimedRun],
    replays: int = 20,
) -> Advice:
    """Time runs on a fleet; ``candidates`` are the ``Choice`` or (method, tau) of each of them.

    >>> import fednag
    >>> from fednag.clock import load_fleet, timed_run
    >>> from fednag.planning import advise
    >>> done = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=10)
    >>> runs = [timed_run(view) for view in done.views]
    >>> advice = advise(load_fleet("lan"), 0.05, [("fednag", 5), ("fedavg", 5)], runs, replays=2)
    >>> advice.sentences[0].startswith("take fed")
    True
    """
    target = target if isinstance(target, Target) else read_target(target)
    timed = replay_runs(runs, fleet, replays)
    groups: dict[Choice, list[Timed]] = {}
    for candidate, one in zip(candidates, timed, strict=True):
        groups.setdefault(Choice(*candidate), []).append(one)
    points = []
    for choice, group in groups.items():
        row = times_to_target(group, target=target)[0]
        running = [one for one in group if one.run.ending is None and not one.times_to(target)]
        far = min((float(r.ends[-1]) for one in running for r in one.replays), default=None)
        points.append(Point(choice.method, choice.tau, row, *choice[2:], later_than=far))
    count = max(len(one.replays) for one in timed)
    return Advice(target, fleet, points, list(runs), count, groups)


def candidates(
    experiment: Mapping[str, Any],
    methods: Sequence[str],
    taus: Sequence[int],
    gammas: Sequence[float],
    seeds: Sequence[int],
    target: float | str | Target,
    source: str = "plan",
    *,
    participants: Sequence[int] = (),
    uplinks: Sequence[str] = (),
    deadlines: Sequence[float] = (),
    fleet: Fleet | None = None,
) -> list[Candidate]:
    """(label, choice, experiment) of all that is to be run; ``source`` as for ``parse``.

    >>> from fednag.planning import candidates
    >>> tables = {"model": {"name": "logistic"}, "training": {"iterations": 20}}
    >>> found = candidates(tables, ["fednag"], [5, 20], gammas=[0.9], seeds=[0], target=0.9)
    >>> [label for label, _, _ in found]
    ['fednag tau=5', 'fednag tau=20']
    """
    target = target if isinstance(target, Target) else read_target(target)
    tables = {key: table for key, table in experiment.items() if key != "algorithms"}
    given = f"{target.measure}={target.value:g}"
    raw = with_measure(tables, target.measure, "--target", given)
    stop: dict[str, Any] = {"stop.metrics": {target.measure: target.value}}
    if target.measure in ("accuracy", "loss"):
        stop = {f"stop.{target.measure}": target.value}
    if "clock" in raw:
        raise FednagError("clock", "a plan replays runs afterwards", "leave [clock] out")
    chains = {text: read_uplink(text)[0] for text in uplinks}
    found = []
    methods = [placed_name(name) for name in methods]
    labels = short_names(methods)
    for name, gamma in _variants(methods, gammas):
        label = labels[name]
        method = label if gamma is None or len(gammas) == 1 else f"{label} gamma={gamma:g}"
        for choice in _choices(method, taus, participants, uplinks, deadlines):
            tau, cohort, uplink, deadline = choice[1:]
            changes: dict[str, Any] = {
                "algorithm.name": name,
                "training.tau": tau,
                "name": plan_name(raw),
                "evaluation.every": max(1, round(EVERY / tau)),
                **stop,
            }
            if gamma is not None:
                changes["algorithm.momentum"] = gamma
            if cohort is not None:
                changes["training.participants"] = cohort
            if deadline:
                changes |= {"clock.fleet": _named(fleet), "clock.deadline": deadline}
            varied = override(raw, changes)
            if uplink is not None:
                varied = {**varied, "uplink": chains[uplink]}
            if isinstance(varied["algorithm"], dict):
                takes = {"name", *numbers_of(name)}
                varied["algorithm"] = {k: v for k, v in varied["algorithm"].items() if k in takes}
            for seed in seeds:
                parsed = parse(varied | {"seed": seed}, source)
                found.append(Candidate(choice.label, choice, parsed))
    return found


def _choices(
    method: str,
    taus: Sequence[int],
    participants: Sequence[int | None],
    uplinks: Sequence[str | None],
    deadlines: Sequence[float | None],
) -> list[Choice]:
    left: tuple[None] = (None,)
    grid = product(taus, participants or left, uplinks or left, deadlines or left)
    return [Choice(method, *point) for point in grid]


def _named(fleet: Fleet | None) -> str:
    """How an experiment names a fleet."""
    if fleet is None:
        raise FednagError("deadlines", "need a fleet", "give it")
    return fleet.source if fleet.source in shipped() else str(Path(fleet.source).resolve())


def plan_name(experiment: Mapping[str, Any]) -> Any:
    """What a plan's runs are called: they stop early, and are not to be ranked beside full ones.

    >>> from fednag.planning import plan_name
    >>> plan_name({"name": "risk"})
    'risk-plan'
    """
    name = experiment.get("name", "run")
    return f"{name[:95]}-plan" if isinstance(name, str) and name else name


def _variants(methods: Sequence[str], gammas: Sequence[float]) -> list[tuple[str, float | None]]:
    """Each method with each momentum; one without momentum once."""
    found: list[tuple[str, float | None]] = []
    for name in methods:
        if name not in ALGORITHMS and not is_own(name):
            raise FednagError(
                "--algorithms",
                f"no such method{nearest(name, ALGORITHMS)}",
                f"there are {', '.join(ALGORITHMS)}",
                given=name,
            )
        has = "momentum" in numbers_of(name, f"--algorithms {short(name)}")
        found += [(name, gamma) for gamma in gammas] if has else [(name, None)]
    if len(set(found)) < len(found):
        raise FednagError("--algorithms, --gammas", "one is there twice", "leave it out")
    return found
