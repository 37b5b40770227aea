"""The one exception users are meant to see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# What a terminal would obey rather than show, turn around, or not be able to write at all. A line
# break and a tab are neither.
_CONTROL = (*range(9), *range(11, 32), *range(127, 160))
_TURNING = (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_HALVES = range(0xD800, 0xE000)  # bytes of a path that are no text are among these
_HIDDEN = {code: ascii(chr(code))[1:-1] for code in (*_CONTROL, *_TURNING, *_HALVES)}


def printable(text: str) -> str:
    """Text from files and people as a terminal may have it: escapes are shown, not obeyed.

    >>> printable("red \x1b[31m")
    'red \\\\x1b[31m'
    """
    return text if text.isascii() and text.isprintable() else text.translate(_HIDDEN)


class FednagError(Exception):
    """Something the user can put right.

    ``where`` is the field, option or argument it is about, or a file, as a path. Printed it is one
    sentence, ``source: field: problem; remedy``; the command line shows it without a traceback and
    exits with code 2. An error without a field is a sentence alone.

    >>> import fednag
    >>> try:
    ...     fednag.run("fednag", tau=0)
    ... except fednag.FednagError as error:
    ...     print(error)
    ...     print(error.field, error.remedy, sep=", ")
    run: training.tau: 0 is not allowed; it should be at least 1
    training.tau, it should be at least 1
    """

    def __init__(
        self,
        where: str | Path,
        problem: str | None = None,
        remedy: str = "",
        *,
        given: object = "",
        source: object = "",
    ) -> None:
        if problem is None and not remedy:
            where, problem = "", str(where)
        is_file = isinstance(where, Path)
        self.source = str(where if is_file else source)
        self.field = "" if is_file else str(where)
        self.given = str(given)
        self.problem = problem or ""
        self.remedy = remedy

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> FednagError:
        """The same again, from what ``to_dict`` gave."""
        told = {"field": "", "problem": "", **fields}
        del told["sentence"]
        return cls(told.pop("field"), **told)

    @property
    def place(self) -> str:
        """The file and the field, as they are printed."""
        return ": ".join(filter(None, (self.source, f"{self.field} {self.given}".strip())))

    def __str__(self) -> str:
        said = "; ".join(filter(None, (self.problem, self.remedy)))
        return printable(": ".join(filter(None, (self.place, said))))

    def and_more(self, count: int, what: str = "") -> FednagError:
        """The same, which stands for others too."""
        if count:
            last = "remedy" if self.remedy else "problem"
            setattr(self, last, f"{getattr(self, last)} (and {count} more{what})")
        return self

    def to_dict(self) -> dict[str, str]:
        """The sentence and its fields, for programs."""
        return {"sentence": str(self), **{key: text for key, text in vars(self).items() if text}}


class InconsistentError(FednagError, ValueError):
    """Fields that do not go together: what a check of pydantic's raises, and collects."""


class BusyError(FednagError):
    """Another process is writing the run."""


@contextmanager
def within(source: object = "", field: str = "") -> Iterator[None]:
    """Errors from inside name the file, and the field in it, that what is wrong came from."""
    try:
        yield
    except FednagError as error:
        if field and error.place:  # which is then part of the problem
            error.problem = ": ".join(filter(None, (error.place, error.problem)))
            error.source = error.given = ""
        error.field = field or error.field
        error.source = error.source or str(source)
        raise


def not_installed(what: str, extra: str) -> FednagError:
    """The error for what an extra of the package would bring."""
    return FednagError(
        "",
        f"{what} is not installed",
        f"pip install 'fednag[{extra}]', or in a clone make install EXTRAS={extra}",
    )
