"""A silo's side of a secure sum."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from fednag.errors import FednagError
from fednag.secure import shamir
from fednag.secure.keys import (
    Known,
    Sign,
    agreed,
    check_signature,
    derived,
    is_added,
    mask_key,
    public,
    signed,
)
from fednag.secure.masks import Integers, add_streams, packed
from fednag.secure.terms import KEY, KEYS, SEALED, SHARE, STEPS, Terms, in_order

NONCE = bytes(12)  # a key seals one message


class Member:
    """One silo in one sum::

        y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)    (mod 2^bits)

    b_u is its own seed, s_uv a key it agrees on with silo v. It answers each of the four steps
    once, in their order. Of another silo it gives a share of the seed (if that one's vector is in
    the sum) or of the key of its masks (if it vanished), never both: with both, the server could
    unmask that silo's vector.
    """

    def __init__(self, terms: Terms, number: int) -> None:
        self.terms, self.number = terms, number
        self.step = 0
        self._sealing, self._masking = secrets.token_bytes(KEY), secrets.token_bytes(KEY)
        self._seed = secrets.token_bytes(KEY)
        self._advertised = b""
        self._roster: dict[int, bytes] = {}
        self._own = b""  # its own shares of its own secrets
        self._sealed: dict[int, bytes] = {}  # others' shares for it

    def advertise(self, sign: Sign | None = None) -> bytes:
        """Step 1: two public keys, for sealing shares and for masks."""
        self._begin(0)
        keys = public(self._sealing) + public(self._masking)
        context = self.terms.context
        self._advertised = signed(sign, self.number, keys, context) if sign else keys
        return self._advertised

    def share(self, roster: Mapping[int, bytes], known: Known | None = None) -> tuple[bytes, bytes]:
        """Step 2: a commitment to its seed, and shares sealed for each of the others in turn."""
        self._begin(1)
        self._roster = in_order(roster)
        self._check_roster(known)
        points = [number + 1 for number in self._roster]
        parts = [
            shamir.split(int.from_bytes(secret, "little"), self.terms.threshold, points)
            for secret in (self._masking, self._seed)
        ]
        sealed = b""
        for number, shares in zip(self._roster, zip(*parts, strict=True), strict=True):
            plain = b"".join(share.to_bytes(SHARE, "little") for share in shares)
            if number == self.number:
                self._own = plain
            else:
                sealed += self._cipher(number, self.number, number).encrypt(NONCE, plain, None)
        return derived(self._seed, "commitment", self.terms.context), sealed

    def mask(
        self, values: Integers, sealed: Mapping[int, bytes], alike: bytes = b""
    ) -> NDArray[np.uint8]:
        """Step 3: the masked vector; ``sealed`` are the shares of those who dealt some.

        ``alike`` is a digest of what all silos were sent. Masks of silos that were sent different
        things do not cancel, so a server learns nothing by telling silos apart in that way
        (Pasquini et al., "Eluding Secure Aggregation in Federated Learning", 2022).
        """
        self._begin(2)
        others = set(sealed)
        if not others < set(self._roster) or self.number in others:
            raise FednagError("the server hands on shares of silos that did not advertise keys")
        if any(len(content) != SEALED for content in sealed.values()):
            raise FednagError("the server hands on shares of a wrong length")
        self.terms.check_enough(len(others) + 1, 1)
        self._sealed = in_order(sealed)
        masked = values.copy()
        context = self.terms.context
        keys = {other: self._roster[other][KEY:KEYS] for other in sorted(others)}
        streams = [
            (mask_key(self._masking, key, context + alike), is_added(self.number, other))
            for other, key in keys.items()
        ]
        add_streams(masked, [(derived(self._seed, "self", context), True), *streams])
        return packed(masked, self.terms.bits)

    def unmask(self, survivors: Collection[int], vanished: Collection[int]) -> bytes:
        """Step 4: in ascending order, a share of the seed of each survivor, and of the key of
        the masks of who has vanished. What it could not open is all zeros."""
        self._begin(3)
        there, gone = set(survivors), set(vanished)
        if there & gone:
            raise FednagError(
                "the server asks for both secrets of a silo, with which it could unmask its update"
            )
        if there | gone != {self.number, *self._sealed} or self.number in gone:
            raise FednagError("the server asks to unmask another sum than this silo took part in")
        if len(there) + len(gone) != len(survivors) + len(vanished):
            raise FednagError("the server names a silo twice")
        self.terms.check_enough(len(there), 2)
        found = b""
        for number in sorted(there | gone):
            shares = self._own if number == self.number else self._opened(number)
            found += shares[SHARE:] if number in there else shares[:SHARE]
        self._forget()
        return found

    def saved(self) -> dict[str, Any]:
        """All of it in bytes and whole numbers, its secrets too."""
        return {
            "number": self.number,
            "step": self.step,
            "context": self.terms.context,
            "threshold": self.terms.threshold,
            "bits": self.terms.bits,
            "secrets": self._sealing + self._masking + self._seed,
            "advertised": self._advertised,
            "own": self._own,
            "roster": list(self._roster),
            "keys": list(self._roster.values()),
            "dealers": list(self._sealed),
            "sealed": list(self._sealed.values()),
        }

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Member:
        found = cls(Terms(saved["context"], saved["threshold"], saved["bits"]), saved["number"])
        found.step = saved["step"]
        held = saved["secrets"]
        found._sealing, found._masking, found._seed = held[:KEY], held[KEY:-KEY], held[-KEY:]
        found._advertised, found._own = saved["advertised"], saved["own"]
        found._roster = dict(zip(saved["roster"], saved["keys"], strict=True))
        found._sealed = dict(zip(saved["dealers"], saved["sealed"], strict=True))
        return found

    def _begin(self, step: int) -> None:
        """A step is answered once; what was asked wrongly ends the sum too."""
        if self.step != step:
            raise FednagError(
                "",
                f"the server asks for the step {STEPS[step]!r} of a sum out of turn",
                "a sum that was cut off begins anew",
            )
        self.step += 1

    def _check_roster(self, known: Known | None) -> None:
        roster, terms = self._roster, self.terms
        if roster.get(self.number, b"")[: len(self._advertised)] != self._advertised:
            raise FednagError("the server hands on other keys than this silo advertised")
        terms.check_enough(len(roster), 0)
        if terms.threshold < 2:
            raise FednagError("the server would go on with one silo, whose update is no sum")
        if len(roster) >= 2 * terms.threshold:
            raise FednagError(
                f"the server hands on keys of {len(roster)} silos, and {terms.threshold} are not "
                "more than half of them"
            )
        for number, keys in roster.items():
            if known is not None:
                check_signature(known, number, keys, terms.context)
            elif len(keys) < KEYS:
                raise FednagError(f"the keys of silo {number} are cut short")
        if len({keys[:KEYS] for keys in roster.values()}) < len(roster):
            raise FednagError("two silos have the same keys")

    def _cipher(self, other: int, sender: int, receiver: int) -> ChaCha20Poly1305:
        common = agreed(self._sealing, self._roster[other][:KEY])
        way = sender.to_bytes(8, "little") + receiver.to_bytes(8, "little")
        return ChaCha20Poly1305(derived(common, "shares", self.terms.context + way))

    def _opened(self, sender: int) -> bytes:
        try:
            cipher = self._cipher(sender, sender, self.number)
            return cipher.decrypt(NONCE, self._sealed[sender], None)
        except InvalidTag:
            return bytes(2 * SHARE)

    def _forget(self) -> None:
        self._sealing = self._masking = self._seed = self._own = b""
        self._roster, self._sealed = {}, {}
