"""Edges between workers and the server: limits, a reference by hand, bytes and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fednag
from fednag import FedAvg, FedMom, FedNAG, FednagError, Vectors
from fednag.algorithms import ALGORITHMS, HierMo
from fednag.core.algorithm import Algorithm
from fednag.core.loop import Scheme
from fednag.core.state import State
from fednag.data.dataset import Dataset
from fednag.simulate.run import Plan, simulate
from fednag.simulate.tiers import Edges
from test_parts import gradients_of, near, plan_of

GROUPS = (np.array([0, 2]), np.array([1, 3]))


def tiered(dataset: Dataset, method: Algorithm, pi: int, groups: Any = GROUPS, **more: Any) -> Plan:
    """Four workers of unequal sizes, at two edges."""
    plan = plan_of(dataset, Scheme(method), **more)
    return replace(plan, edges=Edges(groups, plan.tau, pi), tau=plan.tau * pi)


def last(plan: Plan) -> State:
    return list(simulate(plan))[-1]


def same(one: State, other: State, names: Any) -> bool:
    return all(torch.equal(one.server[name], other.server[name]) for name in names)


@pytest.mark.parametrize("name", ["fednag", "fedavg", "fedmom", "fedprox", "fednag-local"])
def test_edges_that_only_pass_on_change_no_bit(blobs: Dataset, name: str) -> None:
    method = ALGORITHMS[name]()
    flat = last(plan_of(blobs, Scheme(method), per_round=3))
    assert same(last(tiered(blobs, method, 1, per_round=3)), flat, flat.server)


def test_hiermo_without_its_momentum_is_fednag(blobs: Dataset) -> None:
    flat = last(plan_of(blobs, Scheme(FedNAG(lr=0.1))))
    method = HierMo(lr=0.1, edge_momentum=0.0)
    assert same(last(tiered(blobs, method, 1)), flat, ("w", "v"))
    assert same(last(plan_of(blobs, Scheme(method))), flat, ("w", "v"))
    three = last(tiered(blobs, FedNAG(lr=0.1), 2))
    assert same(last(tiered(blobs, method, 2)), three, ("w", "v"))
    assert not near(three.server.w, flat.server.w, 1e-6)


class FedNAGWithFedMom(FedNAG):
    """Local NAG, momenta averaged, and FedMom's server on the weights."""

    def init(self, w: Tensor) -> Vectors:
        return super().init(w).but(p=w)

    def update(self, server: Vectors, mean: Vectors, news: Any) -> Vectors:
        made = FedMom(momentum=0.5).update(Vectors(w=server.w, v=server.p), mean, news)
        return Vectors(w=made.w, v=mean.v, p=made.v)


@pytest.mark.parametrize("pi", [1, 2, 3])
def test_one_edge_is_fednag_with_the_server_of_fedmom(blobs: Dataset, pi: int) -> None:
    flat = last(plan_of(blobs, Scheme(FedNAGWithFedMom(lr=0.1, momentum=0.9)), iterations=18))
    method = HierMo(lr=0.1, edge_momentum=0.5)
    one = tiered(blobs, method, pi, (np.arange(4),), iterations=18)
    assert same(last(one), flat, ("w", "v", "p"))
    assert same(last(plan_of(blobs, Scheme(method), iterations=18)), flat, ("w", "v", "p"))


def by_hand(plan: Plan, lr: float, momentum: float, edge: float, rounds: int, pi: int) -> Tensor:
    """HierMo with full batches, tau 2, by torch's gradients alone; two edges."""
    sizes = plan.partition.sizes.tolist()
    w, v = plan.problem.initial, torch.zeros_like(plan.problem.initial)
    p = w
    for _ in range(rounds):
        ends = []
        for members in GROUPS:
            we, ve, pe = w, v, p
            held = sum(sizes[i] for i in members)
            for _ in range(pi):
                ws, vs = torch.zeros_like(w), torch.zeros_like(w)
                for i in members:
                    wi, vi = we, ve
                    for _ in range(2):
                        g = gradients_of(plan, wi)[i]
                        vi = momentum * vi - lr * g
                        wi = wi + momentum * vi - lr * g
                    ws, vs = ws + sizes[i] * wi / held, vs + sizes[i] * vi / held
                we, ve, pe = ws + edge * (ws - pe), vs, ws
            ends.append((held, we, ve, pe))
        w, v, p = (sum(e[0] * e[k] for e in ends) / sum(sizes) for k in (1, 2, 3))  # type: ignore[misc]
    return w


@pytest.mark.parametrize(("momentum", "edge"), [(0.0, 0.0), (0.8, 0.0), (0.8, 0.5)])
def test_three_tiers_by_hand(blobs: Dataset, momentum: float, edge: float) -> None:
    """Hierarchical FedAvg, three-tier FedNAG, HierMo."""
    given: dict[str, Any] = {"tau": 2, "batch": 0, "iterations": 12}
    method = HierMo(lr=0.1, momentum=momentum, edge_momentum=edge)
    plan = tiered(blobs, method, 3, **given)
    expected = by_hand(plan, 0.1, momentum, edge, rounds=2, pi=3)
    assert near(last(plan).server.w, expected, 1e-10)
    if not edge:
        plain = FedNAG(lr=0.1, momentum=momentum) if momentum else FedAvg(lr=0.1)
        assert near(last(tiered(blobs, plain, 3, **given)).server.w, expected, 1e-10)


def test_it_goes_on_to_the_same_bits_and_the_last_round_is_cut(blobs: Dataset) -> None:
    plan = tiered(blobs, HierMo(lr=0.1), 2, iterations=20, per_round=3)  # rounds of 6
    whole = list(simulate(plan))
    assert [state.iteration for state in whole] == [0, 6, 12, 18, 20]
    assert whole[-1].starts.max() <= 20
    for at in (1, 3):
        assert same(list(simulate(plan, whole[at]))[-1], whole[-1], ("w", "v", "p"))


SMALL: dict[str, Any] = {"model": "logistic", "workers": 6, "tau": 3, "iterations": 24}


def test_bytes_of_both_tiers() -> None:
    """650 numbers of 4 bytes, w and v; 6 workers, 2 edges, 4 rounds of these; edges have p too."""
    run = fednag.run("hiermo", **SMALL, tier=[{"groups": 2, "pi": 4}])
    first = run.records[1]
    assert (first.iteration, first.round) == (12, 1)
    assert first.bytes_up == first.bytes_down == 4 * 6 * 5200 + 2 * 7800
    assert "a worker gets 5,200 bytes in a round of its edge, an edge 7,800" in run.notes[-1]
    passed_on = fednag.run("fedavg", **SMALL, tier=[{"groups": [[0, 5], [1, 2, 3, 4]]}])
    assert passed_on.records[1].bytes_up == 6 * 2600 + 2 * 2600
    assert passed_on.experiment.key != fednag.run("fedavg", **SMALL).experiment.key


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "many": ({"tier": [{"groups": 7}]}, "tier.0.groups: 7 is more than the 6 workers"),
    "twice": ({"tier": [{"groups": [[0, 1, 2], [2, 3, 4, 5]]}]}, "belongs to one edge"),
    "nobody": ({"tier": [{"groups": [[0, 1, 2, 3, 4, 5], []]}]}, "every edge has one at least"),
    "pi": ({"tier": [{"groups": 2, "pi": 0}]}, "tier.pi: 0 is not allowed"),
    "three": ({"tier": [{"groups": 2}, {"groups": 2}]}, "tier"),
    "clock": ({"tier": [{}], "clock": {"fleet": "lan"}}, "clock.fleet: it does not go with edges"),
    "uplink": ({"tier": [{}], "uplink": ["float16"]}, "uplink: it does not go with edges"),
    "mean": ({"tier": [{}], "aggregator": "median"}, "aggregator.kind: it does not go with"),
    "ledger": ({"tier": [{}], "ledger": {"kind": "chain"}}, "ledger.kind: it does not go with"),
    "table": ({"tier": {"groups": 2}}, "tier: give a list"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_edges(case: str) -> None:
    given, sentence = REFUSED[case]
    with pytest.raises(FednagError) as error:
        fednag.run(**SMALL | given)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "name", ["scaffold", "mime", "feddyn", "fednag-rebuilt", "fednova", "cnag"]
)
def test_methods_that_need_more_than_means_are_refused(name: str) -> None:
    with pytest.raises(FednagError, match="edges take means of what is sent back"):
        fednag.run(name, **SMALL, tier=[{"groups": 2}])


def test_a_run_with_edges_is_not_replayed_as_if_it_had_none(tmp_path: Path) -> None:
    from fednag.clock import timed_run

    run = fednag.run("fedavg", **SMALL, tier=[{}])
    with pytest.raises(FednagError, match="the time of edges is not known"):
        timed_run(run.view)
