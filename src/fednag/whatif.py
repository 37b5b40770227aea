"""The same run with one thing changed, and every other random draw kept."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fednag.api import Started
from fednag.config import Experiment, override, parse, read
from fednag.controllers import Buffered, Constant, Poisson, StepsByWorker, Trust
from fednag.core.record import Record
from fednag.errors import FednagError
from fednag.results import Run
from fednag.runs.build import Builder
from fednag.runs.execute import Begun, Execution, find
from fednag.runs.folder import RunFolder, find_runs
from fednag.runs.interrupts import Watch
from fednag.runs.labels import differing
from fednag.runs.view import RunView
from fednag.simulate.run import Plan

__all__ = ["Effect", "WhatIf", "what_if"]

# Rounds before the last are the same, however many are to follow.
SHORT_SIGHTED = (Constant, Poisson, StepsByWorker, Buffered, Trust)
# Of these the last round has all its iterations, where tau divides those of the run.
WHOLE_ROUNDS = (Constant, Poisson, Trust)
LATER = ("training.iterations", "schedule")  # may differ from some round on, and not before
DRAWS = ("seed", "name")


@dataclass(frozen=True)
class Effect:
    """What a run came to by one measure, and what it came to with something changed."""

    measure: str
    run: float | None
    what_if: float | None

    @property
    def difference(self) -> float | None:
        """The changed run's value minus the run's."""
        if self.run is None or self.what_if is None:
            return None
        return self.what_if - self.run


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A run, the same with something changed, and what that did."""

    changes: Mapping[str, Any]  # field -> value
    base: RunView
    run: Run | None  # None: nothing is changed
    key: str
    effects: list[Effect]
    notes: list[str]

    @property
    def views(self) -> list[RunView]:
        """The run, and the changed one if it is another."""
        return [self.base, *([self.run.view] if self.run else [])]


def what_if(
    run: str | Path | Run,
    changes: Mapping[str, Any] | None = None,
    *,
    without: Sequence[int] = (),
    fleet: str | None = None,
    out: str | Path | None = None,
    started: Started | None = None,
    watch: Watch | None = None,
) -> WhatIf:
    """Make a run again with something changed, in a folder of its own, and compare the two.

    ``run`` is a run's folder; ``changes`` are fields of its experiment file, such as
    ``{"training.tau": 40}``; ``without`` names workers who take part in nothing; ``fleet`` is whose
    devices it is timed on. Random draws are keyed by seed, round and worker, so all that does not
    hang on the change stays as it was. Where the change cannot matter before a checkpoint of the
    run, it goes on from there.

    >>> import tempfile
    >>> import fednag
    >>> from fednag.whatif import what_if
    >>> with tempfile.TemporaryDirectory() as out:
    ...     run = fednag.run(model="logistic", tau=5, iterations=20, out=out)
    ...     found = what_if(run, without=[3])
    >>> [effect.measure for effect in found.effects], found.run.label
    (['accuracy', 'loss', 'bytes', 'seconds'], 'fednag without worker 3')
    """
    folder = _folder(run)
    wanted = _wanted(changes or {}, without, fleet)
    base = RunView.read(folder)
    raw = read(folder.own_config())
    builder = Builder()
    experiment, plan, _ = builder.plan(parse(raw, str(folder.config_file)))
    changed, other, notes = builder.plan(_changed(raw, experiment, wanted, folder))
    key = changed.all_keys[0]
    if key.exact == experiment.all_keys[0].exact:
        notes = [f"that changes nothing: it is the run itself, key {key.short}"]
        return WhatIf(wanted, base, None, key.short, _effects(base, base), notes)
    label = f"{base.label} {_words(wanted)}"
    root = folder.path.absolute().parent.parent if out is None else Path(out)
    begun, why = _begun(Execution(experiment, plan, base.label), other, changed, folder, base)
    facts = {"what_if": {"run": str(folder.path), "changes": wanted}}
    listener = started(label, changed, other.rounds) if started else None
    execution = Execution(changed, other, label, [*notes, why], listener, watch, facts=facts)
    there = find(root, label, changed)
    made = Run.of(execution.resume(there) if there else execution.start(root, begun))
    view = made.view
    notes = [*made.notes, *_remarks(base, view)]
    return WhatIf(wanted, base, made, key.short, _effects(base, view), notes)


def _folder(run: str | Path | Run) -> RunFolder:
    if isinstance(run, Run):
        if run.folder is None:
            raise FednagError("run", "it was not written to a folder", "give out when it is made")
        return RunFolder(run.folder)
    found = find_runs([Path(run)])
    if len(found) > 1:
        raise FednagError(run, f"{len(found)} runs are there", "name one of them", given=run)
    return found[0]


def _wanted(
    changes: Mapping[str, Any], without: Sequence[int], fleet: str | None
) -> dict[str, Any]:
    """The fields that change, and their values."""
    wanted = dict(changes)
    more = {"training.without": sorted(set(without)) or None, "clock.fleet": fleet or None}
    for field, value in more.items():
        if value is not None and wanted.setdefault(field, value) is not value:
            raise FednagError(field, "it is given twice", "leave one out")
    for field in wanted:
        if field in DRAWS:
            why = "every draw is to stay" if field == "seed" else "it decides nothing"
            raise FednagError(field, why, "change another field")
    if not wanted:
        raise FednagError("", remedy="say what is to change, e.g. --without worker:0")
    return wanted


def _changed(
    raw: Mapping[str, Any], experiment: Experiment, wanted: Mapping[str, Any], folder: RunFolder
) -> Experiment:
    varied = override(raw, {**wanted, "name": f"{experiment.name[:92]}-what-if"})
    if "clock.fleet" in wanted:  # another one has another digest
        varied["clock"].pop("digest", None)
    return parse(varied, str(folder.config_file))


def _words(wanted: Mapping[str, Any]) -> str:
    """The changes in a few words, for a label."""
    said = []
    for field, value in wanted.items():
        if field == "training.without":
            said.append("without worker " + ", ".join(map(str, value)))
        elif field == "clock.fleet":
            said.append(f"on {Path(str(value)).stem}")
        else:
            said.append(f"{field.split('.')[-1]}={value}")
    return ", ".join(said)


def _begun(
    base: Execution, other: Plan, changed: Experiment, folder: RunFolder, view: RunView
) -> tuple[Begun | None, str]:
    """Where the changed run can go on from; and that, or why it is made from the start."""
    tables = [_settings(base.experiment), _settings(changed)]
    fields = [field.split(".")[0] if "schedule" in field else field for field in differing(tables)]
    early = sorted(set(fields) - set(LATER))
    start = "it was made from the start: "
    if early:
        return None, f"{start}{', '.join(early)} may matter from the first round on"
    if base.plan.ledger or base.plan.privacy:
        return None, f"{start}a run with a ledger or a promise of privacy is one piece"
    if not isinstance(other.scheme.controller, SHORT_SIGHTED) or changed.own_names:
        return None, f"{start}parts of its own may look at how long the run is"
    saved = base.saved(folder)
    if not saved:
        return None, f"{start}the run has no checkpoint (checkpoint.keep = true keeps the last)"
    for begun in saved:
        if _alike(base.plan, other, begun, fields, view):
            rounds = begun[1].state.round
            return begun, f"it went on from round {rounds} of the run, which is the same till there"
    return None, f"{start}the change may matter before the run's checkpoints"


def _alike(plan: Plan, other: Plan, begun: Begun, fields: Collection[str], view: RunView) -> bool:
    """Whether both runs are certainly the same until this checkpoint."""
    state = begun[1].state
    at_end = state.iteration >= plan.iterations
    ended = None if view.ending is None else view.ending.iteration or 0
    if ended is not None and state.iteration >= ended and not at_end:
        return False  # it was stopped there, and so would the other be
    if state.iteration >= other.iterations:
        return False
    if at_end:
        whole = plan.iterations % plan.tau == 0 and state.round % plan.evaluate_every == 0
        whole = whole and not begun[0][-1].tested  # test samples are looked at in the end alone
        if not whole or type(plan.scheme.controller) not in WHOLE_ROUNDS:
            return False
    # Before its last round a run of these controllers looks at its length for schedules alone.
    return (not plan.scheme.schedules and "schedule" not in fields) or all(
        plan.scheme.numbers(i, plan.iterations) == other.scheme.numbers(i, other.iterations)
        for i in range(state.iteration)
    )


def _settings(experiment: Experiment) -> Mapping[str, Any]:
    return RunView("", 0, [], config=experiment.model_dump(mode="json")).settings


def _effects(base: RunView, other: RunView) -> list[Effect]:
    """Differences at the ends; or, of a run that is not over, at the last iteration of both."""
    first, second = _compared(base, other)
    measured = [
        Effect(name, first.measured(name), second.measured(name))
        for name in ("accuracy", "loss", *base.metrics)
    ]
    found = [one for one in measured if one.run is not None or one.what_if is not None]
    sent = [r.bytes_up + r.bytes_down for r in (first, second)]
    seconds = [r.clock if _timed(base) or _timed(other) else r.seconds for r in (first, second)]
    return [*found, Effect("bytes", *sent), Effect("seconds", *seconds)]


def _compared(base: RunView, other: RunView) -> tuple[Record, Record]:
    if base.ending is not None and other.ending is not None:
        return base.records[-1], other.records[-1]
    tables = [{record.iteration: record for record in view.records} for view in (base, other)]
    last = max(tables[0].keys() & tables[1].keys())
    return tables[0][last], tables[1][last]


def _timed(view: RunView) -> bool:
    return bool(view.records) and view.records[-1].clock is not None


def _remarks(base: RunView, other: RunView) -> list[str]:
    """What to know when reading the differences."""
    said = []
    if base.ending is None:
        last = _compared(base, other)[0].iteration
        said.append(f"the run is not over: differences are those at iteration {last}")
    if _timed(base) != _timed(other):
        said.append("seconds of one run are a fleet's, of the other this machine's: no difference")
    elif not _timed(base):
        said.append("seconds are those of this machine, which differ from one time to the next")
    if base.records[-1].iteration != other.records[-1].iteration and base.ending is not None:
        said.append("the runs ended at different iterations; each is compared at its own end")
    return said
