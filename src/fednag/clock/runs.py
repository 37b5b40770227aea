"""What runs asked of their devices, for the clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fednag.algorithms import ALGORITHMS
from fednag.config import CUSTOM, Experiment, build_algorithm, parse, participants, read
from fednag.config.sections import is_own
from fednag.devices.workload import Stage, Workload, from_facts, stages_of
from fednag.errors import FednagError
from fednag.problems.flops import named_flops
from fednag.runs.folder import RunFolder
from fednag.runs.targets import Target
from fednag.runs.targets import common_target as shared
from fednag.runs.view import RunView


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
        raise FednagError(f"{folder.path}: it has no round yet; wait for the first")
    raw = dict(view.config or read(folder.config_file))
    table = raw.get("algorithm")
    name = table.get("name") if isinstance(table, dict) else None
    known = isinstance(name, str) and name in ALGORITHMS
    # A method made in Python cannot be built, and one in a file is not imported only to be read of:
    # the records say what it sent.
    named = known or is_own(name)
    tables = raw if named else {**raw, "algorithm": {"name": CUSTOM}}
    experiment = parse(tables, str(folder.path), code=False)
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
            f"{folder.info_file}: cannot be used for timing ({error}); restore it, or run again"
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
            f"{view.folder}: its model or data came from Python, so its operations are not known; "
            "give --flops, those of a gradient a sample"
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
        raise FednagError("--target: there is none that every run has reached; give it, or --loss")
    return found
