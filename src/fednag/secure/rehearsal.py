"""The whole protocol in one process: for simulations, tests and measurements."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from fednag.secure.collector import Collector
from fednag.secure.masks import Integers
from fednag.secure.member import Member
from fednag.secure.terms import NUMBER, Terms


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What came of it."""

    total: Integers
    survivors: tuple[int, ...]
    down: int  # bytes
    up: int


def rehearse(
    values: Mapping[int, Integers],
    threshold: int,
    bits: int,
    gone: Mapping[int, int] | None = None,
) -> Rehearsal:
    """Add up these silos' vectors; those in ``gone`` vanish at a step, 0 to 3.

    Raises FednagError if too few are left.

    >>> import numpy as np
    >>> values = {silo: np.full(2, silo, dtype="<u4") for silo in (1, 2, 3, 5)}
    >>> found = rehearse(values, threshold=3, bits=32, gone={5: 2})
    >>> found.total, found.survivors
    (array([6, 6], dtype=uint32), (1, 2, 3))
    """
    gone = gone or {}
    terms = Terms(secrets.token_bytes(16), threshold, bits)
    members = {silo: Member(terms, silo) for silo in values}
    collector = Collector(terms, len(next(iter(values.values()))))
    down = up = 0

    def there(step: int, silos: tuple[int, ...]) -> list[int]:
        return [silo for silo in silos if gone.get(silo, 9) > step]

    for silo in there(0, tuple(values)):
        keys = members[silo].advertise()
        collector.advertised(silo, keys)
        up += len(keys)
    roster = collector.roster()
    down += len(roster) * sum(NUMBER + len(keys) for keys in roster.values())
    for silo in there(1, tuple(roster)):
        commitment, sealed = members[silo].share(roster)
        collector.shared(silo, commitment, sealed)
        up += len(commitment) + len(sealed)
    for silo in collector.dealers:
        received = collector.sealed_for(silo)
        down += sum(NUMBER + len(content) for content in received.values())
        if silo in there(2, (silo,)):
            content = members[silo].mask(values[silo], received)
            collector.add(silo, content)
            up += len(content)
    survivors, vanished = collector.survivors, collector.vanished
    down += len(survivors) * (len(survivors) + len(vanished)) * NUMBER
    for silo in there(3, survivors):
        shares = members[silo].unmask(survivors, vanished)
        collector.revealed(silo, shares)
        up += len(shares)
    return Rehearsal(collector.sum(), survivors, down, up)
