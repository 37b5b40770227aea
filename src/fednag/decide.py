"""Who is ahead of whom: seeds one after the other, until it is decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isinf
from pathlib import Path
from typing import Any

from fednag.api import Elsewhere, Started, run_all
from fednag.config import methods, parse
from fednag.errors import FednagError
from fednag.problems.metrics import better_of
from fednag.results import Run, Shown
from fednag.runs.build import Builder
from fednag.runs.interrupts import Watch
from fednag.runs.paired import SHARES
from fednag.runs.sequential import Claim, Evidence, judged
from fednag.runs.targets import with_measure
from fednag.runs.view import RunView

__all__ = ["Decision", "Pair", "decide"]

MOST_SEEDS = 100


@dataclass(frozen=True)
class Pair:
    """Two methods, and what their runs on the same seeds say.

    Differences are those of the first minus the second, above 0 where the first is better; of
    accuracies, in percentage points.
    """

    first: str
    second: str
    differences: tuple[float, ...]
    evidence: Evidence | None  # None: a run diverged
    claim: Claim | None
    needed: int | None  # seeds that would decide it, about; None: decided, or no number would
    diverged: tuple[str, ...] = ()  # the methods with a run that diverged


@dataclass(frozen=True, eq=False)
class Decision(Shown):
    """What is decided of each pair of methods, and with what confidence.

    Its ``rows("differences")`` are the pairs, with the intervals that hold at every seed.
    """

    measure: str
    margin: float
    confidence: float
    pairs: list[Pair]
    runs: list[Run]

    @property
    def views(self) -> list[RunView]:
        return [run.view for run in self.runs]

    def rows(self, of: str = "records") -> list[dict[str, Any]]:
        if of != "differences":
            return super().rows(of)
        return [self._row(pair) for pair in self.pairs]

    def _row(self, pair: Pair) -> dict[str, Any]:
        said = pair.evidence
        low, high = (said.low, said.high) if said else (None, None)
        return {
            "first": pair.first,
            "second": pair.second,
            "measure": self.measure,
            "seeds": len(pair.differences),
            "difference": said.mean if said and said.count else None,
            "low": None if low is None or isinf(low) else low,
            "high": None if high is None or isinf(high) else high,
            "confidence": self.confidence,
            "decided": pair.claim,
        }

    def _latex(self) -> str:
        from fednag.show.export import latex_text

        won: dict[str, int] = {}
        for pair in self.pairs:
            if pair.claim in ("ahead", "behind"):
                ahead = pair.first if pair.claim == "ahead" else pair.second
                won[ahead] = won.get(ahead, 0) + 1
        rivals = len({label for pair in self.pairs for label in (pair.first, pair.second)}) - 1
        best = next((label for label, beaten in won.items() if beaten == rivals), None)
        return latex_text(self.views, {self.measure: best}, self.confidence)

    @property
    def decided(self) -> bool:
        return all(pair.claim for pair in self.pairs)

    @property
    def sentences(self) -> list[str]:
        """A sentence a pair."""
        return [self._sentence(pair) for pair in self.pairs]

    def shown(self, value: float) -> str:
        """A difference of the measure."""
        unit = " points" if self.measure in SHARES else f" of {self.measure}"
        return f"{value:.3g}{unit}"

    def _sentence(self, pair: Pair) -> str:
        first, second = pair.first, pair.second
        if pair.diverged:
            return f"{first} and {second}: not decided; {' and '.join(pair.diverged)} diverged"
        count = f"{len(pair.differences)} seed{'s' * (len(pair.differences) != 1)}"
        sure = f"({self.confidence * 100:.6g}%, after {count})"
        if pair.claim == "level":
            return f"{first} and {second} are less than {self.shown(self.margin)} apart {sure}"
        if pair.claim is not None:
            ahead, other = (first, second) if pair.claim == "ahead" else (second, first)
            by = f" by at least {self.shown(self.margin)}" if self.margin else ""
            return f"{ahead} is ahead of {other}{by} {sure}"
        more = "no number of seeds that one could run would decide it"
        if pair.needed is not None:
            more = f"about {pair.needed} seeds would be needed"
        return f"{first} and {second}: not decided after {count}; {more}"


def decide(
    experiment: Mapping[str, Any],
    *,
    algorithms: Sequence[str] = ("fednag", "fedmom"),
    margin: float = 0.0,
    confidence: float = 0.99,
    measure: str = "accuracy",
    seconds: float = float("inf"),
    seeds: int = MOST_SEEDS,
    out: str | Path | None = None,
    started: Started | None = None,
    told: Callable[[Decision], None] | None = None,
    resume: bool = False,
    watch: Watch | None = None,
    source: str = "decide",
    on: Elsewhere | None = None,
) -> Decision:
    """Train methods on seed after seed until it is decided who is ahead by ``margin``.

    ``experiment`` is an experiment file's tables; the first seed is its own. Runs of one seed
    share data split, first weights and batches, and their final values of ``measure`` are compared
    pair by pair. The chance that any pair is judged wrongly is ``1 - confidence`` at most, although
    it looks after every seed. It stops when every pair is decided, after ``seeds`` seeds, or when
    the next seed would probably not end within ``seconds``. For accuracies ``margin`` is in
    percentage points.

    >>> from fednag.decide import decide
    >>> tables = {"model": {"name": "logistic"}, "training": {"tau": 5, "iterations": 20}}
    >>> found = decide(tables, algorithms=["fednag", "fedavg"], margin=0.1, seeds=8)
    >>> found.decided, found.sentences[0].split(" (")[0]
    (True, 'fednag is ahead of fedavg by at least 0.1 points')
    """
    measured = with_measure(experiment, measure, "--measure", measure)
    listed = _methods(measured, algorithms, source)
    _check(margin, confidence, seconds, seeds)
    began, builder, first = (
        time.monotonic(),
        Builder(),
        parse(next(iter(listed.values())), source).seed,
    )
    found: dict[str, list[Run]] = {label: [] for label in listed}
    wanted, longest = set(listed), 0.0
    for count in range(1, seeds + 1):
        start = time.monotonic()
        if count > 1 and start - began + longest > seconds:
            break
        each = [
            (label, parse({**table, "seed": first + count - 1}, source), None)
            for label, table in listed.items()
            if label in wanted
        ]
        where = None if out is None else Path(out)
        for run in run_all(
            each, None, where, started, resume=resume, watch=watch, builder=builder, on=on
        ):
            found[run.label].append(run)
        longest = max(longest, time.monotonic() - start)
        decision = _decision(found, measure, margin, confidence, builder)
        if told:
            told(decision)
        open_ = [pair for pair in decision.pairs if pair.claim is None and not pair.diverged]
        wanted = {label for pair in open_ for label in (pair.first, pair.second)}
        if not wanted:
            break
    return decision


def _decision(
    found: Mapping[str, list[Run]],
    measure: str,
    margin: float,
    confidence: float,
    builder: Builder,
) -> Decision:
    """What all pairs' runs say so far."""
    runs = [run for group in found.values() for run in group]
    own = runs[0].experiment.evaluation.own
    sign = 1.0 if better_of(measure, own) == "higher" else -1.0
    scale = sign * (100 if measure in SHARES else 1)
    tests = len(builder.dataset(runs[0].experiment).test_x)
    resolution = 100 / tests if measure in SHARES and tests else 0.0
    differences: dict[tuple[str, str], list[float]] = {}
    diverged: dict[tuple[str, str], tuple[str, ...]] = {}
    for pair in combinations(found, 2):
        lost = tuple(label for label in pair if any(run.diverged for run in found[label]))
        if lost:
            diverged[pair] = lost
            continue
        each = zip(found[pair[0]], found[pair[1]], strict=False)
        differences[pair] = [scale * (_final(a, measure) - _final(b, measure)) for a, b in each]
    alpha = 1 - confidence
    evidence = judged(differences, margin, alpha, resolution)
    pairs = []
    for pair in combinations(found, 2):
        if pair in diverged:
            pairs.append(Pair(*pair, (), None, None, None, diverged[pair]))
            continue
        said = evidence[pair]
        claim = said.claim(margin)
        needed = None if claim else said.needed(margin, alpha / len(differences))
        pairs.append(Pair(*pair, tuple(differences[pair]), said, claim, needed))
    return Decision(measure, margin, confidence, pairs, runs)


def _final(run: Run, measure: str) -> float:
    value = run.records[-1].measured(measure)
    if value is None:
        raise FednagError(
            "--measure", f"{run.label} has no value of it at its end", "use another", given=measure
        )
    return value


def _methods(
    experiment: Mapping[str, Any], algorithms: Sequence[str], source: str
) -> dict[str, dict[str, Any]]:
    listed = dict(methods(experiment, list(algorithms), source))
    if len(listed) < 2:
        raise FednagError(
            "algorithms", remedy="name two methods at least, e.g. fednag,fedmom", source=source
        )
    return listed


def _check(margin: float, confidence: float, seconds: float, seeds: int) -> None:
    if not 0 <= margin < float("inf"):
        raise FednagError("--margin", remedy="give a number from 0 up", given=f"{margin:g}")
    if not 0.5 <= confidence < 1:
        raise FednagError(
            "--confidence", remedy="give a number from 0.5 to below 1", given=f"{confidence:g}"
        )
    if not seconds > 0:
        raise FednagError(
            "--budget", remedy="give a time above 0, e.g. 30min", given=f"{seconds:g}"
        )
    if seeds < 2:
        raise FednagError("--most-seeds", remedy="give 2 at least", given=seeds)
