"""A run on a federation, watched while it goes on: for benchmarks/deployment.py."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from fednag.errors import FednagError
from fednag.flower.local import Federation

PATIENCE = 1800.0  # seconds a run may take


def say(text: str) -> None:
    print(f"    {text}", file=sys.stderr, flush=True)


def model_of(folder: Path) -> torch.Tensor:
    found = load_file(folder / "final.safetensors")
    return torch.cat([found[name].reshape(-1) for name in sorted(found)])


class Submitted:
    """A run, watched: what it said, and where it writes."""

    def __init__(self, running: Federation, tables: dict[str, Any]) -> None:
        self.running, self.tables = running, tables
        self.folder: Path | None = None
        self.error: str | None = None
        self.round = -1
        self._thread = threading.Thread(target=self._go, daemon=True)
        self.began = time.monotonic()
        self._thread.start()

    def _go(self) -> None:
        try:
            self.running.submit(self.tables, self._hear)
        except FednagError as error:
            self.error = str(error)

    def _hear(self, line: str) -> None:
        say(line)
        if line.startswith("writing "):
            self.folder = Path(line.removeprefix("writing "))
        if line.startswith("round ") and "/" in line.split(",")[0]:
            self.round = int(line.split()[1].split("/")[0])

    def after(self, number: int, seconds: float = PATIENCE) -> None:
        """Wait until a round is over."""
        until = time.monotonic() + seconds
        while self.round < number and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.1)

    def end(self, seconds: float = PATIENCE) -> None:
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise SystemExit("a run did not end")
        self.seconds = time.monotonic() - self.began
