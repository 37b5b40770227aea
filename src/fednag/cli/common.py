"""What the commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperGroup

from fednag.core.files import check_name, os_errors
from fednag.errors import FednagError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table

    from fednag.results import Run


class NamedByDefault(TyperGroup):
    """A group whose ``usual`` command is called where none is named."""

    usual = ""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            args = args if self._mistyped(args[0]) else [self.usual, *args]
        return super().parse_args(ctx, args)

    def _mistyped(self, word: str) -> bool:
        """Not a path that is there, and nearly a command's name."""
        return bool(get_close_matches(word, self.commands)) and not Path(word).exists()


def output(path: Path, option: str = "--out") -> Path:
    """The folder to write to, made if need be: known to be usable before any work is done."""
    check_name(path, option, path)
    with os_errors(option, "cannot be made", "choose another folder", given=path):
        path.mkdir(parents=True, exist_ok=True)
    if not os.access(path, os.W_OK | os.X_OK):
        raise FednagError(option, "cannot be written to", "choose another folder", given=path)
    return path


def usable(path: Path) -> Path:
    """The same for a folder that is made once training starts: nothing stays if it never does."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    output(path)
    for folder in missing:
        with suppress(OSError):  # another process may be using it by now
            folder.rmdir()
    return path


def console(stderr: bool = False) -> Console:
    from fednag.show.terminal import Screen

    # Piped, a table must not be cut to 80 columns. Names and paths are not markup.
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 240
    return Screen(width=width, markup=False, emoji=False, stderr=stderr)


def beside(json: bool) -> Console:
    """Where progress is shown: with --json, standard output is the result's alone."""
    return console(stderr=json)


def print_json(content: Any) -> None:
    """One JSON document on standard output."""
    print(json_text(content, indent=2), flush=True)


def json_text(content: Any, indent: int = 1) -> str:
    """Strict JSON; infinities, which it has not, become null."""
    import json

    return json.dumps(plain(content), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """The same for JSON, which has no infinity; an error as its fields."""
    if isinstance(value, FednagError):
        return value.to_dict()
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def answer(
    json: bool,
    document: Mapping[str, Any] | list[dict[str, Any]],
    *shown: RenderableType,
    notes: Sequence[str] | None = None,
    runs: Mapping[Path, str] | None = None,
    files: Sequence[Path] | Callable[[], Sequence[Path]] | None = None,
    failed: Sequence[FednagError] | None = None,
) -> None:
    """What a command found: one JSON document; or texts and tables, notes, and what was written.

    ``runs`` are folders, and what to say of each; ``files`` may be a function that writes them,
    called when the rest has been shown. Raises the first of ``failed``, if there are any.
    """
    from rich.table import Table

    from fednag.show import terminal

    notes = None if notes is None else list(dict.fromkeys(notes))
    if not json:
        screen = console()
        for each in shown:
            screen.print(each, soft_wrap=not isinstance(each, Table), highlight=False)
        terminal.notes(screen, notes or ())
    written = files() if callable(files) else files
    if json:
        folders, paths = (w if w is None else [str(path) for path in w] for w in (runs, written))
        more = {"runs": folders, "files": paths, "notes": notes, "failed": failed}
        given = {key: each for key, each in more.items() if each is not None}
        print_json({**document, **given} if isinstance(document, Mapping) else document)
    elif runs or written:
        terminal.paths(screen, [*(runs or ()), *(written or ())], runs)
    unless(failed or ())


def table(
    words: Sequence[str],
    numbers: Sequence[str] = (),
    last: Sequence[str] = (),
    title: str | None = None,
    whole: bool = False,
) -> Table:
    """A table: columns of words, of numbers, in one line if ``whole``, and of words again."""
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    for heading in words:
        made.add_column(heading, no_wrap=bool(numbers))
    for heading in numbers:
        made.add_column(heading, justify="right", no_wrap=whole)
    for heading in last:
        made.add_column(heading)
    return made


def write_report(path: Path, content: Any) -> Path:
    """Write a document as JSON, for programs."""
    from fednag.core.files import write_atomically

    check_name(path, "--out", path)
    with os_errors(path, "cannot be written", "use --out"):
        write_atomically(path, json_text(content) + "\n")
    return path


def unless(failed: Sequence[FednagError]) -> None:
    """Raise what went wrong with some of several runs, if anything did."""
    if failed:
        raise failed[0].and_more(len(failed) - 1, " like that")


def set_fields(given: Sequence[str]) -> dict[str, Any]:
    """The fields of --set and their values."""
    from fednag.config import assignments, value

    return {field: value(text) for field, text in assignments(given, "--set").items()}


@contextmanager
def blaming(options: Mapping[str, str]) -> Iterator[None]:
    """What is wrong with a field that an option gave is said of the option, not of the file."""
    try:
        yield
    except FednagError as error:
        if error.field in options:
            error.source, error.given = "", error.field
            error.field = options[error.field]
        raise


def listed(text: str) -> list[str]:
    """The words between commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def folders_of(runs: Sequence[Run]) -> dict[Path, str]:
    """The folders of runs, and which run is in each."""
    return {r.folder: f"{r.label}, seed {r.experiment.seed}" for r in runs if r.folder}


def given_seeds(text: str, otherwise: int) -> list[int]:
    """The seeds of --seeds."""
    if not text:
        return [otherwise]
    try:
        seeds = [int(part) for part in text.split(",")]
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds) or not all(0 <= s < 2**31 for s in seeds):
        raise FednagError(
            "--seeds", remedy="write different whole numbers from 0 up, e.g. 0,1,2", given=text
        )
    return seeds
