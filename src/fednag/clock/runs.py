"""Runs on disk, read for the clock: their records, and what they asked of their devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fednag.algorithms import ALGORITHMS
from fednag.config import CUSTOM, Experiment, build_algorithm, parse, participants, read
from fednag.config.sections import is_own
from fednag.core.algorithm import payload
from fednag.core.record import Record
from fednag.devices.workload import Workload, from_facts, gradients_of
from fednag.errors import FednagError
from fednag.problems.flops import named_flops
from fednag.runs.folder import RunFolder
from fednag.runs.labels import Named, distinct, flat
from fednag.runs.targets import Target
from fednag.runs.targets import common_target as shared


@dataclass(frozen=True, eq=False)
class TimedRun:
    """A run as its folder tells it."""

    label: str
    seed: int
    records: list[Record]
    workload: Workload
    ended: str
    diverged: bool
    folder: RunFolder
    experiment: Experiment
    config: Mapping[str, Any]  # the tables of its config.toml
    started: str = ""
    notes: tuple[str, ...] = ()

    @property
    def rounds(self) -> int:
        return self.records[-1].round


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
    records, info = folder.records(), folder.info()
    if "records" in info:
        folder.verify(info)
    if len(records) < 2:
        raise FednagError(f"{folder.path}: it has no round yet; wait for the first")
    raw = read(folder.config_file)
    table = raw.get("algorithm")
    name = table.get("name") if isinstance(table, dict) else None
    known = isinstance(name, str) and name in ALGORITHMS
    # A method made in Python cannot be built, and one in a file is not imported only to be read of:
    # the records say what it sent.
    named = known or is_own(name)
    tables = raw if named else {**raw, "algorithm": {"name": CUSTOM}}
    experiment = parse(tables, str(folder.path), code=False)
    notes: list[str] = []
    try:
        facts = info.get("work")
        if not isinstance(facts, dict):
            facts = _derived(folder, info, experiment, records, known, flops, notes)
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
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FednagError(
            f"{folder.info_file}: cannot be used for timing ({error}); restore it, or run again"
        ) from error
    return TimedRun(
        label=info["label"],
        seed=info["seed"],
        records=records,
        workload=workload,
        ended=str(info.get("ended") or info.get("status")),
        diverged=info.get("status") == "diverged",
        folder=folder,
        experiment=experiment,
        config=raw,
        started=str(info.get("started", "")),
        notes=tuple(notes),
    )


def _derived(
    folder: RunFolder,
    info: Mapping[str, Any],
    experiment: Experiment,
    records: Sequence[Record],
    known: bool,
    flops: float | None,
    notes: list[str],
) -> dict[str, Any]:
    """What ``run.json`` does not say of an older run, from its configuration and records."""
    model = experiment.model
    counted = flops or named_flops(model.name, experiment.data.name, model.hidden)
    if counted is None:
        raise FednagError(
            f"{folder.path}: its model or data came from Python, so its operations are not known; "
            "give --flops, those of a gradient a sample"
        )
    workers, samples = int(info["workers"]), int(info["samples"])
    if experiment.split.kind != "iid":
        notes.append("run.json has no sizes of workers: they are taken to be equal")
    width = 8 if experiment.engine.dtype == "float64" else 4
    facts: dict[str, Any] = {
        "flops": counted,
        "vector": int(info["parameters"]) * width,
        "sizes": [samples // workers + (i < samples % workers) for i in range(workers)],
    }
    if known:
        algorithm = build_algorithm(experiment.algorithm)
        w = torch.empty(int(info["parameters"]), dtype=getattr(torch, experiment.engine.dtype))
        facts["down"], facts["up"] = payload(algorithm, algorithm.init(w))
        facts["gradients"], facts["full"] = gradients_of(algorithm)
        return facts | {"probes": algorithm.probes, "pooled": algorithm.pooled}
    times = max(1, records[-1].round * participants(experiment, workers))
    notes.append("its method came from Python: sizes are its records', one gradient an iteration")
    sent = {"down": records[-1].bytes_down // times, "up": records[-1].bytes_up // times}
    return facts | sent | {"gradients": 1, "full": 0, "probes": False, "pooled": False}


def distinguished(runs: Sequence[TimedRun]) -> tuple[list[TimedRun], list[str]]:
    """Labels such that runs of one label differ in their seeds alone; and notes.

    >>> import tempfile
    >>> import fednag
    >>> from fednag.clock import read_run, distinguished
    >>> from fednag.runs.folder import RunFolder
    >>> with tempfile.TemporaryDirectory() as out:
    ...     short = {"model": "logistic", "tau": 5, "iterations": 10}
    ...     done = [fednag.run(fednag.FedNAG(momentum=m), **short, out=out) for m in (0.5, 0.9)]
    ...     runs = [read_run(RunFolder(run.folder)) for run in done]
    >>> named, notes = distinguished(runs)
    >>> [run.label for run in named]
    ['fednag (momentum=0.5)', 'fednag (momentum=0.9)']
    """
    labels, notes = distinct(
        [Named(r.label, r.seed, flat(r.config), (r.started, str(r.folder.path))) for r in runs]
    )
    named = [
        replace(run, label=label)
        for run, label in zip(runs, labels, strict=True)
        if label is not None
    ]
    return named, notes


def common_target(runs: Sequence[TimedRun]) -> Target:
    """A target to compare runs by; raises a sentence if there is none.

    >>> import tempfile
    >>> import fednag
    >>> from fednag.clock import common_target, read_run
    >>> from fednag.runs.folder import RunFolder
    >>> with tempfile.TemporaryDirectory() as out:
    ...     short = {"model": "logistic", "tau": 5, "iterations": 10}
    ...     done = fednag.compare(["fednag", "fedavg"], **short, out=out)
    ...     runs = [read_run(RunFolder(run.folder)) for run in done.runs]
    >>> target = common_target(runs)
    >>> target.measure, 0 < target.value < 1
    ('accuracy', True)
    """
    found = shared([(run.records, run.diverged) for run in runs], [run.config for run in runs])
    if found is None:
        raise FednagError("--target: there is none that every run has reached; give it, or --loss")
    return found
