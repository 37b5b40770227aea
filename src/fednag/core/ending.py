"""How a run ended, as a value: what programs ask, and the sentence that people read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal[
    "finished", "diverged", "target", "patience", "plateau", "seconds", "privacy", "budget"
]


@dataclass(frozen=True)
class Ending:
    """Why a run is over.

    ``value`` is the level that ``measure`` reached ("target"), the evaluations in which it got no
    better ("patience") or hardly better ("plateau"), the seconds that were allowed ("seconds"), the
    epsilon that was ("privacy") or the budget of ``measure`` ("budget"): another round would have
    spent more.

    >>> print(Ending("target", 40, "accuracy", 0.9))
    accuracy 0.9 reached at iteration 40
    """

    kind: Kind
    iteration: int | None = None
    measure: str | None = None
    value: float | None = None

    def __str__(self) -> str:
        at = "" if self.iteration is None else f" at iteration {self.iteration}"
        if self.kind == "diverged":
            return f"diverged{at}"
        if self.kind == "target":
            return f"{self.measure} {self.value:g} reached{at}"
        if self.kind == "patience":
            plural = "" if self.value == 1 else "s"
            return f"no better {self.measure} in {self.value:.0f} evaluation{plural},{at}"
        if self.kind == "plateau":
            return f"{self.measure} has levelled off in {self.value:.0f} evaluations,{at}"
        if self.kind == "privacy":
            return f"the epsilon of {self.value:g} is spent{at}"
        if self.kind == "budget":
            return f"the budget of {self.value:g} {self.measure} is spent{at}"
        return f"{self.value:g} seconds are over{at}" if self.kind == "seconds" else "finished"
