"""A Flower app with a strategy of fednag's, on real SuperNodes: what it gives on the grid in this
process, which other tests hold to the simulator."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Context, RecordDict
from safetensors.torch import load_file

from fednag.flower.inprocess import InProcessGrid
from fednag.flower.local import federation
from flower_kit import node_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc"),
]

EXAMPLE = Path(__file__).parents[1] / "examples" / "flower-drop-in"
# One node a round trains and says nothing: in round 2, whichever is first.
CLIENT = """
import json
import os
from pathlib import Path


@app.train()
def train(message: Message, context: Context) -> Message:
    reply, out = answer(message, context), Path(str(context.run_config["out"]))
    order = json.loads(str(message.content.config_records["config"]["fednag"]))
    if order["phase"] == "train":
        part = context.node_config["partition-id"]
        with (out / "log").open("a") as file:
            file.write(f"{order['round']} {part}\\n")
        if order["round"] == 2:
            try:
                with (out / "lost").open("x") as file:
                    file.write(str(part))
            except FileExistsError:
                pass
            if (out / "lost").read_text() == str(part):
                raise RuntimeError("lost")
    return reply
"""
ROUNDS = 4


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the example, whose server saves the model."""
    folder = shutil.copytree(EXAMPLE, tmp_path / "app")
    server = folder / "drop_in" / "server_app.py"
    saving = (
        "        save_file(result.arrays.to_torch_state_dict(), str(config['out']) + '.model')\n"
    )
    text = server.read_text().replace("import torch\n", "import torch\nfrom safetensors.torch "
        "import save_file\nfrom fednag.flower.journal import note\n", 1)  # fmt: skip
    at = text.index("\n\ndef evaluate")
    server.write_text(text[:at] + saving + '    note(finished="it")\n' + text[at:])
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for name in [name for name in sys.modules if name.startswith("drop_in")]:
        del sys.modules[name]


def on_processes(app: Path, changes: str) -> None:
    with federation(3, node_configs=[{"num-partitions": 3}] * 3) as running:
        running.run(app, lambda line: None, changes)


def here(config: dict[str, Any]) -> InProcessGrid:
    from drop_in import client_app, server_app

    nodes = [{"partition-id": k, "num-partitions": 3} for k in (2, 0, 1)]
    grid = InProcessGrid(client_app.app, config, nodes)
    server_app.main(grid, Context(1, 1, {}, RecordDict(), config))
    return grid


def assert_same_model(one: Path, other: Path) -> None:
    mine, theirs = load_file(one), load_file(other)
    assert set(mine) == set(theirs)
    for name, found in theirs.items():
        assert torch.allclose(mine[name], found, rtol=0, atol=1e-6), name


def test_the_example_runs_on_supernodes(app: Path, tmp_path: Path) -> None:
    out, twin = tmp_path / "found.json", tmp_path / "twin.json"
    on_processes(app, f"out='{out}'")
    here({"rounds": 3, "lr": 0.05, "momentum": 0.9, "out": str(twin)})
    found = json.loads(out.read_text())
    assert found["3"] > 0.8
    assert found == pytest.approx(json.loads(twin.read_text()), abs=2e-3)
    assert_same_model(out.with_suffix(".json.model"), twin.with_suffix(".json.model"))


def test_cohorts_and_lost_replies_on_supernodes(
    app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCAFFOLD, whose nodes remember: two of three nodes a round, and in the second round one
    trains and its reply is lost. Flower draws; the twin has the cohorts that were drawn."""
    server, client = (app / "drop_in" / f"{name}_app.py" for name in ("server", "client"))
    text = server.read_text().replace("FedNAG", "Scaffold").replace(
        "momentum=config[\"momentum\"], ", "fraction_train=0.67, "
    ).replace("min_train_nodes=3", "min_train_nodes=2, min_available_nodes=3")  # fmt: skip
    text = text.replace('if config["out"]:', "if False:")
    text = text.replace("        save_file(", "    save_file(")
    server.write_text(text)
    own = client.read_text().replace("@app.train()\ndef train(", "def answer(")
    client.write_text(own + CLIENT)
    (out := tmp_path / "out").mkdir()
    on_processes(app, f"out='{out}' rounds={ROUNDS}")
    lines = [line.split() for line in (out / "log").read_text().splitlines()]
    cohorts = [sorted(int(p) for r, p in lines if r == str(n)) for n in range(1, ROUNDS + 1)]
    assert [len(cohort) for cohort in cohorts] == [2] * ROUNDS
    shutil.copyfile(tmp_path / "out.model", real := tmp_path / "real.model")
    drawn = iter(cohorts)
    nodes: dict[int, int] = {}

    def sample(found: list[int], wanted: int) -> list[int]:
        assert wanted == 2
        return [nodes[silo] for silo in next(drawn)]

    monkeypatch.setattr("flwr.serverapp.strategy.strategy_utils.random.sample", sample)
    joined = InProcessGrid.join

    def join(self: InProcessGrid, config: Any, name: str = "") -> int:
        nodes[int(config["partition-id"])] = node = joined(self, config, name)
        return node

    monkeypatch.setattr(InProcessGrid, "join", join)
    grid = here({"rounds": ROUNDS, "lr": 0.05, "momentum": 0.9, "out": str(out)})
    assert {node_of(grid, silo) for silo in range(3)} == set(nodes.values())
    assert next(drawn, None) is None
    assert_same_model(real, tmp_path / "out.model")
