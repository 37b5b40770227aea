"""What a run or a comparison gives back to Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fednag.core.record import Record
from fednag.runs.outcome import Outcome
from fednag.runs.statistics import ranked
from fednag.runs.view import RunView
from fednag.show.notebook import cell
from fednag.show.tables import render

if TYPE_CHECKING:
    from altair import TopLevelMixin


class Shown:
    """One run or several, which draw themselves in a notebook."""

    @property
    def views(self) -> list[RunView]:
        raise NotImplementedError

    def plot(self) -> TopLevelMixin:
        """An altair chart of loss and accuracy, a colour a method; or ``.save(path)`` it."""
        from fednag.show.charts import curves_chart

        chart: TopLevelMixin = curves_chart(self.views)
        return chart

    def report(self, path: str | Path = "report.html") -> Path:
        """Write a page with ranking, charts, settings and how to repeat it; it needs no network."""
        from fednag.show.document import document, write_page

        return write_page(document(self.views), Path(path))

    def _repr_html_(self) -> str:
        return cell(self.views)


@dataclass(frozen=True, eq=False, repr=False)
class Run(Outcome, Shown):
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
    def view(self) -> RunView:
        """The run as tables, charts and reports see it."""
        return RunView.of(self)

    @property
    def views(self) -> list[RunView]:
        return [self.view]


@dataclass(frozen=True, eq=False)
class Comparison(Shown):
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
    def views(self) -> list[RunView]:
        return [run.view for run in self.runs]

    @property
    def records(self) -> dict[str, list[Record]]:
        """Records by label; with several seeds, ``label#seed``."""
        several = len({run.experiment.seed for run in self.runs}) > 1
        suffix = "#{}" if several else ""
        return {run.label + suffix.format(run.experiment.seed): run.records for run in self.runs}

    @property
    def best(self) -> Run:
        """The run with the highest final accuracy (regression: the lowest final loss)."""
        order = [row.label for row in ranked(self.views)]
        return min(self.runs, key=lambda run: order.index(run.label))

    def __getitem__(self, label: str) -> Run:
        for run in self.runs:
            if run.label == label:
                return run
        raise KeyError(f"no run {label!r}; there are {', '.join(self.records)}")

    def __str__(self) -> str:
        return render(ranked(self.views))

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(dict.fromkeys(run.label for run in self.runs))}>"
