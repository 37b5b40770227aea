"""Published traces of real devices, read and made into tables of a fleet file.

What a trace does not say is filled in from ``Assumed``, and the fleet says so.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import ceil, isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from fednag.config.messages import cut
from fednag.core.files import os_errors
from fednag.devices.files import FORMAT, Sample, gather, write_fleet
from fednag.devices.opcodes import LARGEST, read_plain
from fednag.devices.times import DAY
from fednag.errors import FednagError, within

STAMP = "%Y-%m-%d %H:%M:%S"
MEGABYTE = 1_000_000  # what a second's rate is turned into the transfer of
TRAINING = 3  # a forward pass takes one part of a training step, the backward pass two
TEXT = b"{[ \t\r\n\xef"  # how JSON begins, which no pickle does

Interval = tuple[float, float]


@dataclass(frozen=True)
class Assumed:
    """What a trace may not say. ``flops`` are those of the training step that FedScale's
    milliseconds are of: ShuffleNet V2 2x, 0.59 billion multiply-adds a forward pass."""

    gflops: float = 20.0
    up: float = 8.0  # Mbit/s, at most the rate down
    down: float = 25.0
    latency: float = 0.05
    flops: float = 3.5e9


@dataclass(frozen=True)
class Found:
    """What was read: tables of devices, samples, what of them was measured, and notes."""

    devices: list[dict[str, Any]]
    measured: str
    assumed: str
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Kind:
    """A kind of trace that can be read."""

    about: str
    read: Callable[[Sequence[Path], Assumed, int], Found]


def convert(
    kind: str, paths: Sequence[Path], out: Path, assumed: Assumed | None = None, most: int = 1000
) -> tuple[Path, list[str]]:
    """Write a fleet of a trace's devices into ``out``, evenly chosen if there are more than
    ``most``; gives the file and notes."""
    found = KINDS[kind].read(paths, assumed or Assumed(), most)
    name = "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in out.name)
    raw = {
        "format": FORMAT,
        "name": name[:100] if name[:1].isalnum() else kind,
        "about": f"{len(found.devices)} devices of {', '.join(p.name for p in paths)}",
        "synthetic": bool(found.assumed),
        "measured": found.measured if found.assumed else "",
        "device": found.devices,
    }
    path = write_fleet(out, raw, gather(found.samples))
    said = [f"measured: {found.measured}"]
    if found.assumed:
        said.append(f"assumed: {found.assumed}; options of `fednag time convert` say otherwise")
    return path, [*said, *found.notes]


def chosen(items: Sequence[Any], most: int, what: str, notes: list[str]) -> list[Any]:
    """At most so many, evenly from the first to the last."""
    if len(items) <= most:
        return list(items)
    notes.append(f"{most} of {len(items)} {what}, evenly chosen (--most)")
    return [items[place * len(items) // most] for place in range(most)]


# FedScale


def read_table(path: Path) -> dict[Any, dict[Any, Any]]:
    """A dictionary of dictionaries: JSON, or a pickle of plain data."""
    with os_errors(path, "cannot be read", "check the path"), path.open("rb") as file:
        first = file.read(1)
    found = _json(path) if not first or first in TEXT else read_plain(path)
    if not isinstance(found, dict) or not all(isinstance(v, dict) for v in found.values()):
        raise FednagError(path, "is not a table of devices", "give one as it was published")
    if not found:
        raise FednagError(path, "has no devices", "give one as it was published")
    return found


def _json(path: Path) -> Any:
    with os_errors(path, "cannot be read", "check the path"):
        if path.stat().st_size > LARGEST:
            raise FednagError(path, "is larger than 1 GiB", "give a part of it")
        data = path.read_bytes()
    try:
        return json.loads(data.removeprefix(b"\xef\xbb\xbf"))
    except (ValueError, RecursionError) as error:
        raise FednagError(path, "is not JSON", "give one as it was published") from error


def write_plain(paths: Iterable[Path], out: Path) -> list[Path]:
    """FedScale's files as JSON, whose keys are text."""
    from fednag.core.files import write_atomically

    written = []
    for path in paths:
        target = out / f"{path.stem}.json"
        with os_errors(out, "cannot be written", "choose another folder"):
            out.mkdir(parents=True, exist_ok=True)
            write_atomically(target, json.dumps(read_table(path)))
        written.append(target)
    return written


def fedscale(paths: Sequence[Path], assumed: Assumed, most: int) -> Found:
    """Capacities (``computation``: milliseconds of a sample's forward pass, ``communication``:
    kbit/s), and perhaps when devices are ``active`` and ``inactive``; as in FedScale, device i has
    the i-th availability, again from the first when they run out."""
    capacities: dict[Any, dict[Any, Any]] = {}
    behaviours: list[tuple[Path, Any, dict[Any, Any]]] = []
    for path in paths:
        table = read_table(path)
        keys = set(next(iter(table.values())))
        if {"computation", "communication"} <= keys:
            capacities |= table
            source = path
        elif {"active", "inactive", "finish_time"} <= keys:
            behaviours += [(path, key, trace) for key, trace in table.items()]
        else:
            raise FednagError(
                path,
                "has neither capacities nor availability",
                "give client_device_capacity, and client_behave_trace with it",
            )
    if not capacities:
        raise FednagError(paths[0], "has availability alone", "give client_device_capacity with it")
    notes: list[str] = []
    reference = {"model": "as-published", "batch": 1, "flops": assumed.flops}
    devices: list[dict[str, Any]] = []
    never = 0
    for number, (key, capacity) in enumerate(chosen([*capacities.items()], most, "devices", notes)):
        with within(f"{source}: {cut(str(key))}"):
            forward = _number(capacity, "computation")
            mbit = _number(capacity, "communication") / 1000
        link = {"mbit": mbit}
        made: dict[str, Any] = {"name": f"device-{number + 1}", "about": f"{cut(str(key))} there"}
        made |= {"iteration": TRAINING * forward / 1000, "reference": reference}
        made |= {"up": link, "down": link}
        if behaviours:
            path, name, trace = behaviours[number % len(behaviours)]
            with within(f"{path}: {cut(str(name))}"):
                period = _number(trace, "finish_time")
                intervals = _active(trace, period)
            if not intervals:
                never += 1
                continue
            made |= {"available": intervals, "period": period}
        devices.append(made)
    if never:
        notes.append(f"{never} were left out: their availability has no time")
    if not devices:
        raise FednagError(paths[0], "no device can ever be reached", "give another availability")
    measured = "computing and links" + (", and when devices can be reached" if behaviours else "")
    said = f"{assumed.flops:g} FLOP a training step of theirs (--flops), no latency"
    return Found(devices, measured, said, notes=notes)


def _active(trace: Mapping[Any, Any], period: float) -> list[Interval]:
    starts, ends = trace.get("active"), trace.get("inactive")
    for name, times in (("active", starts), ("inactive", ends)):
        if not isinstance(times, list) or not all(_is_number(time) for time in times):
            raise FednagError(name, "is not a list of numbers", "give one as it was published")
    assert isinstance(starts, list)
    assert isinstance(ends, list)
    if len(starts) != len(ends):
        raise FednagError(
            "inactive", f"has {len(ends)} times, and active {len(starts)}", "give as many"
        )
    pairs = [(max(0.0, float(a)), min(float(b), period)) for a, b in zip(starts, ends, strict=True)]
    return merged([pair for pair in pairs if pair[0] < pair[1]])


def merged(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals in order, those that touch as one."""
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def _is_number(value: Any) -> bool:
    if type(value) is int:
        return abs(value) < 1 << 63
    return type(value) is float and isfinite(value)


def _number(table: Mapping[Any, Any], name: str) -> float:
    value = table.get(name)
    if not _is_number(value):
        what = "is missing" if value is None else "is no number"
        raise FednagError(name, what, "it should be a number above 0")
    assert isinstance(value, int | float)
    if not 0 < value < 1e12:
        raise FednagError(name, f"{value} is not allowed", "it should be a number above 0")
    return float(value)


# FLASH


def flash(paths: Sequence[Path], assumed: Assumed, most: int) -> Found:
    """When phones are there to train: locked, charging and on Wi-Fi, as their logs say. Times of
    day are theirs, and a log begins again after whole days."""
    notes: list[str] = []
    users: list[tuple[Path, Any, Any]] = []
    for path in paths:
        users += [(path, key, user) for key, user in read_table(path).items()]
    devices: list[dict[str, Any]] = []
    never = 0
    for path, key, user in users:
        with within(f"{path}: {cut(str(key))}"):
            days, intervals = _ready(user.get("messages"))
        if not intervals:
            never += 1
            continue
        model = user.get("model", "")
        table = {"name": f"phone-{len(devices) + 1}"}
        table |= {"about": cut(model) if isinstance(model, str) and model else ""}
        on = {"available": intervals, "period": days * DAY}
        devices.append({**table, **on, **_usual(assumed)})
    if never:
        notes.append(f"{never} were left out: they are never locked, charging and on Wi-Fi at once")
    if not devices:
        raise FednagError(paths[0], "no phone is ever there to train", "give another file")
    kept = chosen(devices, most, "phones", notes)
    said = (
        f"{assumed.gflops:g} GFLOP/s (--gflops), {assumed.up:g} Mbit/s up (--up), {assumed.down:g} "
        f"down (--down), latency {assumed.latency:g} s (--latency)"
    )
    return Found(kept, "when phones can be reached", said, notes=notes)


def _usual(assumed: Assumed) -> dict[str, Any]:
    return {
        "gflops": assumed.gflops,
        "up": {"mbit": min(assumed.up, assumed.down), "latency": assumed.latency},
        "down": {"mbit": assumed.down, "latency": assumed.latency},
    }


def _ready(messages: Any) -> tuple[int, list[Interval]]:
    """Days of a log, and when in them the phone is ready, in seconds from its first midnight."""
    if not isinstance(messages, str):
        raise FednagError("messages", "is missing", "give a log, one time and state a line")
    locked = wifi = charging = False
    first: datetime | None = None
    began: float | None = None
    now = 0.0
    found: list[Interval] = []
    for number, line in enumerate(messages.split("\n"), 1):
        if not line.strip():
            continue
        parts = line.strip().split("\t")
        try:
            time = datetime.strptime(parts[0].strip(), STAMP)
            (said,) = parts[1:]
        except ValueError:
            raise FednagError(
                f"messages, line {number}",
                f"{cut(line)} is not a time and a state",
                "write e.g. 2020-01-02 03:04:05, a tab, screen_lock",
            ) from None
        first = first or datetime(time.year, time.month, time.day)
        if (elapsed := (time - first) / timedelta(seconds=1)) < now:
            raise FednagError(f"messages, line {number}", "goes back in time", "sort the lines")
        now, state = elapsed, said.strip().lower()
        locked = {"screen_lock": True, "screen_unlock": False}.get(state, locked)
        charging = {"battery_charged_on": True, "battery_charged_off": False}.get(state, charging)
        if state in ("wifi", "unknown", "2g", "3g", "4g", "5g"):
            wifi = state == "wifi"
        if state == "phone_off":
            locked = wifi = charging = False
        if locked and wifi and charging:
            began = now if began is None else began
        elif began is not None:
            found.append((began, now))
            began = None
    if began is not None:
        found.append((began, now))
    return max(1, ceil(now / DAY)), merged(pair for pair in found if pair[0] < pair[1])


# Raca and others, 4G and 5G


def raca(paths: Sequence[Path], assumed: Assumed, most: int) -> Found:
    """G-NetTrack logs, a second a line: a device a file, its rates down (kbit/s) in the seconds in
    which it downloads. Uploads of these logs are acknowledgements, and say nothing of a rate up."""
    notes: list[str] = []
    logs = chosen(sorted(_logs(paths)), most, "logs", notes)
    devices: list[dict[str, Any]] = []
    samples: list[Sample] = []
    silent = 0
    for number, (source, text) in enumerate(logs, 1):
        with within(source):
            rates = _rates(text)
        if not rates:
            silent += 1
            continue
        name = f"phone-{number}"
        samples += [Sample(name, "down", MEGABYTE, 8 * MEGABYTE / (r * 1000)) for r in rates]
        up = {"mbit": min(assumed.up, max(rates) / 1000), "latency": assumed.latency}
        devices.append({"name": name, "about": source, "gflops": assumed.gflops, "up": up})
    if silent:
        notes.append(f"{silent} were left out: nothing is downloaded in them")
    if not devices:
        raise FednagError(paths[0], "nothing is downloaded in it", "give logs of downloads")
    said = f"{assumed.gflops:g} GFLOP/s (--gflops), {assumed.up:g} Mbit/s up (--up)"
    said += f" after {assumed.latency:g} s (--latency)"
    return Found(devices, "rates down, second by second", said, samples, notes)


def _logs(paths: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Names and texts of CSV files, those in archives and folders too."""
    for path in paths:
        if path.is_dir():
            inside = sorted(path.rglob("*.csv"))
            if not inside:
                raise FednagError(path, "has no CSV files", "give logs")
            yield from _logs(inside)
        elif path.suffix == ".zip":
            yield from _archived(path)
        else:
            yield str(path), _text(path)


def _archived(path: Path) -> Iterator[tuple[str, str]]:
    left = LARGEST
    try:
        with os_errors(path, "cannot be read", "check the path"), zipfile.ZipFile(path) as archive:
            names = [i for i in archive.infolist() if i.filename.lower().endswith(".csv")]
            if not names:
                raise FednagError(path, "has no CSV files", "give an archive of logs")
            for info in names:
                with archive.open(info) as file:
                    data = file.read(left + 1)
                left -= len(data)
                if left < 0:
                    raise FednagError(path, "unpacks to more than 1 GiB", "give a part of it")
                yield f"{path}: {cut(info.filename)}", data.decode("utf-8-sig", "replace")
    except (
        zipfile.BadZipFile,
        zlib.error,
        lzma.LZMAError,
        NotImplementedError,
        RuntimeError,
        ValueError,
        EOFError,
    ) as error:
        raise FednagError(path, f"is not a readable archive ({error})", "fetch it again") from error


def _text(path: Path) -> str:
    with os_errors(path, "cannot be read", "check the path"):
        if path.stat().st_size > LARGEST:
            raise FednagError(path, "is larger than 1 GiB", "give a part of it")
        try:
            return path.read_text(encoding="utf-8-sig")
        except ValueError as error:
            raise FednagError(path, "is not text in UTF-8", "give a CSV file") from error


def _rows(text: str, needed: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines of a CSV file by their headings."""
    lines = csv.DictReader(io.StringIO(text))
    try:
        for name in needed:
            if name not in (lines.fieldnames or ()):
                raise FednagError("line 1", f"no column {name}", "give a file as it was published")
        for row in lines:
            yield lines.line_num, row
    except csv.Error as error:
        raise FednagError(f"line {lines.line_num}", f"is not CSV ({error})") from error


def _rates(text: str) -> list[float]:
    """kbit/s of the seconds in which something was downloaded."""
    found = []
    for line, row in _rows(text, ("Timestamp", "DL_bitrate")):
        if (row.get("State") or "D").strip() != "D":
            continue
        rate = _decimal(row["DL_bitrate"], line, "DL_bitrate")
        if rate > 0:
            found.append(rate)
    return found


def _decimal(text: str | None, line: int, name: str) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = -1.0
    if not (isfinite(value) and 0 <= value < 1e12):
        raise FednagError(
            f"line {line}: {name}", f"{cut(text or '')} is not allowed", "write a number from 0 up"
        )
    return value


# MobileBandwidth


def mobile_bandwidth(paths: Sequence[Path], assumed: Assumed, most: int) -> Found:
    """Bandwidth tests: a device a test, with its rate down in Mbit/s."""
    notes: list[str] = []
    tests: list[tuple[str, float]] = []
    for path in paths:
        if path.suffix in (".xlsx", ".xls"):
            raise FednagError(path, "is a spreadsheet", "save it as CSV")
        with within(path):
            for line, row in _rows(_text(path), ("network_type", "bandwidth_Mbps")):
                network = _network(row)
                rate = _decimal(row["bandwidth_Mbps"], line, "bandwidth_Mbps")
                if rate > 0:
                    tests.append((network, rate))
    if not tests:
        raise FednagError(paths[0], "has no tests", "give a file as it was published")
    devices = [
        {"name": f"{network}-{number}"} | _usual_at(rate, assumed)
        for number, (network, rate) in enumerate(chosen(tests, most, "tests", notes), 1)
    ]
    said = (
        f"{assumed.gflops:g} GFLOP/s (--gflops), {assumed.up:g} Mbit/s up or the rate down where "
        f"that is less (--up), latency {assumed.latency:g} s (--latency)"
    )
    return Found(devices, "rates down", said, notes=notes)


def _network(row: Mapping[str, str]) -> str:
    name = (row.get("network_type") or "").strip().lower()
    if name == "wifi":
        name += (row.get("wifi_wifiStandard") or "").strip()
    return "".join(c for c in name if c.isascii() and c.isalnum())[:20] or "device"


def _usual_at(rate: float, assumed: Assumed) -> dict[str, Any]:
    return {
        "gflops": assumed.gflops,
        "up": {"mbit": min(assumed.up, rate), "latency": assumed.latency},
        "down": {"mbit": rate, "latency": assumed.latency},
    }


KINDS = MappingProxyType(
    {
        "fedscale": Kind("client_device_capacity, and client_behave_trace", fedscale),
        "flash": Kind("state_traces.json", flash),
        "raca": Kind("G-NetTrack logs of 4G and 5G: CSV files, their folder or ZIP", raca),
        "mobile-bandwidth": Kind("bandwidth tests: 4G.csv and the like", mobile_bandwidth),
    }
)
