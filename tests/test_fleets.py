"""Fleet files and samples: written, read again, and what is wrong with bad ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednag import FednagError
from fednag.clock import Sample, copy_fleet, load_fleet, read_samples, shipped
from fednag.devices.files import gather, parse_samples, read_fleet, render, write_fleet
from fednag.devices.fleet import build
from fednag.devices.times import Bootstrap, Lognormal, Recorded
from refusals import refused

CSV = """who,what,bytes,seconds
a,iteration,,0.5
a,iteration,,0.25
a,up,1000,0.1
a,up,2000,0.2
a,down,1000,0.05
aggregator,aggregation,,0.01
"""

TOML = """
format = 1
name = "mine"
samples = "s.csv"

[[device]]
name = "a"
reference = { model = "cnn", batch = 64, flops = 4.0e9 }

[[device]]
name = "b"
gflops = 2.0
up = { mbit = 8, latency = 0.5 }
down = { mbit = 16 }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "s.csv").write_text(CSV)
    (tmp_path / "fleet.toml").write_text(TOML)
    return tmp_path


def test_a_fleet_is_read(folder: Path) -> None:
    fleet = load_fleet(folder)
    a, b = fleet.devices
    assert not fleet.synthetic
    assert a.compute.times == Bootstrap((0.5, 0.25))
    assert (a.compute.flops, a.compute.reference) == (4e9, "cnn, batch 64")
    assert a.up.expected(1000) == pytest.approx(0.1)
    assert b.compute.flops == 2e9
    assert b.up.expected(1_000_000) == pytest.approx(1.5)
    assert b.down.expected(1_000_000) == pytest.approx(0.5)
    assert fleet.aggregation is not None
    assert not fleet.aggregation.per_byte


def test_the_way_of_sampling_can_be_chosen(folder: Path) -> None:
    assert load_fleet(folder, "recorded").devices[0].compute.times == Recorded((0.5, 0.25))
    assert isinstance(load_fleet(folder, "lognormal").devices[0].compute.times, Lognormal)
    (folder / "fleet.toml").write_text(
        TOML.replace("samples =", 'sampling = "recorded"\nsamples =')
    )
    assert load_fleet(folder).devices[0].compute.times == Recorded((0.5, 0.25))


def test_operations_scale_computing(folder: Path) -> None:
    import numpy as np

    compute = load_fleet(folder, "recorded").devices[0].compute
    rng = np.random.default_rng(0)
    assert compute.draw(rng, 2, 4e9, 0) == pytest.approx(0.75)
    assert compute.draw(rng, 2, 1e9, 0) == pytest.approx(0.75 / 4)


def test_a_fleet_round_trips(folder: Path, tmp_path: Path) -> None:
    from fednag.config import read

    found = read_fleet(folder)
    path = write_fleet(tmp_path / "again", read(folder / "fleet.toml"), found.samples)
    again = read_fleet(path)
    assert (again.devices, again.aggregator) == (found.devices, found.aggregator)
    assert again.samples.taken == found.samples.taken
    assert build(again).devices == build(found).devices


names = st.sampled_from(["a", "b"])
seconds = st.floats(1e-9, 1e6, exclude_min=True)
sizes = st.integers(1, 2**40)
samples = st.one_of(
    st.builds(Sample, names, st.just("iteration"), st.none(), seconds),
    st.builds(Sample, names, st.sampled_from(["up", "down"]), sizes, seconds),
    st.builds(Sample, st.just("aggregator"), st.just("aggregation"), st.none() | sizes, seconds),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(samples, min_size=1, max_size=20))
def test_samples_round_trip_digit_for_digit(taken: list[Sample]) -> None:
    again = parse_samples(render(taken), "here", ["a", "b"])
    assert again.taken == gather(taken).taken


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=80), st.integers(0, len(CSV)))
def test_whatever_stands_in_a_file_of_samples(text: str, place: int) -> None:
    """Samples, or one sentence that names the file."""
    for content in (text, CSV[:place] + text + CSV[place:]):
        sentence = ""
        try:
            found = parse_samples(content, "s.csv", ["a", "b"])
            assert all(sample.seconds > 0 for sample in found.all())
        except FednagError as error:
            sentence = str(error)
        assert not sentence or sentence.startswith("s.csv: ")
        assert len(sentence.splitlines()) <= 1


BAD_SAMPLES = [
    ("", "s.csv: is empty; its first line is who,what,bytes,seconds"),
    ("who,what,bytes,seconds\n", "s.csv: has no samples; put a line for each below the first"),
    (CSV.replace("seconds", "secnds"), "line 1: no column 'secnds' (did you mean seconds?)"),
    (CSV.replace(",seconds", ""), "line 1: seconds is missing; the columns are who,what,bytes"),
    (CSV.replace("0.25", "-1"), "line 3: seconds: '-1' is not allowed; write a number above 0"),
    (CSV.replace("0.25", "nan"), "line 3: seconds: 'nan' is not allowed"),
    (CSV.replace("0.25", "inf"), "line 3: seconds: 'inf' is not allowed"),
    (CSV.replace("0.25", "0"), "line 3: seconds: '0' is not allowed"),
    (CSV.replace("0.25", ""), "line 3: seconds: '' is not allowed"),
    (CSV.replace("0.25", "fast"), "line 3: seconds: 'fast' is not allowed"),
    (CSV.replace("a,up,1000", "a,up,0"), "line 4: bytes: '0' is not allowed; write a whole number"),
    (CSV.replace("a,up,1000", "a,up,"), "line 4: bytes: '' is not allowed"),
    (CSV.replace("a,up,1000", "a,up,1.5"), "line 4: bytes: '1.5' is not allowed"),
    (CSV.replace("a,iteration,,0.5", "a,iteration,8,0.5"), "bytes: an iteration has none"),
    (CSV.replace("a,up,1000", "a,upp,1000"), "what: 'upp' is not sampled for a (did you mean up?)"),
    (CSV.replace("a,up,1000", "agregator,up,1000"), "who: no device 'agregator' in the fleet file"),
    (CSV.replace("aggregator,aggregation", "aggregator,up"), "'up' is not sampled for aggregator"),
    (CSV.replace("0.25", "0.25,9"), "line 3: has 5 cells, not 4"),
    (CSV.replace("a,up,1000", '"a,up,1000'), "line 7: is not CSV"),
]


@pytest.mark.parametrize(("text", "sentence"), BAD_SAMPLES)
def test_bad_samples_are_named(folder: Path, text: str, sentence: str) -> None:
    (folder / "s.csv").write_text(text)
    with pytest.raises(FednagError) as raised:
        load_fleet(folder)
    assert str(raised.value).startswith(str(folder / "s.csv"))
    assert sentence in str(raised.value)


A = 'reference = { model = "cnn", batch = 64, flops = 4.0e9 }'
BAD_FLEETS = [
    ("nam", "name", "mine", "name: is missing; give it a value (and 1 more)"),
    ("mbit = 8,", "mbit = 0,", "", "device b: up: mbit: 0 is not allowed; it should be above 0"),
    ("mbit = 8,", "mbitt = 8,", "", "device b: up: mbitt: no such key (did you mean mbit?)"),
    ("gflops = 2.0", "gflops = -2.0", "", "device b: gflops: -2.0 is not allowed"),
    ("gflops = 2.0", "gflops = nan", "", "device b: gflops: nan is not allowed"),
    ("gflops = 2.0", "gflop = 2.0", "", "device b: gflop: no such key (did you mean gflops?)"),
    ("gflops = 2.0", "", "", "device b: nothing says how fast it computes; give gflops, iteration"),
    ("gflops = 2.0", "iteration = 1.0", "", "device b: reference: is missing; say what an iter"),
    ("gflops = 2.0", "gflops = 2.0\niteration = 1.0", "", "give gflops or iteration, not both"),
    ("gflops = 2.0", f"gflops = 2.0\n{A}", "", "device b: reference: gflops needs none"),
    ("down = { mbit = 16 }", "", "", "device b: down: is missing; give e.g. down = {mbit = 100"),
    ('name = "b"', 'name = "a"', "", "device a: is there twice; use another name, or count"),
    ('name = "b"', 'name = "aggregator"', "", "name: 'aggregator' is not a device"),
    (A, f"{A}\nup = {{ mbit = 1 }}", "", "device a: up: "),
    (A, f"{A}\ngflops = 1.0", "", "device a: gflops: "),
    (A, f"{A}\nspread = 1.0", "", "device a: spread: samples have their own; leave it out"),
    ("batch = 64", "batch = 0", "", "device a: reference: batch: 0 is not allowed"),
    ('samples = "s.csv"', 'samples = "t.csv"', "", "t.csv: cannot be read (No such file"),
    ('samples = "s.csv"', 'sampls = "s.csv"', "", "sampls: no such key (did you mean samples?)"),
    ('samples = "s.csv"', 'sampling = "boot"', "", "sampling: 'boot' is not allowed"),
    ("format = 1", "format = 2", "", "format: 2 is newer than this fednag, which knows 1"),
    ("[[device]]", "[[device]", "", "is not TOML"),
    ("gflops = 2.0", "gflops = 2.0\nperiod = 5.0", "", "period: goes only with available"),
    ("gflops = 2.0", "gflops = 2.0\navailable = [[5, 2]]", "", "available: [5, 2] does not end"),
    ("gflops = 2.0", "gflops = 2.0\navailable = []", "", "available: is empty"),
    (
        "gflops = 2.0",
        "gflops = 2.0\navailable = [[0, 5], [4, 8]]",
        "",
        "available: intervals overlap or are not in order",
    ),
    (
        "gflops = 2.0",
        "gflops = 2.0\navailable = [[0, 5]]\nperiod = 4.0",
        "",
        "available: ends at 5, after the period of 4; raise period",
    ),
]


@pytest.mark.parametrize(("old", "new", "_", "sentence"), BAD_FLEETS)
def test_bad_fleets_are_named(folder: Path, old: str, new: str, _: str, sentence: str) -> None:
    path = folder / "fleet.toml"
    path.write_text(TOML.replace(f"{old}", new, 1) if old != "nam" else "format = 1\n")
    with pytest.raises(FednagError) as raised:
        load_fleet(path)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)
    assert str(raised.value).startswith(str(folder))


def test_a_fleet_that_is_not_there_is_named() -> None:
    with pytest.raises(
        FednagError, match=r"paper-edg: no such fleet \(did you mean paper-edge\?\)"
    ):
        load_fleet("paper-edg")


def test_a_missing_file_of_samples_is_named(tmp_path: Path) -> None:
    with refused(source=str(tmp_path / "none.csv")):
        read_samples(tmp_path / "none.csv", ["a"])


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_fleet_can_be_copied_and_edited(name: str, tmp_path: Path) -> None:
    path = copy_fleet(name, tmp_path / "mine.toml")
    assert load_fleet(path).devices == load_fleet(name).devices
    assert load_fleet(path).digest == load_fleet(name).digest
    with refused(source=str(path)):
        copy_fleet(name, path)
    path.write_text(path.read_text().replace("spread = 0", "spread = 1", 1))
    assert load_fleet(path).digest != load_fleet(name).digest


def test_devices_of_a_kind_leave_one_after_the_other() -> None:
    fleet = load_fleet("vehicles")
    assert [device.availability.shift for device in fleet.devices] == [18.0 * i for i in range(8)]


def test_the_paper_edge_file_explains_itself() -> None:
    text = read_fleet("paper-edge").text
    for fact in ("SYNTHETIC", "not fitted", "2.53 GHz", "Snapdragon 835", "802.11ac", "433 Mbit/s"):
        assert fact in text
