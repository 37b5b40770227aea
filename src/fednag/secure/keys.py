"""Keys: agreed between two silos, derived for a purpose, signed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from fednag.errors import FednagError
from fednag.secure.terms import KEY, KEYS, SIGNATURE

Sign = Callable[[bytes], bytes]
"""Signs with a silo's own key (Ed25519)."""
Known = Mapping[int, Ed25519PublicKey]
"""The keys by which silos know each other."""


def derived(secret: bytes, purpose: str, context: bytes) -> bytes:
    """A key for one purpose in one sum (HKDF with SHA-256)."""
    info = purpose.encode() + b"\0" + context
    return HKDF(hashes.SHA256(), KEY, salt=None, info=info).derive(secret)


def public(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, other: bytes) -> bytes:
    """What the owners of two pairs of keys have in common (X25519)."""
    try:
        peer = X25519PublicKey.from_public_bytes(other)
        return X25519PrivateKey.from_private_bytes(private).exchange(peer)
    except ValueError as error:  # a key that gives everyone the same secret
        raise FednagError("one of the advertised keys is none of X25519") from error


def mask_key(private: bytes, other: bytes, context: bytes) -> bytes:
    """The key of the mask that two silos share."""
    return derived(agreed(private, other), "mask", context)


def is_added(number: int, other: int) -> bool:
    """Whether a silo adds the mask it shares with another; that one takes it away."""
    return number < other


def signed(sign: Sign, number: int, keys: bytes, context: bytes) -> bytes:
    """The keys with their owner's signature behind them."""
    return keys + sign(_statement(number, keys, context))


def check_signature(known: Known, number: int, given: bytes, context: bytes) -> None:
    """Raise FednagError unless this silo itself advertised these keys, for this sum."""
    keys, signature = given[:KEYS], given[KEYS:]
    if number not in known:
        raise FednagError(f"silo {number} is not among the silos whose keys are known here")
    if len(signature) != SIGNATURE or not any(signature):
        raise FednagError(f"the keys of silo {number} are not signed")
    try:
        known[number].verify(signature, _statement(number, keys, context))
    except InvalidSignature:
        raise FednagError(
            f"the keys of silo {number} are not signed by it: the server or silo {number} has "
            "changed them"
        ) from None


def _statement(number: int, keys: bytes, context: bytes) -> bytes:
    return b"fednag advertises\0" + number.to_bytes(8, "little") + keys + context
