"""The server's side of a secure sum."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fednag.errors import FednagError
from fednag.secure import shamir
from fednag.secure.keys import derived, is_added, mask_key, public
from fednag.secure.masks import Integers, add_streams, integers, unpacked
from fednag.secure.terms import KEY, KEYS, SEALED, SHARE, SIGNATURE, Terms, in_order


class Collector:
    """Adds up masked vectors of ``count`` numbers as they come, then takes the masks off the sum.

    What a silo sends wrongly is refused with a FednagError, and that silo left out.
    """

    def __init__(self, terms: Terms, count: int) -> None:
        self.terms = terms
        self._total = np.zeros(count, dtype=integers(terms.bits))
        self._keys: dict[int, bytes] = {}
        self._roster: dict[int, bytes] = {}
        self._commitments: dict[int, bytes] = {}
        self._sealed: dict[int, dict[int, bytes]] = {}  # by dealer, by receiver
        self._added: set[int] = set()
        self._revealed: dict[int, dict[int, int]] = {}  # by who revealed, by whose secret
        self._weights: dict[tuple[int, ...], list[int]] = {}  # of shares, by their points

    def advertised(self, number: int, keys: bytes) -> None:
        if len(keys) not in (KEYS, KEYS + SIGNATURE):
            raise FednagError(f"its keys have {len(keys)} bytes")
        self._keys[number] = keys

    def roster(self) -> dict[int, bytes]:
        """For step 2: the keys of all who advertised some, those without a signature as long."""
        self.terms.check_enough(len(self._keys), 0)
        longest = max(map(len, self._keys.values()))
        self._roster = in_order({n: keys.ljust(longest, b"\0") for n, keys in self._keys.items()})
        return self._roster

    def shared(self, number: int, commitment: bytes, sealed: bytes) -> None:
        others = [other for other in self._roster if other != number]
        if number not in self._roster or len(commitment) != KEY:
            raise FednagError("it has not committed itself to a seed")
        if len(sealed) != SEALED * len(others):
            raise FednagError(f"its shares have {len(sealed)} bytes")
        self._commitments[number] = commitment
        self._sealed[number] = dict(zip(others, _cut(sealed, SEALED), strict=True))

    @property
    def dealers(self) -> tuple[int, ...]:
        """Those who have dealt shares; they are asked for masked vectors."""
        self.terms.check_enough(len(self._sealed), 1)
        return tuple(sorted(self._sealed))

    def sealed_for(self, number: int) -> dict[int, bytes]:
        """For step 3: what the other dealers sealed for this silo."""
        return {other: self._sealed[other][number] for other in self.dealers if other != number}

    def add(self, number: int, content: NDArray[np.uint8]) -> None:
        values = unpacked(content, self.terms.bits)
        if len(values) != len(self._total):
            raise FednagError(
                f"its masked update has {len(values)} numbers, not {len(self._total)}"
            )
        if number not in self._sealed or number in self._added:
            raise FednagError("it was not asked for a masked update")
        self._total += values
        self._added.add(number)

    @property
    def survivors(self) -> tuple[int, ...]:
        """For step 4: whose vectors are in the sum."""
        self.terms.check_enough(len(self._added), 2)
        return tuple(sorted(self._added))

    @property
    def vanished(self) -> tuple[int, ...]:
        """For step 4: who dealt shares, and then sent no vector."""
        return tuple(sorted(set(self._sealed) - self._added))

    def revealed(self, number: int, shares: bytes) -> None:
        members = self.dealers
        if number not in self._added or len(shares) != SHARE * len(members):
            raise FednagError(f"its shares have {len(shares)} bytes")
        found = (int.from_bytes(share, "little") for share in _cut(shares, SHARE))
        self._revealed[number] = dict(zip(members, found, strict=True))

    def sum(self, alike: bytes = b"") -> Integers:
        """The sum of the survivors' vectors, modulo 2^bits in the lowest bits of each number.

        ``alike`` is what the members were given by that name.
        """
        context, total = self.terms.context, self._total.copy()
        streams = []
        for silo in self.survivors:
            seed = self._secret(silo)
            if derived(seed, "commitment", context) != self._commitments[silo]:
                raise self._wrong(silo)
            streams.append((derived(seed, "self", context), False))
        for silo in self.vanished:
            masking = self._secret(silo)
            if public(masking) != self._roster[silo][KEY:KEYS]:
                raise self._wrong(silo)
            keys = {one: self._roster[one][KEY:KEYS] for one in self.survivors}
            streams += [
                (mask_key(masking, key, context + alike), not is_added(one, silo))
                for one, key in keys.items()
            ]
        add_streams(total, streams)
        return total

    def _secret(self, silo: int) -> bytes:
        """The secret that survivors have revealed shares of."""
        known = {n: shares[silo] for n, shares in self._revealed.items() if shares[silo]}
        self.terms.check_enough(len(known), 3)
        used = sorted(known)[: self.terms.threshold]
        points = tuple(number + 1 for number in used)
        if points not in self._weights:
            self._weights[points] = shamir.coefficients(points)
        secret = shamir.combined([known[number] for number in used], self._weights[points])
        if secret >= 2 ** (8 * KEY):
            raise self._wrong(silo)
        return secret.to_bytes(KEY, "little")

    @staticmethod
    def _wrong(silo: int) -> FednagError:
        return FednagError(
            "",
            f"shares of the secrets of silo {silo} are wrong, so the sum cannot be unmasked",
            "find out which silo deals or reveals wrong shares",
        )


def _cut(content: bytes, size: int) -> list[bytes]:
    return [content[first : first + size] for first in range(0, len(content), size)]
