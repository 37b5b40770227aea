"""What came of runs, in a sentence or two, and what keeps it from meaning much."""

from __future__ import annotations

from collections.abc import Sequence

from fednag.runs.labels import by_label, differing
from fednag.runs.statistics import Row, Spread
from fednag.runs.targets import Target
from fednag.runs.view import RunView

PROBLEM = ("data.", "split.", "model.")


def sentence(views: Sequence[RunView], rows: Sequence[Row], target: Target | None) -> str:
    """The winner, by how much, and whether the seeds bear it out."""
    best = rows[0]
    verb = (
        "stands at" if any(run.ending is None for run in by_label(views)[best.label]) else "ends at"
    )
    if len(rows) == 1:
        return f"{_setting(views, rows)}, {best.label} {_result(best, verb)}."
    rival = next((row for row in rows[1:] if not row.diverged), None)
    level = [row.label for row in rows if not row.diverged and _level(best, row)]
    if len(level) > 1:
        each = "both" if len(level) == 2 else "all"
        result = _result(best, verb.replace("s at", " at"))
        parts = [f"{_setting(views, rows)}, {_listed(level)} are level: {each} {result}"]
    else:
        parts = [f"{_setting(views, rows)}, {best.label} does best: it {_result(best, verb)}"]
    if rival and not best.diverged and len(level) < 2:
        parts.append(_lead(best, rival))
    text = ", ".join(parts) + "."
    text += _sooner(best, rows, target, best.label if len(level) > 1 else "It")
    lost = [row.label for row in rows if row.diverged]
    if lost:
        text += f" {_listed(lost)} diverged."
    return text


def caveats(runs: Sequence[RunView]) -> list[str]:
    """What keeps a ranking of these runs from meaning much."""
    notes = []
    if problem := [
        key for key in differing([run.settings for run in runs]) if key.startswith(PROBLEM)
    ]:
        notes.append(
            f"these runs differ in {', '.join(problem)}: they do not solve the same problem, so "
            "their ranking says little"
        )
    seeds = {label: sorted(run.seed for run in group) for label, group in by_label(runs).items()}
    if len({tuple(own) for own in seeds.values()}) > 1:
        least = min(seeds, key=lambda label: len(seeds[label]))
        count = len(seeds[least])
        notes.append(
            f"not all methods have the same seeds: {least} has {count} run{'s' * (count > 1)}"
        )
    kinds = [run.ending.kind if run.ending else None for run in runs]
    if unfinished := kinds.count(None):
        notes.append(f"{unfinished} of {len(runs)} runs are not over yet")
    stopped, waited = kinds.count("target"), kinds.count("patience")
    if stopped and len({run.records[-1].iteration for run in runs if run.records}) > 1:
        notes.append(
            f"{stopped} of {len(runs)} runs stopped when they reached their target: final "
            "values are of different iterations; compare iterations to the target"
        )
    if waited and len(runs) > 1:
        notes.append(
            f"{waited} of {len(runs)} runs stopped when they got no better: final values "
            "are of different iterations"
        )
    return notes


def _setting(views: Sequence[RunView], rows: Sequence[Row]) -> str:
    settings = views[0].settings
    groups = by_label(views)
    most = max(len(group) for group in groups.values())
    methods = "" if len(rows) == 1 else f"Of {len(rows)} methods"
    seeds = "one seed" if most == 1 else f"{most} seeds"
    words = f"{methods} over {seeds}" if methods else f"Over {seeds}"
    data, model = settings.get("data.name"), settings.get("model.name")
    alike = all(s.settings.get("data.name") == data for s in views)
    if data and model and alike:
        words += f" on {data} ({model}"
        if workers := settings.get("split.workers"):
            words += f", {workers} workers, {settings.get('split.kind', 'iid')} split"
        words += ")"
    return words


def _result(row: Row, verb: str) -> str:
    if row.final_accuracy is not None:
        return f"{verb} {_percent(row.final_accuracy)} test accuracy"
    if row.final_loss is not None:
        return f"{verb} a training loss of {row.final_loss.text('{:.4g}')}"
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


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
