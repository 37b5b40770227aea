"""The tables of ``fednag time``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fednag.clock.fleet import Fleet
    from fednag.clock.summary import Part, Row


def times_table(rows: list[Row], words: str, fleet: Fleet, replays: int) -> Any:
    from rich.table import Table

    times = "once" if replays == 1 else f"{replays} times"
    table = Table(title=f"time to {words} on {fleet.title}, replayed {times}", title_justify="left")
    table.add_column("method", no_wrap=True)
    headings = ("seconds", "iterations", "rounds", "seconds a round", "kB down", "kB up")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        said = ""
        if row.seconds is None:
            part = f"{row.reached} of {row.runs} runs reached it" if row.reached else "never"
            best = "" if row.best is None else f"; best {row.best:.4g}"
            said = f"{part}{best}"
        table.add_row(
            row.label if row.runs == 1 else f"{row.label} ({row.runs} runs)",
            seconds_text(row.seconds, row.deviation),
            "-" if row.iterations is None else f"{row.iterations:,.0f}",
            "-" if row.rounds is None else f"{row.rounds:,.1f}",
            f"{row.per_round:,.4g}",
            f"{row.down / 1e3:,.1f}",
            f"{row.up / 1e3:,.1f}",
            said,
            style=None if row.seconds is not None else "red",
        )
    return table


def seconds_text(seconds: float | None, deviation: float | None) -> str:
    if seconds is None:
        return "-"
    digits = 2 if seconds >= 1 else 4
    spread = "" if deviation is None else f" ± {deviation:,.{digits}f}"
    return f"{seconds:,.{digits}f}{spread}"


def reductions_table(rows: list[Row], most: int = 8) -> Any:
    """Who saves how much of whose time; of many methods, only the fastest one does."""
    from rich.table import Table

    if len(rows) > most:
        table = Table("rival", f"time saved by {rows[0].label}")
        for rival in rows[1:]:
            part = rows[0].less_than(rival)
            table.add_row(rival.label, "-" if part is None else f"{part:.1%}")
        return table
    table = Table(title="time saved against each rival", title_justify="left")
    table.add_column("method", no_wrap=True)
    for rival in rows:
        table.add_column(f"vs {rival.label}", justify="right")
    for row in rows:
        saved = [row.less_than(rival) for rival in rows]
        if any(part is not None and part > 0 for part in saved):  # the slowest saves nothing
            table.add_row(
                row.label, *("" if not part or part < 0 else f"{part:.1%}" for part in saved)
            )
    return table


def parts_table(parts: list[Part]) -> Any:
    from rich.table import Table

    from fednag.clock.summary import KEYS

    table = Table(title="where the time goes: seconds of an average round", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("device", no_wrap=True)
    for key in KEYS:
        table.add_column(key, justify="right")
    before = ""
    for part in parts:
        numbers = [getattr(part, key) for key in KEYS]
        total = sum(numbers) or 1.0
        shown = [f"{number:.4g} ({number / total:.0%})" for number in numbers]
        table.add_row("" if part.label == before else part.label, part.device, *shown)
        before = part.label
    return table
