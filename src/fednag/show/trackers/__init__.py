"""Runs' records in the formats of other tools; each adapter needs the extra of its name."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.util import find_spec

from fednag.core.record import Record
from fednag.errors import not_installed
from fednag.runs.view import RunView

MEASURES = (
    *("loss", "test_loss", "accuracy", "train_accuracy"),
    *("bytes_up", "bytes_down", "round", "participants"),
)


def scalars(record: Record) -> dict[str, float]:
    """What a record measured, by name; what it did not measure is left out."""
    found = {name: getattr(record, name) for name in (*MEASURES, "seconds")}
    found |= record.metrics
    return {name: float(value) for name, value in found.items() if value is not None}


def began(view: RunView) -> float:
    """When a run began, in seconds since 1970; 0 if it does not say."""
    try:
        moment = datetime.fromisoformat(view.started)
    except ValueError:
        return 0.0
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def name_of(view: RunView) -> str:
    """The experiment a run belongs to."""
    return str(view.config.get("name") or "fednag")


def needs(module: str, extra: str) -> None:
    if find_spec(module) is None:
        raise not_installed(extra, extra)
