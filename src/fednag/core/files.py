"""Writing files so that a crash leaves the old content or the new, nothing in between."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fednag.errors import FednagError


@contextmanager
def os_errors(
    where: str | Path, problem: str, remedy: str = "", given: object = ""
) -> Iterator[None]:
    """What the system refuses inside, with its reason in brackets."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise FednagError(where, f"{problem} ({reason})", remedy, given=given) from error


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write all of it or nothing, even when the power fails: beside ``path``, then renamed.

    Processes that write the same file at once do not take each other's half.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    data = content.encode() if isinstance(content, str) else content
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def check_name(path: Path, field: str | Path, given: object = "") -> None:
    """Raise a sentence for a path that is no text: files that name it could not be written."""
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError as error:
        raise FednagError(
            field, "its name is not text in UTF-8", "choose another", given=given
        ) from error


def sync(path: Path) -> None:
    """Have the system put a file, or a folder's list of files, on the disk itself."""
    if os.name == "nt" and path.is_dir():
        return  # Windows does not open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
