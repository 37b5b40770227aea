"""Methods, models, losses and metrics of the user's own, named by file on the command line."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fednag
from commands import Caller, Result
from fednag import FedNAG, FednagError
from fednag.api import run_all
from fednag.config import own, parse, read
from fednag.config.sections import is_own
from fednag.core.record import Record
from fednag.core.vectors import Vector, ravel
from fednag.runs.folder import RunFolder

PARTS = '''
"""FedNAG written again, a model, a loss and metrics."""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from fednag import Algorithm, Metric, Vectors
from fednag.core.algorithm import NonNegative, Positive


@dataclass(frozen=True)
class Mine(Algorithm):
    lr: Positive = 0.01
    momentum: NonNegative = 0.9
    clip: float | None = None

    elementwise = True
    down = up = ("w", "v")

    def init(self, w):
        return Vectors(w=w, v=torch.zeros_like(w))

    def step(self, local, grad, sent, mine):
        g = grad(local.w)
        v = self.momentum * local.v - self.lr * g
        return Vectors(w=local.w + self.momentum * v - self.lr * g, v=v)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def forward(self, x):
        return self.inner(x)


def net(seed):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


whole = net(0)


def plain_loss(output, target):
    return nn.functional.cross_entropy(output, target)


class Doubled(nn.Module):
    def forward(self, output, target):
        return 2 * nn.functional.cross_entropy(output, target)


def sure(output, target):
    return output.softmax(-1).max(-1).values.mean()


doubt = Metric(lambda output, target: 1 - sure(output, target), better="lower")
number = 3
'''

TINY = """
name = "tiny"
[model]
name = "logistic"
[training]
tau = 3
iterations = 6
batch = 16
[engine]
chunk = 1
threads = 1
"""


@pytest.fixture
def fednag_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Caller:
    (tmp_path / "lab").mkdir()
    (tmp_path / "lab" / "parts.py").write_text(PARTS)
    (tmp_path / "lab" / "tiny.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [])
    return Caller(monkeypatch, capsys)


def folders(out: str = "runs") -> list[RunFolder]:
    return [RunFolder(path.parent) for path in sorted(Path(out).rglob("records.jsonl"))]


def timeless(records: Iterable[Record]) -> list[Record]:
    return [replace(record, seconds=0.0) for record in records]


def written(result: Result, out: str = "runs") -> RunFolder:
    assert result.code == 0, result.err
    return folders(out)[-1]


def refused(result: Result) -> str:
    assert result.code == 2, result
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
    assert not folders()
    return result.err


def weights(folder: RunFolder) -> bytes:
    return (folder.path / "final.safetensors").read_bytes()


# What it trains is what the shipped twin trains, and what Python trains.


def test_a_method_in_a_file_is_its_shipped_twin_to_the_bit(fednag_command: Caller) -> None:
    """FedNAG written again: the same records and the same bytes of weights."""
    tables = 'algorithms = ["fednag", "parts.py:Mine"]\n'
    Path("lab/tiny.toml").write_text(tables + TINY + "[algorithm]\nlr = 0.05\nmomentum = 0.8\n")
    result = fednag_command("compare", "lab/tiny.toml", "--quiet", "--json")
    assert {row["label"] for row in result.document["rows"]} == {"fednag", "Mine"}
    mine, twin = folders()
    assert [mine.info()["label"], twin.info()["label"]] == ["Mine", "fednag"]
    assert mine.path.name.startswith("Mine-")
    assert timeless(mine.records()) == timeless(twin.records())
    assert weights(mine) == weights(twin)
    assert read(mine.config_file)["algorithm"]["momentum"] == 0.8


def test_all_four_parts_are_those_of_python(
    fednag_command: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {
        "algorithm.name": "lab/parts.py:Mine",
        "model.name": "lab/parts.py:net",
        "model.loss": "lab/parts.py:plain_loss",
        "evaluation.metrics": '["f1", "lab/parts.py:sure", "lab/parts.py:doubt"]',
        "stop.patience": "50",
        "stop.watch": "doubt",
    }
    changes = [word for field, to in fields.items() for word in ("--set", f"{field}={to}")]
    run = written(fednag_command("run", "lab/tiny.toml", "--quiet", *changes))
    last = run.records()[-1].metrics
    assert last["sure"] is not None
    assert last["sure"] + (last["doubt"] or 0) == pytest.approx(1)
    assert read(run.config_file)["evaluation"]["own"] == {"sure": "higher", "doubt": "lower"}

    monkeypatch.syspath_prepend(str(Path("lab").absolute()))
    parts = __import__("parts")
    try:
        twin = fednag.run(
            parts.Mine(),
            model=parts.net,
            loss=parts.plain_loss,
            metrics={"f1": "f1", "sure": parts.sure, "doubt": parts.doubt},
            tau=3,
            iterations=6,
            batch=16,
            engine={"chunk": 1, "threads": 1},
            quiet=True,
        )
    finally:
        del sys.modules["parts"]
    assert timeless(run.records()) == timeless(twin.records)
    by_name = fednag.run(
        "lab/parts.py:Mine",
        model="lab/parts.py:net",
        loss="lab/parts.py:plain_loss",
        metrics=["f1", "lab/parts.py:sure", "lab/parts.py:doubt"],
        tau=3,
        iterations=6,
        batch=16,
        engine={"chunk": 1, "threads": 1},
        quiet=True,
    )
    assert by_name.label == "Mine"
    assert timeless(by_name.records) == timeless(twin.records)


def test_python_takes_names_and_tables_too(fednag_command: Caller) -> None:
    found = fednag.compare(
        [{"name": "lab/parts.py:Mine", "lr": 0.05}, FedNAG(lr=0.05)],
        model="logistic",
        tau=2,
        iterations=4,
        quiet=True,
    )
    assert [run.label for run in found.runs] == ["Mine", "fednag"]
    assert torch.equal(_vector(found["Mine"]), _vector(found["fednag"]))
    swept = fednag.sweep(
        {"algorithm.momentum": [0.0, 0.9]},
        "lab/parts.py:Mine",
        model="logistic",
        tau=2,
        iterations=4,
        quiet=True,
    )
    assert [run.label for run in swept.runs] == ["momentum=0.0", "momentum=0.9"]
    assert not torch.equal(*(_vector(run) for run in swept.runs))


def _vector(run: Any) -> Vector:
    return ravel(run.final)


@pytest.mark.parametrize("name", ["net", "Net", "whole"])
def test_a_model_is_a_function_a_class_or_a_module(name: str, fednag_command: Caller) -> None:
    words = ("--set", f"model.name=lab/parts.py:{name}", "--quiet")
    run = written(fednag_command("run", "lab/tiny.toml", *words))
    assert run.info()["parameters"] == 650
    again = written(
        fednag_command("run", str(run.config_file), "--quiet", "--out", "again"), "again"
    )
    assert weights(run) == weights(again)


def test_a_loss_is_a_name_a_function_or_a_class(fednag_command: Caller) -> None:
    """Twice the loss at half the rate is the same training; mse is another."""
    runs = {}
    for loss, lr in (("cross-entropy", 0.02), ("lab/parts.py:Doubled", 0.01), ("mse", 0.02)):
        words = ("--set", f"model.loss={loss}", "--set", f"algorithm.lr={lr}", "--quiet")
        run = written(
            fednag_command("run", "lab/tiny.toml", *words, "--out", loss.split(":")[-1]),
            loss.split(":")[-1],
        )
        runs[loss] = run.records()[-1]
    plain, doubled, squares = runs.values()
    assert doubled.loss == pytest.approx(2 * (plain.loss or 0), rel=1e-5)
    assert doubled.accuracy == pytest.approx(plain.accuracy)
    assert squares.loss is not None
    assert squares.loss < 1 < (plain.loss or 0)


def test_a_sweep_a_plan_and_the_clock_take_it(fednag_command: Caller) -> None:
    name = ("--set", "algorithm.name=lab/parts.py:Mine")
    grid = ("--grid", "algorithm.momentum=0.0,0.9", "--quiet", "--json")
    swept = fednag_command("sweep", "lab/tiny.toml", *name, *grid)
    assert {row["label"] for row in swept.document["rows"]} == {"momentum=0.0", "momentum=0.9"}
    names = "algorithm.name=fednag,lab/parts.py:Mine"
    both = fednag_command("sweep", "lab/tiny.toml", "--grid", names, "--quiet", "--json", "-o", "b")
    assert {row["label"] for row in both.document["rows"]} == {"name=fednag", "name=Mine"}

    plan = ("--fleet", "lan", "--target", "0.1", "--taus", "2", "--quiet", "--json", "-o", "plans")
    methods = ("--algorithms", "fednag,lab/parts.py:Mine", "--gammas", "0.5")
    planned = fednag_command("time", "plan", "lab/tiny.toml", *plan, *methods).document
    assert [point["method"] for point in planned["points"]] == ["fednag", "Mine"]
    mine, twin = (point["row"]["iterations"] for point in planned["points"])
    assert mine == twin

    # To read of runs is not to run what they name.
    Path("lab/parts.py").write_text("raise SystemExit('imported')")
    timed = fednag_command("time", "plans", "--fleet", "lan", "--target", "0.1", "--json")
    assert timed.code == 0, timed.err
    shown = fednag_command("show", "plans", "--json")
    assert {row["label"] for row in shown.document["rows"]} == {"fednag tau=2", "Mine tau=2"}


# Where files are, and what they are.


def test_a_file_is_found_beside_the_experiment_and_from_anywhere_later(
    fednag_command: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after a round, and gone on with from another folder: the same run."""
    Path("lab/tiny.toml").write_text(TINY + '[algorithm]\nname = "parts.py:Mine"\n')
    whole = written(fednag_command("run", "lab/tiny.toml", "--quiet", "-o", "whole"), "whole")
    config = read(whole.config_file)
    place = str(tmp_path / "lab" / "parts.py")
    assert config["algorithm"]["name"] == f"{place}:Mine"
    assert list(config["own"]) == [place]

    run = written(fednag_command("run", "lab/tiny.toml", "--quiet"))
    info = run.info()
    run.write_info({**info, "status": "interrupted"})
    (run.path / "final.safetensors").unlink()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    resumed = fednag_command("resume", str(tmp_path / run.path), "--quiet")
    assert resumed.code == 0, resumed.err
    assert weights(RunFolder(tmp_path / run.path)) == weights(RunFolder(tmp_path / whole.path))


def test_a_changed_file_is_another_run(fednag_command: Caller) -> None:
    """Nor does one go on with it; a neighbour that it imports counts as it does."""
    Path("lab/rates.py").write_text("RATE = 0.05\n")
    text = PARTS.replace("from torch import nn\n", "from torch import nn\nfrom rates import RATE\n")
    Path("lab/parts.py").write_text(text.replace("= 0.01", "= RATE"))
    words = ("lab/tiny.toml", "--set", "algorithm.name=lab/parts.py:Mine", "--quiet")
    first = written(fednag_command("run", *words))
    assert read(first.config_file)["algorithm"]["lr"] == 0.05
    assert {Path(file).name for file in read(first.config_file)["own"]} == {"parts.py", "rates.py"}
    assert fednag_command("run", *words, "--resume").code == 0
    assert len(folders()) == 1

    # Of the same length: what was compiled before must not be taken for it.
    Path("lab/rates.py").write_text("RATE = 0.07\n")
    assert fednag_command("run", *words, "--resume").code == 0
    assert len(folders()) == 2
    second = next(run for run in folders() if run != first)
    assert read(second.config_file)["algorithm"]["lr"] == 0.07
    for again in (("resume", str(first.path)), ("run", str(first.config_file))):
        result = fednag_command(*again)
        assert result.code == 2
        changed = Path("lab/rates.py").absolute()
        assert f"own: {changed} is not what it was when this run began; restore" in result.err
    labels = {row["label"] for row in fednag_command("show", "runs", "--json").document["rows"]}
    assert len(labels) == 2
    assert all(label.startswith("Mine (lr=") for label in labels)


def test_code_decides_the_key_and_its_place_does_not(tmp_path: Path) -> None:
    keys = []
    for folder, text in (("a", PARTS), ("b", PARTS), ("c", PARTS + "\n")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "parts.py").write_text(text)
        found = parse({"algorithm": {"name": f"{tmp_path / folder}/parts.py:Mine"}})
        keys.append((found.key, found.exact_key))
    assert keys[0] == keys[1]
    assert keys[0][0] != keys[2][0]
    assert keys[0][1] != keys[2][1]
    (tmp_path / "a" / "parts.py").write_text(PARTS + "import beside\n")
    beside = set()
    for text in ("A = 1\n", "A = 2\n"):  # in a neighbour, and none of the method's numbers
        (tmp_path / "a" / "beside.py").write_text(text)
        beside.add(parse({"algorithm": {"name": f"{tmp_path}/a/parts.py:Mine"}}).key)
    assert len(beside) == 2
    model = parse({"model": {"name": f"{tmp_path}/a/parts.py:net"}}).key
    assert model != parse({"model": {"name": f"{tmp_path}/a/parts.py:Net"}}).key


def test_what_nobody_sets_changes_no_key() -> None:
    """Runs made before there were files of one's own are still found."""
    assert parse({}).all_keys[1].short == "18af5de6"
    assert parse({"model": {"name": "mlp", "hidden": [3]}}).all_keys[1].short == "a2b5d273"


def test_files_of_one_name_are_two(fednag_command: Caller) -> None:
    """In two folders, each with a neighbour of one name too."""
    for folder, rate in (("lab", 0.01), ("other", 0.2)):
        Path(folder).mkdir(exist_ok=True)
        Path(folder, "rates.py").write_text(f"RATE = {rate}\n")
        text = PARTS.replace("import torch\n", "import torch\nfrom rates import RATE\n", 1)
        Path(folder, "parts.py").write_text(text.replace("= 0.01", "= RATE"))
    methods = "lab/parts.py:Mine,other/parts.py:Mine"
    words = ("compare", "lab/tiny.toml", "--algorithms", methods, "--quiet")
    assert fednag_command(*words).code == 0
    rates = {run.info()["label"]: read(run.config_file)["algorithm"]["lr"] for run in folders()}
    places = {
        str(Path(folder, "parts.py").absolute()): rate
        for folder, rate in (("lab", 0.01), ("other", 0.2))
    }
    assert rates == {f"{place}:Mine": rate for place, rate in places.items()}
    assert "rates" not in sys.modules or sys.modules["rates"].RATE == 0.2


def test_labels_are_as_short_as_they_can_be() -> None:
    assert own.short_names(["fednag", "a/x.py:M", "b/y.py:N"]) == {
        "fednag": "fednag",
        "a/x.py:M": "M",
        "b/y.py:N": "N",
    }
    assert list(own.short_names(["a/x.py:M", "a/y.py:M"]).values()) == ["x.py:M", "y.py:M"]
    same = ["a/x.py:M", "b/x.py:M"]
    assert list(own.short_names(same).values()) == same


def test_a_file_is_imported_once_and_prints_to_nobodys_result(
    fednag_command: Caller, tmp_path: Path
) -> None:
    counted = f"\nwith open({str(tmp_path / 'count')!r}, 'a') as file:\n    file.write('x')\n"
    Path("lab/parts.py").write_text(PARTS + counted + "print('hello')\n")
    words = ("--set", "algorithm.name=lab/parts.py:Mine", "--set", "model.name=lab/parts.py:net")
    result = fednag_command("run", "lab/tiny.toml", *words, "--quiet", "--json")
    assert result.document["rows"][0]["label"] == "Mine"
    assert "hello" in result.err
    assert (tmp_path / "count").read_text() == "x"
    assert not list(Path("lab").rglob("*.pyc"))
    assert str(tmp_path / "lab") not in sys.path


def test_a_module_by_its_name(
    fednag_command: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lab" / "ownpackage").mkdir()
    (tmp_path / "lab" / "ownpackage" / "__init__.py").write_text("")
    (tmp_path / "lab" / "ownpackage" / "methods.py").write_text(PARTS)
    monkeypatch.syspath_prepend(str(tmp_path / "lab"))
    words = ("--set", "algorithm.name=ownpackage.methods:Mine", "--quiet")
    run = written(fednag_command("run", "lab/tiny.toml", *words))
    assert run.info()["label"] == "Mine"
    assert list(read(run.config_file)["own"]) == ["ownpackage.methods"]
    again = fednag_command("run", str(run.config_file), "--quiet", "--out", "again")
    assert weights(written(again, "again")) == weights(run)


# What is refused.

METHOD = "algorithm.name=lab/parts.py:"
BROKEN = {
    "raises.py": "value = 1\nvalue / 0\n",
    "leaves.py": "import sys\nsys.exit(3)\n",
    "syntax.py": "def broken(:\n",
    "needs.py": "import no_such_module_here\n",
    "bare.py": "from fednag import FedNAG\nclass Bare(FedNAG):\n    extra: float = 1.0\n",
    "lacks.py": "from dataclasses import dataclass\nfrom fednag import Algorithm\n"
    "@dataclass(frozen=True)\nclass Lacks(Algorithm):\n    lr: float = 0.1\n",
    "odd.py": "from dataclasses import dataclass\nfrom fednag import FedNAG\n"
    "@dataclass(frozen=True)\nclass Odd(FedNAG):\n"
    "    def step(self, local, grad):\n        return local\n"
    "@dataclass(frozen=True)\nclass Picky(FedNAG):\n"
    "    def __post_init__(self):\n        raise ValueError('lr is too small')\n"
    "@dataclass(frozen=True)\nclass Thing(FedNAG):\n    thing: object = print\n",
}
REFUSED = [
    ("algorithm.name=lab/no.py:Mine", "--set algorithm.name: there is no file {}/lab/no.py; check"),
    (METHOD + "Mime", "{}/lab/parts.py has no Mime (did you mean Mine?); name something"),
    (METHOD + "mine", "{}/lab/parts.py has no mine (did you mean Mine?); name something"),
    ("algorithm.name=lab/parts.py", "names nothing in a file; write FILE.py:Name, e.g. parts.py:"),
    ("algorithm.name=lab/parts.py:a b", "names nothing in a file; write FILE.py:Name"),
    ("algorithm.name=no_such_module:Mine", "there is no module no_such_module to import; install"),
    ("algorithm.name=lab", "no algorithm 'lab'; there are fednag, fedavg"),
    (METHOD + "net", "net is function, not a subclass of fednag.Algorithm; derive it from that"),
    (METHOD + "Net", "Net is the class Net, not a subclass of fednag.Algorithm"),
    ("algorithm.name=lab/raises.py:A", "(ZeroDivisionError: division by zero, raises.py line 2)"),
    ("algorithm.name=lab/leaves.py:A", "leaves.py cannot be imported (SystemExit: 3, leaves.py li"),
    ("algorithm.name=lab/syntax.py:A", "(SyntaxError: invalid syntax, syntax.py line 1); correct"),
    ("algorithm.name=lab/needs.py:A", "No module named 'no_such_module_here', needs.py line 1)"),
    ("algorithm.name=lab/bare.py:Bare", "Bare is no dataclass; put @dataclass(frozen=True) above"),
    ("algorithm.name=lab/lacks.py:Lacks", "algorithm.name: Lacks lacks step; write it there"),
    ("algorithm.name=lab/odd.py:Odd", "Odd.step: must take (local, grad, sent, mine), but takes"),
    ("algorithm.name=lab/odd.py:Picky", "algorithm: Picky refuses its numbers (ValueError: lr is"),
    ("algorithm.name=lab/odd.py:Thing", "algorithm.thing: <built-in function print> cannot be wri"),
    ("model.name=lab/parts.py:number", "--set model.name: number is int; name an nn.Module, its"),
    ("model.name=lab/parts.py:Mine", "model.name: Mine is the class Mine; name an nn.Module"),
    ("model.name=lab/parts.py:nett", "has no nett (did you mean net?)"),
    (
        "model.name=loggistic",
        "model.name: 'loggistic' is not allowed (did you mean logistic?); use",
    ),
    ("model.loss=lab/parts.py:number", "--set model.loss: number is int; name a function of (outp"),
    (
        "model.loss=mze",
        "model.loss: 'mze' is not allowed (did you mean mse?); use 'cross-entropy', ",
    ),
    ("model.loss=custom", "model.loss: 'custom' is not allowed"),
    ('evaluation.metrics=["lab/parts.py:number"]', "evaluation.metrics: number is int; name a fu"),
    ('evaluation.metrics=["lab/parts.py:sure", "lab/parts.py:sure"]', "one is there twice"),
    ('evaluation.metrics=["lab/parts.py:f1"]', "the name f1 is taken; give the function another"),
    ('evaluation.metrics=["f2"]', "no metric f2; there are accuracy, top5"),
]


@pytest.mark.parametrize(("change", "sentence"), REFUSED, ids=[change for change, _ in REFUSED])
def test_refused_in_one_sentence(
    change: str, sentence: str, fednag_command: Caller, tmp_path: Path
) -> None:
    for name, text in BROKEN.items():
        Path("lab", name).write_text(text)
    said = refused(fednag_command("run", "lab/tiny.toml", "--set", change))
    assert sentence.format(tmp_path) in said


def test_numbers_are_checked_as_those_of_shipped_methods(fednag_command: Caller) -> None:
    name = ("lab/tiny.toml", "--set", METHOD + "Mine", "--set")
    told = refused(fednag_command("run", *name, "algorithm.momentun=0.5"))
    assert "algorithm.momentun: no such key (did you mean momentum?); allowed here: lr, mom" in told
    told = refused(fednag_command("run", *name, "algorithm.lr=0"))
    assert told == "fednag: --set algorithm.lr: 0 is not allowed; it should be above 0\n"
    told = refused(
        fednag_command("run", *name, "model.hidden=[3]", "--set", "model.name=lab/parts.py:net")
    )
    assert "model.hidden: a model of your own sizes its layers itself; leave it out" in told
    Path("lab/tiny.toml").write_text(TINY + "[algorithm]\nclipp = 1.0\n")
    told = refused(fednag_command("compare", "lab/tiny.toml", "--algorithms", "lab/parts.py:Mine"))
    assert "algorithm.clipp: no method has that number (did you mean clip?)" in told


def test_a_file_that_failed_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "parts.py"
    path.write_text("1 / 0\n")
    with pytest.raises(FednagError, match="cannot be imported"):
        own.load(f"{path}:Mine", "algorithm.name")
    path.write_text(PARTS)
    first = own.load("parts.py:Mine", "algorithm.name", tmp_path)
    assert own.load(f"{path}:Mine", "algorithm.name") is first
    path.write_text(PARTS + "\n")
    assert own.load(f"{path}:Mine", "algorithm.name") is not first


# The same loader for other parts.


@dataclass(frozen=True)
class Transform:
    """Stands for a part that has a registry, a base class and numbers."""


@dataclass(frozen=True)
class Round(Transform):
    digits: int = 2
    seen: tuple[str, ...] = ()


def test_any_frozen_dataclass_can_be_a_part(tmp_path: Path) -> None:
    registry: dict[str, type[Transform]] = {"round": Round}
    shipped = own.build_part({"kind": "round", "digits": 3}, registry, Transform, "uplink")
    assert shipped == Round(3)
    (tmp_path / "cuts.py").write_text(
        f"from dataclasses import dataclass, field\nfrom {__name__} import Transform\n"
        "@dataclass(frozen=True)\nclass Cut(Transform):\n    share: float\n"
        "    names: dict = field(default_factory=dict)\n"
    )
    table = {"kind": f"{tmp_path}/cuts.py:Cut", "share": 0.5}
    mine: Any = own.build_part(table, registry, Transform, "uplink")
    assert (mine.share, mine.names) == (0.5, {})
    for wrong, sentence in (
        ({"kind": "rund"}, r"uplink.kind: no transform 'rund' \(did you mean round\?\)"),
        ({**table, "shara": 1}, r"uplink.shara: no such key \(did you mean share\?\)"),
        ({"kind": table["kind"]}, "uplink.share: is missing; give it a value"),
        ({"kind": "round", "digits": 0.5}, "uplink.digits: 0.5 is not allowed; it should be a who"),
    ):
        with pytest.raises(FednagError, match=sentence):
            own.build_part(wrong, registry, Transform, "uplink")


def test_names_of_files_are_not_names_of_parts() -> None:
    assert [is_own(n) for n in ("a.py:B", "a.b:C", "a.py", "cnn", None)] == [True] * 3 + [False] * 2


def test_a_flower_app_carries_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on another machine: the files are gone from where they were, and found in the app."""
    pytest.importorskip("flwr")
    import tomllib
    from types import ModuleType

    from fednag.flower.project import flat, run_config, write_app
    from fednag.flower.settings import read_run_config

    lab = tmp_path / "lab"
    lab.mkdir()
    (lab / "rates.py").write_text("RATE = 0.05\n")
    text = PARTS.replace("import torch\n", "import torch\nfrom rates import RATE\n", 1)
    (lab / "parts.py").write_text(text.replace("= 0.01", "= RATE"))
    experiment = parse(
        {
            "algorithm": {"name": f"{lab}/parts.py:Mine"},
            "model": {"name": f"{lab}/parts.py:net", "loss": f"{lab}/parts.py:plain_loss"},
            "evaluation": {"metrics": ["f1", f"{lab}/parts.py:doubt"]},
        }
    )
    tables = run_config(experiment)
    here = read_run_config(flat(tables))
    app = tmp_path / "app"
    files = {path.relative_to(app).parts[-1] for path in write_app(app, tables)}
    assert {"parts.py", "rates.py", "pyproject.toml"} <= files
    for path in lab.iterdir():
        path.unlink()
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    with pytest.raises(FednagError, match="there is no file"):
        read_run_config(flat(config))

    package = ModuleType("fednag_app")
    package.__file__ = str(app / "fednag_app" / "__init__.py")
    monkeypatch.setitem(sys.modules, "fednag_app", package)
    there = read_run_config(flat(config))
    assert there.digest == here.digest
    assert there.experiment.evaluation.own == {"doubt": "lower"}
    assert there.algorithm.lr == 0.05  # type: ignore[attr-defined]
    (shipped,) = (app / "fednag_app" / "own").rglob("rates.py")
    shipped.write_text("RATE = 0.06\n")
    with pytest.raises(FednagError, match=r"own: .*rates.py is not what it was"):
        read_run_config(flat(config))


def test_a_flower_run_keeps_the_files_it_was_made_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app's folder is Flower's, and gone when the run is over: its file must not name it."""
    pytest.importorskip("flwr")
    import shutil

    from flower_kit import config_of, grid_of, play

    app = tmp_path / "app"
    app.mkdir()
    (app / "rates.py").write_text("RATE = 0.05\n")
    text = PARTS.replace("import torch\n", "import torch\nfrom rates import RATE\n", 1)
    halves = (
        "\n\nfrom fednag import Transform\n\n@dataclass(frozen=True)\nclass Half(Transform):\n"
        "    def apply(self, up, kept, rng):\n        return up.map(lambda v: v / 2), kept\n"
    )
    (app / "parts.py").write_text(text.replace("= 0.01", "= RATE") + halves)
    named = {
        "algorithm.name": f"{app}/parts.py:Mine",
        "model.loss": f"{app}/parts.py:plain_loss",
        "evaluation.metrics": f"['f1', '{app}/parts.py:doubt']",
        "uplink.0.kind": f"{app}/parts.py:Half",
    }
    config = config_of(tmp_path / "runs") | named | {"algorithm.lr": ""}
    run = play(config, grid_of(config))
    shutil.rmtree(app)
    assert run.folder is not None
    monkeypatch.chdir(tmp_path)  # paths are from the file, wherever one is
    again = parse(read(run.folder / "config.toml"))
    assert again.all_keys == run.experiment.all_keys
    assert again.algorithm["lr"] == 0.05
    assert {Path(file).is_relative_to(run.folder) for file in again.own or {}} == {True}
    without = again.model_copy(update={"ledger": again.ledger.model_copy(update={"kind": "none"})})
    (twin,) = run_all([("twin", without, None)])
    assert float((ravel(twin.final) - ravel(run.final)).abs().max()) < 1e-12
    (kept,) = (run.folder / "own").rglob("rates.py")
    kept.write_text("RATE = 0.06\n")
    with pytest.raises(FednagError) as caught:
        parse(read(run.folder / "config.toml"))
    assert caught.value.field == "own"
