"""How long things take: seconds drawn from samples, or from a lognormal distribution.

Nothing here keeps a generator: whoever draws brings one, keyed by what the draw is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, isfinite, log
from typing import Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

Sampling = Literal["bootstrap", "recorded", "lognormal"]
"""How samples become delays: drawn with replacement, in their order, or from a fitted lognormal."""

SAMPLINGS: tuple[str, ...] = get_args(Sampling)

Seconds = NDArray[np.float64]


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
class Bootstrap:
    """Samples drawn with replacement.

    >>> import numpy as np
    >>> from fednag.clock import Bootstrap
    >>> drawn = Bootstrap((0.1, 0.3)).draw(np.random.default_rng(0), count=9, start=0)
    >>> sorted(set(drawn.tolist()))
    [0.1, 0.3]
    """

    samples: tuple[float, ...]

    @property
    def varies(self) -> bool:
        return len(set(self.samples)) > 1

    @property
    def mean(self) -> float:
        return float(np.mean(self.samples))

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
