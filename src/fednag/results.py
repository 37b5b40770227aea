"""What a run or a comparison gives back to Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fednag.core.record import Record
from fednag.runs.outcome import Outcome
from fednag.show.cell import cell
from fednag.show.sheets import Sheet
from fednag.show.tables import Curve, ranked, render

if TYPE_CHECKING:
    from altair import TopLevelMixin


@dataclass(frozen=True, eq=False)
class Run(Outcome):
    """A run that is over.

    >>> import fednag
    >>> run = fednag.run("fednag", model="logistic", tau=5, iterations=10)
    >>> run.label, run.ended, [record.iteration for record in run.records]
    ('fednag', 'finished', [0, 5, 10])
    """

    @classmethod
    def of(cls, outcome: Outcome) -> Run:
        return cls(**vars(outcome))

    @property
    def curve(self) -> Curve:
        seed = self.experiment.seed
        return Curve(self.label, seed, self.records, self.ended, self.diverged)

    def plot(self) -> TopLevelMixin:
        """An altair chart of loss and accuracy; shows itself in a notebook, or ``.save(path)``."""
        return _plot([self.curve])

    def _repr_html_(self) -> str:
        return cell([self.curve])

    def report(self, path: str | Path = "report.html") -> Path:
        """Write a page with charts, settings and how to repeat it; it needs no network."""
        return _report([self], path)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Several runs beside each other.

    >>> import fednag
    >>> result = fednag.compare(["fednag", "fedavg"], model="logistic", tau=5, iterations=10)
    >>> result.best.label
    'fednag'
    >>> [line.split()[0] for line in str(result).splitlines()]  # ranked
    ['method', 'fednag', 'fedavg']
    """

    runs: list[Run]

    @property
    def records(self) -> dict[str, list[Record]]:
        """Records by label; with several seeds, ``label#seed``."""
        several = len({run.experiment.seed for run in self.runs}) > 1
        suffix = "#{}" if several else ""
        return {run.label + suffix.format(run.experiment.seed): run.records for run in self.runs}

    @property
    def best(self) -> Run:
        """The run with the highest final accuracy (regression: the lowest final loss)."""
        order = [row.label for row in ranked([run.curve for run in self.runs])]
        return min(self.runs, key=lambda run: order.index(run.label))

    def plot(self) -> TopLevelMixin:
        """An altair chart of loss and accuracy, a colour a method."""
        return _plot([run.curve for run in self.runs])

    def _repr_html_(self) -> str:
        """In a notebook: the ranked table, and the chart as a picture."""
        return cell([run.curve for run in self.runs])

    def report(self, path: str | Path = "report.html") -> Path:
        """Write a page with ranking, charts and settings; one file that needs no network."""
        return _report(self.runs, path)

    def __getitem__(self, label: str) -> Run:
        for run in self.runs:
            if run.label == label:
                return run
        raise KeyError(f"no run {label!r}; there are {', '.join(self.records)}")

    def __str__(self) -> str:
        return render(ranked([run.curve for run in self.runs]))

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(dict.fromkeys(run.label for run in self.runs))}>"


def _plot(curves: list[Curve]) -> TopLevelMixin:
    from fednag.show.charts import curves_chart

    chart: TopLevelMixin = curves_chart(curves)
    return chart


def sheets(runs: Sequence[Run]) -> list[Sheet]:
    """Runs as a report sees them."""
    return [
        Sheet(
            run.curve,
            run.experiment.model_dump(exclude_none=True),
            {**run.about, "notes": run.notes},
            run.folder,
        )
        for run in runs
    ]


def _report(runs: Sequence[Run], path: str | Path) -> Path:
    from fednag.show.document import document
    from fednag.show.page import write_page

    return write_page(document(sheets(runs)), Path(path))
