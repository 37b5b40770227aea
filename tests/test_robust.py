"""Robust aggregators and attacks: limits, numbers by hand, breakdown, whom a bound refuses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from torch import Tensor

import fednag
from commands import Caller
from fednag import ALGORITHMS, FedAvg, FedNAG, FednagError, Vectors
from fednag.aggregators import (
    AGGREGATORS,
    CentredClipping,
    EqualMean,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormBound,
    TrimmedMean,
)
from fednag.attacks import (
    ATTACKS,
    Alie,
    Constant,
    FreeRider,
    LabelFlip,
    Noise,
    Scale,
    SignFlip,
)
from fednag.config import parse
from fednag.core.aggregator import Aggregator, RowAggregator
from fednag.core.loop import Scheme
from fednag.core.state import State
from fednag.core.transform import Chain
from fednag.data.dataset import Dataset
from fednag.runs.folder import RunFolder
from fednag.simulate.run import simulate
from fednag.transforms import Clip
from test_parts import EVERY, plan_of, states

SMALL: dict[str, Any] = {"model": "logistic", "tau": 4, "iterations": 12, "workers": 4}


def bag(*rows: Sequence[float], **more: Sequence[Sequence[float]]) -> Vectors:
    named = {name: torch.tensor(own, dtype=torch.float64) for name, own in more.items()}
    return Vectors(w=torch.tensor(rows, dtype=torch.float64), **named)


def aggregate(aggregator: Aggregator, rows: Vectors, weights: Sequence[float] = ()) -> Vectors:
    count = len(rows.w)
    each = torch.tensor(list(weights) or [1.0] * count, dtype=torch.float64)
    total, _ = aggregator.screen(aggregator.gather(rows, each, range(count)))
    return aggregator.finish(total, None)


def refused(aggregator: Aggregator, rows: Vectors) -> list[int]:
    weights = torch.ones(len(rows.w), dtype=torch.float64)
    return sorted(aggregator.screen(aggregator.gather(rows, weights, range(len(rows.w))))[1])


def quick(dataset: Dataset, method: Any) -> Callable[..., State]:
    """Plays a round or two of a method with other parts, and does not record its steps first."""
    plan = plan_of(dataset, Scheme(method), iterations=6)
    plan.problem.use_plain_loop("it is quicker")

    def play(**parts: Any) -> State:
        rounds = parts.pop("rounds", 2)
        return list(simulate(replace(plan, scheme=Scheme(method, **parts), iterations=3 * rounds)))[
            -1
        ]

    return play


# Numbers by hand


@pytest.mark.parametrize(
    ("aggregator", "rows", "wanted"),
    [
        (Median(), [[1], [9], [2]], 2.0),
        (Median(), [[1], [9], [2], [4]], 3.0),
        (Median(), [[5], [5], [5], [7]], 5.0),
        (Median(), [[1.6e308], [1.7e308]], 1.65e308),
        (TrimmedMean(0.25), [[1], [9], [2], [4]], 3.0),
        (TrimmedMean(0.2), [[1], [9], [2], [4]], 3.0),
        (TrimmedMean(0.0), [[1], [9], [2], [4]], 4.0),
        (TrimmedMean(0.49), [[1], [9]], 5.0),
        (TrimmedMean(0.3), [[n] for n in (0, 1, 2, 3, 4, 5, 6, 7, 80, 90)], 4.5),
        # Of five with f = 1, the two nearest: 0 + 1, 1 + 1, 1 + 1, 4 + 9, ...; the first of equals.
        (Krum(0.2), [[0], [1], [2], [4], [50]], 1.0),
        (MultiKrum(0.2), [[0], [1], [2], [4], [50]], 1.75),
        (Krum(0.4), [[0], [1.5], [2], [4], [50]], 1.5),  # the nearest one: 1.5, 0.5, 0.5, 2, 46
        (MultiKrum(0.2), [[0], [1], [2], [40]], 1.0),
        (Krum(0.4), [[7]], 7.0),
        (Krum(0.4), [[7], [8]], 7.0),
        (CentredClipping(2.0), [[1], [-8], [3]], 1 / 3),
        (NormBound(3.0), [[1], [-2], [6], [7]], 5 / 3),  # lower median 2: at most 6
    ],
)
def test_aggregates_by_hand(aggregator: Aggregator, rows: Any, wanted: float) -> None:
    assert float(aggregate(aggregator, bag(*rows)).w) == pytest.approx(wanted, rel=1e-14)


def test_weights_count_where_the_rule_has_them() -> None:
    rows, weights = bag([1.0], [2.0], [6.0]), (1.0, 2.0, 5.0)
    assert float(aggregate(NormBound(3.0), rows, weights).w) == pytest.approx(35 / 8)
    assert float(aggregate(NormBound(2.0), rows, weights).w) == pytest.approx(5 / 3)
    assert float(aggregate(CentredClipping(2.0), rows, weights).w) == pytest.approx(15 / 8)
    for alike in (Median(), TrimmedMean(), Krum(), MultiKrum()):
        assert torch.equal(aggregate(alike, rows, weights).w, aggregate(alike, rows).w)


def test_a_vector_that_is_short_hides_nothing() -> None:
    """FedNAG's v may be a hundredth of w: it is measured in its own unit."""
    w = [[1.0, 0.0], [0.0, 1.1], [1.2, 0.0], [0.0, 1.3], [1.4, 0.0]]
    rows = bag(*w, v=[[0.2, 0.0], [0.22, 0.0], [0.24, 0.0], [0.26, 0.0], [20.0, 0.0]])
    # Units 1.2 and 0.24; lengths 1.18, 1.30, 1.41, 1.53 and 83.3, the lower median 1.41.
    assert refused(NormBound(59.0), rows) == []
    assert refused(NormBound(58.0), rows) == [4]
    assert float(aggregate(Krum(), rows).v[0]) != 20.0
    assert int(Krum().scores(rows, torch.float64).argmax()) == 4
    # One that is close to all others in w, and far off in a v that is short.
    corners = torch.eye(4).tolist()
    rows = bag(
        *corners,
        [0.25] * 4,
        v=[[0.001, 0.0], [0.0011, 0.0], [0.0012, 0.0], [0.0013, 0.0], [0.05, 0.0]],
    )
    assert int(Krum().scores(Vectors(w=rows.w), torch.float64).argmin()) == 4
    assert int(Krum().scores(rows, torch.float64).argmax()) == 4
    # But of momenta that are nearly 0, none is long: the unit is 0.12.
    rows = bag(*w, v=[[1e-5, 0.0], [1e-5, 0.0], [1e-5, 0.0], [1e-5, 0.0], [0.012, 0.0]])
    assert refused(NormBound(1.2), rows) == []


def test_a_single_number_is_measured_by_its_root() -> None:
    """Counts of steps differ by data size, squares of lengths by more; 10^30 is refused."""
    w = [[1.0, 1.0]] * 5
    assert refused(NormBound(10.0), bag(*w, n=[[1.0], [2.0], [3.0], [4.0], [350.0]])) == []
    assert refused(NormBound(10.0), bag(*w, n=[[1.0], [2.0], [3.0], [4.0], [1e30]])) == [4]
    # A model of one parameter is no count.
    assert refused(NormBound(10.0), bag([1.0], [1.0], [11.0])) == [2]
    # Clipping leaves a count alone; a median takes the one in the middle.
    rows = bag([3.0, 4.0], [0.0, 0.5], [0.0, 0.5], n=[[100.0], [200.0], [600.0]])
    assert aggregate(CentredClipping(1.0), rows).n.tolist() == [300.0]
    assert aggregate(CentredClipping(1.0), rows).w.tolist() == pytest.approx([0.2, 0.6])
    assert aggregate(Median(), rows).n.tolist() == [200.0]


def test_running_statistics_are_clipped_by_themselves() -> None:
    rows = bag([0.3, 0.0], [0.0, 0.4], buffers=[[0.0, 30.0], [4.0, 3.0]])
    found = aggregate(CentredClipping(5.0), rows)
    assert found.w.tolist() == pytest.approx([0.15, 0.2])
    assert found.buffers.tolist() == pytest.approx([2.0, 4.0])


def test_who_sends_nothing_does_not_say_what_is_long() -> None:
    """Else two free riders of three would have the honest worker refused."""
    assert refused(NormBound(10.0), bag([0.0], [0.0], [5.0])) == []
    assert refused(NormBound(10.0), bag([0.0], [0.0], [0.0])) == []
    assert refused(NormBound(10.0), bag([0.0], [0.0], [0.0], [0.0], [5.0], [60.0])) == [5]
    assert refused(NormBound(10.0), bag([0.0], [2.0], [1e30])) == [2]
    assert refused(NormBound(inf), bag([0.0], [0.0], [1e308])) == []


# Limits and breakdown

LIMITS: dict[str, tuple[Aggregator, Aggregator]] = {
    "any length": (NormBound(inf), Mean()),
    "any radius": (CentredClipping(inf), Mean()),
    "nothing trimmed": (TrimmedMean(0.0), EqualMean()),
    "nobody lies": (MultiKrum(0.0), EqualMean()),
}


@EVERY
def test_in_the_limit_they_are_means(blobs: Dataset, name: str) -> None:
    play = quick(blobs, ALGORITHMS[name]())
    plain = {mean: play(aggregator=mean) for mean in (Mean(), EqualMean())}
    assert not torch.allclose(*[state.server.w for state in plain.values()], atol=1e-7)
    for limit, (aggregator, mean) in LIMITS.items():
        last = play(aggregator=aggregator)
        for key, wanted in plain[mean].server.items():
            torch.testing.assert_close(last.server[key], wanted, rtol=1e-9, atol=1e-12, msg=limit)
        assert last.refusals == 0


ROBUST = ["centred-clipping", "norm-bound", "median", "trimmed-mean", "krum", "multi-krum"]


@EVERY
def test_with_any_method_a_liar_moves_nothing_far(blobs: Dataset, name: str) -> None:
    """One of four sends 10^30, gradients and numbers too: the model stays where models are."""
    play, attacks = quick(blobs, ALGORITHMS[name]()), (Constant(workers=(1,)),)
    unbounded = name in ("fednova", "fedexp")  # their numbers: refused, see below
    for kind in ROBUST[unbounded:]:
        last = play(aggregator=AGGREGATORS[kind](), attacks=attacks)
        assert float(last.server.w.abs().max()) < 10, kind
        assert not last.diverged
        named = (2, (1,)) if kind == "norm-bound" else (0, ())
        assert (last.refusals, last.refused) == named
    lost = play(attacks=attacks, rounds=1)
    bounded = name in ("fedadam", "fedyogi", "fedadagrad")  # they divide by the size of what comes
    assert float(lost.server.w.abs().max()) > 1e6 or bounded


@pytest.mark.parametrize("name", ["fednova", "fedexp"])
def test_a_number_that_clipping_does_not_bound_is_refused(name: str) -> None:
    with pytest.raises(FednagError) as caught:
        fednag.run(name, model="logistic", iterations=10, aggregator="centred-clipping")
    assert caught.value.field == "aggregator.kind"
    assert "the number that" in caught.value.problem


finite = some.floats(-1e3, 1e3)
wild = some.floats(allow_nan=False, allow_infinity=False)


@given(some.data(), some.integers(1, 9))
def test_fewer_than_half_cannot_leave_the_honest_range(data: Any, count: int) -> None:
    liars = data.draw(some.integers(0, (count - 1) // 2))
    honest = data.draw(some.lists(finite, min_size=count - liars, max_size=count - liars))
    rest = data.draw(some.lists(wild, min_size=liars, max_size=liars))
    rows = bag(*([n] for n in data.draw(some.permutations(honest + rest))))
    for aggregator in (Median(), TrimmedMean(min(0.499, liars / count))):
        found = float(aggregate(aggregator, rows).w)
        slack = 1e-12 * max(map(abs, honest))
        assert min(honest) - slack <= found <= max(honest) + slack


@pytest.mark.parametrize("kind", ["mean", "equal", *ROBUST[1:]])
def test_one_worker_is_its_own_aggregate(kind: str) -> None:
    rows = bag([3.0, -4.0], v=[[0.5, 0.0]])
    assert torch.equal(aggregate(AGGREGATORS[kind](), rows).w, rows.w[0])


HOLDING = [name for name, cls in AGGREGATORS.items() if issubclass(cls, RowAggregator)]


@pytest.mark.parametrize("kind", HOLDING)
def test_no_tree_of_merges_changes_a_bit(kind: str) -> None:
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(9, 50, generator=generator)
    w[4] *= 100
    weights = torch.rand(9, generator=generator, dtype=torch.float64)
    aggregator, rows = AGGREGATORS[kind](), Vectors(w=w, v=-w[:, :7])

    def part(*places: int) -> Any:
        chosen = list(places)
        return aggregator.gather(rows.map(lambda v: v[chosen]), weights[chosen], chosen)

    flat = part(*range(9))
    tree = aggregator.merge(
        aggregator.merge(part(8), part(3, 4)),
        aggregator.merge(aggregator.merge(part(5, 6, 7), part(0)), part(1, 2)),
    )
    assert aggregator.screen(tree)[1] == aggregator.screen(flat)[1]
    a, b = (aggregator.finish(aggregator.screen(total)[0], None) for total in (flat, tree))
    assert all(torch.equal(a[name], b[name]) for name in rows)


# Who is refused


def test_a_refused_worker_is_named_and_leaves_no_trace(blobs: Dataset) -> None:
    """SCAFFOLD's c_i, what error feedback left out: a refused worker keeps its old ones."""
    from fednag.transforms import ErrorFeedback, TopK

    uplink = Chain((ErrorFeedback(), TopK(share=0.5)))
    scheme = Scheme(fednag.Scaffold(), uplink=uplink, aggregator=NormBound(5.0))
    lying = replace(scheme, attacks=(Scale(factor=1e4, workers=(2,)),))
    plain, attacked = states(blobs, scheme), states(blobs, lying)
    assert set(plain[-1].memories) == {0, 1, 2, 3}
    assert {worker for worker, _ in plain[-1].residues} == {0, 1, 2, 3}
    assert set(attacked[-1].memories) == {0, 1, 3}
    assert {worker for worker, _ in attacked[-1].residues} == {0, 1, 3}
    assert [state.refusals for state in attacked] == [0, 1, 2, 3, 4]
    assert attacked[-1].record is not None
    assert (attacked[-1].record.refused, attacked[-1].participants) == ((2,), 4)
    assert attacked[-1].news.share == pytest.approx(63 / 75)  # worker 2 has 12 samples


@pytest.mark.parametrize("method", [FedAvg(lr=0.1), FedNAG(lr=0.1)])
def test_the_others_go_on_as_if_the_liar_were_not_there(blobs: Dataset, method: Any) -> None:
    from fednag.controllers import Constant as Everyone

    @dataclass(frozen=True)
    class Without(Everyone):
        """Worker 1 is not asked."""

        def next(self, *given: Any) -> Any:
            order, state = super().next(*given)
            return replace(order, cohort=order.cohort[order.cohort != 1]), state

    lying = Scheme(method, aggregator=NormBound(), attacks=(Constant(3e38, workers=(1,)),))
    beside = states(blobs, lying)[-1]
    alone = states(blobs, Scheme(method, Without(), aggregator=NormBound()))[-1]
    assert all(torch.equal(beside.server[key], alone.server[key]) for key in alone.server)
    assert beside.news.share == alone.news.share < 1


def test_notes_say_who_refused(tmp_path: Path) -> None:
    run = fednag.run("fedavg", aggregator="norm-bound", attack=[Scale(workers=(3,))], **SMALL)
    (note,) = [note for note in run.notes if "refused" in note]
    assert "updates of worker 3 were refused" in note
    assert "or too long for the aggregator" in note
    assert "attack: scale by worker 3" in run.notes
    assert [record.refused for record in run.records[1:]] == [(3,)] * 3


def test_late_answers_are_aggregated_with_the_others(blobs: Dataset) -> None:
    """Rows of several rounds meet in one total."""
    from fednag.controllers import Buffered
    from test_parts import Uneven

    plain = states(blobs, Scheme(FedAvg(), Buffered(need=2)), clock=Uneven)[-1]
    held = states(
        blobs, Scheme(FedAvg(), Buffered(need=2), aggregator=NormBound(inf)), clock=Uneven
    )
    torch.testing.assert_close(held[-1].server.w, plain.server.w, rtol=1e-12, atol=1e-14)
    assert plain.misses == held[-1].misses


# Attacks


@dataclass(frozen=True)
class Seen(RowAggregator):
    """The plain mean; what came up is put in a list."""

    rows: list[Vectors] = field(default_factory=list)
    exact = False

    def combine(self, rows: Vectors, weights: Tensor) -> Vectors:
        self.rows.append(rows)
        return rows.map(lambda vector: weights @ vector / weights.sum())


def first_uploads(dataset: Dataset, *attacks: Any, **changes: Any) -> Vectors:
    """What four workers of FedNAG send in the first round, as differences."""
    seen, uplink = Seen(), Chain(changes.pop("uplink", ()))
    scheme = Scheme(FedNAG(lr=0.1), uplink=uplink, aggregator=seen, attacks=attacks)
    states(dataset, scheme, iterations=3, **changes)
    return seen.rows[0]


@pytest.mark.parametrize("chunk", [1, 3])
def test_attacks_by_hand(blobs: Dataset, chunk: int) -> None:
    honest = first_uploads(blobs, chunk=1)
    mean = honest.map(lambda rows: rows[[0, 2]].mean(0))
    apart = honest.map(lambda rows: (rows[0] - rows[2]).abs() / 2)
    wanted: dict[Any, Callable[[str, Tensor], Tensor]] = {
        SignFlip(2.0, workers=(1, 3)): lambda _, mine: -2 * mine,
        Scale(workers=(1, 3)): lambda _, mine: 100 * mine,
        Constant(-7.0, workers=(1, 3)): lambda _, mine: torch.full_like(mine, -7.0),
        FreeRider(workers=(1, 3)): lambda _, mine: torch.zeros_like(mine),
        Alie(0.5, workers=(1, 3)): lambda n, mine: (mean[n] - 0.5 * apart[n]).expand(2, -1),
    }
    for attack, forged in wanted.items():
        found = first_uploads(blobs, attack, chunk=chunk, threads=2)
        for name, rows in honest.items():
            expected = forged(name, rows[[1, 3]])
            torch.testing.assert_close(found[name][[1, 3]], expected, rtol=1e-9, atol=1e-12)
            others = found[name][[0, 2]], rows[[0, 2]]
            torch.testing.assert_close(*others, rtol=1e-12, atol=1e-14)


def test_attacks_follow_one_another_and_go_before_transforms(blobs: Dataset) -> None:
    honest = first_uploads(blobs).w
    two = first_uploads(blobs, Scale(10.0, workers=(0,)), SignFlip(workers=(0, 1))).w
    torch.testing.assert_close(two[0], -10 * honest[0], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(two[1], -honest[1], rtol=1e-9, atol=1e-12)
    clipped = first_uploads(blobs, Scale(workers=(0,)), uplink=(Clip(1.0),))
    length = sum(vector[0].square().sum() for vector in clipped.values())
    assert float(length) == pytest.approx(1.0)  # not 100


def test_where_all_attack_there_is_nobody_to_look_at(blobs: Dataset) -> None:
    everyone = Alie(share=1.0)
    assert torch.equal(first_uploads(blobs, everyone, chunk=1).w, first_uploads(blobs, chunk=1).w)


def test_noise_is_keyed_by_round_and_worker(blobs: Dataset) -> None:
    plain = first_uploads(blobs, chunk=1).w
    found = [
        first_uploads(blobs, Noise(share=1.0), chunk=n, threads=t).w for n, t in ((1, 1), (3, 2))
    ]
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-12)
    noise = found[0] - plain
    assert 0.5 < float(noise.std()) < 1.5
    assert float((noise[0] - noise[1]).abs().min()) > 0


def test_false_labels_are_trained_on_and_not_measured(blobs: Dataset) -> None:
    plan = plan_of(blobs, Scheme(FedNAG()))
    mine = torch.from_numpy(plan.owned[1])
    y = blobs.y.clone()
    y[mine] = 2 - y[mine]
    found = first_uploads(blobs, LabelFlip(workers=(1,)), chunk=2)
    other = first_uploads(replace(blobs, y=y), chunk=2).w
    torch.testing.assert_close(found.w, other, rtol=1e-12, atol=1e-12)
    assert not torch.equal(found.w[1], first_uploads(blobs, chunk=2).w[1])
    flipped = states(
        blobs, Scheme(FedNAG(lr=0.1), attacks=(LabelFlip(share=1.0),)), per_worker=True
    )
    plain = states(blobs, Scheme(FedNAG(lr=0.1)), per_worker=True)
    a, b = flipped[0].record, plain[0].record
    assert a is not None
    assert b is not None
    assert (a.loss, a.accuracy, a.worker_losses) == (b.loss, b.accuracy, b.worker_losses)
    a, b = flipped[-1].record, plain[-1].record
    assert a is not None
    assert b is not None
    assert (a.loss or 0) > (b.loss or 9)
    assert flipped[-1].record.worker_losses != plain[-1].record.worker_losses  # type: ignore[union-attr]


def test_attackers_are_drawn_by_the_seed() -> None:
    few, many = SignFlip(share=0.2).attackers(3, 10), Scale(share=0.5).attackers(3, 10)
    assert (len(few), len(many)) == (2, 5)
    assert set(few) < set(many)
    assert few != SignFlip(share=0.2).attackers(4, 10)
    assert len(SignFlip(share=0.01).attackers(0, 10)) == 1
    assert SignFlip(share=0.5, workers=(7,)).attackers(0, 10) == (7,)


@pytest.mark.parametrize("kind", ATTACKS)
def test_an_attacked_run_goes_on_to_the_same_bits(blobs: Dataset, kind: str) -> None:
    scheme = Scheme(FedNAG(), attacks=(ATTACKS[kind](share=0.5),), aggregator=NormBound(2.0))
    every = states(blobs, scheme, per_round=3)
    middle: State = every[2]
    *_, last = simulate(plan_of(blobs, scheme, per_round=3), middle)
    assert torch.equal(last.server.w, every[-1].server.w)
    assert last.refusals == every[-1].refusals
    plain = states(blobs, replace(scheme, attacks=()), per_round=3)
    assert any(not torch.equal(a.server.w, b.server.w) for a, b in zip(every, plain, strict=True))


# As users write it


def test_attacks_are_in_file_key_and_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "it.toml").write_text(
        """
        [model]
        name = "logistic"
        [split]
        workers = 4
        [training]
        tau = 4
        iterations = 12
        [aggregator]
        kind = "trimmed-mean"
        share = 0.25
        [[attack]]
        kind = "sign-flip"
        workers = [3]
        """
    )
    call = Caller(monkeypatch, capsys)
    words = ["run", str(tmp_path / "it.toml"), "--set", "attack.0.factor=2.0", "--json"]
    found = call(*words, "--out", str(tmp_path / "runs"))
    assert found.code == 0, found.err
    attack = [SignFlip(factor=2.0, workers=(3,))]
    run = fednag.run("fednag", aggregator=TrimmedMean(0.25), attack=attack, **SMALL)
    (folder,) = (tmp_path / "runs").glob("*/*")
    assert RunFolder(folder).records()[-1].loss == run.records[-1].loss
    assert folder.name.endswith(run.experiment.key)
    assert "[[attack]]" in (folder / "config.toml").read_text()
    plain = fednag.run("fednag", aggregator=TrimmedMean(0.25), **SMALL)
    assert plain.experiment.attack == ()
    assert plain.experiment.key != run.experiment.key
    assert plain.records[-1].loss != run.records[-1].loss
    assert call("resume", str(folder), "--json").code == 0
    assert {a.records[0].loss for a in (plain, run)} == {plain.records[0].loss}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"attack": ["sign-flop"]}, "attack.0.kind: no attack 'sign-flop' .did you mean"),
        ({"attack": [{"kind": "scale", "workers": [4]}]}, "attack.0.workers: there is no worker 4"),
        ({"attack": [{"kind": "scale", "workers": [-1]}]}, "attack.0.workers"),
        ({"attack": [{"kind": "scale", "share": 0.0}]}, "attack.0.share"),
        ({"attack": "scale"}, "attack: give a list"),
        ({"aggregator": {"kind": "norm-bound", "factor": 0.5}}, "aggregator.factor"),
        ({"aggregator": {"kind": "trimmed-mean", "share": 0.5}}, "aggregator.share"),
        ({"aggregator": {"kind": "centred-clipping", "radius": 0.0}}, "aggregator.radius"),
        (
            {
                "attack": ["alie"],
                "controller": {"kind": "buffered", "need": 2},
                "clock": {"fleet": "paper-edge"},
            },
            "attack.0.kind: alie needs what all honest workers send",
        ),
        (
            {"attack": ["label-flip"], "data": (torch.randn(40, 3), torch.randn(40))},
            "attack.0.kind: label-flip changes labels, and these data have none",
        ),
    ],
)
def test_what_cannot_be_is_told_before_training(given: dict[str, Any], sentence: str) -> None:
    model = {"model": torch.nn.Linear(3, 1)} if "data" in given else {}
    with pytest.raises(FednagError, match=sentence):
        fednag.run("fedavg", **{**SMALL, **given, **model})


def test_nothing_is_attacked_in_a_centralised_run() -> None:
    plain = fednag.run("cnag", **SMALL)
    run = fednag.run("cnag", attack=["constant", "label-flip"], **SMALL)
    assert [r.loss for r in run.records] == [r.loss for r in plain.records]
    assert all(a.bytes_up == b.bytes_up for a, b in pairwise(run.records))
    assert parse({}).attack == ()
