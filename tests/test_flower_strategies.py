"""fednag's methods as strategies of somebody else's Flower app."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
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
from fednag import ALGORITHMS, FednagError
from fednag.core.keys import Draws, cohort
from fednag.data import partition
from fednag.flower import strategies
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.settings import read_run_config
from fednag.flower.named import ORDER, Names
from fednag.flower.training import train
from fednag.runs.build import Builder
from flower_kit import config_of, node_of, simulated, weights

FEDERATED = {name: cls.__name__ for name, cls in ALGORITHMS.items() if not cls.pooled}
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
        lr=0.05, fraction_train=0.5, fraction_evaluate=0.0
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


def altered_train(change: Callable[[RecordDict], None]) -> Any:
    def fault(asked: Message, answered: Message) -> Message:
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


@pytest.mark.parametrize("name", ["fedavg", "fedmom", "mime", "scaffold"])
def test_running_statistics_are_averaged_as_in_the_simulator(name: str) -> None:
    draw = torch.Generator().manual_seed(0)
    x = 1 + 2 * torch.randn(60, 4, generator=draw, dtype=torch.float64)
    y = (x.sum(1) > 4).long()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2)).double()
    held = partition.by_size(len(x), 3, 1.0, 0).workers
    app = ClientApp()

    @app.train()
    def half(message: Message, context: Context) -> Message:
        mine = held[int(context.node_config["partition-id"])]
        loader = DataLoader(TensorDataset(x[mine], y[mine]), batch_size=len(mine))
        model = copy.deepcopy(net)
        return train(message, context, model, loader, nn.CrossEntropyLoss(), epochs=TAU)

    grid = InProcessGrid(app, {}, [{"partition-id": k} for k in (1, 2, 0)])
    strategy = getattr(strategies, FEDERATED[name])(lr=0.05, fraction_evaluate=0.0)
    result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=ROUNDS)
    twin = fednag.run(
        ALGORITHMS[name](lr=0.05), model=net, data=(x, y), workers=3, tau=TAU,
        iterations=TAU * ROUNDS, batch=0, split={"kind": "sizes"}, quiet=True,
        engine={"dtype": "float64"},
    )  # fmt: skip
    found, expected = result.arrays.to_torch_state_dict(), twin.final.state_dict()
    assert set(found) == set(expected)
    for key in set(found) - {"1.num_batches_tracked"}:  # counters do not travel here
        torch.testing.assert_close(found[key], expected[key], rtol=1e-9, atol=1e-11)
    assert not torch.equal(found["1.running_mean"], net[1].running_mean)


def test_statistics_that_would_be_averaged_wrongly_are_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4, momentum=None), nn.Linear(4, 2))
    record = strategies.Names.of(ArrayRecord(model.state_dict()))
    from fednag.core.vectors import Vectors

    InProcessGrid(ClientApp(), {}, [])
    sent = record.pack(Vectors(w=record.flat(ArrayRecord(model.state_dict()))))
    about = ConfigRecord({strategies.METHOD: '{"name": "fedavg"}', strategies.PHASE: "train"})
    message = Message(RecordDict({"arrays": sent, "config": about}), 5, "train")
    context = Context(1, 5, {}, RecordDict(), {})
    data = TensorDataset(torch.randn(8, 2), torch.arange(8) % 2)
    with pytest.raises(FednagError, match="momentum=None"):
        train(message, context, model, DataLoader(data, 4), nn.CrossEntropyLoss())


def test_only_methods_that_are_known_are_run() -> None:
    model = nn.Linear(2, 2)
    names = strategies.Names.of(ArrayRecord(model.state_dict()))
    from fednag.core.vectors import Vectors

    InProcessGrid(ClientApp(), {}, [])
    sent = names.pack(Vectors(w=names.flat(ArrayRecord(model.state_dict()))))
    about = ConfigRecord({strategies.METHOD: '{"name": "os.system"}', strategies.PHASE: "train"})
    message = Message(RecordDict({"arrays": sent, "config": about}), 5, "train")
    with pytest.raises(FednagError, match=r"no algorithm 'os.system'"):
        train(message, Context(1, 5, {}, RecordDict(), {}), model, [], nn.CrossEntropyLoss())


def test_numbers_are_checked() -> None:
    with pytest.raises(FednagError, match="lr"):
        strategies.FedNAG(lr=-1.0)
    with pytest.raises(FednagError, match="centralised"):
        strategies.Method(fednag.CNAG())
    with pytest.raises(TypeError, match="fraction_trained"):
        strategies.FedNAG(fraction_trained=0.5)
    assert set(strategies.__all__) == {*FEDERATED.values(), "Method"}


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
