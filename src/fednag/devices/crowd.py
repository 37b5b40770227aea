"""Plain rounds of many workers at once: the clock's numbers, to the bit, from arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf, log

import numpy as np
from numpy.typing import NDArray

from fednag.core.keys import DELAYS, Indexes
from fednag.devices.delays import Delays
from fednag.devices.draws import Generators, agrees, exponential
from fednag.devices.fleet import Device, Fleet
from fednag.devices.sharing import Errand, share
from fednag.devices.times import Lognormal
from fednag.devices.workload import Workload

Table = NDArray[np.float64]

FEW = 16  # workers of a round that are as quickly played one by one
BLOCK = 1 << 13  # workers whose delays are drawn at once, of one round or of several
CELLS = 1 << 20  # numbers drawn at once, at most


@dataclass(frozen=True, eq=False)
class Crowd:
    """A fleet's numbers as arrays, a row a device.

    Only of fleets whose delays are all lognormal, stated or fitted, and whose devices do not drive.
    """

    fleet: Fleet
    workload: Workload
    seed: int
    latency: Table  # down, up
    per_byte: Table  # down, up: seconds
    median: Table  # logarithms: down, up, an iteration
    spread: Table
    speed: Table  # operations of the iteration that was timed
    comes_and_goes: NDArray[np.bool_]
    point: Indexes  # the number of the point each is behind, or -1
    lines: Table  # down, up: bytes a second of each point
    width: Indexes  # samples of each worker's batch

    @classmethod
    def of(cls, fleet: Fleet, workload: Workload, seed: int) -> Crowd | None:
        """None where rounds have to be played one worker after the other."""
        if workload.workers < FEW or workload.pooled or workload.workers >= 1 << 32:
            return None
        if any(stage.asks or stage.full for stage in workload.stages):
            return None
        # Devices of one table share what they are made of, and so a row.
        rows: dict[tuple[int, int, int], int] = {}
        made: list[list[float]] = []
        places, behind, lines = [], [], [[inf, inf]]
        points: dict[str, int] = {}
        for device in fleet.devices:
            key = id(device.compute), id(device.up), id(device.down)
            if device.availability.rates:
                return None
            if key not in rows:
                if not _simple(device):
                    return None
                rows[key] = len(made)
                made.append(_row(device))
            places.append(rows[key])
            if (point := device.point) is not None and point.name not in points:
                points[point.name] = len(points)
                lines.append([point.down, point.up])
            behind.append(-1 if point is None else points[point.name])
        if not agrees():
            return None
        table = np.array(made)[places]
        sizes = np.array(workload.sizes, dtype=np.int64)
        return cls(
            fleet,
            workload,
            seed,
            latency=table[:, 0:2],
            per_byte=table[:, 2:4],
            median=table[:, 4:7],
            spread=table[:, 7:10],
            speed=table[:, 10],
            comes_and_goes=np.array([bool(d.availability.intervals) for d in fleet.devices]),
            point=np.array(behind),
            lines=np.array(lines[1:] or lines),
            width=np.minimum(sizes, workload.batch) if workload.batch else sizes,
        )

    def rounds(self, count: int) -> Iterator[tuple[int, Indexes, list[Table] | None]]:
        """Rounds 1 to ``count``: their workers, and for each stage a row a worker of its seconds
        (compute, down, up); None for rounds that are few or not plain.

        Delays do not depend on when a round begins, so those of several rounds are drawn at once.
        """
        block: list[tuple[int, Indexes]] = []
        size, steps = 0, 0
        for number in range(1, count + 1):
            workers, load = self.workload.participants(number), self.workload
            if len(workers) < FEW or number in load.rounds:
                yield from self._drawn(block, steps)
                block, size = [], 0
                yield number, workers, None
                continue
            own = load.steps(number, 0)
            if block and (own != steps or size + len(workers) > BLOCK):
                yield from self._drawn(block, steps)
                block, size = [], 0
            block.append((number, workers))
            size, steps = size + len(workers), own
        yield from self._drawn(block, steps)

    def _drawn(
        self, block: list[tuple[int, Indexes]], steps: int
    ) -> Iterator[tuple[int, Indexes, list[Table] | None]]:
        if not block:
            return
        counts = [len(workers) for _, workers in block]
        numbers = np.repeat(np.array([number for number, _ in block]), counts)
        everyone = np.concatenate([workers for _, workers in block])
        tables = [np.empty((len(everyone), 3)) for _ in self.workload.stages]
        at_once = max(1, min(BLOCK, CELLS // (2 + steps)))
        for phase, table in enumerate(tables):
            for first in range(0, len(everyone), at_once):
                part = slice(first, first + at_once)
                table[part] = self._delays(numbers[part], phase, everyone[part], steps)
        ends = np.cumsum(counts).tolist()
        for (number, workers), end in zip(block, ends, strict=True):
            yield number, workers, [table[end - len(workers) : end] for table in tables]

    def _delays(self, numbers: Indexes, phase: int, workers: Indexes, steps: int) -> Table:
        """Seconds of computing, down and up, a row a worker."""
        stage, devices = self.workload.stages[phase], workers % len(self.fleet.devices)
        median, spread = self.median[devices], self.spread[devices]
        varied = [bool(spread[:, column].any()) for column in range(3)]
        count = 2 + steps if varied[2] else 2
        ways = np.array([0, 1] + [2] * steps)
        # Transfers come first, then iterations; what does not vary is drawn too, and for nothing.
        if any(varied):
            generators = Generators(self.seed, DELAYS, numbers, workers, phase)
            drawn, right = generators.normals(count)
            if not right.all():
                rng = np.random.Generator(np.random.PCG64(0))
                for place in np.flatnonzero(~right).tolist():
                    drawn[place] = generators.one(place, rng).standard_normal(count)
            columns = ways[:count]
            factors = exponential()(median[:, columns] + spread[:, columns] * drawn)
            if count < len(ways):
                same = exponential()(median[:, 2])[:, None]
                factors = np.hstack([factors, np.repeat(same, steps, axis=1)])
        else:
            factors = exponential()(median)[:, ways]
        found = np.zeros((len(workers), 3))
        for way, size in enumerate((stage.down, stage.up)):
            if size:
                expected = self.latency[devices, way] + size * self.per_byte[devices, way]
                found[:, 1 + way] = expected * factors[:, way]
        if steps:
            # In the order in which a single worker's are multiplied, for the last bit.
            flops = (stage.gradients * self.width[workers]).astype(np.float64)
            flops *= self.workload.flops
            summed = np.ascontiguousarray(factors[:, 2:]).sum(axis=1)
            found[:, 0] = summed * flops / self.speed[devices]
        return found

    def exchange(
        self, phase: int, workers: Indexes, delays: Table, start: float
    ) -> tuple[Table, Table]:
        """When each worker's answer arrives, and a row each of busy (compute, down, up)."""
        devices = workers % len(self.fleet.devices)
        arrivals = start + delays[:, 1] + delays[:, 0] + delays[:, 2]
        behind, away = self.point[devices], self.comes_and_goes[devices]
        for place in np.flatnonzero(away & (behind < 0)).tolist():
            compute, down, up = delays[place].tolist()
            device = self.fleet.devices[devices[place]]
            arrivals[place] = Delays(down, compute, up).arrival(device, start, again=True)
        places = np.flatnonzero(behind >= 0)
        if places.size:
            busy = delays.copy()
            self._share(places, devices[places], phase, start, busy, arrivals)
            return arrivals, busy
        return arrivals, delays

    def _share(
        self,
        places: NDArray[np.intp],
        devices: Indexes,
        phase: int,
        start: float,
        busy: Table,
        arrivals: Table,
    ) -> None:
        """Those behind a point, put right: who is alone there all at once, the others by events."""
        stage, point = self.workload.stages[phase], self.point[devices]
        sizes = np.array([stage.down, stage.up], dtype=np.float64)
        expected = self.latency[devices] + sizes * self.per_byte[devices]
        latent = np.zeros((len(places), 2))
        seconds = busy[places][:, 1:]
        sent = seconds > 0
        np.divide(seconds * self.latency[devices], expected, out=latent, where=sent)
        own = np.full((len(places), 2), inf)
        rest = seconds - latent
        np.divide(np.broadcast_to(sizes, rest.shape), rest, out=own, where=rest > 0)
        # Of a single transfer the narrower of link and line is the rate.
        takes = sizes / np.minimum(own, self.lines[point])
        received = start + latent[:, 0] + takes[:, 0]
        computed = received + busy[places, 0]
        ends = np.stack([received, computed, computed + latent[:, 1] + takes[:, 1]], axis=1)
        among = np.bincount(point)[point] > 1
        for one in np.flatnonzero(self.comes_and_goes[devices]).tolist():
            among[one] = True
        rows = np.flatnonzero(among)
        if rows.size:
            errands = []
            for row in rows.tolist():
                device = self.fleet.devices[devices[row]]
                assert device.point is not None
                errands.append(
                    Errand(
                        device.point,
                        device.availability,
                        float(latent[row, 0]),
                        (float(sizes[0]), float(own[row, 0])),
                        float(busy[places[row], 0]),
                        float(latent[row, 1]),
                        (float(sizes[1]), float(own[row, 1])),
                    )
                )
            ends[rows] = share(errands, start)
        arrivals[places] = ends[:, 2]
        busy[places] = np.stack(
            [ends[:, 1] - ends[:, 0], ends[:, 0] - start, ends[:, 2] - ends[:, 1]], axis=1
        )
        for row in np.flatnonzero(self.comes_and_goes[devices]).tolist():
            on = self.fleet.devices[devices[row]].availability
            received_, computed_, sent_ = ends[row].tolist()
            if sent_ < inf:
                busy[places[row], 1] = on.served(start, received_)
                busy[places[row], 2] = on.served(computed_, sent_)


def _simple(device: Device) -> bool:
    times = device.compute.times, device.up.factor, device.down.factor
    return all(type(each) is Lognormal for each in times)


def _row(device: Device) -> list[float]:
    times = [device.down.factor, device.up.factor, device.compute.times]
    known = [each for each in times if isinstance(each, Lognormal)]
    links = device.down, device.up
    return [
        *(link.latency for link in links),
        *(link.seconds_per_byte for link in links),
        *(log(each.median) for each in known),
        *(each.spread for each in known),
        device.compute.flops,
    ]
