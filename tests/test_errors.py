"""Errors: which field, file and remedy they name, and how that is printed."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fednag
from fednag import FedNAG, FednagError
from fednag.aggregators import EqualMean
from fednag.config import assignments, methods, override, parse
from fednag.controllers import Buffered, Cosine
from fednag.data.partition import by_class, by_size, dirichlet, natural
from fednag.errors import BusyError, InconsistentError, not_installed, within
from fednag.problems.metrics import Metric
from fednag.runs.targets import given_target
from fednag.transforms import Float16
from layers import SOURCE
from refusals import refused

SMALL: dict[str, Any] = {"model": "logistic", "tau": 4, "iterations": 12, "workers": 4}
TEN = np.repeat(np.arange(10), 3)
TWICE = [{"name": "fednag"}, {"name": "fednag", "lr": 1}, {"name": "fednag", "lr": 1}]
X, Y = torch.randn(12, 3), torch.arange(12) % 2
LAN = {"fleet": "lan"}


def file(**tables: Any) -> Callable[[], object]:
    return lambda: parse(tables, "it.toml")


def run(method: Any = "fednag", **given: Any) -> Callable[[], object]:
    return lambda: fednag.run(method, **{**SMALL, **given})


def data(x: Any, y: Any, **given: Any) -> Callable[[], object]:
    return lambda: fednag.dataset(x, y, **given)


# (what is asked, the field that is wrong, a word where several things can be wrong with it).
# With "!" after it the field has a problem and no remedy, for the sentence says what there is.
BAD: list[tuple[Callable[[], object], str, str]] = [
    # experiment files; what else may be wrong with a number is in test_config.py
    (file(training={"tau": 0}), "training.tau", "at least 1"),
    (file(tau=3), "tau!", "did you mean training.tau?"),
    (file(clock={"deadline": 1.0}), "clock.fleet", "is missing"),
    (file(clock={**LAN, "deadline": 0.0}), "clock.deadline", "above 0"),
    (file(clock={"flet": "lan"}), "clock.flet", "did you mean fleet"),
    (file(data={"test_path": "a", "test_share": 0.1, "name": "file", "path": "b"}), "", "not both"),
    (file(uplink=[{"kind": "clop"}]), "uplink.0.kind", "did you mean clip"),
    (file(uplink=[{"norm": 1.0}]), "uplink.0.kind", "no transform None"),
    (file(uplink=[{"kind": "clip", "norm": -1.0}]), "uplink.0.norm", "-1.0"),
    (file(uplink=[{"kind": "clip", "size": 1.0}]), "uplink.0.size", "allowed here: norm"),
    (file(uplink={"kind": "clip"}), "uplink", "a list"),
    (file(aggregator={"kind": "medain"}), "aggregator.kind", "medain"),
    (file(controller={"kind": "buffered"}), "controller.need", "is missing"),
    (file(controller={"kind": "steps-by-worker", "steps": []}), "controller.steps", ""),
    (file(schedule=[{"kind": "cosine"}]), "schedule.0.field", "is missing"),
    (file(evaluation={"metrics": ["f1", "f1"]}), "evaluation.metrics", "twice"),
    (file(evaluation={"metrics": "f1"}), "evaluation.metrics", "a list"),
    (file(evaluation={"metrics": ["precision"]}), "evaluation.metrics", "no metric precision"),
    (file(evaluation={"own": {"f1": "higher"}}), "evaluation.own", "f1 is taken"),
    (file(stop={"metrics": {"f1": 0.9}}), "stop.metrics", "f1 is not measured; add it to eval"),
    (file(stop={"metrics": {"loss": 0.9}}), "stop.metrics", "a field of its own"),
    (file(stop={"metrics": {"lucky": 1}}), "stop.metrics", "no measure lucky"),
    (file(stop={"metrics": {"test_loss": "x"}}), "stop.metrics.test_loss", "a number"),
    (file(stop={"patience": 0}), "stop.patience", "at least 1"),
    (file(stop={"watch": "loss"}), "stop.watch", "only with stop.patience"),
    (file(stop={"min_change": 0.1}), "stop.min_change", "only with stop.patience"),
    (file(stop={"window": 3}), "stop.window", "only with stop.plateau"),
    (file(stop={"plateau": 0.1, "min_change": 0.1}), "stop.min_change", "only with stop.patience"),
    (file(stop={"plateau": 1.0}), "stop.plateau", "1"),
    (file(stop={"bytes": 0}), "stop.bytes", "at least 1"),
    (file(stop={"patience": 2, "min_change": -1}), "stop.min_change", "-1"),
    (file(stop={"patience": 2, "watch": "f1"}), "stop.watch", "f1 is not measured; add it to"),
    (file(stop={"patience": 2, "watch": "los"}), "stop.watch", "did you mean loss"),
    # methods to compare
    (lambda: methods({"algorithms": "fednag"}, []), "algorithms", "write a list"),
    (lambda: methods({"algorithms": [[1]]}, []), "algorithms", r"\[1\] does not name a method"),
    (lambda: methods({"algorithms": [{"lr": 1}]}, []), "algorithms", "'lr': 1} does not name"),
    (lambda: methods({"algorithms": ["fednag", "fednag"]}, []), "algorithms", "fednag is there tw"),
    (lambda: methods({"algorithms": TWICE}, []), "algorithms", r"fednag\(lr=1\) is there twice"),
    (lambda: methods({"algorithm": 3}, ["fednag"]), "algorithm", "a table"),
    (lambda: methods({"algorithm": {"mu": 1, "x": 2}}, ["fednag"]), "algorithm.x!", "no method"),
    # options
    (lambda: override({"seed": 1}, {"a.b.c": 3}), "a.b.c", "section.key"),
    (lambda: override({"seed": 1}, {"uplink.1.kind": 3}), "uplink.1.kind", "at most 0"),
    (lambda: assignments(["training.tau"], "--set"), "--set", "section.key=value"),
    (lambda: assignments(["a.b=1", "a.b=2"], "--set"), "--set", "twice"),
    (lambda: given_target(0.5, 0.5), "--target, --loss", "not both"),
    (lambda: given_target("f1=", None), "--target", "e.g. f1=0.9"),
    (lambda: given_target("2", None), "--target", "at most 1"),
    (lambda: given_target(None, -1.0), "--loss", "above 0"),
    # arguments of run, compare and sweep
    (run(lr=0.05), "lr", "fednag.FedNAG"),
    (run(participants=2), "participants", "training={'participants': 2}"),
    (run(participants=list(range(900))), "participants", r"\.\.\.\]}$"),
    (run(worker=3), "worker!", "did you mean workers"),
    (run(training=3), "training", "not a table"),
    (run(tau=5, training={"tau": 6}), "tau", "twice"),
    (run(data=torch.zeros(3, 2)), "data", "give a name"),
    (run(data=(X, Y, X)), "data", "not 3 parts"),
    (run(model=3), "model", "give a name, an nn.Module"),
    (run(model=nn.Linear(3, 2)), "model", "samples of shape"),
    (run(loss=lambda output, y: output), "loss", "one value per sample"),
    (run(FedNAG), "algorithm", r"FedNAG\(\)"),
    (run(FedNAG(lr=-1.0)), "FedNAG.lr", "above 0"),
    (run(test=(torch.zeros(1, 2), torch.zeros(1))), "test, owners", "go with your own"),
    (run(split={"kind": "natural"}), "split.kind", "who owns each sample"),
    (run(engine={"device": "toaster"}), "engine.device", ""),
    (run(training={"participants": 9}), "training.participants", "the 4 workers"),
    (run(workers=5000), "split.workers", ""),
    (run(data=(X, Y), workers=13), "split.workers", "13 is more than the 12 samples"),
    (lambda: fednag.compare("fednag"), "algorithms", "a list"),
    (lambda: fednag.compare([]), "algorithms", "empty"),
    (lambda: fednag.compare([FedNAG(), FedNAG()]), "algorithms", "twice"),
    (lambda: fednag.compare(["fednag"], seeds=[]), "seeds", "empty"),
    (lambda: fednag.compare(["fednag"], seeds=[0, 0]), "seeds", "twice"),
    (lambda: fednag.sweep({"seed": [1, 2]}), "seed", "averaged"),
    (lambda: fednag.sweep({"training.tau": 3}), "training.tau", "a list"),  # type: ignore[dict-item]
    (lambda: fednag.sweep("training.tau"), "axes", "a list"),  # type: ignore[arg-type]
    # parts of a round
    (run(controller=Buffered(2)), "controller.kind", "there is no clock"),
    (run("mime", controller=Buffered(2), clock=LAN), "controller.kind", "several exchanges"),
    (run(controller=Buffered(5), clock=LAN), "controller", "5 answers, and there are 4 workers"),
    (run(schedule=[Cosine("algorithm.mu")]), "schedule.0.field", "no number of FedNAG"),
    (run(schedule=[Cosine("training.tau")]), "schedule.0.field", "no number of FedNAG"),
    (run("fedadam", schedule=[Cosine("algorithm.momentum", 5.0)]), "schedule.0.field", "2.95"),
    (run(schedule=[Cosine("algorithm.lr")] * 2), "schedule.1.field", "a schedule already"),
    (run(uplink="float16"), "uplink", "a list"),
    (run(uplink=[Float16]), "uplink", r"Float16\(\)"),
    (run(uplink=[EqualMean()]), "uplink", r"EqualMean\(\) is no transform"),
    (run(aggregator=3), "aggregator", "3 is no aggregator"),
    # metrics
    (run(metrics={"mine": lambda o, t: 1 / 0}), "metrics", "mine failed .*division by zero"),
    (run(metrics={"mine": lambda o, t: "good"}), "metrics", "returned str"),
    (run(metrics={"mine": lambda o, t: o}), "metrics", "returned Tensor"),
    (run(metrics={"mine": 3}), "metrics", "mine is not a function"),
    (run(metrics={"mine": "f2"}), "metrics", "no such metric"),
    (run(metrics={"f1": lambda o, t: 1.0}), "metrics", "f1 is taken"),
    (run(metrics={"a b": lambda o, t: 1.0}), "evaluation.own.a b.[key]", "letters"),
    (run(metrics="f1"), "metrics", "a mapping"),
    (run(metrics=["acuracy"]), "evaluation.metrics", "did you mean accuracy"),
    (run(metrics=["f1", "r2"]), "evaluation.metrics", "r2 is for numbers"),
    (lambda: Metric(min, better="more"), "Metric", "'higher' or 'lower'"),
    # data
    (data([[1.0, 2.0], [3.0]], [0, 1]), "data", "x has rows of different shapes"),
    (data([torch.zeros(2), torch.zeros(3)], [0, 1]), "data", "x has rows of different shapes"),
    (data([["a"], ["b"]], [0, 1]), "data", "x holds words; give numbers"),
    (data([[1.0], [2.0]], ["cat", "dog"]), "data", "y holds words; give numbers"),
    (data([[None], [2.0]], [0, 1]), "data", "x holds object and not numbers"),
    (data([[1j], [2.0]], [0, 1]), "data", "x holds complex128 and not numbers"),
    (data(torch.zeros(2, 1, dtype=torch.complex64), [0, 1]), "data", "x holds complex numbers"),
    (data(torch.zeros(2, 1).to_sparse(), [0, 1]), "data", "x is a sparse tensor"),
    (data(3.0, [0, 1]), "data", "x is a single number"),
    (data([[1.0], [2.0]], 1), "data", "y is a single number"),
    (data([[1.0], [2.0]], [0]), "data", "2 samples but 1 targets"),
    (data([], []), "data", "empty"),
    (data([[1.0], [2.0]], [[0], [1]]), "data", r"y has shape \(2, 1\), .*; give y.squeeze\(1\)"),
    (data([[1.0], [2.0]], [0, -1]), "data", "y has a label that is not from 0 to 0 in row 1"),
    (data([[1.0], [float("nan")]], [0, 1]), "data", "x has a number that is not finite in row 1"),
    (data(X, Y, owners=[1, 2, 3]), "owners", "3 for 12 samples"),
    (data(X, Y, test=(X, Y.view(6, 2).repeat(2, 1))), "test", r"targets .* data's, \(\)"),
    (data(X, Y, task="classify"), "task", "'classification' or 'regression'"),
    # splits
    (lambda: by_class(TEN, 5, 0, 0), "split.classes", "between 1 and 10"),
    (lambda: by_class(TEN, 5, 11, 0, cover=False), "split.classes", "between 1 and 10"),
    (lambda: by_class(TEN, 4, 2, 0), "split.classes", "at least 3, use at least 5 workers or set"),
    (lambda: dirichlet(TEN, 5, 0.0, 0), "split.alpha", ""),
    (lambda: dirichlet(TEN, 5, float("nan"), 0), "split.alpha", ""),
    (lambda: by_size(9, 3, -0.1, 0), "split.skew", ""),
    (lambda: by_size(9, 3, float("inf"), 0), "split.skew", ""),
    (lambda: by_size(9, 3, 0.0, 0, [1, 2]), "split.proportions", ""),
    (lambda: by_size(9, 3, 0.0, 0, [1, 2, float("nan")]), "split.proportions", ""),
    (lambda: natural(np.array([1, 1, 2]), 3, 0), "split.workers", ""),
]


@pytest.mark.parametrize(("call", "field", "says"), BAD, ids=[f"{b[1]} {b[2]}" for b in BAD])
def test_bad_input_names_the_field_and_the_remedy(
    call: Callable[[], object], field: str, says: str
) -> None:
    with refused(field.rstrip("!"), says, remedy=not field.endswith("!")):
        call()


def test_what_users_see() -> None:
    """Whole sentences, for all others are composed as these are."""
    sentences = {
        run(tau=0): "run: training.tau: 0 is not allowed; it should be at least 1",
        file(split={"kind": "idd"}): "it.toml: split.kind: 'idd' is not allowed (did you mean iid?"
        "); use 'iid', 'classes', 'dirichlet', 'sizes' or 'natural'",
        file(training={"tau": 0, "batch": -1}): "it.toml: training.tau: 0 is not allowed; it should"
        " be at least 1 (and 1 more)",
        file(tau=3): "it.toml: tau: no such key (did you mean training.tau?)",
        lambda: given_target("loss=0", None): "--target loss=0: give a number above 0",
        run(metrics={"mine": 3}): "metrics: mine is not a function of outputs and targets; give "
        "one, or the name of a metric",
        run(clock={"fleet": "lann"}): "lann: no such fleet (did you mean lan?); give a file, or one"
        " of highway, lan, mobile-bandwidth, paper-edge, phones, silos-wan, sumo-town, "
        "three-tier, vehicles",
        data([], []): "data: it is empty; give at least one sample",
    }
    for call, sentence in sentences.items():
        with pytest.raises(FednagError) as caught:
            call()
        assert str(caught.value) == sentence


def test_the_sentence_is_made_of_the_fields() -> None:
    whole = FednagError("k", "0 is small", "raise it", given="k=0", source="a.toml")
    assert str(whole) == "a.toml: k k=0: 0 is small; raise it"
    assert whole.to_dict() == {
        "sentence": "a.toml: k k=0: 0 is small; raise it",
        "source": "a.toml",
        "field": "k",
        "given": "k=0",
        "problem": "0 is small",
        "remedy": "raise it",
    }
    assert str(FednagError(Path("a/b"), "is gone")) == "a/b: is gone"
    assert FednagError(Path("a/b"), "is gone").source == "a/b"
    assert str(FednagError("k", remedy="give one")) == "k: give one"
    assert str(FednagError("", "nothing is there", "wait")) == "nothing is there; wait"
    alone = FednagError("nothing: is there; wait")
    assert (str(alone), alone.field, alone.remedy) == ("nothing: is there; wait", "", "")
    assert str(FednagError("k", "is bad").and_more(2)) == "k: is bad (and 2 more)"
    assert str(FednagError("k", "is bad", "fix it").and_more(1, " so")).endswith(
        "it (and 1 more so)"
    )
    assert str(FednagError("k", "is bad").and_more(0)) == "k: is bad"
    assert not_installed("X", "x").remedy.startswith("pip install")
    assert copy(whole).to_dict() == whole.to_dict()


def test_those_who_read_the_file_name_it() -> None:
    def seen(error: FednagError, **where: Any) -> str:
        with pytest.raises(type(error)) as caught, within(**where):
            raise error
        assert caught.value is error
        return str(error)

    assert seen(FednagError("k", "is bad"), source="a.toml") == "a.toml: k: is bad"
    assert seen(FednagError(Path("b"), "is bad"), source="a.toml") == "b: is bad"
    assert seen(FednagError("", "is bad"), field="k") == "k: is bad"
    assert seen(BusyError("r", "is bad", "wait"), field="k") == "k: r: is bad; wait"
    folded = FednagError("fleet", "is bad", source="a.toml", given=3)
    assert seen(folded, source="b.toml", field="k") == "b.toml: k: a.toml: fleet 3: is bad"
    assert (folded.source, folded.field) == ("b.toml", "k")
    assert seen(InconsistentError("k", "x"), source="a") == "a: k: x"


def test_no_error_hides_its_field_or_remedy_in_the_problem() -> None:
    """A law over every ``raise`` of the package."""
    names = {"FednagError", "BusyError", "InconsistentError"}
    order = list(inspect.signature(FednagError).parameters)
    seen = 0
    for path in SOURCE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and getattr(call.func, "id", "") in names):
                continue
            seen += 1
            given = dict(zip(order, call.args, strict=False))
            given |= {str(word.arg): word.value for word in call.keywords}
            told = given.get("problem") or (given["where"] if len(given) == 1 else None)
            written = "".join(
                part.value
                for part in (ast.walk(told) if told else ())
                if isinstance(part, ast.Constant) and isinstance(part.value, str)
            )
            place, bare = f"{path}:{call.lineno}", re.sub(r"\([^)]*\)", "", written)
            assert "; " not in bare, f"{place}: give the remedy as such"
            assert len(given) > 1 or written, f"{place}: give its fields"
    assert seen > 350
