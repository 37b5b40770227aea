"""A fleet: devices with what their delays are drawn from, and the aggregator's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fednag.devices.clouds import Tenure, cloud_contacts, tenures
from fednag.devices.files import (
    AGGREGATION,
    AGGREGATOR,
    AccessPoint,
    Description,
    Link,
    Reference,
    read_fleet,
)
from fednag.devices.files import Device as DeviceTable
from fednag.devices.radio import Roads, availability, contacts
from fednag.devices.sharing import Point
from fednag.devices.times import (
    ALWAYS,
    DAY,
    STEADY,
    Availability,
    Lognormal,
    Times,
    Transfer,
    of_day,
    times_of,
)
from fednag.errors import FednagError


@dataclass(frozen=True)
class Compute:
    """How long floating-point operations take: seconds of a reference iteration, scaled.

    >>> import numpy as np
    >>> from fednag.clock import Compute, Lognormal
    >>> speed = Compute(Lognormal(0.1), flops=1e9, reference="by hand")
    >>> round(speed.draw(np.random.default_rng(0), count=5, flops=2e9, start=0), 9)
    1.0
    """

    times: Times
    flops: float  # of a reference iteration
    reference: str
    stated: bool = False  # operations a second, not an iteration that somebody timed

    def draw(self, rng: np.random.Generator, count: int, flops: float, start: int) -> float:
        """Seconds for ``count`` iterations of ``flops`` each."""
        if not count:
            return 0.0
        return float(self.times.draw(rng, count, start).sum()) * flops / self.flops


@dataclass(frozen=True)
class Power:
    """Watts a device takes while it computes, receives, sends and waits.

    >>> from fednag.clock import Power
    >>> Power(compute=4.0, receive=1.0, send=1.5, idle=0.25).of(compute=10, up=2, waiting=4)
    44.0
    """

    compute: float
    receive: float
    send: float
    idle: float = 0.0

    def of(
        self, compute: float = 0.0, down: float = 0.0, up: float = 0.0, waiting: float = 0.0
    ) -> float:
        """Joules of so many seconds."""
        working = compute * self.compute + down * self.receive + up * self.send
        return working + waiting * self.idle


@dataclass(frozen=True)
class Device:
    """One device.

    >>> from fednag.clock import load_fleet
    >>> device = load_fleet("lan").device(0)
    >>> device.name, device.availability.is_on(0.0)
    ('desktop-1', True)
    """

    name: str
    kind: str  # the table it comes from; devices of one table are alike
    compute: Compute
    up: Transfer
    down: Transfer
    availability: Availability = ALWAYS
    power: Power | None = None
    point: Point | None = None  # the access point whose line it shares

    @property
    def varies(self) -> bool:
        return self.compute.times.varies or self.up.varies or self.down.varies


@dataclass(frozen=True)
class Aggregation:
    """Seconds the aggregator takes: in proportion to bytes where samples say how many they had.

    >>> import numpy as np
    >>> from fednag.clock import Aggregation, Lognormal
    >>> round(Aggregation(Lognormal(0.5)).draw(np.random.default_rng(0), size=100, start=0), 9)
    0.5
    """

    times: Times
    per_byte: bool = False

    def draw(self, rng: np.random.Generator, size: int, start: int) -> float:
        drawn = float(self.times.draw(rng, 1, start)[0])
        return drawn * size if self.per_byte else drawn


@dataclass(frozen=True)
class Edge:
    """An edge between workers and server: its links to what is above it, and its aggregations.

    >>> from fednag.clock import load_fleet
    >>> load_fleet("three-tier").edges_of(0)[0].name
    'cabinet-1'
    """

    name: str
    kind: str
    tier: int  # 0: above workers
    up: Transfer
    down: Transfer
    aggregation: Aggregation | None = None


@dataclass(frozen=True)
class Fleet:
    """Devices and an aggregator. Worker i is device i, again from the first when they run out.

    >>> from fednag.clock import load_fleet
    >>> load_fleet("lan").placing(4)
    'workers on the devices of lan: 0 desktop-1, 1 desktop-2, 2 desktop-3, 3 desktop-4'
    """

    name: str
    source: str
    synthetic: bool
    about: str
    devices: tuple[Device, ...]
    aggregation: Aggregation | None
    digest: str = ""
    roads: Roads | None = None
    lasting: bool = False  # only vehicles whose contact will do are asked
    measured: str = ""  # what of a synthetic fleet was measured after all
    edges: tuple[Edge, ...] = ()

    def edges_of(self, tier: int) -> tuple[Edge, ...]:
        """Its edges of a tier; edge i of a run is edge i, again from the first."""
        return tuple(edge for edge in self.edges if edge.tier == tier)

    def device(self, worker: int) -> Device:
        return self.devices[worker % len(self.devices)]

    @property
    def varies(self) -> bool:
        """Whether two replays may differ."""
        own = self.aggregation is not None and self.aggregation.times.varies
        links = [link for edge in self.edges for link in (edge.up, edge.down)]
        spent = [edge.aggregation.times for edge in self.edges if edge.aggregation is not None]
        return (
            own
            or any(device.varies for device in self.devices)
            or any(link.varies for link in links)
            or any(times.varies for times in spent)
        )

    @property
    def comes_and_goes(self) -> bool:
        return any(device.availability.intervals for device in self.devices)

    @property
    def powered(self) -> bool:
        """Whether it is known how much power its devices take."""
        return all(device.power is not None for device in self.devices)

    @property
    def shares(self) -> bool:
        """Whether some of its devices share a line."""
        return any(device.point is not None for device in self.devices)

    @property
    def title(self) -> str:
        """Its name, for tables and charts: synthetic fleets say what they are."""
        return f"{self.name} (synthetic)" if self.synthetic else self.name

    def as_data(self) -> dict[str, Any]:
        """Which fleet it is, for programs."""
        return {"name": self.name, "synthetic": self.synthetic, "digest": self.digest}

    def placing(self, workers: int) -> str:
        """Which worker is on which device, in a sentence."""
        names = [self.device(i).name for i in range(workers)]
        if workers > 8:
            return (
                f"worker i is device i modulo {len(self.devices)} of {self.name} "
                f"(0: {names[0]}, 1: {names[1]}, …)"
            )
        placed = ", ".join(f"{i} {name}" for i, name in enumerate(names))
        unused = len(self.devices) - workers
        tail = f"; {unused} more of its devices are not used" if unused > 0 else ""
        return f"workers on the devices of {self.name}: {placed}{tail}"


def load_fleet(given: str | Path, sampling: str | None = None) -> Fleet:
    """A shipped fleet by name, or a fleet file (or its folder).

    ``sampling`` (bootstrap, recorded or lognormal) replaces what the file says of its samples.

    >>> from fednag.clock import load_fleet
    >>> fleet = load_fleet("paper-edge")
    >>> [device.name for device in fleet.devices][:2], fleet.synthetic
    (['i3-M380', 'nubia-z17s'], True)
    """
    return build(read_fleet(given), sampling)


def build(found: Description, sampling: str | None = None) -> Fleet:
    """A checked description as a fleet to draw from."""
    sampling = sampling or found.head.sampling
    devices: list[Device] = []
    driven: dict[str, str] = {}
    points = {point.name: point for point in found.points}
    elected = _elected(found)
    for table in found.devices:
        compute = _compute(found, table, sampling)
        power = None if table.power is None else Power(**table.power)
        if table.moves:
            moving = _moving(found, table, compute, driven, elected)
            devices += [replace(device, power=power) for device in moving]
            continue
        up, down = (_transfer(found, table, way, sampling) for way in ("up", "down"))
        intervals, period = table.available or (), table.period
        if table.daily is not None:
            intervals, period = of_day(table.daily, table.zone, found.head.begins), DAY
        point, on = None, Availability(intervals, period)
        for number in range(table.count):
            if table.stagger:
                on = Availability(intervals, period, number * table.stagger)
            if table.access is not None:
                point = _point(points[table.access], table.name, number)
            name = table.name if table.count == 1 else f"{table.name}-{number + 1}"
            devices.append(Device(name, table.name, compute, up, down, on, power, point))
    return Fleet(
        name=found.head.name,
        source=found.source,
        synthetic=found.head.synthetic,
        about=found.head.about,
        devices=tuple(devices),
        aggregation=_aggregation(found, sampling),
        digest=found.digest,
        edges=tuple(_edges(found)),
        roads=_roads(found, driven, elected),
        lasting=found.mobility is not None and found.mobility.select == "lasting",
        measured=found.head.measured,
    )


def _point(table: AccessPoint, kind: str, number: int) -> Point:
    """The point that serves a table's device; one for all, or one for every few of a table."""
    name = table.name
    if table.serves is not None:
        name = f"{table.name} of {kind} {number // table.serves + 1}"
    return Point(name, table.up * 1e6 / 8, table.down * 1e6 / 8)


def _moving(
    found: Description,
    table: DeviceTable,
    compute: Compute,
    driven: dict[str, str],
    elected: tuple[Tenure, ...],
) -> list[Device]:
    """A table's vehicles: the next of the trace; they are put into ``driven`` too."""
    mobility, trace = found.mobility, found.trace
    assert mobility is not None
    assert trace is not None
    free = trace.vehicles[len(driven) :]
    if "count" in table.model_fields_set or table is not _last_moving(found):
        free = free[: table.count]
    cloud = found.cloud
    rates = [rate for _, rate in cloud.rings] if cloud else [unit.best for unit in found.units]
    full = max(rates)
    factor = Lognormal(1.0, mobility.link_spread) if mobility.link_spread else STEADY
    link = Transfer(mobility.latency, 8 / (full * 1e6), factor)
    devices = []
    for number, vehicle in enumerate(free, 1):
        if cloud:
            served = cloud_contacts(trace, vehicle, elected, cloud.rings)
        else:
            served = contacts(trace.ways[vehicle], found.units)
        period = trace.seconds if mobility.repeat else None
        on = availability(served, full, period, mobility.hand_over == "lost")
        name = table.name if len(free) == 1 else f"{table.name}-{number}"
        driven[name] = vehicle
        devices.append(Device(name, table.name, compute, link, link, on))
    return devices


def _elected(found: Description) -> tuple[Tenure, ...]:
    """Who of the vehicles that are devices aggregates, when; nobody where there is no cloud."""
    cloud, trace = found.cloud, found.trace
    if cloud is None or trace is None:
        return ()
    tables = [table for table in found.devices if table.moves]
    counts = sum(table.count for table in tables)
    all_ = "count" not in tables[-1].model_fields_set
    vehicles = trace.vehicles if all_ else trace.vehicles[:counts]
    return tenures(trace, vehicles, cloud.rings[-1][0], cloud.elect, cloud.every)


def _roads(found: Description, driven: dict[str, str], elected: tuple[Tenure, ...]) -> Roads | None:
    if found.trace is None:
        return None
    heads = tuple((one.head, one.start, one.end) for one in elected)
    rings = found.cloud.rings if found.cloud else ()
    return Roads(found.trace, found.units, driven, heads, rings)


def _last_moving(found: Description) -> DeviceTable:
    return [table for table in found.devices if table.moves][-1]


def _compute(found: Description, table: DeviceTable, sampling: str) -> Compute:
    if table.gflops is not None:
        # Any number of operations serves as the reference: time is in proportion to them.
        stated = Lognormal(1.0, table.spread or 0.0)
        return Compute(stated, table.gflops * 1e9, f"{table.gflops:g} GFLOP/s", stated=True)
    assert table.reference is not None
    of = Reference.model_validate(table.reference)
    words = f"{of.model}{' on ' + of.data if of.data else ''}, batch {of.batch}"
    if table.iteration is not None:
        return Compute(Lognormal(table.iteration, table.spread or 0.0), of.flops, words)
    taken = [sample.seconds for sample in found.samples.of(table.name, "iteration")]
    return Compute(times_of(taken, sampling), of.flops, words)


def _transfer(found: Description, table: DeviceTable, way: str, sampling: str) -> Transfer:
    stated = getattr(table, way)
    if stated is not None:
        return _link(Link.model_validate(stated))
    samples = found.samples.of(table.name, way)
    return Transfer.fit([(s.size or 0, s.seconds) for s in samples], sampling)


def _edges(found: Description) -> Iterator[Edge]:
    """Each edge of the tables."""
    for table in found.edges:
        spent = None
        if table.seconds:
            spent = Aggregation(Lognormal(table.seconds, table.spread))
        up, down = (_link(Link.model_validate(way)) for way in (table.up, table.down))
        for number in range(table.count):
            name = table.name if table.count == 1 else f"{table.name}-{number + 1}"
            yield Edge(name, table.name, table.tier, up, down, spent)


def _link(link: Link) -> Transfer:
    factor = Lognormal(1.0, link.spread) if link.spread else STEADY
    return Transfer(link.latency, 8 / (link.mbit * 1e6), factor)


def _aggregation(found: Description, sampling: str) -> Aggregation | None:
    stated, samples = found.aggregator, found.samples.of(AGGREGATOR, AGGREGATION)
    if samples:
        sized = [sample.size is not None for sample in samples]
        if any(sized) and not all(sized):
            raise FednagError(
                "aggregator",
                "some samples have bytes and some none",
                "give all of them or none",
                source=found.samples.source,
            )
        taken = [sample.seconds / (sample.size or 1) for sample in samples]
        return Aggregation(times_of(taken, sampling), per_byte=all(sized))
    if not stated.seconds:
        return None
    return Aggregation(Lognormal(stated.seconds, stated.spread or 0.0))
