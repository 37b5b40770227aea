"""What defences withstand which attacks, and how much longer an honest update may be than others.

    FEDNAG_DATA=folder python examples/attacks.py [--liars 3] [--honest]

Logistic regression on MNIST; ten workers, whose shares of the classes are drawn from a Dirichlet
distribution (alpha 0.5); 30 rounds of 10 local iterations. Printed is the test accuracy after the
last round. Defences are told the attackers' share. With --honest nobody attacks, and printed is
the longest update of any worker in any round, in medians of its round, by split and method (- where
the model did not learn: its accuracy is below 0.3).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

import fednag
from fednag.aggregators import NormBound
from fednag.aggregators.norm_bound import lengths, norms
from fednag.core.aggregator import Rows, Total

WORKERS, TAU, ROUNDS = 10, 10, 30
ATTACKS: dict[str, dict[str, Any] | None] = {
    "nobody": None,
    "sign-flip": {},
    "sign-flip, 5 times": {"kind": "sign-flip", "factor": 5.0},
    "scale": {},
    "noise": {},
    "constant": {},
    "free-rider": {},
    "alie": {},
    "label-flip": {},
}
DEFENCES = (
    "mean",
    "median",
    "trimmed-mean",
    "krum",
    "multi-krum",
    "norm-bound",
    "centred-clipping",
)
DIRICHLET = {"kind": "dirichlet", "alpha": 0.1}
HONEST: dict[str, dict[str, Any]] = {
    "alike": {"split": {"kind": "iid"}},
    "Dirichlet, alpha 0.1": {"split": DIRICHLET},
    "one class each": {"split": {"kind": "classes", "classes": 1}},
    "sizes from 1260 to 1": {"split": {"kind": "sizes", "skew": 3.1}},
    "Dirichlet, alpha 0.1; digits, MLP, lr 0.3": {
        **{"split": DIRICHLET, "data": "digits", "model": "mlp", "lr": 0.3}
    },
}
METHODS = ("fedavg", "fednag", "scaffold", "mime", "fedadam")


@dataclass(frozen=True)
class Watched(NormBound):
    """Refuses nobody, and writes down how long the longest update of each round was."""

    factor: float = inf
    longest: list[float] = field(default_factory=list)

    def screen(self, total: Total) -> tuple[Total, Mapping[int, str]]:
        if isinstance(total, Rows):
            self.longest.append(float(lengths(norms(total.together()[1])).max()))
        return super().screen(total)


def run(method: str, tau: int = TAU, rounds: int = ROUNDS, **given: Any) -> fednag.Run:
    given = {"data": "mnist", "model": "logistic", **given}
    return fednag.run(
        {"name": method, "lr": given.pop("lr", 0.05)},
        workers=WORKERS,
        tau=tau,
        iterations=tau * rounds,
        batch=32,
        evaluation={"every": rounds},
        engine={"chunk": WORKERS, "threads": 1},
        quiet=True,
        **given,
    )


def accuracy(method: str, attack: dict[str, Any] | None, kind: str, liars: int) -> float | None:
    """Test accuracy after the last round; None if the run diverged."""
    aggregator = {"kind": kind}
    if kind in ("trimmed-mean", "krum", "multi-krum"):
        aggregator["share"] = liars / WORKERS
    attacks = [] if attack is None else [{**attack, "workers": list(range(liars))}]
    split = {"kind": "dirichlet", "alpha": 0.5}
    return run(method, split=split, aggregator=aggregator, attack=attacks).records[-1].accuracy


def tables(liars: int) -> None:
    for method in ("fedavg", "fednag"):
        print(f"\n{method}, {liars} of {WORKERS} workers attack\n")
        print(f"| attack | {' | '.join(DEFENCES)} |")
        print(f"| --- |{' --- |' * len(DEFENCES)}")
        for name, table in ATTACKS.items():
            attack = None if table is None else {"kind": name, **table}
            found = [accuracy(method, attack, kind, liars) for kind in DEFENCES]
            shown = ["diverged" if each is None else f"{100 * each:.1f}" for each in found]
            print(f"| {name} | {' | '.join(shown)} |", flush=True)


def honest() -> None:
    print(f"| split | tau | {' | '.join(METHODS)} |")
    print(f"| --- | --- |{' --- |' * len(METHODS)}")
    for name, given in HONEST.items():
        for tau, rounds in ((1, 60), (10, 30), (100, 6)):
            found = []
            for method in METHODS:
                watched = Watched()
                done = run(method, tau, rounds, aggregator=watched, **given)
                learnt = (done.records[-1].accuracy or 0) > 0.3
                found.append(f"{max(watched.longest):.1f}" if learnt else "-")
            print(f"| {name} | {tau} | {' | '.join(found)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--liars", type=int, default=3)
    parser.add_argument("--honest", action="store_true")
    given = parser.parse_args()
    if given.honest:
        honest()
    else:
        tables(given.liars)


if __name__ == "__main__":
    main()
