"""Accuracy over minutes of driving: all vehicles or selected ones, from 0 to 120 km/h.

    python examples/driving.py [--seeds 3] [--minutes 5] [--speeds 0,60,120] [--jobs 1] [--out X]

24 vehicles on a road of 6 km pass three roadside units; each holds samples of few classes of the
embedded digits, and computes 4 s for a round, as a larger model would. Who drives off before its
upload is complete has worked for nothing. In the other half of the runs only those are asked whose
time under their unit is expected to be long enough. The comparison is that of Posner, Tseng,
Aloqaily and Jararweh, "Federated Learning in Vehicular Networks: Opportunities and Solutions" (IEEE
Network, 2021), for three methods.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory

import altair as alt

import fednag
from fednag.show.look import look, style_of

METHODS = ("fednag", "fedmom", "fedavg")
ASKED = {"all": "all who are in reach", "lasting": "those who stay long enough"}
TIMES = (0.5, 1.0, 2.0, 5.0, 10.0)  # minutes of the table
FLEET = """
name = "road"
synthetic = true
[mobility]
kind = "highway"
vehicles = 24
speed = {speed}
spread = 0.1
length = 6000
seconds = 1200
seed = {seed}
hand_over = "lost"
select = "{select}"
[[unit]]
name = "mast"
x = 1000
y = 15
count = 3
apart = [2000, 0]
radio = "dsrc"
[[device]]
name = "car"
moves = true
gflops = 0.0001  # 4 s for the ten iterations of a round here: as long as a larger model takes
spread = 0.1
"""


@dataclass(frozen=True)
class Drive:
    """A run: (seconds, accuracy) of its models, and the share of workers who missed a round."""

    scores: tuple[tuple[float, float], ...]
    missed: float

    def at(self, minute: float) -> float:
        """The accuracy of the newest model then."""
        return [accuracy for seconds, accuracy in self.scores if seconds <= 60 * minute][-1]


def driven(method: str, select: str, speed: int, seed: int, minutes: float) -> Drive:
    """A run on the road, for about so many minutes; a round has at most 15 s."""
    # Who asks everybody waits until the deadline for those who have driven off.
    shortest = 4 if select == "lasting" or not speed else 7
    cls = fednag.ALGORITHMS[method]
    with TemporaryDirectory() as folder:
        path = Path(folder, "road.toml")
        path.write_text(FLEET.format(speed=speed, select=select, seed=seed))
        run = fednag.run(
            cls(lr=0.02),  # type: ignore[call-arg]
            model="logistic",
            split={"kind": "dirichlet", "alpha": 0.2, "workers": 24},
            training={"tau": 10, "batch": 16, "iterations": 10 * int(minutes * 60 / shortest)},
            clock={"fleet": str(path), "deadline": 15.0},
            evaluation={"every": 3},
            engine={"chunk": 24, "threads": 1},
            seed=seed,
            quiet=True,
        )
    scores = tuple((r.clock or 0.0, r.accuracy or 0.0) for r in run.records)
    last = run.records[-1]
    return Drive(scores, last.misses / (24 * last.round))


Cell = tuple[str, str, int]  # method, who is asked, speed


def told(found: dict[Cell, list[Drive]], minutes: Sequence[float]) -> None:
    """A row a speed, method and selection: accuracies, and who missed a round."""
    heads = " | ".join(f"{minute:g} min" for minute in minutes)
    print(f"| km/h | asked | method | {heads} | missed a round |")
    print(f"| --- | --- | --- |{' --- |' * (len(minutes) + 1)}")
    for (method, select, speed), runs in found.items():
        cells = []
        for minute in minutes:
            values = [100 * run.at(minute) for run in runs]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.1f}{spread}")
        missed = mean(run.missed for run in runs)
        print(f"| {speed} | {ASKED[select]} | {method} | {' | '.join(cells)} | {missed:.0%} |")


def chart(found: dict[Cell, list[Drive]], minutes: float) -> alt.FacetChart:
    """Mean accuracy over minutes, a panel a speed."""
    rows = []
    for (method, select, speed), runs in found.items():
        for step in range(41):
            minute = minutes * step / 40
            value = mean(run.at(minute) for run in runs)
            rows.append(
                {
                    "minutes": minute,
                    "accuracy": value,
                    "method": method,
                    "asked": ASKED[select],
                    "speed": f"{speed} km/h",
                }
            )
    colours = [look(style_of(method)).colour for method in METHODS]
    names = [f"{speed} km/h" for speed in dict.fromkeys(speed for *_, speed in found)]
    return (
        alt.Chart(alt.InlineData(values=rows))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("minutes:Q", title="minutes of driving"),
            y=alt.Y("accuracy:Q", title="test accuracy", axis=alt.Axis(format="~%")),
            color=alt.Color("method:N", scale=alt.Scale(domain=list(METHODS), range=colours)),
            strokeDash=alt.StrokeDash(
                "asked:N",
                title="asked are",
                scale=alt.Scale(domain=list(ASKED.values()), range=[[1, 0], [5, 3]]),
                legend=alt.Legend(symbolType="stroke", symbolSize=600),
            ),
        )
        .properties(width=260, height=200)
        .facet(facet=alt.Facet("speed:N", title=None, sort=names), columns=2)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--speeds", default="0,60,120", help="km/h")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("driving"))
    given = parser.parse_args()
    speeds = [int(speed) for speed in given.speeds.split(",")]
    cells = [(m, select, speed) for speed, select, m in product(speeds, ASKED, METHODS)]
    with ProcessPoolExecutor(given.jobs) as pool:
        waiting = {
            cell: [pool.submit(driven, *cell, seed, given.minutes) for seed in range(given.seeds)]
            for cell in cells
        }
        found = {cell: [one.result() for one in own] for cell, own in waiting.items()}
    told(found, [minute for minute in TIMES if minute <= given.minutes])
    drawn = chart(found, given.minutes)
    for kind in ("png", "svg"):
        drawn.save(str(given.out.with_suffix(f".{kind}")), ppi=110)
    print(f"\nwrote {given.out.with_suffix('.png')} and .svg")


if __name__ == "__main__":
    main()
