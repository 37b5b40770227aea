"""``fednag tune``: every method's numbers, found under one rule for all."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednag.cli import completing
from fednag.cli.common import (
    answer,
    beside,
    blaming,
    folders_of,
    given_seeds,
    listed,
    set_fields,
    table,
    usable,
    write_report,
)
from fednag.cli.options import Algorithms, Making, Seeds, Telling, grouped
from fednag.cli.running import training
from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.table import Table

    from fednag.results import Run
    from fednag.tuning import Tuned, Tuning


@grouped
def tune(
    *,
    experiment: Annotated[Path, typer.Argument(help="TOML file; its seed is that of all trials.")],
    algorithms: Algorithms = "",
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="The same: names, or `all` that are shipped and can run it.",
            autocompletion=completing.methods,
        ),
    ] = "",
    budget: Annotated[str, typer.Option("--budget", help="Trials of every method.")] = "40",
    seeds: Seeds = "",
    steps: Annotated[
        str, typer.Option("--steps", help="The least and the largest effective step.")
    ] = "0.01,10",
    validation: Annotated[
        float,
        typer.Option(
            "--validation", help="Share of the training samples that decides; or data.validation."
        ),
    ] = 0.1,
    space: Annotated[
        list[str],
        typer.Option(
            "--space",
            help="A space of your own instead: NUMBER=LOW:HIGH[:log] (repeatable); needs optuna.",
        ),
    ] = [],  # noqa: B006
    measure: Annotated[
        str, typer.Option("--measure", help="What decides: accuracy, test_loss, f1, …")
    ] = "",
    making: Making,
    telling: Telling,
) -> None:
    """Find every method's step and momentum with equal effort, then compare them on test samples.

    All methods have as many trials in the same space, on the same split, first weights and batches;
    a part of the training samples decides. Writes a file for `fednag compare` with the numbers.

    Example: fednag tune examples/digits.toml --methods fednag,fedavg --budget 9 --seeds 0,1,2
    """
    from rich.text import Text

    from fednag.config import methods as methods_of
    from fednag.config import override, read
    from fednag.tuning import ALL
    from fednag.tuning import tune as find

    if algorithms and methods:
        raise FednagError("--algorithms, --methods", remedy="give one of them, not both")
    changes = set_fields(making.set_)
    raw = override(read(experiment), changes)
    names, source = listed(algorithms or methods), str(experiment)
    usable(making.out)
    terminal = beside(telling.json)

    def told(line: str) -> None:
        terminal.print(line, highlight=False, soft_wrap=True)

    with blaming(dict.fromkeys(changes, "--set")):
        labels = names
        if names != [ALL]:
            labels = [label for label, _ in methods_of(raw, names, source)]
        more = ", or all by repeating the command with --resume"
        with training(labels or [ALL], telling, more) as (started, watch):
            found = find(
                raw,
                algorithms=names,
                budget=_trials(budget),
                seeds=given_seeds(seeds, raw.get("seed", 0)),
                steps=_steps(steps),
                validation=validation,
                space=space,
                measure=measure,
                out=making.out,
                started=started,
                told=None if telling.quiet else told,
                resume=making.resume,
                watch=watch,
                source=source,
            )
    folder = making.out / str(raw.get("name", "run"))
    document = _document(found)
    answer(
        telling.json,
        document,
        _table(found),
        *(Text(sentence, "bold") for sentence in found.sentences),
        notes=_notes(found),
        runs=folders_of(found.runs),
        files=lambda: _write(found, document, folder),
    )


def _trials(text: str) -> int:
    if not text.isdecimal() or len(text) > 6:
        raise FednagError("--budget", remedy="write a number of trials, e.g. 40", given=text)
    return int(text)


def _steps(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise FednagError("--steps", remedy="write two numbers, e.g. 0.01,10", given=text) from None
    return low, high


def _notes(found: Tuning) -> list[str]:
    said = [f"{run.label}: {note}" for run in found.runs for note in run.notes]
    said += [f"left out: {why}" for why in found.left_out.values()]
    if any(run.experiment.seed != found.seed and _drawn(run) for run in found.runs):
        said.append(
            "data.test_share draws other test rows with every seed, and those of another seed than "
            f"{found.seed} were among the rows that decided: give data.test_path to avoid that"
        )
    if len({run.experiment.seed for run in found.runs}) < 3:
        said.append("fewer than three seeds: no interval is given; differences may be chance")
    return said


def _drawn(run: Run) -> bool:
    """Whether its test samples are drawn by its seed from a file's rows."""
    data = run.experiment.data
    return bool(data.path and data.path.endswith(".csv")) and data.test_path is None


def _document(found: Tuning) -> dict[str, Any]:
    return {
        "measure": found.measure,
        "space": found.region and asdict(found.region),
        "rungs": [asdict(rung) for rung in found.rungs],
        "sentences": found.sentences,
        "left_out": dict(found.left_out),
        "methods": [
            {
                "method": each.method,
                "numbers": each.best and dict(each.best.numbers),
                "step": each.best and each.best.step,
                "validation": each.best and each.best.value,
                "test": each.mean,
                "interval": each.interval,
                "values": each.values,
                "border": list(each.border),
                "diverged": each.diverged,
                "trials": [
                    {"numbers": dict(t.numbers), "step": t.step, "iterations": t.iterations}
                    | {"validation": t.value}
                    for t in each.trials
                ],
            }
            for each in found.tuned
        ],
    }


def _table(found: Tuning) -> Table:
    words = found.measure.replace("_", " ")
    judged = words.removeprefix("test ")
    seeds = len({run.experiment.seed for run in found.runs})
    title = f"tuned, best on the test samples first; mean over {seeds} seed{'s' * (seeds != 1)}"
    numbers = ["effective\nstep", f"validation\n{judged}", f"test\n{judged}"]
    made = table(["method"], numbers, ["numbers", "at a border"], title)
    for each in found.tuned:
        made.add_row(*_cells(each), style="red" if each.mean is None else None)
    return made


def _cells(each: Tuned) -> list[str]:
    share = each.measure in ("accuracy", "train_accuracy")
    form = "{:.2%}" if share else "{:.4g}"
    if each.best is None:
        return [each.method, "-", "-", "-", "every trial diverged", ""]
    shown = "diverged" if each.mean is None else form.format(each.mean)
    if each.interval and each.mean is not None:
        shown += f" ± {form.format(each.interval[1] - each.mean)}"
    told = ", ".join(f"{name} {value:g}" for name, value in each.best.numbers.items())
    value = form.format(each.best.value)
    ends = ", ".join(end.split(",")[0].removeprefix("the ") for end in each.border)
    step = "-" if each.best.step is None else f"{each.best.step:.3g}"
    return [each.method, step, value, shown, told, ends]


def _write(found: Tuning, document: dict[str, Any], folder: Path) -> list[Path]:
    from fednag.show.charts import PICTURES, save, tuning_chart
    from fednag.show.document import document as page_of
    from fednag.show.document import write_page

    rows = [
        {"method": each.method, "step": trial.step, "value": trial.value}
        | {"iterations": trial.iterations, "momentum": _momentum(trial.numbers)}
        | {"best": trial == each.best}
        for each in found.tuned
        for trial in each.trials
        if trial.value is not None and trial.step is not None
    ]
    written = [found.write(folder / "tuned.toml")]
    if rows:
        written += save(tuning_chart(rows, found.measure), folder / "tuning", PICTURES)
    if found.runs:
        written.append(write_page(page_of(found.views), folder / "tuned.html"))
    return [*written, write_report(folder / "tuning.json", document)]


def _momentum(numbers: Any) -> float:
    return max((numbers[name] for name in numbers if name.endswith("momentum")), default=0.0)
