"""Where vehicles are while a run goes on, whom they are connected to, for a page that plays it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from fednag.clock.timeline import Timeline
from fednag.devices.mobility import Points
from fednag.devices.times import Availability

MOST_VEHICLES, MOST_POINTS, MOST_ROADS = 300, 30_000, 6_000


def scene(line: Timeline) -> dict[str, Any] | None:
    """Units with their ranges, and each vehicle's way and contacts until a timeline's end.

    None where nothing moves. ``roads`` are where all of them drive in all of the trace.

    >>> import fednag
    >>> from fednag.clock import load_fleet, replay_runs, scene, timed_run, timelines
    >>> run = timed_run(fednag.run("fednag", model="logistic", tau=5, iterations=10).view)
    >>> fleet = load_fleet("highway")
    >>> found = scene(timelines(replay_runs([run], fleet, replays=1), fleet)[0])
    >>> [vehicle["name"] for vehicle in found["vehicles"]], len(found["units"])
    (['0 car-1', '1 car-2', '2 car-3', '3 car-4'], 3)
    """
    fleet = line.fleet
    roads = fleet.roads
    if roads is None:
        return None
    until, trace = line.ends[-1], roads.trace
    placed = [(i, fleet.device(i)) for i in range(line.run.workload.workers)]
    moving = [(i, device) for i, device in placed if device.name in roads.vehicles][:MOST_VEHICLES]
    if not moving:
        return None
    last = min(until, trace.seconds)
    pieces = {
        worker: _until(trace.ways[roads.vehicles[device.name]], last) for worker, device in moving
    }
    count = sum(len(piece) for own in pieces.values() for piece in own)
    every = -(-count // MOST_POINTS)
    driven = [piece for _, device in moving for piece in trace.ways[roads.vehicles[device.name]]]
    sparse = -(-sum(map(len, driven)) // MOST_ROADS)
    vehicles = [
        {
            "worker": worker,
            "name": line.name(worker),
            "pieces": [_thinned(piece, every) for piece in pieces[worker]],
            "contacts": _contacts(device.availability, last),
        }
        for worker, device in moving
    ]
    points = [point for piece in driven for point in piece[:, 1:].tolist()]
    placed_at = {roads.vehicles[device.name]: place for place, (_, device) in enumerate(moving)}
    units: list[dict[str, Any]] = [
        {
            "name": unit.name,
            "x": round(unit.x, 1),
            "y": round(unit.y, 1),
            "range": round(unit.range, 1),
            "half": max((m for m, rate in unit.rings if rate >= unit.best / 2), default=0.0),
        }
        for unit in roads.units
    ]
    best = max((rate for _, rate in roads.rings), default=0.0)
    units += [
        {
            "name": head,
            # Of one that is no worker here, the place is not known: it is not drawn.
            "vehicle": placed_at.get(head, -1),
            "start": round(start, 3),
            "end": round(end, 3),
            "range": round(roads.rings[-1][0], 1),
            "half": max((m for m, rate in roads.rings if rate >= best / 2), default=0.0),
        }
        for head, start, end in roads.heads
    ]
    corners = [
        (unit.x + dx * unit.range, unit.y + dy * unit.range)
        for unit in roads.units
        for dx, dy in ((-1, -1), (1, 1))
    ]
    across, up = zip(*points, *corners, strict=True)
    repeats = any(device.availability.period for _, device in moving)
    return {
        "box": [round(v, 1) for v in (min(across), max(across), min(up), max(up))],
        "units": units,
        "roads": [[point[1:] for point in _thinned(piece, sparse)] for piece in driven],
        "vehicles": vehicles,
        "until": float(f"{until:.7g}"),
        "period": trace.seconds if repeats else None,
        "left_out": sum(device.name in roads.vehicles for _, device in placed) - len(moving),
    }


def _until(pieces: Sequence[Points], last: float) -> list[Points]:
    """What of a way is driven by then."""
    found = []
    for piece in pieces:
        if piece[0, 0] > last:
            continue
        inside = piece[piece[:, 0] <= last]
        if len(inside) < len(piece):
            there = [np.interp(last, piece[:, 0], piece[:, i]) for i in (0, 1, 2)]
            inside = np.vstack([inside, there])
        found.append(inside)
    return found


def _thinned(piece: Points, every: int) -> list[list[float]]:
    kept = [*range(0, len(piece) - 1, every), len(piece) - 1]
    return [
        [round(t, 3), round(x, 1), round(y, 1)] for t, x, y in (piece[i].tolist() for i in kept)
    ]


def _contacts(on: Availability, last: float) -> list[list[float]]:
    """[from, to, unit] of every contact, whatever its rates."""
    found: list[list[float]] = []
    for (start, end), unit in zip(on.intervals, on.units, strict=False):
        if end < 0 or start > last:
            continue
        if found and found[-1][1:] == [round(start, 3), unit]:
            found[-1][1] = round(end, 3)
        else:
            found.append([round(start, 3), round(end, 3), unit])
    assert all(a[1] <= b[0] for a, b in pairwise(found))
    return found
