"""Laws that hold for every command: examples, names of options, mistakes, completion."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest

from commands import EVERY, GROUPS, LEAVES, Caller, options
from fednag.cli import completing

# One name, two meanings: said here, so that there are no others.
OTHERWISE = {
    ("data split", "--target"),  # named as the field of the experiment file, data.target
    ("flower keys", "--host"),  # a certificate has several
    ("time replay", "--rounds"),  # which rounds a timeline shows, 1-5; elsewhere how many there are
}
# Written once, and so explained in the same words everywhere.
SHARED = ("--json", "--quiet", "--verbose", "--seeds", "--algorithms", "--fleet", "--loss")
SHARED += ("--replays", "--scale", "--experiments", "--target", "--set")
OWN_WORDS = {("data split", "--target"), ("flower init", "--set"), ("flower up", "--set")}


@pytest.fixture
def fednag(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Caller:
    monkeypatch.chdir(tmp_path)
    return Caller(monkeypatch, capsys)


@pytest.mark.parametrize("path", LEAVES)
def test_the_help_has_an_example_that_is_one(path: str) -> None:
    found = re.findall(r"^Example: (fednag .*)$", LEAVES[path].help, re.M)
    assert len(found) == 1
    words = shlex.split(found[0])[1:]
    own = ["time"] if path == "time replay" else path.split()  # `fednag time RUN…` replays
    assert words[: len(own)] == own
    LEAVES[path].make_context(path, words[len(own) :])  # every option and value is understood


@pytest.mark.parametrize("path", EVERY)
def test_help_is_there_and_plain_when_piped(path: str, fednag: Caller) -> None:
    result = fednag(*path.split(), "--help")
    assert (result.code, result.err) == (0, "")
    assert "Usage: fednag" in result.out
    assert "\x1b" not in result.out


@pytest.mark.parametrize("path", LEAVES)
def test_programs_can_read_every_command(path: str) -> None:
    assert "--json" in options(LEAVES[path])


def test_the_same_thing_has_the_same_name_everywhere() -> None:
    kinds: dict[str, set[Any]] = defaultdict(set)
    longs: dict[str, set[str]] = defaultdict(set)
    words: dict[str, set[str]] = defaultdict(set)
    for path, command in LEAVES.items():
        for name, option in options(command).items():
            if (path, name) not in OTHERWISE:
                kinds[name].add((option.type.name.removesuffix(" range"), option.multiple))
            if name in SHARED and (path, name) not in OWN_WORDS:
                words[name].add(option.help)
            for other in option.opts[1:]:
                # A letter, or for a list the word for a single entry.
                assert len(other) == 2 or f"{other}s" == name, (path, other)
                if len(other) == 2:
                    longs[other].add(name)
    assert {name: found for name, found in kinds.items() if len(found) > 1} == {}
    assert {name: found for name, found in words.items() if len(found) > 1} == {}
    assert set(words) == set(SHARED)
    assert dict(longs) == {"-o": {"--out"}, "-q": {"--quiet"}, "-v": {"--verbose"}}
    for path, command in LEAVES.items():
        for name, short in (("--out", "-o"), ("--quiet", "-q"), ("--verbose", "-v")):
            if name in options(command):
                assert short in options(command)[name].opts, (path, name)


def test_lists_have_plural_names() -> None:
    """Values between commas, as the help shows them; one value has the singular."""
    for path, command in LEAVES.items():
        for name, option in options(command).items():
            if re.search(r"\w,[\w.]+[;.,]", option.help or "") and option.type.name == "text":
                assert name.endswith("s") or option.multiple, (path, name)


def test_whoever_can_be_talkative_can_be_quiet(fednag: Caller) -> None:
    Path("e.toml").write_text('[model]\nname = "logistic"\n')
    given = {"run": ["e.toml"], "sweep": ["e.toml", "--grid", "seed=1"], "resume": ["."]}
    given |= {"compare": ["e.toml", "--algorithms", "fednag"], "paper run": ["tau"]}
    given |= {"frontier": ["e.toml", "--target", "0.9"], "decide": ["e.toml"], "tune": ["e.toml"]}
    given |= {"what-if": ["runs"]}
    given |= {"time plan": ["--fleet", "lan", "--target", "0.9"], "paper all": []}
    talkative = [path for path, command in LEAVES.items() if "--verbose" in options(command)]
    assert set(talkative) == set(given)
    for path in talkative:
        assert "--quiet" in options(LEAVES[path]), path
    for path in set(talkative) - {"resume", "sweep"}:  # these two look at their files first
        result = fednag(*path.split(), *given[path], "-q", "-v")
        assert (result.code, result.out) == (2, ""), path
        assert "--quiet, --verbose: give one of them, not both" in result.err, path


MISTYPED = [
    (group, name) for group, command in GROUPS.items() for name in command.commands if len(name) > 3
]


@pytest.mark.parametrize(("group", "name"), MISTYPED, ids=lambda text: text or "fednag")
def test_a_mistyped_command_is_corrected(group: str, name: str, fednag: Caller) -> None:
    wrong = name[:2] + name[3] + name[2] + name[4:]
    wrong = wrong if wrong != name else name[:-1]
    result = fednag(*group.split(), wrong)
    assert (result.code, result.out) == (2, "")
    (hint,) = re.findall(r"Did you mean (.*?)\?", result.err)
    assert f"'{name}'" in hint


@pytest.mark.parametrize("path", LEAVES)
def test_a_mistyped_option_is_corrected(path: str, fednag: Caller) -> None:
    result = fednag(*path.split(), "--jsno")
    assert (result.code, result.out) == (2, "")
    (hint,) = re.findall(r"Did you mean (.*?)\?", result.err)
    assert re.search(r"--json\b", hint)
    assert result.err.count("\n") == 1


def test_a_folder_named_like_a_command_is_still_replayed(fednag: Caller) -> None:
    Path("plans").mkdir()
    assert "plans: no runs there" in fednag("time", "plans", "--fleet", "lan").err
    assert "No such command 'plann'" in fednag("time", "plann", "--fleet", "lan").err
    assert "digits: no such folder" in fednag("time", "digits", "--fleet", "lan").err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("compare", "--algorithms", "fednga"), "fednag"),
        (("time", "plan", "--fleet", "lan", "--target", "0.9", "--algorithms", "fednga"), "fednag"),
        (("time", "plan", "--fleet", "silos-wna", "--target", "0.9"), "silos-wan"),
        (("time", "replay", ".", "--fleet", "paper-egde"), "paper-edge"),
        (("time", "replay", ".", "--fleet", "lan", "--sampling", "lognromal"), "lognormal"),
        (("time", "fleets", "vehicels"), "vehicles"),
        (("time", "fleets", "vehicels", "--copy", "mine.toml"), "vehicles"),
        (("paper", "run", "worksers"), "workers"),
        (("paper", "list", "--scale", "smkoe"), "smoke"),
        (("data", "get", "mnits"), "mnist"),
        (("data", "check", "mnits"), "mnist"),
        (("data", "split", "digist"), "digits"),
        (("data", "split", "--kind", "dirichelt"), "dirichlet"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else None,
)
def test_a_mistyped_name_is_corrected(words: tuple[str, ...], meant: str, fednag: Caller) -> None:
    result = fednag(*words)
    assert (result.code, result.out) == (2, "")
    assert re.search(rf"(did you mean|use) '?{meant}\b", result.err), result.err
    assert result.err.count("\n") == 1


COMPLETED: dict[str, tuple[str, list[str]]] = {
    "a command": ("fednag comp", ["compare"]),
    "a command of a group": ("fednag time pl", ["plan"]),
    "methods": (
        "fednag compare --algorithms fedn",
        ["fednag", "fednova", "fednag-local", "fednag-rebuilt"],
    ),
    "more methods": (
        "fednag compare --algorithms fednag,fedn",
        ["fednag,fednova", "fednag,fednag-local", "fednag,fednag-rebuilt"],
    ),
    "methods to plan": ("fednag time plan --algorithms mi", ["mimelite", "mime"]),
    "fleets": ("fednag time plan --fleet pa", ["paper-edge"]),
    "fleets of a replay": ("fednag time runs --fleet pa", ["paper-edge"]),
    "fleets of a report": ("fednag report runs --fleet v", ["vehicles"]),
    "fleets to show": ("fednag time fleets si", ["silos-wan"]),
    "figures": ("fednag paper run gamma-", ["gamma-loss", "gamma-one"]),
    "scales": ("fednag paper run tau --scale s", ["smoke"]),
    "data to get": ("fednag data get cif", ["cifar-10", "cifar-100"]),
    "data to split": ("fednag data split dig", ["digits"]),
    "splits": ("fednag data split --kind d", ["dirichlet"]),
    "ways of sampling": ("fednag time replay runs --sampling l", ["lognormal"]),
}


@pytest.mark.parametrize("case", COMPLETED)
def test_names_are_completed(case: str, fednag: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    line, expected = COMPLETED[case]
    monkeypatch.setenv("_FEDNAG_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    assert fednag().out.split() == expected


def test_what_is_completed_is_what_there_is() -> None:
    from fednag.algorithms import ALGORITHMS
    from fednag.config.sections import Split
    from fednag.data.download import SOURCES
    from fednag.data.sets import NAMES
    from fednag.devices.files import shipped
    from fednag.devices.times import SAMPLINGS
    from fednag.paper import SCALES
    from fednag.paper.figure import read_figures

    offered: list[tuple[Callable[[str], list[str]], Any]] = [
        (completing.methods, ALGORITHMS),
        (completing.fleets, shipped()),
        (completing.figures, read_figures()),
        (completing.scales, SCALES),
        (completing.kinds, get_args(Split.model_fields["kind"].annotation)),
        (completing.samplings, SAMPLINGS),
        (completing.downloads, SOURCES),
        (completing.data_sets, {*NAMES, *SOURCES}),
    ]
    for complete, there in offered:
        assert sorted(complete("")) == sorted(there), complete


def test_completion_does_not_load_torch(tmp_path: Path) -> None:
    code = (
        "import sys\nimport fednag.cli\nfrom fednag.cli import completing as c\n"
        "for name in ('methods', 'fleets', 'figures', 'scales', 'kinds', 'samplings', "
        "'downloads', 'data_sets'):\n    assert getattr(c, name)(''), name\n"
        "print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", code]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown_and_installed(
    shell: str, fednag: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    shown = fednag("--show-completion", shell)
    assert shown.code == 0
    assert "_FEDNAG_COMPLETE" in shown.out
    assert fednag("--install-completion", shell).code == 0
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_FEDNAG_COMPLETE" in text for text in written)
