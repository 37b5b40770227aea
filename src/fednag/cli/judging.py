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
    stale: Mapping[str, int]  # figure -> runs left out

    @property
    def counts(self) -> dict[str, int]:
        """Of the paper's claims alone."""
        claims: list[str] = [one.verdict for one in self.findings if not one.check.beyond]
        return {verdict: claims.count(verdict) for verdict in STYLES}

    @property
    def answers(self) -> dict[str, int]:
        """To our own questions."""
        found = [one.words for one in self.findings if one.check.beyond]
        return {words: found.count(words) for words in ("yes", "no", "undecided", "not run")}

    @property
    def notes(self) -> list[str]:
        said = "smoke runs show that all works; their verdicts say nothing of the paper"
        left_out = [
            f"{name}: {number} of its runs were made with other settings and are left out; run it "
            "again"
            for name, number in self.stale.items()
        ]
        return [said, *left_out] if self.scale == "smoke" else left_out

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
                "late": one.check.late,
                "seeds": one.seeds,
                "planned": one.planned,
                "note": one.note,
                "parts": [asdict(part) for part in one.parts],
            }
            for one in self.findings
        ]
        counts = {"counts": self.counts, "answers": self.answers}
        return {"scale": self.scale, **counts, "notes": self.notes, "verdicts": verdicts}


def judge(figures: Sequence[Figure], scale: str, place: Path) -> Judged:
    from fednag.paper.page import findings, records_of

    kept = {figure.name: records_of(figure, scale, place) for figure in figures}
    found = [one for figure in figures for one in findings(figure, kept[figure.name])]
    stale = {name: records.stale for name, records in kept.items() if records.stale}
    return Judged(scale, found, stale)


def show(terminal: Console, judged: Judged) -> None:
    from fednag.show.terminal import notes

    notes(terminal, judged.notes)
    terminal.print(_verdicts(judged.findings, judged.scale))
    for whose, counts in (("the paper's claims", judged.counts), ("ours", judged.answers)):
        if any(counts.values()):
            words = ", ".join(f"{number} {verdict}" for verdict, number in counts.items())
            terminal.print(f"{whose}: {words}")


def _verdicts(found: Sequence[Finding], scale: str) -> Any:
    from rich.table import Table

    table = Table(title=f"verdicts at scale {scale}", title_justify="left")
    for heading in ("figure", "check", "the paper", "ours", "verdict"):
        table.add_column(heading, overflow="fold")
    for one in found:
        note = f" ({one.note})" if one.note else ""
        ours = one.ours or "-"
        cells = (one.figure, one.check.name + one.marks, one.check.paper, ours, one.words + note)
        table.add_row(*cells, style=STYLES[one.verdict])
    return table
