"""The aggregator ``secure``: a mean in fixed point, with the protocol or as the sum it gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

pytest.importorskip("cryptography")

import fednag
from fednag import FedAvg, FednagError, Vectors
from fednag.aggregators import EqualMean, Mean, Secure
from fednag.algorithms import ALGORITHMS
from fednag.core.aggregator import Total
from fednag.core.executor import Exchange
from fednag.core.keys import VANISHING, Draws, generator
from fednag.core.loop import Scheme
from fednag.core.state import State
from fednag.core.transform import Chain
from fednag.data import partition
from fednag.data.dataset import Dataset
from fednag.problems import models
from fednag.problems.problem import Problem
from fednag.runs import checkpoint
from fednag.runs.folder import RunFolder
from fednag.secure.terms import traffic
from fednag.simulate.engine import Engine
from fednag.simulate.run import Plan, simulate
from fednag.simulate.secured import Secured
from fednag.transforms import Clip

# Those that encode what they send cannot go under masks.
SUMMED = [name for name, cls in ALGORITHMS.items() if not cls.pooled and not cls().channel]
EVERY = pytest.mark.parametrize("name", SUMMED)
SMALL: dict[str, Any] = {"model": "logistic", "tau": 4, "iterations": 12, "workers": 5}
FINE = Secure(bits=64, range=64.0)


def plan_of(dataset: Dataset, scheme: Scheme, **changes: Any) -> Plan:
    """Five workers of unequal sizes, mini-batches of 8; float64."""
    module = models.build("logistic", dataset.shape, dataset.classes or 1, seed=3)
    problem = Problem(dataset, module, "cross-entropy", dtype=torch.float64)
    deal = partition.by_size(len(dataset.x), 5, 1.0, seed=2)
    numbers = {"tau": 3, "iterations": 9, "batch": 8, "seed": 5, "chunk": 1, **changes}
    return Plan(problem, deal, scheme, **numbers)


def states(dataset: Dataset, scheme: Scheme, **changes: Any) -> list[State]:
    return list(simulate(plan_of(dataset, scheme, **changes)))


def same(a: State, b: State) -> bool:
    return all(torch.equal(a.server[name], b.server[name]) for name in b.server)


# The mean


@dataclass(frozen=True)
class Beside(Secure):
    """Computes the plain mean beside the fixed one, and compares."""

    def lift(self, rows: Vectors, weights: Tensor) -> Total:
        found = super().lift(rows, weights)
        plain = Mean().lift(rows, weights)
        beside = {f"plain.{name}": vector for name, vector in plain.sums.items()}
        one = torch.ones(1, dtype=torch.float64)
        return Total(found.sums.but(**beside, **{"plain.count": len(weights) * one}), found.weight)

    def finish(self, total: Total, rng: Any) -> Vectors:
        plain = {n: v for n, v in total.sums.items() if n.startswith("plain.")}
        mean = super().finish(
            Total(total.sums.pick([n for n in total.sums if n not in plain]), 1.0), rng
        )
        mean = mean.map(lambda vector: vector / total.weight)
        bound = self.error(int(plain.pop("plain.count")), total.weight)
        for name, vector in mean.items():
            off = (vector - plain[f"plain.{name}"] / total.weight).abs().max()
            GAPS.append(float(off) / bound)
        return mean


GAPS: list[float] = []


@EVERY
@pytest.mark.parametrize("bits", [16, 64])
def test_every_method_is_within_the_rounding_bound_of_the_plain_mean(
    blobs: Dataset, name: str, bits: int
) -> None:
    GAPS.clear()
    scheme = Scheme(ALGORITHMS[name](), aggregator=Beside(bits=bits, range=64.0))
    states(blobs, scheme, per_round=4, iterations=6)
    assert GAPS
    assert max(GAPS) <= 1
    if bits < 64:  # and near it, so that half of it would be wrong
        assert max(GAPS) > 0.05


def test_workers_may_count_the_same(blobs: Dataset) -> None:
    scheme = Scheme(ALGORITHMS["fednag"](), aggregator=Secure(bits=64, equal=True))
    plain = Scheme(ALGORITHMS["fednag"](), aggregator=EqualMean())
    ends = [states(blobs, each, per_round=4)[-1].server.w for each in (scheme, plain)]
    assert torch.allclose(*ends, atol=1e-9)
    weighted = Scheme(ALGORITHMS["fednag"](), aggregator=Secure(bits=64))
    assert not torch.allclose(states(blobs, weighted, per_round=4)[-1].server.w, ends[1], atol=1e-6)


@EVERY
def test_with_fine_numbers_a_run_is_the_plain_one(blobs: Dataset, name: str) -> None:
    plain = states(blobs, Scheme(ALGORITHMS[name]()), per_round=4)[-1]
    fixed = states(blobs, Scheme(ALGORITHMS[name](), aggregator=FINE), per_round=4)[-1]
    assert torch.allclose(plain.server.w, fixed.server.w, rtol=1e-9, atol=1e-9)


def test_by_hand() -> None:
    """16 bits, range 8: s = 2^14 / 8 = 2048. 0.75 x 1.3 x 2048 = 1996.8 and -0.25 x 2 x 2048."""
    fixed = Secure(bits=16, range=8.0)
    total = fixed.lift(Vectors(w=torch.tensor([[1.3], [-2.0]])), torch.tensor([0.75, 0.25]))
    assert total.sums.w.tolist() == [1997 - 1024]
    assert fixed.finish(total, None).w.tolist() == [973 / 2048]
    # Sums modulo 2^16: a negative one may come as its complement.
    wrapped = Total(Vectors(w=torch.tensor([2**16 - 5, 3 * 2**16 + 7])), 0.5)
    assert fixed.finish(wrapped, None).w.tolist() == [-5 / 1024, 7 / 1024]
    assert fixed.error(4) == pytest.approx(4 * 8 / 2**15)
    with pytest.raises(FednagError, match="the sum of the updates is out of range"):
        fixed.finish(Total(Vectors(w=torch.tensor([2**14 + 2**13])), 1.0), None)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(3, 9),
    st.sampled_from([16, 40, 64]),
    st.lists(st.integers(1, 10**6), min_size=9, max_size=9),
    st.randoms(use_true_random=False),
)
def test_any_grouping_gives_the_same_bits(n: int, bits: int, sizes: list[int], random: Any) -> None:
    """At the ends of the range too: sums do not overflow, and weights add up exactly."""
    fixed = Secure(bits=bits, range=2.0)
    rng = np.random.default_rng(random.randrange(10**6))
    rows = Vectors(w=torch.from_numpy(rng.choice([-2.0, 2.0, 0.3, 1e-9], (n, 6))))
    rows.w[:, 0], rows.w[:, 1] = 2.0, -2.0
    parts = [fixed.share(size, sum(sizes[:n])) for size in sizes[:n]]
    weights = torch.tensor(parts, dtype=torch.float64)
    whole = fixed.lift(rows, weights)
    order = list(range(n))
    random.shuffle(order)
    merged = None
    for i in order:
        one = fixed.lift(rows.map(lambda r, i=i: r[i : i + 1]), weights[i : i + 1])
        merged = one if merged is None else fixed.merge(merged, one)
    assert merged is not None
    assert merged.weight == whole.weight == pytest.approx(1)
    assert torch.equal(merged.sums.w, whole.sums.w)
    mean = fixed.finish(whole, None).w
    assert mean[:2].tolist() == pytest.approx([2.0, -2.0], abs=fixed.error(n))


def test_which_uploads_can_be_added_up() -> None:
    rows = Vectors(
        w=torch.tensor([[1.0, -2.0], [0.0, 2.1], [torch.nan, 0.0], [0.0, -torch.inf], [0.0, 0.0]]),
        v=torch.tensor([[0.0], [0.0], [0.0], [0.0], [-3.0]]),
    )
    assert Secure(range=2.0).takes(rows).tolist() == [True, False, False, False, False]


# The protocol in the simulator


@EVERY
def test_masks_change_no_bit(blobs: Dataset, name: str) -> None:
    """And cost the bytes that are counted without them."""
    fixed = Secure(bits=40)
    whole = states(blobs, Scheme(ALGORITHMS[name](), aggregator=fixed), per_round=4)
    scheme = Scheme(ALGORITHMS[name](), aggregator=replace(fixed, masked=True))
    masked = states(blobs, scheme, per_round=4)
    for ours, theirs in zip(masked, whole, strict=True):
        assert same(ours, theirs)
        assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
    assert masked[-1].residues.keys() == whole[-1].residues.keys()
    assert masked[-1].memories.keys() == whole[-1].memories.keys()


def test_bytes_by_hand(blobs: Dataset) -> None:
    """15 numbers, five workers, one round: w down in float64, 3 bytes a number up, the steps."""
    scheme = Scheme(FedAvg(lr=0.1), aggregator=Secure(bits=24))
    last = states(blobs, scheme, iterations=3)[-1]
    keys, shares = 5 * 64, 5 * (32 + 4 * 82)
    assert last.bytes_up == keys + shares + 5 * 15 * 3 + 5 * 5 * 33
    rosters, dealt, asked = 25 * (8 + 64), 20 * (8 + 82), 25 * 8
    assert last.bytes_down == 5 * 15 * 8 + rosters + dealt + asked


def secured(dataset: Dataset, aggregator: Secure, scheme: Scheme | None = None) -> Secured:
    plan = plan_of(dataset, scheme or Scheme(FedAvg(lr=0.1), aggregator=aggregator))
    sizes = [len(owned) for owned in plan.owned]
    draws = Draws(plan.seed, sizes, plan.batch)
    engine = Engine(plan.problem, plan.scheme, plan.owned, draws, chunk=1, threads=1)
    return Secured(engine, aggregator)


def asked_of(executor: Secured, number: int) -> Exchange:
    everyone = np.arange(5)
    sent = Vectors(w=executor.engine.problem.initial)
    stage = executor.engine.scheme.algorithm
    return Exchange(stage, 0, {}, number, sent, everyone, np.full(5, 3), 0 * everyone, 0, True)


def test_who_vanishes_is_left_out_and_the_others_are_summed(blobs: Dataset) -> None:
    """Compared with the engine alone on the survivors, whatever step the others vanished at."""
    executor = secured(blobs, Secure(masked=True, dropouts=0.3))
    engine, seen = executor.engine, set()
    with executor.engine:
        for number in range(1, 40):
            asked = asked_of(executor, number)
            rng = generator(5, VANISHING, number, 0)
            lost, steps = rng.random(5) < 0.3, rng.integers(4, size=5)
            gone = np.where(lost, steps, 9)
            if (gone < 9).sum() > 2:
                with pytest.raises(FednagError, match=f"round {number}: [12] silos?"):
                    executor.exchange(asked, {}, {})
                continue
            seen |= set(gone.tolist())
            found = executor.exchange(asked, {}, {})
            there = np.flatnonzero(gone > 2)
            weight = engine.weight(asked)
            alone = engine.exchange(replace(asked.among(gone > 2), weight=weight), {}, {})
            assert alone.total
            assert found.total
            ours, theirs = (executor.aggregator.finish(t, None) for t in (found.total, alone.total))
            assert torch.equal(ours.w, theirs.w)
            assert found.total.weight == alone.total.weight
            assert found.missed == tuple(np.flatnonzero(gone < 3).tolist())
            assert found.size == int(engine.draws.sizes[there].sum())
    assert seen == {0, 1, 2, 3, 9}


def test_a_run_with_dropouts_goes_on_to_the_same_bits(blobs: Dataset, tmp_path: Path) -> None:
    """From every round, with what methods and transforms remember."""
    fixed = Secure(masked=True, dropouts=0.2)
    scheme = Scheme(ALGORITHMS["scaffold"](), uplink=Chain((Clip(0.5),)), aggregator=fixed)
    whole = states(blobs, scheme, iterations=18)
    assert whole[-1].misses > 0
    plan, folder = plan_of(blobs, scheme, iterations=18), RunFolder(tmp_path)
    folder.records_file.touch()
    for at, state in enumerate(whole[:-1]):
        checkpoint.write(folder, state, 0, "me", {})
        saved, _ = checkpoint.newest(folder, plan, "me")
        assert saved is not None
        for ours, theirs in zip(simulate(plan, saved.state), whole[at:], strict=True):
            assert same(ours, theirs)
            assert (ours.bytes_up, ours.misses) == (theirs.bytes_up, theirs.misses)
        checkpoint.remove(folder)


@pytest.mark.parametrize("masked", [False, True])
def test_updates_that_cannot_be_summed_are_refused(
    blobs: Dataset, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, and the others' mean is used; too many, and it is a sentence; all: it has diverged."""
    fixed = Secure(masked=masked)
    executor = secured(blobs, fixed)
    asked = asked_of(executor, 1)
    original = Engine.uploads
    sick: set[int] = set()

    def uploads(self: Engine, asked: Exchange, *rest: Any) -> Any:
        found = original(self, asked, *rest)
        ill = [row for row, worker in enumerate(asked.workers.tolist()) if worker in sick]
        found.finite[ill] = False
        return found

    monkeypatch.setattr(Engine, "uploads", uploads)
    engine = executor.engine
    with engine:
        sick |= {3}
        found = executor.exchange(asked, {}, {})
        alone = engine.exchange(
            replace(asked.among(asked.workers != 3), weight=engine.weight(asked)), {}, {}
        )
        assert found.total
        assert alone.total
        assert torch.equal(fixed.finish(found.total, None).w, fixed.finish(alone.total, None).w)
        assert found.refused == (3,)
        assert (found.down, found.up) == traffic(5, 15 * 4, 4)
        sick |= {0, 1}
        with pytest.raises(FednagError, match=r"round 1: 2 silos sent a masked update.* needs 3"):
            executor.exchange(asked, {}, {})
        sick |= {2, 4}
        none = executor.exchange(asked, {}, {})
        assert none.total is None
        assert len(none.refused) == 5
        assert (none.down, none.up) == traffic(5, 0, 0)


# As users write it


def test_a_range_that_is_too_small_is_told() -> None:
    run = fednag.run(FedAvg(lr=0.1), aggregator=Secure(range=1e-4), **SMALL)
    assert run.diverged
    assert any("refused: they were not finite, or beyond aggregator.range" in n for n in run.notes)


@pytest.mark.parametrize(
    ("given_", "sentence"),
    [
        ({"uplink": ["sign"]}, "uplink.0.kind: Sign encodes what is sent"),
        ({"uplink": ["clip", "float16"]}, "uplink.1.kind: Float16 encodes what is sent"),
        ({"uplink": ["error-feedback", "quantise"]}, "uplink.1.kind: Quantise encodes"),
        ({"uplink": [{"kind": "every", "vectors": ["w"]}]}, "uplink.0.kind: Every encodes"),
        ({"algorithm": "fedpaq"}, "algorithm.name: Quantise encodes what is sent"),
        ({"clock": {"fleet": "paper-edge"}}, "clock.fleet: a clock does not time the four steps"),
        ({"workers": 2}, "secure adds up the updates of 3 to 536870912 workers a round"),
        ({"aggregator": Secure(dropouts=0.1)}, "aggregator.dropouts: workers vanish only from"),
        ({"aggregator": {"kind": "secure", "bits": 20}}, "aggregator.bits: 20 is not allowed"),
        ({"aggregator": {"kind": "secure", "bits": 72}}, "aggregator.bits: 72 is not allowed"),
        ({"aggregator": {"kind": "secure", "threshold": 0.4}}, "aggregator.threshold: 0.4 is not"),
        ({"aggregator": {"kind": "secure", "range": 0.0}}, "aggregator.range: 0.0 is not allowed"),
    ],
)
def test_what_cannot_go_under_masks_is_told(given_: dict[str, Any], sentence: str) -> None:
    given_ = {"aggregator": "secure", "algorithm": "fedavg", **SMALL, **given_}
    with pytest.raises(FednagError) as caught:
        fednag.run(given_.pop("algorithm"), **given_)
    assert sentence in str(caught.value)


def test_what_controllers_have_workers_report_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\n"
        "from fednag import Controller\n\n"
        "@dataclass(frozen=True)\n"
        "class Asking(Controller):\n"
        "    def observe(self, local, sent, data):\n"
        "        return {'loss': data.loss(local.w)}\n"
    )
    with pytest.raises(FednagError, match=r"controller.kind: Asking has each worker report"):
        fednag.run(
            "fedavg", aggregator="secure", controller=f"{tmp_path / 'own.py'}:Asking", **SMALL
        )


def test_more_workers_than_roundings_leave_room_for() -> None:
    assert Secure(bits=16).needed(8192) == 4097
    with pytest.raises(FednagError, match=r"3 to 8192 workers a round, and here are 8193; raise"):
        Secure(bits=16).needed(8193)


def test_a_file_names_it(tmp_path: Path) -> None:
    table = {"kind": "secure", "bits": 24, "range": 4.0, "threshold": 0.6}
    run = fednag.run("fednag", aggregator=table, uplink=["clip"], out=tmp_path, **SMALL)
    again = fednag.run("fednag", aggregator=Secure(24, 4.0, 0.6), uplink=[Clip()], **SMALL)
    assert run.records[-1].loss == again.records[-1].loss
    assert run.experiment.key == again.experiment.key
    assert run.folder
    assert "bits = 24" in (Path(run.folder) / "config.toml").read_text()
