"""Ctrl-C and SIGTERM, taken note of at once and obeyed when a round is over."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Any


class Interrupted(Exception):  # noqa: N818 (it is no error)
    """A run was asked to stop, and has been saved."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(sentence)
        self.number = number


class Watch:
    """While it is entered, a first signal is kept in ``number``; a second one ends at once."""

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Watch:
        for kind in (signal.SIGINT, signal.SIGTERM):
            self._before[kind] = signal.signal(kind, self._caught)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            raise KeyboardInterrupt
        self.number = number
        print("fednag: finishing the round to save it (once more to stop at once)", file=sys.stderr)
