"""nginx in front of a SuperLink: what a silo asks for passes, and nothing else."""

from __future__ import annotations

import http.client
import inspect
import re
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.superlink.main import create_app
from flwr.supernode.fleet_http_client import FleetHttpClient

from fednag import FednagError
from fednag.flower.certificates import make_authority, make_server
from fednag.flower.gateway import PATHS, Gateway, program
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
def outside(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The outer port of a gateway before a server that would answer everything."""
    nginx = program()
    if nginx is None:
        pytest.skip("nginx is not installed")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Behind)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(secrets / "server.crt", secrets / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (port,) = free_ports(1)
    folder = tmp_path_factory.mktemp("gate")
    inner = f"127.0.0.1:{server.server_port}"
    gate = Gateway("127.0.0.1", f"127.0.0.1:{port}", inner, secrets, rate=30, megabytes=6)
    path = gate.write(folder)
    command = [nginx, "-p", str(folder), "-c", str(path), "-g", "daemon off;"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                break
        time.sleep(0.02)
    yield port
    process.terminate()
    process.wait(10)
    server.shutdown()
    server.server_close()


def asked(port: int, secrets: Path, path: str, body: bytes = b"", how: str = "POST") -> int:
    """The answer's status, over TLS that the authority's certificate verifies."""
    context = ssl.create_default_context(cafile=str(secrets / "ca.crt"))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
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
        if answer.status == 429:
            break
    connection.close()
    assert found == {200, 429}


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
