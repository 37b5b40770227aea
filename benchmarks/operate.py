"""What an operator does while silos train, done to real processes: for docs/operations.md.

    python benchmarks/operate.py

A SuperLink on loopback, nginx before it with mutual TLS, three silos each behind a proxy of its
own, private keys encrypted. In one run of eight rounds: the doctor looks, a silo joins late, the
server's certificate is renewed, a silo leaves for good, the server is killed, its folder is lost
and restored from a backup, and the run goes on; meanwhile /metrics is asked. Then the CA is changed
while two overlap, a silo's key is changed, and a second run shows that all still works.

Linux, nginx, about ten minutes. Every line it prints is something that was seen.
"""

from __future__ import annotations

import http.client
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from submitted import Submitted

from fednag.config import parse
from fednag.flower import certificates, guardian
from fednag.flower.local import Federation, federation
from fednag.flower.processes import free_ports
from fednag.flower.project import run_config
from fednag.flower.silo_log import read
from fednag.runs.folder import RunFolder

WORD = b"only for this trial"
HERE = [sys.executable, "-m", "fednag"]


def told(what: str, saw: str) -> None:
    print(f"| {what} | {saw} |", flush=True)


def fednag(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*HERE, *words], capture_output=True, text=True, check=False)


def tables(out: Path, rounds: int, silos: int, resume: bool = False) -> dict[str, Any]:
    experiment = parse(
        {
            "name": "operate",
            "data": {"name": "digits"},
            "model": {"name": "logistic"},
            "split": {"workers": silos},
            "training": {"tau": 10, "iterations": 10 * rounds, "batch": 32},
            "algorithm": {"name": "fednag", "lr": 0.05},
        }
    )
    own = {"out": str(out), "deadline": 120.0, "quorum": 1, "join": 30.0, "bind": "silo"}
    return run_config(experiment, {**own, "resume": resume})


def start(running: Federation, silo: int) -> None:
    memory = running.processes.folder / f"memory-{silo}"
    running.start_node(silo, {"memory-folder": str(memory)}, program=wrapped(running))


def wrapped(running: Federation) -> list[str]:
    """`fednag flower silo` needs a digest; here every app is made anew, so the keys alone."""
    script = (
        "import sys; from pathlib import Path; from fednag.flower import passphrase as p;"
        "import importlib; c = importlib.import_module('flwr.supernode.cli.flower_supernode');"
        "c.load_ssh_private_key = lambda content, _: p.read_key(Path(sys.argv[sys.argv.index("
        "'--auth-supernode-private-key') + 1])); c.flower_supernode()"
    )
    os.environ[PASSPHRASE] = str(running.processes.folder / "passphrase")
    return [sys.executable, "-c", script]


PASSPHRASE = "FEDNAG_PASSPHRASE_FILE"


def link_of(running: Federation) -> tuple[str, ...]:
    word = str(running.processes.folder / "passphrase")
    return "fednag", "flower", "link", "--passphrase-file", word, "--"


def doctor(running: Federation, what: str, *more: str) -> None:
    folder = running.processes.folder
    done = fednag("flower", "doctor", "--secrets", str(folder), *more)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("wrong", "ok"))]
    wrong = [" ".join(line.split()[1:]) for line in lines if line.startswith("wrong")]
    count = f"{len(lines) - len(wrong)} ok, {len(wrong)} wrong"
    told(what, f"exit code {done.returncode}; {count}{''.join(f'; {w}' for w in wrong[:1])}")


def reload(running: Federation, name: str) -> None:
    """nginx takes its certificates anew; connections that are open go on."""
    running.processes.started[name].send_signal(signal.SIGHUP)


def metrics(port: int) -> dict[str, float]:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    line.request("GET", "/metrics")
    text = line.getresponse().read().decode()
    line.close()
    rows = [row.rpartition(" ") for row in text.splitlines() if not row.startswith("#")]
    return {name: float(value) for name, _, value in rows}


def silos_of(folder: Path) -> dict[int, list[tuple[int, str]]]:
    found: dict[int, list[tuple[int, str]]] = {}
    for line in read(folder / "silos.jsonl"):
        if line["phase"] == "train":
            found.setdefault(line["silo"], []).append((line["round"], line["status"]))
    return found


def rounds_text(rounds: list[tuple[int, str]]) -> str:
    good = [number for number, status in rounds if status == "ok"]
    return ", ".join(map(str, good)) or "none"


def first_run(running: Federation, out: Path, port: int) -> None:
    for silo in range(3):
        running.register(silo)
    for silo in (0, 1):
        start(running, silo)
    doctor(running, "`doctor` on the server", "--host", "127.0.0.1")
    gate = f"127.0.0.1:{running.gate}"
    own = ("--certificate", "silo-0")
    doctor(running, "`doctor` on a silo without its certificate", "--server", gate)
    doctor(running, "`doctor` on a silo", "--server", gate, *own)
    run = Submitted(running, tables(out, 8, 3))
    run.after(1)
    seen = metrics(port)
    here = next(value for name, value in seen.items() if name.startswith("fednag_silos_here"))
    told("`/metrics` while it runs", f"{len(seen)} values; silos here: {here:.0f} of 3")
    start(running, 2)
    run.after(3)
    serial = (running.processes.folder / "server.crt").read_bytes()
    certificates.make_server(running.processes.folder, ["127.0.0.1"], renew=True, secret=WORD)
    reload(running, "gateway")
    changed = (running.processes.folder / "server.crt").read_bytes() != serial
    run.after(5)
    assert run.folder
    known = silos_of(run.folder)
    told("a silo joins after round 1", f"its updates were used in rounds {rounds_text(known[2])}")
    later = all((4, "ok") in rounds or (5, "ok") in rounds for rounds in known.values())
    said = "all silos answered in the rounds after" if later and changed else "NOT all answered"
    told("the server's certificate is renewed after round 3, nginx reloaded", said)
    running.processes.kill("silo-1")
    nodes = {x["silo"]: x["node"] for x in read(run.folder / "silos.jsonl") if x.get("node")}
    running.processes.call(["flwr", "supernode", "unregister", nodes[1], "here"])
    run.after(6)
    lost_and_restored(running, run, out)


def lost_and_restored(running: Federation, run: Submitted, out: Path) -> None:
    """The server is killed; its runs and its database are gone; the backup brings them back."""
    assert run.folder
    processes = running.processes
    backup = processes.folder / "backup.tar.gz"
    processes.kill("superlink")
    run.end()
    rounds = RunFolder(run.folder).records()[-1].round
    with tarfile.open(backup, "w:gz") as archive:
        archive.add(out, "runs")
        archive.add(processes.folder / "superlink.db", "superlink.db")
    size = backup.stat().st_size
    shutil.rmtree(out)
    (processes.folder / "superlink.db").unlink()
    with tarfile.open(backup) as archive:
        archive.extractall(processes.folder / "restored", filter="data")
    shutil.move(processes.folder / "restored" / "runs", out)
    shutil.move(processes.folder / "restored" / "superlink.db", processes.folder)
    running.start_link(link_of(running))
    again = Submitted(running, tables(out, 8, 3, resume=True))
    again.end()
    assert again.folder, again.error
    last = RunFolder(again.folder).records()[-1]
    known = silos_of(again.folder)
    told(
        "a silo is killed and unregistered after round 5",
        f"its updates were used in rounds {rounds_text(known[1])}; the run went on",
    )
    told(
        f"the server is killed after round {rounds}; runs and database are lost, and restored",
        f"backup of {size / 1e3:.0f} kB; the run went on to round {last.round} of 8, "
        f"loss {last.loss:.4f}",
    )
    folder = str(again.folder)
    told_of("show", folder)
    told_of("ledger", "verify", folder)
    told_of("report", folder, "-o", str(out / "report.html"))


def told_of(*words: str) -> None:
    """A command that reads runs, and how it ended."""
    done = fednag(*words)
    name = " ".join(word for word in words[:2] if word.isalpha())
    told(f"`fednag {name}` of it", f"exit code {done.returncode} {done.stderr.strip()}".strip())


def changed_authority(running: Federation, out: Path) -> None:
    """Another CA, one step after the other; then a silo's key; then a run."""
    folder = running.processes.folder
    certificates.new_authority(folder, WORD)  # ca.crt has both: silos and gate believe both
    for name in ("gateway", "proxy-0", "proxy-2"):
        reload(running, name)
    certificates.make_server(folder, ["127.0.0.1"], renew=True, secret=WORD)
    reload(running, "gateway")
    for silo in (0, 2):
        request = certificates.make_request(folder, f"silo-{silo}", renew=True, secret=WORD)
        certificates.sign_request(folder, request, secret=WORD)
        reload(running, f"proxy-{silo}")
    link = running.processes
    link.kill("superlink")  # it takes its certificate when it starts
    certificates.retire_authority(folder)
    running.start_link(link_of(running))
    for name in ("gateway", "proxy-0", "proxy-2"):
        reload(running, name)
    # A silo's key: out with the old one, in with the new one under the same name.
    link.kill("silo-2")
    lines = read(next(out.rglob("silos.jsonl")))
    node = [line["node"] for line in lines if line["silo"] == 2 and line.get("node")][-1]
    link.call(["flwr", "supernode", "unregister", node, "here"])
    for old in folder.glob("silo-2"):
        old.rename(folder / "silo-2.old")
        (folder / "silo-2.pub").rename(folder / "silo-2.old.pub")
    running.register(2)
    time.sleep(2)
    start(running, 2)
    changed = tables(out.with_name("second"), 2, 3)
    changed["flower"]["bind"] = "silo"
    run = Submitted(running, changed)
    run.end()
    assert run.folder, run.error
    known = silos_of(run.folder)
    told(
        "the CA is changed with two overlapping, the old one retired, and silo 2's key changed",
        f"a run of 2 rounds: silo 0 in rounds {rounds_text(known.get(0, []))}, "
        f"silo 2 in rounds {rounds_text(known.get(2, []))}",
    )
    doctor(running, "`doctor` on the server after it", "--host", "127.0.0.1")


def main() -> None:
    os.environ.setdefault("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.05")
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "first"
        out.mkdir()
        (port,) = free_ports(1)
        command = [*HERE, "flower", "status", str(out), "--web", "--port", str(port)]
        status = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            with federation(0, tls=True, mutual=True, secret=WORD) as running:
                print("| what is done | what is seen |\n| --- | --- |", flush=True)
                first_run(running, out, port)
                changed_authority(running, out)
                token = running.processes.token
            left = len(guardian.marked(token))
            told("everything is taken down", f"{left} processes left")
        finally:
            status.terminate()
            status.wait()
    print(f"({time.monotonic() - began:.0f} s)", file=sys.stderr)


if __name__ == "__main__":
    main()
