"""Devices behind one access point: transfers under way at once split its line.

Each gets an equal part of the line, and those whose own link takes less leave the rest to the
others (max-min fairness). Rates change whenever a transfer begins, ends, or a device leaves or
comes back, and are constant in between: time goes from one such event to the next. Points are
independent of each other, so each has a time of its own and all go one event on at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from fednag.devices.times import Availability

Table = NDArray[np.float64]

# What a device does, one after the other. Only bytes take part of the line, latency does not.
HEARING, RECEIVING, COMPUTING, CALLING, SENDING, DONE = range(6)
WAYS = ((RECEIVING, 0), (SENDING, 1))


@dataclass(frozen=True)
class Point:
    """An access point, and the bytes a second that those behind it share, each way.

    >>> from fednag.clock import Point
    >>> Point("router", up=2.5e6, down=12.5e6).down
    12500000.0
    """

    name: str
    up: float
    down: float


@dataclass(frozen=True)
class Errand:
    """What one device does in an exchange: seconds, and (bytes, bytes a second of its own link)."""

    point: Point
    availability: Availability
    hearing: float  # latency before the download
    down: tuple[float, float]
    compute: float
    calling: float  # latency before the upload
    up: tuple[float, float]


def share(errands: Sequence[Errand], start: float) -> Table:
    """When each device has received, has computed and has sent: a row an errand, infinity if never.

    >>> from fednag.devices.sharing import Errand, Point, share
    >>> from fednag.devices.times import ALWAYS
    >>> point = Point("router", up=10.0, down=100.0)
    >>> one = Errand(point, ALWAYS, 0.0, (100.0, 100.0), 1.0, 0.0, (20.0, 10.0))
    >>> share([one], start=0.0).tolist()
    [[1.0, 2.0, 4.0]]
    >>> share([one, one], start=0.0)[0].tolist()  # half of each line
    [2.0, 3.0, 7.0]
    """
    points = list(dict.fromkeys(errand.point for errand in errands))
    place = {point: number for number, point in enumerate(points)}
    group = np.array([place[errand.point] for errand in errands], dtype=np.int64)
    lines = np.array([[point.down, point.up] for point in points])
    left = np.array([[e.hearing, e.down[0], e.compute, e.calling, e.up[0]] for e in errands])
    own = np.array([[e.down[1], e.up[1]] for e in errands])
    count = len(errands)
    stage = np.zeros(count, dtype=np.int64)
    now = np.full(len(points), start)
    here, turns = np.ones(count, dtype=bool), np.full(count, inf)
    comes_and_goes = [i for i, errand in enumerate(errands) if errand.availability.intervals]
    for i in comes_and_goes:
        here[i], turns[i] = _presence(errands[i].availability, start)
    ends = np.full((count, DONE), inf)
    while True:
        _next_stages(stage, left, ends, now[group])
        busy = stage < DONE
        linked = busy & (stage != COMPUTING)  # computing goes on out of reach
        speed = np.where(linked & ~here, 0.0, busy.astype(np.float64))
        for of_stage, way in WAYS:
            using = np.flatnonzero((stage == of_stage) & here)
            if using.size:
                speed[using] = _rates(group[using], own[using, way], lines[:, way])
        rest = left[np.arange(count), np.minimum(stage, SENDING)]
        needs = np.full(count, inf)
        np.divide(rest, speed, out=needs, where=speed > 0)
        changes = np.where(linked, turns - now[group], inf)
        step = np.full(len(points), inf)
        np.minimum.at(step, group, np.minimum(needs, changes))
        going_on = np.isfinite(step)
        if not going_on.any():
            break  # all are done, or who is not never comes back
        step = np.where(going_on, np.maximum(step, 0.0), 0.0)
        mine = step[group]
        done = needs <= mine
        part = np.flatnonzero((speed > 0) & ~done)
        left[part, stage[part]] -= speed[part] * mine[part]
        left[done, stage[done]] = 0.0
        now += step
        for i in comes_and_goes:
            if turns[i] <= now[group[i]]:
                here[i], turns[i] = _presence(errands[i].availability, float(now[group[i]]))
    return ends[:, [RECEIVING, COMPUTING, SENDING]]


def _next_stages(stage: NDArray[np.int64], left: Table, ends: Table, now: Table) -> None:
    """Go on to what there is still to do; what is over, is over now."""
    while True:
        over = np.flatnonzero(stage < DONE)
        over = over[left[over, stage[over]] <= 0]
        if not over.size:
            return
        ends[over, stage[over]] = now[over]
        stage[over] += 1


def _rates(group: NDArray[np.int64], own: Table, lines: Table) -> Table:
    """Bytes a second of each transfer: an equal part of its line, or less if its own link is slower
    and then more for the others."""
    rates = np.zeros(len(own))
    open_ = np.ones(len(own), dtype=bool)
    free = lines.copy()
    while open_.any():
        sharing = np.bincount(group[open_], minlength=len(lines))
        part = free / np.maximum(sharing, 1)
        slow = open_ & (own <= part[group])
        if not slow.any():
            rates[open_] = part[group[open_]]
            break
        rates[slow] = own[slow]
        free -= np.bincount(group[slow], weights=own[slow], minlength=len(lines))
        np.maximum(free, 0.0, out=free)
        open_ &= ~slow
    return rates


def _presence(on: Availability, moment: float) -> tuple[bool, float]:
    """Whether a device can be reached, and when that changes."""
    back = on.next(moment)
    if back > moment:
        return False, back
    return True, max(on.leaves(moment), float(np.nextafter(moment, inf)))
