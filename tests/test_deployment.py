"""Real processes: SuperLink and SuperNodes over HTTPS, and that nothing of them is left."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from http.client import HTTPSConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from safetensors.torch import load_file

from fednag import FednagError, cli
from fednag.config import parse
from fednag.flower.agreed import digest_of
from fednag.flower.certificates import make_authority, make_node_key, make_server
from fednag.flower.gateway import PATHS, program
from fednag.flower.local import Federation, federation
from fednag.flower.processes import Processes, free_ports
from fednag.flower.project import flat, run_config, write_app
from fednag.flower.settings import read_run_config
from fednag.flower.signing import is_signed, make_key
from fednag.flower.silo_log import read
from fednag.privacy.accounting import Mechanism
from fednag.runs.audit import audit
from fednag.runs.folder import RunFolder
from fednag.runs.ledger import verify
from fednag.transforms import TRANSFORMS
from flower_kit import simulated

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")


PARTS = {
    "uplink": [
        {"kind": "error-feedback"},
        {"kind": "topk", "share": 0.2},
        {"kind": "quantise", "levels": 7, "bucket": 64},
        {"kind": "entropy"},
    ],
    "downlink": [{"kind": "bfloat16"}],
    "aggregator": {"kind": "equal"},
    "schedule": [{"kind": "cosine", "field": "algorithm.lr"}],
}


# Uplinks that have, with the one above, every transform; two at a time, on FedNAG's two vectors.
UPLINKS: list[list[dict[str, Any]]] = [
    [
        {"kind": "clip", "norm": 0.1},
        {"kind": "drive", "vectors": ["w"]},
        {"kind": "eden", "vectors": ["v"], "bits": 3},
    ],
    [
        {"kind": "sign", "vectors": ["w"]},
        {"kind": "randk", "vectors": ["v"], "share": 0.1},
        {"kind": "bfloat16"},
    ],
    [
        {"kind": "every", "vectors": ["v"], "rounds": 2},
        {"kind": "lowrank", "vectors": ["w"], "rank": 1},
        {"kind": "float16"},
    ],
]


def tables_of(
    out: Path,
    method: str,
    silos: int,
    parts: dict[str, Any] = PARTS,
    tau: int = 5,
    **flower: Any,
) -> dict[str, Any]:
    experiment = parse(
        {
            **parts,
            "name": method,
            "data": {"name": "digits"},
            "model": {"name": "logistic"},
            "split": {"kind": "sizes", "skew": 0.7, "workers": silos},
            "training": {"tau": tau, "iterations": 10, "batch": 32},
            "algorithm": {"name": method, "lr": 0.05},
        }
    )
    return run_config(experiment, {"out": str(out), "deadline": 120.0, **flower})


def assert_equals_the_simulator(folder: Path, tables: dict[str, Any], out: Path) -> None:
    twin = simulated(read_run_config(flat(tables)), out)
    assert twin.folder
    mine, theirs = (load_file(f / "final.safetensors") for f in (folder, twin.folder))
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < 1e-6
    records = RunFolder(folder).records()
    assert [(r.bytes_down, r.bytes_up) for r in records] == [
        (r.bytes_down, r.bytes_up) for r in twin.records
    ]


def test_tls_and_keys_let_in_whom_they_should(tmp_path: Path) -> None:
    """Two silos with registered keys train; without a key, or without the CA, one gets nothing.

    SCAFFOLD, so that what silos keep between rounds is part of it, and other parts than the usual.
    Silo 1 comes by the gateway, where nginx is installed.
    """
    memories = [{"memory-folder": str(tmp_path / f"memory-{silo}")} for silo in range(2)]
    for silo, config in enumerate(memories):
        config["ledger-key"] = str(tmp_path / f"ledger-{silo}.key")
        make_key(Path(config["ledger-key"]))
    with federation(0, tls=True) as running:
        for silo, node in enumerate(memories):
            running.register(silo)
            running.start_node(silo, node, superlink=None if silo else running.port)
        _start_strangers(running, tmp_path)
        said: list[str] = []
        tables = tables_of(tmp_path, "scaffold", 2, bind="silo")
        path = running.submit(tables, said.append)
        trained = {line["node"] for line in read(path / "silos.jsonl")}
        assert len(trained) == 2
        _assert_strangers_got_nothing(running, trained)
        _assert_only_tls(running)
    here = [line for line in said if "is here" in line]
    assert len(here) == 2, said
    assert not [line for line in said if "turned away" in line or "did not" in line], said
    assert_equals_the_simulator(path, tables, tmp_path / "simulated")
    found = verify(RunFolder(path), is_signed)
    assert (found.fault, found.signed) == (None, 4)
    assert audit(RunFolder(path)).difference is None


@pytest.mark.slow
@pytest.mark.skipif(program() is None, reason="nginx is not installed")
def test_behind_the_fence_silos_train_and_nobody_else_gets_anything(tmp_path: Path) -> None:
    """Mutual TLS, keys that are encrypted, an app that was agreed to, logs of JSON: all at once,
    on real processes. From the outer port no path of the real SuperLink can be reached but those of
    silos, and those by nobody without a certificate."""
    word = b"correct horse battery staple"
    tables = tables_of(tmp_path / "runs", "fednag", 2, {}, tau=10, bind="silo")
    write_app(tmp_path / "app", tables)
    agreed = ["fednag", "flower", "silo", "--json-logs", "--agreed", digest_of(tmp_path / "app")]
    with federation(0, tls=True, mutual=True, secret=word) as running:
        folder = running.processes.folder
        assert b"ENCRYPTED" in (folder / "server.key").read_bytes().splitlines()[0]
        command = [*agreed, "--passphrase-file", str(folder / "passphrase"), "--"]
        for silo in range(2):
            running.register(silo)
            running.start_node(silo, {"partition-id": silo}, program=command)
        running.register(7)  # a registered key, and no certificate: straight to the gate
        opened = [*agreed, "--passphrase-file", str(folder / "passphrase"), "--"]
        running.start_node(7, {"partition-id": 1}, superlink=running.gate, program=opened)
        path = running.run(tmp_path / "app", lambda line: None)
        answers = {path: _outer(running, path) for path in _paths(running)}
        shown = folder / "silo-0.client.crt", folder / "silo-0.client.key"
        inside = {path: _outer(running, path, shown, word) for path in _paths(running)}
        logs = {n: running.processes.log(f"silo-{n}").read_text() for n in (0, 7)}
    assert {line["status"] for line in read(path / "silos.jsonl")} == {"ok"}
    assert {line["silo"] for line in read(path / "silos.jsonl")} == {0, 1}
    assert set(answers.values()) == {400}
    fleet = {f"/v1/fleet/{name}" for name in PATHS}
    assert {path for path, status in inside.items() if status != 403} == fleet
    assert any("/v1/control/" in path for path in inside)
    said = [json.loads(line) for line in logs[0].splitlines() if line.startswith("{")]
    assert any("Receiving:" in line["said"] for line in said), logs[0]
    assert "Receiving:" not in logs[7]


def _paths(running: Federation) -> set[str]:
    """All that a SuperLink answers."""
    from flwr.superlink.main import create_app

    def below(router: Any) -> Iterator[str]:
        for route in router.routes:
            if inner := getattr(route, "original_router", None):
                yield from below(inner)
            else:
                yield str(route.path).replace("{", "").replace("}", "")

    return set(below(create_app()))


def _outer(
    running: Federation, path: str, shown: tuple[Path, Path] | None = None, word: bytes = b""
) -> int:
    """What the gateway answers."""
    context = ssl.create_default_context(cafile=str(running.processes.folder / "ca.crt"))
    if shown:
        context.load_cert_chain(*shown, password=word)
    connection = HTTPSConnection("127.0.0.1", running.gate, timeout=20, context=context)
    try:
        connection.request("POST", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.fixture(scope="module")
def two_silos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Two silos that remember, for several runs."""
    place = tmp_path_factory.mktemp("silos")
    memories = [{"memory-folder": str(place / f"memory-{silo}")} for silo in range(2)]
    with federation(2, node_configs=memories) as running:
        yield running


@pytest.mark.slow
def test_every_transform_travels_between_real_processes(
    two_silos: Federation, tmp_path: Path
) -> None:
    """One federation, a run an uplink: numbers and bytes are those of the simulator."""
    kinds = {part["kind"] for uplink in (*UPLINKS, PARTS["uplink"]) for part in uplink}
    assert {kind for kind, part in TRANSFORMS.items() if part.compresses} <= kinds
    for place, uplink in enumerate(UPLINKS):
        tau = 5 if uplink[0]["kind"] == "every" else 10  # it needs a second round
        out = tmp_path / str(place)
        tables = tables_of(out, "fednag", 2, {"uplink": uplink}, tau)
        path = two_silos.submit(tables, lambda line: None)
        assert_equals_the_simulator(path, tables, out / "simulated")


@pytest.mark.slow
def test_noise_of_real_silos_is_there_and_counted(two_silos: Federation, tmp_path: Path) -> None:
    """Clip and noise at the silos: epsilon is the simulator's, the noise is as long as it says,
    and it is not the simulator's, which whoever knows the seed can draw again.

    The mean of two silos moves a weight by noise of deviation sigma / sqrt 2, on both sides, so
    that the models differ by sigma. At this lr, updates without the clip would be far longer, and
    so would noise that is the same for both silos.
    """
    sigma, norm = 2.0, 0.5
    uplink = [{"kind": "clip", "norm": norm}, {"kind": "noise", "sigma": sigma}]
    parts = {"uplink": uplink, "aggregator": {"kind": "equal"}, "privacy": {"delta": 1e-5}}
    tables = tables_of(tmp_path, "fedavg", 2, parts, tau=10)
    tables["algorithm"]["lr"] = 20.0
    path = two_silos.submit(tables, lambda line: None)
    twin = simulated(read_run_config(flat(tables)), tmp_path / "simulated")
    assert twin.folder
    counted = [record.epsilon for record in RunFolder(path).records()]
    assert counted == [record.epsilon for record in twin.records]
    assert counted == [Mechanism(sigma / norm).epsilon(number, 1e-5) for number in range(2)]
    mine, theirs = (load_file(f / "final.safetensors") for f in (path, twin.folder))
    gaps = torch.cat([(mine[name] - theirs[name]).reshape(-1) for name in mine])
    assert float(gaps.std()) == pytest.approx(sigma, rel=0.15)


@pytest.mark.slow
def test_real_silos_add_up_under_masks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four steps a round between real processes, by silos that know each other: the simulator's
    bits, and its bytes but for signatures."""
    monkeypatch.setenv("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.05")
    keys = [tmp_path / f"silo-{silo}" for silo in range(3)]
    for key in keys:
        make_key(key)
    nodes = [{"known-keys": str(tmp_path), "ledger-key": str(key)} for key in keys]
    raw = {"data": {"name": "digits"}, "model": {"name": "logistic"}, "split": {"workers": 3}}
    raw |= {"training": {"tau": 5, "iterations": 5, "batch": 32}, "name": "sums"}
    experiment = parse({**raw, "aggregator": {"kind": "secure", "bits": 40}})
    tables = run_config(experiment, {"out": str(tmp_path / "runs"), "deadline": 120.0})
    said: list[str] = []
    with federation(3, node_configs=nodes) as running:
        running.submit(tables, said.append)
        (path,) = [Path(line.split()[1]) for line in said if line.startswith("writing ")]
        logs = [running.processes.log(f"silo-{n}").read_text() for n in range(3)]
    twin = simulated(read_run_config(flat(tables)), tmp_path / "simulated")
    assert twin.folder
    mine, theirs = (load_file(f / "final.safetensors") for f in (path, twin.folder))
    assert all(bool((mine[name] == theirs[name]).all()) for name in theirs)
    last, other = RunFolder(path).records()[-1], twin.records[-1]
    signatures = 3 * 64, 3 * 3 * 64  # which the simulator does not count
    assert last.bytes_up - other.bytes_up == signatures[0]
    assert last.bytes_down - other.bytes_down == signatures[1]
    assert all("Traceback" not in log for log in logs), logs


@pytest.mark.slow
def test_a_silo_runs_the_app_it_agreed_to_and_no_other(tmp_path: Path) -> None:
    """With one byte changed, which is what holds a line back, it is refused, and the server writes
    down why."""
    tables = tables_of(tmp_path, "fednag", 1, {"evaluation": {"every": 1}}, tau=10, join=20.0)
    app, other, mark = tmp_path / "app", tmp_path / "other" / "app", tmp_path / "it-ran"
    write_app(app, tables)
    source = Path("fednag_app") / "client_app.py"
    with (app / source).open("a") as file:
        file.write(f"#open({str(mark)!r}, 'w').close()\n")
    shutil.copytree(app, other)
    (other / source).write_text((app / source).read_text().replace("#", "\n"))
    with federation(0) as running:
        running.start_node(
            0, program=["fednag", "flower", "silo", "--agreed", digest_of(app), "--"]
        )
        with pytest.raises(FednagError, match="0 of 1 silos came") as stopped:
            running.run(other, lambda line: None)
        assert f"the app {digest_of(other)} is not one that" in str(stopped.value)
        assert running.run(app, lambda line: None, "flower.join=120.0").is_dir()
        log = running.processes.log("silo-0").read_text()
    assert f"is refused: the app {digest_of(other)}" in log
    assert not mark.exists()
    away = [line for path in tmp_path.rglob("silos.jsonl") for line in read(path)]
    assert [line["status"] for line in away if line["phase"] == "hello"] == ["turned away"]


STOPPING = """
import os, signal, sys
import flwr.supernode.start_client_internal as program
from flwr.supernode.cli.flower_supernode import flower_supernode

push = program.push_object_contents_from_iterable

def pushed(contents, *given, **named):
    contents = list(contents)
    if sum(len(content) for _, content in contents) > 4000:  # an update, not a greeting
        os.kill(os.getpid(), signal.SIGSTOP)
    push(contents, *given, **named)

program.push_object_contents_from_iterable = pushed
flower_supernode()
"""


@pytest.mark.slow
def test_a_silo_that_is_stopped_in_its_answer_is_named_at_the_deadline(tmp_path: Path) -> None:
    """SIGSTOP between the header of an update and its objects: the round ends without it."""
    tables = tables_of(tmp_path, "fednag", 2, {}, tau=10, join=60.0)
    tables["flower"] |= {"deadline": 15.0, "quorum": 1}
    with federation(0) as running:
        running.start_node(0)
        running.start_node(1, program=[sys.executable, "-c", STOPPING])
        began = time.monotonic()
        path = running.submit(tables, lambda line: None)
        assert time.monotonic() - began < 120
    records = RunFolder(path).records()
    assert records[-1].missed == (1,)
    assert 15 <= records[-1].seconds - records[0].seconds < 30
    (missed,) = [line for line in read(path / "silos.jsonl") if line["status"] == "missed"]
    assert (missed["silo"], missed["why"]) == (1, "its answer had begun to come")


def _start_strangers(running: Federation, place: Path) -> None:
    """One has a key that nobody registered; one a registered key and another CA; one no key."""
    unregistered = place / "unregistered"
    make_node_key(unregistered)
    running.start_node(7, {"partition-id": 0}, key=unregistered)
    other = place / "other"
    other.mkdir()
    make_authority(other)
    running.register(8)
    running.start_node(8, {"partition-id": 1}, authority=other / "ca.crt")
    ca, address = running.processes.folder / "ca.crt", f"127.0.0.1:{running.port}"
    (port,) = free_ports(1)
    command = ["flower-supernode", "--superlink", address, "--root-certificates", str(ca)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--node-config", "partition-id=0"]
    running.processes.start("silo-9", command)


def _assert_strangers_got_nothing(running: Federation, trained: set[str]) -> None:
    """Those online are those that trained; the strangers' logs say why they are not."""
    listed = running.processes.call(["flwr", "supernode", "ls", "here", "--format", "json"])
    nodes = json.loads(listed[listed.index("{") :])["nodes"]
    online = {str(node["node-id"]) for node in nodes if node["status"] == "online"}
    assert online == trained, nodes
    logs = {n: running.processes.log(f"silo-{n}").read_text() for n in (0, 1, 7, 8, 9)}
    assert {n for n, log in logs.items() if "Receiving:" in log} == {0, 1}, logs
    assert "Failed to activate SuperNode" in logs[7], logs[7]
    assert "certificate verify failed" in logs[8], logs[8]


def _assert_only_tls(running: Federation) -> None:
    with socket.create_connection(("127.0.0.1", running.port), 10) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert not plain.recv(100).startswith(b"HTTP")
    context = ssl.create_default_context()
    with (
        socket.create_connection(("127.0.0.1", running.port), 10) as raw,
        pytest.raises(ssl.SSLCertVerificationError),
    ):
        context.wrap_socket(raw, server_hostname="127.0.0.1")


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_flowers_own_simulation_runs_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"fednag flower up --simulation --silos 2 --out {tmp_path} --set rounds=1"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--set", "algorithm.name=mime"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    captured = capsys.readouterr()
    assert stopped.value.code == 0, captured.err
    assert "finished; wrote" in captured.out
    (info,) = tmp_path.rglob("run.json")
    about = json.loads(info.read_text())
    assert (about["status"], about["runner"]) == ("finished", "flower")


@pytest.mark.slow
def test_a_silo_of_nonsense_is_refused_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Silo 2 has numbers a million times as large: its updates are finite, and far too long."""
    draws = np.random.default_rng(0)
    for silo in range(3):
        folder = tmp_path / f"site-{silo}"
        folder.mkdir()
        y = np.arange(30) % 3
        x = (draws.normal(size=(30, 4)) + y[:, None]).astype("float32")
        np.save(folder / "x.npy", x * (1e6 if silo == 2 else 1.0))
        np.save(folder / "y.npy", y)
    command = f"fednag flower up --silos 3 --data {tmp_path}/site-{{silo}} --out {tmp_path}/runs"
    shape, model = "flower.shape='4'", "model.name=logistic"
    for change in ("data.name=silos", shape, "flower.classes=3", model):
        command += f" --set {change}"
    monkeypatch.setattr(sys, "argv", [*command.split(), "--set", "rounds=1"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 0, capsys.readouterr().err
    (path,) = (tmp_path / "runs").rglob("silos.jsonl")
    refused = [line for line in read(path) if line["status"] == "refused"]
    assert [(line["round"], line["silo"]) for line in refused] == [(1, 2)]
    assert all("flower.norm-bound is 10" in line["why"] for line in refused)
    assert RunFolder(path.parent).records()[-1].refused == (2,)


FAMILY = """
import subprocess, sys, time
from fednag.flower.processes import Processes, free_ports
child = "import signal, subprocess, sys, time; " \\
    "deaf = lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN); " \\
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], " \\
    "start_new_session=True, preexec_fn=deaf); time.sleep(600)"
with Processes() as processes:
    processes.start("one", ["python", "-c", child])
    processes.start("two", ["python", "-c", child])
    print(processes.token, processes.folder, flush=True)
    sys.stdin.readline()
    {end}
"""


@pytest.mark.parametrize("end", ["kill", "terminate", "raise SystemExit(3)", "1 / 0", "pass"])
def test_nothing_is_left_however_it_ends(end: str) -> None:
    """Children, and children of theirs in other sessions that do not listen, and the folder with
    the keys."""
    from fednag.flower.guardian import marked

    script = FAMILY.format(end=end if end not in ("kill", "terminate") else "time.sleep(600)")
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout
    assert process.stdin
    token, folder = process.stdout.readline().split()
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    _until(lambda: len(marked(token)) == 4)
    if end in ("kill", "terminate"):
        process.send_signal(signal.SIGKILL if end == "kill" else signal.SIGTERM)
    else:
        process.stdin.write("\n")
        process.stdin.flush()
    process.wait(60)
    _until(lambda: not marked(token) and not Path(folder).exists())
    process.stdin.close()
    process.stdout.close()


def _until(reached: Any) -> None:
    for _ in range(600):
        if reached():
            return
        time.sleep(0.1)
    raise AssertionError("it never came to that")


def test_a_program_that_fails_is_a_sentence() -> None:
    with Processes() as processes:
        with pytest.raises(FednagError, match=r"`python -c raise SystemExit\('no'\)` failed: no"):
            processes.call(["python", "-c", "raise SystemExit('no')"])
        with pytest.raises(FednagError, match="is not installed"):
            processes.call(["flower-superduperlink"])
        processes.start("x", ["python", "-c", "raise SystemExit('not today')"])
        with pytest.raises(FednagError, match="x ended at once: not today"):
            processes.wait_for_port("x", 1)
        assert processes.environment["FLWR_TELEMETRY_ENABLED"] == "0"
        assert processes.environment["FLWR_HOME"].startswith(str(processes.folder))


def test_a_servers_certificate_holds_for_its_name_and_on_loopback(tmp_path: Path) -> None:
    """The SuperLink's own processes reach it on loopback, whatever silos call it."""
    from cryptography import x509

    make_authority(tmp_path)
    make_server(tmp_path, ["fl.example.org", "10.0.0.1", "127.0.0.1"])
    certificate = x509.load_pem_x509_certificate((tmp_path / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == [
        "fl.example.org",
        "10.0.0.1",
        "127.0.0.1",
        "localhost",
        "::1",
    ]


def test_private_keys_are_private_and_never_overwritten(tmp_path: Path) -> None:
    make_authority(tmp_path)
    make_server(tmp_path, ["127.0.0.1", "fl.example.org"])
    make_node_key(tmp_path / "silo-0")
    for name in ("ca.key", "server.key", "silo-0"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
    before = (tmp_path / "silo-0").read_bytes()
    with pytest.raises(FednagError, match="is there already"):
        make_node_key(tmp_path / "silo-0")
    assert (tmp_path / "silo-0").read_bytes() == before
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    assert context.cert_store_stats()["x509_ca"] == 1


QUORUM = FednagError("round 2", "1 of 3 silos answered", "bring them back", source="a")
ENDS: dict[str, tuple[list[dict[str, Any]], int, str]] = {
    "finished": ([{"said": "round 1"}, {"finished": "runs/a"}], 0, ""),
    "stopped": ([{"said": "round 1"}, {"stopped": QUORUM.to_dict()}], 0, str(QUORUM)),
    "broke off": ([{"said": "round 1"}], 0, "the run broke off: it left this"),
    "failed": ([{"said": "round 1"}, {"finished": "runs/a"}], 3, "the run broke off: it left this"),
    "silent": ([], 0, "the run was not started: it left this"),
    "no link": ([], -1, "the SuperLink ended: "),
}


@pytest.mark.parametrize("end", ENDS)
def test_what_a_run_notes_is_how_it_ended(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever Flower prints: facts come by the journal, and exit codes count."""
    events, code, sentence = ENDS[end]
    program = tmp_path / "program"
    program.write_text(
        f"#!{sys.executable}\nimport os, sys, time\n"
        "if sys.argv[1] != 'run' or sys.argv[-1] == '-1': time.sleep(60)\n"
        "print('it left this')\n"
        f"for line in {[json.dumps(event) for event in events]!r}:\n"
        "    with open(os.environ['FEDNAG_JOURNAL'], 'a') as file:\n"
        "        file.write(line[:9]); file.flush(); file.write(line[9:] + '\\n')\n"
        f"if {code} < 0: time.sleep(60)\n"
        f"sys.exit({max(code, 0)})\n"
    )
    program.chmod(0o755)
    monkeypatch.setattr(Processes, "_program", staticmethod(lambda name: str(program)))
    with Processes() as processes:
        link = processes.start("superlink", ["flower-superlink", "link"])
        if code < 0:
            link.kill()
        running, said = Federation(processes, 0), list[str]()
        if not sentence:
            assert running.submit(tables_of(tmp_path, "fednag", 1), said.append) == Path("runs/a")
        else:
            with pytest.raises(FednagError) as caught:
                running.submit(tables_of(tmp_path, "fednag", 1), said.append)
            assert str(caught.value).startswith(sentence)
            assert end != "stopped" or caught.value.to_dict() == QUORUM.to_dict()
        assert said == [event["said"] for event in events if "said" in event]
