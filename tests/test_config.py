"""Experiment files: what is refused and how it is said; what is kept and what a key covers."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednag.algorithms import ALGORITHMS, FedNAG
from fednag.config import (
    Experiment,
    assignments,
    build_algorithm,
    methods,
    override,
    parse,
    read,
    value,
    values,
)
from fednag.errors import FednagError
from refusals import refused


def attempt(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function gives; None if it refuses in one line."""
    try:
        return function(*arguments)
    except FednagError as refused:
        lines = str(refused).splitlines()
    assert len(lines) == 1
    return None


def refusal(raw: dict[str, Any]) -> FednagError:
    with pytest.raises(FednagError) as caught:
        parse(raw, "file.toml")
    return caught.value


# (what stands in the file, the field named, the rest of the sentence)
BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"tau": 3}, "tau", "did you mean training.tau?"),
    ({"trainin": {}}, "trainin", "did you mean training?"),
    ({"training": {"taau": 3}}, "training.taau", "did you mean tau?"),
    ({"zzz": 1}, "zzz", "allowed here: name, seed, data"),
    ({"training": 3}, "training", "3 is not allowed; it should be a table"),
    ({"training": {"tau": "x"}}, "training.tau", "'x' is not allowed; it should be a whole number"),
    ({"training": {"tau": 2.5}}, "training.tau", "2.5 is not allowed; it should be a whole number"),
    ({"training": {"tau": True}}, "training.tau", "True is not allowed"),
    ({"training": {"tau": 0}}, "training.tau", "0 is not allowed; it should be at least 1"),
    ({"training": {"iterations": 10**30}}, "training.iterations", "at most 1000000000"),
    ({"training": {"fraction": 0}}, "training.fraction", "it should be above 0"),
    ({"training": {"fraction": 1.5}}, "training.fraction", "it should be at most 1"),
    ({"training": {"participants": 1, "fraction": 0.5}}, "", "not both"),
    ({"split": {"workers": 10**10}}, "split.workers", "at most 1000000000"),
    ({"training": {"batch": "32"}}, "training.batch", "a whole number, without quotes"),
    ({"algorithm": {"lr": "0.1"}}, "algorithm.lr", "a number, without quotes"),
    ({"data": {"standardise": "true"}}, "data.standardise", "true or false, without quotes"),
    ({"split": {"kind": "idd"}}, "split.kind", "did you mean iid?"),
    ({"split": {"kind": "classes"}}, "split.classes", "is missing"),
    ({"split": {"kind": "dirichlet"}}, "split.alpha", "is missing"),
    ({"split": {"alpha": 1.0}}, "split.alpha", "only with split.kind = 'dirichlet'"),
    ({"split": {"kind": "sizes", "proportions": 5}}, "split.proportions", "a list"),
    ({"split": {"kind": "sizes", "proportions": [1, -2]}}, "split.proportions", "-2"),
    ({"data": {"name": "MNIST"}}, "data.name", "did you mean mnist?"),
    ({"data": {"alpha": 1.0}}, "data.alpha", "only with data.name = 'synthetic'"),
    ({"model": {"hidden": [-5]}}, "model.hidden", "-5 is not allowed; it should be at least 1"),
    ({"model": {"hidden": [10**8]}}, "model.hidden", "at most 1000000"),
    ({"evaluation": {"per_worker": 1}}, "evaluation.per_worker", "true or false"),
    ({"stop": {"accuracy": 97}}, "stop.accuracy", "it should be at most 1"),
    ({"stop": {"loss": float("nan")}}, "stop.loss", "a finite number"),
    ({"engine": {"dtype": "float16"}}, "engine.dtype", "use 'float32' or 'float64'"),
    ({"engine": {"device": 5}}, "engine.device", "a text, in quotes"),
    ({"name": "../x"}, "name", "use letters, digits"),
    ({"name": "a\n"}, "name", "use letters, digits"),
    ({"seed": -1}, "seed", "it should be at least 0"),
    ({"seed": 2**31}, "seed", "it should be below 2147483648"),
    ({"algorithm": "fedavg"}, "algorithm", "it should be a table"),
    ({"algorithm": {"name": "fedavgg"}}, "algorithm.name", "did you mean fedavg?"),
    ({"algorithm": {"name": ["x"]}}, "algorithm.name", "there are fednag, fedavg"),
    ({"algorithm": {"name": "fedavg", "momentum": 0.9}}, "algorithm.momentum", "allowed here: lr"),
    ({"algorithm": {"lr": 0}}, "algorithm.lr", "it should be above 0"),
    ({"algorithm": {"lr": float("inf")}}, "algorithm.lr", "a finite number"),
    ({"algorithm": {"name": "fedadam", "second": 1}}, "algorithm.second", "it should be below 1"),
]


@pytest.mark.parametrize(("raw", "field", "rest"), BAD, ids=[f"{b[1]}-{b[2]}" for b in BAD])
def test_bad_input_is_one_helpful_sentence(raw: dict[str, Any], field: str, rest: str) -> None:
    error = refusal(raw)
    assert (error.source, error.field) == ("file.toml", field)
    assert rest in str(error)
    assert "\n" not in str(error)


def test_further_findings_are_counted() -> None:
    assert refusal({"training": {"tau": 0, "batch": -1}}).remedy.endswith("(and 1 more)")


def test_odd_keys_and_long_values_stay_on_one_short_line() -> None:
    assert "\n" not in str(refusal({"a\nb": 1}))
    assert len(str(refusal({"name": "x" * 10_000}))) < 200


FULL = {
    "name": "full",
    "seed": 3,
    "data": {"name": "synthetic", "alpha": 0.5, "standardise": True},
    "split": {"kind": "sizes", "workers": 3, "proportions": [1, 2.5, 3]},
    "model": {"name": "mlp", "hidden": [5, 6]},
    "algorithm": {"name": "slowmo", "lr": 1},
    "training": {"tau": 5, "iterations": 10, "batch": 0, "fraction": 0.5},
    "evaluation": {"every": 2, "samples": 100, "per_worker": True},
    "stop": {"accuracy": 0.9, "loss": 0, "seconds": 60},
    "engine": {"device": "cpu", "dtype": "float64", "chunk": 2, "threads": 1},
}


@pytest.mark.parametrize("raw", [{}, FULL, *({"algorithm": {"name": n}} for n in ALGORITHMS)])
def test_toml_round_trip(raw: dict[str, Any]) -> None:
    first = parse(raw)
    again = parse(tomllib.loads(first.toml()))
    assert again == first
    assert again.key == first.key
    for section, table in raw.items():
        dumped = first.model_dump(mode="json")[section]
        assert dumped == table if not isinstance(table, dict) else table.items() <= dumped.items()


OFF = {"weight_decay": 0.0, "clip": 0.0}


def test_an_algorithm_without_a_name_is_the_default() -> None:
    table = parse({"algorithm": {"lr": 0.5}}).algorithm
    assert table == {"name": "fednag", "lr": 0.5, "momentum": 0.9} | OFF


def test_key_ignores_only_what_cannot_change_the_numbers() -> None:
    key = parse(FULL).key
    for field, same in {"name": "other", "engine.threads": 2}.items():
        assert parse(override(FULL, {field: same})).key == key
    changes = {
        "seed": 4,
        "data.alpha": 0.25,
        "data.standardise": False,
        "split.workers": 4,
        "split.proportions": [1, 2, 3],
        "model.hidden": [5],
        "algorithm.lr": 0.5,
        "algorithm.name": "fedmom",
        "training.tau": 6,
        "training.iterations": 11,
        "training.batch": 1,
        "training.fraction": 0.25,
        "evaluation.every": 1,
        "evaluation.samples": 0,
        "stop.accuracy": 0.8,
        "engine.dtype": "float32",
        "engine.device": "auto",
    }
    keys = {parse(override(FULL, {field: new})).key for field, new in changes.items()}
    assert len(keys | {key}) == len(changes) + 1


def test_key_sees_a_default_written_out() -> None:
    assert parse({"training": {"tau": 20}, "algorithm": {"lr": 0.01}}).key == parse({}).key


def test_override_sets_fields_and_leaves_the_original() -> None:
    raw = {"seed": 1, "training": {"tau": 2}}
    changed = override(raw, {"training.tau": 3, "training.batch": 4, "seed": 5, "stop.loss": 6})
    assert changed == {"seed": 5, "training": {"tau": 3, "batch": 4}, "stop": {"loss": 6}}
    assert raw == {"seed": 1, "training": {"tau": 2}}


@pytest.mark.parametrize("path", ["training.", ".tau", "a.b.c", "seed.x"])
def test_override_refuses_what_is_no_field(path: str) -> None:
    with refused(path):
        override({"seed": 1}, {path: 3})


@pytest.mark.parametrize("text", ["training.tau", "=3", "training.tau=", " = "])
def test_assignments_need_both_sides(text: str) -> None:
    with refused("--set"):
        assignments([text], "--set")


def test_assignments_split_at_the_first_sign_and_refuse_repeats() -> None:
    assert assignments(["a.b = x=y"], "--set") == {"a.b": "x=y"}
    with refused("--set", "twice"):
        assignments(["a.b=1", "a.b=2"], "--set")


@pytest.mark.parametrize(
    ("text", "meant"),
    [("3", 3), ("0.5", 0.5), ("true", True), ("[1, 2]", [1, 2]), ('"3"', "3"), ("iid", "iid")],
)
def test_value_reads_toml_or_plain_text(text: str, meant: object) -> None:
    assert value(text) == meant
    assert type(value(text)) is type(meant)


def test_value_takes_no_second_line_and_no_endless_number() -> None:
    assert value("3\nother = 4") == "3\nother = 4"
    assert value("9" * 5000) == "9" * 5000


def test_values_keep_lists_together() -> None:
    assert values("[1,2],[3]") == [[1, 2], [3]]
    assert values("5, 10") == [5, 10]
    assert values("linear, logistic") == ["linear", "logistic"]
    assert values('"a,b"') == ["a,b"]
    assert values(",") == []


def test_methods_share_the_numbers_they_have() -> None:
    raw = {
        "algorithm": {"lr": 0.5, "momentum": 0.1},
        "algorithms": ["fednag", "fedavg", {"name": "fednag", "momentum": 0.7}],
    }
    found = dict(methods(raw, []))
    assert {label: table["algorithm"] for label, table in found.items()} == {
        "fednag": {"name": "fednag", "lr": 0.5, "momentum": 0.1},
        "fedavg": {"name": "fedavg", "lr": 0.5},
        "fednag(momentum=0.7)": {"name": "fednag", "lr": 0.5, "momentum": 0.7},
    }
    assert all("algorithms" not in table for table in found.values())
    assert [label for label, _ in methods(raw, ["fedmom"])] == ["fedmom"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"x = = 3", "is not TOML (Invalid value (at line 1"),
        (b"\xff\xfe\x00", "is not TOML ('utf-8' codec"),
        (b"seed = " + b"9" * 5000, "is not TOML"),
        (b"seed = " + b"[" * 5000, "is not TOML"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(FednagError) as caught:
        read(path)
    assert str(caught.value).startswith(f"{path}: {sentence}")
    assert "\n" not in str(caught.value)


def test_data_in_place_of_an_experiment_file(tmp_path: Path) -> None:
    with refused(source=str(tmp_path / "clean.csv")):
        read(tmp_path / "clean.csv")


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.toml"):
        with pytest.raises(FednagError, match=r"cannot be read \((Is a dir|No such file)"):
            read(path)


json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    # Integers no float holds, and values that are nearly right.
    | st.sampled_from([10**400, -(10**400), "fednag", "iid", "custom", 1, 0.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)
FIELDS = [
    f"{section}.{key}"
    for section, field in Experiment.model_fields.items()
    for key in getattr(field.annotation, "model_fields", ())
]
NUMBERS = ["algorithm.name", "algorithm.lr", "algorithm.momentum"]
paths = st.sampled_from([*Experiment.model_fields, *FIELDS, *NUMBERS]) | st.text(max_size=20)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(paths, json, max_size=4))
def test_whatever_comes_is_an_experiment_or_one_sentence(changes: dict[str, Any]) -> None:
    experiment = attempt(lambda: parse(override({}, changes), "file"))
    if experiment is not None:
        assert parse(tomllib.loads(experiment.toml())) == experiment


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["lr", "momentum"]) | st.text(max_size=5), json))
def test_whatever_comes_as_algorithm(table: dict[str, Any]) -> None:
    built = attempt(build_algorithm, {"name": "fednag", **table})
    if built is not None:
        assert built == FedNAG(**{key: float(number) for key, number in table.items()})


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(["algorithm", "algorithms"]), json))
def test_whatever_comes_as_methods(raw: dict[str, Any]) -> None:
    for label, table in attempt(methods, raw, []) or []:
        assert label.startswith(table["algorithm"]["name"])


def test_another_method_keeps_only_the_numbers_it_has() -> None:
    raw = {"algorithm": {"name": "fednag", "lr": 0.5, "momentum": 0.3}}
    other = parse(override(raw, {"algorithm.name": "fedavg"})).algorithm
    assert other == {"name": "fedavg", "lr": 0.5} | OFF
    with refused("algorithm.momentum"):
        parse(override(raw, {"algorithm.name": "fedavg", "algorithm.momentum": 0.5}))


def test_another_split_drops_the_options_of_the_old_one() -> None:
    raw = {"split": {"kind": "dirichlet", "alpha": 0.5, "workers": 3}}
    assert parse(override(raw, {"split.kind": "iid"})).split.alpha is None
    with refused("split.alpha"):
        parse(override(raw, {"split.kind": "iid", "split.alpha": 0.5}))
