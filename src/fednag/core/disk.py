"""What workers keep between rounds in files rather than in memory: a row of a file for each.

A row is never changed as long as anything refers to it. What a worker keeps next goes to a row that
nothing refers to, so states of earlier rounds stay as they were, and a checkpoint need only say
which row is whose: whenever the process is killed, the rows of its checkpoints are whole. Every row
has a digest, which is compared whenever the row is read.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import IO, Any, TypeVar, cast
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray

from fednag.core.keys import Indexes
from fednag.core.vectors import Vectors
from fednag.errors import FednagError

K = TypeVar("K")

Digests = NDArray[np.uint8]

DIGEST = 16  # bytes of a SHA-256, enough to notice damage
ALIGNED = 8  # bytes; vectors of a row begin at multiples of them
SPARE = 8  # the file grows by this part of itself at least, so that rows are seldom sorted out
BLOCK = 1024  # rows that are copied at a time


@dataclass(frozen=True)
class RowLayout:
    """The vectors of a row: names, types, shapes."""

    vectors: tuple[tuple[str, str, tuple[int, ...]], ...]

    @classmethod
    def of(cls, bag: Vectors) -> RowLayout:
        return cls(tuple((n, str(v.dtype)[6:], tuple(v.shape)) for n, v in bag.items()))

    @cached_property
    def places(self) -> tuple[list[tuple[str, torch.dtype, tuple[int, ...], int, int]], int]:
        """Of each vector name, type, shape, count and offset; and the bytes of a row."""
        found, offset = [], 0
        for name, kind, shape in self.vectors:
            dtype = getattr(torch, kind)
            count = int(np.prod(shape, dtype=np.int64))
            found.append((name, dtype, shape, count, offset))
            offset += -(-count * dtype.itemsize // ALIGNED) * ALIGNED
        return found, max(offset, ALIGNED)


class RowFile:
    """A file of rows of one layout, and which of them nothing refers to.

    Without a path, it is a temporary file that ends with the process.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.layout: RowLayout | None = None
        self.digests: Digests = np.zeros((0, DIGEST), np.uint8)  # of every row
        self._file: IO[bytes] | None = None
        self._writes = False
        self._lock = Lock()
        self._free: Indexes = np.zeros(0, np.int64)
        self._versions: WeakSet[OnDisk] = WeakSet()
        self._pins: dict[str, Indexes] = {}

    @classmethod
    def existing(cls, path: Path, layout: RowLayout, slots: Indexes, digests: Digests) -> RowFile:
        """A file some of whose rows are known; it is not changed before a row is written."""
        found = cls(path)
        found.layout = layout
        found.digests = np.zeros((int(slots.max(initial=-1)) + 1, DIGEST), np.uint8)
        found.digests[slots] = digests
        found._file = path.open("rb", buffering=0)
        return found

    def empty(self) -> OnDisk:
        """The version in which nobody keeps anything."""
        return OnDisk(self, np.zeros(0, np.int64))

    def pin(self, name: str, slots: Indexes) -> None:
        """Leave these rows as they are, as long as there is a checkpoint of that name."""
        if self._file is None or self.layout is None:
            return
        size = os.fstat(self._file.fileno()).st_size // self.layout.places[1]
        self._pins[name] = slots[(slots >= 0) & (slots < size)]
        more = int(self._pins[name].max(initial=-1)) + 1 - len(self.digests)
        self.digests = np.pad(self.digests, ((0, max(more, 0)), (0, 0)))

    def unpin(self, name: str) -> None:
        self._pins.pop(name, None)

    def sync(self) -> None:
        """Have the system put all rows on the disk itself."""
        if self._file is not None and self._writes:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __del__(self) -> None:
        self.close()

    def read(self, slot: int) -> Vectors:
        """A row; raises FednagError if it is not what was written."""
        assert self.layout is not None
        places, size = self.layout.places
        content = bytearray(size)
        with self._lock:
            assert self._file is not None
            self._file.seek(slot * size)
            count, view = 0, memoryview(content)
            while count < size and (more := self._file.readinto(view[count:])):  # type: ignore[attr-defined]
                count += more
        if _digest(content) != self.digests[slot].tobytes():
            raise FednagError(
                self.path or "engine.memory",
                f"row {slot} of what workers keep is damaged or missing",
                "restore it, or start a new run",
            )
        return Vectors(
            **{
                name: torch.frombuffer(content, dtype=dtype, count=many, offset=offset).view(shape)
                if many
                else torch.empty(shape, dtype=dtype)
                for name, dtype, shape, many, offset in places
            }
        )

    def write(self, bags: Sequence[Vectors]) -> Indexes:
        """Write rows where nothing refers to, and return where."""
        if self.layout is None:
            self.layout = RowLayout.of(bags[0])
        places, size = self.layout.places
        self._open()
        slots = self._taken(len(bags))
        assert self._file is not None
        for slot, bag in zip(slots.tolist(), bags, strict=True):
            assert RowLayout.of(bag) == self.layout, "what workers keep has one layout"
            content = bytearray(size)
            whole = np.frombuffer(content, dtype=np.uint8)
            for name, dtype, _, many, offset in places:
                held = bag[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8)
                whole[offset : offset + many * dtype.itemsize] = held.numpy()
            self.digests[slot] = np.frombuffer(_digest(content), dtype=np.uint8)
            with self._lock:
                self._file.seek(slot * size)
                view = memoryview(content)
                while view:
                    view = view[self._file.write(view) :]
        return slots

    def damaged(self, slots: Indexes) -> bool:
        """Whether one of these rows is not what was written."""
        try:
            for slot in np.sort(slots).tolist():
                self.read(slot)
        except (FednagError, OSError):
            return True
        return False

    def _open(self) -> None:
        if self._writes:
            return
        if self.path is None:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        else:
            self.path.parent.mkdir(exist_ok=True)
            begun = self._file is not None
            self.close()
            self._file = self.path.open("r+b" if begun else "w+b", buffering=0)
        self._writes = True

    def _taken(self, count: int) -> Indexes:
        """So many rows that nothing refers to."""
        if len(self._free) < count:
            used = np.zeros(len(self.digests), dtype=bool)
            for slots in (*(version.slots for version in self._versions), *self._pins.values()):
                used[slots[slots >= 0]] = True
            self._free = np.flatnonzero(~used)
            more = max(count, len(used) // SPARE)
            if len(self._free) < more:
                self.digests = np.concatenate([self.digests, np.zeros((more, DIGEST), np.uint8)])
                self._free = np.concatenate([self._free, np.arange(len(used), len(used) + more)])
        taken, self._free = self._free[:count], self._free[count:]
        return taken


class OnDisk(Mapping[int, Vectors]):
    """What workers keep at one moment: where each worker's row is.

    >>> import torch
    >>> first = RowFile().empty().updated({5: Vectors(c=torch.ones(2))})
    >>> then = first.updated({5: Vectors(c=torch.zeros(2))})
    >>> first[5].c, then[5].c, len(then)
    (tensor([1., 1.]), tensor([0., 0.]), 1)
    """

    __slots__ = ("__weakref__", "_count", "file", "slots")

    def __init__(self, file: RowFile, slots: Indexes) -> None:
        self.file, self.slots = file, slots  # of each worker; -1: it keeps nothing yet
        self._count = int((slots >= 0).sum())
        file._versions.add(self)

    # Versions are themselves: to compare contents would mean to read all rows.
    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __getitem__(self, worker: int) -> Vectors:
        if not self._has(worker):
            raise KeyError(worker)
        return self.file.read(int(self.slots[worker]))

    def get(self, worker: int, default: Any = None) -> Any:
        return self.file.read(int(self.slots[worker])) if self._has(worker) else default

    def __contains__(self, worker: object) -> bool:
        return isinstance(worker, int) and self._has(worker)

    def __iter__(self) -> Iterator[int]:
        return iter(self.workers.tolist())

    def __len__(self) -> int:
        return self._count

    @property
    def workers(self) -> Indexes:
        """Those who keep something, in order."""
        return np.flatnonzero(self.slots >= 0)

    def updated(self, new: Mapping[int, Vectors]) -> OnDisk:
        """The next version, in which these workers keep something else."""
        if not new:
            return self
        workers = np.fromiter(new, dtype=np.int64, count=len(new))
        slots = np.full(max(len(self.slots), int(workers.max()) + 1), -1, dtype=np.int64)
        slots[: len(self.slots)] = self.slots
        slots[workers] = self.file.write(list(new.values()))
        return OnDisk(self.file, slots)

    def _has(self, worker: int) -> bool:
        return 0 <= worker < len(self.slots) and bool(self.slots[worker] >= 0)


class ResiduesOnDisk(Mapping[tuple[int, int], Vectors]):
    """What transforms keep of workers' uploads, a file for each exchange of a round.

    What the server and the aggregator keep, under numbers below 0, stays in memory, and so does
    what differs in its vectors: edges may keep others than workers.
    """

    def __init__(
        self,
        disk: Disk,
        places: Mapping[int, OnDisk],
        others: Mapping[tuple[int, int], Vectors],
    ) -> None:
        self.disk, self.places, self.others = disk, places, others

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other

    def __getitem__(self, key: tuple[int, int]) -> Vectors:
        worker, place = key
        return self.others[key] if key in self.others else self.places[place][worker]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        yield from self.others
        for place, held in self.places.items():
            yield from ((worker, place) for worker in held)

    def __len__(self) -> int:
        return len(self.others) + sum(map(len, self.places.values()))

    def updated(self, new: Mapping[tuple[int, int], Vectors]) -> ResiduesOnDisk:
        """The next version, with these residues."""
        others, places = dict(self.others), dict(self.places)
        for place in sorted({place for _, place in new}):
            file = self.disk.file(f"residue.{place}")
            rows: dict[int, Vectors] = {}
            for key, bag in new.items():
                if key[1] == place:
                    if key[0] >= 0 and file.layout in (None, layout := RowLayout.of(bag)):
                        file.layout, rows[key[0]] = layout, bag
                    else:
                        others[key] = bag
            if rows:
                places[place] = places.get(place, file.empty()).updated(rows)
        return ResiduesOnDisk(self.disk, places, others)


class Disk:
    """The row files of a run, in a folder; temporary files without one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.files: dict[str, RowFile] = {}

    def file(self, name: str) -> RowFile:
        if name not in self.files:
            self.files[name] = RowFile(self.folder and self.folder / f"{name}.rows")
        return self.files[name]

    def memories(self, held: Mapping[int, Vectors]) -> OnDisk:
        """What workers keep, moved to this disk if it is not there."""
        file = self.file("memory")
        if isinstance(held, OnDisk) and held.file is file:
            return held
        return _moved(held, file.empty())

    def residues(self, held: Mapping[tuple[int, int], Vectors]) -> ResiduesOnDisk:
        """What transforms keep, moved to this disk if it is not there."""
        if isinstance(held, ResiduesOnDisk) and held.disk is self:
            return held
        return _moved(held, ResiduesOnDisk(self, {}, {}))

    def __getstate__(self) -> Any:
        raise TypeError("files are not copied")


H = TypeVar("H", OnDisk, ResiduesOnDisk)


def _moved(held: Mapping[Any, Vectors], to: H) -> H:
    keys = list(held)
    for first in range(0, len(keys), BLOCK):
        to = to.updated({key: held[key] for key in keys[first : first + BLOCK]})
    return to


def in_memory(held: Mapping[K, Vectors]) -> Mapping[K, Vectors]:
    """The same, read from the disk if it is there."""
    if not isinstance(held, OnDisk | ResiduesOnDisk):
        return held
    return dict(cast(Mapping[K, Vectors], held))


def updated(held: Mapping[K, Vectors], new: Mapping[K, Vectors]) -> Mapping[K, Vectors]:
    """What is kept, and what is kept anew in its place; ``held`` stays as it is.

    >>> updated({1: Vectors()}, {2: Vectors()})
    {1: Vectors(), 2: Vectors()}
    """
    if not new:
        return held
    if isinstance(held, OnDisk | ResiduesOnDisk):
        return held.updated(new)  # type: ignore[arg-type, return-value]
    return {**held, **new}


def row_files(held: Iterable[Mapping[Any, Vectors]]) -> dict[str, OnDisk]:
    """The versions among these that are on disk, by the names of their files."""
    found: dict[str, OnDisk] = {}
    for each in held:
        if isinstance(each, OnDisk):
            found["memory"] = each
        elif isinstance(each, ResiduesOnDisk):
            found |= {f"residue.{place}": rows for place, rows in each.places.items()}
    return found


def _digest(content: bytes | bytearray) -> bytes:
    return hashlib.sha256(content).digest()[:DIGEST]
