"""One look a method, on every picture; labels where lines end."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from fednag.algorithms import ALGORITHMS
from fednag.core.ending import Ending
from fednag.core.record import Record
from fednag.runs.view import RunView
from fednag.show.charts import curves_chart, dodged, time_chart
from fednag.show.document import document, html
from fednag.show.look import (
    BOUNDS,
    COLOURS,
    DARK,
    OWN,
    look,
    method_in,
    style_of,
    styles,
    styles_of,
)

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
XYZ = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])


def lab(colour: str, vision: np.ndarray) -> np.ndarray:
    """CIELAB of a colour as somebody sees it."""
    value = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    seen = XYZ @ np.clip(vision @ linear, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(seen > 0.008856, np.cbrt(seen), 7.787 * seen + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("palette", [COLOURS, DARK], ids=["light", "dark"])
def test_colours_are_apart_with_any_vision(palette: list[str], vision: str) -> None:
    seen = [lab(colour, VISIONS[vision]) for colour in palette]
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 13


def test_every_shipped_method_has_a_look_of_its_own() -> None:
    numbers = [style_of(name) for name in ALGORITHMS]
    assert len(set(numbers)) == len(ALGORITHMS)
    assert max(numbers) < BOUNDS < OWN
    seen = {(one.colour, *one.dash) for one in map(look, numbers)}
    marked = {(one.colour, one.marker) for one in map(look, numbers)}
    assert len(seen) == len(marked) == len(ALGORITHMS)


def test_looks_do_not_move() -> None:
    """They are in pictures that were made before: a new method goes to the registry's end."""
    assert [style_of(name) for name in ("fednag", "fedavg", "cnag", "mimelite")] == [0, 1, 6, 9]
    assert [style_of(name) for name in ("fedavgm", "mfl", "fedpaq", "nbafl")] == [10, 12, 32, 38]


def test_a_look_does_not_hang_on_what_else_is_drawn() -> None:
    alone = {name: styles([name, "fedavg"])[0] for name in ALGORITHMS}
    together = dict(zip(ALGORITHMS, styles(list(ALGORITHMS)), strict=True))
    shuffled = [*ALGORITHMS][::-1]
    assert alone == together == dict(zip(shuffled, styles(shuffled), strict=True))
    assert styles(["FedAvg, 3 classes", "cSGD"]) == [style_of("fedavg"), style_of("csgd")]


def test_variants_of_a_method_keep_its_colour_among_others() -> None:
    found = styles(["fednag (tau=5)", "fednag (tau=20)", "fedavg"])
    assert (found[0], found[2]) == (0, 1)
    assert look(found[1]).colour == look(0).colour
    assert look(found[1]).dash != look(0).dash


def test_values_of_one_method_have_colours_of_their_own() -> None:
    assert styles(["momentum=0.1", "momentum=0.5", "momentum=0.9"]) == [0, 1, 2]
    assert styles(["fednag(lr=0.1)", "fednag(lr=0.2)"]) == [0, 1]
    runs = [view(f"momentum={m}", method="fednag") for m in (0.1, 0.5)]
    assert list(styles_of(runs).values()) == [0, 1]
    assert styles_of(runs[:1]) == {"momentum=0.1": 0}  # one line of fednag is fednag's


def test_own_methods_never_look_like_another() -> None:
    names = [f"Mine{i}" for i in range(30)]
    assert all(style_of(name) >= OWN for name in names)
    assert len(set(styles([*names, *ALGORITHMS]))) == 30 + len(ALGORITHMS)
    assert method_in("tau 5") is None


def view(label: str, seed: int = 0, method: str = "", last: float = 0.5) -> RunView:
    records = [
        Record(i, i, 2.0 - last * i / 10, last * i / 10, None, i, i, 0.1 * i, 4, test_loss=1.0)
        for i in range(11)
    ]
    config = {"name": "made", "algorithm": {"name": method or label}, "data": {"name": "digits"}}
    return RunView(label, seed, records, Ending("finished", 10), config=config)


def layers_of(chart: dict[str, Any]) -> list[dict[str, Any]]:
    return [layer for panel in chart["hconcat"] for layer in panel["layer"]]


def test_png_page_and_time_draw_a_method_alike() -> None:
    runs = [view("slowmo"), view("mime", last=0.6)]
    want = {name: look(style_of(name)) for name in ("slowmo", "mime")}
    for layer in layers_of(curves_chart(runs).to_dict()):
        if "color" in layer["encoding"]:
            scale = layer["encoding"]["color"]["scale"]
            drawn = dict(zip(scale["domain"], scale["range"], strict=True))
            assert drawn == {name: one.colour for name, one in want.items()}
        if "shape" in layer["encoding"]:
            scale = layer["encoding"]["shape"]["scale"]
            drawn = dict(zip(scale["domain"], scale["range"], strict=True))
            assert drawn == {name: one.marker for name, one in want.items()}
    told = document(runs)
    assert {m["label"]: m["style"] for m in told["methods"]} == {
        name: style_of(name) for name in want
    }
    assert f"--s3: {look(3).colour};" in html(told)
    rows = [
        {"method": name, "seconds": s, "accuracy": 0.5, "low": 0.5, "high": 0.5}
        for name in want
        for s in (0, 1)
    ]
    shares = [
        {"method": "mime", "device": "d", "part": "up", "seconds": 1.0, "order": 0},
    ]
    chart = time_chart(rows, shares, "t").to_dict()
    scale = chart["hconcat"][0]["layer"][1]["encoding"]["color"]["scale"]
    assert scale["range"] == [want[name].colour for name in scale["domain"]]


def test_lines_are_labelled_where_they_end_and_the_scale_is_named() -> None:
    chart = curves_chart([view("fednag"), view("fedavg", last=0.6)]).to_dict()
    loss, accuracy = chart["hconcat"]
    (text,) = [layer for layer in loss["layer"] if layer["mark"]["type"] == "text"]
    data = text["data"]
    rows = data["values"] if "values" in data else chart["datasets"][data["name"]]
    ends = {row["method"]: row["y"] for row in rows}
    assert ends == {"fednag": 1.5, "fedavg": pytest.approx(1.4)}
    titles = [layer["encoding"]["y"]["title"] for layer in loss["layer"][:1]]
    assert titles == ["global training loss (log scale)"]
    assert accuracy["layer"][0]["encoding"]["y"]["axis"]["format"] == "~%"
    assert chart["title"]["text"] == "made: digits"
    assert "±" not in str(chart["title"])
    seeds = curves_chart([view("fednag", s, last=0.5 + s / 10) for s in (0, 1)]).to_dict()
    assert seeds["title"]["subtitle"] == "mean over 2 seeds; band: ± one standard deviation"


def test_of_many_lines_there_is_a_legend() -> None:
    chart = curves_chart([view(name) for name in list(ALGORITHMS)[:20]]).to_dict()
    (line,) = [x for x in chart["hconcat"][0]["layer"] if x["mark"]["type"] == "line"]
    assert line["encoding"]["color"]["legend"]
    assert all(layer["mark"]["type"] != "text" for layer in layers_of(chart))


def test_labels_that_would_touch_are_moved_apart_and_keep_their_order() -> None:
    places = [5.0, 5.0, 5.1, 40.0, 44.0, 100.0]
    found = dodged(places, 10)
    assert all(b - a >= 10 - 1e-9 for a, b in pairwise(found))
    assert found[5] == 100
    assert sum(found[:3]) == pytest.approx(sum(places[:3]))
