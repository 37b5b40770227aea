"""What is recorded of a run at every evaluation: all that tables and figures are made from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

MAY_BE_NONE = ("loss", "accuracy", "train_accuracy", "test_loss")


@dataclass(frozen=True)
class RoundFacts:
    """A round that was not the plain one: other workers, other steps or other bytes."""

    round: int
    down: int  # bytes, all together
    up: int
    cohort: tuple[int, ...] | None = None  # None: those the seed draws
    steps: tuple[int, ...] | None = None  # of each of them; None: tau
    # Bytes of one worker's download and upload in each exchange, where the sums do not tell.
    stages: tuple[tuple[int, int], ...] | None = None

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> RoundFacts:
        """From a table of JSON."""
        listed = {n: tuple(table[n]) for n in ("cohort", "steps") if table.get(n) is not None}
        if table.get("stages") is not None:
            listed["stages"] = tuple((down, up) for down, up in table["stages"])
        return cls(**{**table, **listed})


def expected_rounds(planned: int, iterations: int, done: tuple[int, int]) -> int:
    """How many rounds a run will have; ``done`` are its rounds and iterations so far.

    ``planned`` are those of tau local iterations each; a controller may have ordered others.
    """
    rounds, iteration = done
    return max(rounds, -(-rounds * iterations // iteration)) if iteration else planned


@dataclass(frozen=True)
class Record:
    """One evaluation. Bytes and seconds count from the start of the run."""

    iteration: int
    round: int
    loss: float | None  # global training loss; None once the run has diverged
    accuracy: float | None  # on the test set; None without one, or for regression
    train_accuracy: float | None
    bytes_up: int
    bytes_down: int
    seconds: float
    participants: int  # workers who answered in this round
    worker_losses: tuple[float, ...] | None = None
    refusals: int = 0  # updates refused since the start of the run: not finite, or too long
    refused: tuple[int, ...] = ()  # whose, since the record before this one
    clock: float | None = None  # simulated seconds since the start; None without a clock
    misses: int = 0  # workers left out since the start, for they were late or could not be reached
    missed: tuple[int, ...] = ()  # who, since the record before this one
    test_loss: float | None = None  # mean over the test samples; None without any
    # On the test set, those that were asked for; None where one is not defined.
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    # Since the record before this one. A plain round is not listed: its workers are those the seed
    # draws, and they did tau local iterations each.
    rounds: tuple[RoundFacts, ...] = ()
    # On the test samples, at the end of a run that was evaluated on a validation part.
    tested: Mapping[str, float | None] = field(default_factory=dict)
    epsilon: float | None = None  # spent since the start; None where no privacy is promised
    # Bytes (down, up) of each tier, that of workers and their edges first; () without edges.
    tiers: tuple[tuple[int, int], ...] = ()

    def measured(self, measure: str) -> float | None:
        """The loss, the accuracy or a metric, by its name; None if it was not measured."""
        found: float | None = (
            getattr(self, measure) if measure in MAY_BE_NONE else self.metrics.get(measure)
        )
        return found

    def as_json(self) -> str:
        fields = asdict(self)
        if self.test_loss is None:
            del fields["test_loss"]
        if not self.metrics:
            del fields["metrics"]
        if not self.tested:
            del fields["tested"]
        if not self.rounds:
            del fields["rounds"]
        for each in fields.get("rounds", ()):
            if each["stages"] is None:
                del each["stages"]
        if self.epsilon is None:
            del fields["epsilon"]
        if not self.tiers:
            del fields["tiers"]
        if self.worker_losses is None:
            del fields["worker_losses"]
        if not self.refusals:
            del fields["refusals"], fields["refused"]
        if self.clock is None:
            del fields["clock"]
        if not self.misses:
            del fields["misses"], fields["missed"]
        return json.dumps(fields, allow_nan=False)
