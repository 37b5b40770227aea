"""``ledger.jsonl`` of a run: what travelled, an entry a line.

Each entry holds the hash of the one before, the SHA-256 of its line: a byte that is changed
anywhere breaks the chain. Entries are only ever added. A run that goes on says so in an entry, and
plays the rounds after its checkpoint again: those that were written before count no more, and stay
in the chain. How many entries there were, and the hash of the last (the head), stand in the
checkpoints and in run.json, so that a ledger that was cut short is noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fednag.core.digests import canonical, parsed
from fednag.core.files import os_errors, sync
from fednag.errors import FednagError
from fednag.runs.folder import OVER, RunFolder

FORMAT = 1
FIRST = "0" * 64  # what the first entry holds for the hash of the one before
SIGNED = ("round", "stage", "sent", "up", "samples", "steps")
# What an entry of a kind has at least.
TYPES: dict[str, dict[str, type]] = {
    "run": {"format": int, "run": str, "identity": str, "config": str},
    "key": {"worker": int, "key": str},
    "upload": {"stage": int, "worker": int, "sent": str, "status": str},
    "round": {"aggregates": list, "server": str},
    "anchor": {"head": str, "receipt": str},
    "resumed": {},
}
LINE = 1 << 16  # characters an entry may take at most

Entry = dict[str, Any]
Anchor = Callable[[dict[str, Any]], Any]
"""Takes run, round, entries and head; what it returns is written down as its receipt."""
IsSigned = Callable[[str, bytes, str], bool]
"""Whether (a public key, a content, a signature) belong together."""


def hash_of(line: str) -> str:
    return hashlib.sha256(line.encode()).hexdigest()


@dataclass(frozen=True)
class Head:
    """Where a chain had come to."""

    entries: int
    head: str


class Ledger:
    """The ledger of a run that is being written."""

    def __init__(self, folder: RunFolder, anchor: Anchor | None = None) -> None:
        self.path, self.anchor = file_of(folder), anchor
        self.head = Head(0, FIRST)
        self.run = ""
        self.keys: dict[int, str] = {}
        self.failed: str | None = None  # why the anchor did not take a head

    def begin(self, about: Mapping[str, Any]) -> None:
        """The first entry: which run this is."""
        self.run = str(about["run"])
        self._add([{"kind": "run", "format": FORMAT, **about}])

    def go_on(self, folder: RunFolder, about: Mapping[str, Any], round_: int) -> None:
        """After a kill: the same chain, from a round on; raises a sentence if it is damaged."""
        found = verify(folder)
        if found.fault:
            raise found.fault.error("restore the file, or start a new run")
        if not found.entries:
            self.begin(about)
            return
        with self.path.open("rb+") as file:
            file.truncate(found.size)  # what follows was cut short, and never was an entry
        self.head, self.run = found.head, str(found.entries[0]["run"])
        self.keys = keys_of(found.entries)
        self.again(round_)

    def again(self, round_: int, plain: str | None = None) -> None:
        """From here on, the rounds after this one are played again, if so with the plain loop."""
        self._add([{"kind": "resumed", "round": round_, **({"plain": plain} if plain else {})}])

    def write(self, entries: Iterable[Mapping[str, Any]], keys: Mapping[int, str]) -> None:
        """The entries of a round, after the keys of workers who are new."""
        new = {worker: key for worker, key in keys.items() if worker not in self.keys}
        self.keys |= new
        lines: list[Entry] = [{"kind": "key", "worker": i, "key": new[i]} for i in sorted(new)]
        lines += map(dict, entries)
        if lines:
            self._add(lines)
        if self.anchor and lines and lines[-1]["kind"] == "round":
            self._anchored(self.anchor, lines[-1]["round"])

    def mark(self) -> dict[str, Any]:
        """The head, once all before it is on the disk itself."""
        sync(self.path)
        return asdict(self.head)

    def _anchored(self, anchor: Anchor, round_: int) -> None:
        head = asdict(self.head)
        try:
            receipt = anchor({"run": self.run, "round": round_, **head})
        except Exception as error:  # whatever a function of the user's own raises
            self.failed = f"round {round_}: {type(error).__name__}: {error}"[:200]
            return
        self._add([{"kind": "anchor", "round": round_, **head, "receipt": str(receipt)[:1000]}])

    def _add(self, entries: Sequence[Entry]) -> None:
        lines, (number, head) = [], (self.head.entries, self.head.head)
        for entry in entries:
            number += 1
            lines.append(canonical({"entry": number, "before": head, **entry}))
            head = hash_of(lines[-1])
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(f"{line}\n" for line in lines))
        self.head = Head(number, head)


def file_of(folder: RunFolder) -> Path:
    return folder.path / "ledger.jsonl"


@dataclass(frozen=True)
class Fault:
    """The first entry that is not as it was written, and why."""

    file: str
    entry: int
    kind: str  # changed, missing, moved, added, cut off, signature, other
    why: str

    def __str__(self) -> str:
        return str(self.error())

    def error(self, remedy: str = "") -> FednagError:
        return FednagError(Path(self.file), f"entry {self.entry} {self.why}", remedy)


@dataclass(frozen=True)
class Verified:
    """A ledger that was read, and what is wrong with it, if anything is."""

    entries: list[Entry] = field(default_factory=list)
    head: Head = field(default_factory=lambda: Head(0, FIRST))
    size: int = 0  # bytes of whole entries
    fault: Fault | None = None
    signed: int = 0
    sealed: bool = False  # the run is over, and its last entry is known
    hashes: tuple[str, ...] = ()


def verify(folder: RunFolder, is_signed: IsSigned | None = None) -> Verified:
    """Check the chain and its head; with ``is_signed``, the signatures too."""
    path = file_of(folder)
    info = folder.info()
    over, heads = info.get("status") in OVER, _heads(folder, info)
    if not heads and not path.exists():
        remedy = "set ledger.kind = 'chain' before it begins"
        raise FednagError(folder.path, "this run keeps no ledger", remedy)
    with os_errors(path, "cannot be read", "check its permissions"):
        text = path.read_bytes().decode("utf-8", "replace") if path.exists() else ""
    *lines, rest = text.split("\n")
    if rest and over:  # nothing is being written any more
        lines.append(rest)
    hashes = [hash_of(line) for line in lines]
    entries = [_parsed(line) for line in lines]
    found = _broken(entries, hashes, heads[-1] if over and heads else None)
    if found is None:
        # Of a run that is over, the last head says how many entries there are.
        ends = [over and place == len(heads) for place in range(1, len(heads) + 1)]
        lost = map(lambda head, end: _lost(hashes, head, end), heads, ends)
        found = next((wrong for wrong in lost if wrong), None)
    found = found or _misplaced(entries)
    if is_signed and found is None:
        found = _unsigned(entries, is_signed)
    signed = 0 if found else sum("signature" in entry for entry in entries)
    fault = Fault(str(path), *found) if found else None
    size = sum(len(line.encode()) + 1 for line in lines)
    head = Head(len(hashes), hashes[-1] if hashes else FIRST)
    return Verified(entries, head, size, fault, signed, over and bool(heads), tuple(hashes))


Found = tuple[int, str, str] | None
"""(entry, kind, why) of what is wrong."""


def _broken(entries: Sequence[Entry], hashes: Sequence[str], final: Head | None) -> Found:
    """The first entry that does not fit its neighbours.

    Where entry i does not hold the hash of the one before it, one of the two is wrong: i is right
    if the next entry (or the head) holds its hash, for then the change was made before it.
    """
    before = FIRST
    for place, entry in enumerate(entries):
        if _before(entry) == before and entry.get("entry") == place + 1:
            before = hashes[place]
            continue
        last = place + 1 == len(entries)
        after = (final.head if final else hashes[place]) if last else _before(entries[place + 1])
        number = entry.get("entry")
        if after != hashes[place]:
            if isinstance(number, int) and number != place + 1 and _known(entries, number, place):
                return place + 1, "moved", f"is out of its place: entry {number} stands there"
            return place + 1, "changed", "is not as it was written, or was added"
        follows = [q for q, own in enumerate((FIRST, *hashes)) if own == _before(entry)]
        if follows and follows[0] < place:
            return follows[0] + 1, "added", "was added: the one after it does not know of it"
        if follows:
            return place + 1, "moved", f"is out of its place: it stands on line {follows[0]}"
        if number == place + 1 and place:
            return place, "changed", "is not as it was written"
        return place + 1, "missing", "is missing"
    return None


def _before(entry: Entry) -> str:
    return str(entry.get("before"))


def _known(entries: Sequence[Entry], number: int, place: int) -> bool:
    """Whether the entry that follows entry ``number`` is somewhere else in the file."""
    return any(e.get("entry") == place + 1 for i, e in enumerate(entries) if i != place)


def _lost(hashes: Sequence[str], head: Head, over: bool) -> Found:
    """Whether the chain has the head that was kept, and no more once the run is over."""
    if len(hashes) < head.entries:
        return (
            len(hashes) + 1,
            "cut off",
            f"and all after it are cut off: there were {head.entries}",
        )
    if head.entries and hashes[head.entries - 1] != head.head:
        return head.entries, "changed", "is not the one that run.json and checkpoints know"
    if over and len(hashes) > head.entries:
        return head.entries + 1, "added", "was added after the run was over"
    return None


def _misplaced(entries: Sequence[Entry]) -> Found:
    """A chain that no run writes: rounds go up by one, from where the run was resumed."""
    done = 0
    for place, entry in enumerate(entries):
        kind, number = str(entry.get("kind")), entry.get("round")
        due = {"upload": number == done + 1, "round": number == done + 1, "anchor": number == done}
        is_back = kind == "resumed" and type(number) is int and 0 <= number <= done
        fits = (kind in ("run", "key") and number is None) or due.get(kind, is_back)
        typed = all(type(entry.get(name)) is its for name, its in TYPES.get(kind, {}).items())
        if not fits or not typed or (place == 0) != (kind == "run"):
            return place + 1, "other", "is none that a run writes there"
        if kind in ("round", "resumed"):
            done = int(entry["round"])
    return None


def _unsigned(entries: Sequence[Entry], is_signed: IsSigned) -> Found:
    """The first upload whose worker has a key, and that the worker has not signed."""
    keys: dict[int, str] = {}
    for place, entry in enumerate(entries):
        given = entry["key"] if entry["kind"] == "key" else None
        if given and keys.setdefault(entry["worker"], given) != given:
            return place + 1, "signature", f"has another key of worker {entry['worker']}"
        key = keys.get(entry["worker"]) if entry["kind"] == "upload" else None
        signature = entry.get("signature")
        if key is None or (entry["status"] != "used" and signature is None):
            continue
        if signature is None or not is_signed(key, statement(entries[0]["run"], entry), signature):
            return place + 1, "signature", f"is not signed by worker {entry['worker']}"
    return None


def statement(run: str, entry: Mapping[str, Any]) -> bytes:
    """What a worker signs of its entry."""
    told = {name: entry.get(name) for name in SIGNED}
    return canonical({"run": run, "worker": entry["worker"], **told}).encode()


def keys_of(entries: Iterable[Entry]) -> dict[int, str]:
    """The public keys that workers were registered with."""
    return {entry["worker"]: entry["key"] for entry in entries if entry.get("kind") == "key"}


def rounds_of(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    """The entries of each round; where rounds were played again, those that count."""
    found: dict[int, list[Entry]] = {}
    for entry in entries:
        if entry["kind"] == "resumed":
            found = {number: old for number, old in found.items() if number <= entry["round"]}
        elif entry["kind"] in ("upload", "round"):
            found.setdefault(entry["round"], []).append(entry)
    return {number: own for number, own in found.items() if own[-1]["kind"] == "round"}


def _heads(folder: RunFolder, info: Mapping[str, Any]) -> list[Head]:
    """What run.json and the checkpoints know of the chain."""
    found = []
    for table in (info.get("ledger"), *(saved.get("ledger") for saved in folder.saved())):
        with suppress(TypeError, ValueError):
            head = Head(**table)  # type: ignore[arg-type]
            found.append(Head(int(head.entries), str(head.head)))
    return sorted(found, key=lambda head: head.entries)


def _parsed(line: str) -> Entry:
    """An entry; nothing where a line is none."""
    try:
        entry = parsed(line) if len(line) <= LINE else None
    except ValueError:
        entry = None
    return entry if isinstance(entry, dict) else {}
