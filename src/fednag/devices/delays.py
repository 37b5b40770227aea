"""A worker's delays in an exchange, and its way through it on the clock."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from fednag.devices.fleet import Device
from fednag.devices.sharing import Errand

Table = NDArray[np.float64]


@dataclass(frozen=True)
class Delays:
    """Seconds one worker is busy in an exchange."""

    down: float
    compute: float
    up: float

    def arrival(self, device: Device, start: float, again: bool = False) -> float:
        """When its upload is complete; transfers wait while the device cannot be reached."""
        return device.availability.arrival(start, self.down, self.compute, self.up, again)

    def busy(self, device: Device, start: float, end: float = inf) -> Table:
        """Busy seconds (compute, down, up), for one that is cut off at ``end`` until then.

        Of tries that a contact was too short for, the first counts.
        """
        on = device.availability
        if on.rates:  # what is sent at less than the full rate takes longer
            received = on.after(start, self.down)
            computed = received + self.compute
            computing = max(0.0, min(computed, end) - received) if received < end else 0.0
            down, up = on.served(start, min(received, end)), 0.0
            if computed < end:
                up = on.served(computed, min(on.after(computed, self.up), end))
            return np.array([computing, down, up])
        if end == inf:
            return np.array([self.compute, self.down, self.up])
        room = max(0.0, end - max(start, device.availability.next(start)))
        down = min(self.down, room)
        compute = min(self.compute, max(0.0, room - down))
        up = min(self.up, max(0.0, room - down - compute))
        return np.array([compute, down, up])

    def errand(self, device: Device, size_down: int, size_up: int) -> Errand:
        """The same for one that shares its line: how much latency, and how many bytes how fast."""
        assert device.point is not None
        hearing = device.down.latent(self.down, size_down)
        calling = device.up.latent(self.up, size_up)
        return Errand(
            device.point,
            device.availability,
            hearing,
            _bytes(size_down, self.down - hearing),
            self.compute,
            calling,
            _bytes(size_up, self.up - calling),
        )


def _bytes(size: int, seconds: float) -> tuple[float, float]:
    """Bytes, and how many a second; a link that only has latency sends any number at once."""
    return float(size), size / seconds if seconds > 0 else inf


@dataclass(frozen=True)
class Journey:
    """A worker's exchange on the clock: when it has what it was sent, and when its answer arrives.

    ``received`` and ``computed`` are known where the line is shared; elsewhere the delays tell.
    """

    device: Device
    delays: Delays
    start: float
    arrival: float
    received: float | None = None
    computed: float | None = None

    def busy(self, end: float = inf) -> Table:
        """Busy seconds (compute, down, up), for one that is cut off at ``end`` until then."""
        if self.received is None or self.computed is None:
            return self.delays.busy(self.device, self.start, end)
        on = self.device.availability
        computing = max(0.0, min(self.computed, end) - self.received) if self.received < end else 0
        down = on.served(self.start, min(self.received, end))
        up = on.served(self.computed, min(self.arrival, end)) if self.computed < end else 0.0
        return np.array([computing, down, up])
