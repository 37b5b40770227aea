"""Fleet files and their samples (``who,what,bytes,seconds``), all checked; the shipped fleets."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fednag.config import read
from fednag.config.messages import cut, explain, nearest, plain
from fednag.config.sections import STRICT
from fednag.core.files import os_errors, write_atomically
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
Spread = Annotated[float, Field(ge=0, le=5)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]

Checked = TypeVar("Checked", bound=BaseModel)


class Table(BaseModel):
    model_config = ConfigDict(**STRICT)


class Link(Table):
    """A link in one direction."""

    mbit: float = Field(gt=0, le=1e9)  # megabits a second
    latency: float = Field(0.0, ge=0, le=3e7)  # seconds
    spread: Spread = 0.0


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

    @model_validator(mode="after")
    def _consistent(self) -> Device:
        if self.name == AGGREGATOR:
            raise InconsistentError("name", f"{AGGREGATOR!r} is not a device", "use another name")
        if self.gflops is not None and self.iteration is not None:
            raise InconsistentError("", remedy="give gflops or iteration, not both")
        for key in ("period", "stagger"):
            if getattr(self, key) is not None and self.available is None:
                raise InconsistentError(key, "goes only with available", "leave it out")
        if self.stagger is not None and self.period is None:
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


class Aggregator(Table):
    """Seconds an aggregation takes; ``spread`` as for a device."""

    about: str = ""
    seconds: float | None = Field(None, ge=0, le=3e7)
    spread: Spread | None = None


class FleetFile(Table):
    """A fleet file's own fields; devices are checked one by one."""

    format: int = FORMAT
    name: Name
    about: str = ""
    synthetic: bool = False
    sampling: Sampling = "bootstrap"
    samples: str | None = None
    aggregator: dict[str, Any] = Field(default_factory=dict)
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

    @property
    def digest(self) -> str:
        """Of all that delays come from: the file's tables and samples, not its comments."""
        parts = [self.head, *self.devices, self.aggregator, *self.samples.all()]
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
        for name in names:
            if names.count(name) > 1:
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
    return Description(source, head, tuple(devices), aggregator, samples, text)


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
    for way in ("up", "down"):
        table: dict[str, Any] | None = getattr(device, way)
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
    >>> shipped()
    ['lan', 'paper-edge', 'silos-wan', 'vehicles']
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
    """A shipped fleet's file, comments and all, to be edited.

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
    with os_errors(target, "cannot be written"):
        write_atomically(target, locate(given).read_bytes())
    return target
