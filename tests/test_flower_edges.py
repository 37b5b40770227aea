"""Edges on Flower: each a silo of the server's federation, with a federation of its own below."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fednag.errors import FednagError
from fednag.flower import handlers
from fednag.flower.edges import app, serve_edge
from fednag.flower.inprocess import InProcessGrid
from fednag.flower.local import Federation, federation
from fednag.flower.project import flat, run_config, write_app
from fednag.flower.server import serve
from fednag.flower.settings import read_run_config
from fednag.runs.outcome import Outcome
from flower_kit import config_of, gap, silos_made_once, simulated

GROUPS = ([0, 2], [1])


def edges_of(folder: Path, **changes: Any) -> dict[str, Any]:
    """Three silos at two edges, two rounds of an edge in one of the server."""
    given = {"rounds": 4, "tier.0.groups": str([*GROUPS]), "tier.0.pi": 2, "flower.deadline": 60.0}
    return config_of(folder, **{key.replace(".", "__"): v for key, v in (given | changes).items()})


class Edge(threading.Thread):
    """An edge's own federation, in this process."""

    def __init__(self, config: dict[str, Any], number: int, folder: Path) -> None:
        super().__init__(daemon=True)
        folder.mkdir()
        self.config = config | {"flower.edge": number, "flower.edge-folder": str(folder)}
        nodes = [{"partition-id": worker} for worker in GROUPS[number]]
        self.grid = InProcessGrid(handlers.app, self.config, nodes)
        self.said: list[str] = []
        self.start()

    def run(self) -> None:
        serve_edge(self.grid, read_run_config(self.config), self.said.append)


def played(config: dict[str, Any], folder: Path) -> tuple[Outcome, list[Edge]]:
    folders = [folder / f"edge-{number}" for number in range(2)]
    edges = [Edge(config, number, folders[number]) for number in range(2)]
    nodes = [{"partition-id": k, "edge-folder": str(folders[k])} for k in range(2)]
    grid = InProcessGrid(app, config, nodes)
    run = serve(grid, read_run_config(config), lambda _: None)
    for edge in edges:
        edge.join(10)
        assert not edge.is_alive()
    return run, edges


@pytest.mark.parametrize("name", ["fednag", "fedmom"])
def test_edges_give_the_weights_of_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    silos_made_once(monkeypatch)
    config = edges_of(tmp_path / "runs", **{"algorithm.name": name})
    run, edges = played(config, tmp_path)
    expected = simulated(read_run_config(config), tmp_path)
    assert len(expected.records) == len(run.records) == 3
    assert gap(run, expected) < 1e-12
    assert [r.loss for r in run.records] == pytest.approx([r.loss for r in expected.records])
    flat_run = {k: v for k, v in config.items() if not k.startswith("tier")}
    assert gap(run, simulated(read_run_config(flat_run), tmp_path / "flat")) > 1e-6
    assert "round 2 of the server is done" in edges[0].said[-1]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "hiermo": ({"algorithm.name": "hiermo"}, "algorithm.name: edges on Flower only take means"),
    "two tiers": ({"tier.1.groups": 1}, "tier: there is one tier of edges on Flower"),
    "few": ({"training.participants": 2}, "training.participants: with edges all silos take part"),
    "folder": ({"flower.edge": 0}, "flower.edge-folder: is missing"),
    "uplink": ({"uplink.0.kind": "float16"}, "uplink: edges compress nothing on Flower yet"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_edges_on_flower_refuse(tmp_path: Path, case: str) -> None:
    changes, sentence = REFUSED[case]
    with pytest.raises(FednagError) as error:
        read_run_config(edges_of(tmp_path, **changes))
    assert sentence in str(error.value)


def test_an_edge_says_what_is_wrong_with_its_folder(tmp_path: Path) -> None:
    config = edges_of(tmp_path, **{"flower.join": 0.2, "flower.deadline": 0.3})
    grid = InProcessGrid(app, config, [{"partition-id": 0}, {"partition-id": 1}])
    with pytest.raises(FednagError, match="edge-folder: None is no folder"):
        serve(grid, read_run_config(config), lambda _: None)
    (tmp_path / "empty").mkdir()
    nowhere = {"flower.edge": 2, "flower.edge-folder": str(tmp_path / "empty")}
    with pytest.raises(FednagError, match="2 is not one of the 2 edges"):
        serve_edge(InProcessGrid(handlers.app, config, []), read_run_config(config | nowhere))


@pytest.mark.slow
@pytest.mark.flower
def test_an_edge_is_a_silo_with_silos_below(tmp_path: Path) -> None:
    """Three SuperLinks, five SuperNodes, each a process; the weights are the simulator's."""
    config = edges_of(tmp_path / "runs", rounds=2)
    deployment = read_run_config(config)
    own = {"out": str(tmp_path / "runs"), "join": 180.0, "deadline": 180.0}
    folders = [tmp_path / f"edge-{number}" for number in range(2)]
    threads = []
    with ExitStack() as open_until:

        def lower(number: int, below: Federation) -> None:
            more = {**own, "edge": number, "edge_folder": str(folders[number])}
            tables = run_config(deployment.experiment, more)
            below.submit(tables, lambda _: None)

        for number, members in enumerate(GROUPS):
            folders[number].mkdir()
            below = open_until.enter_context(federation(0))
            for worker in members:
                below.start_node(worker)
            threads.append(threading.Thread(target=lower, args=(number, below), daemon=True))
            threads[-1].start()
        above = open_until.enter_context(federation(0))
        for number, folder in enumerate(folders):
            above.start_node(number, {"edge-folder": str(folder)})
        found = above.submit(run_config(deployment.experiment, own), lambda _: None)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    twin = simulated(deployment, tmp_path / "simulated")
    assert twin.folder
    mine, theirs = (load_file(f / "final.safetensors") for f in (found, twin.folder))
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in theirs) < 1e-12


def test_the_app_of_an_edge_is_written(tmp_path: Path) -> None:
    """The server's federation has edges for silos, an edge's own the usual ones."""
    experiment = read_run_config(edges_of(tmp_path)).experiment
    for name, own in (("above", {}), ("below", {"edge": 1, "edge_folder": "asked"})):
        tables = run_config(experiment, own)
        write_app(tmp_path / name, tables)
        code = (tmp_path / name / "fednag_app" / "client_app.py").read_text()
        assert ("fednag.flower.edges" in code) == (name == "above")
        assert read_run_config(flat(tables)).digest == read_run_config(edges_of(tmp_path)).digest
        assert read_run_config(flat(tables)).silos == (2 if name == "above" else 3)
