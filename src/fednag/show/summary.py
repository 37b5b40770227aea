"""What came of runs, in a sentence or two."""

from __future__ import annotations

from collections.abc import Sequence

from fednag.runs.targets import Target
from fednag.show.sheets import Sheet, by_label
from fednag.show.tables import Row, Spread


def sentence(sheets: Sequence[Sheet], rows: Sequence[Row], target: Target | None) -> str:
    """The winner, by how much, and whether the seeds bear it out."""
    best = rows[0]
    verb = "stands at" if any(_goes_on(s) for s in by_label(sheets)[best.label]) else "ends at"
    if len(rows) == 1:
        return f"{_setting(sheets, rows)}, {best.label} {_result(best, verb)}."
    rival = next((row for row in rows[1:] if not row.diverged), None)
    level = [row.label for row in rows if not row.diverged and _level(best, row)]
    if len(level) > 1:
        each = "both" if len(level) == 2 else "all"
        result = _result(best, verb.replace("s at", " at"))
        parts = [f"{_setting(sheets, rows)}, {_listed(level)} are level: {each} {result}"]
    else:
        parts = [f"{_setting(sheets, rows)}, {best.label} does best: it {_result(best, verb)}"]
    if rival and not best.diverged and len(level) < 2:
        parts.append(_lead(best, rival))
    text = ", ".join(parts) + "."
    text += _sooner(best, rows, target, best.label if len(level) > 1 else "It")
    lost = [row.label for row in rows if row.diverged]
    if lost:
        text += f" {_listed(lost)} diverged."
    return text


def _setting(sheets: Sequence[Sheet], rows: Sequence[Row]) -> str:
    settings = sheets[0].settings
    groups = by_label(sheets)
    most = max(len(group) for group in groups.values())
    methods = "" if len(rows) == 1 else f"Of {len(rows)} methods"
    seeds = "one seed" if most == 1 else f"{most} seeds"
    words = f"{methods} over {seeds}" if methods else f"Over {seeds}"
    data, model = settings.get("data.name"), settings.get("model.name")
    alike = all(s.settings.get("data.name") == data for s in sheets)
    if data and model and alike:
        words += f" on {data} ({model}"
        if workers := settings.get("split.workers"):
            words += f", {workers} workers, {settings.get('split.kind', 'iid')} split"
        words += ")"
    return words


def _goes_on(sheet: Sheet) -> bool:
    return sheet.running or sheet.curve.ended == "interrupted"


def _result(row: Row, verb: str) -> str:
    if row.final_accuracy is not None:
        return f"{verb} {_percent(row.final_accuracy)} test accuracy"
    if row.final_loss is not None:
        return f"{verb} a training loss of {_loss(row.final_loss)}"
    return "diverged"


def _level(one: Row, other: Row) -> bool:
    """Whether what they are ranked by is the same."""
    if one.final_accuracy is not None and other.final_accuracy is not None:
        return one.final_accuracy.mean == other.final_accuracy.mean
    if one.final_loss is not None and other.final_loss is not None:
        return one.final_loss.mean == other.final_loss.mean
    return False


def _lead(best: Row, rival: Row) -> str:
    one, other = best.final_accuracy, rival.final_accuracy
    if one is not None and other is not None:
        gap, unit = (one.mean - other.mean) * 100, "percentage points"
        spread = ((one.deviation or 0) + (other.deviation or 0)) * 100
    elif best.final_loss is not None and rival.final_loss is not None:
        one, other = best.final_loss, rival.final_loss
        gap, unit = other.mean - one.mean, "less loss"
        spread = (one.deviation or 0) + (other.deviation or 0)
    else:
        return f"ahead of {rival.label}"
    ahead = f"{gap:.3g} {unit} ahead of"
    if unit == "less loss":
        ahead = f"a loss {gap:.3g} below that of"
    if one.deviation is None or other.deviation is None:
        return f"{ahead} {rival.label} (one seed: chance is not ruled out)"
    within = " (within the spread over seeds)" if gap <= spread else ""
    return f"{ahead} {rival.label}{within}"


def _sooner(best: Row, rows: Sequence[Row], target: Target | None, who: str) -> str:
    if target is None or best.iterations_to is None:
        return ""
    others = [r for r in rows[1:] if r.iterations_to is not None and r.reached == r.runs]
    text = f" {who} reaches {target} after {best.iterations_to.mean:,.0f} iterations"
    if others and best.iterations_to.mean > 0:
        slowest = max(others, key=lambda r: r.iterations_to.mean if r.iterations_to else 0)
        assert slowest.iterations_to is not None
        ratio = slowest.iterations_to.mean / best.iterations_to.mean
        if ratio > 1:
            count = f"{slowest.iterations_to.mean:,.0f} ({ratio:.2g} times as many)"
            text += f", {slowest.label} after {count}"
    return text + "."


def _percent(spread: Spread) -> str:
    tail = "" if spread.deviation is None else f" ± {spread.deviation * 100:.2f}"
    return f"{spread.mean * 100:.2f}{tail} %"


def _loss(spread: Spread) -> str:
    tail = "" if spread.deviation is None else f" ± {spread.deviation:.4g}"
    return f"{spread.mean:.4g}{tail}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
