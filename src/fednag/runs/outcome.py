"""The result of a run that is over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fednag.config import Experiment
from fednag.core.ending import Ending
from fednag.core.record import Record


@dataclass(frozen=True, eq=False)
class Outcome:
    """A run that is over: its records and models, and what there is to say of it."""

    label: str
    experiment: Experiment
    records: list[Record]
    best: nn.Module  # w^f: the aggregated model of least global loss
    final: nn.Module  # the last aggregated model
    ending: Ending
    folder: Path | None = None
    notes: list[str] = field(default_factory=list)
    about: Mapping[str, Any] = field(default_factory=dict)  # versions, sizes, who held what

    @property
    def ended(self) -> str:
        """'finished', or why it stopped earlier, in a few words."""
        return str(self.ending)

    @property
    def diverged(self) -> bool:
        return self.ending.kind == "diverged"

    def __repr__(self) -> str:
        last = self.records[-1]
        loss = "diverged" if last.loss is None else f"loss {last.loss:.4f}"
        accuracy = "" if last.accuracy is None else f", accuracy {last.accuracy:.2%}"
        known = {name: value for name, value in last.metrics.items() if value is not None}
        accuracy += "".join(f", {name} {value:.4g}" for name, value in known.items())
        told = f"{last.iteration} iterations, {loss}{accuracy}, {self.ended}"
        return f"<{type(self).__name__} {self.label}: {told}>"
