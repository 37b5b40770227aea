"""How long things take, drawn from samples or a distribution, and when a device can be reached.

Nothing here keeps a generator: whoever draws brings one, keyed by what the draw is for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, floor, inf, isfinite, log
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

Sampling = Literal["bootstrap", "recorded", "lognormal"]
"""How samples become delays: drawn with replacement, in their order, or from a fitted lognormal."""

SAMPLINGS: tuple[str, ...] = get_args(Sampling)

Seconds = NDArray[np.float64]
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


class Times(Protocol):
    """A delay that varies.

    >>> from fednag.clock import Lognormal, Recorded
    >>> [times.mean for times in (Recorded((1.0, 3.0)), Lognormal(2.0))]
    [2.0, 2.0]
    """

    @property
    def varies(self) -> bool:
        """Whether two draws may differ by chance."""

    @property
    def mean(self) -> float: ...

    def draw(self, rng: np.random.Generator, count: int, start: int) -> Seconds:
        """``count`` delays; ``start`` says how many came before them, for those kept in order."""


@dataclass(frozen=True)
class Recorded:
    """Samples as they were taken, again from the first when they are used up.

    >>> import numpy as np
    >>> from fednag.clock import Recorded
    >>> Recorded((0.1, 0.3)).draw(np.random.default_rng(0), count=3, start=0).tolist()
    [0.1, 0.3, 0.1]
    """

    samples: tuple[float, ...]

    @property
    def varies(self) -> bool:
        return False

    @property
    def mean(self) -> float:
        return float(np.mean(self.samples))

    def draw(self, rng: np.random.Generator, count: int, start: int) -> Seconds:
        return np.take(np.asarray(self.samples), np.arange(start, start + count), mode="wrap")


@dataclass(frozen=True)
class Bootstrap(Recorded):
    """Samples drawn with replacement.

    >>> import numpy as np
    >>> from fednag.clock import Bootstrap
    >>> drawn = Bootstrap((0.1, 0.3)).draw(np.random.default_rng(0), count=9, start=0)
    >>> sorted(set(drawn.tolist()))
    [0.1, 0.3]
    """

    @property
    def varies(self) -> bool:
        return len(set(self.samples)) > 1

    def draw(self, rng: np.random.Generator, count: int, start: int) -> Seconds:
        chosen = rng.integers(len(self.samples), size=count)
        return np.asarray(self.samples)[chosen]


@dataclass(frozen=True)
class Lognormal:
    """``median`` times e to the power of a normal number with deviation ``spread``.

    >>> from fednag.clock import Lognormal
    >>> round(Lognormal(2.0, spread=0.5).mean, 4), Lognormal(2.0).varies
    (2.2663, False)
    """

    median: float
    spread: float = 0.0

    @classmethod
    def fit(cls, samples: Sequence[float]) -> Lognormal:
        """The distribution whose logarithms have the samples' mean and deviation."""
        logs = np.log(np.asarray(samples, dtype=np.float64))
        deviation = float(logs.std(ddof=1)) if len(logs) > 1 else 0.0
        return cls(exp(float(logs.mean())), deviation)

    @property
    def varies(self) -> bool:
        return self.spread > 0

    @property
    def mean(self) -> float:
        return self.median * exp(self.spread**2 / 2)

    def draw(self, rng: np.random.Generator, count: int, start: int) -> Seconds:
        return rng.lognormal(log(self.median), self.spread, count)


def times_of(samples: Sequence[float], sampling: str) -> Times:
    """Samples as delays, in the way ``sampling`` names."""
    if sampling == "recorded":
        return Recorded(tuple(samples))
    if sampling == "lognormal":
        return Lognormal.fit(samples)
    return Bootstrap(tuple(samples))


STEADY = Lognormal(1.0)
"""Always 1."""


@dataclass(frozen=True)
class Transfer:
    """A link in one direction: (latency + bytes x seconds per byte), times what varies.

    >>> from fednag.clock import Transfer
    >>> round(Transfer.fit([(1000, 0.1), (3000, 0.2)], "recorded").expected(5000), 9)
    0.3
    """

    latency: float
    seconds_per_byte: float
    factor: Times = field(default=STEADY)

    @classmethod
    def fit(cls, samples: Sequence[tuple[int, float]], sampling: str) -> Transfer:
        """From samples (bytes, seconds): least squares of relative errors, nothing below 0.

        What the line leaves over becomes the factor that varies, so that a link with a single
        sample takes exactly that long for that size. If all have one size, the time is taken to be
        in proportion to bytes.
        """
        sizes = np.array([size for size, _ in samples], dtype=np.float64)
        seconds = np.array([second for _, second in samples], dtype=np.float64)
        latency, slope = _line(sizes, seconds)
        factors = seconds / (latency + slope * sizes)
        return cls(latency, slope, times_of(factors.tolist(), sampling))

    @property
    def varies(self) -> bool:
        return self.factor.varies

    def mean(self, size: int) -> float:
        return self.expected(size) * self.factor.mean

    def expected(self, size: int) -> float:
        return self.latency + size * self.seconds_per_byte

    def latent(self, seconds: float, size: int) -> float:
        """How much of a transfer's seconds its latency takes."""
        return seconds * self.latency / self.expected(size) if seconds else 0.0

    def draw(self, rng: np.random.Generator, size: int, start: int) -> float:
        """Seconds for ``size`` bytes; sending nothing takes no time."""
        factor = float(self.factor.draw(rng, 1, start)[0])
        return self.expected(size) * factor if size else 0.0


def _line(sizes: Seconds, seconds: Seconds) -> tuple[float, float]:
    """(latency, seconds per byte), neither negative."""
    per_byte = float(_best(sizes / seconds))
    if len(set(sizes.tolist())) == 1:
        return 0.0, per_byte
    rows = np.stack([1 / seconds, sizes / seconds], axis=1)
    latency, slope = np.linalg.lstsq(rows, np.ones(len(sizes)), rcond=None)[0]
    if not isfinite(latency) or latency < 0:
        return 0.0, per_byte
    if slope < 0:
        return float(_best(1 / seconds)), 0.0
    return float(latency), float(slope)


def _best(ratios: Seconds) -> np.float64:
    """The number x that makes all of x * ratio as close to 1 as can be."""
    return np.float64((ratios.sum()) / (ratios**2).sum())


@dataclass(frozen=True)
class Availability:
    """Reachable from each ``start`` to each ``end``; with a ``period``, again after it.

    ``shift`` moves everything to later, so that devices of one kind need not all leave at once.
    No intervals: always reachable. Where a device moves, ``rates`` are the share of its links'
    rate in each interval, and ``units`` say who serves it there; in intervals that touch and have
    one unit it is the same contact. With ``whole``, what was begun in one contact is lost where it
    is not over within it.

    >>> from fednag.clock import Availability
    >>> shifts = Availability(((0, 60),), period=100)  # on for 60 s of every 100
    >>> shifts.is_on(70), shifts.next(70), shifts.after(50, 20)
    (False, 100.0, 110.0)
    >>> passing = Availability(((0, 10), (10, 30)), rates=(0.5, 1.0), units=(0, 0))
    >>> passing.after(4, 5), passing.leaves(4)  # 3 s' worth by 10 s
    (12.0, 30.0)
    """

    intervals: tuple[tuple[float, float], ...] = ()
    period: float | None = None
    shift: float = 0.0
    rates: tuple[float, ...] = ()
    units: tuple[int, ...] = ()
    whole: bool = False

    def is_on(self, moment: float) -> bool:
        return self.next(moment) == moment

    def next(self, moment: float) -> float:
        """The first moment from ``moment`` on at which the device is reachable, or infinity."""
        if not self.intervals:
            return moment
        for _, start, end in self._from(moment):
            if end > moment:
                return max(start, moment)
        return inf

    def after(self, moment: float, seconds: float) -> float:
        """When ``seconds`` at the links' full rate will have passed since ``moment``, or infinity.

        What is under way when the device leaves goes on when it is back.
        """
        if not self.intervals or not seconds:
            return moment + seconds
        left = seconds
        if self.period is not None:
            # Whole periods at once: each holds the same time, wherever it begins.
            periods = max(0, floor(left / self._served) - 1)
            moment, left = moment + periods * self.period, left - periods * self._served
        for place, start, end in self._from(moment):
            if end <= moment:
                continue
            begin, rate = max(start, moment), self.rates[place] if self.rates else 1.0
            room = (end - begin) * rate
            if left <= room:
                return begin + left / rate
            left -= room
        return inf

    def served(self, start: float, end: float) -> float:
        """Seconds of reachable time between two moments."""
        if not self.intervals or end <= start:
            return max(0.0, end - start)
        found = 0.0
        for _, begin, over in self._from(start):
            if begin >= end:
                break
            found += max(0.0, min(over, end) - max(begin, start))
        return found

    def leaves(self, moment: float) -> float:
        """The end of the contact that holds ``moment``, or ``moment`` if none does."""
        if not self.intervals:
            return inf
        over, unit = moment, None
        for place, start, end in self._from(moment):
            if end <= moment:
                continue
            here = self.units[place] if self.units else -1
            if start > over or unit not in (None, here):
                break
            if self.period is not None and end - moment > 2 * self.period:
                return inf  # it is never over
            over, unit = end, here
        return over

    def arrival(
        self, start: float, down: float, compute: float, up: float, again: bool = False
    ) -> float:
        """When an upload is complete after a download and computing, or infinity.

        With ``again``, what a contact is too short for is begun anew in the next.
        """
        began = start
        while True:
            end = self.after(self.after(start, down) + compute, up)
            if not self.whole or end == inf or end <= (over := self.leaves(self.next(start))):
                return end
            start = max(over, self.next(over))
            if not again or start - began > 2 * (self.period or inf):
                return inf

    def unit(self, moment: float) -> int | None:
        """Who serves the device, if somebody does."""
        for place, start, end in self._from(moment) if self.units else ():
            if end > moment:
                return self.units[place] if start <= moment else None
        return None

    @cached_property
    def _served(self) -> float:
        """Seconds at the full rate that a period holds."""
        rates = self.rates or (1.0,) * len(self.intervals)
        lengths = [end - start for start, end in self.intervals]
        return sum(length * rate for length, rate in zip(lengths, rates, strict=True))

    @cached_property
    def _ends(self) -> list[float]:
        return [end for _, end in self.intervals]

    def _from(self, moment: float) -> Iterator[tuple[int, float, float]]:
        """Intervals in order, from one before the first that ends after ``moment`` on: its place
        among ``intervals``, its start and end."""
        if self.period is None:
            first = max(0, bisect_right(self._ends, moment - self.shift) - 1)
            for place in range(first, len(self.intervals)):
                start, end = self.intervals[place]
                yield place, start + self.shift, end + self.shift
            return
        lap = floor((moment - self.shift) / self.period)
        phase = moment - self.shift - lap * self.period
        first = bisect_right(self._ends, phase) - 1
        while True:
            if first < 0:
                lap, first = lap - 1, first + len(self.intervals)
            offset = lap * self.period + self.shift
            for place in range(first, len(self.intervals)):
                start, end = self.intervals[place]
                yield place, start + offset, end + offset
            lap, first = lap + 1, 0


ALWAYS = Availability()
DAY = 86400.0


def of_day(
    daily: Iterable[tuple[str, str]], zone: float, begins: str
) -> tuple[tuple[float, float], ...]:
    """Times of day as seconds of a day that starts when the run does, at ``begins`` in UTC.

    ``zone`` is how many hours local time is ahead of UTC. What passes midnight is two intervals.

    >>> from fednag.devices.times import of_day
    >>> of_day([("22:00", "06:00")], zone=1, begins="00:00")  # 21:00 to 05:00 UTC
    ((0.0, 18000.0), (75600.0, 86400.0))
    """
    whole: list[tuple[float, float]] = []
    for start, end in daily:
        first, last = _seconds(start), _seconds(end)
        length = last - first if last > first else last - first + DAY
        begin = (first - zone * 3600 - _seconds(begins)) % DAY
        whole.append((begin, min(begin + length, DAY)))
        if begin + length > DAY:
            whole.append((0.0, begin + length - DAY))
    found: list[tuple[float, float]] = []
    for begin, over in sorted(whole):
        if found and begin <= found[-1][1]:  # they overlap, or touch
            found[-1] = found[-1][0], max(found[-1][1], over)
        else:
            found.append((begin, over))
    return tuple(found)


def _seconds(time: str) -> float:
    hours, minutes = time.split(":")
    return int(hours) * 3600.0 + int(minutes) * 60.0


def energy(joules: float | None) -> str:
    """An energy in MJ, kJ, J or mJ; ``-`` for none.

    >>> from fednag.devices.times import energy
    >>> energy(4.2), energy(71400.0), energy(None)
    ('4.2 J', '71.4 kJ', '-')
    """
    if joules is None:
        return "-"
    units = ((1e6, "MJ"), (1e3, "kJ"), (1.0, "J"), (1e-3, "mJ"))
    size, unit = next((u for u in units if float(f"{joules:.3e}") >= u[0]), units[-1])
    if not joules:
        size, unit = 1.0, "J"
    number = joules / size
    return f"{number:,.0f} {unit}" if number >= 1e4 else f"{number:.4g} {unit}"


def duration(seconds: float | None, deviation: float | None = None, digits: int = 4) -> str:
    """A time in s, ms or µs, perhaps with its deviation in the same unit; ``-`` for none.

    >>> from fednag.devices.times import duration
    >>> duration(71.4), duration(0.0421), duration(8.737e-06)
    ('71.4 s', '42.1 ms', '8.737 µs')
    >>> duration(70.2831, 7.7216)
    '70.28 ± 7.72 s'
    """
    if seconds is None:
        return "-"
    # What rounding would make a thousand of one unit is one of the next.
    size, unit = next((u for u in UNITS if float(f"{abs(seconds):.3e}") >= u[0]), UNITS[-1])
    if not seconds:
        size, unit = UNITS[0]
    if deviation is None:
        number = seconds / size
        whole = abs(number) >= 10**digits
        return f"{number:,.0f} {unit}" if whole else f"{number:.{digits}g} {unit}"
    return f"{seconds / size:,.2f} ± {deviation / size:,.2f} {unit}"
