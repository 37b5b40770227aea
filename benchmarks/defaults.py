"""One silo of five attacks a deployment that has its defaults: for the table in docs/robustness.md.

    python benchmarks/defaults.py

The server's and the silos' code as they are on real machines, in one process (``InProcessGrid``):
five silos bring a fifth of the digits each, FedNAG on logistic regression, 20 rounds of 10 local
iterations. Silo 4 attacks in every round. Beside what the run's records say, the model it ends
with is measured here, on samples that no silo has.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch
from flwr.app import Message

import fednag.flower.client as client_module
from fednag.flower.client import app
from fednag.flower.inprocess import Fault, InProcessGrid
from fednag.flower.protocol import ARRAYS, CONFIG
from fednag.flower.server import serve
from fednag.flower.settings import read_run_config
from fednag.flower.silo import Silo
from fednag.flower.silo_log import read

SILOS, LIAR, TEST = 5, 4, 297
DEFAULTS: dict[str, Any] = {}
OFF = {"flower.norm-bound": 0.0, "flower.most-share": 1.0, "flower.measure": "mean"}
CLOSE = {"flower.norm-bound": 3.0}
MEDIAN = {"aggregator.kind": "median"}
CONFIG_OF: dict[str, Any] = {
    "name": "defaults",
    "rounds": 20,
    "model.name": "logistic",
    "data.name": "silos",
    "training.tau": 10,
    "training.batch": 32,
    "split.workers": SILOS,
    "algorithm.name": "fednag",
    "algorithm.lr": 0.05,
    "flower.shape": "1,8,8",
    "flower.classes": 10,
    "flower.deadline": 5.0,
    "flower.join": 5.0,
}


def update(change: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Fault:
    """An attacker's vectors, from those it was sent and those it would send."""

    def fault(asked: Message, answered: Message) -> Message:
        if asked.metadata.message_type != "train":
            return answered
        sent, mine = (m.content.array_records[ARRAYS] for m in (asked, answered))
        for name in mine:
            before = torch.frombuffer(bytearray(sent[name].data), dtype=torch.float32)
            honest = torch.frombuffer(bytearray(mine[name].data), dtype=torch.float32)
            mine[name].data = change(before, honest).numpy().tobytes()
        return answered

    return fault


def claim(asked: Message, answered: Message) -> Message:
    """Ten million samples."""
    about = answered.content.config_records[CONFIG]
    if "samples" in about:
        about["samples"] = 10**7
    return answered


def flatter(asked: Message, answered: Message) -> Message:
    """A perfect evaluation, on ten million test samples."""
    if asked.metadata.message_type == "evaluate":
        for found in answered.content.metric_records.values():
            for key in list(found):
                found[key] = 0.0 if "loss" in key else 10**7 if key == "tests" else 1.0
    return answered


def both(*faults: Fault) -> Fault:
    def fault(asked: Message, answered: Message) -> Message | None:
        told: Message | None = answered
        for each in faults:
            told = each(asked, told) if told is not None else None
        return told

    return fault


flipped = update(lambda sent, mine: sent - (mine - sent))
ATTACKS: dict[str, Fault | None] = {
    "nobody attacks": None,
    "not a number": update(lambda sent, mine: torch.full_like(mine, torch.nan)),
    "1e30 everywhere": update(lambda sent, mine: torch.full_like(mine, 1e30)),
    "its update, 100 times as long": update(lambda sent, mine: sent + 100 * (mine - sent)),
    "its update the other way, 5 times as long": update(lambda s, mine: s - 5 * (mine - s)),
    "its update the other way": flipped,
    "what it was sent": update(lambda sent, mine: sent),
    "claims 10,000,000 samples": claim,
    "claims them, its update the other way": both(claim, flipped),
    "a perfect evaluation": flatter,
    "claims them, a perfect evaluation": both(claim, flatter),
}


def data(place: Path) -> tuple[np.ndarray, np.ndarray]:
    """A folder a silo; returns the samples that nobody has."""
    x, y = sklearn.datasets.load_digits(return_X_y=True)
    x = x.reshape(-1, 1, 8, 8).astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    for silo in range(SILOS):
        (folder := place / f"silo-{silo}").mkdir(mode=0o700)
        own_x, own_y = x[TEST:][silo::SILOS], y[TEST:][silo::SILOS]
        np.save(folder / "x.npy", own_x[:-50])
        np.save(folder / "y.npy", own_y[:-50])
        np.save(folder / "test_x.npy", own_x[-50:])
        np.save(folder / "test_y.npy", own_y[-50:])
    return x[:TEST], y[:TEST]


def played(
    place: Path, out: Path, attack: Fault | None, changes: dict[str, Any], test: Any
) -> tuple[str, str, str]:
    """The model's accuracy, the one that the run recorded, and what was said of the attacker."""
    nodes = [{"partition-id": k, "data-folder": str(place / f"silo-{k}")} for k in range(SILOS)]
    config = {**CONFIG_OF, **changes, "flower.out": str(out)}
    grid = InProcessGrid(app, config, nodes)
    if attack:
        grid.faults[list(grid.contexts)[LIAR]] = attack
    said: list[str] = []
    run = serve(grid, read_run_config(config), said.append)
    assert run.folder
    x, y = (torch.from_numpy(part) for part in test)
    with torch.no_grad():
        found = float((run.final(x).argmax(1) == y).double().mean())
    lines = [line for line in read(run.folder / "silos.jsonl") if line["silo"] == LIAR]
    refused = sum(line["status"] == "refused" and line["phase"] == "train" for line in lines)
    capped = any("weighs as if" in line for line in said)
    what = [f"refused in {refused} rounds"] * bool(refused) + ["its count is capped"] * capped
    recorded = run.records[-1].accuracy
    told = f"{recorded:.1%}" if recorded is not None else "-"
    ended = " (diverged)" if run.records[-1].loss is None else ""
    return f"{found:.1%}{ended}", told, "; ".join(what) or "-"


def once() -> None:
    """A silo is made anew for every message; here once."""
    made: dict[str, Silo] = {}

    def silo(deployment: Any, node_config: Any) -> Silo:
        key = repr((deployment.digest, sorted(node_config.items())))
        if key not in made:
            made[key] = Silo(deployment, node_config)
        return made[key]

    client_module.Silo = silo  # type: ignore[misc,assignment]


def main() -> None:
    argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "").parse_args()
    torch.set_num_threads(1)
    once()
    ways = {"defaults": DEFAULTS, "all switched off": OFF, "bound 3": CLOSE, "`median`": MEDIAN}
    print(f"| silo {LIAR} of {SILOS} sends | {' | '.join(ways)} | with the defaults |")
    print("| --- " * (len(ways) + 2) + "|")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        test = data(place)
        for number, (name, attack) in enumerate(ATTACKS.items()):
            cells, what = [], ""
            for column, changes in enumerate(ways.values()):
                out = place / f"{number}-{column}"
                try:
                    found, told, said = played(place, out, attack, changes, test)
                except Exception as error:  # a run may well end so
                    print(f"{name}: {error}", file=sys.stderr)
                    found, told, said = "stopped", "-", ""
                cells.append(f"{found}, {told}")
                what = what or said
            print(f"| {name} | {' | '.join(cells)} | {what} |", flush=True)


if __name__ == "__main__":
    main()
