"""What a run or a comparison gives back to Python."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    def rows(self, of: str = "records") -> list[dict[str, Any]]:
        """A row a record; ``of`` "summary" a row a method, "differences" a row every two methods.

        Differences are paired by seed, above 0 where the first method is better, in percentage
        points of an accuracy.
        """
        from fednag.show.export import rows_of

        return rows_of(self.views, of)

    def frame(self, of: str = "records") -> Any:
        """The rows as a pandas data frame; needs pandas."""
        from fednag.show.export import frame

        return frame(self.rows(of))

    def csv(self, path: str | Path, of: str = "records") -> Path:
        """Write the rows as CSV, numbers to their last digit."""
        from fednag.show.export import csv_text, written

        return written(csv_text(self.rows(of)), path)

    def latex(self, path: str | Path | None = None) -> str:
        """The ranking as a LaTeX table (package booktabs), written to ``path`` if it is given.

        The best is bold only where paired seeds decide that it is ahead of all others.
        """
        from fednag.show.export import written

        text = self._latex()
        if path is not None:
            written(text, path)
        return text

    def _latex(self) -> str:
        from fednag.show.export import latex_text

        return latex_text(self.views)

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
