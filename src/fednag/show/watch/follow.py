"""The runs under a folder, as they are now; only what has changed is read again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

from fednag.errors import FednagError
from fednag.runs.folder import RunFolder
from fednag.runs.view import RunView

RECENT = 20  # records from which the pace of a run is taken

Stamp = tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """What there is at one moment."""

    views: list[RunView]  # running ones first, then the newest
    failed: list[str]  # a sentence for each that cannot be read
    tag: str  # changes when anything does

    @property
    def running(self) -> int:
        return sum(view.running for view in self.views)


@dataclass
class Follower:
    """Looks at a folder of runs."""

    root: Path
    _known: dict[Path, tuple[Stamp, RunView | str]] = field(default_factory=dict)

    def look(self) -> Look:
        known: dict[Path, tuple[Stamp, RunView | str]] = {}
        for path in self._folders():
            stamp = _stamp(path)
            before = self._known.get(path)
            if before is None or before[0] != stamp:
                known[path] = stamp, _read(path)
            else:
                known[path] = stamp, _still(before[1])
        self._known = known
        found = [content for _, content in known.values()]
        views = [content for content in found if isinstance(content, RunView)]
        views.sort(key=lambda s: s.started, reverse=True)
        views.sort(key=lambda s: not s.running)
        state = [(str(path), stamp, _state(content)) for path, (stamp, content) in known.items()]
        tag = hashlib.sha256(repr(sorted(state)).encode()).hexdigest()[:16]
        return Look(views, [content for content in found if isinstance(content, str)], tag)

    def _folders(self) -> list[Path]:
        try:
            root = self.root.resolve()
            below = {file.parent for file in self.root.rglob("run.json")}
            # A link may lead elsewhere; what is not under the folder is not shown.
            return sorted(path for path in below if path.resolve().is_relative_to(root))
        except OSError:
            return []


def _stamp(path: Path) -> Stamp:
    found: list[int] = []
    for name in ("records.jsonl", "run.json", "config.toml"):
        try:
            status = (path / name).stat()
            found += [status.st_size, status.st_mtime_ns]
        except OSError:
            found += [-1, -1]
    return tuple(found)


def _read(path: Path) -> RunView | str:
    try:
        return RunView.read(RunFolder(path))
    except FednagError as error:
        return str(error)
    except OSError as error:  # removed while it was being read
        return f"{path}: cannot be read ({error.strerror or error}); check its permissions"


def _still(content: RunView | str) -> RunView | str:
    """A run that was running may have been killed: nothing in its files says so."""
    if isinstance(content, str) or not content.running or content.folder is None:
        return content
    if RunFolder(content.folder).is_being_written:
        return content
    return replace(content, running=False)


def _state(content: RunView | str) -> str:
    return content if isinstance(content, str) else f"{content.running} {content.ended}"


def pace(view: RunView) -> float | None:
    """Rounds a second, lately; None before there is something to tell it from."""
    recent = view.records[-RECENT:]
    if len(recent) < 2 or recent[-1].seconds <= recent[0].seconds:
        return None
    return (recent[-1].round - recent[0].round) / (recent[-1].seconds - recent[0].seconds)


def seconds_left(view: RunView) -> float | None:
    """Until a run's last round, at its present pace."""
    speed = pace(view)
    if not view.running or not speed or view.planned is None:
        return None
    return max(0, view.planned - view.rounds) / speed
