"""What the documents say runs, and what examples print is there."""

from __future__ import annotations

import doctest
import importlib
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the examples in it, as in a clone."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


def ran(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fednag.cli import main

    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 0, command


def likeness(line: str) -> str:
    """A line of output without its numbers, which differ by machine in their last digits."""
    return re.sub(r"[-+]?[\d.,]+(?:e[-+]?\d+)?|[\s─━│┃]+", " ", line).strip()


def unlike(shown: str, printed: str) -> list[str]:
    """Lines that a page shows and the command did not print."""
    there = {" ".join(likeness(line).split()) for line in printed.splitlines()}
    lines = [line for line in shown.splitlines() if line.strip() not in ("", "…")]
    return [line for line in lines if " ".join(likeness(line).split()) not in there]


def steps_of(text: str) -> list[tuple[str, str]]:
    """(kind, content) of a page's blocks: sh and python are run, text is what they print."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text, re.S | re.M)


def play(page: Path, monkeypatch: pytest.MonkeyPatch, read: Callable[[], str]) -> int:
    """Do what the page says, in the working directory, and compare what it shows; how many steps.

    A file whose first line is a comment with its name, such as ``# net.py``, is written there.
    """
    printed, done = "", 0
    for kind, content in steps_of(page.read_text()):
        named = re.match(r"# ([\w-]+\.(?:py|toml))\n", content)
        if named:
            Path(named[1]).write_text(content)
        elif kind == "sh":
            printed = ""
            for line in content.splitlines():
                command = line.partition("  #")[0].strip()
                if command.startswith("fednag "):
                    ran(command, monkeypatch)
                elif command.startswith("python "):
                    runpy.run_path(command.split()[1], run_name="__main__")
                else:
                    continue
                done += 1
                printed += read()
                assert printed.strip(), command
        elif kind == "python":
            Path("block.py").write_text(content)
            runpy.run_path("block.py")
            done += 1
            printed = read()
        elif not kind:  # a command that a test of documents cannot run
            printed = ""
        elif kind == "text" and printed:
            assert not unlike(content, printed), page.name
    return done


def test_readme_commands_print_what_is_shown(
    desk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In their order: `time` needs the runs of the command before it."""
    monkeypatch.chdir(desk)
    assert play(ROOT / "README.md", monkeypatch, lambda: capsys.readouterr().out) >= 4


PAGES = [
    ROOT / "docs" / "secure-aggregation.md",
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorials").glob("*.md")),
]
LONG = {"phones", "own-model-and-data", "command-line", "tune"}  # more than ten seconds each
SHOWN = [
    pytest.param(page, id=page.stem, marks=[pytest.mark.slow] if page.stem in LONG else [])
    for page in PAGES
    if re.search(r"```(sh|python)\n", page.read_text())
]


@pytest.mark.parametrize("page", SHOWN)
def test_what_pages_show_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # a page may import the file it has written
    try:
        assert play(page, monkeypatch, lambda: capsys.readouterr().out)
    finally:
        sys.modules.pop("net", None)


def test_own_data_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file, with more rows of the same kind than fit on the page, trains."""
    from fednag.cli import main

    text = (ROOT / "docs" / "how-to" / "own-data.md").read_text()
    (table,) = re.findall(r"```\n(age.*?)```", text, re.S)
    (file,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    header, *rows = table.splitlines()
    (tmp_path / "clinics.csv").write_text("\n".join([header, *rows * 20]) + "\n")
    (tmp_path / "clinics.toml").write_text(file)
    monkeypatch.chdir(tmp_path)
    for command in re.findall(r"`(fednag (?:data split|run) clinics[^`]*)`", text):
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0, command
    assert list((tmp_path / "runs" / "clinics").glob("*/final.safetensors"))


def test_readme_python_runs(tmp_path: Path) -> None:
    """As a newcomer would: a new process, nothing prepared."""
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "fednag" in done.stdout
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
# How a part of each kind is used, by its registry: what is given, and to what it is compared.
PLAIN: dict[str, Any] = {"algorithm": "fedavg", "model": "logistic", "tau": 5, "iterations": 60}
# Of four workers three are waited for: then some of a round's answers are a round late, others not.
LATE = {"controller": {"kind": "buffered", "need": 3}, "clock": {"fleet": "paper-edge"}}
USES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ALGORITHMS": ({"algorithm": "{name}"}, {}),
    "TRANSFORMS": ({"uplink": ["{name}"]}, {}),
    "AGGREGATORS": ({"aggregator": "{name}", **LATE}, LATE),
    "ATTACKS": ({"attack": ["{name}"]}, {}),
    "CONTROLLERS": ({"controller": "{name}"}, {}),
    "SCHEDULES": ({"schedule": [{"kind": "{name}", "field": "algorithm.lr"}]}, {}),
}


def named(given: Any, name: str) -> Any:
    """The same with ``{name}`` replaced, wherever it stands."""
    if isinstance(given, dict):
        return {key: named(inner, name) for key, inner in given.items()}
    if isinstance(given, list):
        return [named(inner, name) for inner in given]
    return name if given == "{name}" else given


@pytest.mark.parametrize("registry", USES)
def test_parts_added_as_described_train(
    registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file and a line in a registry: the part is built from its name, and does something."""
    import fednag
    from fednag.config import own

    entry = re.search(
        rf'`{registry}`:\s+`"([a-z-]+)": (\w+)`\.\n\n```python\n(.*?)```', CONTRIBUTING, re.S
    )
    assert entry, registry
    name, cls, code = entry.groups()
    lines = [line for line in code.splitlines() if line.strip()]
    assert len(lines) < 20
    (tmp_path / "part.py").write_text(code)
    part = own.load(f"{tmp_path / 'part.py'}:{cls}", registry)
    assert name not in getattr(fednag, registry)  # otherwise this page needs another example
    monkeypatch.setitem(getattr(fednag, registry), name, part)
    given, usual = USES[registry]
    run = fednag.run(**{**PLAIN, **named(given, name)}, quiet=True)
    plain = fednag.run(**{**PLAIN, **usual}, quiet=True)
    losses, others = ([float(record.loss or 0) for record in r.records] for r in (run, plain))
    assert losses[-1] < losses[0]
    assert max(abs(a - b) for a, b in zip(losses, others, strict=False)) > 1e-4  # not by rounding


def section_of(page: str, heading: str) -> str:
    text = (ROOT / "docs" / page).read_text()
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_parts_of_a_round_run_as_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from fednag.cli import main

    text = section_of("experiments.md", "Parts of a round")
    (file,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    (block,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (shell,) = re.findall(r"```sh\n(.*?)```", text, re.S)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "parts.toml").write_text(f"{file}\n[training]\niterations = 40\n")
    monkeypatch.chdir(tmp_path)
    for command in ["fednag run parts.toml", *shell.splitlines()]:
        monkeypatch.setattr(sys, "argv", shlex.split(command))
        with pytest.raises(SystemExit) as stopped:
            main()
        assert stopped.value.code == 0, command
    (tmp_path / "block.py").write_text(block)
    capsys.readouterr()
    runpy.run_path(str(tmp_path / "block.py"))
    assert "fednag" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"controller": {"kind": "buffered", "need": 2}}, "there is no clock; name a fleet"),
        ({"algorithm": "mime", **LATE}, "has rounds of several exchanges"),
        ({"schedule": [{"kind": "cosine", "field": "algorithm.mu"}]}, "is no number of FedAvg"),
    ],
)
def test_what_the_page_says_is_refused(given: dict[str, Any], sentence: str) -> None:
    import fednag

    with pytest.raises(fednag.FednagError, match=sentence):
        fednag.run(**{**PLAIN, **given}, quiet=True)


def test_theory_python_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "theory.md").read_text(), re.S)
    (tmp_path / "block.py").write_text(block)
    runpy.run_path(str(tmp_path / "block.py"))
    printed = capsys.readouterr().out
    assert "holds Theorem 1" in printed
    assert "FAILS" not in printed


def test_clock_python_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "clock.md").read_text(), re.S)
    (tmp_path / "block.py").write_text(block)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(tmp_path / "block.py"))
    printed = capsys.readouterr().out
    assert "fednag" in printed
    assert "take " in printed


def test_every_fleet_field_is_documented() -> None:
    from fednag.devices import files

    text = (ROOT / "docs" / "clock.md").read_text()
    tables = (files.FleetFile, files.Device, files.Link, files.Reference, files.Aggregator)
    for table in (*tables, files.AccessPoint, files.Power):
        for field in table.model_fields:
            assert f"`{field}`" in text, (table.__name__, field)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("own_model.py", "first predictions"),
        ("own_algorithm.py", "FedPolyak"),
        ("sweep.py", "tau=20,momentum=0.9 (3 runs)"),
    ],
)
def test_examples_run(script: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "examples" / script
    assert len(path.read_text().splitlines()) < 60
    runpy.run_path(str(path), run_name="__main__")
    assert expected in capsys.readouterr().out


def test_readme_links_only_real_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("https://") or (ROOT / target).exists(), target


def test_what_every_method_does_is_told() -> None:
    from fednag import ALGORITHMS

    table = section_of("methods.md", "What each does")
    told = {name for line in table.splitlines() for name in re.findall(r"`([\w-]+)`", line[:60])}
    assert set(ALGORITHMS) <= told


def test_the_page_of_methods_is_true() -> None:
    """Of every method: what it is sent and returns, in vectors, and its numbers."""
    from dataclasses import fields

    import torch

    from fednag import ALGORITHMS
    from fednag.core.algorithm import payload

    page = (ROOT / "docs" / "methods.md").read_text()
    row = re.compile(r"^\| `([\w-]+)` \|[^|]*\| (\d) \| (\d) \|([^|]*)\|(.*) \|$", re.M)
    found = {name: rest for name, *rest in row.findall(page)}
    assert set(found) == set(ALGORITHMS)
    w = torch.zeros(100)
    for name, (down, up, keeps, numbers) in found.items():
        cls = ALGORITHMS[name]
        sent = [round(size / 400) for size in payload(cls(), cls().init(w))]  # type: ignore[call-arg]
        assert sent == [int(down), int(up)], name
        assert bool(keeps.strip()) == bool(cls().memory(w)), name  # type: ignore[call-arg]
        usual = {f.name: f.default for f in fields(cls)}  # type: ignore[arg-type]
        usual = {n: v for n, v in usual.items() if (n, v) not in USUAL}
        assert dict(re.findall(r"`(\w+)=([^`]+)`", numbers)) == {
            n: str(v) for n, v in usual.items()
        }, name


USUAL = {("lr", 0.01), ("weight_decay", 0.0), ("clip", 0.0)}


def test_source_files_that_pages_name_are_there() -> None:
    """Modules move; what is said of them must move along."""
    pages = [README, CONTRIBUTING, *(p.read_text() for p in (ROOT / "docs").rglob("*.md"))]
    file = re.compile(r"`((?!tests/)(?:[\w-]+/)+\w+\.py)`")
    named = {name for page in pages for name in file.findall(page)}
    assert len(named) > 20
    for name in named:
        assert any((home / name).exists() for home in (ROOT, ROOT / "src/fednag")), name


def test_the_walk_through_the_source_names_what_is_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", text)
    assert len(named) > 5
    for file, listed in named:
        code = (ROOT / "src" / "fednag" / file).read_text()
        for name in re.findall(r"`([\w.]+)`", listed):
            for part in name.split("."):
                assert re.search(rf"^ *(class|def) {part}\b", code, re.M), (file, name)


def test_experiment_fields_are_documented() -> None:
    from fednag.config import Experiment

    text = (ROOT / "docs" / "experiments.md").read_text()
    for name, field in Experiment.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        for key in inner or []:
            assert f"`{name}.{key}`" in text, f"{name}.{key}"
        assert inner or f"`{name}`" in text or f"`{name}." in text, name


SOURCE = ROOT / "src"
WITH_EXAMPLES = [
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    for path in sorted(SOURCE.rglob("*.py"))
    if ">>> " in path.read_text()
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_docstrings_run(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


# What is no more than a name for something, or is what the example of another one gives.
REGISTRIES = {"AGGREGATORS", "ALGORITHMS", "ATTACKS", "CONTROLLERS", "SCHEDULES", "TRANSFORMS"}
NAMES_OF_TYPES = {"fednag": {*REGISTRIES, "Grad", "Vector"}}
GIVEN_BY = {
    "fednag.clock": {
        "Part": "where_time_goes",
        "Played": "Clock",
        "Replay": "replay",
        "Row": "times_to_target",
        "Timed": "replay_runs",
        "TierRow": "replay_runs",
        "TimedRun": "read_run",
        "Timeline": "timeline",
    },
    "fednag.planning": {
        "Advice": "plan",
        "Candidate": "candidates",
        "Choice": "advise",
        "Point": "plan",
        "Surety": "plan",
    },
    "fednag.frontier": {"Candidate": "candidates", "Frontier": "frontier"},
    "fednag.decide": {"Decision": "decide", "Pair": "decide"},
    "fednag.tuning": {"Trial": "tune", "Tuned": "tune", "Tuning": "tune"},
    "fednag.whatif": {"Effect": "what_if", "WhatIf": "what_if"},
}


@pytest.mark.parametrize(
    "home",
    [
        "fednag",
        "fednag.clock",
        "fednag.theory",
        "fednag.planning",
        "fednag.frontier",
        "fednag.decide",
        "fednag.tuning",
        "fednag.whatif",
    ],
)
def test_all_that_is_public_has_an_example(home: str) -> None:
    module = importlib.import_module(home)
    named = NAMES_OF_TYPES.get(home, set())
    assert named <= set(module.__all__)
    for name in set(module.__all__) - named:
        shown = GIVEN_BY.get(home, {}).get(name, name)
        assert ">>> " in (getattr(module, shown).__doc__ or ""), f"{home}.{name}"
        assert getattr(module, name).__doc__, f"{home}.{name}"


def test_example_files_are_valid() -> None:
    from fednag.config import methods, parse, read

    files = sorted((ROOT / "examples").glob("*.toml"))
    assert files
    for path in files:
        raw = read(path)
        for _, table in methods(raw, [] if "algorithms" in raw else ["fednag"]):
            parse(table, str(path))


def test_plans_are_documented_with_one_spelling() -> None:
    """Lists have plural names; `--tau` and `--gamma` are kept for those who typed them before."""
    root = Path(__file__).parents[1]
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    lines = [line for page in pages for line in page.read_text().splitlines()]
    planned = [line for line in lines if "fednag time plan " in line]
    assert len(planned) > 2
    assert not [line for line in planned if "--tau " in line or "--gamma " in line]
