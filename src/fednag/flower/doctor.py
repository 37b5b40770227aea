"""``fednag flower doctor``: what a run would stumble over, looked at before it begins.

Each check is a line: ok, a warning, or wrong and what to do. Nothing is changed, and nothing of the
data is printed but their number, shape and classes.
"""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from fednag.errors import FednagError
from fednag.flower.agreed import digest_of
from fednag.flower.certificates import read_certificates
from fednag.flower.gateway import program
from fednag.flower.passphrase import passphrase, read_key
from fednag.flower.silo_data import from_folder

OK, WARNING, WRONG = "ok", "warning", "wrong"
SOON = 30  # days before its end from which a certificate is warned of
SKEW, NOTABLE = 240.0, 10.0  # seconds; Flower refuses a silo whose clock is 300 s away
SPACE = 1 << 30  # bytes that should be free on a disk
PATIENCE = 10.0  # seconds for an answer
FORBIDDEN = "/v1/control/list-runs"  # what no silo may reach
PASSES = "/v1/fleet/pull-messages"


@dataclass(frozen=True)
class Finding:
    """One check."""

    check: str
    status: str
    said: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


@dataclass(frozen=True)
class Patient:
    """What there is to look at; what is None or empty is not looked at."""

    secrets: Path | None = None
    host: str = ""  # the name in the server's certificate
    server: str = ""  # ADDRESS:PORT that a silo is to reach
    data: Path | None = None
    memory: Path | None = None
    serves: bool = False  # whether a gateway is to run here
    shape: tuple[int, ...] = ()
    classes: int = 0
    app: Path | None = None
    agreed: tuple[str, ...] = ()
    certificate: str = ""  # of a silo, for mutual TLS
    ports: tuple[int, ...] = ()  # that something here is to listen on


def examine(patient: Patient) -> Iterator[Finding]:
    """All that can be looked at."""
    yield from _versions()
    if patient.secrets and not patient.secrets.is_dir():
        said = f"{patient.secrets}: no such folder; `fednag flower keys` makes one"
        yield Finding("secrets", WRONG, said)
    elif patient.secrets:
        yield from _certificates(patient, patient.secrets)
        yield from _keys(patient.secrets)
    if patient.serves:
        yield _gateway()
    if patient.server:
        yield from _server(patient)
    for port in patient.ports:
        yield _port(port)
    if patient.data:
        yield from _looked("data", lambda: _data(patient))
    for name, folder in {"memory folder": patient.memory, "disk": Path()}.items():
        if folder is not None:
            yield _space(name, folder)
    if patient.app:
        yield from _looked("app", lambda: _app(patient))
    yield _telemetry()


def _looked(check: str, look: Callable[[], str]) -> Iterator[Finding]:
    """A check that gives what it found, or raises a sentence."""
    try:
        yield Finding(check, OK, look())
    except FednagError as error:
        yield Finding(check, WRONG, str(error))


def _versions() -> Iterator[Finding]:
    """The server refuses a silo with others; Flower's interfaces move from one to the next."""
    python = ".".join(map(str, sys.version_info[:3]))
    said = f"fednag {version('fednag')}, torch {torch.__version__}, Python {python}"
    try:
        flower = version("flwr")
    except PackageNotFoundError:
        yield Finding("versions", WRONG, "Flower is not installed; pip install 'fednag[flower]'")
        return
    if not flower.startswith("1.41."):
        yield Finding("versions", WRONG, f"flwr {flower} is here; install flwr 1.41")
        return
    yield Finding("versions", OK, f"{said}, flwr {flower}: compare them with the server's")


def _certificates(patient: Patient, folder: Path) -> Iterator[Finding]:
    """Whether they hold today, for how long, for which names, and who signed them."""
    try:
        authorities = read_certificates(folder / "ca.crt")
    except FednagError as error:
        yield Finding("ca.crt", WRONG, str(error))
        return
    for authority in authorities:
        yield _life("ca.crt", authority)
    kinds = {"server.crt": folder / "server.crt"}
    if patient.certificate:
        kinds["client certificate"] = folder / f"{patient.certificate}.client.crt"
    for name, path in kinds.items():
        if not path.exists():
            if name != "server.crt":
                yield Finding(name, WRONG, f"{path} is missing; have the server sign the request")
            continue
        try:
            certificate = read_certificates(path)[0]
            key = read_key(path.with_suffix(".key"))
        except FednagError as error:
            yield Finding(name, WRONG, str(error))
            continue
        if not any(_signed(certificate, authority) for authority in authorities):
            yield Finding(name, WRONG, f"{path}: no CA in ca.crt has signed it; make it anew")
        elif key.public_key() != certificate.public_key():
            yield Finding(name, WRONG, f"{path}: its key is another one's; make both anew")
        elif name == "server.crt" and patient.host and patient.host not in _names(certificate):
            held = ", ".join(_names(certificate))
            yield Finding(name, WRONG, f"holds for {held}, not for {patient.host}; --renew it")
        else:
            yield _life(name, certificate)


def _life(name: str, certificate: x509.Certificate) -> Finding:
    now, until = datetime.now(UTC), certificate.not_valid_after_utc
    days = (until - now).total_seconds() / 86_400
    if now < certificate.not_valid_before_utc:
        begins = certificate.not_valid_before_utc
        return Finding(name, WRONG, f"holds from {begins:%Y-%m-%d %H:%M} only; is the clock right?")
    if days < 0:
        return Finding(name, WRONG, f"ended on {until:%Y-%m-%d}; `fednag flower keys … --renew`")
    said = f"holds until {until:%Y-%m-%d}, {days:.0f} days"
    return Finding(name, WARNING if days < SOON else OK, said + ("; renew it" * (days < SOON)))


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except Exception:  # of several kinds, by what is wrong with it
        return False
    return True


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [str(name.value) for name in found]


def _keys(folder: Path) -> Iterator[Finding]:
    """Whether others can read private keys, and whether they can be opened at all."""
    found = sorted(folder.glob("*.key"))
    found += sorted(path.with_suffix("") for path in folder.glob("*.pub"))
    if os.name == "posix" and stat.S_IMODE(folder.stat().st_mode) & 0o077:
        yield Finding("keys", WRONG, f"{folder} is open to other users; chmod 700 {folder}")
    for path in dict.fromkeys(found):
        if not path.exists():
            continue  # another silo's public key
        if os.name == "posix" and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield Finding(path.name, WRONG, f"other users can read it; chmod 600 {path}")
            continue
        try:
            key = read_key(path)
        except FednagError as error:
            yield Finding(path.name, WRONG, str(error))
            continue
        kind = "an EC key" if isinstance(key, ec.EllipticCurvePrivateKey) else "a key"
        yield Finding(path.name, OK, f"{kind}, for its owner alone")
    if (folder / "ca.key").exists():
        said = "ca.key is here: keep it off line, it is needed only to sign"
        yield Finding("ca.key", WARNING, said)


def _server(patient: Patient) -> Iterator[Finding]:
    """Whether the server answers, is who it should be, keeps time, and shows silos no more."""
    host, _, text = patient.server.rpartition(":")
    host = host.strip("[]")
    if not host or not text.isdecimal():
        yield Finding("server", WRONG, f"{patient.server} is not ADDRESS:PORT")
        return
    context = ssl.create_default_context()
    if patient.secrets and (patient.secrets / "ca.crt").exists():
        context = ssl.create_default_context(cafile=str(patient.secrets / "ca.crt"))
    if patient.secrets and patient.certificate:
        own = patient.secrets / f"{patient.certificate}.client.crt"
        try:
            context.load_cert_chain(own, own.with_suffix(".key"), password=passphrase() or b"")
        except (OSError, ValueError) as error:
            yield Finding("server", WRONG, f"{own} cannot be shown ({error})")
            return
    try:
        began = time.time()
        status, date, body = _asked(host, int(text), context, PASSES)
        took = time.time() - began
    except ssl.SSLCertVerificationError as error:
        why = error.verify_message
        yield Finding("server", WRONG, f"{patient.server} is not who it should be ({why})")
        return
    except (OSError, http.client.HTTPException) as error:
        yield Finding("server", WRONG, f"{patient.server} does not answer ({error})")
        return
    if status == 400 and b"SSL certificate" in body:
        said = "wants a client certificate; give --certificate"
        yield Finding("server", WRONG, f"{patient.server} {said}")
        return
    if status in (502, 504):
        yield Finding("server", WRONG, "the gateway answers, and the SuperLink behind it does not")
        return
    yield Finding("server", OK, f"{patient.server} answers, and is who it should be")
    if date:
        gap = (began + took / 2) - date.timestamp() - 0.5  # its seconds are whole
        status_ = WRONG if abs(gap) > SKEW else WARNING if abs(gap) > NOTABLE else OK
        said = f"{abs(gap):.0f} s {'ahead of' if gap > 0 else 'behind'} the server's"
        more = "; Flower refuses 300 s: run chrony or ntpd" if status_ != OK else ""
        yield Finding("clock", status_, f"this clock is {said}{more}")
    try:
        closed = _asked(host, int(text), context, FORBIDDEN)[0] == 403
    except (OSError, http.client.HTTPException):
        closed = True
    yield (
        Finding("fence", OK, "control paths are refused from here")
        if closed
        else Finding(
            "fence",
            WARNING if host in ("127.0.0.1", "localhost", "::1") else WRONG,
            f"{patient.server} lets whoever reaches it submit runs; put a gateway in front",
        )
    )


def _asked(
    host: str, port: int, context: ssl.SSLContext, path: str
) -> tuple[int, datetime | None, bytes]:
    """The answer's status, date and text."""
    with closing(
        http.client.HTTPSConnection(host, port, timeout=PATIENCE, context=context)
    ) as line:
        line.request("POST", path, b"")
        answer = line.getresponse()
        body = answer.read(10_000)
        date = answer.getheader("date")
    return answer.status, parsedate_to_datetime(date) if date else None, body


def _port(port: int) -> Finding:
    """Whether something else listens where we are to."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            said = f"{port} cannot be listened on ({error.strerror})"
            return Finding("port", WRONG, f"{said}; stop what is there, or take another")
    return Finding("port", OK, f"{port} is free")


def _data(patient: Patient) -> str:
    assert patient.data
    found = from_folder(patient.data)
    x, y = found["x"], found["y"]
    for name in ("x", "test_x"):
        if name not in found:
            continue
        xs, ys = found[name], found[name.replace("x", "y")]
        if len(xs) != len(ys):
            raise FednagError(patient.data, f"{name} has {len(xs)} samples, {len(ys)} targets")
        if patient.shape and tuple(xs.shape[1:]) != patient.shape:
            shape = "x".join(map(str, patient.shape))
            raise FednagError(
                patient.data, f"samples of {name} are {_by(xs)}, and the run declares {shape}"
            )
        if xs.is_floating_point() and not bool(xs.isfinite().all()):
            raise FednagError(patient.data, f"{name} has numbers that are not finite")
        if patient.classes and not 0 <= int(ys.min()) <= int(ys.max()) < patient.classes:
            raise FednagError(patient.data, f"labels of {name} are not 0 to {patient.classes - 1}")
    if patient.data.stat().st_mode & 0o007:
        raise FednagError(patient.data, "other users can read it", f"chmod o= {patient.data}")
    tests = len(found.get("test_x", x[:0]))
    labels = "numbers" if y.is_floating_point() else f"{len(set(y.tolist()))} classes"
    return f"{len(x)} samples of {_by(x)}, {labels}, {tests} test samples"


def _by(x: torch.Tensor) -> str:
    return "x".join(map(str, x.shape[1:]))


def _space(name: str, folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding(name, WRONG, f"{folder} is not there; make it, with mode 700")
    if not os.access(folder, os.W_OK | os.X_OK) and name != "disk":
        return Finding(name, WRONG, f"{folder} cannot be written to; chown it")
    free = shutil.disk_usage(folder).free
    said = f"{free / 1e9:.1f} GB free"
    return Finding(name, OK if free > SPACE else WARNING, said)


def _app(patient: Patient) -> str:
    assert patient.app
    found = digest_of(patient.app)
    if patient.agreed and found not in patient.agreed:
        raise FednagError(patient.app, f"its digest is {found}, which was not agreed to")
    return f"its digest is {found}" + (", as agreed" if patient.agreed else "")


def _telemetry() -> Finding:
    off = os.environ.get("FLWR_TELEMETRY_ENABLED") == "0"
    if off and os.environ.get("FLWR_DISABLE_UPDATE_CHECK") == "1":
        return Finding("telemetry", OK, "Flower reports nothing")
    said = "Flower reports its use; export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1"
    return Finding("telemetry", WARNING, f"{said}, or use `fednag flower silo` and `link`")


def _gateway() -> Finding:
    """Whether there is a proxy for the fence."""
    found = program()
    said = found or "not installed; apt-get install nginx"
    return Finding("nginx", OK if found else WARNING, said)
