"""nginx in front of a SuperLink: what a silo asks for passes, and nothing else."""

from __future__ import annotations

import http.client
import inspect
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient

from fednag import FednagError
from fednag.flower import certificates
from fednag.flower.certificates import make_authority, make_request, make_server, sign_request
from fednag.flower.gateway import PATHS, Gateway, SiloProxy, program
from fednag.flower.processes import free_ports

FLEET = [f"/v1/fleet/{path}" for path in PATHS]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    make_authority(folder)
    make_server(folder, ["127.0.0.1"])
    return folder


class Behind(BaseHTTPRequestHandler):
    """Stands where the SuperLink does, and notes what reaches it."""

    seen: list[str] = []  # noqa: RUF012

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.seen.append(self.path)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_PUT = do_DELETE = do_POST  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def behind(secrets: Path) -> Iterator[str]:
    """Where a server is that would answer everything."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Behind)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secrets / "server.crt", secrets / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@contextmanager
def serving(command: Sequence[str], port: int) -> Iterator[int]:
    """A proxy, until the block is left."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 30
        while time.monotonic() < until and process.poll() is None:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield port
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def nginx_of(gate: Gateway | SiloProxy, folder: Path) -> Iterator[int]:
    if (nginx := program()) is None:
        pytest.skip("nginx is not installed")
    command = [nginx, "-p", str(folder), "-c", str(gate.write(folder)), "-g", "daemon off;"]
    with serving(command, int(gate.listen.rpartition(":")[2])) as port:
        yield port


def free() -> str:
    return f"127.0.0.1:{free_ports(1)[0]}"


@pytest.fixture(scope="module")
def outside(secrets: Path, behind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The outer port of a gateway before that server."""
    gate = Gateway("127.0.0.1", free(), behind, secrets, rate=30, megabytes=6)
    with nginx_of(gate, tmp_path_factory.mktemp("gate")) as port:
        yield port


def asked(
    port: int,
    secrets: Path,
    path: str,
    body: bytes = b"",
    how: str = "POST",
    shown: tuple[Path, Path] | None = None,
    host: str = "127.0.0.1",
) -> int:
    """The answer's status, over TLS that the authority's certificate verifies."""
    context = ssl.create_default_context(cafile=str(secrets / "ca.crt"))
    if shown:
        context.load_cert_chain(*shown)
    connection = http.client.HTTPSConnection(host, port, timeout=20, context=context)
    try:
        connection.putrequest(how, path, skip_accept_encoding=True)
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


def test_all_a_silo_asks_for_passes(outside: int, secrets: Path) -> None:
    """The paths of Flower's own client, but those by which strangers register."""
    known = set(re.findall(r'path="(/v1/fleet/[a-z-]+)"', inspect.getsource(FleetHttpClient)))
    assert known - set(FLEET) == {"/v1/fleet/register-node", "/v1/fleet/unregister-node"}
    Behind.seen.clear()
    assert [asked(outside, secrets, path) for path in FLEET] == [200] * len(FLEET)
    assert Behind.seen == FLEET
    assert asked(outside, secrets, FLEET[-1], bytes(5_500_000)) == 200


def paths_of(router: Any) -> Iterator[str]:
    for route in router.routes:
        if inner := getattr(route, "original_router", None):
            yield from paths_of(inner)
        else:
            yield route.path


def test_nothing_else_of_the_superlink_passes(outside: int, secrets: Path) -> None:
    others = set(paths_of(create_app())) - set(FLEET)
    assert any("/v1/control/" in path for path in others)
    assert any("/v1/runtime/" in path for path in others)
    hidden = ["/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run"]
    hidden += [
        "/v1/control/x/..%2f..%2ffleet/get-run",
        "//v1/fleet/get-run/../../control/start-run",
    ]
    hidden += ["/v1/fleet/get-run%00/v1/control/start-run", "/v1/fleet/get-run/"]
    Behind.seen.clear()
    for path in sorted(others) + hidden:
        time.sleep(0.02)  # below the rate
        status = asked(outside, secrets, path.replace("{", "").replace("}", ""))
        reached = [seen for seen in Behind.seen if seen not in FLEET]
        assert not reached, (path, reached)
        assert status in (400, 403) or path in hidden, (path, status)
    assert set(Behind.seen) <= {"/v1/fleet/get-run"}  # under its own name alone


def test_what_is_too_large_or_too_fast_or_plain_is_refused(outside: int, secrets: Path) -> None:
    assert asked(outside, secrets, FLEET[0], how="GET") == 403
    assert asked(outside, secrets, FLEET[0], bytes(6_400_000)) == 413
    with socket.create_connection(("127.0.0.1", outside), 10) as plain:
        plain.sendall(b"POST /v1/fleet/get-run HTTP/1.0\r\n\r\n")
        assert b" 400 " in plain.recv(100)
    context = ssl.create_default_context(cafile=str(secrets / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", outside, timeout=20, context=context)
    found = set()
    for _ in range(600):
        connection.request("POST", FLEET[0])
        with connection.getresponse() as answer:
            answer.read()
            found.add(answer.status)
        if answer.status == 503:
            break
    connection.close()
    assert found == {200, 503}


def test_what_cannot_stand_in_a_configuration_is_a_sentence(tmp_path: Path, secrets: Path) -> None:
    for option, gate in {
        "--host": Gateway("fl.example.org; return 200"),
        "--listen": Gateway("h", listen="8443; }"),
        "--superlink": Gateway("h", superlink="127.0.0.1"),
    }.items():
        with pytest.raises(FednagError, match=f"^{option} .*: cannot stand in"):
            gate.write(tmp_path)
    with pytest.raises(FednagError, match=r"has no server.crt; make it with `fednag flower keys"):
        Gateway("h", secrets=tmp_path).write(tmp_path)
    assert not list(tmp_path.iterdir())
    if program():
        (tmp_path / "server.crt").write_text("no certificate")
        for name in ("server.key", "ca.crt"):
            (tmp_path / name).write_bytes((secrets / name).read_bytes())
        with pytest.raises(FednagError, match="nginx refuses it: "):
            Gateway("h", secrets=tmp_path).write(tmp_path / "gate")


def client(folder: Path, name: str, authority: Path) -> tuple[Path, Path]:
    """A silo's certificate and key, for mutual TLS."""
    folder.mkdir(exist_ok=True)
    made = sign_request(authority, make_request(folder, name))
    return made, folder / f"{name}.client.key"


def test_without_a_certificate_a_silo_gets_nothing(
    secrets: Path, behind: str, tmp_path: Path
) -> None:
    """Nor with another CA's, nor with the server's own, which is for no client; and of those that
    the CA signed, only those that are allowed."""
    (other := tmp_path / "other").mkdir()
    make_authority(other)
    known, removed = (client(tmp_path / "silo", name, secrets) for name in ("silo-0", "silo-1"))
    strangers = {
        "no certificate": None,
        "of another CA": client(tmp_path / "stranger", "silo-0", other),
        "the server's": (secrets / "server.crt", secrets / "server.key"),
        "removed": removed,
    }
    gate = Gateway("127.0.0.1", free(), behind, secrets, clients=True, allow=("silo-0",))
    with nginx_of(gate, tmp_path / "gate") as port:
        Behind.seen.clear()
        for who, shown in strangers.items():
            for path in (FLEET[0], "/v1/control/start-run"):
                status = asked(port, secrets, path, shown=shown)
                assert status == (403 if who == "removed" else 400), who
        assert asked(port, secrets, "/v1/control/start-run", shown=known) == 403
        assert not Behind.seen
        assert asked(port, secrets, FLEET[0], shown=known) == 200
    assert Behind.seen == FLEET[:1]


def test_a_supernode_shows_a_certificate_through_the_silos_own_proxy(
    secrets: Path, behind: str, tmp_path: Path
) -> None:
    """TLS on the silo's loopback, mutual TLS from there; the proxy believes one CA."""
    silo, own = tmp_path / "silo", tmp_path / "own"
    client(silo, "silo-0", secrets)
    own.mkdir()
    shutil.copy(silo / "silo-0.local.crt", own / "ca.crt")
    (silo / "ca.crt").write_bytes((secrets / "ca.crt").read_bytes())
    gate = Gateway("127.0.0.1", free(), behind, secrets, clients=True)
    proxy = SiloProxy(gate.listen, "silo-0", free(), silo)
    with nginx_of(gate, tmp_path / "gate"), nginx_of(proxy, tmp_path / "proxy") as port:
        Behind.seen.clear()
        assert asked(port, own, FLEET[3], bytes(5_500_000)) == 200
        assert asked(port, own, "/v1/control/start-run") == 403
        assert Behind.seen == [FLEET[3]]
    assert '"certificate":"CN=silo-0"' in (tmp_path / "gate" / "access.log").read_text()
    (other := tmp_path / "other").mkdir()
    make_authority(other)
    (silo / "ca.crt").write_bytes((other / "ca.crt").read_bytes())
    with nginx_of(gate, tmp_path / "gate"), nginx_of(proxy, tmp_path / "proxy") as port:
        Behind.seen.clear()
        assert asked(port, own, FLEET[0]) == 502
        assert not Behind.seen
    with pytest.raises(FednagError, match="whoever reaches it has the silo's certificate"):
        SiloProxy(gate.listen, "silo-0", "0.0.0.0:8444", silo).write(tmp_path / "proxy")


def test_certificates_change_one_after_the_other_and_nobody_is_locked_out(
    secrets: Path, behind: str, tmp_path: Path
) -> None:
    """A new server certificate of the same CA; then a new CA, while silos still have what the old
    one signed; then the old one goes, and what it signed with it. Keys are encrypted."""
    mine, word = tmp_path / "mine", b"a long sentence"
    mine.mkdir()
    (password := tmp_path / "word").write_bytes(word + b"\n")
    password.chmod(0o600)
    make_authority(mine, secret=word)
    make_server(mine, ["127.0.0.1"], secret=word)
    (first := tmp_path / "first").mkdir()
    (first / "ca.crt").write_bytes((mine / "ca.crt").read_bytes())
    old = (
        sign_request(mine, make_request(first, "silo-0"), secret=word),
        first / ("silo-0.client.key"),
    )
    # The server behind has the certificate of the fixture's CA.
    believed = tmp_path / "believed"
    gate = Gateway("127.0.0.1", free(), behind, believed, clients=True, password=password)

    def status(folder: Path, shown: tuple[Path, Path]) -> int | str:
        """What a silo gets that believes the CAs in its folder."""
        shutil.copytree(mine, believed, dirs_exist_ok=True)
        text = (mine / "ca.crt").read_text() + (secrets / "ca.crt").read_text()
        (believed / "ca.crt").write_text(text)
        with nginx_of(gate, tmp_path / "gate") as port:
            try:
                return asked(port, folder, FLEET[0], shown=shown)
            except ssl.SSLCertVerificationError:
                return "not believed"

    serial = (mine / "server.crt").read_bytes()
    assert status(first, old) == 200
    make_server(mine, ["127.0.0.1"], renew=True, secret=word)
    assert (mine / "server.crt").read_bytes() != serial
    assert serial in [path.read_bytes() for path in (mine / "old").glob("server-*.crt")]
    assert status(first, old) == 200

    certificates.new_authority(mine, word)
    assert status(first, old) == 200  # the server still has the old CA's certificate
    (second := tmp_path / "second").mkdir()
    (second / "ca.crt").write_bytes((mine / "ca.crt").read_bytes())
    new = (
        sign_request(mine, make_request(second, "silo-0"), secret=word),
        second / ("silo-0.client.key"),
    )
    assert status(second, old) == status(second, new) == 200
    with pytest.raises(FednagError, match="the CA that is to go has signed it"):
        certificates.retire_authority(mine)
    make_server(mine, ["127.0.0.1"], renew=True, secret=word)
    assert status(second, old) == status(second, new) == 200
    assert status(first, old) == "not believed"  # which is why ca.crt goes to the silos first
    assert certificates.retire_authority(mine) == 1
    assert (status(second, old), status(second, new)) == (400, 200)


def test_caddy_lets_in_the_same(secrets: Path, behind: str, tmp_path: Path) -> None:
    if (caddy := shutil.which("caddy")) is None:
        pytest.skip("caddy is not installed")
    known = client(tmp_path / "silo", "silo-0", secrets)
    gate = Gateway("localhost", free(), behind, secrets, megabytes=6, clients=True)
    path = gate.write_caddyfile(tmp_path / "gate")
    command = [caddy, "run", "--config", str(path), "--adapter", "caddyfile"]
    with serving(command, int(gate.listen.rpartition(":")[2])) as port:

        def status(path: str, how: str = "POST", shown: tuple[Path, Path] | None = known) -> int:
            try:
                return asked(port, secrets, path, how=how, shown=shown, host="localhost")
            except ssl.SSLError:  # with TLS 1.3, when the answer is read
                return 0

        Behind.seen.clear()
        assert status(FLEET[0], shown=None) == 0
        assert [status(path) for path in FLEET] == [200] * len(FLEET)
        for other in ("/v1/control/start-run", "/v1/fleet/register-node", "/v1/fleet/../control/x"):
            assert status(other) == 403
        assert status(FLEET[0], how="GET") == 403
        assert Behind.seen == FLEET
        # By an address there is no name to choose the policy by; then nothing passes.
        assert asked(port, secrets, FLEET[0]) == 421
