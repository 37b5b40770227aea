"""Verdicts: does a claim hold on the seeds that were run, fail, or drown in their noise?

Every claim says that some quantity lies in a region: a difference of two methods above 0, an
accuracy within two points of the paper's, a ratio above 1.5. The quantity is taken on every seed
(methods on one seed share split, first weights and batches, so differences are paired), and

- **reproduced**: the 95 % interval of its mean (Student's t) lies in the region,
- **not reproduced**: the interval lies outside the region,
- **undecided**: the interval crosses the region's border.

With fewer than three seeds there is no spread to speak of: the interval is then the mean ± the
check's ``margin`` (a part of the values compared; a tenth of it, absolute, for accuracies), and the
verdict says how many seeds it rests on. A claim of several parts is reproduced when all parts are,
not reproduced when one is not, else undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from math import inf, isfinite
from statistics import mean
from typing import Literal

from fednag.paper.figure import Check, Value
from fednag.paper.records import FigureRecords, Kept
from fednag.runs.statistics import FEW, Spread, average, interval, text

Verdict = Literal["reproduced", "not reproduced", "undecided", "not run"]


@dataclass(frozen=True)
class Region:
    """Where the claim says a quantity lies."""

    low: float = -inf
    high: float = inf

    def holds(self, low: float, high: float) -> Verdict:
        if low > self.low and (high < self.high or self.high == inf):
            return "reproduced"
        if high < self.low or low > self.high:
            return "not reproduced"
        return "undecided"


def located(values: Sequence[float], region: Region, margin: float) -> Verdict:
    """Whether a quantity lies in a region: its interval over seeds, of few its mean ± margin."""
    if all(isfinite(value) for value in values):
        centre = average(values)
        return region.holds(*(interval(values) or (centre - margin, centre + margin)))
    # Something never came, or diverged: there is no mean, and all seeds must agree.
    found = {region.holds(value, value) for value in values}
    return found.pop() if len(found) == 1 else "undecided"


@dataclass(frozen=True)
class Part:
    """One quantity of a claim, on all seeds."""

    words: str
    verdict: Verdict
    seeds: int
    mean: float | None = None
    deviation: float | None = None


@dataclass(frozen=True)
class Finding:
    """A check and what came of it."""

    figure: str
    check: Check
    verdict: Verdict
    parts: tuple[Part, ...]
    ours: str
    seeds: int
    planned: int
    judged: bool = True  # False: the scale is too short for a verdict

    @property
    def words(self) -> str:
        """The verdict; a question of ours is answered, for there is nothing to reproduce."""
        answers = {"reproduced": "yes", "not reproduced": "no"}
        return answers.get(self.verdict, self.verdict) if self.check.beyond else self.verdict

    @property
    def marks(self) -> str:
        """In brackets, whether the question is ours, and whether it came after its runs."""
        words = ["ours"] * self.check.beyond + ["late"] * self.check.late
        return f" ({', '.join(words)})" if words else ""

    @property
    def note(self) -> str:
        """How many seeds it rests on, where that is too few for a spread."""
        if self.verdict == "not run":
            return ""
        if not self.judged:
            return "too short to judge by"
        few = self.seeds < min(FEW, self.planned) or self.planned < FEW
        count = f"{self.seeds} of {self.planned} seeds" if self.planned > 1 else "1 seed"
        return f"{count}: by margin, not spread" if few else ""


def judge(check: Check, records: FigureRecords) -> Finding:
    """The verdict on one check."""
    runs = {label: records.of(label) for label in check.series}
    parts = _TESTS[check.test](check, runs)
    verdicts = [part.verdict for part in parts]
    verdict: Verdict = "undecided"
    if "not run" in verdicts:
        verdict = "not run"
    elif "not reproduced" in verdicts:
        verdict = "not reproduced"
    elif all(one == "reproduced" for one in verdicts):
        verdict = "reproduced"
    seeds = min(part.seeds for part in parts)
    ours = "; ".join(_ours(check, runs, label) for label in check.series if runs[label])
    planned = len(records.planned)
    return Finding(records.figure, check, verdict, tuple(parts), ours, seeds, planned)


Runs = dict[str, dict[int, Kept]]


def _part(words: str, values: Sequence[float], region: Region, margin: float) -> Part:
    if not values:
        return Part(words, "not run", 0)
    verdict = located(values, region, margin)
    if not all(isfinite(value) for value in values):
        return Part(words, verdict, len(values))
    spread = Spread.of(values)
    assert spread is not None
    return Part(words, verdict, len(values), spread.mean, spread.deviation)


def _shared(runs: Runs, labels: Sequence[str]) -> list[int]:
    """Seeds that all of these series have."""
    first, *rest = (set(runs[label]) for label in labels)
    return sorted(first.intersection(*rest))


def _value(check: Check, runs: Runs, label: str, seed: int, at: float | None = None) -> float:
    budget = None
    if check.value.equal_bytes:
        # Megabytes that every run has sent: the total of the thriftiest.
        budget = min(own[seed].megabytes[-1] for own in runs.values() if seed in own)
    return measure(runs[label][seed], check.value, at, budget)


def _pairs(
    check: Check, runs: Runs, one: str, other: str, shared: Sequence[str] = ()
) -> list[tuple[float, float]]:
    """Both series' values on every seed that they share, or that all of ``shared`` do."""
    seeds = _shared(runs, shared or [one, other])
    return [(_value(check, runs, one, s), _value(check, runs, other, s)) for s in seeds]


def _less(a: float, b: float) -> float:
    """a - b; what never arrives is as far as what never arrives."""
    return 0.0 if a == b else a - b


def _margin(check: Check, numbers: Iterable[float]) -> float:
    if check.value.higher_is_better:
        return check.margin / 10
    finite = [abs(number) for number in numbers if isfinite(number)]
    return check.margin * max(finite, default=1.0)


def _advantage(check: Check, runs: Runs, better: str, worse: str) -> Part:
    """By how much one series is better than another; two that never arrive are equal."""
    sign = 1 if check.value.higher_is_better else -1
    shared = check.series if check.value.equal_bytes else [better, worse]
    pairs = _pairs(check, runs, better, worse, shared)
    gaps = [sign * _less(a, b) for a, b in pairs]
    return _part(f"{better} > {worse}", gaps, Region(low=0.0), _margin(check, chain(*pairs)))


def _interior(check: Check, runs: Runs) -> list[Part]:
    """The best of a sweep is not at either end: it beats both ends."""
    seeds = _shared(runs, check.series)
    if not seeds:
        return [Part("all of the sweep", "not run", 0)]
    sign = -1 if check.value.higher_is_better else 1

    def standing(label: str) -> float:
        return sign * average(_value(check, runs, label, seed) for seed in seeds)

    inner = min(check.series[1:-1], key=standing)
    ends = (check.series[0], check.series[-1])
    return [_advantage(check, runs, inner, end) for end in ends]


def _region(check: Check) -> Region:
    low = -inf if check.low is None else check.low
    return Region(low, inf if check.high is None else check.high)


def _inside(check: Check, quantities: Mapping[str, Sequence[float]]) -> list[Part]:
    """Whether each quantity lies in the check's region."""
    return [
        _part(words, values, _region(check), _margin(check, values))
        for words, values in quantities.items()
    ]


def _within(check: Check, runs: Runs) -> list[Part]:
    return _inside(
        check,
        {label: [_value(check, runs, label, s) for s in sorted(runs[label])] for label in runs},
    )


def _difference(check: Check, runs: Runs) -> list[Part]:
    """The first series less each of the others."""
    first, *rest = check.series
    parts = []
    for other in rest:
        pairs = _pairs(check, runs, first, other)
        values, margin = [_less(a, b) for a, b in pairs], _margin(check, chain(*pairs))
        parts.append(_part(f"{first} less {other}", values, _region(check), margin))
    return parts


def _reduction(check: Check, runs: Runs) -> list[Part]:
    """The part of a rival's loss or time that is saved.

    Of a rival that never arrived only the least saving is known, from how far it was run: that can
    refute a claim, never confirm one.
    """
    first, *rest = check.series
    parts = []
    for other in rest:
        seeds, pairs = _shared(runs, [first, other]), _pairs(check, runs, first, other)
        never = any(b == inf for _, b in pairs) and check.value.of in ("iterations", "seconds")
        values = [
            _saved(a, last_seen(runs[other][seed], check.value) if b == inf and never else b)
            for seed, (a, b) in zip(seeds, pairs, strict=True)
        ]
        words = f"{first} against {other}" + (", which never arrived" if never else "")
        # Values a part too small or too large change what is left of the rival's by that part.
        left = [1 - value for value in values if isfinite(value)]
        margin = check.margin * max(left, default=1.0)
        part = _part(words, values, _region(check), margin)
        high = inf if check.high is None else check.high
        refuted = part.verdict == "not reproduced" and (part.mean or 0.0) > high
        parts.append(replace(part, verdict="undecided") if never and not refuted else part)
    return parts


def _saved(a: float, b: float) -> float:
    if a == inf:
        return 0.0 if b == inf else -inf
    return 1.0 if b == inf else 1 - _over(a, b)


def _over(a: float, b: float) -> float:
    """a / b, also where there is nothing to divide by."""
    if a == b:
        return 1.0
    return inf if b == 0 else a / b


def _ratio(check: Check, runs: Runs) -> list[Part]:
    """Each step along the series multiplies the value by something in the region."""
    steps = {
        f"{there} / {here}": [_over(b, a) for a, b in _pairs(check, runs, here, there)]
        for here, there in pairwise(check.series)
    }
    return _inside(check, steps)


def _closer(check: Check, runs: Runs) -> list[Part]:
    """The first and the last series are nearer to each other at the end than early on."""
    first, last = check.series[0], check.series[-1]
    shrunk, sizes = [], []
    for seed in _shared(runs, [first, last]):
        early, late = (
            [_value(check, runs, label, seed, at) for label in (first, last)]
            for at in (check.early, check.value.at)
        )
        shrunk.append(_less(*(abs(_less(a, b)) for a, b in (early, late))))
        sizes += [*early, *late]
    words = f"gap of {first} and {last}, early less late"
    return [_part(words, shrunk, Region(low=0.0), _margin(check, sizes))]


def _fails(check: Check, runs: Runs) -> list[Part]:
    """The loss does not come down: its end over its beginning, infinite where it diverged."""
    falls = {
        f"{label}: last loss / first": [
            _over(measure(run, check.value), inf if run.loss[0] is None else run.loss[0])
            for _, run in sorted(own.items())
        ]
        for label, own in runs.items()
    }
    return _inside(check, falls)


_TESTS: dict[str, Callable[[Check, Runs], list[Part]]] = {
    "order": lambda check, runs: [_advantage(check, runs, *two) for two in pairwise(check.series)],
    "best": lambda check, runs: [
        _advantage(check, runs, check.series[0], other) for other in check.series[1:]
    ],
    "interior": _interior,
    "within": _within,
    "difference": _difference,
    "reduction": _reduction,
    "ratio": _ratio,
    "closer": _closer,
    "fails": _fails,
}


def _ours(check: Check, runs: Runs, label: str) -> str:
    # What is compared is shown on the seeds on which it is compared.
    others = [label] if check.test in ("within", "fails") else [s for s in check.series if runs[s]]
    if check.value.equal_bytes:
        others = check.series
    seeds = _shared(runs, others)
    if not seeds:
        return f"{label} -"
    return f"{label} {told(check, [_value(check, runs, label, seed) for seed in seeds])}"


def told(check: Check, values: Sequence[float]) -> str:
    """Mean and spread over seeds, as the measure is usually written."""
    never = sum(not isfinite(value) for value in values)
    if never:
        word = "diverged" if check.value.of == "loss" else "never"
        return word if never == len(values) else f"{word} on {never} of {len(values)} seeds"
    forms = {"iterations": "{:,.0f}", "seconds": "{:,.1f} s"}
    form = "{:.2%}" if check.value.higher_is_better else forms.get(check.value.of, "{:.4g}")
    return text(Spread.of(values), form)


def crossings(run: Kept, to_loss: float | None, to_accuracy: float | None) -> list[int]:
    """Places of the evaluations at which a target is met and was not met by the one before.

    As loss and accuracy oscillate, a target may be met several times.
    """
    found, before = [], False
    for place, (loss, accuracy) in enumerate(zip(run.loss, run.accuracy, strict=True)):
        met = run.iteration[place] > 0
        if to_loss is not None:
            met = met and loss is not None and loss <= to_loss
        if to_accuracy is not None:
            met = met and accuracy is not None and accuracy >= to_accuracy
        if met and not before:
            found.append(place)
        before = met
    return found


def marks(run: Kept, to_loss: float | None, to_accuracy: float | None) -> tuple[float, ...]:
    """(first, mean, last) iteration at which the target is reached; infinite if it never is."""
    at = [run.iteration[place] for place in crossings(run, to_loss, to_accuracy)]
    return (at[0], mean(at), at[-1]) if at else (inf, inf, inf)


def measure(run: Kept, value: Value, at: float | None = None, budget: float | None = None) -> float:
    """The value of a run; what has diverged is as bad as can be."""
    if value.of in ("iterations", "seconds"):
        if value.of == "iterations":
            number = ("first", "mean", "last").index(value.mark)
            return marks(run, value.to_loss, value.to_accuracy)[number]
        places = crossings(run, value.to_loss, value.to_accuracy)
        return run.seconds[places[0]] if places and run.seconds else inf
    at_place = place(run, value.at if at is None else at, budget)
    found = run.column(value.of)[at_place]
    # A run that diverged has no more records: its last stands for all that would follow.
    gone = run.diverged and at_place == len(run.iteration) - 1
    if found is None or gone:
        return 0.0 if value.higher_is_better else inf
    return found


def place(run: Kept, at: float, budget: float | None = None) -> int:
    """The evaluation nearest to a part of T, or the last within a budget of megabytes."""
    if budget is not None:
        within = (i for i, sent in enumerate(run.megabytes) if sent <= budget * (1 + 1e-9))
        return max(within, default=0)
    target = at * run.iterations
    return min(range(len(run.iteration)), key=lambda i: abs(run.iteration[i] - target))


def last_seen(run: Kept, value: Value) -> float:
    """How far a run went, in iterations or seconds: a target it did not reach lies beyond."""
    far = run.seconds if value.of == "seconds" else run.iteration
    return float(far[-1]) if far else inf
