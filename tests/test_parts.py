"""Laws of the round's parts: every method with every neutral part, limits, and numbers by hand."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fednag
from commands import Caller
from fednag import Aggregator, Controller, FedAvg, FedNAG, Order, Transform, Vectors
from fednag.aggregators import AGGREGATORS, EqualMean
from fednag.algorithms import ALGORITHMS
from fednag.config import parse
from fednag.controllers import (
    CONTROLLERS,
    SCHEDULES,
    Buffered,
    Constant,
    Cosine,
    Inverse,
    Rising,
    Steps,
    StepsByWorker,
)
from fednag.core.algorithm import Algorithm, FullGradient, News
from fednag.core.controller import Schedule, Setting
from fednag.core.executor import Exchange, Executor
from fednag.core.keys import Draws, Indexes
from fednag.core.loop import Scheme
from fednag.core.state import State
from fednag.core.transform import Chain
from fednag.data import partition
from fednag.data.dataset import Dataset
from fednag.flower.settings import read_run_config
from fednag.runs import checkpoint
from fednag.runs.folder import RunFolder
from fednag.simulate.run import Plan, simulate
from fednag.simulate.steps import RecordedStep
from fednag.transforms import TRANSFORMS, Clip, Float16
from flower_kit import config_of, gap, grid_of, play, simulated
from refusals import refused
from test_laws import problem_of

FEDERATED = [name for name, cls in ALGORITHMS.items() if not cls.pooled]
EVERY = pytest.mark.parametrize("name", FEDERATED)
SMALL: dict[str, Any] = {"model": "logistic", "tau": 4, "iterations": 12, "workers": 4}


# Parts that change nothing, and parts with a memory


@dataclass(frozen=True)
class Copied(Transform):
    """Changes nothing, but does not say so: points travel as differences."""

    def apply(self, up: Vectors, kept: Vectors, rng: Any) -> tuple[Vectors, Vectors]:
        return up.map(torch.clone), kept


@dataclass(frozen=True)
class Exactly(Copied):
    exact = True


@dataclass(frozen=True)
class Largest(Transform):
    """Sends the largest numbers, and the rest later."""

    count: int = 3

    def init(self, like: Vectors) -> Vectors:
        return like.map(torch.zeros_like)

    def apply(self, up: Vectors, kept: Vectors, rng: Any) -> tuple[Vectors, Vectors]:
        meant = up.map_with(kept, torch.add)

        def cut(vector: Tensor) -> Tensor:
            chosen = vector.abs().topk(min(self.count, len(vector))).indices
            return torch.zeros_like(vector).index_copy(0, chosen, vector[chosen])

        sent = meant.map(cut)
        return sent, meant.map_with(sent, torch.sub)


@dataclass(frozen=True)
class Noise(Transform):
    def apply(self, up: Vectors, kept: Vectors, rng: Any) -> tuple[Vectors, Vectors]:
        return up.map(lambda v: v + torch.from_numpy(rng.normal(size=v.shape) * 1e-3)), kept


@dataclass(frozen=True)
class OfDifferences(Aggregator):
    exact = False


@dataclass(frozen=True)
class Asking(Controller):
    """Asks for the full gradient and for losses first, and does nothing with them."""

    before = (FullGradient(into="asked"),)
    reads = ("asked",)

    def observe(self, local: Vectors, sent: Vectors, data: Any) -> dict[str, Tensor]:
        return {"loss": data.loss(local.w)}


@dataclass(frozen=True)
class Counting(Controller):
    """One more local iteration every round, remembered in its state."""

    def init(self) -> dict[str, Any]:
        return {"steps": 1, "seen": []}

    def next(
        self, state: dict[str, Any], news: News, free: Indexes, stage: Algorithm, setting: Setting
    ) -> tuple[Order, dict[str, Any]]:
        order, _ = super().next(state, news, free, stage, setting)
        after = {"steps": state["steps"] + 1, "seen": [*state["seen"], len(free)]}
        return replace(order, steps=state["steps"]), after


class Uneven(Executor):
    """A clock by hand: worker i needs 1 + i seconds a step."""

    def __init__(self, inner: Executor) -> None:
        self.inner, self.held = inner, inner.held

    def exchange(self, *given: Any) -> Any:
        return self.inner.exchange(*given)

    def arrivals(self, asked: Exchange, now: float) -> Any:
        return now + asked.steps * (1.0 + asked.workers)


def plan_of(dataset: Dataset, scheme: Scheme, **changes: Any) -> Plan:
    """Four workers of sizes 36, 18, 12, 9, mini-batches of 8; float64."""
    problem = problem_of(dataset, "logistic")
    deal = partition.by_size(len(dataset.x), 4, 1.0, seed=2)
    settings = {"tau": 3, "iterations": 12, "batch": 8, "seed": 5, "chunk": 2, **changes}
    return Plan(problem, deal, scheme, **settings)


def states(dataset: Dataset, scheme: Scheme, **changes: Any) -> list[State]:
    return list(simulate(plan_of(dataset, scheme, **changes)))


def weights(dataset: Dataset, scheme: Scheme, **changes: Any) -> Tensor:
    return states(dataset, scheme, **changes)[-1].server.w


@cache
def plain_states(dataset: Dataset, name: str) -> list[State]:
    """A method's run without any part."""
    return states(dataset, Scheme(ALGORITHMS[name]()), per_round=3)


def near(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> bool:
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


NEUTRAL: dict[str, dict[str, Any]] = {
    "a copied upload": {"uplink": Chain((Copied(),))},
    "an upload that is not clipped": {"uplink": Chain((Clip(1e9), Copied()))},
    "the whole upload": {"uplink": Chain((Largest(10**6),))},
    "a copied download": {"downlink": Chain((Copied(),))},
    "both ways, differences": {
        "uplink": Chain((Copied(), Clip(1e9))),
        "downlink": Chain((Copied(),)),
        "aggregator": OfDifferences(),
    },
    "a mean of differences": {"aggregator": OfDifferences()},
}
SAME_BITS: dict[str, dict[str, Any]] = {
    "an exact transform": {"uplink": Chain((Exactly(),))},
    "the constant controller": {"controller": Constant()},
    "everyone's own steps, all tau": {"controller": StepsByWorker((3, 3))},
    "asking first": {"controller": Asking()},
    "the shipped mean": {"aggregator": AGGREGATORS["mean"]()},
}


@EVERY
@pytest.mark.parametrize("part", NEUTRAL)
def test_neutral_parts_change_only_roundings(blobs: Dataset, name: str, part: str) -> None:
    scheme = Scheme(ALGORITHMS[name](), **NEUTRAL[part])
    assert near(weights(blobs, scheme, per_round=3), plain_states(blobs, name)[-1].server.w)


@EVERY
@pytest.mark.parametrize("part", SAME_BITS)
def test_exact_parts_change_no_bit(blobs: Dataset, name: str, part: str) -> None:
    with_part = states(blobs, Scheme(ALGORITHMS[name](), **SAME_BITS[part]), per_round=3)
    for ours, theirs in zip(with_part, plain_states(blobs, name), strict=True):
        assert all(torch.equal(ours.server[key], theirs.server[key]) for key in theirs.server)


@EVERY
def test_all_answers_awaited_is_the_plain_round(blobs: Dataset, name: str) -> None:
    method = ALGORITHMS[name]()
    scheme = Scheme(method, Buffered(need=4))
    if not method.rounds_alike:
        with refused("controller.kind"):
            weights(blobs, scheme, clock=Uneven)
        return
    assert near(weights(blobs, scheme, clock=Uneven), weights(blobs, Scheme(method)))


@EVERY
@pytest.mark.parametrize(
    "parts",
    [
        {"uplink": Chain((Largest(3), Noise()))},
        {"controller": Counting()},
        {"controller": Buffered(need=2)},
        {"downlink": Chain((Largest(4),)), "schedules": (Cosine("algorithm.lr", 0.001),)},
    ],
    ids=["residues", "control", "flights", "download"],
)
def test_any_round_goes_on_to_the_same_bits(
    blobs: Dataset, name: str, parts: dict[str, Any], tmp_path: Path
) -> None:
    """Through a file, from two rounds: server, memories, residues, control, work in flight."""
    method = ALGORITHMS[name]()
    if parts.get("controller") == Buffered(need=2) and not method.rounds_alike:
        return
    clock = {"clock": Uneven} if parts.get("controller") == Buffered(need=2) else {}
    scheme = Scheme(method, **parts)
    whole = states(blobs, scheme, **clock)
    plan = plan_of(blobs, scheme, **clock)
    folder = RunFolder(tmp_path)
    folder.records_file.touch()
    # After the first round, and before the last: what is kept is there, and still matters.
    for at in (1, len(whole) - 2):
        state = whole[at]
        checkpoint.write(folder, state, 0, "me", {})
        saved, _ = checkpoint.newest(folder, plan, "me")
        assert saved is not None
        rest = list(simulate(plan, saved.state))
        for ours, theirs in zip(rest, whole[at:], strict=True):
            for key, vector in theirs.server.items():
                assert torch.equal(ours.server[key], vector)
            assert ours.clock == theirs.clock
            assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
            assert ours.control == theirs.control
        checkpoint.remove(folder)


def test_a_controller_remembers(blobs: Dataset) -> None:
    """One step in the first round, two in the second, and so on; 12 in all."""
    found = states(blobs, Scheme(FedAvg(lr=0.1), Counting()))
    assert [state.iteration for state in found] == [0, 1, 3, 6, 10, 12]
    assert found[-1].control == {"steps": 6, "seen": [4] * 5}


def test_what_is_remembered_matters(blobs: Dataset) -> None:
    """Without its residues or its flights a run would go on to other numbers."""
    scheme = Scheme(FedNAG(), uplink=Chain((Largest(3),)))
    whole = states(blobs, scheme)
    broken = list(simulate(plan_of(blobs, scheme), replace(whole[1], residues={})))
    assert not near(broken[-1].server.w, whole[-1].server.w)
    scheme = Scheme(FedNAG(), downlink=Chain((Largest(4),)))
    whole = states(blobs, scheme)
    broken = list(simulate(plan_of(blobs, scheme), replace(whole[1], residues={})))
    assert not near(broken[-1].server.w, whole[-1].server.w)
    scheme = Scheme(FedNAG(), Buffered(need=2))
    whole = states(blobs, scheme, clock=Uneven)
    assert whole[1].flying
    plan = plan_of(blobs, scheme, clock=Uneven)
    broken = list(simulate(plan, replace(whole[1], flying=())))
    assert not near(broken[-1].server.w, whole[-1].server.w)


def test_what_was_sent_and_what_is_kept_is_what_was_meant(blobs: Dataset) -> None:
    """Error feedback, summed over rounds, for one worker: nothing is lost."""

    @dataclass(frozen=True)
    class Watched(Largest):
        def apply(self, up: Vectors, kept: Vectors, rng: Any) -> tuple[Vectors, Vectors]:
            sent, after = super().apply(up, kept, rng)
            meant.append(up.w)
            gone.append(sent.w)
            return sent, after

    meant: list[Tensor] = []
    gone: list[Tensor] = []
    scheme = Scheme(FedAvg(lr=0.1), uplink=Chain((Watched(3),)))
    plan = replace(plan_of(blobs, scheme), partition=partition.iid(75, 1, seed=0))
    last = list(simulate(plan))[-1]
    assert near(sum(gone) + last.residues[0, 0]["0.w"], sum(meant))  # type: ignore[operator, arg-type]
    assert all((vector != 0).sum() <= 3 for vector in gone)


# Numbers by hand


def gradients_of(plan: Plan, w: Tensor) -> list[Tensor]:
    """Each worker's full gradient at ``w``, by torch alone."""
    found = []
    for held in plan.partition.workers:
        module = plan.problem.module_at(w).train()
        x, y = plan.problem.features(plan.problem.x[held]), plan.problem.y[held]
        nn.functional.cross_entropy(module(x), y).backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in module.parameters()]))  # type: ignore[union-attr]
    return found


def test_an_equal_mean_by_hand(blobs: Dataset) -> None:
    plan = plan_of(blobs, Scheme(FedAvg(lr=0.1), aggregator=EqualMean()), tau=1, batch=0)
    w = plan.problem.initial
    for _ in range(12):
        w = w - 0.1 * torch.stack(gradients_of(plan, w)).mean(0)
    assert near(list(simulate(plan))[-1].server.w, w)
    assert not near(weights(blobs, Scheme(FedAvg(lr=0.1)), tau=1, batch=0), w, 1e-6)


def test_steps_by_worker_by_hand(blobs: Dataset) -> None:
    """Workers 0 and 2 do one local iteration, 1 and 3 do three; the last round is cut to two."""
    scheme = Scheme(FedAvg(lr=0.1), StepsByWorker((1, 3)))
    plan = plan_of(blobs, scheme, batch=0, iterations=5)
    w, sizes = plan.problem.initial, plan.partition.sizes
    for most in (3, 2):
        ends = []
        for worker in range(4):
            own = w
            for _ in range(min((1, 3)[worker % 2], most)):
                own = own - 0.1 * gradients_of(plan, own)[worker]
            ends.append(own)
        w = sum(int(n) * end for n, end in zip(sizes, ends, strict=True)) / int(sizes.sum())  # type: ignore[assignment]
    found = list(simulate(plan))
    assert near(found[-1].server.w, w)
    assert [state.iteration for state in found] == [0, 3, 5]
    assert found[-1].starts.tolist() == [2, 5, 2, 5]
    facts = [state.rounds[-1] for state in found[1:]]
    assert [one.steps for one in facts] == [(1, 3, 1, 3), (1, 2, 1, 2)]


@pytest.mark.parametrize("name", ["fedavg", "fednag", "mime", "scaffold", "slowmo"])
def test_a_schedule_is_the_method_with_other_numbers_every_round(
    blobs: Dataset, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = ALGORITHMS[name](lr=0.1)  # type: ignore[call-arg]
    recorded: list[Any] = []
    original = RecordedStep._checked

    def counted(self: RecordedStep, *given: Any) -> Any:
        recorded.append(given)
        return original(self, *given)

    monkeypatch.setattr(RecordedStep, "_checked", counted)
    scheduled = states(blobs, Scheme(method, schedules=(Cosine("algorithm.lr", 0.02),)))
    assert len(set(recorded)) == len(recorded)  # one recording for all numbers
    assert all(names[-1] == ("lr",) for names in recorded)
    state = scheduled[0]
    for number in range(4):
        lr = 0.02 + 0.08 * (1 + np.cos(np.pi * number / 4)) / 2
        now = plan_of(blobs, Scheme(replace(method, lr=lr)))  # type: ignore[type-var]
        state = next(iter(_rounds(now, state)))
        assert near(state.server.w, scheduled[number + 1].server.w)
    assert not near(weights(blobs, Scheme(method)), scheduled[-1].server.w, 1e-6)


def _rounds(plan: Plan, state: State) -> Any:
    """The round after a state."""
    running = simulate(plan, state)
    next(running)
    yield next(running)


def test_buffered_by_hand(blobs: Dataset) -> None:
    """Worker i takes 1 + i seconds a step, one step a round, two answers a round.

    Round 1: 0 and 1 answer (at 1 s, 2 s); 2 and 3 fly on. Round 2, from 2 s: 0 at 3 s, 2 at 3 s.
    """
    scheme = Scheme(FedAvg(lr=0.1), Buffered(need=2))
    plan = plan_of(blobs, scheme, tau=1, batch=0, iterations=2, clock=Uneven)
    first, second = list(simulate(plan))[1:]
    sizes, w = plan.partition.sizes, plan.problem.initial
    g = gradients_of(plan, w)
    after = w - 0.1 * (int(sizes[0]) * g[0] + int(sizes[1]) * g[1]) / int(sizes[0] + sizes[1])
    assert near(first.server.w, after)
    assert first.clock == 2.0
    assert sorted(flight.worker for flight in first.flying) == [2, 3]
    late, fresh = -0.1 * g[2], -0.1 * gradients_of(plan, after)[0]
    both = (int(sizes[2]) * late + int(sizes[0]) * fresh) / int(sizes[2] + sizes[0])
    assert near(second.server.w, after + both)
    assert second.clock == 3.0
    assert second.news.staleness == (0, 1)


def test_a_clip_by_hand() -> None:
    up = Vectors(w=torch.tensor([3.0, 0.0]), v=torch.tensor([0.0, 4.0]), buffers=torch.ones(2))
    short, _ = Clip(norm=2.5).apply(up, Vectors(), np.random.default_rng(0))
    assert short.w.tolist() == [1.5, 0.0]
    assert short.v.tolist() == [0.0, 2.0]
    assert short.buffers.tolist() == [1.0, 1.0]
    same, _ = Clip(norm=5.0).apply(up, Vectors(), np.random.default_rng(0))
    assert same.w is up.w


def test_half_precision_halves_the_bytes_up_and_nearly_nothing_else() -> None:
    plain = fednag.run(FedNAG(lr=0.1), **SMALL)
    half = fednag.run(FedNAG(lr=0.1), uplink=["float16"], **SMALL)
    last, other = plain.records[-1], half.records[-1]
    assert other.bytes_up * 2 == last.bytes_up
    assert other.bytes_down == last.bytes_down
    assert other.loss == pytest.approx(last.loss, rel=1e-4)
    assert other.loss != last.loss
    both = fednag.run(FedNAG(lr=0.1), uplink=["float16"], downlink=["float16"], **SMALL)
    assert both.records[-1].bytes_down * 2 == last.bytes_down
    assert both.records[-1].loss == pytest.approx(last.loss, rel=1e-2)


def test_fewer_bytes_take_less_time_on_a_clock(tmp_path: Path) -> None:
    """A link of 1 kB/s both ways and nothing to compute: 2.6 kB down and up take 5.2 s a round."""
    (tmp_path / "slow.toml").write_text(
        """
        name = "slow"
        [[device]]
        name = "one"
        gflops = 1e6
        up = { mbit = 0.008 }
        down = { mbit = 0.008 }
        """
    )
    ends = {}
    for name, parts in {
        "plain": {},
        "up": {"uplink": ["float16"]},
        "both": {"uplink": ["float16"], "downlink": ["float16"]},
    }.items():
        clock = {"fleet": str(tmp_path / "slow.toml")}
        run = fednag.run("fedavg", clock=clock, **parts, **(SMALL | {"iterations": 4}))
        ends[name] = run.records[-1].clock
    assert ends == {
        "plain": pytest.approx(5.2),
        "up": pytest.approx(3.9),
        "both": pytest.approx(2.6),
    }


def test_an_upload_that_overflows_is_refused() -> None:
    run = fednag.run(FedAvg(lr=1e6), uplink=[Float16()], **SMALL)
    assert run.diverged
    assert any("refused: they were not finite" in note for note in run.notes)


def test_random_transforms_are_keyed_by_round_and_worker(blobs: Dataset) -> None:
    scheme = Scheme(FedNAG(), uplink=Chain((Noise(),)))
    first = weights(blobs, scheme, per_round=3, chunk=1)
    assert torch.equal(weights(blobs, scheme, per_round=3, chunk=1), first)
    assert near(weights(blobs, scheme, per_round=3, chunk=3, threads=2), first)
    assert not near(weights(blobs, Scheme(FedNAG()), per_round=3), first, 1e-6)
    drawn: list[float] = []

    @dataclass(frozen=True)
    class Drawing(Transform):
        def apply(self, up: Vectors, kept: Vectors, rng: Any) -> tuple[Vectors, Vectors]:
            drawn.append(float(rng.random()))
            return up, kept

    weights(blobs, Scheme(FedNAG(), uplink=Chain((Drawing(),))))
    assert len(drawn) == len(set(drawn)) == 16  # four workers, four rounds


def test_what_controllers_ask_for_is_told(blobs: Dataset) -> None:
    found = states(blobs, Scheme(FedAvg(lr=0.1), Asking()), batch=0)
    for before, state in pairwise(found):
        assert set(state.news.told) == {0, 1, 2, 3}
        assert all(told["loss"] > 0 for told in state.news.told.values())
        plan = plan_of(blobs, Scheme(FedAvg(lr=0.1)))
        sizes = plan.partition.sizes
        g = gradients_of(plan, before.server.w)
        mean = sum(int(n) * own for n, own in zip(sizes, g, strict=True)) / int(sizes.sum())
        assert near(state.server.asked, mean)  # type: ignore[arg-type]


# As users write it


def test_the_registries_are_values_with_defaults_and_words() -> None:
    for registry in (TRANSFORMS, AGGREGATORS, CONTROLLERS, SCHEDULES):
        for name, cls in registry.items():
            assert name == name.lower()
            assert cls.__doc__
            assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_a_file_says_what_python_says(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "it.toml").write_text(
        """
        [model]
        name = "logistic"
        [split]
        workers = 4
        [training]
        tau = 4
        iterations = 12
        [[uplink]]
        kind = "clip"
        norm = 1.0
        [[uplink]]
        kind = "float16"
        [aggregator]
        kind = "equal"
        [controller]
        kind = "steps-by-worker"
        steps = [2, 4]
        [[schedule]]
        field = "algorithm.lr"
        kind = "cosine"
        """
    )
    call = Caller(monkeypatch, capsys)
    words = ["run", str(tmp_path / "it.toml"), "--set", "uplink.0.norm=0.05", "--json"]
    found = call(*words, "--out", str(tmp_path / "runs"))
    assert found.code == 0, found.err
    run = fednag.run(
        "fednag",
        uplink=[Clip(0.05), "float16"],
        aggregator=EqualMean(),
        controller=StepsByWorker((2, 4)),
        schedule=[Cosine("algorithm.lr")],
        **SMALL,
    )
    (folder,) = (tmp_path / "runs").glob("*/*")
    assert RunFolder(folder).records()[-1].loss == run.records[-1].loss
    assert folder.name.endswith(run.experiment.key)
    resumed = call("resume", str(folder), "--json")
    assert resumed.code == 0, resumed.err


def test_numbers_at_their_defaults_are_no_other_run() -> None:
    plain = parse({"uplink": [{"kind": "clip"}], "aggregator": {"kind": "mean"}})
    written = parse({"uplink": [{"kind": "clip", "norm": 1.0}]})
    assert plain.key == written.key
    assert plain.key != parse({}).key
    assert plain.key != parse({"uplink": [{"kind": "clip", "norm": 2.0}]}).key
    assert plain.key != parse({"downlink": [{"kind": "clip"}]}).key


def test_own_parts_from_python(tmp_path: Path) -> None:
    run = fednag.run(FedNAG(lr=0.1), uplink=[Largest(2)], out=tmp_path, **SMALL)
    plain = fednag.run(FedNAG(lr=0.1), **SMALL)
    assert run.records[-1].loss != plain.records[-1].loss
    assert run.folder is not None
    from fednag.api import resume_all

    with refused("uplink.0.kind"):
        resume_all([RunFolder(run.folder)])


OWN = """
from dataclasses import dataclass
from fednag import Aggregator

@dataclass(frozen=True)
class Rooted(Aggregator):
    power: float = 0.5

    def weight(self, size, staleness):
        return size ** self.power
"""


def test_own_parts_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    kind = {"kind": f"{path}:Rooted", "power": 0.0}
    skewed = SMALL | {"split": {"kind": "sizes", "skew": 1.0}}
    run = fednag.run(FedNAG(lr=0.1), aggregator=kind, **skewed)
    equal = fednag.run(FedNAG(lr=0.1), aggregator="equal", **skewed)
    assert run.records[-1].loss == equal.records[-1].loss
    assert run.records[-1].loss != fednag.run(FedNAG(lr=0.1), **skewed).records[-1].loss
    other = run.experiment.key
    path.write_text(OWN + "\n# changed\n")
    assert fednag.run(FedNAG(lr=0.1), aggregator=kind, **skewed).experiment.key != other


def test_nothing_travels_in_a_centralised_run() -> None:
    plain = fednag.run("cnag", **SMALL)
    run = fednag.run("cnag", uplink=["float16"], aggregator="equal", **SMALL)
    assert [r.loss for r in run.records] == [r.loss for r in plain.records]
    assert run.records[-1].bytes_up == 0


@pytest.mark.parametrize("name", ["fednag", "scaffold", "mime"])
def test_silos_have_the_same_parts(name: str, tmp_path: Path) -> None:
    config = config_of(
        tmp_path / "flower",
        algorithm__name=name,
        uplink__0__kind="clip",
        uplink__0__norm=0.05,
        uplink__1__kind="float16",
        downlink__0__kind="float16",
        aggregator__kind="equal",
        controller__kind="steps-by-worker",
        controller__steps="[1, 3]",
        schedule__0__kind="cosine",
        schedule__0__field="algorithm.lr",
        training__participants=2,
    )
    run = play(config, grid_of(config))
    here = simulated(read_run_config(config), tmp_path / "here")
    assert gap(run, here) < 1e-13
    ours, theirs = run.records[-1], here.records[-1]
    assert (ours.bytes_up, ours.bytes_down) == (theirs.bytes_up, theirs.bytes_down)
    assert ours.bytes_up * (2 if name == "mime" else 1) == ours.bytes_down
    config = config_of(tmp_path / "plain", algorithm__name=name)
    assert gap(run, play(config, grid_of(config))) > 1e-6


COUNTED = """
from dataclasses import dataclass
import torch
from fednag import FedAvg, Vectors

@dataclass(frozen=True)
class Counted(FedAvg):
    \"\"\"FedAvg whose workers also say how far they came, as one number.\"\"\"
    up = ("w", "far")
    elementwise = False

    def end(self, local, sent, mine, data, steps):
        return Vectors(w=local.w, far=(local.w - sent.w).norm(dim=1, keepdim=True)), mine

    def update(self, server, mean, news):
        return Vectors(w=server.w + (mean.w - server.w) / (1 + mean.far))
"""


def test_a_number_goes_up_as_a_number(tmp_path: Path) -> None:
    """Here and from silos; it costs the bytes of one number."""
    (tmp_path / "counted.py").write_text(COUNTED)
    name = f"{tmp_path / 'counted.py'}:Counted"
    config = config_of(tmp_path / "flower", algorithm__name=name)
    run = play(config, grid_of(config))
    here = simulated(read_run_config(config), tmp_path / "here")
    assert gap(run, here) < 1e-13
    assert run.records[-1].bytes_up == here.records[-1].bytes_up == 3 * 3 * (650 + 1) * 8


def test_draws_are_shared() -> None:
    """Workers draw by their own numbers, whoever else is there."""
    everyone, alone = Draws(3, [20, 30], 4), Draws(3, [30], 4, numbers=[1])
    assert np.array_equal(everyone.batches(1, 2, 5), alone.batches(0, 2, 5))


@pytest.mark.parametrize(
    ("rule", "values"),
    [
        (Cosine("algorithm.lr", last=0.2), {0.0: 1.0, 0.5: 0.6, 1.0: 0.2}),
        (Cosine("algorithm.lr", warm_up=0.2), {0.0: 0.01, 0.1: 0.505, 0.2: 1.0, 0.6: 0.5}),
        (Steps("algorithm.lr", at_shares=(0.3, 0.6), factor=0.5), {0.2: 1, 0.3: 0.5, 0.9: 0.25}),
        (Inverse("algorithm.lr", slope=4.0), {0.0: 1.0, 0.25: 0.5, 1.0: 0.2}),
        (Rising("algorithm.lr", warm_up=0.5), {0.0: 0.01, 0.25: 0.505, 0.5: 1.0, 0.9: 1.0}),
    ],
)
def test_schedules_by_hand(rule: Schedule, values: dict[float, float]) -> None:
    for done, value in values.items():
        assert rule.at(1.0, done) == pytest.approx(value)
        if not getattr(rule, "last", 0.0):
            assert rule.at(3.0, done) == pytest.approx(3 * value)
