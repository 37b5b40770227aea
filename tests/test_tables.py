"""A user's own data from a file."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fednag.api import run
from fednag.config import override, read
from fednag.data.tables import Source, read_table
from fednag.errors import FednagError

CSV = """age,dose,hospital,outcome
30,0.5,north,well
40,1.5,south,ill
50,2.5,north,well
60,3.5,east,ill
70,4.5,east,well
"""


def write(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_csv_by_hand(tmp_path: Path) -> None:
    source = Source(write(tmp_path, CSV), "outcome", "hospital", test_share=0.0)
    dataset = read_table(source)
    assert dataset.name == "table"
    assert dataset.x.tolist() == [[30, 0.5], [40, 1.5], [50, 2.5], [60, 3.5], [70, 4.5]]
    assert dataset.x.dtype == torch.float32
    assert (dataset.classes, dataset.y.tolist()) == (2, [1, 0, 1, 0, 1])  # ill before well
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [1, 2, 1, 0, 0]
    assert len(dataset.test_x) == 0


def test_the_last_column_is_the_target_and_numbers_stay_numbers(tmp_path: Path) -> None:
    dataset = read_table(Source(write(tmp_path, "a,b\n1,0.5\n2,1\n3,2\n"), test_share=0.0))
    assert dataset.classes is None
    assert dataset.y.tolist() == [0.5, 1.0, 2.0]
    dataset = read_table(Source(write(tmp_path, "a,b\n1,7\n2,-3\n3,7\n"), test_share=0.0))
    assert (dataset.classes, dataset.y.tolist()) == (2, [1, 0, 1])
    dataset = read_table(Source(write(tmp_path, "b,a\n1,7\n2,-3\n3,7\n"), "b", test_share=0.0))
    assert (dataset.classes, dataset.x.tolist()) == (3, [[7], [-3], [7]])


def test_test_rows_are_a_share_of_each_class_and_no_training_row(tmp_path: Path) -> None:
    rows = "".join(f"{i},{'a' if i < 40 else 'b'}\n" for i in range(60))
    path = write(tmp_path, "x,y\n" + rows)
    dataset = read_table(Source(path, test_share=0.25, seed=3))
    assert len(dataset.test_x) == 15
    assert dataset.test_y.bincount().tolist() == [10, 5]
    together = sorted([*dataset.x.flatten().tolist(), *dataset.test_x.flatten().tolist()])
    assert together == list(range(60))
    again = read_table(Source(path, test_share=0.25, seed=3))
    assert torch.equal(again.test_x, dataset.test_x)
    other = read_table(Source(path, test_share=0.25, seed=4))
    assert not torch.equal(other.test_x, dataset.test_x)


def test_classes_only_the_test_file_has_are_known(tmp_path: Path) -> None:
    train = write(tmp_path, "x,y\n1,b\n2,d\n")
    test = write(tmp_path, "x,y\n5,c\n6,d\n", "test.csv")
    dataset = read_table(Source(train, test_path=test))
    assert (dataset.classes, dataset.y.tolist(), dataset.test_y.tolist()) == (3, [0, 2], [1, 2])
    assert dataset.test_x.tolist() == [[5], [6]]


def test_npz_of_images(tmp_path: Path) -> None:
    images = np.arange(4 * 1 * 3 * 3, dtype=np.uint8).reshape(4, 1, 3, 3)
    labels, owners = np.array([0, 1, 2, 1]), np.array(["a", "b", "a", "b"])
    path = tmp_path / "images.npz"
    np.savez(path, x=images, y=labels, owners=owners, test_x=images[:2], test_y=labels[:2])
    dataset = read_table(Source(path))
    assert dataset.x.dtype == torch.uint8
    assert dataset.shape == (1, 3, 3)
    assert dataset.scale == 1 / 255
    assert (len(dataset.x), len(dataset.test_x), dataset.classes) == (4, 2, 3)
    assert dataset.owners is not None
    assert dataset.owners.tolist() == [0, 1, 0, 1]
    np.savez(path, x=images, y=labels)
    assert len(read_table(Source(path, test_share=0.5)).test_x) == 2


@pytest.mark.parametrize(
    ("text", "target", "owner", "said"),
    [
        ("", None, None, "needs a header and rows"),
        ("a,b\n", None, None, "needs a header and rows"),
        ("a\n1\n", None, None, "needs a header and rows"),
        ("a,a\n1,2\n", None, None, "column 'a' is there twice"),
        ("a,b\n1,2\n1\n", None, None, "line 3 has 1 values and the header 2"),
        ("a,b\nred,2\n", None, None, "column 'a' holds 'red' in line 2, where a finite"),
        ("a,b\n1,2\n,2\n", None, None, "one row lacks .* line 3, where column 'a' holds nothing"),
        ("a,b\n1,2\n1,\n", None, None, "line 3, where column 'b' holds nothing; drop or fill"),
        ("a,b,c\n1,,x\n,,x\n1,2,x\n", None, None, "2 rows lack .* first is line 2, .* 'b'"),
        ("a,b\n1,2\n\n\nNaN,2\n", None, None, "line 5, where column 'a' holds 'NaN'"),
        ("a,b\n1,2.5\n1,nan\n", None, None, "line 3, where column 'b' holds 'nan'"),
        ("a,b\n1,2.5\n1,NA\n", None, None, "line 3, where column 'b' holds 'NA'; drop or fill"),
        ("a,b\n1,7\n1, n/a \n", None, None, "one row .* line 3, where column 'b' holds 'n/a'"),
        ("a,b\n1,2\n?,2\nnull,3\n", None, None, "2 rows .* line 3, where column 'a' holds '.'"),
        ("a,b\n1,yes\n1,no\n1,NA\n", None, None, "line 4, .* 'NA'; .* or rename the class"),
        ("a,b\n1,yes\n1,NONE\n", None, None, "line 3, where column 'b' holds 'NONE'"),
        ("a,b\n1,yes\n1,-\n", None, None, "line 3, where column 'b' holds '-'"),
        ("a,b\n1,yes\n1,nan\n", None, None, "line 3, where column 'b' holds 'nan'"),
        ("a,b\n-NaN,1\n", None, None, "line 2, where column 'a' holds '-NaN'"),
        ("a,b\n1,2\n-inf,2\n", None, None, "column 'a' holds '-inf' in line 3"),
        ("a,b\n1,2\n1e99,2\n", None, None, "column 'a' holds '1e99' in line 3"),
        ("age,b\n1,2\n", "agee", None, "data.target: .* no column 'agee'; did you mean 'age'"),
        ("a,b\n1,2\n", "b", "zone", "data.owner: .* no column 'zone'; there are a, b"),
        ("a,b\n1,2\n", "b", "a", "no column left for features"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, text: str, target: str | None, owner: str | None, said: str
) -> None:
    with pytest.raises(FednagError, match=said) as caught:
        read_table(Source(write(tmp_path, text), target, owner))
    assert "\n" not in str(caught.value)


def test_words_that_look_like_numbers_are_classes(tmp_path: Path) -> None:
    dataset = read_table(Source(write(tmp_path, "a,b\n1,1e3\n2,inf\n3,pitta\n"), test_share=0.0))
    assert (dataset.classes, dataset.y.tolist()) == (3, [0, 1, 2])


def test_words_as_classes_are_told(tmp_path: Path) -> None:
    path = write(tmp_path, CSV)
    dataset = read_table(Source(path, "outcome", "hospital"))
    assert dataset.words == ("ill", "well")
    assert dataset.notes == ["classes: 0 ill, 1 well"]
    assert read_table(Source(write(tmp_path, "a,b\n1,7\n2,3\n"), test_share=0.0)).notes == []
    table = {"name": "file", "path": str(write(tmp_path, CSV)), "owner": "hospital"}
    natural = {"kind": "natural"}
    done = run("fednag", data=table, model="logistic", split=natural, tau=1, iterations=1)
    assert done.notes[0] == "classes: 0 ill, 1 well"


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("unit", [0.1, 10.0])
def test_features_in_large_units_are_told(tmp_path: Path, unit: float, standardise: bool) -> None:
    rows = "".join(f"{unit * (-1) ** i},{i % 3 % 2}\n" for i in range(12))
    table = {"path": str(write(tmp_path, "a,b\n" + rows)), "standardise": standardise}
    arguments = {"model": "logistic", "workers": 2, "tau": 1, "iterations": 1}
    done = run("fednag", data={"name": "file", **table}, **arguments)
    said = [note for note in done.notes if "data.standardise = true" in note]
    assert len(said) == (unit > 1 and not standardise)
    assert all(re.search(r"standard deviation is (9\.\d+|10),", note) for note in said)


def test_python_takes_a_file_by_its_name(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\n1,7\n2,3\n3,7\n4,3\n5,7\n")
    done = run("fednag", data=str(path), model="logistic", workers=2, tau=1, iterations=1)
    assert done.records[-1].iteration == 1


def test_wrong_files_are_said(tmp_path: Path) -> None:
    def says(source: Source, words: str) -> None:
        with pytest.raises(FednagError, match=words):
            read_table(source)

    says(Source(tmp_path / "no.csv"), r"data.path: .*no.csv cannot be read \(No such file")
    says(Source(tmp_path / "no.npz"), r"data.path: .*no.npz cannot be read \(No such file")
    says(Source(write(tmp_path, "x", "a.txt")), "neither .csv nor .npz")
    says(Source(write(tmp_path, "x", "a.npz")), "not an NPZ of plain arrays")
    (tmp_path / "latin.csv").write_bytes("a,b\n1,\xe9\n".encode("latin-1"))
    says(Source(tmp_path / "latin.csv"), "not a CSV in UTF-8")
    table = write(tmp_path, "x,y\n1,a\n2,b\n")
    says(Source(table, test_path=write(tmp_path, "z,y\n1,a\n", "t.csv")), "other features")
    says(Source(table, test_path=write(tmp_path, "x,y\n1,0.5\n", "t.csv")), "other targets")
    arrays = tmp_path / "b.npz"
    np.savez(arrays, x=np.ones((3, 2)))
    says(Source(arrays), r"has no array 'y' \(it holds x\)")
    np.savez(arrays, x=np.ones((3, 2)), y=np.ones(2))
    says(Source(arrays), "y has 2 rows and x has 3")
    np.savez(arrays, x=np.ones(3), y=np.ones(3))
    says(Source(arrays), "must hold numbers, a row or image")
    np.savez(arrays, x=np.ones((3, 2)), y=np.array([b"a", b"b", b"c"]))
    says(Source(arrays), "numbers or words")
    says(Source(arrays, target="y"), "data.target: names a column")
    np.savez(arrays, x=np.array([[object()]]), y=np.ones(1))
    says(Source(arrays), "it holds object, and not plain numbers or words")


def fednag(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fednag", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_a_file_is_trained_on_and_gone_on_with_from_elsewhere(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    kinds = np.where(x[:, 0] + x[:, 1] > 0, "yes", "no")
    lines = [
        f"{a:.4f},{b:.4f},{c:.4f},h{i % 3},{kind}"
        for i, ((a, b, c), kind) in enumerate(zip(x, kinds, strict=True))
    ]
    write(tmp_path, "a,b,c,clinic,answer\n" + "\n".join(lines) + "\n", "clinics.csv")
    write(
        tmp_path,
        """name = "clinics"
[data]
name = "file"
path = "clinics.csv"
owner = "clinic"
[split]
kind = "natural"
[model]
name = "logistic"
[algorithm]
lr = 0.1
[training]
tau = 2
iterations = 40
batch = 16
""",
        "clinics.toml",
    )
    done = fednag(tmp_path, "run", "clinics.toml")
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "runs" / "clinics").iterdir()
    kept = (folder / "config.toml").read_text()
    assert f'path = "{tmp_path / "clinics.csv"}"' in kept
    assert "workers = 3" in kept
    records = (folder / "records.jsonl").read_text().splitlines()
    assert '"accuracy": 0.9' in records[-1] or '"accuracy": 1.0' in records[-1]
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    first = fednag(elsewhere, "run", "../clinics.toml", "--set", "training.iterations=2")
    assert first.returncode == 0, first.stderr
    again = fednag(elsewhere, "run", str(folder / "config.toml"))
    assert again.returncode == 0, again.stderr
    wrong = fednag(tmp_path, "run", "clinics.toml", "--set", "data.target=answr")
    assert wrong.returncode == 2
    assert "did you mean 'answer'?" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    digits = ("--set", "data.name=digits", "--set", "split.kind=iid")
    lost = fednag(tmp_path, "run", "clinics.toml", *digits)
    assert lost.returncode == 0, lost.stderr  # what goes only with a file is dropped with it
    shown = fednag(
        tmp_path, "data", "split", "clinics.csv", "--kind", "natural", "--owner", "clinic"
    )
    assert shown.returncode == 0, shown.stderr
    assert "96 in all" in shown.stdout
    assert (tmp_path / "runs" / "split-clinics-natural.png").exists()
    write(tmp_path, '[data]\nname = "file"\n', "nothing.toml")
    missing = fednag(tmp_path, "run", "nothing.toml")
    assert missing.returncode == 2
    assert "data.path: is missing" in missing.stderr


PLACED = """name = "placed"
[data]
name = "file"
path = "a.csv"
test_path = "b.csv"
[clock]
fleet = "slow.toml"
"""


def test_paths_in_a_file_are_found_beside_it_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, here = tmp_path / "beside", tmp_path / "here"
    for folder in (beside, here):
        folder.mkdir()
    monkeypatch.chdir(here)
    path = write(beside, PLACED, "it.toml")
    raw = read(path)
    assert raw["data"]["path"] == str(here / "a.csv")  # nowhere: errors say where it was looked for
    assert raw["clock"]["fleet"] == "slow.toml"  # may be a shipped fleet's name
    for name in ("a.csv", "slow.toml"):
        write(beside, "", name)
        write(here, "", name)
    write(here, "", "b.csv")
    raw = read(Path("../beside/it.toml"))
    assert raw["data"]["path"] == str(beside / "a.csv")
    assert raw["data"]["test_path"] == str(here / "b.csv")
    assert raw["clock"]["fleet"] == str(beside / "slow.toml")
    told = override(raw, {"data.path": "a.csv", "clock.fleet": "slow.toml"})
    assert told["data"]["path"] == str(here / "a.csv")
    assert told["clock"]["fleet"] == str(here / "slow.toml")
    (here / "lan").mkdir()
    assert override(raw, {"clock.fleet": "lan"})["clock"]["fleet"] == "lan"


def test_a_refused_run_leaves_nothing_and_says_the_whole_path(tmp_path: Path) -> None:
    write(tmp_path, 'data = {name = "file", path = "no.csv"}\nmodel.name = "logistic"\n', "a.toml")
    for command in (
        ("run", "a.toml"),
        ("theory", "check", "a.toml"),
        ("run", "a.toml", "-o", "x/y"),
    ):
        wrong = fednag(tmp_path, *command)
        assert wrong.returncode == 2
        assert f"data.path: {tmp_path / 'no.csv'} cannot be read" in wrong.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]
