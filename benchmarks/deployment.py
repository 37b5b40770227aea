"""Silos on real processes: parity with the simulator, and what faults do.

    python benchmarks/deployment.py parity     every method, 3 silos over HTTP, beside the simulator
    python benchmarks/deployment.py faults     silos and server killed, hung, cut off, lying
    python benchmarks/deployment.py rounds     seconds a round, beside plain Flower's

Prints a table in Markdown; the figures in docs/deployment.md are such tables. Each takes a quarter
of an hour, more on a busy machine: waits are generous, and only a silo that is held or cut off
lasts until the deadline.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from fednag.algorithms import ALGORITHMS
from fednag.api import run_all
from fednag.config import parse
from fednag.flower.local import Federation, federation
from fednag.flower.project import flat, run_config
from fednag.flower.settings import read_run_config
from fednag.flower.silo_log import read
from fednag.runs.folder import RunFolder

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from hostile import CLASSES, SHAPE  # noqa: E402
from proxy import Proxy  # noqa: E402
from submitted import Submitted, model_of, say  # noqa: E402

NOTHING = "nothing"
SHORT = 4  # rounds
LONG = 8  # rounds, where a silo needs minutes to come back
JOIN = 600.0  # seconds silos may take to come
FEDERATED = [name for name, cls in ALGORITHMS.items() if not cls.pooled]


def parity(methods: list[str], tls: bool) -> None:
    print("| method | largest difference | bytes down, up | as declared | seconds a round |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as place, federation(3, tls) as running:
        for name in methods:
            tables = run_config(
                parse(
                    {
                        "name": name,
                        "data": {"name": "digits"},
                        "model": {"name": "logistic"},
                        "split": {"kind": "sizes", "skew": 0.7, "workers": 3},
                        "training": {"tau": 5, "iterations": 10, "batch": 32},
                        "algorithm": {"name": name, "lr": 0.05},
                    }
                ),
                {"out": place, "bind": "silo" if tls else "", "join": JOIN, "deadline": JOIN},
            )
            run = Submitted(running, tables)
            run.end()
            if run.error or run.folder is None:
                raise SystemExit(f"{name}: {run.error}")
            records = RunFolder(run.folder).records()
            experiment = read_run_config(flat(tables)).experiment
            (twin,) = run_all([(name, experiment, None)], out=Path(place) / "simulated")
            assert twin.folder is not None
            gap = float((model_of(run.folder) - model_of(twin.folder)).abs().max())
            last, other = records[-1], twin.records[-1]
            same = (last.bytes_down, last.bytes_up) == (other.bytes_down, other.bytes_up)
            pace = (last.seconds - records[0].seconds) / last.round
            bytes_ = f"{last.bytes_down:,}, {last.bytes_up:,}"
            print(f"| `{name}` | {gap:.1g} | {bytes_} | {'yes' if same else 'NO'} | {pace:.1f} |")
            sys.stdout.flush()
            if gap > 1e-6 or not same:
                raise SystemExit(f"{name}: it is not the simulator's")


def tables_of(place: Path, **flower: Any) -> dict[str, Any]:
    experiment = parse(
        {
            "name": "faults",
            "data": {"name": "custom"},
            "model": {"name": "logistic"},
            "split": {"workers": 3},
            "training": {"tau": 5, "iterations": 20, "batch": 16},
            "algorithm": {"name": "fednag", "lr": 0.05},
            "evaluation": {"every": 4},
        }
    )
    own = {"out": str(place), "shape": ",".join(map(str, SHAPE)), "classes": CLASSES, "quorum": 2}
    return run_config(experiment, {**own, "join": JOIN, "evaluate": "silos", **flower})


def told(folder: Path) -> str:
    """What the run's folder says of the silos."""
    lines = read(folder / "silos.jsonl")
    missed = [
        f"round {x['round']}: silo {x['silo']} missed" for x in lines if x["status"] == "missed"
    ]
    refused = [
        f"round {x['round']}: silo {x['silo']} refused ({x['why']})"
        for x in lines
        if x["status"] == "refused"
    ]
    lost = [
        f"round {x['round']}: silo {x['silo']} with fresh memory"
        for x in lines
        if x.get("metrics", {}).get("memory_lost")
    ]
    trained = [x for x in lines if x["phase"] == "train"]
    back = [
        f"round {x['round']}: silo {x['silo']} takes part again"
        for before, x in zip(trained, trained[3:], strict=False)  # three silos, a line a round each
        if before["status"] == "missed" and x["status"] == "ok"
    ]
    return "; ".join(missed + refused + lost + back) or "nothing: no answer was missing or refused"


class Trials:
    """One federation, and what happens to it."""

    def __init__(self, running: Federation, place: Path, deadline: float) -> None:
        self.running, self.place = running, place
        self.switch, self.lie = place / "hang", place / "lie"
        self.lie.write_text("none")
        self.proxy: Proxy | None = None
        self.whole: torch.Tensor | None = None  # the undisturbed model
        self.ports: dict[int, int | None] = {}
        self.over = False
        self.only = ""
        self.deadline = deadline

    def node(self, silo: int, port: int | None = None) -> None:
        kinds = {0: "honest", 1: "lying", 2: "hanging"}
        config = {
            "data-function": f"hostile:{kinds[silo]}",
            "switch": str(self.switch),
            "lie": str(self.lie),
            "memory-folder": str(self.place / f"memory-{silo}"),
        }
        self.running.start_node(silo, config, superlink=port)
        self.ports[silo] = port

    def through_proxy(self, silo: int) -> None:
        """Have a silo reach the server by another way; the next run waits until it is let in."""
        self.proxy = Proxy(self.running.port)
        self.ports[silo] = self.proxy.port
        self.running.processes.kill(f"silo-{silo}")
        time.sleep(70)  # until then its heartbeats make the server believe that it is there

    def keep_up(self) -> None:
        """Restart SuperNodes that end, as an init system does: one that was killed is let in again
        only when its heartbeats have run out, a minute later."""
        while not self.over:
            for silo in range(3):
                process = self.running.processes.started.get(f"silo-{silo}")
                if process is not None and process.poll() is not None:
                    self.running.processes.kill(f"silo-{silo}")
                    self.node(silo, self.ports[silo])
            time.sleep(3)

    def wanted(self, what: str) -> bool:
        return any(word in what for word in self.only.split(","))

    def run(self, what: str, fault: Callable[[Submitted], None], rounds: int = SHORT) -> None:
        """A run during which something goes wrong; prints a row."""
        say(f"== {what}")
        out = self.place / what.replace(" ", "-").replace(",", "")
        tables = tables_of(out, deadline=self.deadline)
        tables["rounds"] = rounds
        tables["evaluation"] = {"every": rounds}
        run = Submitted(self.running, tables)
        fault(run)
        run.end()
        resumed = ""
        if run.error:
            resumed = "stopped; resumed"
            say(f"it stopped ({run.error}); going on")
            tables["flower"]["resume"] = True
            seconds = run.seconds
            run = Submitted(self.running, tables)
            run.end()
            run.seconds += seconds
        if run.error or run.folder is None:
            raise SystemExit(f"{what}: {run.error}")
        records = RunFolder(run.folder).records()
        model = model_of(run.folder)
        if what == NOTHING:
            self.whole = model
        same = "-"  # there is no undisturbed run of that length
        if self.whole is model:
            same = "the measure of the others"
        elif self.whole is not None and rounds == SHORT:
            gap = float((model - self.whole).abs().max())
            same = "the undisturbed run's bits" if gap == 0 else f"differs by at most {gap:.1g}"
        done = f"finished, {records[-1].round} of {rounds} rounds"
        ended = f"{resumed + ': ' if resumed else ''}{done}"
        loss = f"{records[-1].loss:.4f}"
        tale = told(run.folder)
        print(f"| {what} | {ended} | {tale} | {loss}; {same} | {run.seconds:.0f} |")
        sys.stdout.flush()


def faults(tls: bool, only: str, deadline: float) -> None:
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    print("| what happens | the run | what is recorded | final loss; model | seconds |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder, federation(0, tls) as running:
        place = Path(folder)
        trials = Trials(running, place, deadline)
        for silo in range(3):
            if tls:
                running.register(silo)
            trials.node(silo)
        threading.Thread(target=trials.keep_up, daemon=True).start()
        trials.only = only
        names = {"nan": "NaN", "shape": "a wrong shape", "hash": "a wrong hash"}
        short: dict[str, Callable[[Submitted], None]] = {
            f"silo 1 sends {names.get(lie, '10^12 samples')}": partial(_lie, trials, lie)
            for lie in ("nan", "shape", "hash", "samples")
        }
        short["silo 2 hangs"] = partial(_hang, trials)
        short["the server killed and resumed"] = partial(_kill_server, trials)
        wanted = [what for what in short if trials.wanted(what)]
        if wanted:
            trials.run(NOTHING, lambda run: None)
        for what in wanted:
            trials.run(what, short[what])
        if trials.wanted(what := "silo 2 killed in a round and restarted"):
            trials.run(what, partial(_kill, trials), LONG)
        if trials.wanted(what := "the line of silo 0 cut"):
            trials.through_proxy(0)
            trials.run(what, partial(_cut, trials), LONG)
        trials.over = True


PLAIN = {
    "pyproject.toml": """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "plain"
version = "1.0.0"
description = "Flower alone"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["plain"]
[tool.flwr.app]
publisher = "plain"
[tool.flwr.app.components]
serverapp = "plain.server:app"
clientapp = "plain.client:app"
[tool.flwr.app.config]
rounds = 6
""",
    "plain/__init__.py": "",
    "plain/client.py": """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    arrays = [a + 1 for a in message.content["arrays"].to_numpy_ndarrays()]
    content = {"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=message)
""",
    "plain/server.py": """
import json, os, time

import numpy as np
from flwr.app import ArrayRecord, MetricRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


def note(**facts):
    with open(os.environ["FEDNAG_JOURNAL"], "a") as file:
        file.write(json.dumps(facts) + "\\n")


@app.main()
def main(grid, context):
    def evaluate(number, arrays):
        note(said=f"{number} {time.monotonic()}")
        return MetricRecord({"number": number})

    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3)
    first = ArrayRecord([np.zeros(650, np.float32)])
    rounds = context.run_config["rounds"]
    strategy.start(grid, first, num_rounds=rounds, evaluate_fn=evaluate)
    note(finished="plain")
""",
}


def rounds(pairs: int, tls: bool) -> None:
    """Turn by turn, so that whatever else the machine does meets both."""
    own, plain, both = list[float](), list[float](), 8
    for _ in range(pairs):
        plain += _plain(both, tls)
        own += _own(both, tls)
        say(f"plain {plain[-1]:.1f} s, fednag {own[-1]:.1f} s")
    print("| who | seconds a round: median | least | most |")
    print("| --- | --- | --- | --- |")
    for name, found in (("plain Flower, a numpy vector plus 1", plain), ("fednag", own)):
        middle = sorted(found)[len(found) // 2]
        print(f"| {name} | {middle:.1f} | {min(found):.1f} | {max(found):.1f} |")
    ratio = sorted(own)[len(own) // 2] / sorted(plain)[len(plain) // 2]
    print(f"{pairs} turns of {both} rounds; fednag takes {ratio:.2f} times as long as plain Flower")


def _plain(number: int, tls: bool) -> list[float]:
    """Seconds of each round but the first, in which silos connect."""
    with tempfile.TemporaryDirectory() as place, federation(0, tls) as running:
        for silo in range(3):
            if tls:
                running.register(silo)
            running.start_node(silo, program=["flower-supernode"])
        for path, content in PLAIN.items():
            file = Path(place, "app", path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        said: list[str] = []
        running.run(Path(place, "app"), said.append, f"rounds={number}")
        ends = [float(line.split()[1]) for line in said]
        return [b - a for a, b in pairwise(ends[1:])]


def _own(number: int, tls: bool) -> list[float]:
    raw = {"name": "rounds", "data": {"name": "digits"}, "model": {"name": "logistic"}}
    raw |= {"split": {"workers": 3}, "training": {"tau": 20, "iterations": 20 * number}}
    with tempfile.TemporaryDirectory() as place, federation(3, tls) as running:
        tables = run_config(parse(raw), {"out": place, "bind": "silo" if tls else ""})
        folder = running.submit(tables, lambda line: None)
        ends = [record.seconds for record in RunFolder(folder).records()]
        return [b - a for a, b in pairwise(ends[1:])]


def _lie(trials: Trials, lie: str, run: Submitted) -> None:
    run.after(1)
    trials.lie.write_text(lie)
    run.after(2)
    trials.lie.write_text("none")


def _hang(trials: Trials, run: Submitted) -> None:
    run.after(1)
    trials.switch.touch()
    run.after(2)
    trials.switch.unlink()


def _kill(trials: Trials, run: Submitted) -> None:
    """While it trains: it is held, so that the kill falls into the round."""
    noticed = trials.switch.with_suffix(".noticed")
    noticed.unlink(missing_ok=True)
    run.after(1)
    trials.switch.touch()
    until = time.monotonic() + 300
    while not noticed.exists() and time.monotonic() < until:
        time.sleep(0.05)
    trials.running.processes.kill("silo-2")
    trials.switch.unlink()


def _kill_server(trials: Trials, run: Submitted) -> None:
    """The SuperLink with the ServerApp and all else it started."""
    run.after(2)
    trials.running.processes.kill("superlink")
    run.end()
    trials.running.start_link()


def _cut(trials: Trials, run: Submitted) -> None:
    """Silo 0 reaches the server through a proxy; it is cut for a round."""
    run.after(1)
    assert trials.proxy is not None
    trials.proxy.cut()
    run.after(2)
    trials.proxy.mend()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["parity", "faults", "rounds"])
    parser.add_argument("--methods", default=",".join(FEDERATED))
    parser.add_argument(
        "--only", default="", help="faults: those with one of these words, e.g. killed,cut"
    )
    parser.add_argument("--deadline", type=float, default=90.0, help="faults: seconds (90)")
    parser.add_argument("--turns", type=int, default=2, help="rounds: turns of each (2)")
    parser.add_argument("--no-tls", action="store_true")
    given = parser.parse_args()
    with suppress(KeyboardInterrupt):
        if given.what == "rounds":
            rounds(given.turns, not given.no_tls)
        elif given.what == "parity":
            parity(given.methods.split(","), not given.no_tls)
        else:
            faults(not given.no_tls, given.only, given.deadline)


if __name__ == "__main__":
    main()
