"""What the user can put right: which field an error is about, and that it says what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fednag.errors import FednagError


@contextmanager
def refused(
    field: str | None = None, says: str = "", source: str | None = None, remedy: bool = True
) -> Iterator[pytest.ExceptionInfo[FednagError]]:
    """The block is refused, in one line, of this field or file; ``says`` is part of the problem."""
    with pytest.raises(FednagError) as caught:
        yield caught
    error = caught.value
    assert "\n" not in str(error)
    if field is not None:
        assert error.field == field, str(error)
    if source is not None:
        assert error.source == source, str(error)
    assert bool(error.remedy) == remedy, str(error)
    assert re.search(says, f"{error.problem}; {error.remedy}"), str(error)
