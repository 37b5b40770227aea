"""What a silo keeps between rounds.

It lives in ``context.state``, which ends with the SuperNode and with the run. With
``memory-folder`` in the ``node_config`` it is on the silo's disk too, and survives both. Memories
are labelled with the round they come from: the server says which of a silo's rounds it used last,
so an update that never arrived leaves no trace in the memory.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app import RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from fednag.core.executor import Memories
from fednag.core.files import os_errors, write_atomically
from fednag.core.vectors import Vectors
from fednag.flower.protocol import Refusal, pack, unpack

KEPT = 3  # rounds: the server may go back to the one before its last
TOKEN = re.compile(r"[0-9a-f]{32}")
PREFIX = "memory."


class Memory:
    """The memories of one silo in one run, newest few."""

    def __init__(
        self, state: RecordDict, node_config: Mapping[str, Any], token: str, first: Vectors
    ) -> None:
        if not TOKEN.fullmatch(token):
            raise Refusal("the run has no proper token")
        self.state, self.first = state, first
        folder = node_config.get("memory-folder")
        self.folder = Path(str(folder)) / token if folder else None

    def after(self, number: int) -> tuple[Vectors, bool]:
        """The memory after round ``number`` (0: before the first); and whether it was lost."""
        if not self.first or not number:
            return self.first, False
        key = f"{PREFIX}{number}"
        if key in self.state.array_records:
            return unpack(self.state.array_records[key], self.first), False
        found = self._on_disk(number)
        if found is None or not _alike(found, self.first):
            return self.first, True
        return found, False

    def keep(self, number: int, kept: Vectors) -> None:
        if not self.first:
            return
        self.state[f"{PREFIX}{number}"] = pack(kept)
        rounds = _rounds(self.state.array_records)
        before = [old for old in rounds if old <= number]
        for old in {*rounds} - {*before[-KEPT:]}:  # later ones are of a training before this
            del self.state[f"{PREFIX}{old}"]
        if self.folder is None:
            return
        unkept = "the silo's memory cannot be kept there"
        with os_errors(self.folder, unkept, "give another memory-folder"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            content = save({name: vector.cpu().contiguous() for name, vector in kept.items()})
            write_atomically(self.folder / f"{number:09}.safetensors", content)
            for path in sorted(self.folder.glob("*.safetensors"))[:-KEPT]:
                path.unlink()

    def _on_disk(self, number: int) -> Vectors | None:
        if self.folder is None:
            return None
        try:
            return Vectors(**load((self.folder / f"{number:09}.safetensors").read_bytes()))
        except (OSError, SafetensorError, ValueError, RuntimeError):
            return None


def accepted(memories: Memories, silo: int) -> int:
    """The last round of a silo whose update was used, as the server knows it; 0 for none."""
    return int(memories[silo].accepted) if silo in memories else 0


def _alike(found: Vectors, first: Vectors) -> bool:
    if set(found) != set(first):
        return False
    return all(
        found[name].shape == vector.shape and found[name].dtype == vector.dtype
        for name, vector in first.items()
    )


def _rounds(records: Mapping[str, Any]) -> list[int]:
    return sorted(int(key.removeprefix(PREFIX)) for key in records if key.startswith(PREFIX))
