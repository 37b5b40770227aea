"""Where methods' numbers are looked for, the same for all methods, and which trials go on.

A point is an effective step and a momentum for every number of the method that is one. The
effective step is how far a method goes in a local iteration where the gradient is always the same,
per size of that gradient: ``lr`` for FedAvg, ``lr / (1 - momentum)`` for FedNAG, ``lr`` again for
methods whose momentum is a mean of gradients. It is found by running the method's own rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, isclose, isfinite, log10
from typing import Any

import torch

from fednag.algorithms.local import OPTIONS
from fednag.core.algorithm import Algorithm, News, Slopes, local_round, server_round
from fednag.core.vectors import Vector
from fednag.errors import FednagError

ETA = 3  # one trial in so many goes on, for so many times as long
FULL = 3  # rungs: the last one is as long as a run
MOMENTA = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
MORE_MOMENTA = (0.99, 0.995)  # tried if the largest of those is best
MOMENTUM_NUMBERS = ("momentum", "local_momentum")
STEP_NUMBERS = ("lr", "server_lr")
WIDER = 10.0  # by what a border is moved
EDGE = 0.1  # a step in this part of the range, on a logarithmic scale, lies at its border
FAR = 100.0  # times a number, over which a method is to go in proportion to it
SETTLED = 4  # a momentum's memories, after which a method goes steadily

# Additive recurrence in three dimensions: 1/r, 1/r^2, 1/r^3 of the root of r^4 = r + 1.
_ROOT = 1.2207440846057596


@dataclass(frozen=True)
class Region:
    """A part of the space: steps from ``low`` to ``high``, and these momenta."""

    low: float
    high: float
    momenta: tuple[float, ...] = MOMENTA

    def point(self, number: int) -> tuple[float, tuple[float, ...]]:
        """Point ``number`` of the sequence: a step, and a momentum for each that there may be."""
        u, *rest = ((0.5 + number / _ROOT**power) % 1 for power in (1, 2, 3))
        step = self.low * (self.high / self.low) ** u
        return step, tuple(self.momenta[int(v * len(self.momenta))] for v in rest)


@dataclass(frozen=True)
class Span:
    """The values of a number in a space of one's own, ``FIELD=LOW:HIGH`` or ``FIELD=LOW:HIGH:log``.

    >>> from fednag.runs.search import Span
    >>> Span.read("lr=0.001:1:log")
    ('lr', Span(low=0.001, high=1.0, log=True))
    """

    low: float
    high: float
    log: bool = False

    @classmethod
    def read(cls, text: str) -> tuple[str, Span]:
        name, _, values = text.partition("=")
        low, _, rest = values.partition(":")
        high, colon, scale = rest.partition(":")
        try:
            found = cls(float(low), float(high), scale == "log")
        except ValueError:
            found = cls(0.0, 0.0)
        sound = -inf < found.low < found.high < inf and (found.low > 0 or not found.log)
        if not name or not sound or (colon and scale != "log"):
            raise FednagError(
                "--space",
                remedy="write e.g. mu=0:1, or lr=0.001:1:log, the lower first",
                given=text,
            )
        return name, found


@dataclass(frozen=True)
class Rung:
    """So many trials of a method, each of so many iterations."""

    trials: int
    iterations: int


def rungs(budget: int, iterations: int, tau: int) -> list[Rung]:
    """Successive halving: a third of the trials goes on, three times as long; the last is full.

    >>> from fednag.runs.search import rungs
    >>> [(rung.trials, rung.iterations) for rung in rungs(40, 1000, 20)]
    [(40, 120), (13, 340), (4, 1000)]
    """
    found: list[Rung] = []
    for place in range(FULL):
        share = ETA ** (FULL - 1 - place)
        whole = min(ceil(iterations / share / tau) * tau, iterations)
        trials = max(budget // ETA**place, 1)
        if found and found[-1].iterations == whole:  # rounds cannot be shorter
            continue
        found.append(Rung(trials, whole))
    return found


def ranked(values: Sequence[tuple[float, ...] | None]) -> list[int]:
    """The places of trials, best first: the least value; None, which diverged, comes last.

    >>> from fednag.runs.search import ranked
    >>> ranked([(2.0,), None, (1.0,), (2.0,)])
    [2, 0, 3, 1]
    """
    return sorted(range(len(values)), key=lambda place: (values[place] or (inf,), place))


def border(step: float, region: Region) -> str | None:
    """Whether a step lies at an end of the range: "low" or "high".

    >>> from fednag.runs.search import Region, border
    >>> [border(step, Region(0.01, 10.0)) for step in (0.011, 0.3, 9.0)]
    ['low', None, 'high']
    """
    place = log10(step / region.low) / log10(region.high / region.low)
    return "low" if place < EDGE else "high" if place > 1 - EDGE else None


@dataclass(frozen=True)
class Scale:
    """How a method's numbers follow from a point."""

    algorithm: Algorithm
    number: str  # that sets the step
    slope: float
    tau: int
    is_linear: bool  # else that number is taken as the step itself
    # Effective steps that were found, by momenta.
    known: dict[tuple[float, ...], float] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(cls, algorithm: Algorithm, slope: float, tau: int) -> Scale:
        """Of a method where gradients' coordinates have the size ``slope``.

        Its step is the first of ``lr`` and ``server_lr`` that what it goes is proportional to.
        """
        off = {name: 0.0 for name in OPTIONS if hasattr(algorithm, name)}
        bare = replace(algorithm, **off)  # type: ignore[type-var]
        there = [name for name in STEP_NUMBERS if hasattr(algorithm, name)]
        for name in there:
            first = getattr(bare, name)
            once, more = (
                moved(replace(bare, **{name: value}), slope, tau)  # type: ignore[type-var]
                for value in (first, FAR * first)
            )
            if isfinite(more) and once > 0 and isclose(more, FAR * once, rel_tol=0.05):
                return cls(bare, name, slope, tau, True)
        return cls(bare, there[0] if there else "", slope, tau, False)

    @property
    def momenta(self) -> tuple[str, ...]:
        """Those of the method's numbers that are momenta."""
        return tuple(name for name in MOMENTUM_NUMBERS if hasattr(self.algorithm, name))

    def numbers(self, point: tuple[float, Sequence[float]]) -> dict[str, float]:
        """The method's numbers at a point, of three digits."""
        step, momenta = point
        found = dict(zip(self.momenta, momenta, strict=False))
        if not self.number:
            return found
        value = step / self._steps_per(found)
        return {self.number: float(f"{value:.3g}"), **found}

    def _steps_per(self, momenta: Mapping[str, float]) -> float:
        """The effective step of one unit of the number that sets it."""
        if not self.is_linear:
            return 1.0
        key = tuple(momenta.values())
        if key not in self.known:
            rule: Any = replace(self.algorithm, **momenta)  # type: ignore[type-var]
            here = moved(rule, self.slope, self.tau) / self.slope
            self.known[key] = here / float(getattr(rule, self.number))
        return self.known[key]


def moved(algorithm: Algorithm, slope: float, tau: int) -> float:
    """How far a method goes in a local iteration, once it goes steadily down a constant slope.

    >>> from fednag import FedAvg, FedNAG, MimeLite
    >>> from fednag.runs.search import moved
    >>> rules = FedAvg(lr=0.1), FedNAG(lr=0.1, momentum=0.9), MimeLite(lr=0.1, momentum=0.9)
    >>> [round(moved(rule, slope=1.0, tau=5), 3) for rule in rules]
    [0.1, 1.0, 0.1]
    """
    momenta = [getattr(algorithm, name, 0.0) for name in MOMENTUM_NUMBERS]
    # A momentum over several rounds remembers for longer.
    memory = getattr(algorithm, "window", 1) / (1 - min(max(momenta), MORE_MOMENTA[-1]))
    rounds = ceil(SETTLED * memory) + 6  # the last third of them is looked at
    way = list(_path(algorithm, slope, tau, 3 * rounds // 2))
    return abs(way[-1] - way[rounds - 1]) / (len(way) - rounds) / tau


def _path(algorithm: Algorithm, slope: float, tau: int, rounds: int) -> Iterator[float]:
    """Where the server's weight is after each round, with one worker on a constant slope."""

    def grad(w: Vector) -> Vector:
        return torch.full_like(w, slope)

    start = torch.zeros(1, dtype=torch.float64)
    server, mine = algorithm.init(start), algorithm.memory(start).map(lambda v: v.expand(1, -1))
    for number in range(rounds):
        for stage in algorithm.stages:
            drawn = stage.draw(0, number + 1)
            rule: Any = replace(stage, **drawn) if drawn else stage  # type: ignore[type-var]
            sent = server.pick(rule.down).map(lambda vector: vector.expand(1, -1))
            steps = [] if rule.asks else [grad] * tau
            up, kept, _ = local_round(rule, sent, mine, steps, Slopes(grad))
            if not rule.asks:
                mine = rule.settle(kept, up)
            news = News(steps=len(steps), round=number, iteration=number * tau)
            server = server_round(rule, server, up.map(lambda v: v.reshape(-1)), news)
        yield float(server.w[0])
