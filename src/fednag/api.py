"""``fednag.run``, ``fednag.compare`` and ``fednag.sweep``: the same experiments, from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Protocol

from fednag.arguments import (
    Data,
    Method,
    Metrics,
    Model,
    dataset,
    describe_parts,
    labelled,
    table_of,
    with_metrics,
    with_short,
)
from fednag.compute.threads import tidied
from fednag.config import (
    CUSTOM,
    Experiment,
    check_algorithm,
    describe,
    override,
    parse,
    read,
)
from fednag.config.own import short as short_name
from fednag.core.algorithm import Algorithm
from fednag.core.state import State
from fednag.data.dataset import Values
from fednag.errors import BusyError, FednagError
from fednag.problems.losses import Loss
from fednag.results import Comparison, Run
from fednag.runs.build import Builder, Parts
from fednag.runs.execute import Execution, Listener, find
from fednag.runs.folder import OVER, RunFolder
from fednag.runs.interrupts import Interrupted, Watch
from fednag.show.notebook import progress
from fednag.simulate.run import Plan

__all__ = ["compare", "dataset", "grid", "resume_all", "run", "run_all", "sweep"]

Started = Callable[[str, Experiment, int], Listener | None]
"""Called when a run of several starts: (label, experiment, rounds) -> who listens to it."""


class Elsewhere(Protocol):
    """Has runs done by other processes or machines, and reads them from their folders."""

    def __call__(
        self,
        experiments: Sequence[tuple[str, Experiment, Algorithm | None]],
        builder: Builder,
        out: Path,
        started: Started | None,
        resume: bool,
        watch: Watch | None,
    ) -> list[Run]: ...


def run(
    algorithm: Method = "fednag",
    *,
    data: Data = "digits",
    test: tuple[Values, Values] | None = None,
    owners: Values | None = None,
    task: str | None = None,
    model: Model = "cnn",
    loss: str | Loss | None = None,
    metrics: Metrics | None = None,
    workers: int | None = None,
    tau: int | None = None,
    iterations: int | None = None,
    batch: int | None = None,
    batch_norm: str | None = None,
    seed: int = 0,
    name: str = "python",
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    **sections: Mapping[str, Any],
) -> Run:
    """Train one model with one method.

    ``data`` is a data set's name, a .csv or .npz file, or your own ``(x, y)``; ``model`` a name or
    your own module, whose current weights are the starting point, or a function that makes one for
    the seed it is given, with torch's random numbers seeded by it. Whole numbers ``y`` are classes,
    others regression targets, unless ``task`` says ``"classification"`` or ``"regression"``, or the
    loss is one of regression, such as ``nn.MSELoss()``. Other sections of a file are mappings, e.g.
    ``split={"kind": "dirichlet", "alpha": 0.5}``; ``workers``, ``tau``, ``iterations`` and
    ``batch`` are short for their fields. With ``out`` the run's folder is written there; with
    ``resume`` too, the same run is looked for there first, and goes on where it was last saved.
    A notebook and a terminal show how far it is, unless ``quiet``. ``batch_norm`` says what becomes
    of a model's running statistics: ``"averaged"`` with the weights, which is the default,
    ``"local"``, each worker's own, or ``"frozen"``.

    ``metrics`` are taken on the test samples at every evaluation: names such as ``"f1"``, or a
    mapping from names of your own to functions of (outputs, targets).

    >>> import fednag
    >>> sure = lambda output, target: output.softmax(-1).max(-1).values.mean()
    >>> result = fednag.run(
    ...     "fednag", model="logistic", tau=5, iterations=20, metrics={"f1": "f1", "sure": sure}
    ... )
    >>> result.records[-1].iteration, sorted(result.records[-1].metrics)
    (20, ['f1', 'sure'])
    """
    parts, raw = describe_parts(data, test, owners, task, model, loss, sections)
    with_metrics(parts, raw, metrics)
    raw = with_short(raw, workers, tau, iterations, batch, batch_norm) | {
        "seed": seed,
        "name": name,
    }
    return _runs([algorithm], [seed], raw, parts, out, resume, quiet)[0]


def compare(
    algorithms: Sequence[Method] = ("fednag", "fedavg", "fedmom"),
    *,
    data: Data = "digits",
    test: tuple[Values, Values] | None = None,
    owners: Values | None = None,
    task: str | None = None,
    model: Model = "cnn",
    loss: str | Loss | None = None,
    metrics: Metrics | None = None,
    workers: int | None = None,
    tau: int | None = None,
    iterations: int | None = None,
    batch: int | None = None,
    batch_norm: str | None = None,
    seeds: Sequence[int] = (0,),
    name: str = "python",
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    **sections: Mapping[str, Any],
) -> Comparison:
    """Train the same model with several methods: same data, split, batches and first weights.

    Takes what ``run`` takes, with several ``algorithms`` and ``seeds``. A module of your own starts
    every seed from its one set of weights; a function that makes one gives each its own.

    A method that diverges is marked so, and the others go on. ``print`` the result for a ranked
    table; in a notebook it draws itself.

    >>> import fednag
    >>> result = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=20)
    >>> result
    <Comparison of fednag, fedavg>
    >>> result["fednag"].records[-1].loss < result["fedavg"].records[-1].loss
    True

    >>> from torch import nn
    >>> def net(seed):
    ...     return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    >>> seeds = fednag.compare(["fednag"], model=net, seeds=[0, 1], tau=5, iterations=5)
    >>> first, second = (run.records[0].loss for run in seeds.runs)
    >>> first != second
    True
    """
    parts, raw = describe_parts(data, test, owners, task, model, loss, sections)
    with_metrics(parts, raw, metrics)
    parts.several_seeds = len(set(seeds)) > 1
    raw = with_short(raw, workers, tau, iterations, batch, batch_norm) | {"name": name}
    return Comparison(_runs(algorithms, seeds, raw, parts, out, resume, quiet))


def run_all(
    experiments: Sequence[tuple[str, Experiment, Algorithm | None]],
    parts: Parts | None = None,
    out: Path | None = None,
    started: Started | None = None,
    *,
    resume: bool = False,
    watch: Watch | None = None,
    busy: list[str] | None = None,
    builder: Builder | None = None,
    on: Elsewhere | None = None,
) -> list[Run]:
    """Run labelled experiments one after the other; they share what they have in common.

    With ``builder``, also with others that it built before.

    With ``resume``, those found in ``out`` go on, or are read if they are over. With ``busy``, one
    that another process is writing is left to it, and its label noted there. With ``on``, they are
    done elsewhere, and read from ``out``.
    """
    builder = builder or Builder(parts or Parts())
    if on is not None:
        if out is None:
            raise FednagError("--on", "runs elsewhere are read from folders", "give out")
        return on(experiments, builder, out, started, resume, watch)

    def one(label: str, experiment: Experiment, algorithm: Algorithm | None) -> Run:
        folder, resolved, plan, notes = located(builder, label, experiment, algorithm, out, resume)
        listener = started(label, resolved, plan.rounds) if started else None
        execution = Execution(resolved, plan, label, notes, listener, watch)
        return Run.of(execution.resume(folder) if folder else execution.start(out))

    runs = []
    for each in tidied(experiments):
        try:
            runs.append(one(*each))
        except BusyError:
            if busy is None:
                raise
            busy.append(each[0])
    return runs


class _Pause(Watch):
    """Stops a run after a round of it, and passes on what another watch caught."""

    def __init__(self, rounds: int, watch: Watch | None) -> None:
        super().__init__()
        self.rounds, self.watch, self.over = rounds, watch, False

    def told(self, state: State) -> None:
        self.over = state.round >= self.rounds

    @property
    def number(self) -> int | None:
        asked = self.watch.number if self.watch else None
        return PAUSED if asked is None and self.over else asked

    @number.setter
    def number(self, number: int | None) -> None:
        """Only the other watch catches signals."""


PAUSED = 0  # the number of no signal


def run_until(
    label: str,
    experiment: Experiment,
    rounds: int,
    out: Path,
    builder: Builder,
    started: Started | None = None,
    watch: Watch | None = None,
) -> RunFolder:
    """A run in ``out`` that goes on until it is over or has so many rounds, and then is saved.

    It is begun, goes on where it was, or is left as it is if it has gone so far.
    """
    found: list[RunFolder] = []
    engine = experiment.engine.model_copy(update={"chunk": 1})
    known, *_ = builder.plan(experiment.model_copy(update={"engine": engine}))
    folder = find(out, label, known)
    if folder is not None and (folder.info().get("status") in OVER or _rounds(folder) >= rounds):
        return folder
    experiment = _settled(known, folder) if folder else experiment
    resolved, plan, notes = builder.plan(experiment)
    pause = _Pause(rounds, watch)
    listener = started(label, resolved, plan.rounds) if started else None

    def told(state: State) -> None:
        pause.told(state)
        if listener:
            listener(state)

    execution = Execution(resolved, plan, label, notes, told, pause, opened=found.append)
    try:
        outcome = execution.resume(folder) if folder else execution.start(out)
        return RunFolder(outcome.folder) if outcome.folder else found[0]
    except Interrupted as stopped:
        if stopped.number != PAUSED:
            raise
    return found[0]


def _rounds(folder: RunFolder) -> int:
    records = folder.records()
    return records[-1].round if records else 0


def resume_all(
    folders: Sequence[RunFolder],
    started: Started | None = None,
    watch: Watch | None = None,
    failed: list[FednagError] | None = None,
) -> list[Run]:
    """Bring runs to their end, each as the ``config.toml`` in its folder says.

    With ``failed``, one that cannot go on leaves its error there, and the others do.
    """
    builder = Builder()

    def one(folder: RunFolder) -> Run:
        label = folder.info()["label"]
        experiment = parse(read(folder.own_config()), str(folder.config_file))
        resolved, plan, notes = builder.plan(experiment)
        listener = started(label, resolved, plan.rounds) if started else None
        return Run.of(Execution(resolved, plan, label, notes, listener, watch).resume(folder))

    runs = []
    for folder in tidied(folders):
        try:
            runs.append(one(folder))
        except FednagError as error:
            if failed is None:
                raise
            failed.append(error)
    return runs


def located(
    builder: Builder,
    label: str,
    experiment: Experiment,
    algorithm: Algorithm | None,
    out: Path | None,
    resume: bool,
) -> tuple[RunFolder | None, Experiment, Plan, list[str]]:
    """Where a run is that goes on, if it is to, and its plan as ``Builder.plan`` gives it."""
    folder = None
    if resume and out is not None:
        # Which run it is does not hang on the chunk, so that none need be chosen by timing.
        engine = experiment.engine.model_copy(update={"chunk": 1})
        known, *_ = builder.plan(experiment.model_copy(update={"engine": engine}), algorithm)
        folder = find(out, label, known)
        experiment = _settled(known, folder) if folder else experiment
    return folder, *builder.plan(experiment, algorithm)


def _settled(experiment: Experiment, folder: RunFolder) -> Experiment:
    """The experiment with what a timer chose when it began: another choice, other roundings."""
    table = read(folder.own_config()).get("engine", {})
    engine = parse({"engine": table}, str(folder.config_file)).engine
    return experiment.model_copy(update={"engine": engine})


def grid(
    raw: Mapping[str, Any], axes: Mapping[str, Sequence[Any]], seeds: Sequence[int], source: str
) -> list[tuple[str, Experiment, Algorithm | None]]:
    """An experiment for every combination of values and seed, labelled by what varies."""
    if "seed" in axes:
        raise FednagError(
            "seed", "seeds are averaged over, not compared", "use --seeds, or seeds=[…]"
        )
    experiments: list[tuple[str, Experiment, Algorithm | None]] = []
    for values in product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        varied = override(raw, point)
        shown = [(field.split(".")[-1], value) for field, value in point.items()]
        short = [f"{k}={short_name(v) if isinstance(v, str) else v}" for k, v in shown]
        for seed in seeds:
            experiment = parse(varied | {"seed": seed}, source)
            label = ",".join(short) or experiment.label
            experiments.append((label, experiment, None))
    return experiments


def sweep(
    axes: Mapping[str, Sequence[Any]],
    algorithm: Method = "fednag",
    *,
    data: Data = "digits",
    test: tuple[Values, Values] | None = None,
    owners: Values | None = None,
    task: str | None = None,
    model: Model = "cnn",
    loss: str | Loss | None = None,
    metrics: Metrics | None = None,
    workers: int | None = None,
    tau: int | None = None,
    iterations: int | None = None,
    batch: int | None = None,
    batch_norm: str | None = None,
    seeds: Sequence[int] = (0,),
    name: str = "sweep",
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
    **sections: Mapping[str, Any],
) -> Comparison:
    """Every combination of ``axes`` for every seed.

    ``axes`` maps a field of an experiment file to its values; the rest is as for ``run``. For an
    algorithm of your own, ``compare`` several instances instead.

    >>> import fednag
    >>> axes = {"algorithm.momentum": [0.0, 0.9]}
    >>> result = fednag.sweep(axes, model="logistic", tau=5, iterations=10)
    >>> [run.label for run in result.runs]
    ['momentum=0.0', 'momentum=0.9']
    """
    _check_seeds(seeds)
    for field, values in axes.items() if isinstance(axes, Mapping) else [("axes", None)]:
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise FednagError(
                field, remedy="give a list of values, e.g. {'algorithm.momentum': [0.0, 0.9]}"
            )
    parts, raw = describe_parts(data, test, owners, task, model, loss, sections)
    with_metrics(parts, raw, metrics)
    parts.several_seeds = len(set(seeds)) > 1
    raw = with_short(raw, workers, tau, iterations, batch, batch_norm) | {"name": name}
    raw["algorithm"] = table_of(algorithm)
    return Comparison(_shown(grid(raw, axes, seeds, "sweep"), parts, out, resume, quiet))


def _runs(
    algorithms: Sequence[Method],
    seeds: Sequence[int],
    raw: Mapping[str, Any],
    parts: Parts,
    out: str | Path | None,
    resume: bool,
    quiet: bool,
) -> list[Run]:
    if not algorithms:
        raise FednagError("algorithms", "the list is empty", "name at least one method")
    _check_seeds(seeds)
    experiments = []
    for label, method in labelled(algorithms).items():
        for seed in seeds:
            own = method if isinstance(method, Algorithm) else None
            # A method made in Python is checked as it is; a file could not describe every one.
            table = {"name": CUSTOM} if own else table_of(method)
            experiment = parse({**raw, "seed": seed, "algorithm": table}, "run")
            if own:
                check_algorithm(own)
                experiment = experiment.model_copy(update={"algorithm": describe(own)})
            experiments.append((label, experiment, own))
    return _shown(experiments, parts, out, resume, quiet)


def _shown(
    experiments: Sequence[tuple[str, Experiment, Algorithm | None]],
    parts: Parts,
    out: str | Path | None,
    resume: bool,
    quiet: bool,
) -> list[Run]:
    with progress([label for label, _, _ in experiments], quiet) as started:
        return run_all(experiments, parts, _path(out, resume), started, resume=resume)


def _check_seeds(seeds: Sequence[int]) -> None:
    if not len(seeds):
        raise FednagError("seeds", "the list is empty", "give at least one")
    if len(set(seeds)) < len(seeds):
        raise FednagError(
            "seeds", "one is there twice, and would be counted as two runs", "leave it out"
        )


def _path(out: str | Path | None, resume: bool) -> Path | None:
    if resume and out is None:
        raise FednagError("resume", "there is no folder to look in", "give out, e.g. out='runs'")
    return None if out is None else Path(out)
