"""Which method with which compressed upload reaches a target with the fewest bytes and seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednag.api import Started, run_all
from fednag.clock.runs import Timed, replay_runs, timed_by_label, timed_run
from fednag.config import Experiment, method_of, methods, parse
from fednag.config.uplinks import EXAMPLE, NONE, read_uplink
from fednag.core.transform import Transform
from fednag.devices.fleet import Fleet, load_fleet
from fednag.devices.times import duration
from fednag.errors import FednagError, within
from fednag.results import Run
from fednag.runs.build import Builder
from fednag.runs.frontier import Cell, Times, amount, cells
from fednag.runs.interrupts import Watch
from fednag.runs.labels import by_label
from fednag.runs.targets import Target, read_target, settled, with_measure

__all__ = ["Candidate", "Frontier", "candidates", "frontier", "read_uplink"]

METHODS = ("fednag", "fedmom", "fedavg")
UPLINKS = (
    "none",
    "quantise:levels=127",
    "quantise:levels=7:bucket=512",
    "error-feedback+sign",
    "error-feedback+topk:share=0.01",
)


@dataclass(frozen=True)
class Candidate:
    """A run of the grid: a method, an uplink and a seed, which the experiment has too."""

    label: str
    method: str
    uplink: str
    experiment: Experiment


@dataclass(frozen=True, eq=False)
class Frontier:
    """What every method with every uplink took to reach the target, and which are not dominated."""

    target: Target
    fleet: Fleet | None
    cells: list[Cell]  # fewest bytes to the target first
    names: Mapping[str, tuple[str, str]]  # label -> (method, uplink)
    runs: list[Run]
    timed: list[Timed]  # empty without a fleet

    @property
    def sentences(self) -> list[str]:
        """Who reaches the target with the fewest bytes, and who in the fewest seconds."""
        there = [cell for cell in self.cells if cell.reached == cell.runs]
        if not there:
            way = "lower" if self.target.better == "higher" else "raise"
            return [f"nothing reached {self.target.words} with every seed: raise T, or {way} it"]
        best = min(there, key=lambda cell: cell.bytes_to or 0.0)
        said = [
            f"fewest bytes to {self.target.words}: {best.label}, {amount(best.bytes_to)}"
            f"{_than(best.bytes_to, [c.bytes_to for c in there])}"
        ]
        if self.fleet is not None:
            fast = min(there, key=lambda cell: cell.seconds_to or 0.0)
            more = _than(fast.seconds_to, [c.seconds_to for c in there])
            said.append(
                f"fewest seconds on {self.fleet.title}: {fast.label}, "
                f"{duration(fast.seconds_to or 0.0)}{more}"
            )
        return said


def _than(best: float | None, others: Sequence[float | None]) -> str:
    most = max(other or 0.0 for other in others)
    if not best or len(others) < 2 or most <= best:
        return ""
    return f"; the most of those that reach it is {most / best:.3g} times that"


def frontier(
    target: float | str | Target,
    experiment: Mapping[str, Any],
    *,
    algorithms: Sequence[str] = METHODS,
    uplinks: Sequence[str] = UPLINKS,
    seeds: Sequence[int] = (0,),
    fleet: str | Path | Fleet | None = None,
    replays: int = 20,
    out: str | Path | None = None,
    started: Started | None = None,
    resume: bool = False,
    watch: Watch | None = None,
) -> Frontier:
    """Run every method with every uplink and seed, and say what the target took.

    ``experiment`` is an experiment file's tables; an uplink is a chain such as
    ``"error-feedback+topk:share=0.01"``. Runs of one seed share data split, first weights and
    batches, so their differences are those of method and uplink. Runs go on after the target. With
    a ``fleet`` they are replayed on its devices.

    >>> from fednag.frontier import frontier
    >>> tables = {"model": {"name": "logistic"}, "training": {"tau": 5, "iterations": 20}}
    >>> found = frontier(0.3, tables, algorithms=["fednag"], uplinks=["none", "quantise:levels=7"])
    >>> [cell.label for cell in found.cells], found.cells[0].least_bytes
    (['fednag quantise:levels=7', 'fednag none'], True)
    """
    asked = target if isinstance(target, Target) else read_target(target)
    where = fleet if isinstance(fleet, Fleet) or fleet is None else load_fleet(fleet)
    listed = candidates(experiment, asked, algorithms, uplinks, seeds)
    _check(listed)
    runs = run_all(
        [(each.label, each.experiment, None) for each in listed],
        out=None if out is None else Path(out),
        started=started,
        resume=resume,
        watch=watch,
    )
    views = [run.view for run in runs]
    asked = settled(asked, views) or asked
    timed = replay_runs([timed_run(view) for view in views], where, replays) if where else []
    times = {
        label: Times(
            [second for one in group for second in one.times_to(asked)],
            [float(played.ends[-1]) for one in group for played in one.replays],
        )
        for label, group in timed_by_label(timed).items()
    }
    names = {each.label: (each.method, each.uplink) for each in listed}
    found = cells(views, asked, times)
    assert list(by_label(views)) == list(names)
    return Frontier(asked, where, found, names, runs, timed)


def _check(listed: Sequence[Candidate]) -> None:
    """Plan a run of every method and uplink: what is wrong is told before hours of training."""
    builder = Builder()
    for each in {each.label: each for each in reversed(listed)}.values():
        engine = each.experiment.engine.model_copy(update={"chunk": 1})  # none is timed for this
        with within(f"--uplinks {each.uplink}"):
            builder.plan(each.experiment.model_copy(update={"engine": engine}))


def candidates(
    experiment: Mapping[str, Any],
    target: Target,
    algorithms: Sequence[str],
    uplinks: Sequence[str],
    seeds: Sequence[int],
    source: str = "frontier",
) -> list[Candidate]:
    """All that is to be run; ``source`` as for ``parse``.

    >>> from fednag.frontier import candidates
    >>> from fednag.runs.targets import read_target
    >>> tables = {"model": {"name": "logistic"}}
    >>> found = candidates(tables, read_target(0.9), ["fednag", "fedavg"], ["none", "sign"], [0])
    >>> [each.label for each in found]
    ['fednag none', 'fednag sign', 'fedavg none', 'fedavg sign']
    """
    raw = with_measure(experiment, target.measure, "--target", f"{target.measure}={target.value:g}")
    chains = _chains(uplinks)
    found = []
    for method, table in methods(raw, list(algorithms), source):
        with within(source):
            pooled = method_of(table["algorithm"]["name"]).pooled
        if pooled:
            raise FednagError(
                "--algorithms", "is centralised, and sends nothing", "leave it out", given=method
            )
        for uplink, tables in chains.items():
            for seed in seeds:
                parsed = parse({**table, "uplink": tables, "seed": seed}, source)
                found.append(Candidate(f"{method} {uplink}", method, uplink, parsed))
    return found


def _chains(uplinks: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """The tables of each uplink, by its text."""
    found: dict[str, list[dict[str, Any]]] = {}
    parts: dict[tuple[Transform, ...], str] = {}
    if not uplinks:
        raise FednagError("--uplinks", "the list is empty", f"write {NONE}, or a chain, {EXAMPLE}")
    for text in uplinks:
        tables, chain = read_uplink(text)
        if chain in parts:
            raise FednagError(
                "--uplinks", f"is the same as {parts[chain]}", "leave one out", given=text
            )
        found[text], parts[chain] = tables, text
    return found
