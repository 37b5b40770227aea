"""Certificates and keys for a deployment: a CA, the server's certificate, a key for every silo.

Private keys are written so that only their owner can read them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fednag.errors import FednagError

DAYS = 365
# A SuperLink's own processes reach it so, whatever silos call it.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def make_authority(folder: Path, days: int = DAYS) -> None:
    """``ca.crt``, which everyone gets, and ``ca.key``, which nobody does."""
    key = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fednag CA")])
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    _write_private(folder / "ca.key", key)
    write_new(folder / "ca.crt", certificate.public_bytes(serialization.Encoding.PEM))


def make_server(folder: Path, hosts: Sequence[str], days: int = DAYS) -> None:
    """``server.crt`` and ``server.key`` for these names and addresses, signed by the CA there.

    It holds on loopback too.
    """
    try:
        content = (folder / "ca.key").read_bytes()
        authority = serialization.load_pem_private_key(content, None)
        issuer = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    except (OSError, ValueError) as error:
        raise FednagError(
            folder / "ca.key", f"cannot be read ({error})", "make a new CA"
        ) from error
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP384R1())
    names = dict.fromkeys([*hosts, *LOOPBACK])
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    certificate = (
        _builder(name, issuer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_named(h) for h in names]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA384())
    )
    _write_private(folder / "server.key", key)
    write_new(folder / "server.crt", certificate.public_bytes(serialization.Encoding.PEM))


def make_node_key(path: Path) -> Path:
    """A silo's private key at ``path``; returns where its public half is, to be registered."""
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, kind = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public = path.with_name(path.name + ".pub")
    _write_private(path, key)
    write_new(public, key.public_key().public_bytes(encoding, kind) + b"\n")
    return public


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _named(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_private(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    content = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH
        if path.suffix != ".key"
        else serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_new(path, content, 0o600)


def write_new(path: Path, content: bytes, mode: int = 0o644) -> None:
    """A new file, readable as it should be from the first moment; never over another one."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise FednagError(path, "is there already", "move it away to make a new one") from None
    except OSError as error:
        raise FednagError(path, f"cannot be written ({error.strerror})") from error
