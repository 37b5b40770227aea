"""The ledger: what is done to it is named, it survives kills, and runs can be audited by it."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fednag
from commands import Caller
from fednag import FednagError, Vectors
from fednag.algorithms import ALGORITHMS
from fednag.core.state import State
from fednag.core.vectors import digest
from fednag.runs import execute
from fednag.runs.audit import audit
from fednag.runs.folder import RunFolder
from fednag.runs.labels import differing
from fednag.runs.ledger import Ledger, Verified, canonical, file_of, hash_of, rounds_of, verify
from fednag.simulate.run import Plan, simulate

ROOT = Path(__file__).parents[1]
SMALL: dict[str, Any] = {
    "model": "logistic",
    "workers": 4,
    "tau": 2,
    "iterations": 8,
    "batch": 16,
    "training": {"participants": 3},
    "engine": {"recorded": False},  # the plain loop, which is quickest for so few iterations
    "checkpoint": {"rounds": 2, "seconds": 0},
}
KEPT: dict[str, Any] = {**SMALL, "ledger": {"kind": "chain"}}
STACKED = {"engine": {"chunk": 2, "threads": 1}}


class Killed(BaseException):
    """What ends a process, for a process that has to go on."""


def killed(monkeypatch: pytest.MonkeyPatch, rounds: int, *given: Any, **options: Any) -> RunFolder:
    """A run that does not come to its end."""

    def simulated(plan: Plan, resumed: State | None = None, *more: Any) -> Any:
        for state in simulate(plan, resumed, *more):
            yield state
            if state.round >= rounds:
                raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(execute, "simulate", simulated)
        with pytest.raises(Killed):
            fednag.run(*given, **options)
    return the_run(options["out"])


def the_run(out: Path) -> RunFolder:
    (file,) = out.rglob("run.json")
    return RunFolder(file.parent)


def lines_of(folder: RunFolder) -> list[str]:
    return file_of(folder).read_text().splitlines()


def rewrite(folder: RunFolder, lines: list[str]) -> Verified:
    file_of(folder).write_text("".join(f"{line}\n" for line in lines))
    return verify(folder)


def entries_of(folder: RunFolder) -> dict[int, list[dict[str, Any]]]:
    """Those that count, without their places in the chain."""
    found = rounds_of(verify(folder).entries)
    return {n: [{k: v for k, v in e.items() if k not in ("entry", "before")} for e in own]
            for n, own in found.items()}  # fmt: skip


# The chain


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A ledger of three rounds with a resumption, an anchor's receipts and a worker's key."""
    folder = RunFolder(tmp_path_factory.mktemp("chain"))
    ledger = Ledger(folder, anchor=lambda head: f"receipt {head['entries']}")
    ledger.begin({"run": "r", "identity": "i", "config": "c"})
    for number in (1, 2, 3, 3):
        if number == 3 and ledger.head.entries == 14:
            ledger.again(2)
        upload = {"kind": "upload", "round": number, "stage": 0, "status": "used", "steps": 2}
        uploads = [{**upload, "worker": i, "sent": "a", "up": f"{number}{i}"} for i in range(2)]
        last = {"kind": "round", "round": number, "aggregates": ["m"], "server": f"s{number}"}
        ledger.write([*uploads, last], {7: "00"})
    info = {"seed": 0, "label": "x", "status": "finished", "ledger": ledger.mark()}
    folder.write_info(info)
    assert verify(folder).fault is None
    return folder


@pytest.fixture
def copy(made: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(made.path, tmp_path / "run")
    return RunFolder(tmp_path / "run")


PLACES = settings(max_examples=60, deadline=None,
                  suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
COUNT = 19  # entries of that ledger


def test_the_chain_is_what_the_page_says(made: RunFolder) -> None:
    """By hashlib alone: every line holds the SHA-256 of the one before."""
    lines = file_of(made).read_bytes().split(b"\n")[:-1]
    assert len(lines) == COUNT
    before = "0" * 64
    for number, line in enumerate(lines, 1):
        entry = json.loads(line)
        assert (entry["before"], entry["entry"]) == (before, number)
        before = sha256(line).hexdigest()
    assert made.info()["ledger"] == {"entries": COUNT, "head": before}
    kinds = [json.loads(line)["kind"] for line in lines]
    assert kinds[:7] == ["run", "key", "upload", "upload", "round", "anchor", "upload"]
    assert kinds.count("resumed") == 1
    assert [len(own) for own in rounds_of(verify(made).entries).values()] == [3, 3, 3]


@PLACES
@given(place=st.integers(0, COUNT - 1), data=st.data())
def test_a_flipped_byte_is_named(copy: RunFolder, made: RunFolder, place: int, data: Any) -> None:
    lines = lines_of(made)
    at = data.draw(st.integers(0, len(lines[place]) - 1))
    other = data.draw(st.characters(min_codepoint=32, max_codepoint=126))
    if lines[place][at] == other:
        return
    lines[place] = lines[place][:at] + other + lines[place][at + 1 :]
    assert named(rewrite(copy, lines)) == place + 1


@PLACES
@given(place=st.integers(0, COUNT - 1), data=st.data())
def test_a_changed_field_is_named(copy: RunFolder, made: RunFolder, place: int, data: Any) -> None:
    """Also where the entry is well-formed, and its own neighbours are left as they are."""
    lines = lines_of(made)
    entry = json.loads(lines[place])
    field = data.draw(st.sampled_from(sorted(entry)))
    entry[field] = data.draw(st.sampled_from([0, 1, 5, "x", "0" * 64, None]))
    changed = canonical(entry)
    if changed == lines[place]:
        return
    lines[place] = changed
    assert named(rewrite(copy, lines)) == place + 1


@PLACES
@given(place=st.integers(0, COUNT - 1))
def test_a_dropped_entry_is_named(copy: RunFolder, made: RunFolder, place: int) -> None:
    lines = lines_of(made)
    del lines[place]
    found = rewrite(copy, lines)
    assert named(found) == place + 1
    assert found.fault
    assert found.fault.kind == ("cut off" if place == COUNT - 1 else "missing")


@PLACES
@given(first=st.integers(0, COUNT - 2), data=st.data())
def test_exchanged_entries_are_named(
    copy: RunFolder, made: RunFolder, first: int, data: Any
) -> None:
    second = data.draw(st.integers(first + 1, COUNT - 1))
    lines = lines_of(made)
    lines[first], lines[second] = lines[second], lines[first]
    found = rewrite(copy, lines)
    assert named(found) == first + 1
    assert found.fault
    assert found.fault.kind == "moved"


@PLACES
@given(place=st.integers(0, COUNT), data=st.data())
def test_an_added_entry_is_named(copy: RunFolder, made: RunFolder, place: int, data: Any) -> None:
    """A copy of another, or one that fits those before it."""
    lines = lines_of(made)
    before = hash_of(lines[place - 1]) if place else "0" * 64
    forged = {**json.loads(lines[min(place, COUNT - 1)]), "before": before, "entry": place + 1}
    forged["more"] = 1
    other = lines[data.draw(st.integers(0, COUNT - 1))]
    lines.insert(place, data.draw(st.sampled_from([canonical(forged), other])))
    found = named(rewrite(copy, lines))
    # Of a copy beside its original, either may be the added one.
    twins = [
        i + 1
        for i in (place - 1, place, place + 1)
        if i >= 0 and lines[i : i + 1] == [lines[place]]
    ]
    assert found in twins


@PLACES
@given(left=st.integers(0, COUNT - 1))
def test_a_ledger_that_is_cut_off_is_noticed(copy: RunFolder, made: RunFolder, left: int) -> None:
    found = rewrite(copy, lines_of(made)[:left])
    assert found.fault
    assert (found.fault.entry, found.fault.kind) == (left + 1, "cut off")


def named(found: Verified) -> int | None:
    return found.fault.entry if found.fault else None


def test_a_chain_written_anew_has_another_head(copy: RunFolder, made: RunFolder) -> None:
    """Every hash made to fit, as who writes the file can: run.json, or an anchored head, tells."""
    before, lines = "0" * 64, []
    for line in lines_of(made):
        entry = {**json.loads(line), "before": before}
        if entry.get("up") == "20":
            entry["up"] = "forged"
        lines.append(canonical(entry))
        before = hash_of(lines[-1])
    found = rewrite(copy, lines)
    assert found.fault
    assert (found.fault.entry, found.fault.kind) == (COUNT, "changed")
    # With run.json forged too, nothing inside the folder tells; a head that was anchored does.
    copy.write_info({**copy.info(), "ledger": {"entries": COUNT, "head": before}})
    assert verify(copy).fault is None
    assert verify(made).head.head not in verify(copy).hashes


def test_what_no_run_writes_is_named(copy: RunFolder) -> None:
    """A chain that fits, of entries that do not."""

    def forge(*entries: dict[str, Any]) -> Verified:
        before, lines = "0" * 64, []
        for number, entry in enumerate(entries, 1):
            lines.append(canonical({"entry": number, "before": before, **entry}))
            before = hash_of(lines[-1])
        copy.write_info({**copy.info(), "ledger": {"entries": len(lines), "head": before}})
        return rewrite(copy, lines)

    begin = {"kind": "run", "format": 1, "run": "r", "identity": "i", "config": "c"}
    last = {"kind": "round", "round": 1, "aggregates": [], "server": "s"}
    assert forge(begin, last).fault is None
    for entries, place in {
        (1,): (last, begin),
        (2,): (begin, {**last, "round": 2}),
        (3,): (begin, last, last),
        (4,): (begin, last, {**last, "round": 2}, begin),
        (2, 0): (begin, {"kind": "resumed", "round": 1}),
        (2, 1): (begin, {"kind": "upload", "round": 1}),
        (2, 2): (begin, {"kind": "other"}),
    }.items():
        assert named(forge(*place)) == entries[0]  # type: ignore[arg-type]


# Runs


def test_digests_are_of_names_types_and_numbers() -> None:
    one = Vectors(w=torch.tensor([1.0, 2.0]))
    by_hand = sha256(b"w float32 8\n" + b"\0\0\x80\x3f\0\0\0\x40").hexdigest()
    assert digest(one) == by_hand
    others = [Vectors(v=one.w), Vectors(w=one.w.double()), Vectors(w=one.w, v=one.w),
              Vectors(w=one.w.flip(0)), Vectors(w=torch.tensor([1.0]))]  # fmt: skip
    assert len({digest(each) for each in (one, *others)}) == 6
    assert digest(Vectors(a=one.w, b=one.w * 2)) == digest(Vectors(b=one.w * 2, a=one.w))


@pytest.mark.parametrize("name", [*ALGORITHMS, "fednag stacked", "mime stacked"])
def test_every_method_is_kept_and_audited(name: str, tmp_path: Path) -> None:
    """The run is what it was without a ledger, and playing it again gives every digest."""
    name, _, stacked = name.partition(" ")
    engine = STACKED if stacked else {}
    run = fednag.run(name, **{**KEPT, **engine}, out=tmp_path)
    plain = fednag.run(name, **{**SMALL, **engine})
    for ours, theirs in zip(run.final.parameters(), plain.final.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert replace(run.records[-1], seconds=0) == replace(plain.records[-1], seconds=0)
    assert run.experiment.key == plain.experiment.key
    found = audit(the_run(tmp_path))
    stages = len(ALGORITHMS[name]().stages)
    cohort = 1 if ALGORITHMS[name].pooled else 3
    assert found.difference is None
    assert (found.rounds, found.digests) == (4, 4 * (stages * (2 * cohort + 1) + 1))


def test_the_entries_say_what_travelled(tmp_path: Path) -> None:
    """FedAvg sends the server's model: what a round ends with is what the next workers get."""
    fednag.run("fedavg", **KEPT, out=tmp_path)
    rounds = entries_of(the_run(tmp_path))
    assert list(rounds) == [1, 2, 3, 4]
    server = None
    for *uploads, last in rounds.values():
        assert len({upload["up"] for upload in uploads}) == 3
        assert {upload["sent"] for upload in uploads} == {server or uploads[0]["sent"]}
        assert [upload["steps"] for upload in uploads] == [2, 2, 2]
        assert last["aggregates"] == [last["server"]]
        server = last["server"]


def test_threads_change_no_byte_of_it_and_chunks_only_roundings(tmp_path: Path) -> None:
    """Another chunk stacks other workers, and may round otherwise: who did what stays the same."""
    parts = {"uplink": [{"kind": "quantise"}], "downlink": [{"kind": "float16"}]}
    files, facts = [], []
    for place, engine in enumerate(({"chunk": 2, "threads": 1}, {"chunk": 2, "threads": 3},
                                    {"chunk": 1, "threads": 1})):  # fmt: skip
        out = tmp_path / str(place)
        fednag.run("fednag", **{**KEPT, **parts, "engine": engine}, out=out)
        files.append(lines_of(the_run(out))[1:])
        vague = ("sent", "up", "server", "aggregates")
        facts.append([{k: v for k, v in e.items() if k not in vague}
                      for own in entries_of(the_run(out)).values() for e in own])  # fmt: skip
    first = [[json.loads(line) for line in file] for file in files]
    assert [{**e, "before": 0} for e in first[0]] == [{**e, "before": 0} for e in first[1]]
    assert facts[0] == facts[2]


PARTS: dict[str, dict[str, Any]] = {
    "what is left out": {
        **STACKED,
        "uplink": [{"kind": "error-feedback"}, {"kind": "topk", "share": 0.1}],
    },
    "late answers": {
        "controller": {"kind": "buffered", "need": 2},
        "clock": {"fleet": "paper-edge"},
    },
    "a deadline": {"clock": {"fleet": "paper-edge", "deadline": 0.006}},
    "trust": {"controller": {"kind": "trust"}},
}


@pytest.mark.parametrize("part", PARTS)
def test_a_killed_run_goes_on_in_the_same_chain(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**KEPT, **PARTS[part]}
    fednag.run("fednag", **options, out=tmp_path / "whole")
    out = tmp_path / "killed"
    folder = killed(monkeypatch, 3, "fednag", **options, out=out)  # round 2 is saved, 3 is not
    before = lines_of(folder)
    with file_of(folder).open("a") as file:
        file.write('{"before":"cut sho')
    assert verify(folder).fault is None
    fednag.run("fednag", **options, out=out, resume=True)
    after = lines_of(folder)
    assert after[: len(before)] == before
    assert [json.loads(line).get("round") for line in after if '"resumed"' in line] == [2]
    assert verify(folder).fault is None
    assert entries_of(folder) == entries_of(the_run(tmp_path / "whole"))
    late = {e.get("staleness", 0) for own in entries_of(folder).values() for e in own[:-1]}
    assert (max(late) > 0) == (part == "late answers")
    assert audit(folder).difference is None


def test_a_deadline_leaves_entries_of_who_missed_it(tmp_path: Path) -> None:
    fednag.run("fednag", **KEPT, **PARTS["a deadline"], out=tmp_path)
    statuses = [e["status"] for own in entries_of(the_run(tmp_path)).values() for e in own[:-1]]
    assert set(statuses) == {"used", "missed"}
    assert len(statuses) == 4 * 3


def test_updates_that_are_not_finite_are_refused_there_too(tmp_path: Path) -> None:
    options = {**KEPT, "training": {"participants": 4}}
    method = f"{tmp_path / 'sick.py'}:Sick"
    (tmp_path / "sick.py").write_text(SICK)
    fednag.run(method, **options, out=tmp_path / "runs")
    folder = the_run(tmp_path / "runs")
    statuses = [[e["status"] for e in own[:-1]] for own in entries_of(folder).values()]
    assert {"used", "refused"} == {status for own in statuses for status in own}
    assert all((e["up"] is None) == (e["status"] == "refused")
               for own in entries_of(folder).values() for e in own[:-1])  # fmt: skip
    assert audit(folder).difference is None


SICK = """
from dataclasses import dataclass
import torch
from fednag import FedAvg, Vectors

@dataclass(frozen=True)
class Sick(FedAvg):
    \"\"\"A worker whose first weight went up sends nothing that is finite.\"\"\"
    elementwise = False

    def end(self, local, sent, mine, data, steps):
        up = (local.w - sent.w).sum(1, keepdim=True) > 0
        return Vectors(w=torch.where(up, torch.nan, local.w)), mine
"""


def test_a_truncated_or_changed_ledger_stops_a_run_from_going_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = killed(monkeypatch, 3, "fednag", **KEPT, out=tmp_path)
    lines = lines_of(folder)
    for changed, entry in ((lines[:6], 7), (lines[:3] + lines[4:], 4)):
        assert named(rewrite(folder, changed)) == entry
        with pytest.raises(FednagError, match=f"entry {entry} .*restore the file"):
            fednag.run("fednag", **KEPT, out=tmp_path, resume=True)
    file_of(folder).unlink()
    with pytest.raises(FednagError, match=r"ledger\.jsonl: entry 1 .*cut off"):
        fednag.run("fednag", **KEPT, out=tmp_path, resume=True)
    rewrite(folder, lines)
    with pytest.raises(FednagError, match=r"ledger\.kind: that run began with a ledger"):
        fednag.run("fednag", **SMALL, out=tmp_path, resume=True)
    fednag.run("fednag", **KEPT, out=tmp_path, resume=True)
    assert verify(folder).fault is None


# The audit


def test_an_audit_names_the_first_worker_whose_upload_differs(tmp_path: Path) -> None:
    """The chain is written anew around the lie, so that it holds together."""
    fednag.run("scaffold", **KEPT, out=tmp_path)
    folder = the_run(tmp_path)
    for change, told in {
        ("up", 1): "round 2: the upload of worker",
        ("sent", 1): "round 2: worker .* was sent something else",
        ("steps", 1): "round 2: steps of worker",
        ("worker", 1): "round 2: other workers took part",
        ("server", 3): "round 2: the server's new state",
        ("aggregates", 3): "round 2: the aggregate is another",
    }.items():
        whole = (file_of(folder).read_bytes(), folder.info_file.read_bytes())
        culprit = forge(folder, 2, *change)
        difference = audit(folder).difference
        assert difference
        assert str(difference).startswith(told.partition(" .*")[0])
        what = "cohort" if change[0] == "worker" else change[0]
        assert (difference.round, difference.what) == (2, what)
        if change[0] == "up":
            assert difference.worker == culprit
        file_of(folder).write_bytes(whole[0])
        folder.info_file.write_bytes(whole[1])


def forge(folder: RunFolder, number: int, field: str, place: int) -> Any:
    """Change a field of a round's entry and every hash after it; whose entry it was."""
    before, lines, seen, culprit = "0" * 64, [], -1, None
    for line in lines_of(folder):
        entry = {**json.loads(line), "before": before}
        seen += entry.get("round") == number
        if entry.get("round") == number and seen == place:
            culprit = entry.get("worker")
            entry[field] = {"steps": 1, "worker": 9, "aggregates": ["0" * 64]}.get(field, "0" * 64)
        lines.append(canonical(entry))
        before = hash_of(lines[-1])
    folder.write_info({**folder.info(), "ledger": {"entries": len(lines), "head": before}})
    assert rewrite(folder, lines).fault is None
    return culprit


def test_an_audit_refuses_what_it_cannot_compare(tmp_path: Path) -> None:
    fednag.run("fednag", **KEPT, out=tmp_path)
    folder = the_run(tmp_path)
    config = folder.config_file.read_text()
    for upto in (0, 5):
        with pytest.raises(FednagError, match=f"--round {upto}: the ledger has rounds 1 to 4"):
            audit(folder, upto)
    folder.config_file.write_text(config.replace("batch = 16", "batch = 15"))
    with pytest.raises(FednagError, match=r"config\.toml: it is not what the run began with"):
        audit(folder)
    x = torch.randn(40, 3)
    fednag.run("fednag", **KEPT, data=(x, (x[:, 0] > 0).long()), out=tmp_path / "own")
    with pytest.raises(FednagError, match=r"data\.name: the data of this run are not named"):
        audit(the_run(tmp_path / "own"))


def test_a_run_without_a_folder_keeps_none() -> None:
    with pytest.raises(FednagError, match=r"ledger\.kind: a ledger is kept in a run's folder"):
        fednag.run("fednag", **KEPT)


# Anchors


ANCHOR = """
from pathlib import Path

def publish(head):
    with Path(__file__).with_name("heads.txt").open("a") as file:
        print(head["round"], head["entries"], head["head"], file=file)
    return f"line {head['round']}"

def down(head):
    raise OSError("the service is down")

number = 3
"""


def test_heads_are_anchored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a local file; the receipts are in the chain, and an anchored head is found again."""
    (tmp_path / "mine.py").write_text(ANCHOR)
    anchored = {**KEPT, "ledger": {"kind": "chain", "anchor": f"{tmp_path / 'mine.py'}:publish"}}
    killed(monkeypatch, 3, "fednag", **anchored, out=tmp_path)
    run = fednag.run("fednag", **anchored, out=tmp_path, resume=True)
    without = run.experiment.model_copy(update={"ledger": type(run.experiment.ledger)()})
    assert run.experiment.exact_key == without.exact_key
    assert run.experiment.own is None
    folder = the_run(tmp_path)
    heads = [line.split() for line in (tmp_path / "heads.txt").read_text().splitlines()]
    assert [int(number) for number, _, _ in heads] == [1, 2, 3, 3, 4]
    found = verify(folder)
    assert found.fault is None
    for _, entries, head in heads:
        assert found.hashes[int(entries) - 1] == head
    receipts = [e for e in found.entries if e["kind"] == "anchor"]
    assert [e["receipt"] for e in receipts] == [f"line {n}" for n in (1, 2, 3, 3, 4)]
    call = Caller(monkeypatch, capsys)
    said = call("ledger", "verify", str(folder.path), "--head", heads[2][2])
    assert (said.code, f"that of entry {heads[2][1]}\n" in said.out) == (0, True)
    said = call("ledger", "verify", str(folder.path), "--head", "f" * 64)
    assert (said.code, "no entry of" in said.err) == (2, True)
    assert audit(folder).difference is None


def test_an_anchor_that_fails_stops_no_run_and_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(ANCHOR)
    given = {**KEPT, "ledger": {"kind": "chain", "anchor": f"{tmp_path / 'mine.py'}:down"}}
    run = fednag.run("fednag", **given, out=tmp_path / "runs")
    why = "ledger.anchor: a head was not taken (round 4: OSError: the service is down)"
    assert why in run.notes
    assert verify(the_run(tmp_path / "runs")).fault is None
    for name, why in (("number", "is int; name a function"), ("nothing", "has no nothing")):
        given["ledger"] = {"kind": "chain", "anchor": f"{tmp_path / 'mine.py'}:{name}"}
        with pytest.raises(FednagError, match=rf"ledger\.anchor: .*{why}"):
            fednag.run("fednag", **given, out=tmp_path / "none")
        assert not list((tmp_path / "none").rglob("run.json"))
    with pytest.raises(FednagError, match=r"ledger\.kind: is 'auto', so there may be no head"):
        fednag.run("fednag", **{**SMALL, "ledger": {"anchor": "a.py:b"}}, out=tmp_path / "none")


# The command line


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call: Callable[..., Any] = Caller(monkeypatch, capsys)
    fednag.run("fednag", **KEPT, out=tmp_path)
    folder = the_run(tmp_path)
    good = call("ledger", "verify", str(tmp_path))
    assert (good.code, good.err) == (0, "")
    assert good.out.startswith("17 entries, each as it was written\n")
    told = call("ledger", "verify", str(tmp_path), "--json").document
    assert (told["entries"], told["fault"], told["over"]) == (17, None, True)
    assert "2 rounds played again: all 16 digests are equal" in call(
        "ledger", "audit", str(tmp_path), "--round", "2").out  # fmt: skip
    audited = call("ledger", "audit", str(tmp_path), "--json").document
    assert audited == {"rounds": 4, "digests": 32, "difference": None, "notes": []}
    shown = call("ledger", "show", str(tmp_path), "--round", "2", "--json").document["entries"]
    assert [e.get("status") for e in shown] == ["used", "used", "used", None]
    assert call("ledger", "show", str(tmp_path)).out.count("used") == 12
    assert "rounds 1 to 4" in call("ledger", "show", str(tmp_path), "--round", "9").err
    lines = lines_of(folder)
    rewrite(folder, [*lines[:5], lines[5].replace('"round":2', '"round":3'), *lines[6:]])
    broken = call("ledger", "verify", str(tmp_path))
    assert (broken.code, broken.out) == (2, "")
    assert "ledger.jsonl: entry 6 is not as it was written" in broken.err
    said = call("ledger", "verify", str(tmp_path), "--json")
    assert (said.code, said.document["fault"]["entry"]) == (2, 6)
    assert call("ledger", "audit", str(tmp_path)).code == 2
    forge_code(folder, lines)
    said = call("ledger", "audit", str(tmp_path), "--json")
    assert (said.code, said.document["difference"]["what"]) == (2, "up")
    fednag.run("fednag", **SMALL, out=tmp_path / "plain")
    none = call("ledger", "verify", str(tmp_path / "plain"))
    assert (none.code, "keeps no ledger" in none.err) == (2, True)
    assert "has 2 runs" in call("ledger", "verify", str(tmp_path)).err


def forge_code(folder: RunFolder, lines: list[str]) -> None:
    rewrite(folder, lines)
    forge(folder, 2, "up", 1)


def test_what_the_page_shows_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its commands, of a shorter run, and its anchor."""
    text = (ROOT / "docs" / "ledger.md").read_text()
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    call: Callable[..., Any] = Caller(monkeypatch, capsys)
    commands = [
        line.split()[1:] for line in re.findall(r"```sh\n(.*?)```", text, re.S)[0].splitlines()
    ]
    shorter = ["model.name=logistic", "training.tau=2", "training.iterations=6"]
    first, *others = commands
    for words in ([*first, *(w for s in shorter for w in ("--set", s))], *others):
        said = call(*words)
        assert (said.code, said.err.count("Traceback")) == (0, 0), said.err
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (tmp_path / "my_file.py").write_text(code)
    given = {"kind": "chain", "anchor": "my_file.py:publish"}
    fednag.run("fednag", **{**SMALL, "ledger": given}, out=Path("anchored"))
    entries = verify(the_run(Path("anchored"))).entries
    receipts = [e["receipt"] for e in entries if e["kind"] == "anchor"]
    assert receipts == [f"heads.txt, round {n}" for n in (1, 2, 3, 4)]


def test_runs_with_and_without_one_are_runs_of_one_label() -> None:
    assert (
        differing([{"ledger.kind": "auto"}, {"ledger.kind": "chain", "ledger.anchor": "a"}]) == []
    )
