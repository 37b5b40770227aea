"""Late answers: asynchrony, deadlines and over-selection; limits and numbers by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fednag
from fednag import FedAvg, FedNAG
from fednag.aggregators import Staleness
from fednag.algorithms import ALGORITHMS
from fednag.controllers import Buffered, OverSelection, SemiSynchronous
from fednag.core.loop import Scheme
from fednag.data.dataset import Dataset
from fednag.runs import checkpoint
from fednag.runs.folder import RunFolder
from fednag.simulate.run import simulate
from refusals import refused
from test_parts import FEDERATED, Uneven, gradients_of, near, plain_states, plan_of, states

WAITING: dict[str, tuple[Any, dict[str, Any]]] = {
    "buffered": (Buffered(need=3), {}),
    "as many at work": (Buffered(need=3, at_work=3), {}),
    "semi-synchronous": (SemiSynchronous(), {"deadline": 1e9}),
    "over-selection": (OverSelection(ask=3), {}),
}


@pytest.mark.parametrize("name", FEDERATED)
@pytest.mark.parametrize("kind", WAITING)
def test_all_answers_awaited_is_the_plain_round_to_the_bit(
    blobs: Dataset, name: str, kind: str
) -> None:
    controller, more = WAITING[kind]
    method = ALGORITHMS[name]()
    scheme = Scheme(method, controller)
    given = {"clock": Uneven, "per_round": 3, **more}
    if controller.keeps_late and not method.rounds_alike:
        with refused("controller.kind"):
            states(blobs, scheme, **given)
        return
    for ours, theirs in zip(states(blobs, scheme, **given), plain_states(blobs, name), strict=True):
        assert all(torch.equal(ours.server[key], theirs.server[key]) for key in theirs.server)


def test_staleness_by_hand() -> None:
    """s(k) = rate (1 + max(0, k - grace))^-power."""
    rule = Staleness(power=1.0, grace=1, rate=0.5)
    assert [rule.discount(late) for late in (0, 1, 2, 4)] == [0.5, 0.5, 0.25, 0.125]
    assert Staleness(power=0.0).discount(7) == 1.0
    assert [Staleness(equal=equal).weight(30, 2) for equal in (False, True)] == [30.0, 1.0]


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("mix", [False, True])
@pytest.mark.parametrize("rate", [1.0, 0.6])
def test_a_late_answer_counts_for_less_by_hand(
    blobs: Dataset, equal: bool, mix: bool, rate: float
) -> None:
    """Worker i takes 1 + i seconds a step, two answers a round: 0, 1; then 0 and, late, 2."""
    rule = Staleness(power=1.0, rate=rate, equal=equal, mix=mix)
    scheme = Scheme(FedAvg(lr=0.1), Buffered(need=2), aggregator=rule)
    plan = plan_of(blobs, scheme, tau=1, batch=0, iterations=2, clock=Uneven)
    first, second = list(simulate(plan))[1:]
    w = plan.problem.initial
    p = [1, 1, 1, 1] if equal else [int(size) for size in plan.partition.sizes]
    g = gradients_of(plan, w)
    now = w - 0.1 * rate * (p[0] * g[0] + p[1] * g[1]) / (p[0] + p[1])
    assert near(first.server.w, now)
    late, fresh = w - 0.1 * g[2], -0.1 * gradients_of(plan, now)[0]
    old = late - (now if mix else w)
    after = now + rate * (p[0] * fresh + p[2] * 0.5 * old) / (p[0] + p[2])
    assert near(second.server.w, after)
    assert second.news.staleness == (0, 1)


def test_one_answer_at_a_time_is_fedasync(blobs: Dataset) -> None:
    """w <- (1 - a_k) w + a_k w_i, a_k = a (1 + k)^-power: FedNAG's w and v alike."""
    rule = Staleness(power=1.0, rate=0.6, mix=True)
    scheme = Scheme(FedNAG(lr=0.1), Buffered(need=1), aggregator=rule)
    plan = plan_of(blobs, scheme, tau=1, batch=0, iterations=2, clock=Uneven)
    begun, first, second = simulate(plan)
    method, w = plan.algorithm, plan.problem.initial

    def trained(worker: int, sent: Any) -> Any:
        rows = sent.map(lambda vector: vector.unsqueeze(0))
        slope = lambda x: gradients_of(plan, x[0])[worker].unsqueeze(0)  # noqa: E731
        return method.step(rows, slope, rows, rows).map(lambda vector: vector[0])

    assert near(begun.server.w, w)
    own = trained(0, begun.server)
    for name in ("w", "v"):
        assert near(first.server[name], 0.4 * begun.server[name] + 0.6 * own[name])
    # At 2 s both worker 0, sent for at 1 s, and worker 1, since the start: the first by number.
    own = trained(0, first.server)
    for name in ("w", "v"):
        assert near(second.server[name], 0.4 * first.server[name] + 0.6 * own[name])
    assert (first.clock, second.clock) == (1.0, 2.0)


def test_a_deadline_whose_late_answers_count(blobs: Dataset) -> None:
    """Workers take 1 to 4 s; at 2.5 s two are here. Then 2 (at 3 s), 0, 3 (at 4 s) and 1."""
    scheme = Scheme(FedAvg(lr=0.1), SemiSynchronous())
    given: dict[str, Any] = {"tau": 1, "iterations": 3, "clock": Uneven, "deadline": 2.5}
    found = states(blobs, scheme, **given)[1:]
    assert [state.clock for state in found] == [2.5, 4.5, 7.0]
    assert [state.news.staleness for state in found] == [(0, 0), (0, 0, 1, 1), (0, 0)]
    assert [flight.worker for flight in found[0].flying] == [2, 3]
    assert [state.misses for state in found] == [0, 0, 0]


def test_a_round_that_nobody_ends_in_time_is_waited_for(blobs: Dataset) -> None:
    scheme = Scheme(FedAvg(lr=0.1), SemiSynchronous())
    given: dict[str, Any] = {"tau": 1, "iterations": 3, "clock": Uneven, "deadline": 0.75}
    begun, first, second, third = states(blobs, scheme, **given)
    assert [state.clock for state in (first, second, third)] == [0.75, 1.5, 2.25]
    assert torch.equal(first.server.w, begun.server.w)
    assert not torch.equal(second.server.w, first.server.w)
    assert second.news.staleness == (1,)


def test_the_first_of_more_than_are_needed(blobs: Dataset) -> None:
    """All four are asked and two are taken, the quick ones; the others' work is lost."""
    scheme = Scheme(FedAvg(lr=0.1), OverSelection(ask=4))
    given: dict[str, Any] = {"tau": 1, "batch": 0, "iterations": 2, "clock": Uneven, "per_round": 2}
    plan = plan_of(blobs, scheme, **given)
    _, first, second = simulate(plan)
    sizes, w = plan.partition.sizes, plan.problem.initial
    g = gradients_of(plan, w)
    mean = (int(sizes[0]) * g[0] + int(sizes[1]) * g[1]) / int(sizes[0] + sizes[1])
    assert near(first.server.w, w - 0.1 * mean)
    assert (first.clock, second.clock) == (2.0, 4.0)
    assert first.missed == (2, 3)
    assert not first.flying
    assert first.bytes_down == 2 * first.bytes_up


def test_so_many_are_at_work_at_any_time(blobs: Dataset) -> None:
    scheme = Scheme(FedAvg(lr=0.1), Buffered(need=1, at_work=2))
    found = states(blobs, scheme, tau=1, iterations=8, clock=Uneven)[1:]
    assert [len(state.flying) for state in found] == [1] * 8
    assert max(state.news.staleness[0] for state in found) >= 1
    everyone = {f.worker for state in found for f in state.flying}
    assert everyone == {1, 2, 3}  # and 0, which is the quickest


@pytest.mark.parametrize("name", ["fednag", "scaffold", "slowmo"])
@pytest.mark.parametrize(
    "parts",
    [
        {"controller": Buffered(need=1, at_work=3), "aggregator": Staleness(mix=True, rate=0.6)},
        {"controller": SemiSynchronous(), "aggregator": Staleness()},
        {"controller": OverSelection(ask=4)},
    ],
    ids=["fedasync", "deadline", "more"],
)
def test_with_work_in_flight_it_goes_on_to_the_same_bits(
    blobs: Dataset, name: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    scheme = Scheme(ALGORITHMS[name](), **parts)
    late = isinstance(parts["controller"], SemiSynchronous)
    given: dict[str, Any] = {"clock": Uneven, "per_round": 3, "iterations": 15}
    given |= {"deadline": 7.0} if late else {}
    whole, plan = states(blobs, scheme, **given), plan_of(blobs, scheme, **given)
    folder = RunFolder(tmp_path)
    folder.records_file.touch()
    assert any(state.flying for state in whole) == scheme.controller.keeps_late
    for at in (1, 3):
        checkpoint.write(folder, whole[at], 0, "me", {})
        saved, _ = checkpoint.newest(folder, plan, "me")
        assert saved is not None
        for ours, theirs in zip(simulate(plan, saved.state), whole[at:], strict=True):
            for key, vector in theirs.server.items():
                assert torch.equal(ours.server[key], vector)
            assert (ours.clock, ours.bytes_up) == (theirs.clock, theirs.bytes_up)
        checkpoint.remove(folder)


SMALL: dict[str, Any] = {"model": "logistic", "tau": 2, "iterations": 8, "workers": 4}
EDGE = {"fleet": "paper-edge"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"controller": "semi-synchronous"}, "there is no clock"),
        ({"controller": "semi-synchronous", "clock": EDGE}, "clock.deadline: is missing"),
        ({"controller": {"kind": "over-selection", "ask": 5}, "clock": EDGE}, "5 is not between"),
        (
            {
                "controller": {"kind": "over-selection", "ask": 2},
                "clock": EDGE,
                "training": {"participants": 3},
            },
            "2 is not between",
        ),
        ({"aggregator": "staleness", "clock": EDGE}, "staleness is of late answers"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(fednag.FednagError, match=sentence):
        fednag.run(**SMALL | given)


def test_a_run_that_did_not_wait_is_timed_as_it_was(tmp_path: Path) -> None:
    from fednag.clock import load_fleet, replay_runs, timed_run

    given = SMALL | {"controller": {"kind": "buffered", "need": 2}, "clock": EDGE}
    run = fednag.run(**given, evaluation={"every": 2})
    (timed,) = replay_runs([timed_run(run.view)], load_fleet("paper-edge"))
    (played,) = timed.replays
    assert [played.ends[record.round] for record in run.records] == [r.clock for r in run.records]
    waiting = fednag.run(**SMALL, clock=EDGE)
    assert played.ends[-1] < (waiting.records[-1].clock or 0)
