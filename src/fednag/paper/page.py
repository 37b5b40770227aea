"""Tables of verdicts and of series, in Markdown, and the page that holds them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from fednag.core.files import os_errors, write_atomically
from fednag.errors import FednagError
from fednag.paper.checks import Finding, Verdict, judge
from fednag.paper.figure import Figure
from fednag.paper.records import FigureRecords, Kept, load, tuned
from fednag.problems.metrics import Better
from fednag.runs.paired import compared
from fednag.runs.statistics import LEVEL, Spread, average, text

OPENING = re.compile(r"<!-- (?:figure ([\w-]+)|summary) -->")
INSIDE = r"(?:(?!<!-- (?:figure|summary)).)*?"
BLOCK = re.compile(rf"(<!-- figure ([\w-]+) -->\n){INSIDE}(<!-- end -->)", re.S)
SUMMARY = re.compile(rf"(<!-- summary -->\n){INSIDE}(<!-- end -->)", re.S)
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


def records_of(figure: Figure, scale: str, place: Path) -> FigureRecords:
    """What is kept of a figure, its tuned groups settled; empty when nothing has been run.

    Runs that were made with other settings than the figure's file now says are left out.
    """
    seeds, keys = tuple(figure.scale(scale).seeds), figure.keys(scale)
    kept = load(place, scale, figure.name) or FigureRecords(figure.name, scale, seeds)
    series = {
        label: tuple(run for run in runs if run.key in keys.get((label, run.seed), ()))
        for label, runs in kept.series.items()
    }
    series = {label: runs for label, runs in series.items() if runs}
    done = sum(len(runs) for runs in series.values())
    found = FigureRecords(figure.name, scale, seeds, series, done, kept.runs - done)
    groups = {s.label: s.group for s in figure.series(scale) if s.group}
    return tuned(found, groups) if groups else found


def findings(figure: Figure, records: FigureRecords) -> list[Finding]:
    """The verdict on every check of a figure; none where its scale is too short for one."""
    found = [judge(check, records) for check in figure.content.check]
    if figure.scale(records.scale).judged:
        return found
    return [
        one if one.verdict == "not run" else replace(one, verdict="undecided", judged=False)
        for one in found
    ]


def checks_table(found: Sequence[Finding]) -> str:
    rows = ["| check | the paper | ours | verdict |", "| --- | --- | --- | --- |"]
    for one in found:
        name = one.check.name + (f" *{one.marks.strip()}*" if one.marks else "")
        note = f" ({one.note})" if one.note else ""
        rows.append(
            f"| {name}: {one.check.gist} | {one.check.paper} | {one.ours or '-'}"
            f"{_doubts(one)} | **{one.words}**{note} |"
        )
    return "\n".join(rows).replace(" > ", " &gt; ")


def _doubts(one: Finding) -> str:
    """The parts that kept a claim from being reproduced."""
    words = {"not reproduced": "fails", "undecided": "open"}
    found = []
    for part in one.parts:
        if part.verdict in words:
            spread = "" if part.deviation is None else f" ± {part.deviation:.2g}"
            number = "" if part.mean is None else f" ({part.mean:+.3g}{spread})"
            found.append(f"{words[part.verdict]}: {part.words}{number}")
    return f" [{'; '.join(found)}]" if found else ""


def series_table(records: FigureRecords) -> str:
    """A row a series; with seeds, how far the first series is ahead of it, paired by seed."""
    ahead = _ahead(records)
    first = next(iter(records.series), "")
    more = [f"{first} is ahead by"] if ahead else []
    names = ["series", "seeds", "final loss", "final accuracy", "best accuracy", *more]
    names += ["MB sent", "ended"]
    rows = [f"| {' | '.join(names)} |", "| --- " * len(names) + "|"]
    for label, runs in records.series.items():
        kept = [run for run in runs if not run.diverged]
        ends = "; ".join(dict.fromkeys(run.ended for run in runs))
        tuning = "; ".join(dict.fromkeys(n for r in runs for n in r.notes if n[:5] == "tuned"))
        cells = [
            f"{label}{f' ({tuning})' if tuning else ''}",
            str(len(runs)),
            text(Spread.of(r.loss[-1] for r in kept), "{:.4f}"),
            _percent(kept),
            text(Spread.of(_best(r) for r in kept), "{:.2%}"),
            *([ahead.get(label, "-")] if ahead else []),
            f"{average(r.megabytes[-1] for r in runs):,.1f}",
            ends,
        ]
        rows.append(f"| {' | '.join(cells)} |")
    if ahead:
        rows += ["", f"*{AHEAD}*"]
    return "\n".join(rows)


AHEAD = (
    "Differences are of final values, paired by seed, in percentage points where there is an "
    "accuracy and in loss elsewhere, above 0 where the first series is better; in brackets their "
    f"{LEVEL:.0%} intervals (Student's t), together, by Holm's correction."
)


def _ahead(records: FigureRecords) -> dict[str, str]:
    """How far the first series is ahead of each other one; empty where seeds are too few."""
    series = {
        label: runs
        for label, runs in records.series.items()
        if not any(run.diverged for run in runs)
    }
    first = next(iter(records.series), None)
    if first not in series:
        return {}
    every = [run for runs in series.values() for run in runs]
    measure = "accuracy" if all(run.accuracy[-1] is not None for run in every) else "loss"
    ends = {
        label: {run.seed: v for run in runs if (v := run.column(measure)[-1]) is not None}
        for label, runs in series.items()
    }
    better: Better = "higher" if measure == "accuracy" else "lower"
    return {
        one.second: f"{one.mean:+.3g} ({one.low:+.3g} to {one.high:+.3g})"
        for one in compared(ends, measure, better, reference=first)
        if one.low is not None
    }


def _classes(records: FigureRecords) -> list[str]:
    """Which classes nobody held, run by run."""
    found = [
        f"- {label}, seed {run.seed}: {note}; it ended at {_percent([run])}"
        for label, runs in records.series.items()
        for run in runs
        for note in run.notes
        if "held by no" in note
    ]
    return [*found, ""] if found else []


def _percent(runs: Sequence[Kept]) -> str:
    return text(Spread.of(run.accuracy[-1] for run in runs), "{:.2%}")


def _best(run: Kept) -> float | None:
    return max(
        (a for a, t in zip(run.accuracy, run.iteration, strict=True) if a and t), default=None
    )


def block(figure: Figure, scale: str, place: Path, link: str = "paper") -> str:
    """What a page says of a figure, from its records alone; ``link`` leads from it to ``place``."""
    records = records_of(figure, scale, place)
    command = f"`fednag paper run {figure.name} --scale {scale}`"
    departures = "; ".join(figure.departures(scale)) or "nothing is scaled"
    source = figure.content.paper.partition(",")[0]
    lines = [
        f"*{source[0].upper()}{source[1:]}.* {figure.content.about}",
        "",
        f"Scale `{scale}`: {departures}.",
        "",
    ]
    if why := figure.scale(scale).why:
        lines += [f"{why[0].upper()}{why[1:]}.", ""]
    planned = len(figure.series(scale)) * len(records.planned)
    if 0 < records.done < planned:
        lines += [f"**{records.done} of {planned} runs are done**; the rest is not yet run.", ""]
    if not records.runs:
        return "\n".join([*lines, f"**Not yet run.** Command: {command}", ""])
    image = place / "charts" / scale / f"{figure.name}.png"
    if image.exists():
        lines += [f"![{figure.content.title}]({link}/charts/{scale}/{figure.name}.png)", ""]
    lines += [series_table(records), "", *_classes(records)]
    lines += [checks_table(findings(figure, records)), ""]
    longest = max(run.minutes for runs in records.series.values() for run in runs)
    return "\n".join([*lines, f"Command: {command} (longest run: {longest:.1f} minutes)", ""])


def summary(figures: Mapping[str, Figure], scale: str, place: Path) -> str:
    """All verdicts: a table of the paper's claims with their totals, and one of our questions."""
    found = {
        name: findings(figure, records_of(figure, scale, place)) for name, figure in figures.items()
    }
    claims = _verdicts(found, beyond=False)
    questions = _verdicts(found, beyond=True)
    return f"The paper's claims:\n\n{claims}\n\nQuestions of ours:\n\n{questions}"


def _verdicts(found: Mapping[str, Sequence[Finding]], beyond: bool) -> str:
    """A row for each figure that asks, a column for each verdict, totals below."""
    rows, totals = [], dict.fromkeys(VERDICTS, 0)
    for name, ones in found.items():
        asked = [one for one in ones if one.check.beyond == beyond]
        cells = []
        for verdict in VERDICTS:
            names = [one.check.name for one in asked if one.verdict == verdict]
            totals[verdict] += len(names)
            cells.append(", ".join(names) or "-")
        if asked:
            rows.append(f"| [{name}](#{name}) | {' | '.join(cells)} |")
    titles = ("yes", "no", *VERDICTS[2:]) if beyond else VERDICTS
    head = [f"| figure | {' | '.join(titles)} |", "| --- " * (len(titles) + 1) + "|"]
    last = f"| **in all** | {' | '.join(str(number) for number in totals.values())} |"
    return "\n".join([*head, *rows, last])


def read_page(page: Path, figures: Mapping[str, Figure]) -> str:
    """A page whose blocks can be filled; whatever it is written in, none of it may be lost."""
    try:
        if not page.is_file():
            raise FednagError(page, "is no file", "give a page such as docs/paper.md")
        text = page.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise FednagError(page, f"cannot be read ({why})", "check the path") from error
    opened = [match[1] for match in OPENING.finditer(text)]
    closed = [
        *(match[2] for match in BLOCK.finditer(text)),
        *(None for _ in SUMMARY.finditer(text)),
    ]
    if not opened:
        raise FednagError(page, "nothing to fill", "write <!-- figure NAME --> and <!-- end -->")
    for name in opened:
        what = "the summary" if name is None else f"figure {name!r}"
        if opened.count(name) != closed.count(name):
            raise FednagError(page, f"{what} is not closed", "write <!-- end --> on a line below")
        if name is not None and name not in figures:
            raise FednagError(page, f"no figure {name!r}", "remove its block")
    return text


def refresh(page: Path, figures: Mapping[str, Figure], scale: str, place: Path) -> Path:
    """Fill the page's marked blocks from the records; what stands between them is kept."""
    text = read_page(page, figures)
    link = Path(os.path.relpath(place, page.parent)).as_posix()

    def fill(match: re.Match[str]) -> str:
        return f"{match[1]}{block(figures[match[2]], scale, place, link)}\n{match[3]}"

    text = BLOCK.sub(fill, text)
    text = SUMMARY.sub(lambda m: f"{m[1]}{summary(figures, scale, place)}\n{m[2]}", text)
    with os_errors(page, "cannot be written", "check its folder"):
        write_atomically(page.resolve(), text)  # a link stays one
    return page
