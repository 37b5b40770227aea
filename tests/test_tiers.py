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
from fednag.controllers import Cosine
from fednag.core.algorithm import Algorithm
from fednag.core.loop import Scheme
from fednag.core.state import State
from fednag.core.transform import Chain
from fednag.data.dataset import Dataset
from fednag.runs.build import Builder
from fednag.simulate.run import Plan, simulate
from fednag.simulate.tiers import Edges
from fednag.transforms import TRANSFORMS as ALL_TRANSFORMS
from fednag.transforms import Float16
from test_parts import gradients_of, near, plan_of

GROUPS = (np.array([0, 2]), np.array([1, 3]))


def tiered(dataset: Dataset, method: Algorithm, pi: int, groups: Any = GROUPS, **more: Any) -> Plan:
    """Four workers of unequal sizes, at two edges."""
    return with_tiers(plan_of(dataset, Scheme(method), **more), (groups, pi))


def with_tiers(plan: Plan, *tiers: tuple[Any, int]) -> Plan:
    """The plan with tiers of edges, (workers of each, pi), the workers' own first."""
    made: list[Edges] = []
    tau = plan.tau
    for groups, pi in tiers:
        made.append(Edges(tuple(map(np.array, groups)), tau, pi))
        tau *= pi
    return replace(plan, edges=tuple(made), tau=tau)


def last(plan: Plan) -> State:
    return list(simulate(plan))[-1]


def same(one: State, other: State, names: Any) -> bool:
    return all(torch.equal(one.server[name], other.server[name]) for name in names)


@pytest.mark.parametrize(
    "name", ["fednag", "fedavg", "fedmom", "fedprox", "fednag-local", "scaffold", "scaffold-m"]
)
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


EDGES = ([0, 2], [1], [3])
REGIONS = ([0, 1, 2], [3])


@pytest.mark.parametrize("name", ["fednag", "fedmom", "hiermo", "scaffold"])
def test_a_tier_that_only_passes_on_is_the_tier_left_out(blobs: Dataset, name: str) -> None:
    """Wherever it stands: above edges for any method, below them where edges take means."""
    plan = plan_of(blobs, Scheme(ALGORITHMS[name](lr=0.1)), per_round=3)
    two = last(with_tiers(plan, (EDGES, 2)))
    assert same(last(with_tiers(plan, (EDGES, 2), (REGIONS, 1))), two, two.server)
    assert same(last(with_tiers(plan, (EDGES, 2), (REGIONS, 1), ([range(4)], 1))), two, two.server)
    if name != "hiermo":
        upper = last(with_tiers(plan, (REGIONS, 2)))
        assert same(last(with_tiers(plan, (EDGES, 1), (REGIONS, 2))), upper, upper.server)


@pytest.mark.parametrize("name", ["fednag", "hiermo", "scaffold"])
def test_one_edge_above_all_others_is_the_tier_left_out(blobs: Dataset, name: str) -> None:
    """Means of one are itself: its three rounds are three of the server's."""
    plan = plan_of(blobs, Scheme(ALGORITHMS[name](lr=0.1)), iterations=36)
    without = last(with_tiers(plan, (EDGES, 2)))
    found = last(with_tiers(plan, (EDGES, 2), ([range(4)], 3)))
    assert found.round * 3 == without.round
    if name == "scaffold":  # what has changed is added up, and so rounded
        assert near(found.server.w, without.server.w, 1e-12)
        assert near(found.server.c, without.server.c, 1e-12)
    else:
        assert same(found, without, without.server)


def averaged(ends: list[tuple[float, dict[str, Tensor]]]) -> dict[str, Tensor]:
    total = sum(held for held, _ in ends)
    return {k: sum(held * end[k] for held, end in ends) / total for k in ends[0][1]}  # type: ignore[misc]


class ByHand:
    """Four tiers with full batches and tau 2, by torch's gradients and the formulas alone."""

    def __init__(self, plan: Plan, lr: float, momentum: float, edge: float) -> None:
        self.plan, self.numbers = plan, (lr, momentum, edge)
        self.sizes = plan.partition.sizes.tolist()
        self.c = [torch.zeros_like(plan.problem.initial) for _ in self.sizes]

    def worker(self, i: int, at: dict[str, Tensor]) -> dict[str, Tensor]:
        lr, momentum, _ = self.numbers
        w, v = at["w"], at["v"]
        for _ in range(2):
            g = gradients_of(self.plan, w)[i]
            v = momentum * v - lr * g
            w = w + momentum * v - lr * g
        return {"w": w, "v": v}

    def edge(self, members: Any, at: dict[str, Tensor], pi: int) -> tuple[float, dict[str, Tensor]]:
        for _ in range(pi):
            mean = averaged([(self.sizes[i], self.worker(i, at)) for i in members])
            p = mean["w"]
            at = {"w": p + self.numbers[2] * (p - at["p"]), "v": mean["v"], "p": p}
        return sum(self.sizes[i] for i in members), at


def test_four_tiers_by_hand(blobs: Dataset) -> None:
    """Workers, three edges that extrapolate, two regions that take means, the cloud."""
    given: dict[str, Any] = {"tau": 2, "batch": 0, "iterations": 2 * 2 * 3 * 2}
    plan = plan_of(blobs, Scheme(HierMo(lr=0.1, momentum=0.8, edge_momentum=0.5)), **given)
    hand = ByHand(plan, 0.1, 0.8, 0.5)
    w = plan.problem.initial
    at = {"w": w, "v": torch.zeros_like(w), "p": w}
    for _ in range(2):
        regions = []
        for region in (([0, 2], [1]), ([3],)):
            here = at
            for _ in range(3):
                ends = [hand.edge(members, here, 2) for members in region]
                here = averaged(ends)
            regions.append((sum(held for held, _ in ends), here))
        at = averaged(regions)
    found = last(with_tiers(plan, (EDGES, 2), (REGIONS, 3))).server
    for name, expected in at.items():
        assert near(found[name], expected, 1e-10)


def test_hierarchical_scaffold_by_hand(blobs: Dataset) -> None:
    """Two edges, two rounds each, full batches, tau 2; server_lr is the server's alone."""
    given: dict[str, Any] = {"tau": 2, "batch": 0, "iterations": 8}
    lr, server_lr = 0.1, 0.5
    plan = plan_of(blobs, Scheme(ALGORITHMS["scaffold"](lr=lr, server_lr=server_lr)), **given)
    sizes = plan.partition.sizes.tolist()
    w = plan.problem.initial
    c, own = torch.zeros_like(w), [torch.zeros_like(w) for _ in sizes]
    for _ in range(2):
        moved = []
        for members in GROUPS:
            held = sum(sizes[i] for i in members)
            # The edge's own variate, and as the server knew it when the round began.
            known = sum(sizes[i] * own[i] for i in members) / held
            we = w
            for _ in range(2):
                now = sum(sizes[i] * own[i] for i in members) / held
                step = torch.zeros_like(w)
                for i in members:
                    wi = we
                    for _ in range(2):
                        wi = wi - lr * (gradients_of(plan, wi)[i] - own[i] + c + now - known)
                    own[i] = own[i] - (c + now - known) + (we - wi) / (2 * lr)
                    step = step + sizes[i] * (wi - we) / held
                we = we + step
            moved.append((held, we - w))
        w = w + server_lr * sum(held * m for held, m in moved) / sum(sizes)
        c = sum(size * each for size, each in zip(sizes, own, strict=True)) / sum(sizes)
    found = last(with_tiers(plan, (GROUPS, 2)))
    assert near(found.server.w, w, 1e-10)
    assert near(found.server.c, c, 1e-10)


@pytest.mark.parametrize("name", ["scaffold", "scaffold-m"])
def test_the_servers_variate_stays_the_mean_of_all(blobs: Dataset, name: str) -> None:
    """Also where only some take part, and edges have unequal shares of their workers."""
    plan = plan_of(blobs, Scheme(ALGORITHMS[name](lr=0.1)), per_round=2, iterations=36)
    state = last(with_tiers(plan, (EDGES, 2), (REGIONS, 2)))
    sizes = plan.partition.sizes
    kept = [state.memories.get(i, Vectors(c=torch.zeros_like(state.server.c))).c for i in range(4)]
    mean = sum(int(n) * c for n, c in zip(sizes, kept, strict=True)) / int(sizes.sum())
    assert near(state.server.c, mean, 1e-12)


def test_one_edge_of_scaffold_is_scaffold(blobs: Dataset) -> None:
    plan = plan_of(blobs, Scheme(ALGORITHMS["scaffold"](lr=0.1)), iterations=18)
    flat, one = last(plan), last(with_tiers(plan, ([range(4)], 3)))
    assert near(one.server.w, flat.server.w, 1e-12)
    assert not near(last(with_tiers(plan, (GROUPS, 3))).server.w, flat.server.w, 1e-6)


def test_schedules_go_by_the_iterations_of_edges(blobs: Dataset) -> None:
    """One edge that takes means is the run without it, also where lr falls within its rounds."""
    falling = (Cosine("algorithm.lr"),)
    plan = plan_of(blobs, Scheme(FedNAG(lr=0.1), schedules=falling), iterations=18)
    flat = last(plan)
    assert same(last(with_tiers(plan, ([range(4)], 3))), flat, ("w", "v"))
    assert same(last(with_tiers(plan, ([range(4)], 3), ([range(4)], 2))), flat, ("w", "v"))
    assert not near(flat.server.w, last(plan_of(blobs, Scheme(FedNAG(lr=0.1)))).server.w, 1e-6)


def halved(vector: Tensor) -> Tensor:
    return vector.half().to(vector.dtype)


def test_what_edges_send_is_compressed_too(blobs: Dataset) -> None:
    """FedAvg in half precision on both ways up, by hand; pi 1 and pi 2."""
    for pi in (1, 2):
        given: dict[str, Any] = {"tau": 2, "batch": 0, "iterations": 2 * 2 * pi}
        plan = plan_of(blobs, Scheme(FedAvg(lr=0.1), uplink=Chain((Float16(),))), **given)
        sizes = plan.partition.sizes.tolist()
        w = plan.problem.initial
        for _ in range(2):
            moved = torch.zeros_like(w)
            for members in GROUPS:
                held, we = sum(sizes[i] for i in members), w
                for _ in range(pi):
                    step = torch.zeros_like(w)
                    for i in members:
                        wi = we
                        for _ in range(2):
                            wi = wi - 0.1 * gradients_of(plan, wi)[i]
                        step = step + sizes[i] * halved(wi - we) / held
                    we = we + step
                moved = moved + held * halved(we - w) / sum(sizes)
            w = w + moved
        state = last(with_tiers(plan, (GROUPS, pi)))
        assert near(state.server.w, w, 1e-10)
        d = len(w)
        assert state.tiers == (
            (2 * pi * 4 * 8 * d, 2 * pi * 4 * 2 * d),
            (2 * 2 * 8 * d, 2 * 2 * 2 * d),
        )


class Feedback:
    """Of every sender, the largest three numbers are sent, and the others are kept."""

    def __init__(self) -> None:
        self.kept: dict[Any, Tensor] = {}

    def sent(self, who: Any, what: Tensor) -> Tensor:
        whole = what + self.kept.get(who, torch.zeros_like(what))
        gone = torch.zeros_like(whole)
        largest = whole.abs().topk(3).indices
        gone[largest] = whole[largest]
        self.kept[who] = whole - gone
        return gone


CHAIN = Chain((ALL_TRANSFORMS["error-feedback"](), ALL_TRANSFORMS["topk"](share=0.2)))


def test_what_edges_leave_out_comes_later_by_hand(blobs: Dataset) -> None:
    """Two edges, two rounds each, three rounds of the server; workers and edges keep their own."""
    plan = plan_of(blobs, Scheme(FedAvg(lr=0.1), uplink=CHAIN), tau=1, batch=0, iterations=6)
    sizes, feedback = plan.partition.sizes.tolist(), Feedback()
    w = plan.problem.initial
    assert len(w) == 15
    for _ in range(3):
        moved = torch.zeros_like(w)
        for edge, members in enumerate(GROUPS):
            held, we = sum(sizes[i] for i in members), w
            for _ in range(2):
                gone = {i: feedback.sent(i, -0.1 * gradients_of(plan, we)[i]) for i in members}
                we = we + sum(sizes[i] * gone[i] for i in members) / held
            moved = moved + held * feedback.sent(("edge", edge), we - w) / sum(sizes)
        w = w + moved
    assert near(last(with_tiers(plan, (GROUPS, 2))).server.w, w, 1e-6)


def test_edges_keep_what_their_transforms_leave_out(blobs: Dataset) -> None:
    """What is kept of every worker and edge is saved, and a run goes on to the same bits."""
    plan = plan_of(blobs, Scheme(FedAvg(lr=0.1), uplink=CHAIN), iterations=24)
    plan = with_tiers(plan, (EDGES, 2), (REGIONS, 1))
    states = list(simulate(plan))
    assert {worker for worker, _ in states[-1].residues} == set(range(4 + 3 + 2))
    assert same(list(simulate(plan, states[2]))[-1], states[-1], ("w",))


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


def hospitals(folder: Path) -> dict[str, Any]:
    """Six hospitals in three regions of two countries, eight rows each."""
    at = ["n,b", "s,a", "w,b", "n,b", "s,a", "w,b"]
    rows = [f"{h}.{k},{k % 3},{at[h]},h{h},{k % 2}" for h in range(6) for k in range(8)]
    path = folder / "hospitals.csv"
    path.write_text("\n".join(["dose,age,region,country,hospital,ill", *rows]))
    data = {"name": "file", "path": str(path), "owner": "hospital"}
    return {"data": data, "split": {"kind": "natural"}, "model": "logistic", "tau": 2}


def test_groups_by_a_column_of_the_data(tmp_path: Path) -> None:
    """The column is no feature, and the run is that with the same groups listed."""
    given = hospitals(tmp_path) | {"iterations": 12}
    tiers = [{"groups": "region", "pi": 2}, {"groups": "country"}]
    named = fednag.run("fedavg", **given, tier=tiers)
    assert "tiers: 3 edges" in named.notes[-2]
    assert "tier 1: 2 edges" in named.notes[-1]
    (plan,) = [Builder().plan(named.experiment)[1]]
    groups = [[members.tolist() for members in edges.groups] for edges in plan.edges]
    assert groups == [[[0, 3], [1, 4], [2, 5]], [[1, 4], [0, 2, 3, 5]]]
    listed = [{"groups": [[0, 3], [1, 4], [2, 5]], "pi": 2}, {"groups": [[1], [0, 2]]}]
    plain = tmp_path / "plain.csv"  # without the columns
    rows = [line.split(",") for line in (tmp_path / "hospitals.csv").read_text().splitlines()]
    plain.write_text("\n".join(",".join([*row[:2], *row[4:]]) for row in rows))
    given["data"] = {**given["data"], "path": str(plain)}
    same_run = fednag.run("fedavg", **given, tier=listed)
    assert [r.loss for r in same_run.records] == [r.loss for r in named.records]


def test_what_a_column_cannot_say(tmp_path: Path) -> None:
    given = hospitals(tmp_path)
    region, country = {"groups": "region"}, {"groups": "country"}
    mixed = given | {"split": {"kind": "natural", "workers": 2}}
    for more, sentence in (
        (mixed | {"tier": [region, country]}, "worker 0 has samples of more than one region"),
        (
            given | {"tier": [{"groups": "regoin"}, country]},
            "no column 'regoin'; did you mean 'region'?",
        ),
        (SMALL | {"tier": [region]}, "names a column, and the data are not a file"),
    ):
        with pytest.raises(FednagError) as error:
            fednag.run("fedavg", **more)
        assert sentence in str(error.value)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "many": ({"tier": [{"groups": 7}]}, "tier.0.groups: 7 is more than the 6 workers there are"),
    "twice": ({"tier": [{"groups": [[0, 1, 2], [2, 3, 4, 5]]}]}, "belongs to one edge"),
    "nobody": ({"tier": [{"groups": [[0, 1, 2, 3, 4, 5], []]}]}, "every edge has one at least"),
    "pi": ({"tier": [{"groups": 2, "pi": 0}]}, "tier.pi: 0 is not allowed"),
    "above": ({"tier": [{"groups": 2}, {"groups": 3}]}, "3 is more than the 2 edges tier 0 has"),
    "listed": (
        {"tier": [{"groups": 3}, {"groups": [[0, 1]]}]},
        "every edge below belongs to one edge",
    ),
    "downlink": ({"tier": [{}], "downlink": ["float16"]}, "downlink: it does not go with edges"),
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


@pytest.mark.parametrize("name", ["mime", "feddyn", "fednag-rebuilt", "fednova", "cnag"])
def test_methods_that_need_more_than_means_are_refused(name: str) -> None:
    with pytest.raises(FednagError, match="edges take means of what is sent back"):
        fednag.run(name, **SMALL, tier=[{"groups": 2}])
