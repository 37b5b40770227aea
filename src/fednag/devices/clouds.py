"""Clouds of vehicles near one another: who of them is elected to aggregate, and who reaches it.

After Posner, Tseng, Aloqaily and Jararweh (IEEE Network, 2021), whose vehicular clouds need no unit
at the roadside. Vehicles in radio range of the one that is elected are its cloud.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fednag.devices.mobility import Points, Trace
from fednag.devices.radio import Contact, Rings, Unit, contacts

Elect = Literal["stay", "central"]
"""How a vehicle is elected: whose neighbours are expected to stay longest, or who has most."""

HORIZON = 60.0  # seconds for which a stay is expected at most
WITHIN = 1000.0  # times the best rate: what the elected one needs to send to itself
SHORT = 1e-3  # seconds, over which a velocity is taken

Places = NDArray[np.float64]


@dataclass(frozen=True)
class Tenure:
    """A time in which one vehicle is the aggregator."""

    head: str
    start: float
    end: float


def tenures(
    trace: Trace, vehicles: Sequence[str], reach: float, elect: Elect = "stay", every: float = 1.0
) -> tuple[Tenure, ...]:
    """Who is the aggregator, when.

    It is looked every so many seconds. Whoever is elected stays so until it leaves the road or has
    nobody in reach. Then those elect who were in its reach, and who have the model; if none of them
    has a neighbour, all do. While nobody has a neighbour there is none. The first in the trace wins
    a draw.

    >>> from fednag.devices.clouds import tenures
    >>> from fednag.devices.mobility import highway
    >>> road = highway(vehicles=4, speed=0, length=300, seconds=60)
    >>> len(tenures(road, road.vehicles, reach=300.0))
    1
    """
    found: list[Tenure] = []
    head: int | None = None
    since = way = 0.0
    members = np.zeros(len(vehicles), dtype=bool)
    ways = np.full(len(vehicles), -1)
    moments = np.arange(0.0, trace.seconds, every)
    for moment in moments.tolist():
        before, members_then = ways, members
        places, ways = _places(trace, vehicles, moment)
        near = _near(places, reach)
        if head is not None:
            if ways[head] == way and near[head].any():
                members = near[head]
                continue
            found.append(Tenure(vehicles[head], since, moment))
        alone = ~near.any(axis=1)
        if alone.all():
            head, members = None, np.zeros(len(vehicles), dtype=bool)
            continue
        may = ~alone
        # Who was in the cloud has the model; if somebody of it is not alone, it goes on there.
        heirs = members_then & (ways == before) & may
        if head is not None and heirs.any():
            may = heirs
        score = _stays(trace, vehicles, moment, places, near, reach)
        if elect == "central":
            away = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
            score = near.sum(axis=1) - np.where(near, away, 0).sum(axis=1) / (1e9 * reach)
        head = int(np.argmax(np.where(may, score, -np.inf)))
        since, way, members = moment, ways[head], near[head]
    if head is not None:
        found.append(Tenure(vehicles[head], since, trace.seconds))
    return tuple(found)


def cloud_contacts(
    trace: Trace, vehicle: str, elected: Sequence[Tenure], rings: Rings
) -> list[Contact]:
    """When a vehicle reaches the one elected, and how fast; the unit of a contact is the tenure.

    The elected one reaches itself, in no time worth counting.

    >>> from fednag.devices.clouds import Tenure, cloud_contacts
    >>> from fednag.devices.mobility import trace_of
    >>> rows = [(t, name, x * t, 0.0, "1") for t in (0.0, 10.0) for name, x in (("a", 0), ("b", 9))]
    >>> both = trace_of(rows)
    >>> [one] = cloud_contacts(both, "b", [Tenure("a", 0.0, 10.0)], rings=((45.0, 6.0),))
    >>> one.end, one.mbit
    (5.0, 6.0)
    """
    best = max(rate for _, rate in rings)
    found: list[Contact] = []
    for number, tenure in enumerate(elected):
        for piece in trace.ways[vehicle]:
            if vehicle == tenure.head:
                start = max(tenure.start, float(piece[0, 0]))
                end = min(tenure.end, float(piece[-1, 0]))
                if start < end:
                    found.append(Contact(start, end, number, best * WITHIN))
                continue
            for other in trace.ways[tenure.head]:
                way = _apart(piece, other, tenure)
                if way is not None:
                    served = contacts([way], [Unit("", 0.0, 0.0, rings)])
                    found += [Contact(one.start, one.end, number, one.mbit) for one in served]
    return sorted(found, key=lambda one: one.start)


def _apart(piece: Points, other: Points, tenure: Tenure) -> Points | None:
    """The way of one vehicle as another sees it, while both drive and that one is elected."""
    start = max(tenure.start, float(piece[0, 0]), float(other[0, 0]))
    end = min(tenure.end, float(piece[-1, 0]), float(other[-1, 0]))
    if start >= end:
        return None
    times = np.concatenate([[start, end], piece[:, 0], other[:, 0]])
    times = np.unique(times[(times >= start) & (times <= end)])
    x, y = (
        np.interp(times, piece[:, 0], piece[:, i]) - np.interp(times, other[:, 0], other[:, i])
        for i in (1, 2)
    )
    return np.stack([times, x, y], axis=1)


def _places(
    trace: Trace, vehicles: Sequence[str], moment: float
) -> tuple[Places, NDArray[np.int64]]:
    """Where vehicles are, not a number where not on the road; and on which of their ways."""
    places = np.full((len(vehicles), 2), np.nan)
    ways = np.full(len(vehicles), -1)
    for i, vehicle in enumerate(vehicles):
        for number, piece in enumerate(trace.ways[vehicle]):
            if piece[0, 0] <= moment < piece[-1, 0]:
                places[i] = [np.interp(moment, piece[:, 0], piece[:, j]) for j in (1, 2)]
                ways[i] = number
    return places, ways


def _near(places: Places, reach: float) -> NDArray[np.bool_]:
    """Who is in reach of whom; nobody of itself."""
    away = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    near: NDArray[np.bool_] = away <= reach
    np.fill_diagonal(near, False)
    return near


def _stays(
    trace: Trace,
    vehicles: Sequence[str],
    moment: float,
    places: Places,
    near: NDArray[np.bool_],
    reach: float,
) -> Places:
    """For how many seconds each one's neighbours stay in its reach, together, if all keep their
    speed and direction."""
    later, _ = _places(trace, vehicles, moment + SHORT)
    speed = np.nan_to_num((later - places) / SHORT)
    away, going = places[:, None] - places[None], speed[:, None] - speed[None]
    a = (going**2).sum(axis=2)
    half = (away * going).sum(axis=2)
    under = half**2 - a * ((away**2).sum(axis=2) - reach**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        stay = np.where(a > 1e-9, (-half + np.sqrt(np.maximum(under, 0.0))) / a, HORIZON)
    total: Places = np.where(near, np.minimum(stay, HORIZON), 0.0).sum(axis=1)
    return total
