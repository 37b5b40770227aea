"""When a device can be reached: intervals of seconds, once or again and again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import floor, inf


@dataclass(frozen=True)
class Availability:
    """Reachable from each ``start`` to each ``end``; with a ``period``, again after it.

    ``shift`` moves everything to later, so that devices of one kind need not all leave at once.
    No intervals: always reachable.

    >>> from fednag.clock import Availability
    >>> shifts = Availability(((0, 60),), period=100)  # on for 60 s of every 100
    >>> shifts.is_on(70), shifts.next(70), shifts.after(50, 20)
    (False, 100.0, 110.0)
    """

    intervals: tuple[tuple[float, float], ...] = ()
    period: float | None = None
    shift: float = 0.0

    def is_on(self, moment: float) -> bool:
        return self.next(moment) == moment

    def next(self, moment: float) -> float:
        """The first moment from ``moment`` on at which the device is reachable, or infinity."""
        if not self.intervals:
            return moment
        for start, end in self._from(moment):
            if end > moment:
                return max(start, moment)
        return inf

    def after(self, moment: float, seconds: float) -> float:
        """When ``seconds`` of reachable time will have passed since ``moment``, or infinity.

        What is under way when the device leaves goes on when it is back.
        """
        if not self.intervals or not seconds:
            return moment + seconds
        left = seconds
        if self.period is not None:
            # Whole periods at once: each holds the same time, wherever it begins.
            reachable = sum(end - start for start, end in self.intervals)
            periods = max(0, floor(left / reachable) - 1)
            moment, left = moment + periods * self.period, left - periods * reachable
        for start, end in self._from(moment):
            if end <= moment:
                continue
            begin = max(start, moment)
            if begin + left <= end:
                return begin + left
            left -= end - begin
        return inf

    def _from(self, moment: float) -> Iterator[tuple[float, float]]:
        """The intervals that end after ``moment``, in order, and perhaps a few before it."""
        if self.period is None:
            for start, end in self.intervals:
                yield start + self.shift, end + self.shift
            return
        lap = floor((moment - self.shift) / self.period) - 1
        while True:
            offset = lap * self.period + self.shift
            for start, end in self.intervals:
                yield start + offset, end + offset
            lap += 1


ALWAYS = Availability()
