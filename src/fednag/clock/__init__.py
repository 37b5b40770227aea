"""How long a run takes on given devices and links.

A fleet (devices, links, an aggregator) is read from a TOML file with samples or numbers; a run's
records are replayed on it, after the fact; a deadline may leave late workers out while it trains.

>>> from fednag.clock import Transfer
>>> link = Transfer(latency=0.01, seconds_per_byte=8 / 100e6)  # 100 Mbit/s
>>> round(link.expected(1_000_000), 4)
0.09
"""

from fednag.clock.runs import (
    Part,
    Row,
    TierRow,
    Timed,
    TimedRun,
    common_target,
    read_run,
    replay_runs,
    tier_by_tier,
    timed_run,
    times_to_target,
    where_time_goes,
)
from fednag.clock.scene import scene
from fednag.clock.timeline import Span, Timeline, timeline, timelines
from fednag.devices.files import Sample, copy_fleet, read_samples, shipped, write_samples
from fednag.devices.fleet import Aggregation, Compute, Device, Edge, Fleet, Power, load_fleet
from fednag.devices.mobility import Trace, grid_city, highway, read_trace, write_trace
from fednag.devices.replay import Clock, Played, Replay, replay
from fednag.devices.sharing import Point
from fednag.devices.times import Availability, Bootstrap, Lognormal, Recorded, Times, Transfer
from fednag.devices.workload import Exchange, Stage, Tier, Workload
from fednag.runs.labels import distinguished

__all__ = [
    "Aggregation",
    "Availability",
    "Bootstrap",
    "Clock",
    "Compute",
    "Device",
    "Edge",
    "Exchange",
    "Fleet",
    "Lognormal",
    "Part",
    "Played",
    "Point",
    "Power",
    "Recorded",
    "Replay",
    "Row",
    "Sample",
    "Span",
    "Stage",
    "Tier",
    "TierRow",
    "Timed",
    "TimedRun",
    "Timeline",
    "Times",
    "Trace",
    "Transfer",
    "Workload",
    "common_target",
    "copy_fleet",
    "distinguished",
    "grid_city",
    "highway",
    "load_fleet",
    "read_run",
    "read_samples",
    "read_trace",
    "replay",
    "replay_runs",
    "scene",
    "shipped",
    "tier_by_tier",
    "timed_run",
    "timeline",
    "timelines",
    "times_to_target",
    "where_time_goes",
    "write_samples",
    "write_trace",
]
