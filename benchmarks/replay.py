"""How long it takes to replay a run on very many devices, beside a plain loop of events.

    python benchmarks/replay.py
    python benchmarks/replay.py --participants 100000 --rounds 10 --plain-rounds 1

Both play the same rounds with the same keyed delays, and must end at the same moments. Times
are the processor's, of this process: on a busy machine, read the ratio.
"""

from __future__ import annotations

import argparse
import heapq
import resource
import sys
import time
from math import log

import numpy as np

from fednag.clock import Fleet, Stage, Workload, replay
from fednag.core.keys import AGGREGATOR, DELAYS, cohort
from fednag.devices.files import describe
from fednag.devices.fleet import build

POWER = {"compute": 4, "send": 1.5, "receive": 1, "idle": 0.25}
LINKS = {
    "up": {"mbit": 8, "latency": 0.05, "spread": 0.8},
    "down": {"mbit": 25, "latency": 0.05, "spread": 0.8},
}


def fleet(devices: int, shared: bool) -> Fleet:
    """Phones whose delays vary, with their power; four behind each router if lines are shared."""
    phones = {"name": "phone", "count": devices, "gflops": 20, "spread": 0.3, **LINKS}
    raw = {"name": "many", "device": [{**phones, "power": POWER}]}
    if shared:
        raw["device"][0]["access"] = "home"  # type: ignore[index]
        raw["access"] = [{"name": "home", "up": 10, "down": 100, "serves": 4}]  # type: ignore[list-item]
    raw["aggregator"] = {"seconds": 0.005, "spread": 0.2}  # type: ignore[assignment]
    return build(describe(raw, "benchmark"))


def plain_loop(where: Fleet, work: Workload, rounds: int, seed: int) -> list[float]:
    """Event by event, a generator for each worker and round: what one would write first."""
    ends, now = [0.0], 0.0
    everyone = np.arange(work.workers)
    stage = work.stages[0]
    for number in range(1, rounds + 1):
        events: list[tuple[float, int, str, float, float]] = []
        for i in cohort(work.seed, number, everyone, work.per_round or work.workers).tolist():
            device = where.device(i)
            rng = np.random.default_rng([seed, DELAYS, number, i, 0])
            times = []
            for link, size in ((device.down, stage.down), (device.up, stage.up)):
                factor = rng.lognormal(0.0, link.factor.spread)  # type: ignore[attr-defined]
                times.append((link.latency + size * link.seconds_per_byte) * factor)
            speed = device.compute.times
            drawn = rng.lognormal(log(speed.median), speed.spread, work.tau)  # type: ignore[attr-defined]
            compute = float(drawn.sum()) * work.iteration_flops(i) / device.compute.flops
            heapq.heappush(events, (now + times[0], i, "received", compute, times[1]))
        while events:
            now, i, what, compute, up = heapq.heappop(events)
            if what == "received":
                heapq.heappush(events, (now + compute, i, "computed", 0.0, up))
            elif what == "computed":
                heapq.heappush(events, (now + up, i, "arrived", 0.0, 0.0))
        if where.aggregation:
            rng = np.random.default_rng([seed, AGGREGATOR, number, 0])
            now += where.aggregation.draw(rng, stage.up * (work.per_round or work.workers), number)
        ends.append(now)
    return ends


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=100_000)
    parser.add_argument("--participants", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--plain-rounds", type=int, default=100, help="of the plain loop")
    parser.add_argument("--tau", type=int, default=10)
    given = parser.parse_args()
    work = Workload(
        tau=given.tau,
        iterations=given.tau * given.rounds,
        batch=32,
        seed=0,
        sizes=(100,) * given.devices,
        flops=1e6,
        stages=(Stage(100_000, 100_000),),
        per_round=given.participants,
    )
    alone, shared = fleet(given.devices, False), fleet(given.devices, True)
    replay(alone, work, 1, 0)  # tables are made once
    print(f"{given.devices:,} devices, {given.participants:,} a round, tau {given.tau}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = {}
    for name, where in (("replay", alone), ("replay, shared lines", shared)):
        began = time.process_time()
        played = replay(where, work, given.rounds, 0)
        seconds[name] = time.process_time() - began
        print(f"{name}: {seconds[name]:.2f} s for {given.rounds:,} rounds")
        if where is alone:
            ends = played.ends
    began = time.process_time()
    plain = plain_loop(alone, work, given.plain_rounds, 0)
    each = (time.process_time() - began) / given.plain_rounds
    print(f"plain loop: {each * given.rounds:.2f} s for as many, by {given.plain_rounds:,} of them")
    if not np.allclose(ends[: given.plain_rounds + 1], plain, rtol=1e-12):
        sys.exit("the two do not end at the same moments")
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ratio = each * given.rounds / seconds["replay"]
    print(f"the plain loop takes {ratio:.1f} times as long; {(after - before) / 1024:.0f} MB more")


if __name__ == "__main__":
    main()
