"""What both sides of a sum agree on, and how long its messages are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from fednag.errors import FednagError

KEY = 32  # bytes of a key, a seed or a commitment
KEYS = 2 * KEY  # advertised: for shares, for masks
SIGNATURE = 64
SHARE = 33  # an element of Shamir's field
SEALED = 2 * SHARE + 16  # shares of both secrets, and the tag that authenticates them
NUMBER = 8  # which silo
FEWEST = 3  # silos: in a sum of two, each finds the other's vector

STEPS = ("keys", "shares", "masked", "unmask")
DONE = ("advertised keys", "dealt shares", "sent a masked update", "sent shares to unmask it")


@dataclass(frozen=True)
class Terms:
    """What a sum is about.

    ``context`` names the run, the round and the attempt: keys of one sum are of no use in another.
    """

    context: bytes
    threshold: int
    bits: int

    def check_enough(self, count: int, step: int) -> None:
        """Raise FednagError if so few have done a step that the sum must not go on."""
        if count < self.threshold:
            raise FednagError(
                "",
                f"{count} silo{'' if count == 1 else 's'} {DONE[step]}, and secure aggregation "
                f"needs {self.threshold}",
                "bring the others back",
            )


def threshold_of(silos: int, share: float) -> int:
    """How many silos must go on to the end: more than this share, which is at least one half.

    >>> [threshold_of(n, 0.5) for n in (3, 4, 10)], threshold_of(10, 0.65)
    ([2, 3, 6], 7)
    """
    return min(floor(share * silos) + 1, silos)


def traffic(silos: int, content: int, survivors: int | None = None) -> tuple[int, int]:
    """Bytes (down, up) of a sum of masked vectors, of ``content`` bytes each.

    Who does not survive has sent none, and keys are not signed.

    >>> traffic(3, 1000)
    (1260, 4077)
    """
    others, last = silos - 1, silos if survivors is None else survivors
    down = silos * (NUMBER + KEYS) + others * (NUMBER + SEALED)
    up = KEYS + KEY + others * SEALED
    return silos * (down + last * NUMBER), silos * up + last * (content + silos * SHARE)


def in_order(found: Mapping[int, bytes]) -> dict[int, bytes]:
    """The same by ascending number."""
    return {number: found[number] for number in sorted(found)}
