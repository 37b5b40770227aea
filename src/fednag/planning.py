"""Which tau, momentum and method reach a target soonest on a fleet: run, replay, recommend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednag.algorithms import ALGORITHMS
from fednag.api import Started, run_all
from fednag.clock.runs import Row, TimedRun, read_run, replay_runs, times_to_target
from fednag.config import Experiment, numbers_of, override, parse
from fednag.config.messages import nearest
from fednag.config.own import placed_name, short, short_names
from fednag.config.sections import is_own
from fednag.devices.fleet import Fleet, load_fleet
from fednag.devices.times import duration
from fednag.errors import FednagError
from fednag.runs.folder import RunFolder
from fednag.runs.interrupts import Watch
from fednag.runs.targets import Target, read_target, with_measure

__all__ = ["Advice", "Point", "advise", "candidates", "plan"]

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


@dataclass(frozen=True)
class Point:
    """A method at a tau, and its time to the target."""

    method: str
    tau: int
    row: Row


@dataclass(frozen=True, eq=False)
class Advice:
    """The expected time of every candidate, and the one to take."""

    target: Target
    fleet: Fleet
    points: list[Point]
    runs: list[TimedRun]
    replays: int

    @property
    def best(self) -> Point | None:
        """The candidate of least expected time; None if none reached the target."""
        reached = [point for point in self.points if point.row.seconds is not None]
        return min(reached, key=lambda p: (p.row.seconds or 0.0, p.tau), default=None)

    def best_of(self, method: str) -> Point | None:
        own = [p for p in self.points if p.method == method and p.row.seconds is not None]
        return min(own, key=lambda p: (p.row.seconds or 0.0, p.tau), default=None)

    @property
    def sentences(self) -> list[str]:
        """What to do, and how sure that is."""
        best = self.best
        if best is None:
            way = "lower" if self.target.better == "higher" else "raise"
            return [f"nothing reached {self.target.words}: raise T, or {way} the target"]
        said = [
            f"take {best.method} with tau {best.tau}: {duration(best.row.seconds or 0.0)} expected "
            f"to {self.target.words} on {self.fleet.title}"
        ]
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
            said.append(
                f"next is {second.method} with tau {second.tau}, {duration(later)} later{close}"
            )
        for method in dict.fromkeys(point.method for point in self.points):
            own = [point for point in self.points if point.method == method]
            never = [point for point in own if point.row.seconds is None]
            if never:
                best_seen = self.target.best([p.row.best for p in never if p.row.best is not None])
                shown = "" if best_seen is None else f" (best {self.target.shown(best_seen)})"
                which = (
                    "at any tau"
                    if len(never) == len(own)
                    else "at tau " + ", ".join(str(point.tau) for point in never)
                )
                said.append(
                    f"{method} does not reach it {which} in "
                    f"{self.runs[0].workload.iterations} iterations{shown}"
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
    seeds: Sequence[int] = (0,),
    replays: int = 20,
    out: str | Path = "runs",
    started: Started | None = None,
    watch: Watch | None = None,
) -> Advice:
    """Run every method at every tau and momentum until ``target``, and time it on ``fleet``.

    The target is an accuracy, or another measure with its value, such as ``"f1=0.9"``.

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
    listed = candidates(experiment or DIGITS, methods, taus, gammas, seeds, target)
    found = run_all(
        [(label, parsed, None) for label, _, _, parsed in listed],
        out=Path(out),
        started=started,
        resume=True,
        watch=watch,
    )
    runs = [read_run(RunFolder(run.folder)) for run in found if run.folder is not None]
    return advise(where, target, [(m, tau) for _, m, tau, _ in listed], runs, replays)


def advise(
    fleet: Fleet,
    target: float | str | Target,
    candidates: Sequence[tuple[str, int]],
    runs: Sequence[TimedRun],
    replays: int = 20,
) -> Advice:
    """Time runs on a fleet; ``candidates`` says (method, tau) of each of them.

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
    groups: dict[tuple[str, int], list[Any]] = {}
    for candidate, one in zip(candidates, timed, strict=True):
        groups.setdefault(candidate, []).append(one)
    points = [
        Point(method, tau, times_to_target(group, target=target)[0])
        for (method, tau), group in groups.items()
    ]
    count = max(len(one.replays) for one in timed)
    return Advice(target, fleet, points, list(runs), count)


def candidates(
    experiment: Mapping[str, Any],
    methods: Sequence[str],
    taus: Sequence[int],
    gammas: Sequence[float],
    seeds: Sequence[int],
    target: float | str | Target,
    source: str = "plan",
) -> list[tuple[str, str, int, Experiment]]:
    """(label, method, tau, experiment) of all that is to be run; ``source`` as for ``parse``.

    >>> from fednag.planning import candidates
    >>> tables = {"model": {"name": "logistic"}, "training": {"iterations": 20}}
    >>> found = candidates(tables, ["fednag"], [5, 20], gammas=[0.9], seeds=[0], target=0.9)
    >>> [label for label, _, _, _ in found]
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
    found = []
    methods = [placed_name(name) for name in methods]
    labels = short_names(methods)
    for name, gamma in _variants(methods, gammas):
        label = labels[name]
        method = label if gamma is None or len(gammas) == 1 else f"{label} gamma={gamma:g}"
        for tau in taus:
            changes: dict[str, Any] = {
                "algorithm.name": name,
                "training.tau": tau,
                "name": plan_name(raw),
                "evaluation.every": max(1, round(EVERY / tau)),
                **stop,
            }
            if gamma is not None:
                changes["algorithm.momentum"] = gamma
            varied = override(raw, changes)
            if isinstance(varied["algorithm"], dict):
                takes = {"name", *numbers_of(name)}
                varied["algorithm"] = {k: v for k, v in varied["algorithm"].items() if k in takes}
            for seed in seeds:
                parsed = parse(varied | {"seed": seed}, source)
                found.append((f"{method} tau={tau}", method, tau, parsed))
    return found


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
