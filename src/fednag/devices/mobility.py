"""Where vehicles are over time: traces in files, and roads and cities made up here."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from fednag.config.messages import cut, nearest
from fednag.core.files import os_errors, write_atomically
from fednag.errors import FednagError, within

COLUMNS = ("time", "id", "x", "y")
WAY = "way"  # a fifth column: a vehicle that left, and came in elsewhere, is on its next way
# Other names of the columns: those of SUMO's own converter to CSV.
ALIASES = {
    "timestep_time": "time",
    "vehicle_id": "id",
    "vehicle_x": "x",
    "vehicle_y": "y",
}
LARGEST = 1 << 30  # bytes of a trace; more is not one for a fleet
GAP = 10.0  # seconds without a vehicle after which it has left, and come back
KMH = 1 / 3.6  # metres a second

Points = NDArray[np.float64]
"""Rows of time, x and y, in seconds and metres."""

Row = tuple[float, str, float, float, str]
"""Time, vehicle, x, y, and the name of its way: empty where gaps in time are to show it."""


@dataclass(frozen=True, eq=False)
class Trace:
    """Vehicles and their ways. Between two points of a piece a vehicle drives straight on.

    >>> from fednag.devices.mobility import highway
    >>> trace = highway(vehicles=2, speed=36, length=1000, seconds=100)
    >>> trace.vehicles, trace.seconds
    (('v0', 'v1'), 100.0)
    """

    source: str
    ways: Mapping[str, tuple[Points, ...]]
    seconds: float
    """From its first moment to its last."""

    @property
    def vehicles(self) -> tuple[str, ...]:
        return tuple(self.ways)

    @cached_property
    def digest(self) -> str:
        found = hashlib.sha256(repr((self.vehicles, self.seconds)).encode())
        for pieces in self.ways.values():
            for piece in pieces:
                found.update(repr(piece.shape).encode() + piece.tobytes())
        return found.hexdigest()[:16]

    def at(self, vehicle: str, moment: float) -> tuple[float, float] | None:
        """Where a vehicle is, or None if it is not on the road."""
        for piece in self.ways[vehicle]:
            if piece[0, 0] <= moment <= piece[-1, 0]:
                x, y = (float(np.interp(moment, piece[:, 0], piece[:, i])) for i in (1, 2))
                return x, y
        return None

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Least and largest x and y."""
        points = np.concatenate([piece for pieces in self.ways.values() for piece in pieces])
        (left, low), (right, high) = points[:, 1:].min(axis=0), points[:, 1:].max(axis=0)
        return float(left), float(right), float(low), float(high)


def trace_of(rows: Iterable[Row], source: str = "") -> Trace:
    """A trace from its rows, each vehicle's in the order of time; time begins at 0."""
    listed: dict[str, list[tuple[float, float, float]]] = {}
    last_way: dict[str, str] = {}
    begins: dict[str, list[int]] = {}  # places of a vehicle's points at which a way begins
    for moment, vehicle, x, y, way in rows:
        own = listed.setdefault(vehicle, [])
        changed = last_way.setdefault(vehicle, way) != way
        if own and (moment < own[-1][0] if changed else moment <= own[-1][0]):
            raise FednagError(
                f"vehicle {vehicle}",
                f"is at time {moment:g} after {own[-1][0]:g}",
                "sort its lines by time, one for each moment",
                source=source,
            )
        if changed:
            begins.setdefault(vehicle, []).append(len(own))
            last_way[vehicle] = way
        own.append((moment, x, y))
    if not listed:
        raise FednagError("", "has no vehicles", "give a trace of some", source=source)
    first = min(own[0][0] for own in listed.values())
    last = max(own[-1][0] for own in listed.values())
    if first == last:
        raise FednagError("", "is of a single moment", "give at least two", source=source)
    ways = {}
    for vehicle, own in listed.items():
        points = np.array(own)
        points[:, 0] -= first
        if last_way[vehicle]:
            ways[vehicle] = tuple(np.split(points, begins.get(vehicle, [])))
            continue
        step = float(np.median(np.diff(points[:, 0]))) if len(own) > 1 else 0.0
        gone = np.flatnonzero(np.diff(points[:, 0]) > max(GAP, 3 * step)) + 1
        ways[vehicle] = tuple(np.split(points, gone))
    return Trace(source, ways, float(last - first))


def read_trace(path: Path) -> Trace:
    """A trace from SUMO's FCD output (XML) or a CSV of time, id, x, y; either may be gzipped.

    A CSV may have a column ``way``: between two ways of a vehicle there is no road.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fednag.devices.mobility import read_trace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     _ = path.write_text("time,id,x,y\\n0,a,0,5\\n10,a,100,5\\n")
    ...     read_trace(path).at("a", 2.5)
    (25.0, 5.0)
    """
    with os_errors(path, "cannot be read", "give SUMO's FCD output, or a CSV file"), within(path):
        data = _unpacked(path)
        is_xml = data[:200].lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")
        try:
            return trace_of(_fcd(data) if is_xml else _csv(data), str(path))
        except UnicodeDecodeError as error:
            raise FednagError("", "is not text in UTF-8", "give a CSV file") from error


def _unpacked(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                with gzip.open(path) as packed:
                    data = packed.read(LARGEST + 1)
            else:
                file.seek(0)
                data = file.read(LARGEST + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FednagError("", f"cannot be read ({error})", "make it again") from error
    if len(data) > LARGEST:
        raise FednagError("", "is larger than 1 GiB", "give fewer vehicles or moments")
    return data


def _fcd(data: bytes) -> Iterator[Row]:
    moment: float | None = None
    try:
        for event, element in ElementTree.iterparse(io.BytesIO(data), ("start", "end")):
            if event == "start":
                if element.tag == "timestep":
                    moment = _number(element.get("time"), "timestep: time")
            elif element.tag == "vehicle":
                if moment is None:
                    raise FednagError("vehicle", "is in no timestep", "give SUMO's --fcd-output")
                name = element.get("id") or ""
                if not name:
                    raise FednagError("vehicle: id", "is missing", "give SUMO's --fcd-output")
                where = f"vehicle {name}"
                x = _number(element.get("x"), f"{where}: x")
                yield moment, name, x, _number(element.get("y"), f"{where}: y"), ""
            elif element.tag == "timestep":
                element.clear()
    except ElementTree.ParseError as error:
        raise FednagError("", f"is not XML ({error})", "give SUMO's --fcd-output") from error


def _csv(data: bytes) -> Iterator[Row]:
    text = io.StringIO(data.decode("utf-8-sig"), newline="")
    head = text.readline()
    mark = ";" if head.count(";") > head.count(",") else ","
    names = [name.strip() for name in next(csv.reader([head], delimiter=mark), [])]
    names = [ALIASES.get(name, name) for name in names]
    for wanted in COLUMNS:
        if wanted not in names:
            near = nearest(wanted, [n for n in names if n not in COLUMNS])
            raise FednagError("line 1", f"no column {wanted}{near}", "write time,id,x,y")
    places = [names.index(wanted) for wanted in COLUMNS]
    way = names.index(WAY) if WAY in names else None
    lines = csv.reader(text, delimiter=mark, strict=True)
    try:
        for cells in lines:
            if not any(cell.strip() for cell in cells):
                continue
            line = f"line {lines.line_num + 1}"
            if len(cells) != len(names):
                raise FednagError(line, f"has {len(cells)} cells, not {len(names)}", "complete it")
            moment, name, x, y = (cells[place].strip() for place in places)
            if not name:
                continue  # SUMO's converter writes empty moments so
            yield (
                _number(moment, f"{line}: time"),
                name,
                _number(x, f"{line}: x"),
                _number(y, f"{line}: y"),
                "" if way is None else cells[way].strip(),
            )
    except csv.Error as error:
        raise FednagError(f"line {lines.line_num + 1}", f"is not CSV ({error})") from error


def _number(text: str | None, field: str) -> float:
    try:
        found = float(text or "")
    except ValueError:
        found = float("nan")
    if not isfinite(found):
        raise FednagError(field, f"{cut(text)} is not allowed", "write a number")
    return found


def write_trace(path: Path, trace: Trace) -> None:
    """The trace as a CSV file that ``read_trace`` reads.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fednag.devices.mobility import highway, read_trace, write_trace
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.csv")
    ...     write_trace(path, highway(vehicles=3, speed=50))
    ...     read_trace(path).digest == highway(vehicles=3, speed=50).digest
    True
    """
    rows: list[Row] = [
        (moment, vehicle, x, y, str(number))
        for vehicle, pieces in trace.ways.items()
        for number, piece in enumerate(pieces, 1)
        for moment, x, y in piece.tolist()
    ]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, WAY])
    rows.sort(key=lambda row: row[0])
    writer.writerows(rows)
    with os_errors(path, "cannot be written"):
        write_atomically(path, text.getvalue())


def highway(
    vehicles: int,
    speed: float,
    length: float = 5000.0,
    seconds: float = 600.0,
    spread: float = 0.0,
    seed: int = 0,
) -> Trace:
    """A straight road, half of the vehicles on each side of it, 5 m from its middle.

    Each keeps its speed (km/h; ``spread`` is the deviation, as a share of it), leaves at one end
    and comes in again at the other, as one that is like it.

    >>> from fednag.devices.mobility import highway
    >>> trace = highway(vehicles=1, speed=36, length=1000, seconds=200)
    >>> len(trace.ways["v0"])  # 2,000 m are two or three times through
    3
    """
    rng = np.random.default_rng([seed, vehicles])
    ways = {}
    for number in range(vehicles):
        place = float(rng.uniform(0, length))
        pace = max(0.0, speed * KMH * (1 + spread * float(rng.standard_normal())))
        back = number % 2 == 1
        pieces, now = [], 0.0
        while now < seconds:
            end = min(seconds, now + (length - place) / pace) if pace else seconds
            there = min(length, place + (end - now) * pace)
            # One that comes in at the very end is not seen.
            if end > now:
                x = np.array([place, there])
                y = np.full(2, 5.0 if back else -5.0)
                pieces.append(np.stack([np.array([now, end]), length - x if back else x, y], 1))
            now, place = end, 0.0
        ways[f"v{number}"] = tuple(pieces)
    return Trace("a highway made up here", ways, float(seconds))


def grid_city(
    vehicles: int,
    speed: float,
    blocks: int = 5,
    block: float = 200.0,
    seconds: float = 600.0,
    spread: float = 0.0,
    seed: int = 0,
) -> Trace:
    """Streets ``block`` metres apart, ``blocks`` blocks each way, with crossings that turn red.

    At a crossing a vehicle drives straight on half of the time, else turns where there is a
    street, and in half of all cases waits up to 20 s before. Speeds as in ``highway``.

    >>> from fednag.devices.mobility import grid_city
    >>> city = grid_city(vehicles=3, speed=30)
    >>> city.box[0] >= 0, city.box[1] <= 1000
    (True, True)
    """
    rng = np.random.default_rng([seed, vehicles, blocks])
    turns = np.array([(1, 0), (0, 1), (-1, 0), (0, -1)])
    ways = {}
    for number in range(vehicles):
        here = rng.integers(0, blocks + 1, size=2)
        pace = max(0.0, speed * KMH * (1 + spread * float(rng.standard_normal())))
        facing, now = int(rng.integers(4)), 0.0
        points = [(now, *(here * block))]
        if not pace:
            points.append((seconds, *(here * block)))
            now = seconds
        while now < seconds:
            order = [facing, *rng.permutation([(facing + 1) % 4, (facing + 3) % 4])]
            if rng.random() < 0.5:
                order = [*order[1:], order[0]]
            order.append((facing + 2) % 4)
            facing = next(int(way) for way in order if _inside(here + turns[way], blocks))
            if rng.random() < 0.5 and (wait := float(rng.uniform(0, 20))):
                now = min(seconds, now + wait)
                points.append((now, *(here * block)))
            if now < seconds:
                there = here + turns[facing]
                part = min(1.0, (seconds - now) * pace / block)
                now = seconds if part < 1.0 else now + block / pace
                points.append((now, *((here + part * (there - here)) * block).tolist()))
                here = there
        ways[f"v{number}"] = (np.array(points),)
    return Trace("a city made up here", ways, float(seconds))


def _inside(place: NDArray[np.int64], blocks: int) -> bool:
    return bool((place >= 0).all() and (place <= blocks).all())
