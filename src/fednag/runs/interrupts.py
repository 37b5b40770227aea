"""Ctrl-C, SIGTERM and a closed terminal, noted at once and obeyed when a round is over."""

from __future__ import annotations

import signal
import sys
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


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
        for kind in SIGNALS:
            if signal.getsignal(kind) is not signal.SIG_IGN:  # as under nohup
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
        with suppress(OSError):  # where the terminal is gone
            print("fednag: finishing the round to save it (again: stop at once)", file=sys.stderr)
