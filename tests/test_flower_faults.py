"""Silos stopped and killed at every moment of a round, as real processes: a round lasts until its
deadline and no longer, who is late is named, and nobody else is."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from safetensors.torch import load_file

from fednag.config import parse
from fednag.flower.local import Federation, federation
from fednag.flower.project import flat, run_config
from fednag.flower.settings import read_run_config
from fednag.flower.silo_log import read
from fednag.runs.folder import RunFolder
from flower_kit import simulated

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc"),
]

DEADLINE = 25.0
SUPERNODE = """
import os, signal
import flwr.supernode.start_client_internal as program
from fednag.flower.agreed import run_supernode

def stop():
    os.kill(os.getpid(), signal.SIGSTOP)
"""
# When a SuperNode is stopped: it greets, and then evaluates the first model and trains it.
MOMENTS = {
    "with a message half read": """
read = program.pull_objects

def reading(names, **given):
    if len(names) > 3:  # of a model; a greeting has fewer
        stop()
    return read(names, **given)

program.pull_objects = reading
""",
    "before its answer": """
send, calls = program._push_messages, []

def sending(*given, **named):
    calls.append(1)
    if len(calls) == 2:
        stop()
    return send(*given, **named)

program._push_messages = sending
""",
    "within its answer": """
push = program.push_object_contents_from_iterable

def pushed(contents, *given, **named):
    contents = list(contents)
    if sum(len(content) for _, content in contents) > 4000:  # an update, not a greeting
        stop()
    push(contents, *given, **named)

program.push_object_contents_from_iterable = pushed
""",
}
END = """
run_supernode(None, __import__("sys").argv[1:])
"""
# What a silo's operator may have, and so what a trainer runs.
FUNCTIONS = """
import os, signal
from pathlib import Path
import numpy as np
from fednag.flower import handlers


def data(node_config):
    rng = np.random.default_rng(int(node_config["partition-id"]))
    y = np.arange(30) % 3
    return (rng.normal(size=(30, 200)) + y[:, None]).astype("float32"), y


def stops(node_config):
    return hurt(node_config, signal.SIGSTOP)


def dies(node_config):
    return hurt(node_config, signal.SIGKILL)


def hurt(node_config, how):
    trained, once = handlers.Silo.exchange, Path(node_config["once"])

    def exchange(*given):
        if not once.exists():
            once.touch()
            os.kill(os.getpid(), how)
        return trained(*given)

    handlers.Silo.exchange = exchange
    return data(node_config)
"""


def tables_of(out: Path, silos: int, rounds: int, **flower: Any) -> dict[str, Any]:
    experiment = parse(
        {
            "name": "faults",
            "data": {"name": "custom"},
            "model": {"name": "logistic"},
            "split": {"workers": silos},
            "training": {"tau": 3, "iterations": 3 * rounds, "batch": 10},
            "algorithm": {"name": "scaffold", "lr": 0.05},
            "evaluation": {"every": rounds},
        }
    )
    own = {"out": str(out), "shape": "200", "classes": 3, "quorum": 1, "join": 240.0}
    return run_config(experiment, {**own, "deadline": DEADLINE, **flower})


def on_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "functions.py").write_text(FUNCTIONS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), *sys.path]))


def by_silo(path: Path, status: str) -> dict[int, list[int]]:
    """The rounds in which each silo's training was said to be so."""
    found: dict[int, list[int]] = {}
    for line in read(path / "silos.jsonl"):
        if line["status"] == status and line["phase"] == "train":
            found.setdefault(line["silo"], []).append(line["round"])
    return found


def test_silos_stopped_at_any_moment_are_named_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three SuperNodes, and a trainer, which is started anew and so back in the second round; a
    trainer that is killed is missed in no round."""
    on_path(tmp_path, monkeypatch)
    with federation(0) as running:
        data = {"data-function": "functions:data"}
        running.start_node(0, data)
        for silo, moment in enumerate(MOMENTS.values(), 1):
            program = [sys.executable, "-c", SUPERNODE + moment + END]
            running.start_node(silo, data, program=program)
        for silo, how in ((4, "stops"), (5, "dies")):
            once = {"data-function": f"functions:{how}", "once": str(tmp_path / how)}
            running.start_node(silo, once)
        path = running.submit(tables_of(tmp_path, 6, 2), lambda line: None)
    missed, trained = by_silo(path, "missed"), by_silo(path, "ok")
    assert trained == {0: [1, 2], 4: [2], 5: [1, 2]}
    assert missed == {1: [1, 2], 2: [1, 2], 3: [1, 2], 4: [1]}
    records = RunFolder(path).records()
    # Two rounds, and an evaluation of the last model by those who are not stopped.
    assert records[-1].seconds - records[0].seconds < 3 * (DEADLINE + 5)
    why = [line.get("why") for line in read(path / "silos.jsonl") if line["status"] == "missed"]
    assert "its answer had begun to come" in why


def pids_of(running: Federation, silo: int) -> list[int]:
    """Trainers of a silo."""
    from fednag.flower.guardian import marked

    found = []
    for process in marked(running.processes.token, f"silo-{silo}"):
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        if b"fednag.flower.trainer" in words:
            found.append(process)
    return found


def test_a_killed_trainer_and_a_restarted_supernode_leave_no_trace_in_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCAFFOLD, whose silos remember. The trainer of silo 0 is killed while it trains, silo 1 with
    its SuperNode between two runs, of which the second goes on with the first: the simulator's
    bits. A trainer ends with its SuperNode."""
    on_path(tmp_path, monkeypatch)
    experiment = parse(
        {
            "name": "bits",
            "data": {"name": "digits"},
            "model": {"name": "logistic"},
            "split": {"workers": 2},
            "training": {"tau": 3, "iterations": 12, "batch": 16},
            "algorithm": {"name": "scaffold", "lr": 0.05},
        }
    )
    tables = run_config(experiment, {"out": str(tmp_path / "runs"), "join": 240.0})
    memories = [{"memory-folder": str(tmp_path / f"memory-{silo}")} for silo in range(2)]
    killed: list[int] = []
    with federation(2, node_configs=memories) as running:

        def told(line: str) -> None:
            if line.startswith("round 2/"):
                killed.extend(pids_of(running, 0))
                for process in killed:
                    os.kill(process, signal.SIGKILL)
                running.processes.kill("superlink")  # the server loses the run

        with pytest.raises(Exception, match=r"SuperLink ended|broke off"):
            running.submit(tables, told)
        assert len(killed) == 1
        (own,) = pids_of(running, 1)
        supernode = running.processes.started["silo-1"]
        supernode.kill()
        supernode.wait()
        until = time.monotonic() + 30
        while Path(f"/proc/{own}").exists():
            assert time.monotonic() < until, "the trainer outlives its SuperNode"
            time.sleep(0.1)
        running.processes.kill("silo-0")
        running.processes.kill("silo-1")
        running.processes.log("superlink").unlink()
        (running.processes.folder / "superlink.db").unlink()
        running.start_link()
        for silo, memory in enumerate(memories):
            running.start_node(silo, memory)
        tables["flower"]["resume"] = True
        path = running.submit(tables, lambda line: None)
    twin = simulated(read_run_config(flat(tables)), tmp_path / "simulated")
    assert twin.folder
    mine, theirs = (load_file(f / "final.safetensors") for f in (path, twin.folder))
    assert all(torch.equal(mine[name], theirs[name]) for name in theirs)
    assert not [line for line in read(path / "silos.jsonl") if line["status"] != "ok"]
