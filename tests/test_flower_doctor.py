"""``fednag flower doctor``: each thing that can be wrong is found, and named with what to do."""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from fednag import cli
from fednag.flower.certificates import (
    make_authority,
    make_node_key,
    make_request,
    make_server,
    sign_request,
)
from fednag.flower.doctor import OK, WARNING, WRONG, Patient, examine


class Server(BaseHTTPRequestHandler):
    """A gateway, or what a test makes of it."""

    passes, others, ahead = 401, 403, 0.0

    def do_POST(self) -> None:
        status = self.passes if self.path.startswith("/v1/fleet/") else self.others
        self.send_response_only(status)
        import time

        self.send_header("date", formatdate(time.time() + self.ahead, usegmt=True))
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Secrets and data in which nothing is wrong."""
    place = tmp_path_factory.mktemp("made")
    (secrets := place / "secrets").mkdir(mode=0o700)
    make_authority(secrets)
    make_server(secrets, ["fl.example.org"])
    make_node_key(secrets / "silo-0")
    sign_request(secrets, make_request(secrets, "silo-0"))
    (data := place / "data").mkdir(mode=0o700)
    np.save(data / "x.npy", np.zeros((20, 1, 4, 4), np.float32))
    np.save(data / "y.npy", np.arange(20) % 5)
    return place


@pytest.fixture
def home(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture(scope="module")
def server(made: Path) -> Iterator[int]:
    listening = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "secrets" / "server.crt", made / "secrets" / "server.key")
    listening.socket = context.wrap_socket(listening.socket, server_side=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield listening.server_port
    listening.shutdown()
    listening.server_close()


def found(patient: Patient) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.status, finding.said) for finding in examine(patient)}


def patient_of(home: Path, server: int = 0, **more: Any) -> Patient:
    more = {"data": home / "data", "shape": (1, 4, 4), "classes": 5, **more}
    address = f"localhost:{server}" if server else ""
    return Patient(secrets=home / "secrets", host="fl.example.org", server=address, **more)


def test_a_sound_silo_has_nothing_wrong(home: Path, server: int) -> None:
    seen = found(patient_of(home, server, certificate="silo-0"))
    assert [name for name, (status, _) in seen.items() if status == WRONG] == []
    assert {"versions", "server", "clock", "fence", "server.crt", "silo-0"} <= set(seen)
    assert seen["data"] == (OK, "20 samples of 1x4x4, 5 classes, 0 test samples")


def test_what_is_wrong_with_a_server_is_told(
    home: Path, server: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    silo = patient_of(home, server)
    for ahead, status in ((-30.0, WARNING), (400.0, WRONG), (0.0, OK)):
        monkeypatch.setattr(Server, "ahead", ahead)
        assert found(silo)["clock"][0] == status
    monkeypatch.setattr(Server, "others", 200)
    assert found(silo)["fence"][0] == WARNING  # by loopback; WRONG from elsewhere
    monkeypatch.setattr(Server, "passes", 502)
    assert "the SuperLink behind it does not" in found(silo)["server"][1]
    shutil.rmtree(home / "secrets")
    (home / "secrets").mkdir(mode=0o700)
    make_authority(home / "secrets")
    status, said = found(silo)["server"]
    assert (status, "is not who it should be" in said) == (WRONG, True)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        status, said = found(patient_of(home, nobody.getsockname()[1]))["server"]
        assert (status, "does not answer" in said) == (WRONG, True)


def test_what_is_wrong_with_certificates_and_keys_is_told(home: Path) -> None:
    secrets = home / "secrets"
    seen = found(Patient(secrets=secrets, host="other.example.org"))
    assert seen["server.crt"][1].startswith("holds for fl.example.org, ")
    make_server(secrets, ["fl.example.org"], days=20, renew=True)
    assert found(patient_of(home))["server.crt"][0] == WARNING
    make_server(secrets, ["fl.example.org"], days=0, renew=True)
    assert "ended on" in found(patient_of(home))["server.crt"][1]
    (other := home / "other").mkdir()
    make_authority(other)
    make_server(other, ["fl.example.org"])
    shutil.copy(other / "server.crt", secrets)
    assert "no CA in ca.crt has signed it" in found(patient_of(home))["server.crt"][1]
    shutil.copy(other / "ca.crt", secrets)
    assert "its key is another one's" in found(patient_of(home))["server.crt"][1]
    (secrets / "silo-0").chmod(0o644)
    assert "chmod 600" in found(patient_of(home))["silo-0"][1]
    secrets.chmod(0o755)
    assert found(patient_of(home))["keys"][0] == WRONG
    (secrets / "server.key").write_text("no key")
    assert found(patient_of(home))["server.key"] == (
        WRONG,
        f"{secrets / 'server.key'}: is no private key; make a new one",
    )
    missing = found(Patient(secrets=secrets, certificate="silo-9"))["client certificate"]
    assert (missing[0], "have the server sign" in missing[1]) == (WRONG, True)
    make_node_key(secrets / "locked", b"word")
    assert "is encrypted" in found(patient_of(home))["locked"][1]


def test_what_is_wrong_with_data_and_folders_is_told(home: Path) -> None:
    data, said = home / "data", {}
    said["shape"] = found(patient_of(home, shape=(1, 8, 8)))["data"]
    said["classes"] = found(patient_of(home, classes=4))["data"]
    data.chmod(0o755)
    said["mode"] = found(patient_of(home))["data"]
    data.chmod(0o700)
    x = np.load(data / "x.npy")
    x[3] = np.nan
    np.save(data / "x.npy", x)
    said["nan"] = found(patient_of(home))["data"]
    np.save(data / "x.npy", x[:7])
    said["length"] = found(patient_of(home))["data"]
    (data / "x.npy").unlink()
    said["missing"] = found(patient_of(home))["data"]
    said["memory"] = found(patient_of(home, memory=home / "none"))["memory folder"]
    said["app"] = found(patient_of(home, app=home))["app"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said["port"] = found(patient_of(home, ports=(taken.getsockname()[1],)))["port"]
    assert {status for status, _ in said.values()} == {WRONG}
    words = {
        "shape": "declares 1x8x8",
        "classes": "not 0 to 3",
        "mode": "chmod o=",
        "nan": "finite",
    }
    words |= {"length": "7 samples, 20 targets", "missing": "is missing"}
    words |= {"memory": "mode 700"}
    words |= {"app": "is no Flower app", "port": "cannot be listened on"}
    assert {name for name, word in words.items() if word not in said[name][1]} == set()


def test_the_command_exits_with_2_and_says_so_to_programs(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for mode, code in ((0o600, 0), (0o640, 2)):
        (home / "secrets" / "silo-0").chmod(mode)
        command = f"fednag flower doctor --secrets {home}/secrets --json"
        monkeypatch.setattr(sys, "argv", command.split())
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        assert stopped.value.code == code
        told = json.loads(capsys.readouterr().out)
        assert told["wrong"] == bool(code)
        named = [each["check"] for each in told["findings"] if each["status"] == WRONG]
        assert named == ["silo-0"] * bool(code)


def test_secrets_that_are_not_there_are_named(tmp_path: Path) -> None:
    found = {one.check: one for one in examine(Patient(secrets=tmp_path / "none"))}
    assert found["secrets"].status == WRONG
    assert "fednag flower keys" in found["secrets"].said
