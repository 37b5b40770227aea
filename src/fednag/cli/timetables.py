"""The tables of ``fednag time``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fednag.clock.runs import Part, Row
    from fednag.devices.fleet import Fleet


def times_table(rows: list[Row], words: str, fleet: Fleet, replays: int) -> Any:
    from rich.table import Table

    from fednag.devices.times import duration

    times = "once" if replays == 1 else f"{replays} times"
    table = Table(title=f"time to {words} on {fleet.title}, replayed {times}", title_justify="left")
    table.add_column("method", no_wrap=True)
    # Bytes are a worker's in one round, beside totals: the heading has to say so.
    each = "\na worker\nand round"
    for heading in ("time", "iterations", "rounds", "a round", f"kB down{each}", f"kB up{each}"):
        table.add_column(heading, justify="right", no_wrap=True)
    if any(row.seconds is None for row in rows):
        table.add_column("target")
    for row in rows:
        said = "reached"
        if row.seconds is None:
            part = f"{row.reached} of {row.runs} runs reached it" if row.reached else "never"
            best = "" if row.best is None else f"; best {row.best:.4g}"
            said = f"{part}{best}"
        line = [
            row.label if row.runs == 1 else f"{row.label} ({row.runs} runs)",
            time_text(row.seconds, row.deviation),
            "-" if row.iterations is None else f"{row.iterations:,.0f}",
            "-" if row.rounds is None else f"{row.rounds:,.1f}",
            duration(row.per_round),
            f"{row.down / 1e3:,.1f}",
            f"{row.up / 1e3:,.1f}",
            said,
        ]
        style = None if row.seconds is not None else "red"
        table.add_row(*line[: len(table.columns)], style=style)
    return table


def time_text(seconds: float | None, deviation: float | None) -> str:
    from fednag.devices.times import duration

    return "-" if seconds is None else duration(seconds, deviation)


def reductions_table(rows: list[Row], most: int = 8) -> Any:
    """Who saves how much of whose time; of many methods, only the fastest one does."""
    from rich.table import Table

    if len(rows) > most:
        table = Table("rival", f"time saved by {rows[0].label}")
        for rival in rows[1:]:
            table.add_row(rival.label, _part(rows[0].less_than(rival)))
        return table
    title = "time saved against each rival (negative: it takes longer)"
    table = Table(title=title, title_justify="left")
    table.add_column("method", no_wrap=True)
    for rival in rows:
        table.add_column(f"vs {rival.label}", justify="right")
    for row in rows:
        saved = [None if rival is row else row.less_than(rival) for rival in rows]
        table.add_row(row.label, *map(_part, saved))
    return table


def _part(saved: float | None) -> str:
    return "-" if saved is None else f"{saved:.1%}"


def parts_table(parts: list[Part]) -> Any:
    from rich.table import Table

    from fednag.clock.runs import KEYS
    from fednag.devices.times import duration

    table = Table(title="where the time of an average round goes", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("device", no_wrap=True)
    for key in KEYS:
        table.add_column(key, justify="right")
    before = ""
    for part in parts:
        numbers = [getattr(part, key) for key in KEYS]
        total = sum(numbers) or 1.0
        shown = [f"{duration(number)} ({number / total:.0%})" for number in numbers]
        table.add_row("" if part.label == before else part.label, part.device, *shown)
        before = part.label
    return table
