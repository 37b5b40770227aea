"""Published traces: files of their shapes made by hand, damaged ones, and hostile ones."""

from __future__ import annotations

import io
import json
import pickle
import re
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednag import FednagError
from fednag.clock import Stage, Workload, load_fleet, replay
from fednag.data.download import File, Source
from fednag.devices.executor import notes_on
from fednag.devices.opcodes import plain_data, read_plain
from fednag.devices.published import PUBLISHED, get_trace
from fednag.devices.traces import KINDS, Assumed, convert, read_table
from refusals import refused

CAPACITY = {
    432802: {"computation": 162.0, "communication": 5648.0},
    7: {"computation": 40, "communication": 20000.5},
    11: {"computation": 1.5, "communication": 800.0},
}
BEHAVIOUR = {
    0: {
        "duration": 211625,
        "inactive": [65881, 133574, 208292],
        "finish_time": 518400,
        "active": [12788, 100044, 188992],
        "model": "CPH1801",
    },
    1: {"duration": 10, "inactive": [20], "finish_time": 100, "active": [10], "model": "x"},
}

# Plain data out of opcodes

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=5)
        | st.tuples(inner, inner)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(plain, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data_is_what_was_written(data: Any, protocol: int) -> None:
    assert plain_data(pickle.dumps(data, protocol)) == data


def test_python_2_wrote_texts_and_numbers_otherwise() -> None:
    """Protocol 0 and 2 of Python 2, opcode by opcode."""
    assert plain_data(b"(dp0\nS'a'\np1\nI3\nsS'b'\nL12L\nsS'c'\nF0.5\ns.") == {
        "a": 3,
        "b": 12,
        "c": 0.5,
    }
    assert plain_data(b"\x80\x02}q\x00(U\x01aq\x01K\x05T\x01\x00\x00\x00bI01\nu.") == {
        "a": 5,
        "b": True,
    }


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


HOSTILE = [
    b"cos\nsystem\n(S'touch owned'\ntR.",
    b"(S'touch owned'\nios\nsystem\n.",
    b"(cos\nsystem\nS'touch owned'\no.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0btouch owned\x85R.",
    b"\x80\x02cbuiltins\nobject\n)\x81}b.",
    b"\x80\x02}(K\x01cbuiltins\neval\nu.",
    b"Pname\n.",
    b"K\x01Q.",
    b"\x82\x01.",
    b"\x97.",
]


@pytest.mark.parametrize("data", HOSTILE)
def test_a_hostile_file_is_refused_and_nothing_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path("client_device_capacity")
    path.write_bytes(data)
    with refused(source=str(path), says="and nothing of it was run; give one of dictionaries"):
        convert("fedscale", [path], Path("out"))
    assert [found.name for found in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_pickle_would_run_is_not_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "owned"
    data = pickle.dumps({**CAPACITY, 9: Hostile(mark)}, protocol)
    with refused(says="nothing of it was run"):
        plain_data(data, "here")
    assert not mark.exists()
    pickle.loads(data)  # noqa: S301 (it is hostile indeed)
    assert mark.exists()


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 5), st.integers(0, 400), st.binary(max_size=12), st.booleans())
def test_whatever_stands_in_a_file(protocol: int, place: int, junk: bytes, cut: bool) -> None:
    """Data or one sentence, and never anything else."""
    data = pickle.dumps(BEHAVIOUR, protocol)
    bad = data[:place] + junk + (b"" if cut else data[place + len(junk) :])
    sentence = ""
    try:
        plain_data(bad, "here")
    except FednagError as error:
        sentence = str(error)
    assert not sentence or sentence.startswith("here: is ")
    assert "\n" not in sentence


def test_what_would_take_all_memory_or_depth_is_refused() -> None:
    for data in (
        b"\x8b\xff\xff\xff\x7f.",  # a number of 2 GiB
        b"X\xff\xff\xff\xff.",
        b"}" + b")" + b"\x85" * 10**5 + b"K\x01s.",  # a key a million tuples deep
        b"L" + b"9" * 10**5 + b"L\n.",
        b"(" * 10**5,
    ):
        with refused(says="is not a pickle of plain data"):
            plain_data(data, "here")


# FedScale


def written(folder: Path, name: str, data: Any, as_json: bool = False) -> Path:
    path = folder / name
    path.write_bytes(json.dumps(data).encode() if as_json else pickle.dumps(data))
    return path


@pytest.mark.parametrize("as_json", [False, True])
def test_fedscale_by_hand(tmp_path: Path, as_json: bool) -> None:
    """162 ms a forward pass are 0.486 s a training step of 3.5 GFLOP; 5,648 kbit/s carry a
    megabyte in 8000 / 5648 s."""
    paths = [
        written(tmp_path, "client_device_capacity", CAPACITY, as_json),
        written(tmp_path, "client_behave_trace", BEHAVIOUR, as_json),
    ]
    path, said = convert("fedscale", paths, tmp_path / "phones")
    fleet = load_fleet(path)
    one, two, three = fleet.devices
    assert one.compute.times.mean == pytest.approx(0.486)
    assert one.compute.flops == 3.5e9
    assert one.up.expected(1_000_000) == one.down.expected(1_000_000) == pytest.approx(8000 / 5648)
    assert one.availability.intervals == (
        (12788.0, 65881.0),
        (100044.0, 133574.0),
        (188992.0, 208292.0),
    )
    assert one.availability.period == 518400
    assert two.availability.intervals == ((10.0, 20.0),)
    assert three.availability.intervals == one.availability.intervals  # again from the first
    assert fleet.synthetic
    assert "computing and links" in fleet.measured
    assert any("3.5e+09 FLOP" in note for note in said)
    alone, _ = convert("fedscale", paths[:1], tmp_path / "alone", Assumed(flops=7e9))
    assert load_fleet(alone).devices[0].compute.flops == 7e9
    assert not load_fleet(alone).comes_and_goes


def test_a_converted_fleet_is_replayed(tmp_path: Path) -> None:
    """The first device: after 12,788 s a megabyte down, five steps of its model, one up."""
    paths = [
        written(tmp_path, "capacity", {432802: CAPACITY[432802]}),
        written(tmp_path, "behaviour", BEHAVIOUR),
    ]
    fleet = load_fleet(convert("fedscale", paths, tmp_path / "one")[0])
    stages = (Stage(down=1_000_000, up=1_000_000),)
    work = Workload(tau=5, iterations=5, batch=10, seed=0, sizes=(100,), flops=3.5e8, stages=stages)
    expected = 12788 + 8000 / 5648 + 5 * 0.486 + 8000 / 5648
    assert replay(fleet, work, 1, seed=0).ends[-1] == pytest.approx(expected)


def test_of_many_devices_some_are_chosen_evenly(tmp_path: Path) -> None:
    many = {i: {"computation": i + 1.0, "communication": 1000.0} for i in range(10)}
    path, said = convert("fedscale", [written(tmp_path, "c", many)], tmp_path / "f", most=4)
    means = [d.compute.times.mean for d in load_fleet(path).devices]
    assert means == pytest.approx([0.003, 0.009, 0.018, 0.024])
    assert "4 of 10 devices, evenly chosen (--most)" in said


DAMAGED: list[tuple[Any, str]] = [
    ({1: {"computation": 1.0}}, "has neither capacities nor availability"),
    ({1: {"computation": -1, "communication": 1}}, "'1': computation: -1 is not allowed"),
    ({1: {"computation": "x", "communication": 1}}, "'1': computation: is no number"),
    ({1: {"computation": 10**50, "communication": 1}}, "'1': computation: is no number"),
    ({1: {"computation": float("nan"), "communication": 1}}, "computation: is no number"),
    ({1: {"computation": 1.0, "communication": [[1]]}}, "communication: is no number"),
    ({}, "has no devices"),
    ([1], "is not a table of devices"),
    ({1: 2}, "is not a table of devices"),
    (BEHAVIOUR, "has availability alone; give client_device_capacity with it"),
]


@pytest.mark.parametrize(("data", "sentence"), DAMAGED)
def test_what_is_wrong_with_a_table_is_said(tmp_path: Path, data: Any, sentence: str) -> None:
    path = written(tmp_path, "c", data)
    with pytest.raises(FednagError) as caught:
        convert("fedscale", [path], tmp_path / "out")
    assert str(caught.value).startswith(str(path))
    assert sentence in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"inactive": [20, 30]}, "'1': inactive: has 2 times, and active 1; give as many"),
        ({"active": ["a"]}, "'1': active: is not a list of numbers"),
        ({"active": None}, "'1': active: is not a list of numbers"),
        ({"finish_time": 0}, "'1': finish_time: 0 is not allowed"),
        ({"active": [50], "inactive": [40]}, "no device can ever be reached"),
    ],
)
def test_what_is_wrong_with_availability_is_said(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    capacity = written(tmp_path, "c", CAPACITY)
    bad = written(tmp_path, "b", {1: {**BEHAVIOUR[1], **change}})
    with pytest.raises(FednagError) as caught:
        convert("fedscale", [capacity, bad], tmp_path / "out")
    assert sentence in str(caught.value)


def test_an_empty_or_missing_file_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with refused(source=str(tmp_path / "empty"), says="is not JSON"):
        read_table(tmp_path / "empty")
    with refused(says="No such file"):
        read_table(tmp_path / "none")
    with refused(says="No such file"):
        read_plain(tmp_path / "none")
    (tmp_path / "deep").write_text("[" * 10**5)
    with refused(says="is not JSON"):
        read_table(tmp_path / "deep")


# FLASH

LOG = "\n".join(
    f"2020-01-02 {line}"
    for line in (
        "21:00:00\tbattery_charged_on",
        "21:30:00\tscreen_lock",
        "22:00:00\tWIFI",
        "22:10:00\t85.0%",
        "23:00:00\tscreen_unlock",
        "23:10:00\tscreen_lock",
    )
)
LOG += "\n2020-01-03 06:00:00\tbattery_charged_off\n2020-01-03 09:00:00\tscreen_on\n"


def test_flash_by_hand(tmp_path: Path) -> None:
    """Locked, charging and on Wi-Fi from 22:00 to 23:00 and from 23:10 to 6:00; two days."""
    users = {
        "a": {"guid": "a", "model": "Redmi Note 8", "messages": LOG},
        "never": {"guid": "b", "model": "x", "messages": LOG.replace("WIFI", "4G")},
    }
    path = written(tmp_path, "state_traces.json", users, as_json=True)
    made, said = convert("flash", [path], tmp_path / "f", Assumed(gflops=5, up=2, down=10))
    (phone,) = load_fleet(made).devices
    hours = [(a / 3600, b / 3600) for a, b in phone.availability.intervals]
    assert hours == [(22, 23), (pytest.approx(23 + 1 / 6), 30)]
    assert phone.availability.period == 2 * 86400
    assert phone.compute.flops == 5e9
    assert phone.up.expected(250_000) == pytest.approx(1.05)
    assert any("1 were left out" in note for note in said)
    assert any(note.startswith("assumed: 5 GFLOP/s (--gflops), 2 Mbit/s up") for note in said)


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ("yesterday\twifi", "'a': messages, line 1: 'yesterday\\twifi' is not a time and a state"),
        ("2020-01-02 03:04:05", "messages, line 1: '2020-01-02 03:04:05' is not a time and a st"),
        (
            "2020-01-02 03:04:05\twifi\n2020-01-01 03:04:05\twifi",
            "messages, line 2: goes back in time; sort the lines",
        ),
        (None, "messages: is missing"),
        ("", "no phone is ever there to train"),
    ],
)
def test_what_is_wrong_with_a_log_is_said(tmp_path: Path, messages: Any, sentence: str) -> None:
    path = written(tmp_path, "s.json", {"a": {"messages": messages}}, as_json=True)
    with pytest.raises(FednagError) as caught:
        convert("flash", [path], tmp_path / "f")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


# Raca's logs

HEADING = "Timestamp,Longitude,Latitude,Speed,Operatorname,CellID,NetworkMode,RSRP,RSRQ,SNR,CQI,"
HEADING += "RSSI,DL_bitrate,UL_bitrate,State,PINGAVG\n"
SECOND = "2019.11.28_07.27.0{},-8.38,51.93,0,B,12,5G,-100,-10,8.0,10,-,{},20,{},-\n"
GNETTRACK = HEADING + "".join(
    SECOND.format(i, rate, state)
    for i, (rate, state) in enumerate([(4000, "D"), (0, "D"), (8000, "D"), (9000, "I")])
)


def test_raca_by_hand(tmp_path: Path) -> None:
    """A megabyte at 4 Mbit/s takes 2 s, at 8 Mbit/s 1 s; seconds of nothing and of idling do not
    count."""
    (tmp_path / "a.csv").write_text(GNETTRACK)
    path, said = convert("raca", [tmp_path / "a.csv"], tmp_path / "f")
    fleet = load_fleet(path, "recorded")
    (phone,) = fleet.devices
    import numpy as np

    rng = np.random.default_rng(0)
    times = [phone.down.draw(rng, 1_000_000, round_) for round_ in range(3)]
    assert times == pytest.approx([2.0, 1.0, 2.0])
    assert phone.down.draw(rng, 500_000, 0) == pytest.approx(1.0)
    assert phone.up.expected(1_000_000) == pytest.approx(0.05 + 1.0)  # 8 Mbit/s, assumed
    assert fleet.measured == "rates down, second by second"
    assert any("8 Mbit/s up (--up)" in note for note in said)


def test_logs_may_be_in_an_archive_or_a_folder(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    idle = GNETTRACK.replace(",D,", ",I,")
    for name, text in (("a.csv", GNETTRACK), ("b.csv", GNETTRACK), ("idle.csv", idle)):
        (tmp_path / "logs" / name).write_text(text)
    with zipfile.ZipFile(tmp_path / "5G.zip", "w") as archive:
        archive.writestr("Driving/../../a.csv", GNETTRACK)  # a name is never a path here
        archive.writestr("Static/b.csv", GNETTRACK)
        archive.writestr("README", "no log")
    from_folder, said = convert("raca", [tmp_path / "logs"], tmp_path / "f")
    from_archive, _ = convert("raca", [tmp_path / "5G.zip"], tmp_path / "g")
    for path in (from_folder, from_archive):
        assert len(load_fleet(path).devices) == 2
    assert any("1 were left out: nothing is downloaded" in note for note in said)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("DL_bitrate", "DL", "a.csv: line 1: no column DL_bitrate; give a file as it was publ"),
        (",8000,", ",fast,", "a.csv: line 4: DL_bitrate: 'fast' is not allowed"),
        (",8000,", ",-5,", "line 4: DL_bitrate: '-5' is not allowed"),
        (",8000,", ",nan,", "line 4: DL_bitrate: 'nan' is not allowed"),
        (",D,", ",I,", "nothing is downloaded in it"),
    ],
)
def test_what_is_wrong_with_measurements_is_said(
    tmp_path: Path, old: str, new: str, sentence: str
) -> None:
    (tmp_path / "a.csv").write_text(GNETTRACK.replace(old, new))
    with pytest.raises(FednagError) as caught:
        convert("raca", [tmp_path / "a.csv"], tmp_path / "f")
    assert sentence in str(caught.value)


def test_a_damaged_archive_is_a_sentence(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.csv", GNETTRACK)
    data = packed.getvalue()
    for bad in (data[:40], b"no archive", data.replace(data[40:60], bytes(20), 1)):
        (tmp_path / "x.zip").write_bytes(bad)
        with refused(source=str(tmp_path / "x.zip")):
            convert("raca", [tmp_path / "x.zip"], tmp_path / "f")


# MobileBandwidth


def test_bandwidth_tests_by_hand(tmp_path: Path) -> None:
    """The columns as published; three tests, of which one had no connection."""
    (tmp_path / "4G.csv").write_text(
        "brand,model,os_version,network_type,bandwidth_Mbps\nvivo,V1,11,4G,138.3\nOPPO,P,12,4G,0\n"
    )
    (tmp_path / "wifi5.csv").write_text(
        "brand,network_type,bandwidth_Mbps,wifi_wifiStandard\nvivo,WIFI,2.5,5\n"
    )
    paths = [tmp_path / "4G.csv", tmp_path / "wifi5.csv"]
    path, said = convert("mobile-bandwidth", paths, tmp_path / "f", Assumed(latency=0))
    devices = load_fleet(path).devices
    assert [d.name for d in devices] == ["4g-1", "wifi5-2"]
    assert [d.down.expected(1_000_000) for d in devices] == pytest.approx([8 / 138.3, 3.2])
    assert [d.up.expected(1_000_000) for d in devices] == pytest.approx([1.0, 3.2])
    assert said[0] == "measured: rates down"
    with refused(says="is a spreadsheet; save it as CSV"):
        convert("mobile-bandwidth", [Path("4G.xlsx")], tmp_path / "g")


def test_the_shipped_rates_are_those_of_the_tests_in_its_comments() -> None:
    """Each of a group's six phones has the group's median; nothing was left out."""
    from fednag.devices.files import read_fleet

    described = read_fleet("mobile-bandwidth")
    comments = re.sub(r"\n#  +", " ", described.text)
    rates = {
        kind: sorted(map(float, line.split()))
        for kind, line in re.findall(r"^# (4g|5g|wifi5): ([\d. ]+)$", comments, re.M)
    }
    assert {kind: len(found) for kind, found in rates.items()} == {"4g": 36, "5g": 36, "wifi5": 36}
    expected = {
        f"{kind}-{group + 1}": pytest.approx(median(found[6 * group : 6 * group + 6]), abs=1e-3)
        for kind, found in rates.items()
        for group in range(6)
    }
    assert {d.name: (d.down or {})["mbit"] for d in described.devices} == expected
    notes = " ".join(notes_on(load_fleet("mobile-bandwidth"), 4))
    assert "synthetic: measured are the rates down, of 108 bandwidth tests" in notes
    assert "Apache License 2.0" in described.text


# Downloads, and the commands


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "site"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield folder, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_trace_is_fetched_and_its_sum_noted(site: tuple[Path, str], tmp_path: Path) -> None:
    """Nobody published a sum: the first download's holds, and a changed file is fetched anew."""
    folder, address = site
    written(folder, "capacity", CAPACITY)
    source = Source("fedscale", "traces/f", (File("capacity"),), (address,), command="time get")
    home = get_trace("fedscale", tmp_path / "here", False, source)
    assert read_table(home / "capacity") == CAPACITY
    noted = (home / "capacity.sha256").read_text().strip()
    assert len(noted) == 64
    before = (home / "capacity").stat().st_mtime_ns
    get_trace("fedscale", tmp_path / "here", False, source)
    assert (home / "capacity").stat().st_mtime_ns == before
    (home / "capacity").write_bytes(b"changed")
    get_trace("fedscale", tmp_path / "here", False, source)
    assert read_table(home / "capacity") == CAPACITY
    (home / "capacity.sha256").unlink()
    (home / "capacity").write_bytes(b"put there by hand")
    get_trace("fedscale", tmp_path / "here", False, source)
    assert (home / "capacity").read_bytes() == b"put there by hand"


def test_without_a_network_it_says_what_to_do(site: tuple[Path, str], tmp_path: Path) -> None:
    _, address = site
    source = Source("fedscale", "traces/f", (File("nothing"),), (address,), command="time get")
    with pytest.raises(FednagError) as caught:
        get_trace("fedscale", tmp_path, False, source)
    said = str(caught.value)
    target = tmp_path / "traces" / "f" / "nothing"
    assert "(HTTP 404): check the network" in said
    assert f"put the file at {target} by hand, then run `fednag time get fedscale` again" in said
    assert not target.exists()


def test_traces_say_whose_they_are() -> None:
    for name, found in PUBLISHED.items():
        assert found.kind in KINDS
        assert found.licence
        assert found.page.startswith("https://")
        assert found.source is None or found.source.command == "time get"
        for address in found.source.addresses if found.source else ():
            assert address.startswith("https://")
        if found.source is None:
            with refused(says="fetch it by hand from https://"):
                get_trace(name)
    with refused(says="did you mean fedscale"):
        get_trace("fedscal")


def fednag(monkeypatch: pytest.MonkeyPatch, capsys: Any, *words: str) -> tuple[Any, str, str]:
    from fednag import cli

    monkeypatch.setattr("sys.argv", ["fednag", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    printed = capsys.readouterr()
    return ended.value.code or 0, printed.out, printed.err


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDNAG_DATA", str(tmp_path / "data"))
    code, out, _ = fednag(monkeypatch, capsys, "time", "get")
    assert code == 0
    assert "fedscale" in out
    assert "Apache-2.0" in out
    code, _, err = fednag(monkeypatch, capsys, "time", "convert", "fedscale")
    assert code == 2
    assert "give them, or run `fednag time get fedscale`" in err
    home = tmp_path / "data" / "traces" / "fedscale"
    home.mkdir(parents=True)
    written(home, "client_device_capacity", CAPACITY)
    written(home, "client_behave_trace", BEHAVIOUR)
    words = ("time", "convert", "fedscale", "--plain", "--json", "--out", "f")
    code, out, err = fednag(monkeypatch, capsys, *words)
    assert code == 0, err
    assert json.loads(out)["fleet"] == "f/fleet.toml"
    assert read_table(Path("f/client_device_capacity.json")).keys() == {"432802", "7", "11"}
    code, out, _ = fednag(monkeypatch, capsys, "time", "get", "fedscale", "--json")
    assert code == 0
    assert json.loads(out)["licence"] == "Apache-2.0"
    code, _, err = fednag(monkeypatch, capsys, *words)
    assert code == 2
    assert "is there already; choose another --out" in err
    for bad in (("fedscal",), ("raca", "--plain"), ("raca", "--up", "0"), ("raca", "nothing.csv")):
        code, _, err = fednag(monkeypatch, capsys, "time", "convert", *bad, "--out", "g")
        assert code == 2
        assert err.count("\n") == 1
