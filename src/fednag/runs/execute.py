"""Runs a plan to its end and keeps what it yields: records, models, the run's folder."""

from __future__ import annotations

import platform
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fednag.aggregators import Secure
from fednag.config import Experiment
from fednag.config.keys import Key
from fednag.config.own import own_anchor
from fednag.core.aggregator import Aggregator
from fednag.core.algorithm import BUFFERS
from fednag.core.disk import Disk, ResiduesOnDisk
from fednag.core.ending import Ending
from fednag.core.files import os_errors, sync, write_atomically
from fednag.core.record import Record, expected_rounds
from fednag.core.state import State
from fednag.core.vectors import Vectors
from fednag.devices.workload import workload_facts
from fednag.errors import FednagError
from fednag.problems.checks import MisrecordedError
from fednag.problems.metrics import undefined
from fednag.runs import checkpoint
from fednag.runs.folder import OVER, RunFolder
from fednag.runs.interrupts import Interrupted, Watch
from fednag.runs.ledger import Ledger
from fednag.runs.outcome import Outcome
from fednag.runs.view import ending_of
from fednag.simulate.run import Plan, Trainer, simulate
from fednag.simulate.tuning import alone_note, plain_note

Listener = Callable[[State], None]
"""Called before training and after every round."""

Begun = tuple[list[Record], checkpoint.Checkpoint]
"""Where a run was saved, and its records up to there."""

MOST_CELLS = 20_000  # of the table worker x class that run.json keeps
RECORDED_VERSIONS = ("fednag", "torch", "numpy", "scikit-learn", "safetensors")


def find(out: Path, label: str, experiment: Experiment) -> RunFolder | None:
    """The newest run of this experiment in ``out``, whichever format of key it was begun with."""
    stems = (_stem(label, key) for key in experiment.all_keys)
    folders = (RunFolder.find(out, experiment.name, stem) for stem in stems)
    return next((folder for folder in folders if folder), None)


def _stem(label: str, key: Key) -> str:
    """The name of a run's folder; a number follows where it is taken."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", label).strip("-")
    return f"{safe}-{key.short}"


@dataclass
class Execution:
    """A plan that is run, its folder, and who is told of its progress."""

    experiment: Experiment
    plan: Plan
    label: str
    notes: list[str] = field(default_factory=list)
    listener: Listener | None = None
    watch: Watch | None = None
    trainer: Trainer | None = None  # machines elsewhere that do the workers' side
    runner: str = "simulator"
    facts: dict[str, Any] = field(default_factory=dict)  # more for run.json
    opened: Callable[[RunFolder], None] | None = None  # told where the run is written
    described: Callable[[Path], str] | None = None  # what to write as config.toml of a new folder
    _config: str | None = None  # the digest of config.toml
    _begun: int = 0  # rounds, replayed ones too, if their noise cannot be drawn again
    ledger: Ledger | None = field(init=False, default=None)
    key: Key = field(init=False)  # a folder that goes on keeps the format it was begun with

    def __post_init__(self) -> None:
        self.key = self.experiment.all_keys[0]
        self.anchor = own_anchor(self.experiment.ledger.anchor, "ledger.anchor")

    def start(self, out: Path | None = None, begun: Begun | None = None) -> Outcome:
        """Run it from the beginning; with ``out``, in a new folder ``out/<name>/<id>``.

        With ``begun``, it goes on where another run was saved, whose records up to there it takes.
        """
        if out is None:
            if self.plan.ledger:
                raise FednagError("ledger.kind", "a ledger is kept in a run's folder", "give out")
            self._count(None, 0)
            return self._train(None, [], None)
        folder = RunFolder.create(out, self.experiment.name, _stem(self.label, self.key))
        with _writing(folder), folder.locked():
            # Last the file that makes the folder a run: killed before it, there is none to resume.
            described = self.described or (lambda _: self.experiment.toml())
            write_atomically(folder.config_file, described(folder.path))
            self._config = folder.config_digest()
            if self.plan.ledger:
                self.ledger = Ledger(folder, self.anchor)
                self.ledger.begin(self._named)
            self._write_info(folder, "running")
            folder.records_file.touch()
            records, saved = begun or ([], None)
            for record in records:
                folder.append(record)
            if saved:
                self._as_saved(saved)
            self._open(folder)
            self._count(folder, 0)
            return self._train(folder, [*records], saved.state if saved else None)

    def resume(self, folder: RunFolder) -> Outcome:
        """Go on where the run in ``folder`` was last saved; if it is over, read what it found."""
        info = self._own(folder)
        if info.get("status") in OVER:
            return self._finished(folder, info)
        with _writing(folder), folder.locked():
            info = self._own(folder)  # another process may just have come to its end
            if info.get("status") in OVER:
                return self._finished(folder, info)
            saved, unusable = checkpoint.newest(folder, self.plan, self._identity)
            if self.plan.ledger:
                self.ledger = Ledger(folder, self.anchor)
                self.ledger.go_on(folder, self._named, saved.state.round if saved else 0)
            folder.tidy()
            self.notes += checkpoint.set_aside(unusable)
            folder.records_file.touch()
            if saved:
                self._as_saved(saved)
                went_on = f"went on from round {saved.state.round} of {self._rounds(saved.state)}"
                self.notes.append(f"{went_on} (checkpoint)")
            elif folder.records_file.stat().st_size:
                self.notes.append("it had no checkpoint, and was begun again")
            self._count(folder, saved.state.round if saved else 0)
            self._config = info.get("config") or folder.config_digest()
            self._about["started"] = info.get("started")
            # Before the records: killed in between, they are not fewer than run.json says.
            self._write_info(folder, "running")
            records = folder.back_to(saved.mark if saved else None)
            self._open(folder)
            return self._train(folder, records, saved.state if saved else None)

    def saved(self, folder: RunFolder) -> list[Begun]:
        """The checkpoints of the run in ``folder``, newest first, with the records up to each.

        They are those of this plan, or an error is raised; one that is damaged is passed over.
        """
        self._own(folder)
        records = folder.records()
        usable = checkpoint.usable(folder, self.plan, self._identity)
        return [(records[: saved.mark.records], saved) for saved in usable]

    def _as_saved(self, saved: checkpoint.Checkpoint) -> None:
        """Train as the run did that was saved, also where a recording was found wrong."""
        gradients, judgements = self.plan.problem.gradients, self.plan.problem.judgements
        gradients.plain = gradients.plain or saved.plain[0]
        judgements.plain = judgements.plain or saved.plain[1]
        gradients.alone = gradients.alone or saved.plain[2]
        self.notes += other_versions(saved.versions)

    def _own(self, folder: RunFolder) -> dict[str, Any]:
        """The content of run.json; refused if it is of another plan."""
        info = folder.info()
        if info.get("runner", "simulator") != self.runner:
            how = "fednag flower up --resume" if self.runner == "simulator" else "fednag resume"
            raise FednagError(
                folder.path, f"that run was not made by this {self.runner}", f"go on with `{how}`"
            )
        begun = [key for key in self.experiment.all_keys if key.exact == info.get("exact_key")]
        folder.verify_config(info)
        if not begun:
            raise FednagError(
                folder.config_file,
                "it is not what the run began with",
                "restore it, or start a new run",
            )
        (self.key,) = begun
        if info.get("identity") != self._identity:
            raise FednagError(
                folder.path,
                "that run had another model, other first weights or other data",
                "use those, or start a new run",
            )
        if ("ledger" in info) != self.plan.ledger and info.get("status") not in OVER:
            began = "with" if "ledger" in info else "without"
            raise FednagError(
                "ledger.kind",
                f"that run began {began} a ledger",
                "leave it so, or start a new run",
                source=folder.path,
            )
        return info

    def _train(
        self, folder: RunFolder | None, records: list[Record], resumed: State | None
    ) -> Outcome:
        try:
            return self._trained(folder, records, resumed)
        except MisrecordedError as error:
            # What was trained so far rests on a recording that is wrong by now.
            self.plan.problem.use_plain_loop(str(error))
            self.notes.append(f"{error}: the run was begun again, with the plain loop")
            if folder:
                checkpoint.remove(folder)
                folder.back_to(None)
            self._count(folder, 0)
            if self.ledger:
                self.ledger.again(0, str(error))
            return self._trained(folder, [], None)

    def _trained(
        self, folder: RunFolder | None, records: list[Record], resumed: State | None
    ) -> Outcome:
        state = None
        saved = time.monotonic()
        try:
            for state in simulate(self.plan, resumed, self.trainer, self._disk(folder, resumed)):
                if state.record is not None:
                    records.append(state.record)
                    if folder:
                        folder.append(state.record)
                if self.ledger:
                    self.ledger.write(state.entries, self._keys)
                self._tell(state)
                if folder and state.ended is None:
                    asked = self.watch.number if self.watch else None
                    if asked is not None or self._is_due(state, saved):
                        self._save(folder, state, len(records))
                        saved = time.monotonic()
                    if asked is not None:
                        raise self._interrupted(asked, folder, state)
        except BaseException:
            if folder:
                with suppress(OSError):  # a full disk must not hide what happened
                    mark = folder.mark(len(records))
                    self._write_info(folder, "interrupted", records=asdict(mark))
            raise
        assert state is not None
        return self._end(folder, state, records)

    def _disk(self, folder: RunFolder | None, resumed: State | None) -> Disk | None:
        """Where what workers keep is written; in a folder, beside its checkpoints."""
        if not self.plan.on_disk or folder is None:
            return None
        held = resumed.residues if resumed else None
        if isinstance(held, ResiduesOnDisk) and held.disk.folder == folder.checkpoints:
            return held.disk
        if not folder.checkpoints.is_dir():
            folder.checkpoints.mkdir()
            sync(folder.path)
        return Disk(folder.checkpoints)

    def _count(self, folder: RunFolder | None, rounds: int) -> None:
        """Have rounds counted before they release noise that cannot be drawn again.

        Those beyond ``rounds``, from which training goes on, are released a second time.
        """
        privacy = self.plan.privacy
        if privacy is None or not privacy.secret:
            return
        if folder:
            self._begun = folder.released(rounds)
        replayed = self._begun - rounds

        def releasing(number: int) -> None:
            self._begun = number + replayed
            if folder:
                folder.count_release(self._begun)

        again = replace(privacy, replayed=replayed)
        self.plan = replace(self.plan, privacy=again, releasing=releasing)

    def _open(self, folder: RunFolder) -> None:
        if self.opened:
            self.opened(folder)

    def _tell(self, state: State) -> None:
        if self.listener:
            try:
                self.listener(state)
            except (OSError, SystemExit):
                # Nobody reads what is printed any more (rich would exit): training goes on.
                self.listener = None

    def _end(self, folder: RunFolder | None, state: State, records: list[Record]) -> Outcome:
        assert state.ended is not None
        problem = self.plan.problem
        held = state.server
        final = problem.module_at(held.w, held.get(BUFFERS, None))
        best = problem.module_at(state.best.w, state.best.buffers) if state.best else final
        if folder:
            models = {"best.safetensors": best, "final.safetensors": final}
            digests = {
                name: checkpoint.save_model(m, folder.path / name) for name, m in models.items()
            }
            status = "diverged" if state.diverged else "finished"
            keep = self.experiment.checkpoint.keep
            if keep and not state.diverged:
                self._save(folder, state, len(records))
            found: dict[str, Any] = {}
            if state.best:
                found = {"best_iteration": state.best.iteration, "best_loss": state.best.loss}
            found |= {"models": digests, "records": asdict(folder.mark(len(records)))}
            told = {"ended": str(state.ended), "ending": asdict(state.ended)}
            self._write_info(folder, status, **told, **found)
            if not keep:
                checkpoint.remove(folder)
        return self._run(folder, records, best, final, state.ended)

    def _finished(self, folder: RunFolder, info: dict[str, Any]) -> Outcome:
        folder.verify(info)
        digests = info.get("models")
        digests = digests if isinstance(digests, dict) else {}
        problem = self.plan.problem
        best, final = (
            checkpoint.load_model(
                problem.module_at(problem.initial), folder.path / name, digests.get(name)
            )
            for name in ("best.safetensors", "final.safetensors")
        )
        with suppress(OSError):  # it may have ended before it could tidy up
            if not self.experiment.checkpoint.keep:
                checkpoint.remove(folder)
        records = folder.records()
        ending = ending_of(folder, info)
        assert ending is not None  # its status says that it is over
        if records:
            self._tell(_last(self.plan, records[-1], ending))
        return self._run(folder, records, best, final, ending)

    def _run(
        self,
        folder: RunFolder | None,
        records: list[Record],
        best: nn.Module,
        final: nn.Module,
        ending: Ending,
    ) -> Outcome:
        last = records[-1] if records else None
        if last and last.refusals:
            whose = _whose({worker for record in records for worker in record.refused})
            aggregator = self.plan.scheme.aggregator
            why = "they were not finite"
            why += ", or beyond aggregator.range" * isinstance(aggregator, Secure)
            screens = type(aggregator).screen is not Aggregator.screen
            why += ", or too long for the aggregator" * screens
            why = why if self.trainer is None else "see silos.jsonl"
            self.notes.append(f"{last.refusals} updates of {whose} were refused: {why}")
        if last and last.misses:
            whose = _whose({worker for record in records for worker in record.missed})
            self.notes.append(f"{whose} missed {last.misses} times: late, or not to be reached")
        self.notes += self._told()
        for name, metric in self.plan.metrics.items():
            measured = [record.measured(name) for record in records if record.loss is not None]
            if None in measured:
                self.notes.append(undefined(name, measured.count(None), len(measured), metric))
        if last and last.tested:
            told = [f"{n} {v:.4g}" for n, v in last.tested.items() if v is not None]
            self.notes.append(f"on the test samples, at the end: {', '.join(told)}")
        if self.ledger and self.ledger.failed:
            self.notes.append(f"ledger.anchor: a head was not taken ({self.ledger.failed})")
        path = folder.path if folder else None
        return Outcome(
            self.label,
            self.experiment,
            records,
            best,
            final,
            ending,
            path,
            self.notes,
            self._about,
        )

    def _told(self) -> list[str]:
        """What was found out about the model during the run, and not said before it."""
        if self.trainer is not None:
            return []
        gradients, judgements = self.plan.problem.gradients, self.plan.problem.judgements
        found = [plain_note(gradients.plain)] if gradients.plain else []
        if gradients.alone and not gradients.plain:
            if self.plan.scheme.gradient:
                found.append(f"samples' gradients are taken one by one ({gradients.alone})")
            elif self.plan.chunk > 1:
                found.append(alone_note(gradients.alone))
        if judgements.plain and judgements.plain != gradients.plain:
            found.append(f"its evaluation is not recorded ({judgements.plain}), which is slower")
        return [note for note in found if note not in self.notes]

    def _is_due(self, state: State, saved: float) -> bool:
        every = self.experiment.checkpoint
        by_rounds = every.rounds > 0 and state.round > 0 and state.round % every.rounds == 0
        return by_rounds or (every.seconds > 0 and time.monotonic() - saved >= every.seconds)

    def _save(self, folder: RunFolder, state: State, records: int) -> None:
        gradients, judgements = self.plan.problem.gradients, self.plan.problem.judgements
        plain = gradients.plain, judgements.plain, gradients.alone
        head = self.ledger.mark() if self.ledger else None
        versions = self._about["versions"]
        checkpoint.write(folder, state, records, self._identity, versions, plain, head)

    def _write_info(self, folder: RunFolder, status: str, **more: Any) -> None:
        head = {"ledger": self.ledger.mark()} if self.ledger else {}
        folder.write_info({"status": status, **more, **head, "config": self._config, **self._about})

    @property
    def _named(self) -> dict[str, Any]:
        """Which run this is, for the ledger: silos know it by its token."""
        run = str(self.facts.get("token", self._identity))
        return {"run": run, "identity": self._identity, "config": self.key.exact}

    @property
    def _keys(self) -> Mapping[int, str]:
        """The public keys of workers who sign what they send."""
        return self.trainer.executor.keys if self.trainer else {}

    def _rounds(self, state: State) -> int:
        done = state.round, state.iteration
        return expected_rounds(self.plan.rounds, self.plan.iterations, done)

    def _interrupted(self, number: int, folder: RunFolder, state: State) -> Interrupted:
        return Interrupted(
            number,
            f"interrupted after round {state.round} of {self._rounds(state)} and saved; go on with "
            f"`fednag resume {folder.path}`",
        )

    @cached_property
    def _identity(self) -> str:
        return checkpoint.identity(self.plan, self.key.exact)

    @cached_property
    def _about(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "seed": self.experiment.seed,
            "key": self.key.short,
            "exact_key": self.key.exact,
            "identity": self._identity,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "parameters": len(self.plan.problem.initial),
            "workers": len(self.plan.owned),
            "samples": int(self.plan.sizes.sum()),
            "test_samples": len(self.plan.problem.dataset.test_x),
            **_held(self.plan),
            "work": workload_facts(self.plan),
            "notes": list(self.notes),
            **({"privacy": self.plan.privacy.facts} if self.plan.privacy else {}),
            "runner": self.runner,
            **self.facts,
            "versions": {name: version(name) for name in RECORDED_VERSIONS},
            "python": sys.version.split()[0],
            "platform": platform.platform(),
        }


def _held(plan: Plan) -> dict[str, Any]:
    """Samples of each class at each worker, unless they are no classes or too many to keep."""
    classes = plan.problem.dataset.classes
    if not classes or len(plan.partition.workers) * classes > MOST_CELLS:
        return {}
    return {"held": plan.partition.table(plan.problem.dataset.y.numpy(), classes).tolist()}


def _last(plan: Plan, record: Record, ending: Ending) -> State:
    """As much of a finished run's last state as its record tells."""
    return State(
        Vectors(),
        np.zeros(len(plan.owned), dtype=np.int64),
        round=record.round,
        iteration=record.iteration,
        seconds=record.seconds,
        record=record,
        ended=ending,
        diverged=ending.kind == "diverged",
    )


def _writing(folder: RunFolder) -> AbstractContextManager[None]:
    resume = f"free some space or allow writing, then go on with `fednag resume {folder.path}`"
    return os_errors(folder.path, "cannot be written", resume)


def other_versions(saved: Mapping[str, str], how: str = "saved") -> list[str]:
    """A note on what is installed here in another version than when a run was saved or made."""
    now = {name: version(name) for name in RECORDED_VERSIONS}
    differing = [f"{n} {saved[n]}, now {now[n]}" for n in now if saved.get(n, now[n]) != now[n]]
    if not differing:
        return []
    return [f"it was {how} with {', '.join(differing)}: what follows may differ by rounding"]


def _whose(workers: set[int]) -> str:
    return f"worker {min(workers)}" if len(workers) == 1 else f"{len(workers)} workers"
