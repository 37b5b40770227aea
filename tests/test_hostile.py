"""Files, names and moments that nobody wishes for: the right thing, or one sentence."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fednag
from fednag import FednagError, cli
from fednag.core.record import Record
from fednag.data.arrays import LIMIT, read_npy, read_npz
from fednag.data.tables import Source, read_table
from fednag.errors import printable
from fednag.runs.folder import RunFolder
from fednag.show.serve import Server
from fednag.show.watch import Follower


def called(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """(exit code, standard output, standard error)"""
    monkeypatch.setattr(sys, "argv", ["fednag", *words])
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def written(root: Path, label: str = "fednag", rounds: int = 0, status: str = "running") -> Path:
    """A run with a record of w(0), and of so many rounds."""
    run = RunFolder.create(root, "hand", "a")
    for number in range(rounds + 1):
        run.append(Record(2 * number, number, 2.0, 0.1, 0.1, 8 * number, 8 * number, 0.1, 4))
    run.config_file.write_text('name = "hand"\n[algorithm]\nname = "fednag"\n')
    run.write_info({"status": status, "label": label, "seed": 0})
    return run.path


def test_a_run_stopped_before_its_first_round_has_not_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "runs")
    for words in (("show", "runs"), ("report", "runs"), ("watch", "runs", "--once")):
        code, out, err = called(monkeypatch, capsys, *words)
        assert (code, err) == (0, "")
        assert "diverged" not in out
    sentence = json.loads(called(monkeypatch, capsys, "report", "runs", "--json")[1])["sentence"]
    assert sentence.endswith("fednag has not come to the end of a round yet.")
    code, _, err = called(monkeypatch, capsys, "report", "runs", "--fleet", "paper-edge")
    assert (code, err.count("\n")) == (2, 1)
    assert "no run has a round yet" in err


def test_escapes_in_names_are_shown_and_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "runs", "red\x1b[31m\u202e\x9b2J", rounds=2)
    for words in (("show", "runs"), ("show", "runs", "--each"), ("watch", "runs", "--once")):
        code, out, err = called(monkeypatch, capsys, *words)
        assert (code, err) == (0, "")
        assert not {"\x1b", "\u202e", "\x9b"} & set(out)
    code, _, err = called(monkeypatch, capsys, "run", "\x1b[2J.toml")
    assert (code, "\x1b" in err) == (2, False)
    assert printable("red\x1b[31m\u202e\x9b2J\udcff") == "red\\x1b[31m\\u202e\\x9b2J\\udcff"
    assert printable("±ä 語\n\t") == "±ä 語\n\t"


def test_a_folder_whose_name_is_no_text_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"r\xff")
    code, _, err = called(monkeypatch, capsys, "compare", "--out", name)
    assert (code, err.count("\n")) == (2, 1)
    assert "--out r\\udcff: its name is not text in UTF-8" in err
    assert not list(tmp_path.iterdir())
    with pytest.raises(FednagError, match="not text in UTF-8"):
        fednag.run("fednag", model="logistic", tau=1, iterations=1, out=tmp_path / name)
    written(tmp_path, rounds=1).parent.rename(tmp_path / name)  # one that is there is read
    code, out, err = called(monkeypatch, capsys, "show", name, "--each")
    assert (code, err) == (0, "")
    assert "1 runs, best first" in out


def test_a_split_of_numbers_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [])
    rows = "\n".join(f"{i},{i / 7}" for i in range(20))
    Path("a.csv").write_text(f"x,y\n{rows}\n")
    code, out, err = called(monkeypatch, capsys, "data", "split", "a.csv", "--workers", "2")
    assert (code, err) == (0, "")
    assert "samples at each worker" in " ".join(out.split())
    code, out, _ = called(monkeypatch, capsys, "data", "split", "a.csv", "--workers=2", "--json")
    assert json.loads(out)["held"] == [[8], [8]]


@pytest.mark.parametrize("rows", ["1,a", "1,a\n2,b", "1,a\n2,b\n3,a", "1,0.5\n2,1.5"])
def test_the_smallest_tables(
    rows: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fednag.show.charts.save", lambda chart, stem, *_: [])
    Path("a.csv").write_text(f"x,y\n{rows}\n")
    code, _, err = called(monkeypatch, capsys, "data", "split", "a.csv", "--workers", "1")
    assert code in (0, 2)
    assert err.count("\n") == (code == 2)
    Path("e.toml").write_text(
        'data = {name = "file", path = "a.csv"}\nsplit.workers = 1\nmodel.name = "logistic"\n'
        "training = {tau = 1, iterations = 2}\n"
    )
    code, _, err = called(monkeypatch, capsys, "run", "e.toml", "--quiet")
    assert code in (0, 2)
    assert err.count("\n") == (code == 2)


CELLS = {
    "9" * 400: "where a finite number should be",
    "99999999999999999999": "a whole number beyond 64 bits",
    "inf": "where a finite number should be",
}


@pytest.mark.parametrize("cell", CELLS)
def test_targets_that_do_not_fit_are_told(cell: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"x,y\n1,{cell}\n2,1\n3,2\n")
    with pytest.raises(FednagError, match=CELLS[cell]):
        read_table(Source(tmp_path / "a.csv"))


def npz(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def claiming(path: Path, shape: tuple[int, ...], payload: int = 8, kind: str = "<f8") -> Path:
    """An NPZ whose x says that it has another shape, compressed as such files may be."""
    header = io.BytesIO()
    about = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, about)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header.getvalue() + bytes(payload))
    return path


def test_a_file_that_lies_about_its_size_takes_no_memory(tmp_path: Path) -> None:
    with pytest.raises(FednagError, match="array 'x' cannot be read: its header claims 107374"):
        read_npz(claiming(tmp_path / "a.npz", (10 << 30, 1), kind="|u1"))
    with pytest.raises(FednagError, match="its header claims 16 bytes, and"):
        read_npz(claiming(tmp_path / "b.npz", (2,), payload=24))
    with pytest.raises(FednagError, match=r"its header is no array's|claims"):
        read_npz(claiming(tmp_path / "c.npz", (-1, 3)))
    with pytest.raises(FednagError, match="it holds object"):
        read_npz(npz(tmp_path / "d.npz", x=np.array([{}], dtype=object)))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("fednag.data.arrays.LIMIT", 1 << 20)
        with pytest.raises(FednagError, match=r"it takes 0\.0 GiB, and at most 0 are read"):
            read_npz(npz(tmp_path / "e.npz", x=np.zeros(1 << 18)))
    assert LIMIT >= 1 << 32


def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path) -> None:
    arrays = {
        "fortran": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "big": np.arange(5, dtype=">i4"),
        "words": np.array(["ä", "語"]),
        "bits": np.array([True, False]),
        "none": np.zeros((0, 3)),
        "one": np.array(3.5),
        "large": np.arange(1 << 18),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", **arrays)
        for name, array in read_npz(tmp_path / "a.npz").items():
            assert array.shape == arrays[name].shape
            np.testing.assert_array_equal(array, arrays[name])
            assert array.dtype.isnative
    np.save(tmp_path / "a.npy", arrays["fortran"])
    np.testing.assert_array_equal(read_npy(tmp_path / "a.npy"), arrays["fortran"])


WRONG = {
    "no rows": {"x": np.float64(1), "y": np.arange(1)},
    "no features": {"x": np.zeros((4, 0)), "y": np.arange(4)},
    "a target alone": {"x": np.zeros((4, 1)), "y": np.float64(1)},
    "empty targets": {"x": np.zeros((4, 1)), "y": np.zeros((4, 0))},
    "owners": {"x": np.zeros((4, 1)), "y": np.arange(4), "owners": np.zeros((4, 2))},
    "beyond": {"x": np.zeros((4, 1)), "y": np.full(4, 2**64 - 1, dtype=np.uint64)},
    "complex": {"x": np.zeros((4, 1)), "y": np.zeros(4, dtype=complex)},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_arrays_of_other_shapes_are_a_sentence(wrong: str, tmp_path: Path) -> None:
    with pytest.raises(FednagError, match=r"it must hold|whole numbers go up to"):
        read_table(Source(npz(tmp_path / "a.npz", **WRONG[wrong])))


def test_damaged_arrays_are_refused_or_read_as_they_were(tmp_path: Path) -> None:
    """What the archive's checksum covers is never read as another number."""
    rng = np.random.default_rng(0)
    file = npz(tmp_path / "a.npz", x=rng.normal(size=(9, 2)), y=np.array(["a", "b", "c"] * 3))
    content, whole = file.read_bytes(), read_npz(file)
    refused = 0
    for place in range(0, len(content), 7):
        for changed in (
            content[:place] + bytes([content[place] ^ (1 << place % 8)]) + content[place + 1 :],
            content[:place],
        ):
            file.write_bytes(changed)
            try:
                found = read_npz(file)
                read_table(Source(file))
            except FednagError as error:
                refused += 1
                sentence = str(error)
            else:
                for name in found:
                    np.testing.assert_array_equal(found[name], whole[name])
                continue
            assert "\n" not in sentence
    assert refused > len(content) // 7


@pytest.mark.parametrize("request_", [b"GET http://[::1 HTTP/1.0", b"GET //[ HTTP/1.0"])
def test_a_request_for_no_address_is_answered(
    request_: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Server(Follower(tmp_path)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=5) as line:
                host = f"Host: 127.0.0.1:{server.server_port}".encode()
                line.sendall(request_ + b"\r\n" + host + b"\r\n\r\n")
                answer = line.recv(1000)
        finally:
            server.shutdown()
            thread.join()
    assert b" 404 " in answer.partition(b"\r\n")[0]
    assert capfd.readouterr().err == ""


STARTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                if {hidden}:
                    raise ImportError("half loaded") from None
                raise

sys.meta_path.insert(0, Finder())
sys.argv = ["fednag", "algorithms"]
from fednag.__main__ import main
main()
"""


@pytest.mark.parametrize(("name", "hidden"), [("typer", False), ("torch", False), ("torch", True)])
def test_ctrl_c_while_it_starts_is_one_sentence(name: str, hidden: bool) -> None:
    """Also where a module that is being loaded makes another error of it."""
    code = STARTING.format(name=name, hidden=hidden)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "fednag: interrupted; what was saved is kept\n"
