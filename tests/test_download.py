"""Downloads, against a server on the loopback address."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import logging
import re
import socket
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pooch
import pytest

from fednag.data import download
from fednag.data.download import File, Source, check, get
from fednag.errors import FednagError


@dataclass
class Site:
    """What the server holds, how it misbehaves, and what it was asked for and sent."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut_after: dict[str, int] = field(default_factory=dict)  # bytes, for one answer only
    ignores_range: bool = False
    shift_range: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str | None]] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)


def handler_for(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            site.requests.append((self.path, wanted))
            content = site.files.get(self.path)
            if content is None:
                self.send_error(404)
                return
            start = 0
            if wanted and not site.ignores_range:
                match = re.fullmatch(r"bytes=(\d+)-", wanted)
                assert match, wanted
                start = int(match[1])
                if start >= len(content):
                    self.send_error(416)
                    return
                start = max(0, start + site.shift_range)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/*")
            else:
                self.send_response(200)
            body = content[start:]
            self.send_header("Content-Length", str(len(body)))
            for name, value in site.headers.items():
                self.send_header(name, value)
            self.end_headers()
            body = body[: site.cut_after.pop(self.path, len(body))]
            site.sent.append(len(body))
            self.wfile.write(body)

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    site = Site()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(site))
    site.address = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def noise(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def file_of(name: str, content: bytes, size: int | None = None) -> File:
    return File(name, hashlib.sha256(content).hexdigest(), size)


ONE = noise(300_000, 1)
TWO = noise(5_000, 2)


def source_at(*addresses: str) -> Source:
    return Source("toy", "toy", (file_of("one.gz", ONE), file_of("two.gz", TWO)), addresses)


def serve(site: Site, prefix: str = "/") -> None:
    site.files |= {f"{prefix}one.gz": ONE, f"{prefix}two.gz": TWO}


def names(folder: Path) -> set[str]:
    """The files there, but for the lock, which has nothing in it."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)) for path in files}


def test_three_at_once_fetch_it_once(
    site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "PATIENCE", 0.0)
    serve(site)
    source = source_at(site.address)
    barrier = threading.Barrier(3)

    def fetch() -> Path:
        barrier.wait()
        return get("toy", tmp_path, source=source)

    with ThreadPoolExecutor(3) as pool:
        found = [task.result() for task in [pool.submit(fetch) for _ in range(3)]]
    assert found == [tmp_path / "toy"] * 3
    assert sorted(path for path, _ in site.requests) == ["/one.gz", "/two.gz"]
    assert {status for _, status in check("toy", tmp_path, source)} == {"ok"}
    assert "another process is fetching it; waiting" in capfd.readouterr().err


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_get_downloads_once(site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    serve(site)
    source = source_at(site.address)
    assert get("toy", tmp_path, source=source) == tmp_path / "toy"
    assert names(tmp_path) == {"toy/one.gz", "toy/two.gz"}
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE
    assert (tmp_path / "toy" / "two.gz").read_bytes() == TWO
    assert site.requests == [("/one.gz", None), ("/two.gz", None)]
    get("toy", tmp_path, source=source)
    assert len(site.requests) == 2
    assert capfd.readouterr() == ("", "")


def test_get_leaves_the_log_level_of_pooch_alone(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(site)
    log = pooch.get_logger()
    monkeypatch.setattr(log, "level", logging.CRITICAL)
    get("toy", tmp_path, source=source_at(site.address))
    assert log.level == logging.CRITICAL


def test_progress_is_for_terminals(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    serve(site)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    monkeypatch.setenv("COLUMNS", "100")
    get("toy", tmp_path / "quiet", progress=False, source=source_at(site.address))
    assert capfd.readouterr() == ("", "")
    get("toy", tmp_path / "shown", source=source_at(site.address))
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "one.gz" in shown.err


def test_get_uses_the_data_folder(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(site)
    monkeypatch.setenv("FEDNAG_DATA", str(tmp_path))
    get("toy", source=source_at(site.address))
    assert names(tmp_path) == {"toy/one.gz", "toy/two.gz"}
    assert [status for _, status in check("toy", source=source_at())] == ["ok", "ok"]


def test_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path) -> None:
    serve(site)
    site.files["/one.gz"] = ONE[:-1] + b"?"
    with pytest.raises(FednagError, match="wrong checksum") as caught:
        get("toy", tmp_path, source=source_at(site.address))
    assert f"{site.address}one.gz" in str(caught.value)
    assert names(tmp_path) == set()
    assert site.requests == [("/one.gz", None)]


def test_next_address_after_404(site: Site, tmp_path: Path) -> None:
    serve(site, "/b/")
    get("toy", tmp_path, source=source_at(f"{site.address}a/", f"{site.address}b"))
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE
    asked = [path for path, _ in site.requests]
    assert asked == ["/a/one.gz", "/b/one.gz", "/a/two.gz", "/b/two.gz"]


def test_next_address_after_wrong_checksum(site: Site, tmp_path: Path) -> None:
    serve(site, "/a/")
    serve(site, "/b/")
    site.files["/a/one.gz"] = b"<html>log in to this network</html>"
    get("toy", tmp_path, source=source_at(f"{site.address}a/", f"{site.address}b/"))
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE
    assert [p for p, _ in site.requests] == ["/a/one.gz", "/b/one.gz", "/a/two.gz"]


def test_no_address_answers(site: Site, tmp_path: Path) -> None:
    dead = f"http://127.0.0.1:{closed_port()}/"
    with pytest.raises(FednagError) as caught:
        get("toy", tmp_path, source=source_at(dead, site.address))
    message = str(caught.value)
    assert f"{dead}one.gz (no connection)" in message
    assert f"{site.address}one.gz (HTTP 404)" in message
    assert f"put the file at {tmp_path / 'toy' / 'one.gz'} by hand" in message
    assert "\n" not in message
    assert names(tmp_path) == set()


def test_silent_server_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(download, "READ_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"http://127.0.0.1:{mute.getsockname()[1]}/"
        with pytest.raises(FednagError, match="timed out"):
            get("toy", tmp_path, source=source_at(address))


def interrupt(site: Site, folder: Path, after: int = 100_000) -> Path:
    serve(site)
    site.cut_after["/one.gz"] = after
    with pytest.raises(FednagError, match="connection broke off"):
        get("toy", folder, source=source_at(site.address))
    assert names(folder) == {"toy/one.gz.part"}
    part = folder / "toy" / "one.gz.part"
    site.requests.clear()
    site.sent.clear()
    return part


def test_interrupted_download_is_resumed(site: Site, tmp_path: Path) -> None:
    part = interrupt(site, tmp_path)
    kept = part.stat().st_size
    assert 0 < kept <= 100_000
    get("toy", tmp_path, source=source_at(site.address))
    assert site.requests == [("/one.gz", f"bytes={kept}-"), ("/two.gz", None)]
    assert site.sent == [len(ONE) - kept, len(TWO)]
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE
    assert names(tmp_path) == {"toy/one.gz", "toy/two.gz"}


def test_second_address_carries_on_where_the_first_broke_off(site: Site, tmp_path: Path) -> None:
    serve(site, "/a/")
    serve(site, "/b/")
    site.cut_after["/a/one.gz"] = 100_000
    get("toy", tmp_path, source=source_at(f"{site.address}a/", f"{site.address}b/"))
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE
    path, wanted = site.requests[1]
    assert path == "/b/one.gz"
    assert wanted is not None
    assert site.sent[1] == len(ONE) - int(wanted[6:-1])


def test_server_that_ignores_ranges(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path)
    site.ignores_range = True
    get("toy", tmp_path, source=source_at(site.address))
    assert [(path, wanted is None) for path, wanted in site.requests] == [
        ("/one.gz", False),
        ("/two.gz", True),
    ]
    assert site.sent[0] == len(ONE)
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE
    assert names(tmp_path) == {"toy/one.gz", "toy/two.gz"}


def test_server_that_answers_another_range(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path)
    site.shift_range = -7
    get("toy", tmp_path, source=source_at(site.address))
    assert [wanted is None for _, wanted in site.requests] == [False, True, True]
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE


def test_part_longer_than_the_file(site: Site, tmp_path: Path) -> None:
    part = interrupt(site, tmp_path)
    part.write_bytes(ONE + b"more")  # the server answers 416
    get("toy", tmp_path, source=source_at(site.address))
    assert site.requests[:2] == [("/one.gz", f"bytes={len(ONE) + 4}-"), ("/one.gz", None)]
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE


def test_complete_part_needs_no_request(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path).write_bytes(ONE)
    get("toy", tmp_path, source=source_at(site.address))
    assert site.requests == [("/two.gz", None)]
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE


def test_stale_part_costs_one_more_try(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path).write_bytes(b"from some other file")
    get("toy", tmp_path, source=source_at(site.address))
    assert site.requests[:2] == [("/one.gz", "bytes=20-"), ("/one.gz", None)]
    assert (tmp_path / "toy" / "one.gz").read_bytes() == ONE


def test_stale_part_and_wrong_server_leave_nothing(site: Site, tmp_path: Path) -> None:
    interrupt(site, tmp_path)
    site.files["/one.gz"] = noise(300_000, 9)
    with pytest.raises(FednagError, match="wrong checksum"):
        get("toy", tmp_path, source=source_at(site.address))
    assert len(site.requests) == 2
    assert names(tmp_path) == set()


def test_bytes_are_saved_as_sent(site: Site, tmp_path: Path) -> None:
    packed = gzip.compress(b"digits" * 100)
    site.files["/a.gz"] = packed
    site.headers["Content-Encoding"] = "gzip"
    source = Source("toy", "toy", (file_of("a.gz", packed),), (site.address,))
    get("toy", tmp_path, source=source)
    assert (tmp_path / "toy" / "a.gz").read_bytes() == packed


def test_endless_answers_are_cut(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(site)
    monkeypatch.setattr(download, "LARGEST", 1000)
    with pytest.raises(FednagError, match="more than 1000 bytes"):
        get("toy", tmp_path, source=source_at(site.address))
    assert sum(path.stat().st_size for path in (tmp_path / "toy").iterdir()) == 0


def test_corrupt_file_is_replaced(site: Site, tmp_path: Path) -> None:
    serve(site)
    home = tmp_path / "toy"
    home.mkdir()
    (home / "one.gz").write_bytes(ONE[:1000])
    (home / "two.gz").write_bytes(TWO)
    source = source_at(site.address)
    assert check("toy", tmp_path, source) == [(home / "one.gz", "corrupt"), (home / "two.gz", "ok")]
    get("toy", tmp_path, source=source)
    assert site.requests == [("/one.gz", None)]
    assert (home / "one.gz").read_bytes() == ONE
    assert [status for _, status in check("toy", tmp_path, source)] == ["ok", "ok"]


def test_check_statuses(tmp_path: Path) -> None:
    home = tmp_path / "toy"
    statuses = [status for _, status in check("toy", tmp_path, source_at())]
    assert statuses == ["missing", "missing"]
    (home / "one.gz").mkdir(parents=True)
    (home / "two.gz").write_bytes(TWO + b"\0")
    statuses = [status for _, status in check("toy", tmp_path, source_at())]
    assert statuses == ["corrupt", "corrupt"]
    assert [status for _, status in check("mnist", tmp_path)] == ["missing"] * 4


def test_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(FednagError, match="use 'mnist', or another of mnist, "):
        get("mnits", tmp_path)
    with pytest.raises(FednagError, match="'digits' is built in and needs no download"):
        get("digits", tmp_path)


def test_folder_that_cannot_be_made(site: Site, tmp_path: Path) -> None:
    (tmp_path / "toy").write_text("in the way")
    with pytest.raises(FednagError, match="cannot be written") as caught:
        get("toy", tmp_path, source=source_at(site.address))
    assert str(tmp_path / "toy") in str(caught.value)
    assert site.requests == []


def full(*args: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(site)
    monkeypatch.setattr(download, "_save", full)
    with pytest.raises(FednagError, match=r"cannot be written \(No space left on device\)"):
        get("toy", tmp_path, source=source_at(site.address))
    assert names(tmp_path) == set()


MEMBERS = {"a.bin": noise(70_000, 3), "b.bin": noise(900, 4)}


def tar_of(*entries: tuple[str, bytes | tarfile.TarInfo]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in entries:
            if isinstance(content, tarfile.TarInfo):
                content.name = name
                tar.addfile(content)
            else:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def link_to(target: str, kind: bytes = tarfile.SYMTYPE, size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo()
    info.size = size  # a lie that gets it past a check of the size alone
    info.type = kind
    info.linkname = target
    return info


def packed_source(site: Site, archive: bytes) -> Source:
    site.files["/set.tar.gz"] = archive
    files = tuple(file_of(name, content, len(content)) for name, content in MEMBERS.items())
    return Source("packed", "set", files, (site.address,), file_of("set.tar.gz", archive))


GOOD = [(f"set/{name}", content) for name, content in MEMBERS.items()]


@pytest.mark.parametrize("prefix", ["", "./"])
def test_archive(site: Site, tmp_path: Path, prefix: str) -> None:
    entries = [(prefix + name, content) for name, content in GOOD]
    source = packed_source(site, tar_of(("set/readme.html", b"hello"), *entries))
    assert get("packed", tmp_path, source=source) == tmp_path / "set"
    assert names(tmp_path) == {"set/a.bin", "set/b.bin"}
    assert (tmp_path / "set" / "a.bin").read_bytes() == MEMBERS["a.bin"]
    assert [status for _, status in check("packed", tmp_path, source)] == ["ok", "ok"]
    get("packed", tmp_path, source=source)
    assert len(site.requests) == 1


def test_archive_mends_only_what_is_wrong(site: Site, tmp_path: Path) -> None:
    source = packed_source(site, tar_of(*GOOD))
    get("packed", tmp_path, source=source)
    a, b = tmp_path / "set" / "a.bin", tmp_path / "set" / "b.bin"
    before = a.stat().st_mtime_ns
    b.write_bytes(b"broken")
    get("packed", tmp_path, source=source)
    assert b.read_bytes() == MEMBERS["b.bin"]
    assert a.stat().st_mtime_ns == before


def test_archive_put_there_by_hand(site: Site, tmp_path: Path) -> None:
    source = packed_source(site, tar_of(*GOOD))
    (tmp_path / "set.tar.gz").write_bytes(site.files["/set.tar.gz"])
    get("packed", tmp_path, source=source)
    assert site.requests == []
    assert names(tmp_path) == {"set/a.bin", "set/b.bin"}


def test_archive_cannot_write_elsewhere(site: Site, tmp_path: Path) -> None:
    root = tmp_path / "in" / "root"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.bin").write_bytes(b"mine")
    entries: list[tuple[str, bytes | tarfile.TarInfo]] = [
        ("../evil", b"evil"),
        ("set/../../evil", b"evil"),
        (str(outside / "evil"), b"evil"),
        ("set", link_to(str(outside))),
        ("set/a.bin", link_to(str(outside / "a.bin"))),
        ("set/b.bin", link_to("set/a.bin", tarfile.LNKTYPE)),
        *GOOD,
        ("set/extra.bin", b"extra"),
    ]
    get("packed", root, source=packed_source(site, tar_of(*entries)))
    assert names(tmp_path) == {"in/root/set/a.bin", "in/root/set/b.bin", "outside/a.bin"}
    assert (outside / "a.bin").read_bytes() == b"mine"
    assert not (root / "set").is_symlink()
    for name, content in MEMBERS.items():
        assert not (root / "set" / name).is_symlink()
        assert (root / "set" / name).read_bytes() == content


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        (GOOD[:1], "without set/b.bin"),
        ([GOOD[0], ("set/b.bin", link_to("a.bin", size=900))], "without set/b.bin"),
        ([GOOD[0], ("set/b.bin", MEMBERS["b.bin"] + b"+")], "without set/b.bin"),
        ([GOOD[0], ("set/b.bin", bytes(900))], "its set/b.bin has the wrong checksum"),
    ],
    ids=["absent", "link", "size", "content"],
)
def test_archive_without_a_member(
    site: Site, tmp_path: Path, entries: list[tuple[str, bytes | tarfile.TarInfo]], why: str
) -> None:
    with pytest.raises(FednagError, match=why) as caught:
        get("packed", tmp_path, source=packed_source(site, tar_of(*entries)))
    assert str(tmp_path / "set.tar.gz") in str(caught.value)
    assert names(tmp_path) == {"set.tar.gz", "set/a.bin"}


@pytest.mark.parametrize("damage", ["cut", "not gzip", "not tar"])
def test_archive_that_cannot_be_unpacked(site: Site, tmp_path: Path, damage: str) -> None:
    whole = tar_of(*GOOD)
    archive = {
        "cut": whole[: len(whole) // 2],
        "not gzip": noise(500),
        "not tar": gzip.compress(noise(5000)),
    }[damage]
    with pytest.raises(FednagError, match="is not the expected archive"):
        get("packed", tmp_path, source=packed_source(site, archive))
    assert names(tmp_path) == {"set.tar.gz"}


def test_full_disk_while_unpacking(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = packed_source(site, tar_of(*GOOD))
    monkeypatch.setattr(download.shutil, "copyfileobj", full)
    with pytest.raises(
        FednagError, match=r"a\.bin.* cannot be written \(No space left on device\)"
    ):
        get("packed", tmp_path, source=source)
    assert names(tmp_path) == {"set.tar.gz"}
