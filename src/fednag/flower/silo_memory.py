"""What a silo keeps between rounds.

It lives in ``context.state``, which ends with the SuperNode and with the run. With
``memory-folder`` in the ``node_config`` it is on the silo's disk too, and survives both. Memories
are labelled with the round they come from: the server says which of a silo's rounds it used last,
so an update that never arrived leaves no trace in the memory. What transforms leave out is kept
beside it, for each of a round's exchanges.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from flwr.app import RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save

from fednag.core.files import os_errors, write_atomically
from fednag.core.vectors import Vectors
from fednag.flower.protocol import Refusal, pack, unpack

KEPT = 2  # rounds that were used: the server may go back to the one before its last
TOKEN = re.compile(r"[0-9a-f]{32}")
MEMORY = "memory"


class Memory:
    """What one silo keeps of one kind in one run: its memory, or an exchange's residue."""

    def __init__(
        self,
        state: RecordDict,
        node_config: Mapping[str, Any],
        token: str,
        first: Vectors,
        kind: str = MEMORY,
    ) -> None:
        if not TOKEN.fullmatch(token):
            raise Refusal("the run has no proper token")
        self.state, self.first, self.prefix = state, first, f"{kind}."
        folder = node_config.get("memory-folder")
        name = token if kind == MEMORY else f"{token}/{kind}"
        self.folder = Path(str(folder)) / name if folder else None

    def after(self, number: int) -> tuple[Vectors, bool]:
        """The memory after round ``number`` (0: before the first); and whether it was lost."""
        if not self.first or not number:
            return self.first, False
        key = f"{self.prefix}{number}"
        if key in self.state.array_records:
            return unpack(self.state.array_records[key], self.first), False
        found = self._on_disk(number)
        if found is None or not _alike(found, self.first):
            return self.first, True
        return found, False

    def keep(self, number: int, kept: Vectors, accepted: int) -> None:
        """Keep this one and those the server may ask for, who used that of ``accepted`` last."""
        if not self.first:
            return
        self.state[f"{self.prefix}{number}"] = pack(kept)
        for old in _unwanted(self._rounds(), number, accepted):
            del self.state[f"{self.prefix}{old}"]
        if self.folder is None:
            return
        unkept = "the silo's memory cannot be kept there"
        with os_errors(self.folder, unkept, "give another memory-folder"):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            content = save({name: vector.cpu().contiguous() for name, vector in kept.items()})
            write_atomically(self.folder / f"{number:09}.safetensors", content)
            found = {int(path.stem): path for path in self.folder.glob("*.safetensors")}
            for old in _unwanted(sorted(found), number, accepted):
                found[old].unlink()

    def _on_disk(self, number: int) -> Vectors | None:
        if self.folder is None:
            return None
        try:
            return Vectors(**load((self.folder / f"{number:09}.safetensors").read_bytes()))
        except (OSError, SafetensorError, ValueError, RuntimeError):
            return None

    def _rounds(self) -> list[int]:
        keys = [key for key in self.state.array_records if key.startswith(self.prefix)]
        return sorted(int(key.removeprefix(self.prefix)) for key in keys)


def mark(number: int) -> Vectors:
    """What the server keeps in place of what a silo keeps: the round it comes from."""
    return Vectors(accepted=torch.tensor([number]))


def accepted(mark: Vectors | None) -> int:
    """The last round of a silo whose update was used, as the server knows it; 0 for none."""
    return int(mark.accepted) if mark is not None else 0


def _unwanted(rounds: list[int], number: int, accepted: int) -> set[int]:
    """Those never used, or of a training before this; and of those used all but the last few."""
    used = [old for old in rounds if old <= accepted]
    return {*rounds} - {*used[-KEPT:], number}


def _alike(found: Vectors, first: Vectors) -> bool:
    if set(found) != set(first):
        return False
    return all(
        found[name].shape == vector.shape and found[name].dtype == vector.dtype
        for name, vector in first.items()
    )
