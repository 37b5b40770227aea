"""A run recomputed from its configuration and data, and compared with its ledger to the bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fednag.aggregators import Secure
from fednag.config import CUSTOM, parse, read
from fednag.core.executor import Answers, Exchange, Executor, Memories, Receipt, Residues
from fednag.core.keys import Draws
from fednag.core.loop import Loop
from fednag.errors import FednagError
from fednag.privacy.promise import draws_again
from fednag.problems.checks import MisrecordedError
from fednag.runs import checkpoint
from fednag.runs.build import Builder
from fednag.runs.execute import other_versions
from fednag.runs.folder import RunFolder
from fednag.runs.ledger import Entry, Verified, rounds_of, verify
from fednag.simulate.engine import Engine
from fednag.simulate.run import Local, Plan, begun

COMPARED = ("stage", "worker", "status", "sent", "samples", "steps", "staleness", "up")


@dataclass(frozen=True)
class Difference:
    """The first thing that comes out otherwise than the ledger says."""

    round: int
    what: str  # cohort, sent, upload, aggregate, server, or another field of an entry
    worker: int | None = None
    stage: int | None = None

    def __str__(self) -> str:
        whose = {
            "cohort": "other workers took part",
            "sent": f"worker {self.worker} was sent something else",
            "up": f"the upload of worker {self.worker} is another",
            "aggregates": "the aggregate is another",
            "server": "the server's new state is another",
        }
        what = whose.get(self.what, f"{self.what} of worker {self.worker} is another")
        stage = f", stage {self.stage}" if self.stage else ""
        return f"round {self.round}{stage}: {what}"


@dataclass(frozen=True)
class Audited:
    """What was compared, and the first difference, if there is one."""

    rounds: int
    digests: int
    difference: Difference | None = None
    notes: list[str] = field(default_factory=list)


def audit(folder: RunFolder, upto: int | None = None) -> Audited:
    """Play the run again up to a round, by default the last, and compare all digests on the way.

    Who missed a round on real machines, or was refused there, is taken from the ledger.
    """
    found = verify(folder)
    if found.fault:
        raise found.fault.error("restore the file: there is nothing to compare with")
    rounds = rounds_of(found.entries)
    last = max(rounds, default=0)
    upto = last if upto is None else upto
    if not 1 <= upto <= last:
        about = f"the ledger has rounds 1 to {last}"
        raise FednagError("--round", about, "give one of them", given=upto)
    plan = _plan_of(folder, found)
    if not draws_again(plan.scheme, folder.info().get("runner") == "flower"):
        raise FednagError(
            folder.path,
            "its noise cannot be drawn again, so that nobody can play it again",
            "`fednag ledger verify` says whether the ledger was changed",
        )
    notes = other_versions(folder.info().get("versions", {}), "made")
    remote = folder.info().get("runner") == "flower"
    for entry in found.entries:
        if "plain" in entry:  # the run began again with the plain loop
            plan.problem.use_plain_loop(str(entry["plain"]))
    try:
        return replace(_compared(plan, rounds, upto, remote), notes=notes)
    except MisrecordedError as error:
        raise FednagError(
            folder.path, f"{error}, and not when the run was made", "audit it where it was made"
        ) from error


def _plan_of(folder: RunFolder, found: Verified) -> Plan:
    """The plan of the run; refused if it, its data or its first weights are others than then."""
    experiment = parse(read(folder.own_config()), str(folder.config_file))
    if experiment.data.name == CUSTOM:
        raise FednagError(
            "data.name",
            "the data of this run are not named in a file",
            "only who has them can play it again, from Python",
            source=folder.config_file,
        )
    resolved, plan, _ = Builder().plan(experiment)
    begin = found.entries[0]
    known = [key.exact for key in resolved.all_keys if key.exact == begin.get("config")]
    if not known or checkpoint.identity(plan, known[0]) != begin["identity"]:
        raise FednagError(
            folder.path,
            "this is not the configuration, or these are not the data and first weights, that the "
            "ledger begins with",
            "restore those",
        )
    return plan


def _compared(
    plan: Plan, rounds: Mapping[int, Sequence[Entry]], upto: int, remote: bool
) -> Audited:
    digests = 0
    with Local(plan, Draws(plan.seed, plan.sizes, plan.batch)) as local:
        executor = AsRecorded(local.engine, rounds) if remote else local.executor
        # Masks are never the same again; what is under them shows in the sums.
        masked = remote and isinstance(plan.scheme.aggregator, Secure)
        compared = tuple(name for name in COMPARED if name != "up" or not masked)
        loop, state = Loop(plan.scheme, plan.setting, executor, ledger=True), begun(plan)
        for number in range(1, upto + 1):
            state = loop.advance(state)
            difference = _difference(number, rounds.get(number, ()), state.entries, compared)
            if difference:
                return Audited(number, digests, difference)
            digests += sum(_digests(entry) for entry in state.entries)
    return Audited(upto, digests)


def _difference(
    number: int,
    then: Sequence[Entry],
    now: Sequence[Mapping[str, Any]],
    compared: Sequence[str] = COMPARED,
) -> Difference | None:
    """The first difference between a round as it is written and as it comes out."""
    *uploads, end = then or [{}]
    *again, ended = now
    if [_whose(entry) for entry in uploads] != [_whose(entry) for entry in again]:
        return Difference(number, "cohort")
    for old, new in zip(uploads, again, strict=True):
        for name in compared:
            unseen = name in ("up", "samples", "steps") and old["status"] != "used"
            if not unseen and old.get(name) != new.get(name):
                return Difference(number, name, old["worker"], old["stage"])
    for name in ("aggregates", "server"):
        if end.get(name) != ended[name]:
            return Difference(number, name)
    return None


def _whose(entry: Mapping[str, Any]) -> tuple[Any, Any]:
    return entry["stage"], entry["worker"]


def _digests(entry: Mapping[str, Any]) -> int:
    return len(entry.get("aggregates", ())) + sum(
        bool(entry.get(n)) for n in ("sent", "up", "server")
    )


class AsRecorded(Executor):
    """Leaves out of each exchange those who then missed it or were refused."""

    def __init__(self, inner: Engine, rounds: Mapping[int, Sequence[Entry]]) -> None:
        self.inner, self.held = inner, inner.held
        self.statuses = {
            (e["round"], e["stage"], e["worker"]): e["status"]
            for entries in rounds.values()
            for e in entries[:-1]
        }

    def exchange(self, asked: Exchange, memories: Memories, residues: Residues) -> Answers:
        named = asked.workers.tolist()
        was = {i: self.statuses.get((asked.round, asked.place, i), "used") for i in named}
        taken = np.array([was[i] == "used" for i in named], dtype=bool)
        answers, asked = Answers(), replace(asked, weight=self.inner.weight(asked))
        if taken.any():
            answers = self.inner.exchange(asked.among(taken), memories, residues)
        missed, refused = (
            tuple(i for i in named if was[i] == status) for status in ("missed", "refused")
        )
        return replace(
            answers,
            missed=missed,
            refused=tuple(sorted((*answers.refused, *refused))),
            receipts={**answers.receipts, **{i: Receipt(None, 0) for i in refused}},
        )
