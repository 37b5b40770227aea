"""The verdicts of ``fednag paper``: as a table, and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from fednag.paper.checks import Finding
    from fednag.paper.figure import Figure

STYLES: Mapping[str, str | None] = {
    "reproduced": "green",
    "not reproduced": "red",
    "undecided": "yellow",
    "not run": "dim",
}


@dataclass(frozen=True)
class Judged:
    """The verdicts on figures at a scale."""

    scale: str
    findings: list[Finding]

    @property
    def counts(self) -> dict[str, int]:
        return {v: sum(one.verdict == v for one in self.findings) for v in STYLES}

    @property
    def notes(self) -> list[str]:
        said = "smoke runs show that all works; their verdicts say nothing of the paper"
        return [said] if self.scale == "smoke" else []

    def as_data(self) -> dict[str, Any]:
        verdicts = [
            {
                "figure": one.figure,
                "check": one.check.name,
                "gist": one.check.gist,
                "paper": one.check.paper,
                "ours": one.ours or None,
                "verdict": one.verdict,
                "beyond": one.check.beyond,
                "seeds": one.seeds,
                "planned": one.planned,
                "note": one.note,
                "parts": [asdict(part) for part in one.parts],
            }
            for one in self.findings
        ]
        about = {"scale": self.scale, "counts": self.counts, "notes": self.notes}
        return {**about, "verdicts": verdicts}


def judge(figures: Sequence[Figure], scale: str, place: Path) -> Judged:
    from fednag.paper.page import findings, records_of

    found = [one for f in figures for one in findings(f, records_of(f, scale, place))]
    return Judged(scale, found)


def show(terminal: Console, judged: Judged) -> None:
    from fednag.terminal import notes

    notes(terminal, judged.notes)
    terminal.print(_verdicts(judged.findings, judged.scale))
    counts = judged.counts.items()
    terminal.print(", ".join(f"{number} {verdict}" for verdict, number in counts))


def _verdicts(found: Sequence[Finding], scale: str) -> Any:
    from rich.table import Table

    table = Table(title=f"verdicts at scale {scale}", title_justify="left")
    for heading in ("figure", "check", "the paper", "ours", "verdict"):
        table.add_column(heading, overflow="fold")
    for one in found:
        note = f" ({one.note})" if one.note else ""
        ours = one.ours or "-"
        cells = (one.figure, one.check.name, one.check.paper, ours, one.words + note)
        table.add_row(*cells, style=STYLES[one.verdict])
    return table
