"""What a run on Flower tells the command that started it: a line of JSON for each event.

Of what an app prints, Flower hands on the text alone, among lines of its own. So the command names
a file in the environment, which the server app's process inherits, and reads the facts there.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from fednag.flower import logs

JOURNAL = "FEDNAG_JOURNAL"


def note(**facts: Any) -> None:
    """Write facts down, if somebody reads them."""
    if path := os.environ.get(JOURNAL):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(facts) + "\n")


def say(text: str, level: str = "info") -> None:
    """A line, written down too."""
    show(text, level)
    note(said=text)


def show(text: str, level: str = "info") -> None:
    """A line for people; where logs are JSON, for programs."""
    plain = f"fednag: {text}"
    print(logs.line(text, level, logger="fednag") if logs.wanted() else plain, flush=True)
