"""fednag's methods as strategies of somebody else's Flower app."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import Strategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import fednag
from fednag import ALGORITHMS, FednagError, News, Vectors
from fednag.aggregators import EqualMean
from fednag.core.algorithm import Algorithm, FullGradient
from fednag.core.keys import Draws, cohort
from fednag.data import partition
from fednag.flower import strategies
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.named import ORDER, Names
from fednag.flower.protocol import Refusal
from fednag.flower.settings import read_run_config
from fednag.flower.training import _Worker, train
from fednag.runs.build import Builder
from fednag.transforms import Clip, Float16
from flower_kit import config_of, grid_of, node_of, play, simulated, weights
from refusals import refused

FEDERATED = {
    name: cls.__name__
    for name, cls in ALGORITHMS.items()
    if not cls.pooled and cls.channel is Algorithm.channel
}
TAU, ROUNDS, SEED = 3, 3, 3


@pytest.fixture(scope="module")
def problem(tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = config_of(tmp_path_factory.mktemp("x"), training__batch=0, rounds=ROUNDS)
    return Builder().plan(read_run_config(config).experiment)[1]


def app_of(plan: Any) -> ClientApp:
    """Somebody's app: full batches, tau passes over them."""
    app = ClientApp()

    @app.train()
    def half(message: Message, context: Context) -> Message:
        mine = torch.from_numpy(plan.owned[int(context.node_config["partition-id"])])
        x, y = plan.problem.features(plan.problem.x[mine]), plan.problem.y[mine]
        loader = DataLoader(TensorDataset(x, y), batch_size=len(x))
        model = plan.problem.module_at(plan.problem.initial).train()
        return train(message, context, model, loader, nn.CrossEntropyLoss(), epochs=TAU)

    return app


def start(plan: Any, strategy: Any, faults: dict[int, Any] | None = None) -> tuple[Any, Any]:
    grid = InProcessGrid(app_of(plan), {}, [{"partition-id": k} for k in (1, 2, 0)])
    grid.faults = {node_of(grid, silo): fault for silo, fault in (faults or {}).items()}
    initial = ArrayRecord(plan.problem.module_at(plan.problem.initial).state_dict())
    return strategy.start(grid, initial, num_rounds=ROUNDS), grid


def flat(result: Any) -> torch.Tensor:
    return torch.cat([v.reshape(-1) for v in result.arrays.to_torch_state_dict().values()])


@pytest.mark.parametrize("name", FEDERATED)
def test_every_strategy_equals_the_simulator(name: str, problem: Any, tmp_path: Path) -> None:
    strategy = getattr(strategies, FEDERATED[name])(lr=0.05, fraction_evaluate=0.0)
    assert isinstance(strategy, Strategy)
    result, _ = start(problem, strategy)
    config = config_of(tmp_path, algorithm__name=name, training__batch=0, rounds=ROUNDS)
    twin = simulated(read_run_config(config), tmp_path)
    assert float((flat(result) - weights(twin)).abs().max()) < 1e-12
    assert result.train_metrics_clientapp[1]["train-loss"] > 0


def draw_as_simulated(monkeypatch: pytest.MonkeyPatch, grid: InProcessGrid, size: int) -> list[int]:
    """Flower's draws are the simulator's cohorts, one after the other; gives how many were made."""
    drawn: list[int] = []

    def sample(nodes: list[int], wanted: int) -> list[int]:
        assert sorted(nodes) == sorted(grid.contexts)
        assert wanted == size
        drawn.append(len(drawn) + 1)
        chosen = cohort(SEED, drawn[-1], np.arange(len(nodes)), size)
        return [node_of(grid, int(silo)) for silo in chosen]

    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.random.sample", sample)
    return drawn


@pytest.mark.parametrize("name", FEDERATED)
def test_partial_participation_equals_the_simulator(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of four nodes of unequal sizes each round, the same cohort for all its stages."""
    config = config_of(
        tmp_path, algorithm__name=name, training__batch=0, rounds=5, split__workers=4,
        training__participants=2,
    )  # fmt: skip
    deployment = read_run_config(config)
    plan = Builder().plan(deployment.experiment)[1]
    assert len({len(owned) for owned in plan.owned}) == 4
    cohorts = {tuple(cohort(SEED, number, np.arange(4), 2)) for number in range(1, 6)}
    assert len(cohorts) > 2
    grid = InProcessGrid(app_of(plan), {}, [{"partition-id": k} for k in (1, 3, 2, 0)])
    drawn = draw_as_simulated(monkeypatch, grid, 2)
    strategy = getattr(strategies, FEDERATED[name])(
        lr=0.05, fraction_train=0.5, fraction_evaluate=0.0, seed=SEED
    )
    initial = ArrayRecord(plan.problem.module_at(plan.problem.initial).state_dict())
    result = strategy.start(grid, initial, num_rounds=5)
    assert drawn == [1, 2, 3, 4, 5]
    twin = simulated(deployment, tmp_path)
    assert float((flat(result) - weights(twin)).abs().max()) < 1e-12


@pytest.mark.parametrize("name", ["fednag", "mime", "scaffold"])
def test_mini_batches_equal_the_simulator(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader in the simulator's order: an epoch of each node is a round of the simulator."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(4 * 12, 5, generator=draw, dtype=torch.float64)
    y = (x.sum(1) > 0).long()
    torch.manual_seed(1)
    net = nn.Linear(5, 2).double()
    owned = partition.by_size(len(x), 4, 0.0, SEED).workers
    draws = Draws(SEED, [12] * 4, 4)
    app = ClientApp()

    @app.train()
    def half(message: Message, context: Context) -> Message:
        silo = int(context.node_config["partition-id"])
        order = draws.order(silo, done[silo])
        mine = owned[silo][order]
        loader = DataLoader(TensorDataset(x[mine], y[mine]), batch_size=4)
        told = dict(message.content.config_records["config"])["fednag"]
        done[silo] += "train" in told and (name != "mime" or '"stage": 1' in told)
        return train(message, context, copy.deepcopy(net), loader, nn.CrossEntropyLoss())

    done = [0] * 4
    grid = InProcessGrid(app, {}, [{"partition-id": k} for k in (1, 3, 2, 0)])
    draw_as_simulated(monkeypatch, grid, 2)
    strategy = getattr(strategies, FEDERATED[name])(
        lr=0.05, fraction_train=0.5, fraction_evaluate=0.0
    )
    result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=6)
    assert max(done) > 2
    twin = fednag.run(
        ALGORITHMS[name](lr=0.05), model=net, data=(x, y), workers=4, tau=3, iterations=18, batch=4,
        seed=SEED, split={"kind": "sizes", "skew": 0.0}, quiet=True, engine={"dtype": "float64"},
        training={"participants": 2},
    )  # fmt: skip
    assert (
        float(
            (flat(result) - torch.cat([*map(torch.flatten, twin.final.state_dict().values())]))
            .abs()
            .max()
        )
        < 1e-12
    )


def test_weights_and_momenta_travel_in_one_record(problem: Any) -> None:
    seen: list[RecordDict] = []

    def spy(asked: Message, answered: Message) -> Message:
        if phase_of(asked) == "train":
            seen.extend([asked.content, answered.content])
        return answered

    start(problem, strategies.FedNAG(fraction_evaluate=0.0), {0: spy})
    for content in seen[:2]:
        (record,) = content.array_records.values()
        assert sorted(record) == ["v::1.bias", "v::1.weight", "w::1.bias", "w::1.weight"]


def _claim(samples: Any) -> Callable[[RecordDict], None]:
    return lambda content: content["metrics"].__setitem__("num-examples", samples)


def _replace(values: Any) -> Callable[[RecordDict], None]:
    return lambda content: content["arrays"].__setitem__("w::1.bias", Array(values))


@pytest.mark.parametrize(
    "lie",
    [
        _claim(10**12),
        _claim(0),
        _claim(-4),
        _claim(1.5),
        _claim(float("nan")),
        _replace(np.full(10, np.nan)),
        _replace(np.zeros(11)),
        _replace(np.zeros(10, np.int64)),
        lambda content: content["arrays"].pop("w::1.bias"),
        lambda content: content.pop("arrays"),
    ],
)
def test_replies_that_lie_are_left_out(lie: Callable[[RecordDict], None], problem: Any) -> None:
    liar, _ = start(
        problem, strategies.FedAvg(lr=0.05, fraction_evaluate=0.0), {1: altered_train(lie)}
    )
    gone, _ = start(
        problem,
        strategies.FedAvg(lr=0.05, fraction_evaluate=0.0),
        {1: lambda asked, answered: None},
    )
    honest, _ = start(problem, strategies.FedAvg(lr=0.05, fraction_evaluate=0.0))
    assert float((flat(liar) - flat(gone)).abs().max()) == 0
    assert float((flat(liar) - flat(honest)).abs().max()) > 1e-5


def test_a_reply_that_is_far_too_long_is_left_out_if_asked_for(
    problem: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    warned: list[str] = []
    log = strategies.log
    monkeypatch.setattr(strategies, "log", lambda level, said, *of: warned.append(said % of))
    options = {"lr": 0.05, "fraction_evaluate": 0.0, "aggregator": "norm-bound"}

    def lie(content: RecordDict) -> None:
        content["arrays"]["dw::1.bias"] = Array(np.full(10, 1e30))

    liar, grid = start(problem, strategies.Scaffold(**options), {1: altered_train(lie)})
    monkeypatch.setattr(strategies, "log", log)

    def lost(asked: Message, answered: Message) -> Message | None:
        return None if phase_of(asked) == "train" else answered

    gone, _ = start(problem, strategies.Scaffold(**options), {1: lost})
    assert float((flat(liar) - flat(gone)).abs().max()) == 0
    node = node_of(grid, 1)
    named = [line for line in warned if "times as long as the median" in line]
    assert len(named) == ROUNDS, warned
    assert all(f"node {node}: its update is" in line for line in named)


def phase_of(asked: Message) -> str:
    found: str = json.loads(str(asked.content.config_records["config"][ORDER]))["phase"]
    return found


def altered_train(change: Callable[[RecordDict], None]) -> Any:
    def fault(asked: Message, answered: Message) -> Message:
        if phase_of(asked) == "train":
            change(answered.content)
        return answered

    return fault


def test_memory_stays_with_the_node(problem: Any) -> None:
    _, grid = start(problem, strategies.FedNAGLocal(lr=0.05, fraction_evaluate=0.0))
    for context in grid.contexts.values():
        kept = context.state.array_records
        assert [sorted(record) for record in kept.values()] == [["v"]] * ROUNDS


def test_arrays_that_are_not_trained_are_left_alone() -> None:
    """Frozen weights, and integers such as counters, come back as they were."""

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 3), nn.Linear(3, 2)
            self.a.weight.requires_grad_(False)
            self.register_buffer("counter", torch.tensor(7))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(self.a(x))

    torch.manual_seed(0)
    model = Partly()
    app = ClientApp()

    @app.train()
    def half(message: Message, context: Context) -> Message:
        torch.manual_seed(1)
        data = TensorDataset(torch.randn(8, 2), torch.arange(8) % 2)
        return train(message, context, model, DataLoader(data, 4), nn.CrossEntropyLoss())

    grid = InProcessGrid(app, {}, [{}, {}])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    strategy = strategies.FedMom(lr=0.1, momentum=0.9, fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=3)
    after = result.arrays.to_torch_state_dict()
    assert sorted(after) == sorted(before)
    assert torch.equal(after["a.weight"], before["a.weight"])
    assert after["counter"] == 7
    assert not torch.equal(after["b.weight"], before["b.weight"])


@pytest.mark.parametrize("name", ["fedavg", "fedmom", "mime", "mimelite", "scaffold"])
def test_running_statistics_are_averaged_as_in_the_simulator(name: str) -> None:
    x, y, net, held = given_problem()
    strategy = getattr(strategies, FEDERATED[name])(lr=0.05, fraction_evaluate=0.0)
    result, _, _ = started(strategy, net, x, y, held, nn.CrossEntropyLoss())
    assert_alike(result, twin_of(ALGORITHMS[name](lr=0.05), net, x, y))
    found = result.arrays.to_torch_state_dict()
    assert not torch.equal(found["1.running_mean"], net[1].running_mean)


@pytest.mark.parametrize(
    "lie",
    [
        lambda content: content["arrays"].pop("buffers::1.running_mean"),
        lambda content: content["arrays"].update({"buffers::2.mean": Array(np.zeros(5))}),
        lambda content: content["arrays"].update(
            {"buffers::1.running_mean": Array(np.full(5, np.inf))}
        ),
        lambda content: content["arrays"].update(
            {"buffers::1.running_mean": Array(np.zeros((5, 1)))}
        ),
    ],
)
def test_running_statistics_that_lie_are_left_out(lie: Callable[[RecordDict], None]) -> None:
    x, y, net, held = given_problem()

    def last(fault: Any) -> Any:
        strategy = strategies.FedAvg(lr=0.05, fraction_evaluate=0.0)
        loss = nn.CrossEntropyLoss()
        result, _, _ = started(strategy, net, x, y, held, loss, faults={0: fault})
        return flat(result)

    gone = last(lambda asked, answered: None)
    assert float((last(altered_train(lie)) - gone).abs().max()) == 0
    assert float((last(altered_train(lambda content: None)) - gone).abs().max()) > 1e-5


class Tied(nn.Module):
    """One matrix with two names."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.down.weight = self.up.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(x)))


def test_a_parameter_with_two_names_is_trained_as_one() -> None:
    x, y, _, held = given_problem()
    torch.manual_seed(1)
    net = Tied().double()
    strategy = strategies.FedNAG(lr=0.05, fraction_evaluate=0.0)
    result, _, _ = started(strategy, net, x, y, held, nn.CrossEntropyLoss())
    assert_alike(result, twin_of(fednag.FedNAG(lr=0.05), net, x, y))
    found = result.arrays.to_torch_state_dict()
    assert torch.equal(found["up.weight"], found["down.weight"])
    assert not torch.equal(found["up.weight"], net.up.weight)


def asked_of(model: nn.Module, **changes: Any) -> Message:
    """A message as a strategy sends it."""
    InProcessGrid(ClientApp(), {}, [])
    names = Names.of(ArrayRecord(model.state_dict()))
    sent = names.pack(Vectors(w=names.flat(ArrayRecord(model.state_dict()))))
    order = {
        "phase": "train", "algorithm": {"name": "fedavg"}, "stage": 0, "numbers": {}, "uplink": [],
        "differences": False, "seed": 0, "round": 1, "token": "0" * 32, "accepted": 0,
        "downlink": [], "steps": None,
    }  # fmt: skip
    about = ConfigRecord({ORDER: json.dumps({**order, **changes})})
    return Message(RecordDict({"arrays": sent, "config": about}), 5, "train")


def test_statistics_that_would_be_averaged_wrongly_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2))
    context = Context(1, 5, {}, RecordDict(), {})
    data = TensorDataset(torch.randn(8, 2), torch.arange(8) % 2)
    with refused("model", "momentum=None"):
        train(asked_of(model), context, model, DataLoader(data, 4), nn.CrossEntropyLoss())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algorithm": {"name": "os.system"}}, "no algorithm 'os.system'"),
        ({"algorithm": {"name": "{folder}/evil.py:Evil"}}, "names a file"),
        ({"uplink": [{"kind": "{folder}/evil.py:Evil"}]}, "names a file"),
        ({"uplink": [{"kind": "zip"}]}, "no transform 'zip'"),
        ({"downlink": [{"kind": "{folder}/evil.py:Evil"}]}, "names a file"),
    ],
)
def test_nodes_run_only_what_is_shipped(changes: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    changes = json.loads(json.dumps(changes).replace("{folder}", str(tmp_path)))
    model, context = nn.Linear(2, 2), Context(1, 5, {}, RecordDict(), {})
    data = TensorDataset(torch.randn(8, 2), torch.arange(8) % 2)
    with pytest.raises(FednagError, match=said):
        train(asked_of(model, **changes), context, model, DataLoader(data), nn.CrossEntropyLoss())
    assert not (tmp_path / "ran").exists()


def test_messages_of_other_strategies_are_refused() -> None:
    model, context = nn.Linear(2, 2), Context(1, 5, {}, RecordDict(), {})
    message = asked_of(model)
    del message.content.config_records["config"][ORDER]
    data = TensorDataset(torch.randn(8, 2), torch.arange(8) % 2)
    with refused("message"):
        train(message, context, model, DataLoader(data), nn.CrossEntropyLoss())


def test_numbers_are_checked() -> None:
    with refused("FedNAG.lr"):
        strategies.FedNAG(lr=-1.0)
    with pytest.raises(FednagError, match="centralised"):
        strategies.Method(fednag.CNAG())
    with pytest.raises(TypeError, match="fraction_trained"):
        strategies.FedNAG(fraction_trained=0.5)
    assert set(strategies.__all__) == {*FEDERATED.values(), "Method", "Named"}


def test_a_new_method_has_a_strategy(monkeypatch: pytest.MonkeyPatch, problem: Any) -> None:
    @dataclass(frozen=True)
    class Halving(fednag.FedAvg):
        """Half of the way only.

        More about it.
        """

        part: float = 0.5

        def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
            return Vectors(w=server.w + self.part * (mean.w - server.w))

    @dataclass(frozen=True)
    class Pooled(fednag.CSGD):
        """Centralised."""

    assert not hasattr(strategies, "Halving")
    monkeypatch.setitem(ALGORITHMS, "halving", Halving)
    monkeypatch.setitem(ALGORITHMS, "pooled", Pooled)
    made = strategies.Halving
    assert made.__name__ == "Halving"
    assert (
        made.__doc__
        == "Half of the way only.\n\nNumbers: lr=0.01, part=0.5, weight_decay=0.0, clip=0.0."
    )
    assert made is strategies.Halving
    assert not hasattr(strategies, "Pooled")
    whole, _ = start(problem, made(lr=0.05, part=1.0, fraction_evaluate=0.0))
    usual, _ = start(problem, strategies.FedAvg(lr=0.05, fraction_evaluate=0.0))
    halved, _ = start(problem, made(lr=0.05, fraction_evaluate=0.0))
    assert float((flat(whole) - flat(usual)).abs().max()) < 1e-12
    assert float((flat(halved) - flat(usual)).abs().max()) > 1e-4


@dataclass(frozen=True)
class ByLoss(fednag.Algorithm):
    """Steps at the server by the loss at the end, and by the local iterations done."""

    lr: float = 0.05

    up = ("w", "loss")

    def init(self, w: torch.Tensor) -> Vectors:
        return Vectors(w=w, loss=w.new_ones(1))

    def step(self, local: Vectors, grad: Any, sent: Vectors, mine: Vectors) -> Vectors:
        return Vectors(w=local.w - self.lr * grad(local.w))

    def end(
        self, local: Vectors, sent: Vectors, mine: Vectors, data: Any, steps: int
    ) -> tuple[Vectors, Vectors]:
        return Vectors(w=local.w, loss=data.loss(local.w).to(local.w)), mine

    def update(self, server: Vectors, mean: Vectors, news: News) -> Vectors:
        step = mean.loss / server.loss / news.steps
        return Vectors(w=server.w + step * (mean.w - server.w), loss=mean.loss)


def given_problem() -> tuple[torch.Tensor, torch.Tensor, nn.Module, list[Any]]:
    draw = torch.Generator().manual_seed(0)
    x = 1 + 2 * torch.randn(60, 4, generator=draw, dtype=torch.float64)
    y = (x.sum(1) > 4).long()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()
    return x, y, net, list(partition.by_size(len(x), 3, 1.0, 0).workers)


def started(
    strategy: Any,
    net: nn.Module,
    x: Any,
    y: Any,
    held: list[Any],
    loss: Any,
    faults: dict[int, Any] | None = None,
    **options: Any,
) -> tuple[Any, InProcessGrid, list[RecordDict]]:
    app, replies = ClientApp(), []

    @app.train()
    def half(message: Message, context: Context) -> Message:
        mine = held[int(context.node_config["partition-id"])]
        loader = DataLoader(TensorDataset(x[mine], y[mine]), batch_size=len(mine))
        reply = train(message, context, copy.deepcopy(net), loader, loss, epochs=TAU, **options)
        replies.append(reply.content)
        return reply

    grid = InProcessGrid(app, {}, [{"partition-id": k} for k in (1, 2, 0)])
    grid.faults = {node_of(grid, silo): fault for silo, fault in (faults or {}).items()}
    result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=ROUNDS)
    return result, grid, replies


def twin_of(algorithm: Any, net: nn.Module, x: Any, y: Any, **options: Any) -> dict[str, Any]:
    found = fednag.run(
        algorithm, model=net, data=(x, y), workers=3, tau=TAU, iterations=TAU * ROUNDS, batch=0,
        split={"kind": "sizes"}, quiet=True, engine={"dtype": "float64"}, **options,
    )  # fmt: skip
    state: dict[str, Any] = found.final.state_dict()
    return state


def assert_alike(result: Any, expected: dict[str, Any], within: float = 1e-11) -> None:
    found = result.arrays.to_torch_state_dict()
    assert set(found) == set(expected)
    for key in set(found) - {"1.num_batches_tracked"}:  # counters do not travel here
        torch.testing.assert_close(found[key], expected[key], rtol=0, atol=within)


def test_a_method_may_ask_for_the_loss() -> None:
    """A number travels as a number; the loss is over all the data, in evaluation mode."""
    x, y, net, held = given_problem()
    strategy = strategies.Method(ByLoss(), fraction_evaluate=0.0)
    result, _, replies = started(
        strategy, net, x, y, held, nn.CrossEntropyLoss(), algorithm=ByLoss()
    )
    assert_alike(result, twin_of(ByLoss(), net, x, y))
    (array,) = (record["arrays"]["loss::"] for record in replies[-1:])
    assert array.numpy().shape == (1,)


def test_a_number_in_place_of_the_weights_is_refused() -> None:
    """It would be added to every weight."""
    names = Names.of(ArrayRecord(nn.Linear(2, 2).state_dict()))
    whole, one = torch.zeros(6), torch.ones(1)
    assert set(names.unpack(names.pack(Vectors(w=whole, loss=one)), ("w", "loss"), ("loss",)))
    with pytest.raises(Refusal, match="missing"):
        names.unpack(names.pack(Vectors(w=one, loss=whole)), ("w", "loss"), ("loss",))


@pytest.mark.parametrize("name", ["mimelite", "mime"])
def test_weighted_classes_are_weighted_over_all_data(name: str) -> None:
    """Batches with other sums of class weights count by these, as in torch's mean over all."""
    x, y, _, held = given_problem()
    torch.manual_seed(1)
    net = nn.Linear(4, 2).double()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 9.0], dtype=torch.float64))
    worker_loader = DataLoader(TensorDataset(x, y), batch_size=7)
    names = Names.of(ArrayRecord(net.state_dict()))
    w = names.flat(ArrayRecord(net.state_dict()))
    worker = _Worker(net, loss, names, worker_loader, w)
    expected = torch.autograd.grad(loss(net(x), y), list(net.parameters()))
    found = worker.gradient(w.unsqueeze(0))
    flat_expected = torch.cat([slope.reshape(-1) for slope in expected])
    torch.testing.assert_close(found[0], flat_expected, rtol=0, atol=1e-12)
    value = worker.loss(w.unsqueeze(0))
    torch.testing.assert_close(value, loss(net(x), y).detach().reshape(1, 1), rtol=0, atol=1e-12)
    assert worker.losses == []  # no local iteration was done
    strategy = getattr(strategies, FEDERATED[name])(lr=0.05, fraction_evaluate=0.0)
    result, _, _ = started(strategy, net, x, y, held, loss)
    assert_alike(result, twin_of(ALGORITHMS[name](lr=0.05), net, x, y, loss=loss))


@pytest.mark.parametrize("name", ["fednag", "mime", "scaffold"])
def test_parts_of_the_round_equal_the_simulator(name: str) -> None:
    x, y, net, held = given_problem()
    cosine = {"kind": "cosine", "field": "algorithm.lr", "last": 0.001}
    strategy = getattr(strategies, FEDERATED[name])(
        lr=0.05, fraction_evaluate=0.0, uplink=[Clip(norm=0.05), "float16"], aggregator=EqualMean(),
        schedules=[cosine],
    )  # fmt: skip
    result, _, replies = started(strategy, net, x, y, held, nn.CrossEntropyLoss())
    parts = {"uplink": [Clip(norm=0.05), Float16()], "aggregator": "equal", "schedule": [cosine]}
    algorithm = ALGORITHMS[name](lr=0.05)
    assert_alike(result, twin_of(algorithm, net, x, y, **parts), 1e-9)
    dtypes = {array.dtype for array in replies[-1]["arrays"].values()}
    assert dtypes == {"float16"}
    for leave_out in parts:  # each of them matters
        fewer = {key: part for key, part in parts.items() if key != leave_out}
        with pytest.raises(AssertionError):
            assert_alike(result, twin_of(algorithm, net, x, y, **fewer), 1e-9)


DOWN: dict[str, Any] = {
    "bits": ["bfloat16"],
    "rounded": ["error-feedback", {"kind": "quantise", "levels": 7, "bucket": 8}],
    "drawn": [{"kind": "randk", "share": 0.5}],
    "sparse": ["error-feedback", {"kind": "topk", "share": 0.4}, "quantise", "entropy"],
}


@pytest.mark.parametrize("chain", DOWN)
@pytest.mark.parametrize("name", ["fednag", "mime", "scaffold"])
def test_downlinks_equal_the_simulator(name: str, chain: str) -> None:
    """What travels is encoded; what the server keeps of its own rounding goes on over rounds."""
    x, y, _, held = given_problem()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    seen: list[Message] = []

    def spy(asked: Message, answered: Message) -> Message:
        seen.append(asked)
        return answered

    strategy = getattr(strategies, FEDERATED[name])(
        lr=0.05, fraction_evaluate=0.0, downlink=DOWN[chain]
    )
    result, _, _ = started(strategy, net, x, y, held, nn.CrossEntropyLoss(), faults={0: spy})
    parts = [{"kind": part} if isinstance(part, str) else part for part in DOWN[chain]]
    algorithm = ALGORITHMS[name](lr=0.05)
    assert_alike(result, twin_of(algorithm, net, x, y, downlink=parts))
    with pytest.raises(AssertionError):
        assert_alike(result, twin_of(algorithm, net, x, y))
    record = seen[-1].content.array_records["arrays"]
    whole = 8 * len(algorithm.down) * sum(p.numel() for p in net.parameters())
    assert sum(len(array.data) for array in record.values()) < whole / 2


def test_a_downlink_of_running_statistics_is_refused() -> None:
    x, y, net, held = given_problem()
    strategy = strategies.FedAvg(lr=0.05, fraction_evaluate=0.0, downlink=["bfloat16"])
    with refused("downlink", "running statistics"):
        started(strategy, net, x, y, held, nn.CrossEntropyLoss())


CONTROLLERS: dict[str, tuple[Any, int]] = {
    "constant": ("constant", 2),
    "by worker": ({"kind": "steps-by-worker", "steps": [4, 4, 1, 4]}, 4),
    "more than tau": ({"kind": "steps-by-worker", "steps": [5]}, 2),
}


def lossy_of(lost: set[tuple[int, int]]) -> Any:
    """Faults of the nodes: (silo, round) whose training replies do not arrive."""

    def fault(silo: int) -> Any:
        def lose(asked: Message, answered: Message) -> Message | None:
            if ORDER in (config := asked.content.config_records.get("config", {})):
                order = json.loads(str(config[ORDER]))
                number = order.get("round", 0) if order["phase"] == "train" else 0
            else:  # a deployment of fednag's own
                kind = asked.metadata.message_type
                number = asked.content["about"]["round"] if kind == "train" else 0
            return None if (silo, number) in lost else answered

        return lose

    return {silo: fault(silo) for silo, _ in lost}


@pytest.mark.parametrize("case", CONTROLLERS)
@pytest.mark.parametrize("name", ["fednag", "mime", "scaffold"])
def test_controllers_equal_the_simulator(name: str, case: str, tmp_path: Path) -> None:
    """Two of four nodes a round, drawn by the controller, with its numbers of local iterations."""
    controller, tau = CONTROLLERS[case]
    table = {"kind": controller} if isinstance(controller, str) else controller
    given = {f"controller.{k}": str(n) if isinstance(n, list) else n for k, n in table.items()}
    config = given | config_of(
        tmp_path, algorithm__name=name, training__batch=0, training__tau=tau, rounds=5,
        split__workers=4, training__participants=2, seed=SEED,
    )  # fmt: skip
    deployment = read_run_config(config)
    plan = Builder().plan(deployment.experiment)[1]
    grid = InProcessGrid(app_of(plan), {}, [{"partition-id": k} for k in range(4)])
    strategy = getattr(strategies, FEDERATED[name])(
        lr=0.05, fraction_train=0.5, fraction_evaluate=0.0, controller=controller, tau=tau,
        seed=SEED,
    )  # fmt: skip
    initial = ArrayRecord(plan.problem.module_at(plan.problem.initial).state_dict())
    result = strategy.start(grid, initial, num_rounds=5)
    twin = simulated(deployment, tmp_path)
    assert float((flat(result) - weights(twin)).abs().max()) < 1e-12
    assert strategy.state.iteration == twin.records[-1].iteration == 5 * tau
    assert strategy.state.round == twin.records[-1].round


@pytest.mark.parametrize("name", ["fednag", "mime", "scaffold"])
def test_lost_replies_under_a_controller_equal_a_deployment(name: str, tmp_path: Path) -> None:
    """All parts at once, and replies that do not arrive: as with silos of fednag's own."""
    parts = {
        "controller.kind": "steps-by-worker", "controller.steps": "[1, 3, 2, 3]",
        "downlink.0.kind": "quantise", "downlink.0.levels": 15, "uplink.0.kind": "clip",
        "uplink.0.norm": 0.3, "schedule.0.kind": "cosine", "schedule.0.field": "algorithm.lr",
    }  # fmt: skip
    config = config_of(
        tmp_path, algorithm__name=name, training__batch=0, rounds=4, split__workers=4,
        training__participants=3, seed=SEED,
    ) | parts  # fmt: skip
    deployment = read_run_config(config)
    plan = Builder().plan(deployment.experiment)[1]
    cohorts = [cohort(SEED, number, np.arange(4), 3).tolist() for number in range(1, 5)]
    lost = {(cohorts[0][0], 1), (cohorts[2][1], 3)}
    strategy = getattr(strategies, FEDERATED[name])(
        lr=0.05, fraction_train=0.75, fraction_evaluate=0.0, tau=3, seed=SEED,
        controller={"kind": "steps-by-worker", "steps": [1, 3, 2, 3]},
        downlink=[{"kind": "quantise", "levels": 15}], uplink=[Clip(norm=0.3)],
        schedules=[{"kind": "cosine", "field": "algorithm.lr"}],
    )  # fmt: skip
    nodes = [{"partition-id": k} for k in range(4)]
    grid = InProcessGrid(app_of(plan), {}, nodes)
    grid.faults = {node_of(grid, silo): fault for silo, fault in lossy_of(lost).items()}
    initial = ArrayRecord(plan.problem.module_at(plan.problem.initial).state_dict())
    result = strategy.start(grid, initial, num_rounds=4)
    twin = play(config, grid_of(config, range(4), lossy_of(lost)))
    assert [r.missed for r in twin.records[1:]] == [(cohorts[0][0],), (), (cohorts[2][1],), ()]
    assert float((flat(result) - weights(twin)).abs().max()) < 1e-12
    undisturbed = play(config, grid_of(config, range(4)))
    assert float((weights(undisturbed) - weights(twin)).abs().max()) > 1e-6


@dataclass(frozen=True)
class Growing(fednag.Controller):
    """Own, and with a memory: an iteration more every round."""

    def init(self) -> dict[str, Any]:
        return {"steps": 1}

    def next(self, state: Any, news: Any, free: Any, stage: Any, setting: Any) -> Any:
        order, _ = super().next(state, news, free, stage, setting)
        return replace(order, steps=state["steps"]), {"steps": state["steps"] + 1}


def test_a_controller_of_ones_own_keeps_its_memory() -> None:
    x, y, net, held = given_problem()
    strategy = strategies.FedNAG(lr=0.05, fraction_evaluate=0.0, controller=Growing(), tau=TAU)
    result, _, _ = started(strategy, net, x, y, held, nn.CrossEntropyLoss())
    assert strategy.state.control == {"steps": 1 + ROUNDS}
    assert strategy.state.iteration == 1 + 2 + 3
    twin = fednag.run(
        fednag.FedNAG(lr=0.05), model=net, data=(x, y), workers=3, tau=TAU, iterations=6, batch=0,
        split={"kind": "sizes"}, quiet=True, engine={"dtype": "float64"}, controller=Growing(),
    )  # fmt: skip
    assert_alike(result, twin.final.state_dict())


def test_nodes_that_have_left_are_not_drawn(problem: Any) -> None:
    asked: list[int] = []

    def spy(message: Message, answered: Message) -> Message:
        if phase_of(message) == "train":
            asked.append(message.metadata.dst_node_id)
        return answered

    class Leaving(strategies.FedAvg):  # type: ignore[misc,valid-type]
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            if server_round == 1:
                grid.leave(first)
            return super().aggregate_train(server_round, replies)

    grid = InProcessGrid(app_of(problem), {}, [{"partition-id": k} for k in (0, 1, 2)])
    grid.faults = dict.fromkeys(grid.contexts, spy)
    first = min(grid.contexts)
    strategy = Leaving(lr=0.05, fraction_evaluate=0.0, controller="constant", tau=2)
    initial = ArrayRecord(problem.problem.module_at(problem.problem.initial).state_dict())
    strategy.start(grid, initial, num_rounds=2)
    assert asked == [first, first + 7, first + 14, first + 7, first + 14]


@pytest.mark.parametrize("batches", [0, 2, 5])
def test_tau_is_as_many_batches_whatever_the_loader_has(batches: int) -> None:
    """Passes go on until they are done; no batch is drawn in vain, and an empty loader ends."""
    drawn: list[int] = []

    class Counted(list[Any]):
        dataset = range(8)

        def __iter__(self) -> Any:
            for batch in list.__iter__(self):
                drawn.append(1)
                yield batch

    model, context = nn.Linear(2, 2), Context(1, 5, {}, RecordDict(), {})
    loader = Counted([(torch.randn(4, 2), torch.arange(4) % 2)] * batches)
    reply = train(asked_of(model, steps=3), context, model, loader, nn.CrossEntropyLoss(), epochs=9)
    assert len(drawn) == reply.content["metrics"]["local-iterations"] == min(3, 3 * batches)


def test_whole_gradients_go_past_what_compresses() -> None:
    x, y, net, held = given_problem()
    given = {"lr": 0.05, "p": 0.3}
    strategy = strategies.MARINA(**given, fraction_evaluate=0.0, uplink=["float16"])
    result, _, replies = started(strategy, net, x, y, held, nn.CrossEntropyLoss())
    assert_alike(result, twin_of(ALGORITHMS["marina"](**given), net, x, y, uplink=[Float16()]))
    dtypes = [{a.dtype for a in r["arrays"].values()} for r in replies if "arrays" in r]
    assert dtypes == [{"float64"}] * 3 + [{"float16"}] * (len(dtypes) - 3)


def test_parts_are_checked() -> None:
    @dataclass(frozen=True)
    class Sign(fednag.Transform):
        def apply(self, up: Vectors, kept: Vectors, rng: Any) -> tuple[Vectors, Vectors]:
            return up.map(torch.sign), kept

    @dataclass(frozen=True)
    class Asking(fednag.Controller):
        before = (FullGradient(into="c"),)

    with refused("uplink"):
        strategies.FedAvg(uplink=[Sign()])
    with refused("aggregator.kind", source="strategy"):
        strategies.FedAvg(aggregator="medain")
    with refused("downlink", "fednag ships"):
        strategies.FedAvg(downlink=[Sign()])
    with refused("controller", "a fleet.s times"):
        strategies.FedAvg(controller={"kind": "buffered", "need": 2}, tau=3)
    with refused("controller", "more than the method does"):
        strategies.FedAvg(controller=Asking(), tau=3)
    with refused("tau", "is missing"):
        strategies.FedAvg(controller="constant")
    with refused("tau", "0 is not allowed"):
        strategies.FedAvg(tau=0)
    with refused("schedules.0.field"):
        strategies.FedAvg(schedules=[{"kind": "cosine", "field": "algorithm.rl"}])


def test_nodes_are_asked_once_for_their_sizes(
    problem: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Also those that come later; one that does not say is logged, and counted once it has."""
    asked_sizes: list[int] = []

    class Growing(strategies.Scaffold):  # type: ignore[misc,valid-type]
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            found = super().aggregate_train(server_round, replies)
            counted.append(self.held)
            if server_round == 1:
                grid.join({"partition-id": 2})
            return found

    def spy(asked: Message, answered: Message) -> Message | None:
        if phase_of(asked) == "size":
            assert not asked.content["arrays"]
            asked_sizes.append(asked.metadata.dst_node_id)
            return None if asked.metadata.dst_node_id == silent else answered
        return answered

    counted: list[int] = []
    grid = InProcessGrid(app_of(problem), {}, [{"partition-id": k} for k in (1, 0)])
    silent = node_of(grid, 1)
    grid.faults = {1001 + 7 * i: spy for i in range(3)}
    strategy = Growing(lr=0.05, fraction_evaluate=0.0, fraction_train=0.5, min_train_nodes=1)
    initial = ArrayRecord(problem.problem.module_at(problem.problem.initial).state_dict())
    drawn = [node_of(grid, 0), node_of(grid, 0), silent]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "flwr.serverapp.strategy.strategy_utils.random.sample", lambda *_: [drawn.pop(0)]
        )
        strategy.start(grid, initial, num_rounds=3)
    assert sorted(asked_sizes) == sorted(grid.contexts)
    sizes = [len(owned) for owned in problem.owned]
    assert counted == [sizes[0], sizes[0] + sizes[2], sum(sizes)]
    assert f"node {silent} is not counted yet: it has not said" in caplog.text


def test_lost_replies_leave_no_trace_in_memory(problem: Any) -> None:
    """SCAFFOLD's law: c is the mean of all c_i by data size, whatever replies were lost."""
    number = 0

    def lossy(asked: Message, answered: Message) -> Message | None:
        nonlocal number
        number += phase_of(asked) == "train"
        return None if number == 2 else answered

    strategy = strategies.Scaffold(lr=0.05, fraction_evaluate=0.0)
    _, grid = start(problem, strategy, {1: lossy})
    total = sum(len(owned) for owned in problem.owned)
    mean = torch.zeros(1)
    for context in grid.contexts.values():
        part = int(context.node_config["partition-id"])
        kept = context.state.array_records["memory.3"]["c"]
        c = torch.frombuffer(bytearray(kept.data), dtype=torch.float64)
        mean = mean + len(problem.owned[part]) / total * c
    assert number == 3
    assert float((strategy.state.server.c - mean).abs().max()) < 1e-12
    assert float(mean.abs().max()) > 1e-3


def test_a_strategy_may_be_started_again(problem: Any) -> None:
    strategy = strategies.FedNAGLocal(lr=0.05, fraction_evaluate=0.0)
    grid = InProcessGrid(app_of(problem), {}, [{"partition-id": k} for k in (1, 2, 0)])
    initial = ArrayRecord(problem.problem.module_at(problem.problem.initial).state_dict())
    first, again = (strategy.start(grid, initial, num_rounds=5) for _ in range(2))
    assert torch.equal(flat(first), flat(again))


def test_arrays_that_somebody_changed_are_taken(problem: Any) -> None:
    """As a wrapper that adds noise for privacy does."""

    class Zeroing(strategies.FedNAG):  # type: ignore[misc,valid-type]
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            arrays, metrics = super().aggregate_train(server_round, replies)
            if server_round < ROUNDS:
                arrays = ArrayRecord({n: Array(0 * a.numpy()) for n, a in arrays.items()})
            return arrays, metrics

    seen: list[float] = []

    def spy(asked: Message, answered: Message) -> Message:
        if phase_of(asked) == "train":
            record = asked.content["arrays"]
            seen.append(float(np.abs(record["w::1.weight"].numpy()).max()))
        return answered

    start(problem, Zeroing(lr=0.05, fraction_evaluate=0.0), {0: spy})
    assert seen[0] > 0
    assert seen[1:] == [0.0, 0.0]


@pytest.mark.parametrize("name", ["fedavg", "mime"])
def test_a_round_without_answers_changes_nothing(name: str, problem: Any) -> None:
    """As with Flower's own strategies: training goes on from the same weights."""

    def second_lost(asked: Message, answered: Message) -> Message | None:
        order = json.loads(str(asked.content.config_records["config"][ORDER]))
        return None if order.get("round") == 2 else answered

    def make() -> Any:
        return getattr(strategies, FEDERATED[name])(lr=0.05, fraction_evaluate=0.0)

    result, _ = start(problem, make(), dict.fromkeys(range(3), second_lost))
    assert sorted(result.train_metrics_clientapp) == [1, 3]
    grid = InProcessGrid(app_of(problem), {}, [{"partition-id": k} for k in (1, 2, 0)])
    initial = ArrayRecord(problem.problem.module_at(problem.problem.initial).state_dict())
    two = make().start(grid, initial, num_rounds=2)
    assert float((flat(result) - flat(two)).abs().max()) == 0


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example app's own server and clients, on a grid in this process."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples" / "flower-drop-in"))
    from drop_in import client_app, server_app

    lines = Path(client_app.__file__).read_text().split("def train")[1].splitlines()
    assert len(lines) <= 10
    config = {"rounds": 3, "lr": 0.05, "momentum": 0.9, "out": str(tmp_path / "found.json")}
    nodes = [{"partition-id": k, "num-partitions": 3} for k in range(3)]
    grid = InProcessGrid(client_app.app, config, nodes)
    server_app.main(grid, Context(1, 1, {}, RecordDict(), config))
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["0"] < 0.3
    assert found["3"] > 0.8
    for name in [name for name in sys.modules if name.startswith("drop_in")]:
        del sys.modules[name]
