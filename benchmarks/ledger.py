"""What the ledger costs a round on Flower: the same run with it and without it, in turns.

    python benchmarks/ledger.py            in one process, and on real processes: ten minutes
    python benchmarks/ledger.py --smoke    that it works; its numbers mean nothing

Two silos that sign, FedNAG, a network of a million numbers: 8 MB down and up for each silo and
round. Runs with and without take turns, so that both see the same machine; a pair's difference is
the price, and the table has the mean of the pairs and its standard error. In one process (the real
server and silos, on a grid of function calls) it is the processor's time that is counted, so that
other programs disturb little, and the difference is the ledger's work. Real processes wait for one
another by polling, some seconds a round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch

from fednag.config import parse
from fednag.flower.handlers import app
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.local import federation
from fednag.flower.project import flat, run_config
from fednag.flower.server import serve
from fednag.flower.settings import read_run_config
from fednag.flower.signing import make_key

SILOS = 2
HIDDEN = [1000, 925]  # on the digits: 1,000,185 numbers
KINDS = ("none", "chain")

Clock = Callable[[], float]
Play = Callable[[dict[str, Any], Callable[[str], None]], Any]
"""(tables, told every line) -> the run, played to its end."""


def tables_of(place: Path, kind: str, rounds: int, hidden: list[int]) -> dict[str, Any]:
    experiment = parse(
        {
            "name": kind,
            "data": {"name": "digits"},
            "model": {"name": "mlp", "hidden": hidden},
            "split": {"workers": SILOS},
            "training": {"tau": 1, "iterations": rounds, "batch": 32},
            "algorithm": {"name": "fednag", "lr": 0.01},
            "evaluation": {"every": rounds},
            "ledger": {"kind": kind},
        }
    )
    return run_config(experiment, {"out": str(place), "join": 600.0, "deadline": 600.0})


def seconds_a_round(play: Play, clock: Clock, tables: dict[str, Any], rounds: int) -> float:
    """The time from the end of the first round to that of the last, by rounds."""
    ends: list[float] = []

    def hear(line: str) -> None:
        if line.startswith("round ") and "/" in line.split(",")[0]:
            ends.append(clock())

    play(tables, hear)
    # Before the first round comes a line too, for the first weights.
    assert len(ends) == rounds + 1, ends
    return (ends[-1] - ends[1]) / (rounds - 1)


def compare(
    name: str,
    play: Play,
    clock: Clock,
    place: Path,
    pairs: int,
    rounds: int,
    hidden: list[int],
) -> None:
    """A row of the table."""
    paces: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for pair in range(pairs):
        for kind in KINDS if pair % 2 else KINDS[::-1]:  # neither is always the first
            tables = tables_of(place / f"{name[:2]}-{pair}", kind, rounds, hidden)
            pace = seconds_a_round(play, clock, tables, rounds)
            print(f"    {name}, {kind}: {pace:.3f} s a round", file=sys.stderr, flush=True)
            paces[kind].append(pace)
    without, with_ = (paces[kind] for kind in KINDS)
    prices = [b - a for a, b in zip(without, with_, strict=True)]
    error = stdev(prices) / pairs**0.5 if pairs > 1 else float("nan")
    price = f"{fmean(prices):+.3f} ± {error:.3f}"
    cells = name, str(pairs), str(rounds), f"{median(without):.3f}", f"{median(with_):.3f}", price
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--pairs", type=int, default=3, help="pairs of runs on real processes")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of a run there")
    given = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] = "0.1"
    hidden = [8] if given.smoke else HIDDEN
    print("| where | pairs | rounds | s a round without | with | price of a round, s |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        nodes = [
            {"partition-id": silo, "ledger-key": str(place / f"{silo}.key")}
            for silo in range(SILOS)
        ]
        for silo in range(SILOS):
            make_key(place / f"{silo}.key")

        def here(tables: dict[str, Any], hear: Callable[[str], None]) -> None:
            config = flat(tables)
            serve(InProcessGrid(app, config, nodes), read_run_config(config), hear)

        many = (1, 2) if given.smoke else (5, 6)
        compare("one process", here, time.process_time, place, *many, hidden)
        many = (1, 2) if given.smoke else (given.pairs, given.rounds)
        with federation(SILOS, node_configs=nodes) as running:
            compare("real processes", running.submit, time.monotonic, place, *many, hidden)


if __name__ == "__main__":
    main()
