"""Samples as a CSV file: ``who,what,bytes,seconds``, a line a sample, in the order taken."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

from fednag.config.messages import cut, nearest
from fednag.core.files import write_atomically
from fednag.errors import FednagError

COLUMNS = ("who", "what", "bytes", "seconds")
AGGREGATOR = "aggregator"
KINDS = ("iteration", "down", "up")  # what a device is sampled for
AGGREGATION = "aggregation"
LARGEST = 1 << 30  # bytes of a file of samples; more is not one


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
        if path.stat().st_size > LARGEST:
            raise FednagError(f"{path}: is larger than 1 GiB; give a file of samples")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise FednagError(
            f"{path}: cannot be read ({error.strerror}); check `samples` in the fleet file"
        ) from error
    except ValueError as error:
        raise FednagError(f"{path}: is not text in UTF-8; give a CSV file") from error
    return parse_samples(text, str(path), devices)


def parse_samples(text: str, source: str, devices: Iterable[str]) -> Samples:
    lines = csv.reader(io.StringIO(text), strict=True)
    known = list(devices)
    found = []
    try:
        heading = [name.strip() for name in next(lines, [])]
        if not heading:
            raise FednagError(f"{source}: is empty; its first line is {','.join(COLUMNS)}")
        for name in heading:
            if name not in COLUMNS:
                raise FednagError(
                    f"{source}: line 1: no column {cut(name)}{nearest(name, COLUMNS)}; the columns "
                    f"are {','.join(COLUMNS)}"
                )
        missing = [name for name in COLUMNS if name not in heading]
        if missing or len(heading) != len(COLUMNS):
            what = f"{missing[0]} is missing" if missing else "one is there twice"
            raise FednagError(f"{source}: line 1: {what}; the columns are {','.join(COLUMNS)}")
        for cells in lines:
            if any(cell.strip() for cell in cells):
                where = f"{source}: line {lines.line_num}"
                found.append(_sample(where, heading, cells, known))
    except csv.Error as error:
        raise FednagError(f"{source}: line {lines.line_num}: is not CSV ({error})") from error
    if not found:
        raise FednagError(f"{source}: has no samples; put a line for each below the first")
    return gather(found, source)


def _sample(where: str, heading: list[str], cells: list[str], known: list[str]) -> Sample:
    if len(cells) != len(heading):
        raise FednagError(
            f"{where}: has {len(cells)} cells, not {len(heading)}; write {','.join(COLUMNS)}"
        )
    row = {name: cell.strip() for name, cell in zip(heading, cells, strict=True)}
    who, what = row["who"], row["what"]
    if who == AGGREGATOR:
        allowed: tuple[str, ...] = (AGGREGATION,)
    elif who in known:
        allowed = KINDS
    else:
        raise FednagError(
            f"{where}: who: no device {cut(who)} in the fleet file"
            f"{nearest(who, [*known, AGGREGATOR])}; there are {', '.join([*known, AGGREGATOR])}"
        )
    if what not in allowed:
        raise FednagError(
            f"{where}: what: {cut(what)} is not sampled for {who}{nearest(what, allowed)}; "
            f"use {', '.join(allowed)}"
        )
    return Sample(who, what, _bytes(where, what, row["bytes"]), _seconds(where, row["seconds"]))


def _bytes(where: str, what: str, text: str) -> int | None:
    if not text and what in ("iteration", AGGREGATION):
        return None
    if what == "iteration":
        raise FednagError(f"{where}: bytes: an iteration has none; leave the cell empty")
    if text.isascii() and text.isdecimal() and 0 < int(text[:20]) <= 2**50:
        return int(text)
    raise FednagError(f"{where}: bytes: {cut(text)} is not allowed; write a whole number above 0")


def _seconds(where: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not (isfinite(seconds) and seconds > 0):
        raise FednagError(f"{where}: seconds: {cut(text)} is not allowed; write a number above 0")
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
