"""Runs of a report, replayed on a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fednag.show.sheets import Sheet

REPLAYS = 20


def replayed(sheets: Sequence[Sheet], fleet: str) -> tuple[list[Sheet], list[dict[str, Any]]]:
    """(the sheets, their records with seconds on the fleet's clock; where the time goes)."""
    import numpy as np

    from fednag.clock.runs import read_run
    from fednag.clock.summary import replay_runs, where_time_goes
    from fednag.devices.fleet import load_fleet
    from fednag.runs.folder import RunFolder
    from fednag.show.sheets import distinguished
    from fednag.show.timing import time_table

    where = load_fleet(fleet)
    kept, _ = distinguished(sheets)
    # Named as the report names them.
    runs = [
        replace(read_run(RunFolder(s.folder)), label=s.curve.label)
        for s in kept
        if s.folder is not None and len(s.curve.records) > 1
    ]
    timed = replay_runs(runs, where, REPLAYS)
    ends = {one.run.folder.path: np.mean([p.ends for p in one.replays], axis=0) for one in timed}
    clocked = []
    for sheet in sheets:
        known = ends.get(sheet.folder) if sheet.folder else None
        if known is not None:
            records = [replace(r, clock=float(known[r.round])) for r in sheet.curve.records]
            sheet = replace(sheet, curve=replace(sheet.curve, records=records))
        clocked.append(sheet)
    count = max(len(one.replays) for one in timed)
    title = f"{where.title}, {count} replay{'s' * (count > 1)} of each run"
    return clocked, [time_table(title, [asdict(p) for p in where_time_goes(timed, where)])]
