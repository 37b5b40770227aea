"""Findings about experiment files as one sentence each."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from fednag.config.values import value
from fednag.errors import FednagError

# What pydantic asks for, in the words of someone who writes TOML.
WISHES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a text, in quotes",
    "bool_type": "true or false",
    "tuple_type": "a list, e.g. [1, 2]",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
}
# What a text may turn out to be, had it been written without its quotes.
QUOTED = {"int_type": (int,), "float_type": (int, float), "bool_type": (bool,)}
BOUNDS = ("gt", "ge", "lt", "le")


def nearest(word: str, known: Any) -> str:
    """`` (did you mean X?)`` when a known word is close."""
    close = difflib.get_close_matches(word.lower(), [str(k) for k in known], n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def cut(given: object, most: int = 60) -> str:
    """A value as one short piece of a line."""
    try:
        text = repr(given)
    except ValueError:  # an integer of more digits than Python is willing to write
        return "this number"
    return text if len(text) <= most else text[: most - 1] + "…"


def plain(key: str) -> str:
    """A key as it stands; quoted where it would break the line, for a file may hold anything."""
    return key if key.isprintable() and 0 < len(key) <= 60 else cut(key)


def explain(
    error: ValidationError, model: type[BaseModel], prefix: tuple[str, ...] = ()
) -> FednagError:
    """The first of pydantic's findings, and how many more there are."""
    found = error.errors()
    first = found[0]
    where = [part for part in first["loc"] if isinstance(part, str)]
    name = ".".join(plain(part) for part in [*prefix, *where])
    given, context = cut(first.get("input")), first.get("ctx", {})
    problem, remedy = f"{given} is not allowed", ""
    if first["type"] == "extra_forbidden":
        known = list(_fields_at(model, where[:-1]))
        home = _home(model, where[-1]) if len(where) == 1 and not prefix else ""
        problem = f"no such key{f' (did you mean {home}?)' if home else nearest(where[-1], known)}"
        remedy = "" if home else f"allowed here: {', '.join(known) or 'none'}"
    elif first["type"] == "value_error":
        own = context["error"]
        own = own if isinstance(own, FednagError) else FednagError("", str(own))
        name, problem, remedy = own.field, own.problem, own.remedy
    elif first["type"] == "missing":
        problem, remedy = "is missing", "give it a value"
    elif first["type"] == "literal_error":
        expected = str(context["expected"])
        known = [word.strip(" '") for word in expected.replace(" or ", ", ").split(",")]
        problem += nearest(str(first.get("input"))[:100], known)
        remedy = f"use {expected}"
    elif first["type"] == "string_pattern_mismatch":
        remedy = "use letters, digits, '.', '_' and '-'"
    else:
        words = first["msg"].removeprefix("Input should be ").removeprefix("Input ")
        bounds = {key: f"{bound:.10g}" for key, bound in context.items() if key in BOUNDS}
        wish = WISHES[first["type"]].format(**bounds) if first["type"] in WISHES else words
        quoted = first["type"] in QUOTED and _unquoted(first["input"]) in QUOTED[first["type"]]
        wish += ", without quotes" if quoted else ""
        remedy = f"it should be {wish}"
    return FednagError(name, problem, remedy).and_more(len(found) - 1)


def first_of(error: Exception) -> str:
    """What is wrong with a file of ours, in a few words."""
    if isinstance(error, ValidationError):
        found = error.errors()[0]
        place = ".".join(str(part) for part in found["loc"])
        return f"{place}: {found['msg'][0].lower()}{found['msg'][1:]}"
    return f"no {error}" if isinstance(error, KeyError) else str(error)


def _unquoted(given: object) -> type:
    return type(value(given)) if isinstance(given, str) else type(None)


def _home(model: type[BaseModel], key: str) -> str:
    """``section.key`` for a key that was written without its section."""
    for section in model.model_fields:
        if key in _fields_at(model, [section]):
            return f"{section}.{key}"
    return ""


def _fields_at(model: type[BaseModel], path: Sequence[str]) -> Any:
    for part in path:
        field = model.model_fields.get(part)
        annotation = field.annotation if field else None
        if not (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
            return ()
        model = annotation
    return model.model_fields
