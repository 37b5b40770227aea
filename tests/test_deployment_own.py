"""docs/how-to/deploy-own-model.md: a model, a loss and a metric of one's own, on real processes."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

import numpy as np
from safetensors.torch import load_file

import fednag
from fednag.errors import FednagError
from fednag.flower.agreed import digest_of
from fednag.flower.local import federation
from fednag.flower.silo_log import read
from fednag.runs.folder import RunFolder

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "own-deployment"
PAGE = (ROOT / "docs" / "how-to" / "deploy-own-model.md").read_text()
COMMANDS = re.findall(r"^(?:python|fednag|flwr) .*", PAGE, re.M)
FIELDS = ["--set", "flower.shape=64", "--set", "flower.classes=10"]


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    """A copy of the example, with its data."""
    place = shutil.copytree(EXAMPLE, tmp_path / "desk")
    subprocess.run([sys.executable, "sites.py"], cwd=place, check=True)
    return place


def call(desk: Path, *words: str) -> str:
    program = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    done = subprocess.run(program, cwd=desk, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_page_shows_the_example() -> None:
    """Its files, but for headings and types."""

    def plain(text: str) -> str:
        text = re.sub(r'"""[^"]*"""|: Tensor\b| -> \w+\b|#.*', "", text)
        text = text.replace("output = self.last", "return self.last").replace("return output", "")
        return re.sub(r"\s+", "", text)

    net, toml = (plain((EXAMPLE / name).read_text()) for name in ("net.py", "experiment.toml"))
    blocks = [plain(block) for block in re.findall(r"^```\n(.*?)^```", PAGE, re.M | re.S)]
    assert blocks[0] in net
    assert blocks[1] in toml
    assert COMMANDS[0] == "python sites.py"
    for command in COMMANDS[1:4]:
        assert all(word in shlex.split(command) for word in FIELDS), command


def test_the_app_carries_the_file_and_its_digest(desk: Path) -> None:
    """One byte of it, and the app is another; changed after that, it is not imported."""
    (init,) = [c for c in COMMANDS if c.startswith("fednag flower init")]
    call(desk, *shlex.split(init))
    (carried,) = (desk / "app").rglob("net.py")
    assert carried.read_bytes() == (desk / "net.py").read_bytes()
    before = digest_of(desk / "app")
    assert call(desk, "fednag", "flower", "digest", "app").strip() == before
    carried.write_text(carried.read_text() + "\n")
    assert digest_of(desk / "app") != before


@pytest.mark.slow
def test_the_walk_through_gives_the_simulators_bits(desk: Path) -> None:
    """`up`, which is killed in its course and resumed, with a deadline: the weights of `fednag.run`
    on the same data and with the same module."""
    up, again = [c for c in COMMANDS if c.startswith("fednag flower up")]
    words = [str(Path(sys.executable).with_name("fednag")), *shlex.split(up)[1:]]
    with subprocess.Popen(words, cwd=desk, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        for line in running.stdout:
            if line.startswith("round 1/"):
                break
        running.send_signal(signal.SIGTERM)
        running.stdout.read()
    assert running.returncode == 128 + signal.SIGTERM
    said = call(desk, *shlex.split(again))
    assert "finished" in said
    (path,) = [p.parent for p in desk.glob("runs/*/*/final.safetensors")]
    assert {line["status"] for line in read(path / "silos.jsonl")} == {"ok"}
    last = RunFolder(path).records()[-1]
    assert set(last.metrics) == {"f1", "doubt"}
    parts = [np.load(desk / f"sites/site-{n}/{k}.npy") for n in range(3) for k in ("x", "y")]
    x, y = np.concatenate(parts[::2]), np.concatenate(parts[1::2])
    twin = fednag.run(
        {"name": "fednag", "lr": 0.05, "momentum": 0.9},
        data=(torch.from_numpy(x), torch.from_numpy(y)),
        owners=np.repeat(np.arange(3), 500),
        split={"kind": "natural"},
        model=f"{desk}/net.py:Net",
        loss=f"{desk}/net.py:smooth",
        tau=10,
        iterations=40,
        batch=32,
        engine={"chunk": 1, "threads": 1},
    )
    mine = load_file(path / "final.safetensors")
    theirs = dict(twin.final.state_dict())
    assert max(float((mine[name] - theirs[name]).abs().max()) for name in theirs) < 1e-6


@pytest.mark.slow
def test_a_silo_agrees_to_the_file_too(desk: Path) -> None:
    """One that agreed to the app trains; its operator did not agree to another `net.py`."""
    fields = [*FIELDS, "--set", "rounds=1", "--set", f"flower.out={desk}/runs"]
    init = ["fednag", "flower", "init"]
    call(desk, *init, "app", "experiment.toml", "--silos", "1", *fields)
    (desk / "net.py").write_text((desk / "net.py").read_text() + "\n")
    more = ["--set", "flower.join=15"]
    call(desk, *init, "other", "experiment.toml", "--silos", "1", *fields, *more)
    agreed = call(desk, "fednag", "flower", "digest", "app").strip()
    with federation(0) as running:
        program = ["fednag", "flower", "silo", "--agreed", agreed, "--"]
        running.start_node(0, {"data-folder": str(desk / "sites/site-0")}, program=program)
        with pytest.raises(FednagError, match="is not one that this silo's operator agreed to"):
            running.run(desk / "other", lambda line: None)
        path = running.run(desk / "app", lambda line: None)
    assert RunFolder(path).records()[-1].round == 1
