"""Data sets to be downloaded: where from, resumable, checked by checksum, whole or not at all."""

from __future__ import annotations

import difflib
import gzip
import hashlib
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal

from fednag.core.files import os_errors, write_atomically
from fednag.errors import FednagError

BUILT_IN = ("digits", "synthetic")
Status = Literal["ok", "missing", "corrupt"]
CONNECT_SECONDS = 10
READ_SECONDS = 30
PATIENCE = 1.0  # seconds before it is said that somebody else is at it
LARGEST = 1 << 30  # bytes: the largest archive has 170 MB, so more is not ours
_CHUNK = 1 << 18


@dataclass(frozen=True)
class File:
    """One file and its SHA-256; members of an archive also have an exact size.

    Where no sum was published, that of the first complete download is written beside the file, and
    holds from then on.
    """

    name: str
    sha256: str = ""
    size: int | None = None


@dataclass(frozen=True)
class Source:
    """A data set's files, under `folder`, and the base addresses to try in order.

    Those with HTTPS come first.
    """

    name: str
    folder: str
    files: tuple[File, ...]
    addresses: tuple[str, ...]
    archive: File | None = None  # the files come inside it, as folder/name, when there is one
    command: str = "data get"  # which fetches it


_MNIST_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_MNIST_SUMS = (
    "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
)
_FASHION_SUMS = (
    "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
)
_CIFAR_10_SUMS = {
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_CIFAR_10_BATCH = 30_730_000
_CIFAR_ADDRESSES = ("https://www.cs.toronto.edu/~kriz/",)

_ALL = (
    Source(
        name="mnist",
        folder="mnist",
        files=tuple(map(File, _MNIST_NAMES, _MNIST_SUMS)),
        addresses=(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "http://yann.lecun.com/exdb/mnist/",
        ),
    ),
    Source(
        name="mnist-writers",
        folder="mnist-writers",
        files=(
            File(
                "qmnist-train-labels-idx2-int.gz",
                "2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
            ),
            File(
                "qmnist-test-labels-idx2-int.gz",
                "9fbcbe594c3766fdf4f0b15c5165dc0d1e57ac604e01422608bb72c906030d06",
            ),
        ),
        addresses=("https://raw.githubusercontent.com/facebookresearch/qmnist/master/",),
    ),
    Source(
        name="fashion-mnist",
        folder="fashion-mnist",
        files=tuple(map(File, _MNIST_NAMES, _FASHION_SUMS)),
        addresses=(
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        ),
    ),
    Source(
        name="cifar-10",
        folder="cifar-10-batches-bin",
        files=tuple(File(name, sum_, _CIFAR_10_BATCH) for name, sum_ in _CIFAR_10_SUMS.items()),
        addresses=_CIFAR_ADDRESSES,
        archive=File(
            "cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        ),
    ),
    Source(
        name="cifar-100",
        folder="cifar-100-binary",
        files=(
            File(
                "train.bin",
                "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                153_700_000,
            ),
            File(
                "test.bin",
                "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
                30_740_000,
            ),
        ),
        addresses=_CIFAR_ADDRESSES,
        archive=File(
            "cifar-100-binary.tar.gz",
            "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        ),
    ),
)
SOURCES = MappingProxyType({source.name: source for source in _ALL})


def find_source(name: str) -> Source:
    """The source called `name`, or an error that says what there is."""
    if name in BUILT_IN:
        raise FednagError(
            "",
            f"data set '{name}' is built in and needs no download",
            f"the downloadable ones are {', '.join(SOURCES)}",
        )
    if name not in SOURCES:
        raise unknown_name(name, SOURCES)
    return SOURCES[name]


def unknown_name(name: str, known: Iterable[str]) -> FednagError:
    """The error for a data set nobody has heard of, with the nearest spelling."""
    known = tuple(known)
    near = difflib.get_close_matches(name.lower().replace("_", "-"), known, n=1)
    hint = f"use '{near[0]}', or another of" if near else "use one of"
    return FednagError(f"data set '{name}' is unknown: {hint} {', '.join(known)}")


def data_folder() -> Path:
    """`$FEDNAG_DATA` where set, else the user's cache folder."""
    chosen = os.environ.get("FEDNAG_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch  # here, because only the default needs it

    return Path(pooch.os_cache("fednag"))


class _AddressError(Exception):
    """This address did not deliver; the next one may."""


def get(
    name: str,
    folder: Path | None = None,
    progress: bool = True,
    source: Source | None = None,
) -> Path:
    """Download what is missing or corrupt of the data set `name`; gives the folder that holds it.

    `source` stands in for the registered addresses and checksums.
    """
    source = find_source(name) if source is None else source
    root = data_folder() if folder is None else folder
    home = root / source.folder
    if not _wanted(source, home):
        return home
    with _alone(home, progress):
        wanted = _wanted(source, home)  # another process may have just fetched them
        if source.archive is None:
            for file in wanted:
                _fetch(source, file, home / file.name, progress)
        elif wanted:
            archive = root / source.archive.name
            _fetch(source, source.archive, archive, progress)
            _extract(source, wanted, archive, home)
            with _writing(archive):
                archive.unlink()
    return home


def _wanted(source: Source, home: Path) -> list[File]:
    """The files that are missing or corrupt."""
    return [file for file in source.files if _status(home / file.name, file) != "ok"]


@contextmanager
def _alone(home: Path, progress: bool) -> Iterator[None]:
    """Of several processes that fetch one data set, the others wait for the first."""
    from filelock import FileLock, Timeout

    with _writing(home):
        home.mkdir(parents=True, exist_ok=True)
        lock = FileLock(home / ".lock")
        try:
            lock.acquire(timeout=PATIENCE)
        except Timeout:
            if progress:
                print("fednag: another process is fetching it; waiting", file=sys.stderr)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def check(
    name: str, folder: Path | None = None, source: Source | None = None
) -> list[tuple[Path, Status]]:
    """Each file of the data set `name` and whether it is there with the right checksum."""
    source = find_source(name) if source is None else source
    home = (data_folder() if folder is None else folder) / source.folder
    return [(home / file.name, _status(home / file.name, file)) for file in source.files]


def _status(path: Path, file: File) -> Status:
    if not path.exists():
        return "missing"
    if not path.is_file():
        return "corrupt"
    with os_errors("", f"{path} cannot be read", "check its permissions"):
        expected = _expected(path, file)
        # One that was put there by hand, and of which no sum is known, is taken as it is.
        return "ok" if expected in ("", _sum(path)) else "corrupt"


def _expected(path: Path, file: File) -> str:
    """The sum a file must have: the published one, or that of its first download."""
    noted = _note(path)
    if file.sha256 or not noted.is_file():
        return file.sha256
    return noted.read_text(encoding="ascii", errors="replace").strip()


def _note(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def _sum(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _fetch(source: Source, file: File, target: Path, progress: bool) -> None:
    import pooch

    part = target.with_name(target.name + ".part")
    failures = []
    resumed = False

    def downloader(url: str, output: str, _pooch: object) -> None:
        nonlocal resumed
        if not file.sha256:  # nothing would show that an old part is of another file
            part.unlink(missing_ok=True)
        resumed = part.exists()
        if not (resumed and _sum(part) == file.sha256):
            _transfer(url, part, progress)
        if not file.sha256:
            write_atomically(_note(target), f"{_sum(part)}\n")
        os.replace(part, output)

    # pooch announces each download on stderr, beside our own progress bar.
    log = pooch.get_logger()
    level = log.level
    log.setLevel("ERROR")
    try:
        for address in source.addresses:
            url = address.rstrip("/") + "/" + file.name
            # The second go is for a wrong sum after resuming: the old part or the range sent is
            # then the suspect, and a fresh start settles it.
            for _ in range(2):
                try:
                    with _writing(target):
                        target.parent.mkdir(parents=True, exist_ok=True)
                        if not file.sha256:  # pooch would keep what is there
                            target.unlink(missing_ok=True)
                        pooch.retrieve(
                            url,
                            known_hash=f"sha256:{file.sha256}" if file.sha256 else None,
                            fname=target.name,
                            path=target.parent,
                            downloader=downloader,
                        )
                    return
                except _AddressError as error:
                    failures.append(f"{url} ({error})")
                    break
                except ValueError:
                    if not resumed:
                        failures.append(f"{url} (wrong checksum)")
                        break
    finally:
        log.setLevel(level)
    again = f"fednag {source.command} {source.name}"
    raise FednagError(
        f"{file.name} could not be downloaded from {' or '.join(failures)}: check the network "
        f"or put the file at {target} by hand, then run `{again}` again"
    )


def _transfer(url: str, part: Path, progress: bool) -> None:
    import requests
    import urllib3

    done = part.stat().st_size if part.exists() else 0
    # Otherwise a server may send a .gz file as an encoding, and the bytes saved would differ.
    headers = {"Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    restart = False
    try:
        with requests.get(
            url, headers=headers, stream=True, timeout=(CONNECT_SECONDS, READ_SECONDS)
        ) as response:
            status = response.status_code
            if done and status == 206:
                _save(response, part, done, progress)
            elif status == 200:
                _save(response, part, 0, progress)
            elif done and status == 416:
                restart = True
            else:
                raise _AddressError(f"HTTP {status}")
    except (requests.Timeout, urllib3.exceptions.TimeoutError) as error:
        raise _AddressError("timed out") from error
    except requests.ConnectionError as error:
        raise _AddressError("no connection") from error
    except requests.RequestException as error:
        raise _AddressError(type(error).__name__) from error
    except urllib3.exceptions.HTTPError as error:
        raise _AddressError("the connection broke off") from error
    if restart:
        part.unlink()
        _transfer(url, part, progress)


def _save(response: Any, part: Path, done: int, progress: bool) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    console = Console(stderr=True)
    length = response.headers.get("Content-Length", "")
    total = done + int(length) if length.isdecimal() else None
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    shown = progress and console.is_terminal
    with (
        part.open("ab" if done else "wb") as stream,
        Progress(*columns, console=console, transient=True, disable=not shown) as bar,
    ):
        task = bar.add_task(part.stem, total=total, completed=done)
        for chunk in response.raw.stream(_CHUNK, decode_content=False):
            done += len(chunk)
            if done > LARGEST:
                stream.truncate(0)
                raise _AddressError(f"it sends more than {LARGEST} bytes")
            stream.write(chunk)
            bar.update(task, completed=done)


def _extract(source: Source, wanted: list[File], archive: Path, home: Path) -> None:
    missing = {f"{source.folder}/{file.name}": file for file in wanted}
    try:
        with _writing(home):
            home.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive, "r:gz") as tar:
            # Only these names, only plain files, written by us: nothing else in it can act.
            for member in tar:
                key = member.name.removeprefix("./")
                if key not in missing or not member.isreg() or member.size != missing[key].size:
                    continue
                content = tar.extractfile(member)
                assert content is not None, member
                file = missing.pop(key)
                if not _write_member(content, file, home / file.name):
                    raise _bad_archive(source, archive, f"its {key} has the wrong checksum")
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _bad_archive(source, archive, str(error)) from error
    if missing:
        raise _bad_archive(source, archive, f"without {', '.join(missing)} of the right size")


def _write_member(content: IO[bytes], file: File, target: Path) -> bool:
    part = target.with_name(target.name + ".part")
    try:
        with _writing(part), part.open("wb") as stream:
            shutil.copyfileobj(content, stream, _CHUNK)
        if _status(part, file) != "ok":
            return False
        with _writing(target):
            os.replace(part, target)
        return True
    finally:
        part.unlink(missing_ok=True)


def _bad_archive(source: Source, archive: Path, why: str) -> FednagError:
    return FednagError(
        "",
        f"{archive} is not the expected archive ({why})",
        f"delete it and run `fednag data get {source.name}` again",
    )


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except gzip.BadGzipFile:
        raise  # an OSError, but the archive's fault and not the disk's
    except OSError as error:
        raise FednagError(
            "",
            f"{path} cannot be written ({error.strerror or error})",
            "free space there or allow writing, or set FEDNAG_DATA to another folder",
        ) from error
