"""Private keys on disk: read, and written encrypted where a passphrase is given.

A passphrase comes from a file (``--passphrase-file`` or ``FEDNAG_PASSPHRASE_FILE``) or from the
environment (``FEDNAG_PASSPHRASE``); never from the command line, which every user can list.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from fednag.core.files import os_errors
from fednag.errors import FednagError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

FILE, TEXT = "FEDNAG_PASSPHRASE_FILE", "FEDNAG_PASSPHRASE"
ENCRYPTED = b"ENCRYPTED"


def passphrase_file() -> Path | None:
    """The file that the environment names."""
    return Path(os.environ[FILE]) if os.environ.get(FILE) else None


def passphrase(file: Path | None = None) -> bytes | None:
    """The passphrase that was given, in a file or in the environment; None without one."""
    if file := file or passphrase_file():
        with os_errors(file, "cannot be read", "put the passphrase there, alone"):
            content = file.read_bytes()
            mode = stat.S_IMODE(file.stat().st_mode)
        if mode & 0o077:
            raise FednagError(file, "other users can read it", f"chmod 600 {file}")
        found = content.rstrip(b"\r\n")
        if not found or b"\n" in found:
            raise FednagError(file, "is not one line", "put the passphrase there, alone")
        return found
    return os.environ[TEXT].encode() if os.environ.get(TEXT) else None


def is_encrypted(path: Path) -> bool:
    """Whether a private key, as it is written here, needs a passphrase."""
    with os_errors(path, "cannot be read"):
        return ENCRYPTED in path.read_bytes().split(b"\n", 1)[0]


def written(key: PrivateKeyTypes, secret: bytes | None, ssh: bool = False) -> bytes:
    """A private key as a file has it; ``ssh`` is the form Flower reads where none is encrypted."""
    kind = serialization.PrivateFormat.OpenSSH if ssh else serialization.PrivateFormat.PKCS8
    how: serialization.KeySerializationEncryption = serialization.NoEncryption()
    if secret:
        kind = serialization.PrivateFormat.PKCS8
        how = serialization.BestAvailableEncryption(secret)
    return key.private_bytes(serialization.Encoding.PEM, kind, how)


def read_key(path: Path, secret: bytes | None = None) -> PrivateKeyTypes:
    """The private key in a file; a sentence where it cannot be had."""
    with os_errors(path, "cannot be read"):
        content = path.read_bytes()
    encrypted = ENCRYPTED in content.split(b"\n", 1)[0]
    if encrypted and (secret := secret or passphrase()) is None:
        raise FednagError(path, "is encrypted", f"name the file of its passphrase in {FILE}")
    try:
        if b"OPENSSH" in content.split(b"\n", 1)[0]:
            return serialization.load_ssh_private_key(content, None)
        return serialization.load_pem_private_key(content, secret if encrypted else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if encrypted:
            why, remedy = "the passphrase does not open it", "give the right one"
            raise FednagError(path, why, remedy) from None
        raise FednagError(path, "is no private key", "make a new one") from None
