"""A run watched for the theory, and the numbers a command was given or measured on it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fednag.cli.common import blaming, console, set_fields, usable
from fednag.errors import FednagError

if TYPE_CHECKING:
    from fednag.algorithms import FedNAG
    from fednag.theory import Setting
    from fednag.theory.constants import Constants, Minimum
    from fednag.theory.landscape import Landscape
    from fednag.theory.trajectory import Trajectory


@dataclass(frozen=True)
class Observed:
    """A run and what was measured on it."""

    name: str
    experiment: dict[str, Any]  # as it was run, for whoever looks for the run these numbers are of
    landscape: Landscape
    algorithm: FedNAG
    minimum: Minimum
    trajectory: Trajectory
    constants: Constants
    notes: list[str]


def observe(path: Path, changes: list[str], out: Path) -> Observed:
    fields = set_fields(changes)
    with blaming(dict.fromkeys(fields, "--set")):
        return _observe(path, fields, out)


def _observe(path: Path, fields: dict[str, Any], out: Path) -> Observed:
    from fednag.algorithms import FedNAG
    from fednag.algorithms.local import OPTIONS
    from fednag.config import override, parse, read
    from fednag.runs.build import Builder
    from fednag.theory.constants import measure, minimise
    from fednag.theory.landscape import OnData
    from fednag.theory.trajectory import watch

    raw = override(read(path), fields)
    raw.pop("algorithms", None)
    experiment = parse(raw, str(path))
    training, model = experiment.training, experiment.model.name
    if model not in ("linear", "logistic"):
        raise FednagError(
            "model.name",
            f"{model!r} is not convex, and the theory is about convex losses",
            "use linear or logistic",
            source=path,
        )
    if training.participants is not None or training.fraction not in (None, 1.0):
        raise FednagError(
            "training.participants",
            "in the theory every worker takes part",
            "leave out participants and fraction",
            source=path,
        )
    if training.iterations < training.tau:
        raise FednagError("training.iterations", "less than one tau", "raise it", source=path)
    usable(out)
    engine = {"device": "cpu", "dtype": "float64", "chunk": 1, "threads": 1}
    experiment = experiment.model_copy(
        update={"engine": experiment.engine.model_copy(update=engine)}
    )
    resolved, plan, notes = Builder().plan(experiment)
    if type(plan.algorithm) is not FedNAG:
        raise FednagError("algorithm.name", "the theory is about 'fednag'", "use it", source=path)
    for option in OPTIONS:
        if getattr(plan.algorithm, option):
            raise FednagError(
                f"algorithm.{option}",
                "the theory is about the data's own gradients",
                "set it to 0",
                source=path,
            )
    if training.batch:
        notes.append(f"training.batch {training.batch} is not used: all samples make the batch")
    rounds = training.iterations // training.tau
    if rounds * training.tau != training.iterations:
        notes.append(f"T is {rounds * training.tau}: whole rounds of tau {training.tau}")
    landscape = OnData(plan.problem, plan.owned)
    terminal = console(stderr=True)
    with terminal.status("looking for w*"):
        minimum = minimise(landscape)
    if not minimum.found:
        notes.append(
            f"w* was not reached ({minimum.how}); the bounds then hold against the point where the "
            "search ended, and a model that separates its classes has no minimum at all"
        )
    with terminal.status("running FedNAG beside its virtual updates"):
        trajectory = watch(landscape, plan.algorithm, training.tau, rounds, minimum.w)
    with terminal.status("measuring constants"):
        constants = measure(landscape, trajectory)
    return Observed(
        experiment.name,
        resolved.model_dump(mode="json", exclude_none=True),
        landscape,
        plan.algorithm,
        minimum,
        trajectory,
        constants,
        notes,
    )


@dataclass(frozen=True)
class Case:
    """The numbers a command was given, or measured."""

    name: str
    setting: Setting
    iterations: int
    notes: list[str]


def case_of(path: Path | None, given: dict[str, Any], changes: list[str], out: Path) -> Case:
    from fednag.theory import Setting

    known = {"eta": 0.01, "gamma": 0.9, "tau": 10, "iterations": 1000}
    name, notes = "given", []
    if path is not None:
        seen = observe(path, changes, out)
        run, name = seen.trajectory, seen.name
        known = {"eta": run.eta, "gamma": run.gamma, "tau": run.tau, "iterations": run.iterations}
        for symbol in ("beta", "rho", "delta", "p", "omega"):
            measured = getattr(seen.constants, symbol)
            known[symbol] = measured.value
            if given[symbol] is None:
                notes.append(f"{symbol} {measured.value:.4g}: {measured.how}")
        notes += seen.notes
    known |= {symbol: number for symbol, number in given.items() if number is not None}
    for symbol in ("beta", "rho", "delta", "p", "omega"):
        if symbol not in known:
            raise FednagError(
                f"--{symbol}", "is missing", "give it, or an experiment file to measure it on"
            )
    iterations = int(known.pop("iterations"))
    if iterations < 1:
        raise FednagError("--iterations", remedy="give a whole number from 1 up", given=iterations)
    return Case(name, Setting(**{**known, "tau": int(known["tau"])}), iterations, notes)  # type: ignore[arg-type]
