"""FedPAQ's figure on logistic regression: training loss over time, for several s and tau.

    FEDNAG_DATA=folder python examples/fedpaq.py [--seeds 5] [--chart fedpaq.png]

Reisizadeh et al., "FedPAQ" (2020): digits 0 and 8 of MNIST, 10,000 samples on 50 nodes, batches of
10, 100 iterations in all, a full model's upload costs 100 times a gradient. Time is theirs: a round
takes the slowest node's gradients (a shift, and an exponential part as long) and all bits uploaded
over the bandwidth. Their step sizes are tuned and not given; here lr is 0.5 for all: of 0.02, 0.05,
0.1, 0.2, 0.5 and 1 it gives the least loss after 100 iterations with tau 2, for s 1, 10 and none.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import altair as alt
import numpy as np
import torch

import fednag
from fednag.data.sets import load
from fednag.runs.statistics import Spread, interval
from fednag.show.charts import finished, save
from fednag.show.look import COLOURS
from fednag.transforms import Quantise

NODES, SAMPLES, ITERATIONS, BATCH = 50, 10_000, 100, 10
UPLOAD = 100.0  # of a whole model, in units of a gradient
AXIS = 10_000  # the longest time drawn
Curves = list[tuple[np.ndarray, np.ndarray]]  # times and losses of each seed


@dataclass(frozen=True)
class Setting:
    """A curve of the figure; s = 0 sends whole numbers."""

    s: int
    r: int = 25
    tau: int = 2

    def __str__(self) -> str:
        sent = f"s {self.s}" if self.s else "not quantised"
        return f"{sent}, tau {self.tau}, {self.r} nodes a round"


def data(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    images = load("mnist")
    chosen = ((images.y == 0) | (images.y == 8)).nonzero().view(-1)
    order = np.random.default_rng(seed).permutation(len(chosen))[:SAMPLES]
    chosen = chosen[torch.from_numpy(order)]
    return images.x[chosen].float() / 255, (images.y[chosen] == 8).long()


def curve(setting: Setting, seed: int, lr: float) -> tuple[np.ndarray, np.ndarray]:
    """(times, losses) after every round."""
    run = fednag.run(
        fednag.FedAvg(lr=lr),
        data=data(seed),
        model="logistic",
        workers=NODES,
        tau=setting.tau,
        iterations=ITERATIONS,
        batch=BATCH,
        seed=seed,
        training={"participants": setting.r},
        uplink=[Quantise(levels=setting.s)] if setting.s else [],
        quiet=True,
    )
    size = sum(p.numel() * p.element_size() for p in run.final.parameters())
    sent = np.diff([record.bytes_up for record in run.records])
    draws = np.random.default_rng([seed, 1]).exponential(0.5, (len(sent), setting.r, setting.tau))
    slowest = (0.5 + draws).sum(2).max(1)
    times = np.concatenate([[0.0], np.cumsum(slowest + UPLOAD * sent / size)])
    losses = [np.inf if record.loss is None else record.loss for record in run.records]
    return times, np.array(losses)


def reached(times: np.ndarray, losses: np.ndarray, by: float) -> float:
    """The loss of the last round that was over by then."""
    return float(losses[times <= by][-1])


CURVES = {
    "s": [Setting(1), Setting(5), Setting(10), Setting(0)],
    "tau": [Setting(1, tau=tau) for tau in (1, 2, 5, 10, 20)],
    "nodes": [Setting(1, r=r) for r in (5, 10, 25, 50)],
}
FEDPAQ, FEDAVG, QSGD = Setting(1, tau=2), Setting(0, tau=2), Setting(1, tau=1)
CLAIMS = {
    "FedPAQ (s 1, tau 2) has a lower loss than FedAvg (not quantised) in the same time": FEDAVG,
    "FedPAQ (s 1, tau 2) has a lower loss than QSGD (s 1, tau 1) in the same time": QSGD,
    "FedPAQ with s 1 has a lower loss than with s 10 in the same time": Setting(10),
    "FedPAQ with 25 nodes a round has a lower loss than with all 50 in the same time": Setting(
        1, 50
    ),
}


def drawn(curves: Mapping[Setting, Curves], path: Path) -> None:
    """Three panels: other s, other tau, other numbers of nodes; means over seeds."""
    titles = {"s": "s, with tau 2", "tau": "tau, with s 1", "nodes": "nodes a round, s 1, tau 2"}
    panels = []
    for name, group in CURVES.items():
        rows = []
        for setting in group:
            label = {"s": setting.s or "none", "tau": setting.tau, "nodes": setting.r}[name]
            times, losses = (np.mean(part, axis=0) for part in zip(*curves[setting], strict=True))
            points = zip(times.tolist(), losses.tolist(), strict=True)
            rows += [{"which": str(label), "x": x, "y": y} for x, y in points if x <= AXIS]
        lines = alt.Chart(alt.InlineData(values=rows), title=titles[name])
        order = list(dict.fromkeys(row["which"] for row in rows))
        panels.append(
            lines.mark_line(strokeWidth=2, point=True)
            .encode(
                x=alt.X("x:Q", title="time, in gradients"),
                y=alt.Y("y:Q", title="training loss", scale=alt.Scale(type="log", nice=False)),
                color=alt.Color(
                    "which:N", title=name, scale=alt.Scale(domain=order, range=COLOURS)
                ),
            )
            .properties(width=260, height=240)
        )
    save(finished(alt.hconcat(*panels).resolve_scale(color="independent")), path, ["png"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--chart", type=Path, help="PNG to draw")
    given = parser.parse_args()
    seeds = range(given.seeds)
    settings = dict.fromkeys(
        [s for group in CURVES.values() for s in group] + list(CLAIMS.values())
    )
    curves = {setting: [curve(setting, seed, given.lr) for seed in seeds] for setting in settings}
    if given.chart:
        drawn(curves, given.chart.with_suffix(""))
    # What FedPAQ needs for all its iterations is the time at which all are compared.
    by = [curves[FEDPAQ][seed][0][-1] for seed in seeds]
    print(f"loss after {np.mean(by):.0f} gradients' time, {given.seeds} seeds, lr {given.lr:g}\n")
    print("| curve | rounds by then | loss by then | loss after 100 iterations | their time |")
    print("| --- | --- | --- | --- | --- |")
    for name, group in CURVES.items():
        for setting in group:
            found = curves[setting]
            rounds = np.mean([(t <= by[i]).sum() - 1 for i, (t, _) in enumerate(found)])
            then = Spread.of(reached(*each, by[i]) for i, each in enumerate(found))
            end = Spread.of(losses[-1] for _, losses in found)
            took = np.mean([times[-1] for times, _ in found])
            assert then is not None
            assert end is not None
            print(
                f"| {name}: {setting} | {rounds:.0f} | {then.text('{:.4f}')} | "
                f"{end.text('{:.4f}')} | {took:.0f} |"
            )
    print("\n| claim | difference (95 %) | |")
    print("| --- | --- | --- |")
    for claim, other in CLAIMS.items():
        differences = [
            reached(*curves[other][seed], by[seed]) - reached(*curves[FEDPAQ][seed], by[seed])
            for seed in seeds
        ]
        found = interval(differences)
        low, high = found or (float("nan"), float("nan"))
        verdict = "reproduced" if low > 0 else "not reproduced" if high < 0 else "undecided"
        print(f"| {claim} | {low:+.4f} to {high:+.4f} | **{verdict}** |")


if __name__ == "__main__":
    main()
