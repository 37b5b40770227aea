"""Runs what figures need, once each, and gathers what they found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fednag.api import Elsewhere, Started, run_all
from fednag.clock.runs import replay_runs, timed_run
from fednag.config import Experiment
from fednag.data.download import SOURCES, data_folder
from fednag.devices.fleet import load_fleet
from fednag.errors import FednagError
from fednag.paper.figure import Figure, Job
from fednag.paper.records import FigureRecords, Kept, Known, keep, known, recall, write
from fednag.runs.build import resolve_device
from fednag.runs.execute import Listener, find
from fednag.runs.folder import OVER, RunFolder
from fednag.runs.interrupts import Watch
from fednag.runs.view import RunView

REPLAYS = 20


def settled(experiment: Experiment) -> Experiment:
    """The experiment with its device chosen, so that its key is that of the run's folder."""
    device = resolve_device(experiment.engine.device)
    engine = experiment.engine.model_copy(update={"device": device})
    return experiment.model_copy(update={"engine": engine})


def found(out: Path, experiment: Experiment) -> RunFolder | None:
    """The folder of a run that is over."""
    chosen = settled(experiment)
    folder = find(out, chosen.label, chosen)
    if folder is None or folder.info().get("status") not in OVER:
        return None
    return folder


def absent_data(experiment: Experiment) -> str | None:
    """A data set that a run needs and that is not here."""
    needed: list[str] = [experiment.data.name]
    if experiment.split.kind == "natural" and experiment.data.name == "mnist":
        needed.append("mnist-writers")
    for name in needed:
        source = SOURCES.get(name)
        if source is None:
            continue
        place = data_folder() / source.folder
        if any(not (place / file.name).exists() for file in source.files):
            return name
    return None


def missing(figure: Figure, scale: str) -> FednagError | None:
    """Why a figure cannot be run here, if it cannot."""
    for job in figure.jobs(scale):
        if name := absent_data(job.experiment):
            return FednagError(
                figure.name, f"{name} is not here", f"`fednag data get {name}`, or set FEDNAG_DATA"
            )
    return None


def queue(figures: Iterable[Figure], scale: str) -> list[Job]:
    """Every run once, in the order in which results are useful.

    Those whose turn is first, whole; then a first seed of all the usual ones, a second one, and so
    on; then the last ones likewise.
    """
    ranked = []
    for number, figure in enumerate(figures):
        chosen = figure.scale(scale)
        for place, job in enumerate(figure.jobs(scale)):
            seed = chosen.seeds.index(job.experiment.seed)
            turn = {"first": (0, 0), "usual": (1, seed), "last": (2, seed)}[chosen.turn]
            ranked.append(((*turn, number, place), job))
    ranked.sort(key=lambda pair: pair[0])
    once: dict[str, Job] = {}
    for _, job in ranked:
        once.setdefault(f"{job.label}-{job.experiment.key}", job)
    return list(once.values())


def waiting(figures: Sequence[Figure], scale: str, out: Path, before: Known) -> list[Job]:
    """The runs of a queue that are neither over in ``out`` nor known from before."""
    wanted = {
        settled(job.experiment).key
        for figure in figures
        for job in figure.jobs(scale)
        if _recalled(before, figure, job) is None
    }
    return [
        job
        for job in queue(figures, scale)
        if settled(job.experiment).key in wanted and found(out, job.experiment) is None
    ]


def run_queue(
    jobs: Sequence[Job],
    out: Path,
    started: Started | None = None,
    watch: Watch | None = None,
    on: Elsewhere | None = None,
) -> int:
    """Run them; one that was interrupted goes on. How many were left to another process."""
    names = (job.title for job in jobs)

    def named(label: str, experiment: Experiment, rounds: int) -> Listener | None:
        title = next(names)
        return started(title, experiment, rounds) if started else None

    busy: list[str] = []
    run_all(
        [(job.label, job.experiment, None) for job in jobs],
        out=out,
        started=named,
        resume=True,
        watch=watch,
        busy=busy,
        on=on,
    )
    return len(busy)


def gather(figure: Figure, scale: str, out: Path, before: Known) -> FigureRecords:
    """The records of a figure's runs that are over, here or known from before."""
    series: dict[str, tuple[Kept, ...]] = {}
    for job in figure.jobs(scale):
        folder = found(out, job.experiment)
        run = _kept(folder, job, figure) if folder else _recalled(before, figure, job)
        if run is not None:
            series[job.series] = (*series.get(job.series, ()), run)
    labels = [one.label for one in figure.series(scale) if one.label in series]
    ordered = {label: series[label] for label in labels}
    return FigureRecords(figure.name, scale, tuple(figure.scale(scale).seeds), ordered)


def _recalled(before: Known, figure: Figure, job: Job) -> Kept | None:
    keys = [key.short for key in settled(job.experiment).all_keys]
    return recall(before, figure.name, keys, timed=figure.content.fleet is not None)


def _kept(folder: RunFolder, job: Job, figure: Figure) -> Kept:
    run = RunView.read(folder)
    folder.verify(run.info)
    ends: Sequence[float] = ()
    if fleet := figure.content.fleet:  # the mean of the run's replays on it
        (timed,) = replay_runs([timed_run(run)], load_fleet(fleet), REPLAYS)
        ends = np.mean([one.ends for one in timed.replays], axis=0).tolist()
    kept = keep(run, job.experiment.training.iterations, ends)
    # A folder that an earlier version began goes by its key of then.
    return replace(kept, key=settled(job.experiment).key)


def gather_all(
    figures: Mapping[str, Figure], scale: str, out: Path, place: Path, before: Path | None = None
) -> list[Path]:
    """Write in ``place`` the records of every figure that has runs.

    They are taken from runs in ``out``, or were kept before: there, in ``place`` or in ``before``.
    """
    kept: dict[tuple[str, str], Kept] = {}
    for folder in dict.fromkeys(one for one in (before, out, place) if one):
        kept |= known(folder, scale)
    written = []
    for figure in figures.values():
        records = gather(figure, scale, out, kept)
        if records.runs:
            written.append(write(place, records))
    return written
