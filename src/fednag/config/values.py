"""Fields and values as a command line gives them."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from typing import Any

from fednag.errors import FednagError


def assignments(texts: Sequence[str], option: str) -> dict[str, str]:
    """``section.key=text`` options as a mapping."""
    found: dict[str, str] = {}
    for text in texts:
        path, equals, right = text.partition("=")
        if not equals or not path.strip() or not right.strip():
            raise FednagError(
                option, remedy="write section.key=value, e.g. training.tau=20", given=text
            )
        if path.strip() in found:
            raise FednagError(option, "is given twice", "leave one out", given=path.strip())
        found[path.strip()] = right.strip()
    return found


def value(text: str) -> Any:
    """A value as TOML writes it; anything else is taken as a plain string."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # A line break in the text would smuggle in more fields.
    return found["value"] if len(found) == 1 else text


def values(text: str) -> list[Any]:
    """Values between commas, as TOML writes them, lists among them; or else plain strings."""
    try:
        found: list[Any] = tomllib.loads(f"values = [{text}]")["values"]
    except (ValueError, RecursionError):
        return [value(part.strip()) for part in text.split(",") if part.strip()]
    return found
