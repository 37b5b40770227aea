"""Units at the roadside, how fast they are at which distance, and when vehicles are in reach."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fednag.devices.mobility import Points, Trace
from fednag.devices.times import Availability

Radio = Literal["dsrc", "mmwave"]

Rings = tuple[tuple[float, float], ...]
"""(metres, Mbit/s): up to so far away so much, outwards."""


def _rings(
    budget: float, exponent: float, air: float, steps: Sequence[tuple[float, float]]
) -> Rings:
    """How far each rate reaches: to where the loss of the way uses up what there is.

    ``budget`` is the power sent, with both antennas, less the loss of the first metre (dBm), the
    loss then grows with distance to the power of ``exponent`` and by ``air`` dB a metre. A step is
    what a rate needs (dBm) and the rate (Mbit/s), of which half is left to data.
    """
    found = []
    metres = np.arange(1.0, 5000.0)
    for needed, rate in steps:
        left = budget - 10 * exponent * np.log10(metres) - air * metres
        found.append((float(metres[left >= needed][-1]), rate / 2))
    return tuple(found)


RADIOS: Mapping[str, Rings] = {
    # IEEE 802.11p, 10 MHz at 5.9 GHz: rates and the least power each must be received at, by the
    # standard; 23 dBm sent, 47.9 dB lost in the first metre, exponent 2.4 along roads.
    "dsrc": _rings(
        23 - 47.9,
        2.4,
        0.0,
        [(-68, 27), (-69, 24), (-73, 18), (-77, 12), (-80, 9), (-82, 6), (-84, 4.5), (-85, 3)],
    ),
    # IEEE 802.11ad, single carrier at 60 GHz: the same; 40 dBm sent, 10 dB received, 68 dB lost in
    # the first metre, exponent 2 in free view, 0.015 dB a metre lost to oxygen. Nothing blocks it.
    "mmwave": _rings(
        40 + 10 - 68,
        2.0,
        0.015,
        [(-53, 4620), (-61, 2310), (-63, 1540), (-64, 1155), (-66, 770), (-68, 385)],
    ),
}
"""What radios reach, by distance: derived from public facts, not measured."""


@dataclass(frozen=True)
class Unit:
    """A unit at the roadside that vehicles in its reach send to.

    >>> from fednag.devices.radio import RADIOS, Unit
    >>> Unit("mast", 0.0, 0.0, RADIOS["dsrc"]).range
    319.0
    """

    name: str
    x: float
    y: float
    rings: Rings

    @property
    def range(self) -> float:
        return self.rings[-1][0]

    @property
    def best(self) -> float:
        return max(rate for _, rate in self.rings)


@dataclass(frozen=True)
class Contact:
    """A time in which one unit serves a vehicle, at one rate."""

    start: float
    end: float
    unit: int
    mbit: float


@dataclass(frozen=True, eq=False)
class Roads:
    """Vehicles, and the units at their roads."""

    trace: Trace
    units: tuple[Unit, ...]
    vehicles: Mapping[str, str] = field(default_factory=dict)  # name of a device -> its vehicle
    # Of a cloud: who aggregates from when to when (vehicle, start, end), and how fast it is.
    heads: tuple[tuple[str, float, float], ...] = ()
    rings: Rings = ()


def contacts(pieces: Iterable[Points], units: Sequence[Unit]) -> list[Contact]:
    """Who serves a vehicle, when and how fast: the unit of the best rate, and where several have
    it the one that served before, else the nearest.

    >>> import numpy as np
    >>> from fednag.devices.radio import Unit, contacts
    >>> way = np.array([[0.0, -1000.0, 30.0], [100.0, 1000.0, 30.0]])  # 20 m/s, 30 m past it
    >>> [passing] = contacts([way], [Unit("mast", 0.0, 0.0, rings=((50.0, 10.0),))])
    >>> passing.end - passing.start  # twice the root of 50 squared less 30 squared, by 20
    4.0
    """
    found: list[Contact] = []
    for piece in pieces:
        if len(piece) < 2:
            continue
        times = piece[:, 0]
        moments = [times[[0, -1]], *(_crossings(piece, unit) for unit in units)]
        cuts = np.unique(np.concatenate(moments).round(9))  # what rounding parts is one moment
        middles = (cuts[:-1] + cuts[1:]) / 2
        x, y = (np.interp(middles, times, piece[:, i]) for i in (1, 2))
        away = np.stack([np.hypot(x - unit.x, y - unit.y) for unit in units], axis=1)
        rates = np.stack([_rate(unit, away[:, i]) for i, unit in enumerate(units)], axis=1)
        serving = -1
        for row, (start, end) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
            best = float(rates[row].max())
            if not best:
                serving = -1
                continue
            if serving < 0 or rates[row, serving] < best:
                there = np.flatnonzero(rates[row] == best)
                serving = int(there[np.argmin(away[row, there])])
            last = found[-1] if found else None
            if last and (last.end, last.unit, last.mbit) == (start, serving, best):
                found[-1] = Contact(last.start, end, serving, best)
            else:
                found.append(Contact(start, end, serving, best))
    return found


def _rate(unit: Unit, away: NDArray[np.float64]) -> NDArray[np.float64]:
    reach, rates = zip(*unit.rings, strict=True)
    return np.append(np.array(rates), 0.0)[np.searchsorted(np.array(reach), away)]


def _crossings(piece: Points, unit: Unit) -> NDArray[np.float64]:
    """When the way crosses a ring of the unit: roots of a square, segment by segment."""
    start, step = piece[:-1], np.diff(piece, axis=0)
    apart = start[:, 1:] - [unit.x, unit.y]
    reach = np.array([metres for metres, _ in unit.rings])
    a = (step[:, 1:] ** 2).sum(axis=1)[:, None]
    half = (apart * step[:, 1:]).sum(axis=1)[:, None]
    under = half**2 - a * ((apart**2).sum(axis=1)[:, None] - reach**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        root = np.sqrt(under)
        shares = np.stack([(-half - root) / a, (-half + root) / a])
    moments = start[:, 0, None] + shares * step[:, 0, None]
    crossed: NDArray[np.float64] = moments[(shares >= 0) & (shares <= 1)]
    return crossed


NEVER = Availability(((-2.0, -1.0),))
"""Of a vehicle that no unit ever reaches: it was in reach before time began."""


def availability(
    served: Sequence[Contact], full: float, period: float | None, whole: bool
) -> Availability:
    """Contacts as what a device's links are worth, of a rate of ``full`` Mbit/s."""
    if not served:
        return NEVER
    return Availability(
        tuple((one.start, one.end) for one in served),
        period,
        rates=tuple(one.mbit / full for one in served),
        units=tuple(one.unit for one in served),
        whole=whole,
    )
