"""Readers of data files, the registry behind them, and loading by name."""

from __future__ import annotations

import gzip
import struct
import subprocess
import sys
import tracemalloc
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from fednag.data import sets as data
from fednag.data.download import SOURCES, File, Source, data_folder
from fednag.data.sets import MOST_SAMPLES, NAMES, load, read_cifar, read_idx, synthetic
from fednag.errors import FednagError

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array: np.ndarray) -> bytes:
    code = CODES[array.dtype.str[1:]]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_idx(path: Path, array: np.ndarray) -> Path:
    raw = idx_bytes(array)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("kind", CODES)
def test_idx_round_trip(tmp_path: Path, kind: str, suffix: str) -> None:
    array = (np.arange(24).reshape(2, 3, 4) * 5 - (0 if kind == "u1" else 60)).astype(kind)
    back = read_idx(write_idx(tmp_path / f"a{suffix}", array))
    assert back.dtype == array.dtype
    assert back.dtype.isnative
    np.testing.assert_array_equal(back, array)


def test_idx_bytes_are_big_endian(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes([0, 0, 0x0C, 1, 0, 0, 0, 2, 0, 0, 1, 2, 255, 255, 255, 254]))
    assert read_idx(tmp_path / "a").tolist() == [258, -2]


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "starts with nothing"),
        (b"\0\0\x08", "starts with 000008"),
        (b"\0\1\x08\1\0\0\0\1\7", "starts with 0001"),
        (b"\0\0\x0a\1\0\0\0\1\7", "starts with 00000a"),
        (b"\0\0\x08\0\7", "announces 0 dimensions"),
        (b"\0\0\x08\x09" + b"\0\0\0\1" * 9 + b"\7", "announces 9 dimensions"),
        (b"\0\0\x08\2\0\0\0\1\0\0", "inside its header"),
        (b"\0\0\x08\1\0\0\0\0", "announces 0 bytes"),
        (b"\0\0\x08\1\0\0\0\3\1\2", "announces 3 bytes, 2 are there"),
        (b"\0\0\x08\1\0\0\0\3\1\2\3\4", "bytes follow the 3"),
        (b"\0\0\x0b\1\0\0\0\2\1\2\3", "announces 4 bytes, 3 are there"),
    ],
)
def test_idx_refuses_what_is_not_idx(tmp_path: Path, raw: bytes, why: str, suffix: str) -> None:
    path = tmp_path / f"broken{suffix}"
    path.write_bytes(gzip.compress(raw) if suffix else raw)
    with pytest.raises(FednagError, match=why) as caught:
        read_idx(path)
    assert str(path) in str(caught.value)
    assert "delete it and download it again" in str(caught.value)


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("claim", [2**40, 2**30], ids=["2^40", "2^30"])
def test_idx_header_does_not_decide_the_memory(tmp_path: Path, claim: int, suffix: str) -> None:
    raw = b"\0\0\x08\2" + struct.pack(">II", 1 << 20, claim >> 20) + b"\7" * 100
    path = tmp_path / f"huge{suffix}"
    path.write_bytes(gzip.compress(raw) if suffix else raw)
    tracemalloc.start()
    try:
        with pytest.raises(FednagError, match=f"announces {claim} bytes"):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_idx_reads_a_bomb_no_further_than_its_header_says(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\0\0\x08\1\0\0\0\x10" + bytes(64 << 20), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(FednagError, match="bytes follow the 16"):
            read_idx(path)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_idx_sees_a_trailing_byte_after_whole_chunks(tmp_path: Path) -> None:
    path = tmp_path / "a"
    raw = idx_bytes(np.zeros(1 << 20, dtype="u1"))
    path.write_bytes(raw)
    assert read_idx(path).shape == (1 << 20,)
    path.write_bytes(raw + b"?")
    with pytest.raises(FednagError, match="bytes follow the 1048576"):
        read_idx(path)


def test_idx_limit_counts_bytes(tmp_path: Path) -> None:
    path = write_idx(tmp_path / "a.gz", np.arange(10, dtype="i4"))
    assert len(read_idx(path, limit=40)) == 10
    with pytest.raises(FednagError, match="announces 40 bytes"):
        read_idx(path, limit=39)


def test_idx_gzip_faults(tmp_path: Path) -> None:
    whole = gzip.compress(idx_bytes(np.arange(200, dtype="u1")))
    path = tmp_path / "a.gz"
    bad_sum = whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:]
    for damaged in (whole[: len(whole) // 2], whole[:-3], bad_sum, b"garbage", whole + b"junk"):
        path.write_bytes(damaged)
        with pytest.raises(FednagError, match="not a complete IDX file"):
            read_idx(path)


def test_idx_missing_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.gz", tmp_path):
        with pytest.raises(FednagError, match="cannot be read"):
            read_idx(path)


@settings(max_examples=300, deadline=None)
@given(
    flips=st.lists(st.tuples(st.integers(0, 10_000), st.integers(1, 255)), max_size=4),
    keep=st.integers(0, 10_000),
    cut=st.booleans(),
    packed=st.booleans(),
)
def test_idx_damage_never_surprises(
    tmp_path_factory: pytest.TempPathFactory,
    flips: list[tuple[int, int]],
    keep: int,
    cut: bool,
    packed: bool,
) -> None:
    raw = idx_bytes(np.arange(30, dtype="i2").reshape(5, 6))
    content = bytearray(gzip.compress(raw) if packed else raw)
    for where, mask in flips:
        content[where % len(content)] ^= mask
    if cut:
        content = content[: keep % len(content)]
    path = tmp_path_factory.getbasetemp() / ("damaged.gz" if packed else "damaged")
    path.write_bytes(content)
    try:
        result = read_idx(path)
    except FednagError:
        return
    assert not cut
    assert result.nbytes == 60


def cifar_file(path: Path, labels: list[tuple[int, ...]]) -> tuple[Path, np.ndarray]:
    rng = np.random.default_rng(len(labels))
    images = rng.integers(0, 256, (len(labels), 3, 32, 32), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    records = zip(labels, images, strict=True)
    path.write_bytes(b"".join(bytes(label) + image.tobytes() for label, image in records))
    return path, images


def test_cifar_10_records(tmp_path: Path) -> None:
    path, images = cifar_file(tmp_path / "a.bin", [(3,), (9,), (0,)])
    read, labels = read_cifar(path, 10, 3)
    assert labels.tolist() == [3, 9, 0]
    assert labels.dtype == np.int64
    np.testing.assert_array_equal(read, images)


def test_cifar_100_uses_the_fine_label(tmp_path: Path) -> None:
    path, images = cifar_file(tmp_path / "a.bin", [(19, 99), (4, 0)])
    read, labels = read_cifar(path, 100, 2)
    assert labels.tolist() == [99, 0]
    np.testing.assert_array_equal(read, images)


def test_cifar_refuses_wrong_sizes_and_labels(tmp_path: Path) -> None:
    path, _ = cifar_file(tmp_path / "a.bin", [(3,), (9,)])
    with pytest.raises(FednagError, match="holds 2 records where 3 belong"):
        read_cifar(path, 10, 3)
    with pytest.raises(FednagError, match="not a whole number of 3074-byte records"):
        read_cifar(path, 100, 2)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FednagError, match="6145 bytes are not a whole number") as caught:
        read_cifar(path, 10, 2)
    assert str(path) in str(caught.value)
    with pytest.raises(FednagError, match="record 1 has label 10,"):
        read_cifar(cifar_file(path, [(9,), (10,)])[0], 10, 2)
    with pytest.raises(FednagError, match="record 0 has label 100,"):
        read_cifar(cifar_file(path, [(0, 100)])[0], 100, 1)
    with pytest.raises(FednagError, match="record 0 has coarse label 20,"):
        read_cifar(cifar_file(path, [(20, 99)])[0], 100, 1)
    with pytest.raises(FednagError, match="cannot be read"):
        read_cifar(tmp_path / "none.bin", 10, 1)


def test_digits() -> None:
    digits = load("digits")
    assert (len(digits.x), len(digits.test_x)) == (1437, 360)
    assert digits.shape == (1, 8, 8)
    assert digits.x.dtype == torch.uint8
    assert int(digits.x.max()) * digits.scale == 1.0
    assert digits.classes == 10
    assert digits.owners is None
    for y, size in ((digits.y, 1437), (digits.test_y, 360)):
        counts = torch.bincount(y, minlength=10)
        assert counts.sum() == size
        assert counts.max() - counts.min() <= 8  # stratified; a plain split strays further
    rows = torch.cat([digits.x, digits.test_x]).flatten(1)
    assert rows.to(torch.int64).sum() == 561_718  # every image once
    assert torch.equal(load("digits", seed=5).x, digits.x)


def test_synthetic_is_deterministic_and_well_formed() -> None:
    one, two = synthetic(seed=3), synthetic(seed=3)
    for field in ("x", "y", "test_x", "test_y", "owners"):
        assert torch.equal(getattr(one, field), getattr(two, field))
    assert not torch.equal(synthetic(seed=4).x[:40], one.x[:40])
    assert one.x.dtype == torch.float32
    assert one.y.dtype == torch.int64
    assert one.shape == (60,)
    assert one.classes == 10
    assert set(one.y.tolist()) <= set(range(10))
    assert one.owners is not None
    counts = torch.bincount(one.owners, minlength=30)
    assert len(counts) == 30
    assert counts.min() >= 40
    assert counts.max() <= MOST_SAMPLES * 4 // 5
    assert counts.max() > 4 * counts.min()  # log-normal: very uneven
    assert len(one.owners) == len(one.x) == len(one.y)
    total = len(one.x) + len(one.test_x)
    assert total * 0.19 < len(one.test_x) <= total * 0.2


def test_synthetic_worker_does_not_depend_on_how_many_there_are() -> None:
    few, many = synthetic(workers=2, seed=1), synthetic(workers=5, seed=1)
    assert torch.equal(many.x[: len(few.x)], few.x)
    assert torch.equal(many.y[: len(few.y)], few.y)


def test_synthetic_follows_the_paper() -> None:
    sample = synthetic(alpha=0.0, beta=0.0, workers=200, seed=0)
    assert sample.owners is not None
    means = torch.stack([sample.x[sample.owners == k].mean(0) for k in range(200)])
    within = torch.stack([sample.x[sample.owners == k].var(0) for k in range(200)]).mean(0)
    expected = torch.arange(1, 61).pow(-1.2)
    assert torch.allclose(within, expected, rtol=0.1)
    assert abs(float(means.var()) - 1.0) < 0.1


def test_synthetic_beta_is_the_variance_of_worker_centres() -> None:
    spread = {}
    for beta in (0.0, 4.0, 100.0):
        sample = synthetic(beta=beta, workers=200)
        assert sample.owners is not None
        sums = torch.bincount(sample.owners, weights=sample.x.mean(1))
        spread[beta] = float((sums / torch.bincount(sample.owners)).var())
    assert spread[0.0] < 0.1
    assert 3.0 < spread[4.0] < 5.0
    assert 75 < spread[100.0] < 125


def test_synthetic_alpha_is_invisible_to_the_argmax() -> None:
    low, high = synthetic(alpha=0.0, seed=2), synthetic(alpha=100.0, seed=2)
    assert torch.equal(low.x, high.x)
    assert (low.y == high.y).float().mean() > 0.99


def test_synthetic_workers_have_models_of_their_own() -> None:
    sample = synthetic(workers=20)
    assert sample.owners is not None
    shares = torch.stack(
        [torch.bincount(sample.y[sample.owners == k], minlength=10).float() for k in range(20)]
    )
    shares = shares / shares.sum(1, keepdim=True)
    assert len(set(shares.argmax(1).tolist())) >= 5  # one shared model would favour one class
    assert shares.std(0).mean() > 0.15


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"alpha": -1.0}, "alpha"),
        ({"alpha": float("nan")}, "alpha"),
        ({"beta": float("inf")}, "beta"),
        ({"beta": "1"}, "beta"),
        ({"workers": 0}, "workers"),
        ({"workers": 2.5}, "workers"),
        ({"workers": 10**9}, "workers"),
        ({"seed": -1}, "seed"),
    ],
)
def test_synthetic_refuses(options: dict[str, object], field: str) -> None:
    with pytest.raises(FednagError, match=f"^{field} is "):
        load("synthetic", **options)  # type: ignore[arg-type]


def mnist_folder(root: Path, name: str = "mnist", test_label: int = 9) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {
        "train-images-idx3-ubyte": rng.integers(0, 256, (6, 28, 28), dtype=np.uint8),
        "train-labels-idx1-ubyte": np.array([5, 0, 4, 1, 9, 2], dtype=np.uint8),
        "t10k-images-idx3-ubyte": rng.integers(0, 256, (2, 28, 28), dtype=np.uint8),
        "t10k-labels-idx1-ubyte": np.array([7, test_label], dtype=np.uint8),
    }
    for file, array in arrays.items():
        write_idx(root / name / f"{file}.gz", array)
    return arrays


def writers_file(root: Path, digits: list[int]) -> Path:
    table = np.stack([digits, np.full(6, 4), [11, 12, 11, 70_000, 12, 13], np.arange(6)], axis=1)
    return write_idx(root / "mnist-writers" / "qmnist-train-labels-idx2-int.gz", table.astype("i4"))


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_mnist_without_writers(tmp_path: Path, name: str) -> None:
    arrays = mnist_folder(tmp_path, name)
    loaded = load(name, tmp_path)
    assert loaded.name == name
    assert loaded.shape == (1, 28, 28)
    assert loaded.x.dtype == torch.uint8
    assert loaded.scale == 1 / 255
    assert loaded.owners is None
    assert np.array_equal(loaded.x[:, 0].numpy(), arrays["train-images-idx3-ubyte"])
    assert np.array_equal(loaded.test_x[:, 0].numpy(), arrays["t10k-images-idx3-ubyte"])
    assert loaded.y.tolist() == [5, 0, 4, 1, 9, 2]
    assert loaded.test_y.tolist() == [7, 9]
    assert loaded.y.dtype == torch.int64


def test_mnist_writers_become_owners(tmp_path: Path) -> None:
    mnist_folder(tmp_path)
    mnist_folder(tmp_path, "fashion-mnist")
    writers_file(tmp_path, [5, 0, 4, 1, 9, 2])
    owners = load("mnist", tmp_path).owners
    assert owners is not None
    assert owners.dtype == torch.int64
    assert owners.tolist() == [11, 12, 11, 70_000, 12, 13]
    assert load("fashion-mnist", tmp_path).owners is None


def test_mnist_writers_must_be_of_the_same_digits(tmp_path: Path) -> None:
    mnist_folder(tmp_path)
    path = writers_file(tmp_path, [5, 0, 4, 1, 9, 3])
    with pytest.raises(FednagError, match="digits other than the labels") as caught:
        load("mnist", tmp_path)
    assert str(path) in str(caught.value)
    assert "fednag data get mnist-writers" in str(caught.value)
    write_idx(path, np.arange(6, dtype="i4"))
    with pytest.raises(FednagError, match="not a table of integers"):
        load("mnist", tmp_path)


def test_mnist_faults_are_named(tmp_path: Path) -> None:
    with pytest.raises(FednagError) as caught:
        load("mnist", tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/mnist/train-images-idx3-ubyte.gz is missing: run `fednag data get mnist`, "
        "or set FEDNAG_DATA to the folder that holds mnist/"
    )
    mnist_folder(tmp_path, test_label=10)
    with pytest.raises(FednagError, match=r"t10k-labels.* holds label 10"):
        load("mnist", tmp_path)
    mnist_folder(tmp_path)
    labels = tmp_path / "mnist" / "train-labels-idx1-ubyte.gz"
    write_idx(labels, np.zeros(5, np.uint8))
    with pytest.raises(FednagError, match="5 labels for 6 images"):
        load("mnist", tmp_path)
    write_idx(labels, np.zeros(6, np.float32))
    with pytest.raises(FednagError, match="8-bit labels"):
        load("mnist", tmp_path)
    mnist_folder(tmp_path)
    write_idx(tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz", np.zeros((2, 28, 27), np.uint8))
    with pytest.raises(FednagError, match="28x28"):
        load("mnist", tmp_path)


def test_cifar_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = Source("cifar-10", "c10", tuple(File(n, "", 2 * 3073) for n in "abt"), ())
    fine = Source("cifar-100", "c100", (File("a", "", 3074), File("t", "", 2 * 3074)), ())
    registry = types.MappingProxyType({"cifar-10": small, "cifar-100": fine})
    monkeypatch.setattr(data, "SOURCES", registry)
    batches = [
        cifar_file(tmp_path / "c10" / name, [(first,), (first + 1,)])[1]
        for name, first in (("a", 1), ("b", 3), ("t", 5))
    ]
    ten = load("cifar-10", tmp_path)
    assert ten.y.tolist() == [1, 2, 3, 4]
    assert ten.test_y.tolist() == [5, 6]
    assert np.array_equal(ten.x.numpy(), np.concatenate(batches[:2]))
    assert (ten.shape, ten.classes, ten.scale) == ((3, 32, 32), 10, 1 / 255)

    cifar_file(tmp_path / "c100" / "a", [(1, 42)])
    with pytest.raises(FednagError, match=r"c100/t is missing: run `fednag data get cifar-100`"):
        load("cifar-100", tmp_path)
    cifar_file(tmp_path / "c100" / "t", [(2, 7), (3, 99)])
    hundred = load("cifar-100", tmp_path)
    assert (hundred.y.tolist(), hundred.test_y.tolist()) == ([42], [7, 99])
    assert hundred.classes == 100


def test_names_and_options_are_checked() -> None:
    with pytest.raises(FednagError) as caught:
        load("mnits")
    assert "'mnist'" in str(caught.value)
    assert all(name in str(caught.value) for name in NAMES)
    with pytest.raises(FednagError, match="use 'cifar-10', or"):
        load("CIFAR_10")
    with pytest.raises(FednagError, match="use one of digits, "):
        load("zzz")
    with pytest.raises(FednagError, match="'digits' has no option 'alpha'"):
        load("digits", alpha=1.0)
    with pytest.raises(FednagError, match="'gamma' \\(only alpha, beta, workers\\)"):
        load("synthetic", gamma=1.0)


def test_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDNAG_DATA", str(tmp_path))
    assert data_folder() == tmp_path
    mnist_folder(tmp_path)
    assert len(load("mnist").x) == 6
    monkeypatch.setenv("FEDNAG_DATA", "~/sets")
    assert data_folder() == Path.home() / "sets"
    monkeypatch.setenv("FEDNAG_DATA", "")
    assert "fednag" in data_folder().name
    assert data_folder().is_absolute()


def test_registry_is_consistent() -> None:
    for name, source in SOURCES.items():
        assert name == source.name
        files = source.files + ((source.archive,) if source.archive else ())
        assert all(len(file.sha256) == 64 and int(file.sha256, 16) for file in files)
        assert len({file.sha256 for file in files}) == len(files)
        assert all(address.endswith("/") for address in source.addresses)
        assert source.addresses[0].startswith("https://")
        if source.archive:
            assert all(file.size for file in source.files)
    assert SOURCES["cifar-10"].files[-1].name == "test_batch.bin"
    assert SOURCES["cifar-100"].files[-1].name == "test.bin"


def test_import_leaves_sklearn_and_pooch_for_later() -> None:
    code = (
        "import sys, fednag.data.sets, fednag.data.download; "
        "print([m for m in ('sklearn', 'pooch', 'requests', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


REAL = {
    "mnist": ((60_000, 1, 28, 28), (10_000, 1, 28, 28), [5, 0, 4, 1, 9]),
    "cifar-10": ((50_000, 3, 32, 32), (10_000, 3, 32, 32), [6, 9, 9, 4, 1]),
    "cifar-100": ((50_000, 3, 32, 32), (10_000, 3, 32, 32), [19, 29, 0, 11, 1]),
    "fashion-mnist": ((60_000, 1, 28, 28), (10_000, 1, 28, 28), [9, 0, 0, 3, 0]),
}


@pytest.mark.parametrize("name", REAL)
def test_real_data(name: str, real_data: None) -> None:
    if not (data_folder() / SOURCES[name].folder).exists():
        pytest.skip(f"FEDNAG_DATA holds no {SOURCES[name].folder}/")
    shape, test_shape, first = REAL[name]
    loaded = load(name)
    assert loaded.x.shape == shape
    assert loaded.test_x.shape == test_shape
    assert loaded.y[:5].tolist() == first
    if loaded.owners is not None:
        assert len(loaded.owners.unique()) == 539


def test_digits_are_scikit_learns() -> None:
    bunch = load_digits()
    digits = load("digits")
    rows = torch.cat([digits.x, digits.test_x]).flatten(1).tolist()
    labels = torch.cat([digits.y, digits.test_y]).tolist()
    theirs = zip(bunch.data.astype(int).tolist(), bunch.target.tolist(), strict=True)
    assert sorted(zip(rows, labels, strict=True)) == sorted(theirs)
