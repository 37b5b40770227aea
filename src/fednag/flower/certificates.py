"""Certificates and keys for a deployment: a CA, the server's certificate, keys for every silo.

Private keys are written so that only their owner can read them, encrypted if there is a passphrase.
The CA outlives what it signs, and two CAs may overlap: ``ca.crt`` has the newest first.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fednag.core.files import os_errors, write_atomically
from fednag.errors import FednagError
from fednag.flower.passphrase import read_key, written

DAYS, AUTHORITY_DAYS = 365, 3650
# A SuperLink's own processes reach it so, whatever silos call it.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PEM = serialization.Encoding.PEM


def make_authority(folder: Path, days: int = AUTHORITY_DAYS, secret: bytes | None = None) -> None:
    """``ca.crt``, which everyone gets, and ``ca.key``, which nobody does."""
    key, certificate = _authority(days)
    write_new(folder / "ca.key", written(key, secret), 0o600)
    write_new(folder / "ca.crt", certificate)


def _authority(days: int) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
    key = ec.generate_private_key(ec.SECP384R1())
    # Two that overlap must not have the same name.
    name = _name(f"fednag CA {secrets.token_hex(4)}")
    certificate = (
        _builder(name, name, key.public_key(), _until(days))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return key, certificate.public_bytes(PEM)


def new_authority(folder: Path, secret: bytes | None = None) -> Path:
    """Another CA, which signs from now on; ``ca.crt`` has the old one's certificate too.

    Returns where the old one's key is now. Silos that have the new ``ca.crt`` believe both, so that
    certificates can be changed one after the other.
    """
    before = read_certificates(folder / "ca.crt")
    old = _put_away(folder, "ca.key", before[0].serial_number)
    key, certificate = _authority(AUTHORITY_DAYS)
    write_new(folder / "ca.key", written(key, secret), 0o600)
    write_atomically(folder / "ca.crt", certificate + b"".join(c.public_bytes(PEM) for c in before))
    return old


def retire_authority(folder: Path) -> int:
    """Leave the newest CA alone in ``ca.crt``; returns how many were thrown out."""
    found = read_certificates(folder / "ca.crt")
    if len(found) > 1 and (folder / "server.crt").exists():
        (server,) = read_certificates(folder / "server.crt")
        if server.issuer != found[0].subject:
            raise FednagError(
                folder / "server.crt",
                "the CA that is to go has signed it",
                "renew it first, with --renew",
            )
    write_atomically(folder / "ca.crt", found[0].public_bytes(PEM))
    return len(found) - 1


def make_server(
    folder: Path,
    hosts: Sequence[str],
    days: int = DAYS,
    renew: bool = False,
    secret: bytes | None = None,
) -> None:
    """``server.crt`` and ``server.key`` for these names and addresses, signed by the CA there.

    It holds on loopback too. With ``renew``, the ones that are there are put into ``old/``.
    """
    authority = Authority(folder, secret)
    key = ec.generate_private_key(ec.SECP384R1())
    names = dict.fromkeys([*hosts, *LOOPBACK])
    certificate = authority.signed(
        _name(hosts[0][:64]), key.public_key(), ExtendedKeyUsageOID.SERVER_AUTH, days, [*names]
    )
    _write_pair(folder, "server", key, certificate, renew, secret)


def make_request(folder: Path, name: str, renew: bool = False, secret: bytes | None = None) -> Path:
    """A silo's ``NAME.client.key``, and ``NAME.client.csr`` for the server's CA to sign.

    And ``NAME.local.crt`` and its key, for the way from its SuperNode to its own proxy: Flower
    uses node keys over TLS alone, also on loopback. It signs itself, and nobody else believes it.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    content = request.sign(key, hashes.SHA384()).public_bytes(PEM)
    path = folder / f"{name}.client.csr"
    if renew and (folder / f"{name}.client.key").exists():
        _put_away(folder, f"{name}.client.key", int(datetime.now(UTC).timestamp()))
        path.unlink(missing_ok=True)
    write_new(folder / f"{name}.client.key", written(key, secret), 0o600)
    write_new(path, content)
    if not (folder / f"{name}.local.key").exists():
        own = ec.generate_private_key(ec.SECP384R1())
        subject = _name(f"{name} on loopback")
        builder = _builder(subject, subject, own.public_key(), _until(AUTHORITY_DAYS))
        certificate = _for(builder, ExtendedKeyUsageOID.SERVER_AUTH, LOOPBACK)
        write_new(folder / f"{name}.local.key", written(own, secret), 0o600)
        content = certificate.sign(own, hashes.SHA384()).public_bytes(PEM)
        write_new(folder / f"{name}.local.crt", content)
    return path


def sign_request(folder: Path, path: Path, days: int = DAYS, secret: bytes | None = None) -> Path:
    """The client certificate for a request, beside it; the CA is in ``folder``."""
    with os_errors(path, "cannot be read"):
        content = path.read_bytes()
    try:
        request = x509.load_pem_x509_csr(content)
        (common,) = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        key = request.public_key()
        if not (request.is_signature_valid and isinstance(key, ec.EllipticCurvePublicKey)):
            raise ValueError("its signature is not right")
    except ValueError as error:
        raise FednagError(
            path, f"is no request ({error})", "`fednag flower keys --client` makes one"
        ) from None
    certificate = Authority(folder, secret).signed(
        _name(str(common.value)), key, ExtendedKeyUsageOID.CLIENT_AUTH, days
    )
    made = path.with_suffix(".crt")
    with os_errors(made, "cannot be written"):
        write_atomically(made, certificate)
    return made


def make_node_key(path: Path, secret: bytes | None = None) -> Path:
    """A silo's private key at ``path``; returns where its public half is, to be registered."""
    key = ec.generate_private_key(ec.SECP384R1())
    encoding, kind = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public = path.with_name(path.name + ".pub")
    write_new(path, written(key, secret, ssh=True), 0o600)
    write_new(public, key.public_key().public_bytes(encoding, kind) + b"\n")
    return public


class Authority:
    """The CA in a folder, which signs."""

    def __init__(self, folder: Path, secret: bytes | None = None) -> None:
        remedy = "make a new CA"
        try:
            key = read_key(folder / "ca.key", secret)
            known = read_certificates(folder / "ca.crt")
        except FednagError as error:
            error.remedy = error.remedy or remedy
            raise
        if isinstance(key, ec.EllipticCurvePrivateKey):
            mine = [c for c in known if c.public_key() == key.public_key()]
        if not isinstance(key, ec.EllipticCurvePrivateKey) or not mine:
            raise FednagError(folder / "ca.crt", "is not that of ca.key", remedy)
        self.key, self.certificate = key, mine[0]

    def signed(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        purpose: x509.ObjectIdentifier,
        days: int,
        hosts: Sequence[str] = (),
    ) -> bytes:
        """A certificate for one purpose, which ends before the CA's own."""
        until = min(_until(days), self.certificate.not_valid_after_utc)
        builder = _builder(subject, self.certificate.subject, key, until)
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = _for(builder, purpose, hosts).add_extension(known, critical=False)
        return builder.sign(self.key, hashes.SHA384()).public_bytes(PEM)


def _for(
    builder: x509.CertificateBuilder, purpose: x509.ObjectIdentifier, hosts: Sequence[str]
) -> x509.CertificateBuilder:
    """A certificate that signs nothing, for one purpose."""
    builder = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    )
    if hosts:
        names = x509.SubjectAlternativeName([_named(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder


def _write_pair(
    folder: Path,
    name: str,
    key: ec.EllipticCurvePrivateKey,
    certificate: bytes,
    renew: bool,
    secret: bytes | None,
) -> None:
    paths = folder / f"{name}.key", folder / f"{name}.crt"
    if renew and paths[1].exists():
        (before,) = read_certificates(paths[1])
        for path in paths:
            _put_away(folder, path.name, before.serial_number)
    write_new(paths[0], written(key, secret), 0o600)
    write_new(paths[1], certificate)


def _put_away(folder: Path, name: str, number: int) -> Path:
    """Move a file into ``old/``, under a name that says which it was."""
    stem, _, kind = name.rpartition(".")
    old = folder / "old" / f"{stem}-{number:x}"[:60]
    path = old.with_name(f"{old.name}.{kind}")
    with os_errors(folder / name, "cannot be put into old/"):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        (folder / name).replace(path)
    return path


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Those in a file, in its order."""
    with os_errors(path, "cannot be read"):
        content = path.read_bytes()
    try:
        return x509.load_pem_x509_certificates(content)
    except ValueError as error:
        raise FednagError(path, f"is no certificate ({error})", "make a new one") from None


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _until(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(minutes=5))  # clocks differ
        .not_valid_after(until)
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


def write_new(path: Path, content: bytes, mode: int = 0o644) -> None:
    """A new file, readable as it should be from the first moment; never over another one."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
    except FileExistsError:
        raise FednagError(path, "is there already", "move it away to make a new one") from None
    except OSError as error:
        raise FednagError(path, f"cannot be written ({error.strerror})") from error
