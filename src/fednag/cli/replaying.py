"""Runs of a report, replayed on a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fednag.runs.view import RunView

REPLAYS = 20


def replayed(views: Sequence[RunView], fleet: str) -> tuple[list[RunView], list[dict[str, Any]]]:
    """(the runs, their records with seconds on the fleet's clock; where the time goes)."""
    import numpy as np

    from fednag.clock.runs import replay_runs, timed_run, where_time_goes
    from fednag.devices.fleet import load_fleet
    from fednag.runs.labels import distinguished
    from fednag.show.document import time_table

    where = load_fleet(fleet)
    kept, _ = distinguished(views)
    runs = [timed_run(view) for view in kept if len(view.records) > 1]
    timed = replay_runs(runs, where, REPLAYS)
    ends = {one.run.folder: np.mean([p.ends for p in one.replays], axis=0) for one in timed}
    clocked = []
    for view in views:
        known = ends.get(view.folder) if view.folder else None
        if known is not None:
            records = [replace(r, clock=float(known[r.round])) for r in view.records]
            view = replace(view, records=records)
        clocked.append(view)
    count = max(len(one.replays) for one in timed)
    title = f"{where.title}, {count} replay{'s' * (count > 1)} of each run"
    return clocked, [time_table(title, [asdict(p) for p in where_time_goes(timed, where)])]
