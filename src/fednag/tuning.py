"""Numbers for every method, found under one rule for all; test samples are looked at afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

import tomli_w
import torch

from fednag.algorithms import ALGORITHMS
from fednag.api import Started, run_all
from fednag.compute.threads import one_thread
from fednag.config import Experiment, build_algorithm, methods, numbers_of, parse
from fednag.core.files import os_errors, write_atomically
from fednag.errors import FednagError
from fednag.problems.metrics import better_of
from fednag.problems.problem import Problem
from fednag.results import Run, Shown
from fednag.runs.build import Builder, Parts, resolve_device
from fednag.runs.interrupts import Watch
from fednag.runs.search import (
    ETA,
    MOMENTA,
    MORE_MOMENTA,
    WIDER,
    Region,
    Rung,
    Scale,
    Span,
    border,
    ranked,
    rungs,
)
from fednag.runs.statistics import average, interval
from fednag.runs.targets import with_measure
from fednag.runs.view import RunView

__all__ = ["Trial", "Tuned", "Tuning", "tune"]

ALL = "all"  # the methods that are shipped, those of them that can run such an experiment
BUDGET, STEPS, VALIDATION = 40, (0.01, 10.0), 0.1
LOOKED_AT = 1024  # samples, for the size of a gradient
NAMED = 6  # methods in a sentence


@dataclass(frozen=True)
class Trial:
    """Some numbers of a method, as far as they were tried."""

    numbers: Mapping[str, float]
    step: float | None  # effective; None in a space of one's own
    iterations: int
    value: float | None  # on the validation part; None: it diverged
    order: tuple[float, ...] | None  # less is better


@dataclass(frozen=True)
class Tuned:
    """A method's best numbers, and what they came to."""

    method: str
    best: Trial | None  # None: all trials diverged
    border: tuple[str, ...]  # where in the space that lies at an end of it
    trials: tuple[Trial, ...]
    runs: tuple[Run, ...] = field(default=(), repr=False)  # with those numbers, on the test samples
    measure: str = "accuracy"

    @property
    def values(self) -> list[float]:
        """On the test samples at the end, a seed each; none where one diverged."""
        found = [
            v for run in self.runs if (v := run.records[-1].measured(self.measure)) is not None
        ]
        return found if len(found) == len(self.runs) else []

    @property
    def mean(self) -> float | None:
        return average(self.values) if self.values else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where that mean lies, 95 %; None for fewer than three seeds."""
        return interval(self.values)

    @property
    def diverged(self) -> int:
        """Of the trials."""
        return sum(trial.order is None for trial in self.trials)


@dataclass(frozen=True, eq=False)
class Tuning(Shown):
    """The methods with the numbers that were found for each, best on the test samples first."""

    measure: str
    seed: int  # of all trials
    region: Region | None  # None: a space of one's own
    rungs: list[Rung]
    widened: tuple[str, ...]
    tuned: list[Tuned]
    left_out: Mapping[str, str]  # methods that cannot run such an experiment, and why
    experiment: Mapping[str, Any]  # the tables that `fednag compare` takes

    @property
    def runs(self) -> list[Run]:
        return [run for each in self.tuned for run in each.runs]

    @property
    def views(self) -> list[RunView]:
        return [run.view for run in self.runs]

    @property
    def toml(self) -> str:
        """An experiment file with every method's numbers, for `fednag compare`."""
        return tomli_w.dumps(self.experiment)

    @property
    def sentences(self) -> list[str]:
        """What was widened, and whose best numbers lie at a border still."""
        said = list(self.widened)
        for each in self.tuned:
            if each.best is None:
                said.append(f"{each.method}: every trial diverged, so it has no numbers")
            elif each.border:
                said.append(f"{each.method}: its best lies at {' and '.join(each.border)}")
        return said

    def write(self, path: str | Path) -> Path:
        """Write that file."""
        place = Path(path)
        with os_errors(place, "cannot be written", "choose another file"):
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, self.toml)
        return place


def tune(
    experiment: Mapping[str, Any],
    *,
    algorithms: Sequence[str] = (),
    budget: int = BUDGET,
    seeds: Sequence[int] | None = None,
    steps: tuple[float, float] = STEPS,
    validation: float = VALIDATION,
    space: Sequence[str] = (),
    measure: str = "",
    out: str | Path | None = None,
    started: Started | None = None,
    told: Callable[[str], None] | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    source: str = "tune",
) -> Tuning:
    """Find each method's step and momentum with as many trials in the same space, then test them.

    ``experiment`` is an experiment file's tables; ``algorithms`` are names, or ``["all"]``. Trials
    are points of one sequence over effective steps, from ``steps[0]`` to ``steps[1]``, and momenta;
    other numbers stay as they are. All have the experiment's seed, thus the same split, first
    weights and batches. Of ``budget`` trials a third goes on three times as long, and a third of
    those to the end; ``measure`` on a part of the training samples decides. If a method's best lies
    at an end of the space, it is widened once, for all methods. With its best numbers each method
    is trained on all training samples, a run a seed, and tested.

    With a ``space`` of your own, such as ``["lr=0.001:1:log", "mu=0:1"]``, those numbers are tried
    instead, as optuna's sampler proposes them, and nothing is widened. It needs the extra `tune`.

    >>> import fednag
    >>> tables = {"model": {"name": "logistic"}, "training": {"tau": 5, "iterations": 45}}
    >>> found = fednag.tune(tables, algorithms=["fednag", "fedavg"], budget=9)
    >>> [(each.method, len(each.trials)) for each in found.tuned][0][1] >= 9
    True
    >>> sorted(table["name"] for table in found.experiment["algorithms"])
    ['fedavg', 'fednag']
    """
    _check(budget, steps, validation)
    raw, chosen = _measured(experiment, measure, source)
    share = raw.get("data", {}).get("validation", validation)
    names = list(ALGORITHMS) if list(algorithms) == [ALL] else list(algorithms)
    listed = dict(methods(raw, names, source))
    if not listed:
        raise FednagError("algorithms", "no methods to tune", "name some, or all", source=source)
    tuner = _Tuner(
        listed, chosen, share, source, None if out is None else Path(out), resume, watch, told
    )
    left_out = tuner.check(skip=list(algorithms) == [ALL])
    first = parse(next(iter(listed.values())), source)
    training = first.training
    ladder = rungs(budget, training.iterations, training.tau)
    if space:
        found = tuner.propose(budget, dict(Span.read(text) for text in space), ladder, first.seed)
    else:
        found = tuner.search(budget, Region(*steps), ladder, first)
    tables = {t.method: tuner.table(t.method, t.best.numbers) for t in found.tuned if t.best}
    with_seeds = [first.seed] if seeds is None else list(seeds)
    tuned = []
    for each in found.tuned:
        table = tables.get(each.method, {})
        finals = [
            (each.method, parse({**table, "seed": seed}, source), None)
            for seed in with_seeds * bool(table)
        ]
        runs = run_all(finals, None, tuner.out, started, resume=resume, watch=watch)
        tuned.append(replace(each, runs=tuple(runs)))
    sign = _sign(chosen, first)
    tuned.sort(key=lambda t: (t.mean is None, -sign * (t.mean or 0.0), t.method))
    complete = {label: parse(table, source).algorithm for label, table in tables.items()}
    written = [_written(complete[each.method]) for each in tuned if each.method in complete]
    kept = _final(raw)
    if written:
        kept |= {"algorithm": written[0], "algorithms": written}
    return replace(found, tuned=tuned, left_out=left_out, experiment=kept)


@dataclass
class _Tuner:
    """Trials of several methods; all that they share is made once."""

    listed: dict[str, dict[str, Any]]
    measure: str
    share: float
    source: str
    out: Path | None
    resume: bool
    watch: Watch | None
    told: Callable[[str], None] | None
    builder: Builder = field(default_factory=lambda: Builder(Parts(untested=True)))

    def check(self, skip: bool) -> dict[str, str]:
        """Plan a trial of every method before the first is run; who cannot run, and why."""
        left_out = {}
        for label in list(self.listed):
            try:
                experiment = self._trial(label, {}, 1)
                engine = experiment.engine.model_copy(update={"chunk": 1})
                self.builder.plan(experiment.model_copy(update={"engine": engine}))
            except FednagError as error:
                if not skip or len(self.listed) == 1:
                    raise
                left_out[label] = str(error)
                del self.listed[label]
        return left_out

    def search(
        self, budget: int, region: Region, ladder: list[Rung], experiment: Experiment
    ) -> Tuning:
        """Every method's trials, and the best of them; in a wider space where one asks for it."""
        slope, training = self._slope(), experiment.training
        scales = {
            label: Scale.of(
                build_algorithm(self._trial(label, {}, 1).algorithm), slope, training.tau
            )
            for label in self.listed
        }
        found = {
            label: self._halved(label, scale, region, range(budget), ladder)
            for label, scale in scales.items()
        }
        best = {label: _best(trials) for label, trials in found.items()}
        more = max(budget // 4, 1)
        wide, strips, said = _widened(region, best, more)
        for strip in strips:
            # The same number of trials more for every method, whoever asked for them.
            numbers = range(budget, budget + more)
            for label, scale in scales.items():
                here = rungs(more, training.iterations, training.tau)
                found[label] += self._halved(label, scale, strip, numbers, here)
        tuned = []
        for label, trials in found.items():
            chosen = _best(trials)
            ends = _borders(chosen, wide) if chosen else ()
            tuned.append(Tuned(label, chosen, ends, tuple(trials), measure=self.measure))
        seed = experiment.seed
        return Tuning(self.measure, seed, wide, ladder, tuple(said), tuned, {}, {})

    def propose(
        self, budget: int, space: Mapping[str, Span], ladder: list[Rung], seed: int
    ) -> Tuning:
        """Every method's trials in a space of the user's own, as optuna proposes them."""
        optuna = _optuna()
        spans = {label: self._own(label, space) for label in self.listed}
        tuned = []
        for label, own in spans.items():
            study = optuna.create_study(
                sampler=optuna.samplers.TPESampler(seed=seed),
                pruner=optuna.pruners.SuccessiveHalvingPruner(1, ETA),
            )
            trials = tuple(self._proposed(label, own, study, ladder) for _ in range(budget))
            tuned.append(Tuned(label, _best(trials), (), trials, measure=self.measure))
            self._tell(label, trials)
        return Tuning(self.measure, seed, None, ladder, (), tuned, {}, {})

    def _own(self, label: str, space: Mapping[str, Span]) -> dict[str, Span]:
        """Those numbers of the space that a method has."""
        there = numbers_of(self.listed[label]["algorithm"]["name"])
        found = {name: span for name, span in space.items() if name in there}
        if not found:
            raise FednagError(
                "--space",
                f"{label} has none of these numbers",
                f"it has {', '.join(sorted(there))}",
                given=", ".join(space),
            )
        return found

    def _proposed(
        self, label: str, space: Mapping[str, Span], study: Any, ladder: Sequence[Rung]
    ) -> Trial:
        """One trial: it goes on for as long as it is in the best third so far."""
        asked = study.ask()
        numbers = {
            name: float(f"{asked.suggest_float(name, s.low, s.high, log=s.log):.3g}")
            for name, s in space.items()
        }
        trial = Trial(numbers, None, 0, None, None)
        state = "COMPLETE"
        for place, rung in enumerate(ladder, 1):
            (trial,) = self._tried(label, [trial], rung.iterations)
            if trial.order is None:
                state = "FAIL"
                break
            asked.report(trial.order[0], ETA ** (place - 1))
            if place < len(ladder) and asked.should_prune():
                state = "PRUNED"
                break
        value = trial.order[0] if trial.order and state == "COMPLETE" else None
        study.tell(asked, value, state=_optuna().trial.TrialState[state])
        return trial

    def _tell(self, label: str, trials: Sequence[Trial]) -> None:
        best = _best(trials)
        if self.told and best is not None:
            self.told(f"{label}: {len(trials)} trials; best {best.value:.4g}")

    def table(self, label: str, numbers: Mapping[str, float]) -> dict[str, Any]:
        """The experiment of a method with its numbers, trained on all and tested."""
        table = self.listed[label]
        return {**_final(table), "algorithm": {**table["algorithm"], **numbers}}

    def _trial(self, label: str, numbers: Mapping[str, float], iterations: int) -> Experiment:
        table = self.table(label, numbers)
        training = {**table.get("training", {}), "iterations": iterations}
        table.pop("ledger", None)  # of trials none is kept
        table |= {
            "name": f"{table.get('name', 'run')}-trials",
            "data": {**table["data"], "validation": self.share},
            "training": training,
        }
        parsed = parse(table, self.source)
        # Looked at when it is over: until then it could change nothing.
        once = {"every": -(-iterations // parsed.training.tau), "per_worker": False}
        return parsed.model_copy(update={"evaluation": parsed.evaluation.model_copy(update=once)})

    def _halved(
        self, label: str, scale: Scale, region: Region, places: range, ladder: Sequence[Rung]
    ) -> list[Trial]:
        """Trials at these points of the sequence, the worse two thirds of them given up early."""
        points = [region.point(place) for place in places]
        going = [Trial(scale.numbers(p), float(f"{p[0]:.3g}"), 0, None, None) for p in points]
        over: list[Trial] = []
        for rung in ladder:
            over += going[rung.trials :]
            tried = self._tried(label, going[: rung.trials], rung.iterations)
            order = ranked([trial.order for trial in tried])
            going = [tried[place] for place in order if tried[place].order is not None]
            over += [trial for trial in tried if trial.order is None]
            if self.told:
                best = f"; best {going[0].value:.4g} at step {going[0].step:g}" if going else ""
                lost = len(tried) - len(going)
                tail = f", {lost} diverged" if lost else ""
                words = f"{len(tried)} trials of {rung.iterations} iterations{tail}{best}"
                self.told(f"{label}: {words}")
        return going + over

    def _tried(self, label: str, trials: Sequence[Trial], iterations: int) -> list[Trial]:
        wanted = []
        for trial in trials:
            named = ",".join(f"{name}={value:g}" for name, value in trial.numbers.items())
            wanted.append((f"{label} {named}", self._trial(label, trial.numbers, iterations), None))
        return [
            replace(trial, iterations=iterations, **self._judged(self._run(each)))
            for trial, each in zip(trials, wanted, strict=True)
        ]

    def _run(self, wanted: tuple[str, Experiment, None]) -> Run:
        (run,) = run_all(
            [wanted], out=self.out, resume=self.resume, watch=self.watch, builder=self.builder
        )
        # At steps that are far too large recordings may fail their check. The next trial does not
        # suffer for it: its roundings, and its speed, are those it would have as the first.
        problem = self._problem(wanted[1])
        if problem.gradients.plain or problem.judgements.plain:
            self.builder = Builder(Parts(untested=True))
        return run

    def _problem(self, experiment: Experiment) -> Problem:
        dataset, device = self.builder.dataset(experiment), experiment.engine.device
        return self.builder.problem(experiment, dataset, resolve_device(device))

    def _judged(self, run: Run) -> dict[str, Any]:
        last = run.records[-1]
        value = last.measured(self.measure)
        if run.diverged or value is None or not isfinite(value):
            return {"value": None, "order": None}
        # Of equal accuracies the lower loss counts.
        beside = float("inf") if last.test_loss is None else last.test_loss
        return {"value": value, "order": (-_sign(self.measure, run.experiment) * value, beside)}

    def _slope(self) -> float:
        """The size of a gradient's coordinates at the first model: a root of a mean square.

        What methods go whose steps do not grow with the gradient is measured by it.
        """
        label = next(iter(self.listed))
        problem = self._problem(self._trial(label, {}, 1))
        count = min(len(problem.x), LOOKED_AT)
        places = torch.arange(count, device=problem.device) * (len(problem.x) // count)
        x, y = problem.batch(problem.x, problem.y, places[None])
        weight = torch.full_like(places[None], 1, dtype=problem.dtype) / count
        w, b = problem.initial[None], problem.initial_buffers[None]
        with one_thread():
            gradient, _ = problem.differentiable(w, b, x, y, weight)
        return float(gradient.double().square().mean().sqrt()) or 1.0


def _optuna() -> Any:
    try:
        optuna: Any = import_module("optuna")
    except ImportError:
        raise FednagError(
            "--space", "needs optuna", "install it, e.g. with `make install EXTRAS=tune`"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _best(trials: Sequence[Trial]) -> Trial | None:
    """Of those that did not diverge and went furthest."""
    alive = [trial for trial in trials if trial.order is not None]
    most = max((trial.iterations for trial in alive), default=0)
    last = [trial for trial in alive if trial.iterations == most]
    return last[ranked([trial.order for trial in last])[0]] if last else None


def _widened(
    region: Region, best: Mapping[str, Trial | None], more: int
) -> tuple[Region, list[Region], list[str]]:
    """The space with the borders moved that someone's best lies at; what is new, and who asked."""
    ends = {label: _ends(trial, region) for label, trial in best.items() if trial is not None}
    wide, strips, said = region, [], []
    for end in ("low", "high", "momentum"):
        who = sorted(label for label, mine in ends.items() if end in mine)
        if not who:
            continue
        if end == "low":
            wide = replace(wide, low=region.low / WIDER)
            strips.append(replace(region, low=wide.low, high=region.low))
            to = f"the lowest step, so there are steps down to {wide.low:g}"
        elif end == "high":
            wide = replace(wide, high=region.high * WIDER)
            strips.append(replace(region, low=region.high, high=wide.high))
            to = f"the highest step, so there are steps up to {wide.high:g}"
        else:
            wide = replace(wide, momenta=(*MOMENTA, *MORE_MOMENTA))
            strips.append(replace(wide, momenta=MORE_MOMENTA))
            more_momenta = " and ".join(f"{momentum:g}" for momentum in MORE_MOMENTA)
            to = f"the largest momentum, so there are {more_momenta}"
        named = ", ".join(who[:NAMED]) + f" and {len(who) - NAMED} more" * (len(who) > NAMED)
        said.append(f"{named}: best at {to}, with {more} trials more for every method")
    return wide, strips, said


def _ends(trial: Trial, region: Region) -> list[str]:
    assert trial.step is not None
    found = [end] if (end := border(trial.step, region)) else []
    momenta = [trial.numbers[n] for n in trial.numbers if n.endswith("momentum")]
    return [*found, "momentum"] if region.momenta[-1] in momenta else found


def _borders(trial: Trial, region: Region) -> tuple[str, ...]:
    names = {
        "low": f"the lowest step, {region.low:g}",
        "high": f"the highest step, {region.high:g}",
        "momentum": f"the largest momentum, {region.momenta[-1]:g}",
    }
    return tuple(names[end] for end in _ends(trial, region))


def _measured(
    experiment: Mapping[str, Any], measure: str, source: str
) -> tuple[dict[str, Any], str]:
    """The tables, in which the measure is taken; the accuracy, or where there is none the loss."""
    raw = dict(experiment)
    if measure:
        return with_measure(raw, measure, "--measure", measure), measure
    table = {key: value for key, value in raw.items() if key != "algorithms"}
    table.pop("algorithm", None)
    found = Builder().dataset(parse(table, source))
    return raw, "test_loss" if found.classes is None else "accuracy"


def _final(table: Mapping[str, Any]) -> dict[str, Any]:
    """Tables without what looks at test samples while training: `stop`, and no part cut off."""
    kept = {key: value for key, value in table.items() if key != "stop"}
    data = {key: value for key, value in table.get("data", {}).items() if key != "validation"}
    return {**kept, "data": data}


def _written(table: Mapping[str, Any]) -> dict[str, Any]:
    """A method's table as a file has it."""
    return {key: value for key, value in table.items() if value is not None}


def _sign(measure: str, experiment: Experiment) -> float:
    return 1.0 if better_of(measure, experiment.evaluation.own) == "higher" else -1.0


def _check(budget: int, steps: tuple[float, float], validation: float) -> None:
    if budget < ETA:
        raise FednagError("--budget", remedy=f"give {ETA} trials at least", given=budget)
    low, high = steps
    if not 0 < low < high < float("inf"):
        raise FednagError(
            "--steps", remedy="give two numbers above 0, the lower first", given=f"{low:g},{high:g}"
        )
    if not 0 < validation < 1:
        raise FednagError(
            "--validation", remedy="give a share between 0 and 1", given=f"{validation:g}"
        )
