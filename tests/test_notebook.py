"""What notebooks show: one line of progress, results that draw themselves, the first notebook."""

from __future__ import annotations

import base64
import io
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fednag
from fednag.config import parse
from fednag.core.ending import Ending
from fednag.core.record import Record
from fednag.runs.view import RunView
from fednag.show import notebook as shown
from fednag.show.notebook import cell
from fednag.show.terminal import RunsProgress

ROOT = Path(__file__).parents[1]
QUICKSTART = ROOT / "examples" / "quickstart.ipynb"
SHORT: dict[str, Any] = {"model": "logistic", "tau": 1, "iterations": 40}


def view(label: str, last: float | None, seed: int = 0, points: int = 3) -> RunView:
    records = [
        Record(i, i, 2.0 - (last or 0) * i / points, last, last, 8 * i, 8 * i, i / 9, 4)
        for i in range(points)
    ]
    return RunView(label, seed, records, Ending("finished"))


class Notebook:
    """A kernel's shell and display, as far as progress knows them."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.execution_count, self.kernel = 1, object()
        self.outputs: list[list[dict[str, str]]] = []  # a display, each with all it has shown
        ipython = SimpleNamespace(get_ipython=lambda: self)
        patch.setitem(sys.modules, "IPython", ipython)  # type: ignore[arg-type]
        patch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=self.display))  # type: ignore[arg-type]
        patch.setattr(shown, "_shown", (None, None))

    def display(self, bundle: dict[str, str], raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        output = [bundle]
        self.outputs.append(output)
        return SimpleNamespace(update=lambda bundle, raw: output.append(bundle))


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Notebook:
    return Notebook(monkeypatch)


def texts(notebook: Notebook) -> list[str]:
    (output,) = notebook.outputs
    return [bundle["text/plain"] for bundle in output]


def test_a_cell_has_one_line_however_many_runs(notebook: Notebook) -> None:
    for _ in range(3):
        fednag.compare(["fednag", "fedavg"], **SHORT)
    said = texts(notebook)
    assert said[0] == "preparing"
    ends = [text for text in said if text.startswith("fednag (1 of 2): round 40/40, loss ")]
    assert len(ends) == 3
    assert re.fullmatch(r"2 runs in \d+\.\d s", said[-1])
    assert len(notebook.outputs[0][-1]["text/html"]) < 100
    notebook.execution_count = 2
    fednag.run("fednag", **SHORT)
    assert len(notebook.outputs) == 2
    assert notebook.outputs[1][-1]["text/plain"].startswith("1 run in ")


def test_quiet_is_quiet(notebook: Notebook) -> None:
    fednag.run("fednag", quiet=True, **SHORT)
    fednag.compare(["fednag"], quiet=True, **SHORT)
    fednag.sweep({"algorithm.momentum": [0.5]}, quiet=True, **SHORT)
    assert notebook.outputs == []


def test_updates_are_few(notebook: Notebook, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of a tenth of a second: every other one is shown."""
    hundred = parse({"training": {"tau": 1, "iterations": 100}})
    now = [0.0]
    monkeypatch.setattr(shown.time, "monotonic", lambda: now[0])
    with shown.progress(["a<b", "c"]) as started:
        assert started is not None
        for label in ("a<b", "c"):
            listen = started(label, hundred, 100)
            for number in range(1, 101):
                now[0] += 0.1000001
                record = Record(number, number, 0.5, 0.75, None, 0, 0, 0.0, 1)
                ended = "finished" if number == 100 else None
                state = SimpleNamespace(round=number, iteration=number, record=record, ended=ended)
                listen(state)  # type: ignore[arg-type]
    said = texts(notebook)
    assert 90 <= len(said) <= 105
    assert said[25] == "a<b (1 of 2): round 50/100, loss 0.5000, accuracy 75.0%, 0:00:15 left"
    html = [bundle["text/html"] for bundle in notebook.outputs[0]]
    assert 'value="0.250"' in html[25]
    assert "a&lt;b" in html[25]
    assert said[-1] == "2 runs in 20.0 s"


def test_an_error_leaves_the_last_line(notebook: Notebook) -> None:
    def stop() -> None:
        with shown.progress(["a"]):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert texts(notebook) == ["preparing"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_bars_that_go_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with shown.progress(["a", "b"]) as started:
        assert started is not None
        bars = started.__self__  # type: ignore[attr-defined]
        assert isinstance(bars, RunsProgress)
        assert bars.progress.live.transient
    assert "waiting" in sys.stderr.getvalue()  # type: ignore[attr-defined]


def test_nobody_looks_at_a_pipe(capfd: pytest.CaptureFixture[str]) -> None:
    fednag.run("fednag", **SHORT)
    assert capfd.readouterr() == ("", "")


def rows(html: str) -> list[list[str]]:
    return [
        re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", html)
    ]


def test_results_draw_themselves() -> None:
    result = fednag.compare(["fedavg", "fednag"], seeds=[0, 1], **SHORT)
    html = result._repr_html_()
    head, first, second = rows(html)
    assert head[:2] == ["method", "final accuracy"]
    assert [first[0], second[0]] == ["fednag (2 runs)", "fedavg (2 runs)"]
    assert first[1] in str(result)
    (data,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    picture = base64.b64decode(data).decode()
    assert picture.startswith("<svg")
    assert "global training loss" in picture
    assert "loss and accuracy of fedavg, fednag" in html
    assert "http" not in html
    assert rows(result["fednag"]._repr_html_())[1][0] == "fednag"


def test_a_drawn_result_is_safe_and_small() -> None:
    nasty = '"><script>alert(1)</script>'
    html = cell([view(nasty, 0.5)])
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    many = cell([view(f"method {i}", i / 100, points=3000) for i in range(60)])
    assert len(many) < 150_000
    assert len(rows(many)) == 31
    assert rows(many)[1][0] == "method 59"
    assert "the best 30 of 60" in many
    assert "method 48," in many.partition("<img")[2]
    assert "method 47" not in many.partition("<img")[2]


def test_what_was_not_measured_is_not_shown() -> None:
    nothing = Record(0, 0, None, None, None, 0, 0, 0.0, 1)
    lost = RunView("lost", 0, [nothing], Ending("diverged", 0))
    html = cell([lost])
    assert "<img" not in html
    assert "color:#c62828" in html
    no_accuracy = cell([view("regression", None)])
    assert rows(no_accuracy)[0][:2] == ["method", "final loss"]


def test_the_first_notebook_is_committed_clean() -> None:
    """What it prints depends on the machine; who runs it sees it."""
    cells = json.loads(QUICKSTART.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) >= 5
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_the_first_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first cell to its last, by this interpreter, on these sources."""
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    folder = tmp_path / "kernels" / "this"
    folder.mkdir(parents=True)
    launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": launch, "display_name": "this", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", str(Path(fednag.__file__).parents[1]))

    book = nbformat.read(QUICKSTART, as_version=4)
    nbformat.validate(book)
    strict = "import sys, warnings\nwarnings.simplefilter('error')\nsys.executable"
    whose = "fednag.__file__"
    book.cells.insert(0, nbformat.v4.new_code_cell(strict))
    book.cells.append(nbformat.v4.new_code_cell(whose))
    nbclient.NotebookClient(
        book,
        kernel_name="this",
        timeout=600,
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()

    code = {cell.id: cell for cell in book.cells if cell.cell_type == "code"}
    first, *_, last = code.values()
    assert first.outputs[0].data["text/plain"] == repr(sys.executable)
    assert last.outputs[0].data["text/plain"] == repr(fednag.__file__)
    for one in code.values():
        assert not [out for out in one.outputs if out.get("name") == "stderr"], one.outputs
        assert len(one.outputs) <= 2
        assert len(json.dumps(one.outputs)) < 60_000
    bar, result = code["compare"].outputs
    assert re.fullmatch(r"6 runs in \d+\.\d s", bar.data["text/plain"])
    assert rows(result.data["text/html"])[1][0] == "fednag (2 runs)"
    assert "<img" in result.data["text/html"]
    assert len(rows(code["sweep"].outputs[1].data["text/html"])) == 4
    methods = {row[0] for row in rows(code["algorithm"].outputs[1].data["text/html"])[1:]}
    assert methods == {"FedPolyak", "fednag", "fedavg"}
    guesses, truth = re.findall(r"\[([\d, ]+)\]", code["use"].outputs[0].text)
    same = [a == b for a, b in zip(guesses.split(", "), truth.split(", "), strict=True)]
    assert sum(same) >= 8
