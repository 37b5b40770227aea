"""Fleet files and their samples (``who,what,bytes,seconds``), all checked; the shipped fleets."""

from __future__ import annotations

import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fednag.config import read
from fednag.config.messages import cut, explain, nearest, plain
from fednag.config.sections import STRICT
from fednag.core.files import os_errors, write_atomically
from fednag.devices.clouds import Elect
from fednag.devices.mobility import Trace, grid_city, highway, read_trace
from fednag.devices.radio import RADIOS, Radio, Rings, Unit
from fednag.devices.times import Sampling
from fednag.errors import FednagError, InconsistentError, within

COLUMNS = ("who", "what", "bytes", "seconds")
AGGREGATOR = "aggregator"
KINDS = ("iteration", "down", "up")  # what a device is sampled for
AGGREGATION = "aggregation"
LARGEST = 1 << 30  # bytes of a file of samples; more is not one
FORMAT = 1
SAMPLES_FILE = "samples.csv"


@dataclass(frozen=True)
class Sample:
    """One measurement; an iteration has no bytes.

    >>> from fednag.clock import Sample
    >>> Sample("my-laptop", "up", size=333864, seconds=0.0871).seconds
    0.0871
    """

    who: str
    what: str
    size: int | None
    seconds: float


@dataclass(frozen=True)
class Samples:
    """All samples of a fleet, by who and what."""

    source: str = ""
    taken: Mapping[tuple[str, str], tuple[Sample, ...]] = field(default_factory=dict)

    def of(self, who: str, what: str) -> tuple[Sample, ...]:
        return self.taken.get((who, what), ())

    def all(self) -> list[Sample]:
        return [sample for group in self.taken.values() for sample in group]


def gather(samples: Iterable[Sample], source: str = "") -> Samples:
    groups: dict[tuple[str, str], list[Sample]] = {}
    for sample in samples:
        groups.setdefault((sample.who, sample.what), []).append(sample)
    return Samples(source, {key: tuple(group) for key, group in groups.items()})


def read_samples(path: Path, devices: Iterable[str]) -> Samples:
    """The samples in a file; ``devices`` are those its lines may speak of.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fednag.clock import read_samples
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "samples.csv")
    ...     _ = path.write_text("who,what,bytes,seconds\\nlaptop,up,1000,0.25\\n")
    ...     samples = read_samples(path, devices=["laptop"])
    >>> samples.of("laptop", "up")
    (Sample(who='laptop', what='up', size=1000, seconds=0.25),)
    """
    try:
        with os_errors(path, "cannot be read", "check `samples` in the fleet file"):
            if path.stat().st_size > LARGEST:
                raise FednagError(path, "is larger than 1 GiB", "give a file of samples")
            text = path.read_text(encoding="utf-8-sig")
    except ValueError as error:
        raise FednagError(path, "is not text in UTF-8", "give a CSV file") from error
    return parse_samples(text, str(path), devices)


def parse_samples(text: str, source: str, devices: Iterable[str]) -> Samples:
    with within(source):
        return gather(_parse(text, source, list(devices)), source)


def _parse(text: str, source: str, known: list[str]) -> list[Sample]:
    lines = csv.reader(io.StringIO(text), strict=True)
    found = []
    try:
        heading = [name.strip() for name in next(lines, [])]
        if not heading:
            raise FednagError("", "is empty", f"its first line is {','.join(COLUMNS)}")
        for name in heading:
            if name not in COLUMNS:
                raise FednagError(
                    "line 1",
                    f"no column {cut(name)}{nearest(name, COLUMNS)}",
                    f"the columns are {','.join(COLUMNS)}",
                )
        missing = [name for name in COLUMNS if name not in heading]
        if missing or len(heading) != len(COLUMNS):
            what = f"{missing[0]} is missing" if missing else "one is there twice"
            raise FednagError("line 1", what, f"the columns are {','.join(COLUMNS)}")
        for cells in lines:
            if any(cell.strip() for cell in cells):
                with within(f"{source}: line {lines.line_num}"):
                    found.append(_sample(heading, cells, known))
    except csv.Error as error:
        raise FednagError(f"line {lines.line_num}", f"is not CSV ({error})") from error
    if not found:
        raise FednagError("", "has no samples", "put a line for each below the first")
    return found


def _sample(heading: list[str], cells: list[str], known: list[str]) -> Sample:
    if len(cells) != len(heading):
        raise FednagError(
            "", f"has {len(cells)} cells, not {len(heading)}", f"write {','.join(COLUMNS)}"
        )
    row = {name: cell.strip() for name, cell in zip(heading, cells, strict=True)}
    who, what = row["who"], row["what"]
    if who == AGGREGATOR:
        allowed: tuple[str, ...] = (AGGREGATION,)
    elif who in known:
        allowed = KINDS
    else:
        raise FednagError(
            "who",
            f"no device {cut(who)} in the fleet file{nearest(who, [*known, AGGREGATOR])}",
            f"there are {', '.join([*known, AGGREGATOR])}",
        )
    if what not in allowed:
        raise FednagError(
            "what",
            f"{cut(what)} is not sampled for {who}{nearest(what, allowed)}",
            f"use {', '.join(allowed)}",
        )
    return Sample(who, what, _bytes(what, row["bytes"]), _seconds(row["seconds"]))


def _bytes(what: str, text: str) -> int | None:
    if not text and what in ("iteration", AGGREGATION):
        return None
    if what == "iteration":
        raise FednagError("bytes", "an iteration has none", "leave the cell empty")
    if text.isascii() and text.isdecimal() and 0 < int(text[:20]) <= 2**50:
        return int(text)
    raise FednagError("bytes", f"{cut(text)} is not allowed", "write a whole number above 0")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (isfinite(seconds) and seconds > 0):
        raise FednagError("seconds", f"{cut(text)} is not allowed", "write a number above 0")
    return seconds


def write_samples(path: Path, samples: Iterable[Sample]) -> None:
    """What ``read_samples`` reads, digit for digit.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fednag.clock import Sample, write_samples
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "samples.csv")
    ...     write_samples(path, [Sample("laptop", "up", 1000, 0.25)])
    ...     path.read_text().splitlines()
    ['who,what,bytes,seconds', 'laptop,up,1000,0.25']
    """
    write_atomically(path, render(samples))


def render(samples: Iterable[Sample]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for s in samples:
        writer.writerow([s.who, s.what, "" if s.size is None else s.size, repr(s.seconds)])
    return text.getvalue()


# Beyond these, a slip of the hand: a year for an iteration, a century for an interval.
Duration = Annotated[float, Field(gt=0, le=3e7)]
Moment = Annotated[float, Field(ge=0, le=3e9)]
Interval = Annotated[tuple[Moment, Moment], Field(strict=False)]
Pair = Annotated[tuple[float, float], Field(strict=False)]
Spread = Annotated[float, Field(ge=0, le=5)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
TimeOfDay = Annotated[str, Field(pattern=r"^(([01]\d|2[0-3]):[0-5]\d|24:00)$")]
Daily = Annotated[tuple[TimeOfDay, TimeOfDay], Field(strict=False)]
Watts = Annotated[float, Field(ge=0, le=1e6)]

Checked = TypeVar("Checked", bound=BaseModel)


class Table(BaseModel):
    """A table of a fleet file.

    What came later than the first fleets is only in its text, and so in a fleet's digest, where it
    is used: runs on older fleets are still found to be theirs.
    """

    model_config = ConfigDict(**STRICT)
    later: ClassVar[tuple[str, ...]] = ()

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        for name, given in super().__repr_args__():
            if name not in self.later or given != type(self).model_fields[name].get_default():
                yield name, given


class Link(Table):
    """A link in one direction."""

    mbit: float = Field(gt=0, le=1e9)  # megabits a second
    latency: float = Field(0.0, ge=0, le=3e7)  # seconds
    spread: Spread = 0.0


class Power(Table):
    """Watts a device takes for what it does."""

    compute: Watts
    send: Watts
    receive: Watts
    idle: Watts = 0.0


class AccessPoint(Table):
    """A line that devices share: megabits a second each way, for all that use it at once."""

    name: Name
    up: float = Field(gt=0, le=1e9)
    down: float = Field(gt=0, le=1e9)
    about: str = ""
    serves: int | None = Field(None, ge=1, le=10**6)  # devices of a table, one point for each such


class Reference(Table):
    """What a device's iterations were sampled on."""

    model: str
    batch: int = Field(ge=1, le=10**9)
    flops: float = Field(gt=0, le=1e24)  # of one iteration: forward and backward, whole batch
    data: str = ""


class Device(Table):
    """A device, or several alike. How fast it computes is said once: ``gflops``, ``iteration``, or
    samples in the file of samples."""

    name: Name
    about: str = ""
    count: int = Field(1, ge=1, le=10**6)
    gflops: float | None = Field(None, gt=0, le=1e12)
    iteration: Duration | None = None
    spread: Spread | None = None
    reference: dict[str, Any] | None = None
    up: dict[str, Any] | None = None
    down: dict[str, Any] | None = None
    available: tuple[Interval, ...] | None = Field(None, strict=False)
    period: Duration | None = None
    stagger: float | None = Field(None, ge=0, le=3e7)
    moves: bool = False
    daily: tuple[Daily, ...] | None = Field(None, strict=False)
    zone: float = Field(0.0, ge=-12, le=14)  # hours east of UTC
    access: str | None = None
    power: dict[str, Any] | None = None

    later: ClassVar[tuple[str, ...]] = ("moves", "daily", "zone", "access", "power")

    @model_validator(mode="after")
    def _consistent(self) -> Device:
        self._check_day()
        for key in ("up", "down", "available"):
            if self.moves and getattr(self, key) is not None:
                raise InconsistentError(key, "of what moves, units decide it", "leave it out")
        if self.name == AGGREGATOR:
            raise InconsistentError("name", f"{AGGREGATOR!r} is not a device", "use another name")
        if self.gflops is not None and self.iteration is not None:
            raise InconsistentError("", remedy="give gflops or iteration, not both")
        if self.period is not None and self.available is None:
            raise InconsistentError("period", "goes only with available", "leave it out")
        if self.stagger is not None and self.available is None and self.daily is None:
            raise InconsistentError("stagger", "goes only with available", "leave it out")
        if self.stagger is not None and self.period is None and self.daily is None:
            raise InconsistentError("stagger", "goes only with period", "leave it out")
        intervals = self.available
        if intervals is None:
            return self
        if not intervals:
            raise InconsistentError(
                "available", "is empty", "give intervals, e.g. [[0, 60]], or leave it out"
            )
        for start, end in intervals:
            if not start < end:
                raise InconsistentError(
                    "available",
                    f"[{start:g}, {end:g}] does not end after it starts",
                    "write [from, to] in seconds",
                )
        for (_, end), (start, _) in pairwise(intervals):
            if start < end:
                raise InconsistentError(
                    "available", "intervals overlap or are not in order", "sort them"
                )
        if self.period is not None and intervals[-1][1] > self.period:
            raise InconsistentError(
                "available",
                f"ends at {intervals[-1][1]:g}, after the period of {self.period:g}",
                "raise period",
            )
        return self

    def _check_day(self) -> None:
        for key in ("daily", "access"):
            if self.moves and getattr(self, key) is not None:
                raise InconsistentError(key, "of what moves, units decide it", "leave it out")
        if self.zone and self.daily is None:
            raise InconsistentError("zone", "goes only with daily", "leave it out")
        if self.daily is None:
            return
        if self.available is not None:
            raise InconsistentError("", remedy="give available or daily, not both")
        if not self.daily:
            raise InconsistentError(
                "daily", "is empty", 'give times of day, e.g. [["22:00", "06:30"]]'
            )
        for start, end in self.daily:
            if start == end:
                raise InconsistentError(
                    "daily",
                    f"{start} to {end} is no time",
                    'for a whole day write "00:00", "24:00"',
                )


class EdgeTable(Table):
    """An edge between workers and server, or several alike: its links to what is above it."""

    name: Name
    about: str = ""
    tier: int = Field(0, ge=0, le=7)  # 0: above workers
    count: int = Field(1, ge=1, le=10**6)
    up: dict[str, Any]
    down: dict[str, Any]
    seconds: float = Field(0.0, ge=0, le=3e7)  # of an aggregation
    spread: Spread = 0.0


class Aggregator(Table):
    """Seconds an aggregation takes; ``spread`` as for a device."""

    about: str = ""
    seconds: float | None = Field(None, ge=0, le=3e7)
    spread: Spread | None = None


class Mobility(Table):
    """Where the devices that move are: in a trace, or on roads made up here."""

    trace: str | None = None
    kind: Literal["highway", "grid"] | None = None
    vehicles: int | None = Field(None, ge=1, le=10**5)
    speed: float | None = Field(None, ge=0, le=1000)  # km/h
    spread: float = Field(0.0, ge=0, le=1)
    seconds: float = Field(600.0, gt=0, le=1e6)
    length: float = Field(5000.0, gt=0, le=1e6)  # metres, of a highway
    blocks: int = Field(5, ge=1, le=1000)  # of a city
    block: float = Field(200.0, gt=0, le=1e5)  # metres
    seed: int = Field(0, ge=0)
    repeat: bool = True
    hand_over: Literal["continued", "lost"] = "continued"
    select: Literal["all", "lasting"] = "all"
    latency: float = Field(0.02, ge=0, le=3e7)  # seconds
    link_spread: Spread = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Mobility:
        if (self.trace is None) == (self.kind is None):
            raise InconsistentError("", remedy="give trace or kind, one of them")
        own = ("vehicles", "speed", "spread", "seconds", "length", "blocks", "block", "seed")
        for key in own:
            if self.trace is not None and key in self.model_fields_set:
                raise InconsistentError(key, "is for roads made up here", "leave it out, or trace")
        for key in ("vehicles", "speed"):
            if self.kind is not None and getattr(self, key) is None:
                raise InconsistentError(key, "is missing", "give it a value")
        other = ("length",) if self.kind == "grid" else ("blocks", "block")
        for key in other:
            if key in self.model_fields_set:
                raise InconsistentError(key, f"is not for a {self.kind}", "leave it out")
        return self

    def made(self, folder: Path) -> Trace:
        """The trace it speaks of."""
        if self.trace is not None:
            return read_trace(folder / self.trace)
        assert self.vehicles is not None
        assert self.speed is not None
        known = {"seconds": self.seconds, "spread": self.spread, "seed": self.seed}
        if self.kind == "highway":
            return highway(self.vehicles, self.speed, self.length, **known)  # type: ignore[arg-type]
        return grid_city(self.vehicles, self.speed, self.blocks, self.block, **known)  # type: ignore[arg-type]


class UnitTable(Table):
    """Units at the roadside, one or a row of them."""

    name: Name
    x: float = Field(ge=-1e9, le=1e9)  # metres, as in the trace
    y: float = Field(ge=-1e9, le=1e9)
    radio: Radio | None = None
    rates: tuple[Pair, ...] | None = Field(None, strict=False)
    range: float | None = Field(None, gt=0, le=1e6)
    count: int = Field(1, ge=1, le=10**4)
    apart: Pair | None = None

    @model_validator(mode="after")
    def _consistent(self) -> UnitTable:
        _check_rates(self.radio, self.rates)
        if (self.count > 1) != (self.apart is not None):
            raise InconsistentError("apart", remedy="several units need it: [metres in x, in y]")
        return self

    @property
    def units(self) -> list[Unit]:
        """Each of the row, what is beyond its range left out."""
        rings = _rings_of(self.radio, self.rates, self.range)
        east, north = self.apart or (0.0, 0.0)
        names = (
            [self.name] if self.count == 1 else [f"{self.name}-{n + 1}" for n in range(self.count)]
        )
        return [
            Unit(name, self.x + n * east, self.y + n * north, rings) for n, name in enumerate(names)
        ]


def _rings_of(
    radio: Radio | None, rates: tuple[tuple[float, float], ...] | None, reach: float | None
) -> Rings:
    """A radio's rates by distance, what is beyond its range left out."""
    rings = RADIOS[radio] if radio else tuple(rates or ())
    if reach is not None:
        inner = [ring for ring in rings if ring[0] < reach]
        outer = [rate for metres, rate in rings if metres >= reach]
        rings = (*inner, *((reach, rate) for rate in outer[:1]))
    return rings


class Cloud(Table):
    """Vehicles near one another, one of whom is elected to aggregate."""

    radio: Radio | None = None
    rates: tuple[Pair, ...] | None = Field(None, strict=False)
    range: float | None = Field(None, gt=0, le=1e6)
    elect: Elect = "stay"
    every: float = Field(1.0, ge=0.1, le=3600)  # seconds between looks

    @model_validator(mode="after")
    def _consistent(self) -> Cloud:
        _check_rates(self.radio, self.rates)
        return self

    @property
    def rings(self) -> Rings:
        return _rings_of(self.radio, self.rates, self.range)


def _check_rates(radio: Radio | None, rates: tuple[tuple[float, float], ...] | None) -> None:
    if (radio is None) == (rates is None):
        known = " or ".join(RADIOS)
        raise InconsistentError(
            "", remedy=f"give radio ({known}) or rates, e.g. [[100, 27], [300, 3]]"
        )
    for metres, rate in rates or ():
        if not (metres > 0 and 0 < rate < 1e9):
            raise InconsistentError("rates", remedy="write [metres, Mbit/s], both above 0")
    if any(a >= b for (a, _), (b, _) in pairwise(rates or ())):
        raise InconsistentError("rates", "are not in order", "sort them by distance")
    if rates == ():
        raise InconsistentError("rates", "is empty", "write e.g. [[100, 27], [300, 3]]")


class FleetFile(Table):
    """A fleet file's own fields; devices are checked one by one."""

    later: ClassVar[tuple[str, ...]] = (
        *("mobility", "unit", "access", "edge", "begins", "measured", "cloud"),
    )

    format: int = FORMAT
    name: Name
    about: str = ""
    synthetic: bool = False
    sampling: Sampling = "bootstrap"
    samples: str | None = None
    aggregator: dict[str, Any] = Field(default_factory=dict)
    mobility: dict[str, Any] | None = None
    unit: list[dict[str, Any]] | None = None
    cloud: dict[str, Any] | None = None
    access: list[dict[str, Any]] | None = None
    edge: list[dict[str, Any]] | None = None
    begins: TimeOfDay = "00:00"  # UTC
    measured: str = ""
    device: list[dict[str, Any]]


@dataclass(frozen=True)
class Description:
    """A fleet file that was read: its tables, checked, and its samples."""

    source: str
    head: FleetFile
    devices: tuple[Device, ...]
    aggregator: Aggregator
    samples: Samples
    text: str
    mobility: Mobility | None = None
    trace: Trace | None = None
    units: tuple[Unit, ...] = ()
    cloud: Cloud | None = None
    points: tuple[AccessPoint, ...] = ()
    edges: tuple[EdgeTable, ...] = ()

    @property
    def digest(self) -> str:
        """Of all that delays come from: the file's tables and samples, not its comments."""
        parts = [self.head, *self.devices, self.aggregator, *self.samples.all()]
        if self.trace is not None:
            parts.append(self.trace.digest)
        return hashlib.sha256("\n".join(map(repr, parts)).encode()).hexdigest()[:16]


def read_fleet(given: str | Path) -> Description:
    """A fleet file and its samples, checked."""
    path = locate(given)
    source = str(path) if str(given) not in shipped() else str(given)
    return describe(read(path), source, path.parent, path.read_text(encoding="utf-8"))


def describe(
    raw: Mapping[str, Any], source: str, folder: Path | None = None, text: str = ""
) -> Description:
    """The tables of a fleet file, checked; its samples are looked for in ``folder``."""
    with within(source):
        written = raw.get("format", FORMAT)
        if isinstance(written, int) and written > FORMAT:
            raise FednagError(
                "format",
                f"{written} is newer than this fednag, which knows {FORMAT}",
                "update fednag",
            )
        head = _check(FleetFile, raw)
        if not head.device:
            raise FednagError("device", "there is none", "write a [[device]] table for each")
        devices = []
        for number, table in enumerate(head.device, 1):
            with within(f"{source}: device {plain(str(table.get('name', number)))}"):
                devices.append(_check(Device, table))
        names = [device.name for device in devices]
        for name, times in Counter(names).items():
            if times > 1:
                raise FednagError(f"device {name}", "is there twice", "use another name, or count")
        with within(f"{source}: aggregator"):
            aggregator = _check(Aggregator, head.aggregator)
        samples = Samples()
        if head.samples is not None:
            samples = read_samples((folder or Path()) / head.samples, names)
        for device in devices:
            with within(f"{source}: device {device.name}"):
                _check_device(device, samples)
        with within(f"{source}: aggregator"):
            _once(samples, "seconds", aggregator.seconds, (AGGREGATOR, "aggregation"))
        where = _mobility(head, devices, folder or Path(), source)
        points = _points(head, devices, source)
        _check_powers(devices)
        edges = _edges(head, source)
    return Description(
        source, head, tuple(devices), aggregator, samples, text, *where, points, edges
    )


def _points(head: FleetFile, devices: list[Device], source: str) -> tuple[AccessPoint, ...]:
    """The access points, and that devices name no other."""
    found: dict[str, AccessPoint] = {}
    for number, table in enumerate(head.access or (), 1):
        with within(f"{source}: access {plain(str(table.get('name', number)))}"):
            point = _check(AccessPoint, table)
            if point.name in found:
                raise FednagError("name", "is there twice", "use another name")
            found[point.name] = point
    for device in devices:
        if device.access is not None and device.access not in found:
            raise FednagError(
                f"device {device.name}: access",
                f"no [[access]] table {cut(device.access)}{nearest(device.access, found)}",
                "write one, or leave it out",
            )
    used = {device.access for device in devices}
    for name in found:
        if name not in used:
            raise FednagError(
                f"access {name}", "no device is there", f'write access = "{name}" in a [[device]]'
            )
    return tuple(found.values())


def _edges(head: FleetFile, source: str) -> tuple[EdgeTable, ...]:
    """The tables of edges, each link checked."""
    found: dict[str, EdgeTable] = {}
    for number, table in enumerate(head.edge or (), 1):
        with within(f"{source}: edge {plain(str(table.get('name', number)))}"):
            edge = _check(EdgeTable, table)
            if edge.name in found:
                raise FednagError("name", "is there twice", "use another name, or count")
            for way in ("up", "down"):
                _check(Link, getattr(edge, way), way)
            found[edge.name] = edge
    return tuple(found.values())


def _check_powers(devices: list[Device]) -> None:
    """All devices or none: a sum over some would be nobody's energy."""
    without = [device.name for device in devices if device.power is None]
    if without and len(without) < len(devices):
        raise FednagError(
            f"device {without[0]}: power", "is missing", "give that of all devices, or of none"
        )


def _mobility(
    head: FleetFile, devices: list[Device], folder: Path, source: str
) -> tuple[Mobility | None, Trace | None, tuple[Unit, ...], Cloud | None]:
    """Where what moves is, and the units that serve it."""
    moving = [device for device in devices if device.moves]
    if head.mobility is None:
        if moving:
            raise FednagError(
                f"device {moving[0].name}: moves",
                "nothing says where",
                "give a [mobility] table, or leave it out",
            )
        if head.unit is not None:
            raise FednagError("unit", "goes only with [mobility]", "give it, or leave units out")
        if head.cloud is not None:
            raise FednagError("cloud", "goes only with [mobility]", "give it, or leave it out")
        return None, None, (), None
    if not moving:
        raise FednagError("mobility", "no device moves", "write moves = true in a [[device]]")
    with within(f"{source}: mobility"):
        mobility = _check(Mobility, head.mobility)
    units: list[Unit] = []
    for number, table in enumerate(head.unit or (), 1):
        with within(f"{source}: unit {plain(str(table.get('name', number)))}"):
            units += _check(UnitTable, table).units
    cloud = None
    if head.cloud is not None:
        if units:
            raise FednagError("cloud", "has no units at the roadside", "leave one of them out")
        with within(f"{source}: cloud"):
            cloud = _check(Cloud, head.cloud)
    elif not units:
        raise FednagError("unit", "there is none", "write a [[unit]] table for each")
    names = [unit.name for unit in units]
    for name in names:
        if names.count(name) > 1:
            raise FednagError(f"unit {name}", "is there twice", "use another name")
    trace = mobility.made(folder)
    wanted = sum(device.count for device in moving[:-1])
    wanted += moving[-1].count if "count" in moving[-1].model_fields_set else 1
    if wanted > len(trace.vehicles):
        raise FednagError(
            "device",
            f"{wanted} move, and the trace has {len(trace.vehicles)} vehicles",
            "lower count, or leave it out of the last that moves",
        )
    return mobility, trace, tuple(units), cloud


def _check_device(device: Device, samples: Samples) -> None:
    stated = device.gflops if device.gflops is not None else device.iteration
    field = "iteration" if device.iteration is not None else "gflops"
    sampled = _once(samples, field, stated, (device.name, "iteration"))
    if stated is None and not sampled:
        raise FednagError(
            "",
            "nothing says how fast it computes",
            f"give gflops, iteration, or samples of iterations in {SAMPLES_FILE}",
        )
    if device.spread is not None and sampled:
        raise FednagError("spread", "samples have their own", "leave it out")
    if device.gflops is None:
        if device.reference is None:
            raise FednagError(
                "reference",
                "is missing",
                'say what an iteration was of, e.g. {model = "cnn", batch = 64, flops = 4.0e9}',
            )
        _check(Reference, device.reference, "reference")
    elif device.reference is not None:
        raise FednagError("reference", "gflops needs none", "leave one of them out")
    if device.power is not None:
        _check(Power, device.power, "power")
    for way in ("up", "down"):
        table: dict[str, Any] | None = getattr(device, way)
        if device.moves:
            _once(samples, "moves", True, (device.name, way))
            continue
        if not _once(samples, way, table, (device.name, way)) and table is None:
            raise FednagError(
                way,
                "is missing",
                f"give e.g. {way} = {{mbit = 100, latency = 0.01}}, or samples in {SAMPLES_FILE}",
            )
        if table is not None:
            _check(Link, table, way)


def _once(samples: Samples, field: str, stated: object, key: tuple[str, str]) -> bool:
    """Whether it was sampled; said twice is a mistake."""
    sampled = bool(samples.of(*key))
    if sampled and stated is not None:
        raise FednagError(field, f"{samples.source} has samples of it too", "leave one of them out")
    return sampled


def _check(model: type[Checked], table: Mapping[str, Any], name: str = "") -> Checked:
    known, place = model.model_fields, f"{name}: " if name else ""
    for key in table:
        if key not in known:  # a slip of the pen explains what else is wrong: it comes first
            raise FednagError(
                f"{place}{plain(key)}",
                f"no such key{nearest(key, known)}",
                f"allowed here: {', '.join(known)}",
            )
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        found = explain(error, model)
        found.field = place + found.field
        raise found from None


def write_fleet(folder: Path, raw: Mapping[str, Any], samples: Samples) -> Path:
    """``fleet.toml`` and ``samples.csv``, checked first: what cannot be read is not written."""
    path = folder / "fleet.toml"
    tables = {**raw, "samples": SAMPLES_FILE} if samples.taken else dict(raw)
    with os_errors(folder, "cannot be written", "choose another folder"):
        folder.mkdir(parents=True, exist_ok=True)
        if samples.taken:
            write_samples(folder / SAMPLES_FILE, samples.all())
        write_atomically(path, tomli_w.dumps(tables))
    read_fleet(path)
    return path


def shipped() -> list[str]:
    """The names of the fleets that come with fednag.

    >>> from fednag.clock import shipped
    >>> shipped()[:4]
    ['highway', 'lan', 'mobile-bandwidth', 'paper-edge']
    """
    folder = files("fednag.devices") / "fleets"
    return sorted(f.name.removesuffix(".toml") for f in folder.iterdir() if f.name.endswith("toml"))


def locate(given: str | Path) -> Path:
    """A fleet's file: a shipped fleet's name, a file, or a folder with ``fleet.toml`` in it."""
    text = str(given)
    if text in shipped():
        return Path(str(files("fednag.devices") / "fleets" / f"{text}.toml"))
    path = Path(given)
    if path.is_dir():
        path = path / "fleet.toml"
    if not path.exists():
        hint = nearest(text, shipped())
        raise FednagError(
            "",
            f"no such fleet{hint}",
            f"give a file, or one of {', '.join(shipped())}",
            source=plain(text),
        )
    return path


def copy_fleet(given: str, target: Path) -> Path:
    """A shipped fleet's file, comments and all, to be edited; its trace is put beside it.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fednag.clock import copy_fleet, load_fleet
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     load_fleet(copy_fleet("lan", Path(folder, "mine.toml"))).name
    'lan'
    """
    if given not in shipped():
        raise FednagError(
            "",
            f"no shipped fleet{nearest(given, shipped())}",
            f"there are {', '.join(shipped())}",
            source=cut(given),
        )
    if target.exists():
        raise FednagError(target, "is there already", "choose another name")
    path = locate(given)
    mobility = read(path).get("mobility", {})
    trace = mobility.get("trace")
    if trace and (target.parent / trace).exists():
        raise FednagError(target.parent / trace, "is there already", "choose another folder")
    with os_errors(target, "cannot be written"):
        if trace:
            write_atomically(target.parent / trace, (path.parent / trace).read_bytes())
        write_atomically(target, path.read_bytes())
    return target
