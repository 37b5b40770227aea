"""What secure aggregation costs a silo and the server: seconds of one thread, and bytes.

    python benchmarks/secure.py                10, 50 and 100 silos, a million numbers: some minutes
    python benchmarks/secure.py --smoke        that it works; its numbers mean nothing

Silos and server are in this process, one after the other; what is counted is the time that the
processor spends on each. Those who vanish do so after the second step, where it costs the server
most. Every sum is compared with the plain one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fednag.aggregators import Secure
from fednag.core.vectors import Vectors
from fednag.secure.collector import Collector
from fednag.secure.masks import integers
from fednag.secure.member import Member
from fednag.secure.terms import Terms, threshold_of, traffic

FIXED = Secure()
HEADER = ("silos", "vanish", "keys, shares", "fixed point", "masks", "reveal", "server adds")
HEADER += ("server unmasks", "bytes down a silo", "bytes up a silo")


class Times(dict[str, float]):
    """Seconds of the processor, by what they were spent on."""

    def of(self, what: str, work: Callable[[], Any]) -> Any:
        began = time.process_time()
        found = work()
        self[what] = self.get(what, 0.0) + time.process_time() - began
        return found


def measured(silos: int, gone: int, count: int) -> tuple[str, ...]:
    """One sum: a row of the table."""
    times, rng = Times(), np.random.default_rng(1)
    terms = Terms(b"benchmark", threshold_of(silos, FIXED.threshold), FIXED.bits)
    collector = Collector(terms, count)
    members = {silo: Member(terms, silo) for silo in range(silos)}
    for silo, member in members.items():
        collector.advertised(silo, times.of("keys, shares", member.advertise))
    roster = collector.roster()
    for silo, member in members.items():
        parts = times.of("keys, shares", lambda m=member: m.share(roster))
        times.of("server adds", lambda s=silo, p=parts: collector.shared(s, *p))
    plain = np.zeros(count, dtype=integers(terms.bits))
    there = list(range(silos - gone))
    for silo in there:
        update = torch.from_numpy(rng.normal(0, 0.01, count).astype(np.float32))
        values = times.of("fixed point", lambda u=update: fixed_point(u, silos))
        plain += values
        content = times.of("masks", lambda s=silo, v=values: masked(members[s], collector, s, v))
        times.of("server adds", lambda s=silo, c=content: collector.add(s, c))
    for silo in there:
        asked = collector.survivors, collector.vanished
        shares = times.of("reveal", lambda s=silo, a=asked: members[s].unmask(*a))
        collector.revealed(silo, shares)
    total = times.of("server unmasks", collector.sum)
    assert np.array_equal(total, plain)
    down, _ = traffic(silos, count * FIXED.bits // 8, len(there))
    each = [
        f"{times[what] / (silos if what == 'keys, shares' else len(there)):.3f} s"
        for what in HEADER[2:6]
    ]
    server = [f"{times[what]:.2f} s" for what in HEADER[6:8]]
    nbytes = [f"{down // silos:,}", f"{traffic(silos, count * FIXED.bits // 8)[1] // silos:,}"]
    return (str(silos), str(gone), *each, *server, *nbytes)


def fixed_point(update: torch.Tensor, silos: int) -> Any:
    share = torch.tensor([FIXED.share(1, silos)], dtype=torch.float64)
    sums = FIXED.lift(Vectors(w=update.unsqueeze(0)), share).sums
    return sums.w.numpy().astype(integers(FIXED.bits))


def masked(member: Member, collector: Collector, silo: int, values: Any) -> Any:
    return member.mask(values, collector.sealed_for(silo))


def plans(smoke: bool) -> Mapping[int, int]:
    return {5: 1} if smoke else {10: 1, 50: 5, 100: 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    smoke = parser.parse_args().smoke
    torch.set_num_threads(1)
    count = 1000 if smoke else 1_000_000
    measured(3, 0, count)  # once, so that nothing is made for the first time
    print("| " + " | ".join(HEADER) + " |")
    print("|" + " --- |" * len(HEADER))
    for silos, lost in plans(smoke).items():
        for gone in (0, lost):
            print("| " + " | ".join(measured(silos, gone, count)) + " |", flush=True)


if __name__ == "__main__":
    main()
