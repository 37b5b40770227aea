"""A run's state on disk, so that it can go on as if it had never stopped; and its models.

A checkpoint is one safetensors file: the vectors, and in its header the rest as JSON. It is written
under another name and renamed, the two newest are kept, and each carries a digest of its content: a
file that was cut short or changed is recognised, and the one before it is used.

What workers keep may be in files of rows beside it (``core/disk.py``). Then a checkpoint says which
row is whose, and the digest of each; rows that a checkpoint refers to are not written again until
that checkpoint is gone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor, nn

from fednag.core.algorithm import News
from fednag.core.digests import parsed
from fednag.core.disk import Disk, OnDisk, ResiduesOnDisk, RowFile, RowLayout, row_files
from fednag.core.files import sync, write_atomically
from fednag.core.record import RoundFacts
from fednag.core.state import Best, Flight, State
from fednag.core.vectors import Vectors
from fednag.data.partition import Drawn
from fednag.errors import FednagError
from fednag.runs.folder import Mark, RunFolder
from fednag.simulate.run import Plan

Plain = tuple[str | None, str | None, str | None]
"""Why the plain loop trains the model, why it evaluates it, why workers are not stacked."""

FORMAT = 3  # with rows in files of their own; without, the second
PLAIN_FORMAT = 2
ROWS = "rows."
KEPT = 2
WORKERS = "workers "  # no rule can give a vector that name
COUNTS = (
    "round", "iteration", "bytes_up", "bytes_down", "participants", "refusals", "misses", "waited",
    "dearest",
)  # fmt: skip
NUMBERS = ("seconds", "first_loss", "clock", "watched")
# What the first checkpoints did not hold.
SINCE: dict[str, Any] = {
    "misses": 0,
    "clock": 0.0,
    "missed": (),
    "waited": 0,
    "dearest": 0,
    "seen": (),
    "watched": None,
    "participants": 0,
    "control": {},
    "rounds": (),
    "flying": (),
    "news": {},
    "tiers": (),
}
TOLD = (
    "share", "steps", "staleness", "seconds", "bytes", "round", "iteration", "missed", "refused",
)  # fmt: skip


class UnusableError(Exception):
    """Why one checkpoint cannot be used; another one may."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A state, and the place in the records that belongs to it."""

    state: State
    mark: Mark
    versions: dict[str, str]
    plain: Plain = (None, None, None)


def identity(plan: Plan, exact_key: str) -> str:
    """A digest of what a run's numbers come from: configuration, model, first weights, data, split.

    Not of code: what a method or a loss of the user's own does may change unnoticed.
    """
    problem = plan.problem
    found = hashlib.sha256(f"{exact_key} {problem.module}".encode())
    data = problem.dataset
    for tensor in (problem.initial, data.x, problem.y, data.test_x, problem.test_y):
        found.update(_bytes(tensor))
    owned = plan.owned
    if isinstance(owned, Drawn):
        found.update(owned.described.encode())
        owned = owned.members
    for held in owned:
        found.update(len(held).to_bytes(8, "little"))
        found.update(np.ascontiguousarray(held).tobytes())
    return found.hexdigest()


def write(
    folder: RunFolder,
    state: State,
    records: int,
    owner: str,
    versions: Mapping[str, str],
    plain: Plain = (None, None, None),
    ledger: Mapping[str, Any] | None = None,
) -> None:
    """Save the state after ``records`` records, then drop all but the newest checkpoints."""
    tensors = {f"server.{name}": vector for name, vector in state.server.items()}
    rows = row_files([state.memories, state.residues])
    residues = state.residues
    if isinstance(residues, ResiduesOnDisk):
        residues = residues.others
    if not isinstance(state.memories, OnDisk):
        tensors |= _stacked("memory", state.memories)
    for name, version in rows.items():
        version.file.sync()
        tensors |= _rows(name, version)
    for (worker, place), held in residues.items():
        tensors |= {f"residue.{worker}.{place}.{name}": vector for name, vector in held.items()}
    for flight in state.flying:  # those of one round were sent the same
        tensors |= {f"sent.{flight.round}.{n}": vector for n, vector in flight.sent.items()}
    tensors["starts"] = torch.from_numpy(state.starts)
    about: dict[str, Any] = {name: getattr(state, name) for name in (*COUNTS, *NUMBERS)}
    about["first_loss"] = state.first_loss if np.isfinite(state.first_loss) else None
    about |= {
        "format": FORMAT if rows else PLAIN_FORMAT,
        "owner": owner,
        "versions": dict(versions),
        "best": None,
    }
    about["seen"], about["tiers"] = state.seen, state.tiers
    about |= {"refused": state.refused, "missed": state.missed, "control": state.control}
    about["rounds"] = [asdict(facts) for facts in state.rounds]
    about["news"] = {name: getattr(state.news, name) for name in TOLD}
    about["news"]["told"] = {str(i): dict(told) for i, told in state.news.told.items()}
    about["flying"] = [
        {
            **{n: getattr(flight, n) for n in ("worker", "round", "steps", "start", "arrival")},
            "numbers": dict(flight.numbers),
        }
        for flight in state.flying
    ]
    if rows:
        layouts = {name: version.file.layout for name, version in rows.items()}
        about["layouts"] = {name: held.vectors if held else () for name, held in layouts.items()}
    about["plain"] = plain
    about["ledger"] = ledger  # its head
    about["evaluated"] = state.record is not None
    about["records"] = asdict(folder.mark(records))
    if state.best is not None:
        tensors["best.w"] = state.best.w
        if state.best.buffers is not None:
            tensors["best.buffers"] = state.best.buffers
        about["best"] = {"loss": state.best.loss, "iteration": state.best.iteration}
    tensors = _apart(tensors)
    text = json.dumps(about, allow_nan=False)
    # The text has a digest of its own too, for those who read no tensors.
    header = {"fednag": text, "told": _told(text), "digest": _digest(text, tensors)}
    if not folder.checkpoints.is_dir():
        folder.checkpoints.mkdir()
        sync(folder.path)
    content = save(tensors, metadata=header)
    file = folder.checkpoints / f"{state.round:09}.safetensors"
    for version in rows.values():
        version.file.pin(file.name, version.slots)
    write_atomically(file, content)
    for old in folder.checkpoint_files()[KEPT:]:
        old.unlink()
        for version in rows.values():
            version.file.unpin(old.name)


def remove(folder: RunFolder) -> None:
    """Drop the checkpoints of a run that is over."""
    for file in (*folder.checkpoint_files(), *folder.checkpoints.glob("*.rows")):
        file.unlink()
    if folder.checkpoints.is_dir() and not any(folder.checkpoints.iterdir()):
        folder.checkpoints.rmdir()


def newest(folder: RunFolder, plan: Plan, owner: str) -> tuple[Checkpoint | None, dict[Path, str]]:
    """The newest checkpoint that can be used; and why newer ones, if there are any, cannot.

    None where there is no checkpoint at all: the run then begins anew. Nothing is changed on disk.
    """
    unusable: dict[Path, str] = {}
    for file in folder.checkpoint_files():
        try:
            return _read(file, folder, plan, owner), unusable
        except UnusableError as error:
            unusable[file] = str(error)
    if unusable:
        reasons = "; ".join(f"{file.name}: {why}" for file, why in unusable.items())
        raise FednagError(
            folder.checkpoints,
            f"no checkpoint can be used ({reasons})",
            "restore what was changed, or start a new run",
        )
    return None, unusable


def usable(folder: RunFolder, plan: Plan, owner: str) -> Iterator[Checkpoint]:
    """Every checkpoint that can be used, newest first."""
    for file in folder.checkpoint_files():
        with suppress(UnusableError):
            yield _read(file, folder, plan, owner)


def set_aside(files: Mapping[Path, str]) -> list[str]:
    """Keep files that cannot be used, under other names; says so of each."""
    notes = []
    for file, why in files.items():
        kept = file.with_name(file.name + ".unusable")
        os.replace(file, kept)
        notes.append(f"an older checkpoint was used; {file.name} was set aside: {why}")
    return notes


def save_model(module: nn.Module, path: Path) -> str:
    """A module's state as safetensors: ``module.load_state_dict(load_file(path))`` reads it.

    Returns the file's digest.
    """
    # Cloned, because safetensors refuses tensors that share memory, as tied weights do.
    state = {
        name: value.detach().clone().contiguous() for name, value in module.state_dict().items()
    }
    content = save(state)
    write_atomically(path, content)
    return hashlib.sha256(content).hexdigest()


def load_model(module: nn.Module, path: Path, digest: object) -> nn.Module:
    """The same module with the state that ``save_model`` wrote, if the file is as it was."""
    try:
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != digest:
            raise ValueError("another digest")
        module.load_state_dict(load(content))
    except (OSError, ValueError, SafetensorError, RuntimeError) as error:
        raise FednagError(
            path,
            "it is missing, damaged or of another model",
            "restore it, or run again without resuming",
        ) from error
    return module


def _read(file: Path, folder: RunFolder, plan: Plan, owner: str) -> Checkpoint:
    try:
        content, header = file.read_bytes(), _header(file)
    except OSError as error:
        raise UnusableError(f"it cannot be read ({error.strerror})") from error
    text = header["fednag"]
    about = _table(text)
    written = about.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise UnusableError(f"a newer fednag wrote it (format {written}; this one knows {FORMAT})")
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UnusableError("it is damaged or cut short") from error
    told = header.get("told", _told(text))  # files of 0.1.0 have none
    whole = header.keys() <= {"fednag", "told", "digest"} and told == _told(text)
    if not whole or header.get("digest") != _digest(text, tensors):
        raise UnusableError("it is damaged: its digest is not that of its content")
    # From here on it is as it was written; what is left to find out is for which run.
    if about["owner"] != owner:
        raise UnusableError("it belongs to another configuration or other data")
    mark = Mark(**about["records"])
    disk = _disk(file.parent, about, tensors)
    if not folder.agrees(mark):
        raise UnusableError("records.jsonl is not the one it was saved with")
    state = _state(about, tensors, plan)
    if disk is not None:
        state = replace(
            state,
            memories=_version(disk, "memory", tensors),
            residues=ResiduesOnDisk(
                disk,
                {
                    int(name.removeprefix("residue.")): _version(disk, name, tensors)
                    for name in disk.files
                    if name.startswith("residue.")
                },
                state.residues,
            ),
        )
        _pin(disk, folder)
    training, evaluation, alone = about.get("plain", (None, None, None))
    return Checkpoint(state, mark, about["versions"], (training, evaluation, alone))


def _state(about: dict[str, Any], tensors: dict[str, Tensor], plan: Plan) -> State:
    device = plan.problem.device
    about = SINCE | about

    def bag(prefix: str) -> Vectors:
        named = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        return Vectors(**{name.removeprefix(prefix): t.to(device) for name, t in named.items()})

    residues: dict[tuple[int, int], dict[str, Tensor]] = {}
    for name, vector in bag("residue.").items():
        worker, place, own = name.split(".", 2)
        residues.setdefault((int(worker), int(place)), {})[own] = vector
    news = {**about["news"], "told": {int(i): t for i, t in about["news"].get("told", {}).items()}}
    for name in ("staleness", "missed", "refused"):
        news[name] = tuple(news.get(name, ()))
    first = {"round": about["round"], "iteration": about["iteration"]}
    first["bytes"] = about["bytes_up"] + about["bytes_down"]
    best = about["best"]
    buffers = tensors["best.buffers"].to(device) if "best.buffers" in tensors else None
    numbers = {name: about[name] for name in (*COUNTS, *NUMBERS)}
    if numbers["first_loss"] is None:
        numbers["first_loss"] = float("inf")
    return State(
        server=bag("server."),
        memories=_unstacked(bag("memory."), about["format"]),
        residues={key: Vectors(**named) for key, named in residues.items()},
        control=about["control"],
        seen=tuple(about["seen"]),
        tiers=tuple((down, up) for down, up in about["tiers"]),
        flying=tuple(Flight(sent=bag(f"sent.{f['round']}."), **f) for f in about["flying"]),
        news=News(**{**first, **news}),
        rounds=() if about["evaluated"] else tuple(RoundFacts.of(each) for each in about["rounds"]),
        starts=tensors["starts"].numpy(),
        best=Best(tensors["best.w"].to(device), **best, buffers=buffers) if best else None,
        # Those that a record has named are not to be named again.
        refused=() if about["evaluated"] else tuple(about["refused"]),
        missed=() if about["evaluated"] else tuple(about["missed"]),
        **numbers,
    )


def _rows(name: str, version: OnDisk) -> dict[str, Tensor]:
    """Which row of a file is whose, and the digests of those rows."""
    workers = version.workers
    if not len(workers):
        return {}
    slots = version.slots[workers]
    found = {"workers": workers, "slots": slots, "digests": version.file.digests[slots]}
    return {f"{ROWS}{name}.{part}": torch.from_numpy(array) for part, array in found.items()}


def _disk(folder: Path, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Disk | None:
    """The files of rows that a checkpoint refers to, each of whose rows is as it was."""
    layouts = about.get("layouts")
    if layouts is None:
        return None
    disk = Disk(folder)
    for name, vectors in layouts.items():
        if f"{ROWS}{name}.slots" not in tensors:  # nobody kept anything yet
            disk.file(name)
            continue
        slots, digests = (tensors[f"{ROWS}{name}.{part}"].numpy() for part in ("slots", "digests"))
        layout = RowLayout(tuple((n, kind, tuple(shape)) for n, kind, shape in vectors))
        path = folder / f"{name}.rows"
        try:
            found = RowFile.existing(path, layout, slots, digests)
        except OSError as error:
            raise UnusableError(f"{path.name} cannot be read ({error.strerror})") from error
        if found.damaged(slots):
            raise UnusableError(f"{path.name} is damaged")
        disk.files[name] = found
    return disk


def _version(disk: Disk, name: str, tensors: Mapping[str, Tensor]) -> OnDisk:
    if f"{ROWS}{name}.slots" not in tensors:
        return disk.file(name).empty()
    workers, slots = (tensors[f"{ROWS}{name}.{part}"].numpy() for part in ("workers", "slots"))
    whose = np.full(int(workers.max(initial=-1)) + 1, -1, dtype=np.int64)
    whose[workers] = slots
    return OnDisk(disk.files[name], whose)


def _pin(disk: Disk, folder: RunFolder) -> None:
    """Leave the rows that checkpoints refer to as they are, also the older one's."""
    for file in folder.checkpoint_files():
        for name, rows in disk.files.items():
            with suppress(SafetensorError, OSError), safe_open(file, framework="pt") as opened:
                rows.pin(file.name, opened.get_tensor(f"{ROWS}{name}.slots").numpy())


def _stacked(prefix: str, memories: Mapping[int, Vectors]) -> dict[str, Tensor]:
    """What workers keep as one tensor a name, with the numbers of the workers who keep it."""
    if not memories:
        return {}
    workers = sorted(memories)
    found = {
        f"{prefix}.{name}": torch.stack([memories[worker][name] for worker in workers])
        for name in memories[workers[0]]
    }
    return {**found, f"{prefix}.{WORKERS}": torch.tensor(workers)}


def _unstacked(rows: Vectors, written: int) -> dict[int, Vectors]:
    if not rows:
        return {}
    named = rows.without(WORKERS)
    count = len(next(iter(named.values())))
    # The first format had a row for every worker.
    workers = range(count) if written == 1 else rows[WORKERS].tolist()
    return {
        worker: named.map(lambda held, row=row: held[row].clone())  # type: ignore[misc]
        for row, worker in enumerate(workers)
    }


def _header(file: Path) -> dict[str, str]:
    """The texts in a checkpoint's header."""
    try:
        with safe_open(file, framework="pt") as opened:
            texts: dict[str, str] = opened.metadata() or {}
    except SafetensorError as error:
        raise UnusableError("it is damaged or cut short") from error
    if "fednag" not in texts:
        raise UnusableError("it is not a checkpoint of fednag")
    return texts


def _table(text: str) -> dict[str, Any]:
    try:
        found = parsed(text)
    except ValueError as error:
        raise UnusableError("it is damaged: its header is not JSON") from error
    if not isinstance(found, dict):
        raise UnusableError("it is damaged: its header is not a table")
    return found


def _told(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(text: str, tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(_bytes(tensor))
    return found.hexdigest()


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Each in memory of its own, as safetensors wants them: the best w may be the last."""
    found: dict[str, Tensor] = {}
    places = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        place = tensor.untyped_storage().data_ptr()
        found[name] = tensor.clone() if place in places else tensor
        places.add(place)
    return found


def _bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data
