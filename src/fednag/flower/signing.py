"""A silo's own key: it signs what it was sent and what it sends, and its keys of secure sums."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from fednag.errors import FednagError
from fednag.flower.certificates import write_new
from fednag.flower.passphrase import read_key, written


class Signer:
    """Signs with a private key that never leaves the silo."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def of(cls, node_config: Mapping[str, Any]) -> Signer | None:
        """With the key in the file that ``ledger-key`` names; None without one."""
        given = node_config.get("ledger-key")
        if not given:
            return None
        try:
            key = read_key(Path(str(given)))
        except FednagError as error:
            raise FednagError(
                "ledger-key",
                f"{given} {error.problem}",
                error.remedy or "make one with `fednag ledger key`",
                source="node config",
            ) from None
        if not isinstance(key, Ed25519PrivateKey):
            raise FednagError(
                "ledger-key",
                f"{given} is no Ed25519 key",
                "make one with `fednag ledger key`",
                source="node config",
            )
        return cls(key)

    @property
    def public(self) -> str:
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, content: bytes) -> str:
        return self.sign_bytes(content).hex()

    def sign_bytes(self, content: bytes) -> bytes:
        return self._key.sign(content)


def is_signed(key: str, content: bytes, signature: str) -> bool:
    """Whether a signature is that of this public key."""
    with suppress(InvalidSignature, ValueError):
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        public.verify(bytes.fromhex(signature), content)
        return True
    return False


def make_key(path: Path, secret: bytes | None = None) -> str:
    """A new private key at ``path``, for its owner alone, its public half beside it as ``.pub``."""
    key = Ed25519PrivateKey.generate()
    write_new(path, written(key, secret), 0o600)
    public = Signer(key).public
    write_new(path.with_name(path.name + ".pub"), f"{public}\n".encode())
    return public
