"""Shows the examples in docstrings as code: they are written as sessions, without a fence."""

from __future__ import annotations

import re
from typing import Any

import griffe

SESSION = re.compile(r"(?:^>>> .*\n?(?:^(?!>>> )\S.*\n?)*)+", re.MULTILINE)


class Sessions(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = SESSION.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", text)
