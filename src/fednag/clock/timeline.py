"""What every device does when: who computes, receives, sends, waits or is away, round by round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from fednag.clock.runs import Timed, TimedRun, timed_by_label
from fednag.controllers import CONTROLLERS
from fednag.devices.delays import Journey
from fednag.devices.fleet import Fleet
from fednag.devices.replay import Clock
from fednag.devices.times import Availability
from fednag.errors import FednagError

KINDS = ("compute", "down", "up", "waiting", "away", "aggregation")
SERVER = -1  # the worker of a span of the aggregator's
SHOWN = 5  # rounds of a picture, unless others are asked for
MOST_ROUNDS, MOST_SPANS = 400, 8000  # of what a page holds
MOST_ROWS = 24
SHORTEST = 1e-9  # seconds; what is shorter is rounding

_Stretch = tuple[str, float, float, bool]
"""Kind, start, end, and whether it was in vain."""


@dataclass(frozen=True)
class Span:
    """A time in which a worker does one thing.

    >>> from fednag.clock import Span
    >>> Span(worker=0, round=1, kind="compute", start=0.5, end=2.0).seconds
    1.5
    """

    worker: int
    round: int
    kind: str
    start: float
    end: float
    lost: bool = False  # its answer did not count

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """What devices do in some rounds of a run; ``ends`` are those of the rounds, and the moment
    before the first."""

    run: TimedRun
    fleet: Fleet
    first: int
    ends: tuple[float, ...]
    spans: tuple[Span, ...]

    @property
    def last(self) -> int:
        return self.first + len(self.ends) - 2

    @property
    def title(self) -> str:
        rounds = f"round {self.first}"
        if self.last > self.first:
            rounds = f"rounds {self.first} to {self.last}"
        return f"{self.run.label}, seed {self.run.seed}, {rounds}"

    def workers(self, most: int = MOST_ROWS) -> list[int]:
        """Those who do something in it, at most so many: the first. All, if nobody does."""
        everyone = {span.worker for span in self.spans} - {SERVER}
        busy = {span.worker for span in self.spans if span.kind in KINDS[:3]} - {SERVER}
        return sorted(busy or everyone)[:most]

    def name(self, worker: int) -> str:
        """Worker and device, as tables have it."""
        return "aggregator" if worker == SERVER else f"{worker} {self.fleet.device(worker).name}"

    def seconds(self) -> dict[int, dict[str, float]]:
        """Each worker's seconds of each kind."""
        found: dict[int, dict[str, float]] = {}
        for span in self.spans:
            own = found.setdefault(span.worker, {})
            own[span.kind] = own.get(span.kind, 0.0) + span.seconds
        return found

    def as_data(self, most: int = MOST_ROWS) -> dict[str, Any]:
        """For a page: rows, and spans as [row, kind, start, end, round, lost]."""
        shown = [SERVER] * any(span.worker == SERVER for span in self.spans) + self.workers(most)
        rows = {worker: place for place, worker in enumerate(shown)}
        return {
            "label": self.run.label,
            "seed": self.run.seed,
            "first": self.first,
            "ends": [_short(end) for end in self.ends],
            "rows": [self.name(worker) for worker in shown],
            "workers": shown,
            "left_out": len(self.workers(10**9)) - len(self.workers(most)),
            "idle": len({span.worker for span in self.spans} - {SERVER}) - len(self.workers(10**9)),
            "kinds": list(KINDS),
            "scores": [
                [_short(self.ends[r.round - self.first + 1]), r.accuracy]
                for r in self.run.records
                if r.accuracy is not None and self.first - 1 <= r.round <= self.last
            ],
            "spans": [
                [
                    rows[span.worker],
                    KINDS.index(span.kind),
                    _short(span.start),
                    _short(span.end),
                    span.round,
                    int(span.lost),
                ]
                for span in self.spans
                if span.worker in rows
            ],
        }


def _short(number: float) -> float:
    return float(f"{number:.7g}")


def timeline(
    timed: Timed, fleet: Fleet, first: int = 1, last: int | None = None, seed: int = 0
) -> Timeline:
    """What devices do in rounds ``first`` to ``last`` of a run's first replay.

    ``seed`` is that of the replay, as for ``replay_runs``.

    >>> import fednag
    >>> from fednag.clock import load_fleet, replay_runs, timed_run, timeline
    >>> run = timed_run(fednag.run("fednag", model="logistic", tau=5, iterations=10).view)
    >>> fleet = load_fleet("lan")
    >>> line = timeline(replay_runs([run], fleet, replays=1)[0], fleet, first=1, last=2)
    >>> sorted({span.kind for span in line.spans})
    ['aggregation', 'compute', 'down', 'up', 'waiting']
    >>> len(line.ends), line.title
    (3, 'fednag, seed 0, rounds 1 to 2')
    """
    run, known = timed.run, timed.replays[0].ends
    if run.workload.tiers:
        raise FednagError(
            "--rounds", f"{run.label} has edges, whose rounds are not drawn yet", "leave it out"
        )
    last = min(first + SHOWN - 1 if last is None else last, run.rounds)
    if not 1 <= first <= last:
        raise FednagError(
            "--rounds", f"{run.label} has rounds 1 to {run.rounds}", "choose some of them"
        )
    trained = run.experiment.clock.fleet is not None
    clock = Clock(fleet, run.workload, run.seed if trained else seed)
    kind = CONTROLLERS.get(run.experiment.controller["kind"])
    rounds = _Rounds(clock, trained, run.experiment.clock.deadline if trained else None)
    spans: list[Span] = []
    for number in range(first, last + 1):
        start, end = float(known[number - 1]), float(known[number])
        if trained and kind is not None and not kind.waits:
            spans += rounds.loose(number, start, inf if kind.keeps_late else end)
        else:
            spans += rounds.strict(number, start)
    ends = tuple(float(known[number]) for number in range(first - 1, last + 1))
    return Timeline(run, fleet, first, ends, tuple(spans))


def timelines(
    timed: Sequence[Timed], fleet: Fleet, seed: int = 0, most: int = MOST_SPANS
) -> list[Timeline]:
    """A method each, of its first seed: as many rounds from the first as about ``most`` spans
    hold.

    >>> import fednag
    >>> from fednag.clock import load_fleet, replay_runs, timed_run, timelines
    >>> done = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=10)
    >>> runs, fleet = [timed_run(view) for view in done.views], load_fleet("lan")
    >>> [line.title for line in timelines(replay_runs(runs, fleet, replays=1), fleet)]
    ['fednag, seed 0, rounds 1 to 2', 'fedavg, seed 0, rounds 1 to 2']
    """
    found = []
    for group in timed_by_label(timed).values():
        if group[0].run.workload.tiers:  # rounds of edges are not drawn yet
            continue
        one = min(group, key=lambda one: one.run.seed)
        last = min(one.run.rounds, MOST_ROUNDS)
        count, step = 1, max(1, last // 20)
        line = timeline(one, fleet, 1, 1, seed)
        spans = line.spans
        while count < last and len(spans) < most:
            line = timeline(one, fleet, count + 1, min(last, count + step), seed)
            count, spans = line.last, (*spans, *line.spans)
        ends = tuple(one.replays[0].ends[: count + 1].tolist())
        found.append(Timeline(one.run, fleet, 1, ends, spans))
    return found


@dataclass(frozen=True)
class _Rounds:
    clock: Clock
    leave_out: bool
    deadline: float | None

    def strict(self, number: int, start: float) -> Iterator[Span]:
        """A round that begins for all at once, and is over when the last answer is in, or at its
        deadline."""
        clock, load = self.clock, self.clock.workload
        asked = load.participants(number).tolist()
        there = asked
        if self.leave_out and not load.pooled:
            there = [i for i in asked if clock.reachable(i, start)]
        plans = {i: load.exchanges(number, i) for i in there}
        now, idle = start, {i: start for i in asked if i not in there}
        for phase in range(len(plans[there[0]]) if there else 0):
            exchanges = {i: plans[i][phase] for i in there}
            journeys = clock.journeys(number, phase, exchanges, now, again=not self.leave_out)
            ways = {i: self._way(i, journeys[i], now, not self.leave_out) for i in there}
            limit = inf if self.deadline is None or load.pooled else now + self.deadline
            ends = {i: way[-1][2] if way else now for i, way in ways.items()}
            sound = {i: ends[i] <= limit and isfinite(ends[i]) and not ways[i][-1][3] for i in ways}
            out = [i for i in there if self.leave_out and not sound[i]]
            here = [i for i in there if i not in out]
            end = max((ends[i] for i in here), default=now)
            if out:
                end = limit if isfinite(limit) else end
            if out and not here and end == now:  # until the first of them has left
                end = clock.idle(start, asked, self.deadline)
            for worker in out:
                yield from self._clipped(number, worker, ways[worker], end, lost=True)
                idle[worker] = min(ends[worker], end)
            there = here
            size = sum(plans[i][phase].up for i in there)
            over = end + (clock.aggregation(number, phase, size) if there else 0.0)
            for worker in there:
                yield from self._clipped(number, worker, ways[worker], inf)
                yield from self._rest(number, worker, ends[worker], over)
            if over > end:
                yield Span(SERVER, number, "aggregation", end, over)
            now = over
            if not there:
                break
        if now == start:
            now = clock.idle(start, asked, self.deadline)
        for worker, since in idle.items():
            yield from self._rest(number, worker, since, now)

    def loose(self, number: int, start: float, end: float) -> Iterator[Span]:
        """A round that does not wait for all: those who are asked work until they are done, or
        until ``end``, after which they are not waited for."""
        clock, load = self.clock, self.clock.workload
        there = [i for i in load.participants(number).tolist() if clock.reachable(i, start)]
        # Methods whose rounds have several exchanges are refused where late answers count.
        asked = {i: load.exchanges(number, i)[-1] for i in there}
        for worker, journey in clock.journeys(number, len(load.stages) - 1, asked, start).items():
            way = self._way(worker, journey, start, False)
            lost = bool(way and (way[-1][3] or way[-1][2] > end))
            yield from self._clipped(number, worker, way, end, lost)

    def _on(self, worker: int) -> Availability:
        return Availability() if self.clock.workload.pooled else self._device(worker)

    def _device(self, worker: int) -> Availability:
        return self.clock.fleet.device(worker).availability

    def _way(self, worker: int, journey: Journey, start: float, again: bool) -> list[_Stretch]:
        """An exchange as stretches (kind, start, end, lost), try after try where a contact was too
        short for it."""
        on, delays = self._on(worker), journey.delays
        if journey.received is not None and journey.computed is not None:  # the line is shared
            return [
                *_transfer(on, "down", start, journey.received),
                ("compute", journey.received, journey.computed, False),
                *_transfer(on, "up", journey.computed, journey.arrival),
            ]
        if self.clock.workload.pooled:
            return [("compute", start, start + delays.compute, False)]
        found: list[_Stretch] = []
        began = start
        while True:
            received = on.after(start, delays.down)
            computed = received + delays.compute
            end = on.after(computed, delays.up)
            way = [
                *_transfer(on, "down", start, received),
                ("compute", received, computed, False),
                *_transfer(on, "up", computed, end),
            ]
            over = on.leaves(on.next(start)) if on.whole and end != inf else inf
            if end <= over:
                return [*found, *way]
            found += [(kind, a, min(b, over), True) for kind, a, b, _ in way if a < over]
            start = max(over, on.next(over))
            if not again or start - began > 2 * (on.period or inf):
                return found
            if start > over:
                found.append(("away", over, start, False))

    def _clipped(
        self, number: int, worker: int, way: Sequence[_Stretch], end: float, lost: bool = False
    ) -> Iterator[Span]:
        for kind, start, over, gone in way:
            if min(over, end) - start > SHORTEST:
                yield Span(worker, number, kind, start, min(over, end), lost or gone)

    def _rest(self, number: int, worker: int, start: float, end: float) -> Iterator[Span]:
        """A time without work: waiting, or away."""
        for kind, a, b, _ in _transfer(self._on(worker), "waiting", start, end):
            if b - a > SHORTEST:
                yield Span(worker, number, kind, a, b)


def _transfer(on: Availability, kind: str, start: float, end: float) -> Iterator[_Stretch]:
    """From ``start`` to ``end``, apart where nobody can be reached."""
    now, here = start, None if not on.intervals else on.is_on(start)
    if here is None:
        yield kind, start, end, False
        return
    while now < end:
        here, begin = on.is_on(now), now
        turn: Callable[[float], float] = on.leaves if here else on.next
        while now < end and on.is_on(now) == here:
            after = min(turn(now), end)
            if after <= now:  # rounding
                after = end
            now = after
            if not isfinite(now):
                break
        yield (kind if here else "away"), begin, now, False
