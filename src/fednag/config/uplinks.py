"""Chains of transforms as the command line has them, ``NAME:number=value+NAME…``."""

from __future__ import annotations

from typing import Any

from fednag.config.messages import cut, nearest
from fednag.config.own import build_part, placed_name
from fednag.config.sections import is_own
from fednag.config.values import value
from fednag.core.transform import Transform
from fednag.errors import FednagError, within
from fednag.transforms import TRANSFORMS

NONE = "none"
EXAMPLE = "e.g. error-feedback+topk:share=0.01"


def read_uplink(text: str) -> tuple[list[dict[str, Any]], tuple[Transform, ...]]:
    """A chain of transforms, ``NAME:number=value+NAME…``: its tables, and the parts themselves.

    >>> from fednag.frontier import read_uplink
    >>> read_uplink("error-feedback+topk:share=0.05")[0]
    [{'kind': 'error-feedback'}, {'kind': 'topk', 'share': 0.05}]
    >>> read_uplink("none")
    ([], ())
    """
    if text == NONE:
        return [], ()
    tables = [_table(link.strip(), text) for link in text.split("+")]
    with within(f"--uplinks {text}"):
        return tables, tuple(build_part(t, TRANSFORMS, Transform, t["kind"]) for t in tables)


def _table(link: str, text: str) -> dict[str, Any]:
    """One link of a chain as a table of ``[[uplink]]``."""
    kind, *numbers = link.split(":")
    if numbers and kind not in TRANSFORMS and "=" not in numbers[0]:
        kind = placed_name(f"{kind}:{numbers.pop(0)}")  # FILE.py:Name
    if not kind:
        raise FednagError(
            "--uplinks",
            "a transform's name is missing",
            f"join names with +, {EXAMPLE}",
            given=text,
        )
    if kind == NONE:
        raise FednagError(
            "--uplinks", f"{NONE} stands alone", "leave it out of the chain", given=text
        )
    if not is_own(kind) and kind not in TRANSFORMS:
        raise FednagError(
            "--uplinks",
            f"no transform {cut(kind)}{nearest(kind[:60], TRANSFORMS)}",
            f"there are {NONE}, {', '.join(TRANSFORMS)}",
            given=text,
        )
    found: dict[str, Any] = {"kind": kind}
    for number in numbers:
        name, equals, given = (part.strip() for part in number.partition("="))
        if not equals or not name or not given or name in found:
            raise FednagError(
                "--uplinks",
                f"{cut(number)} is no number of {kind}",
                f"write each once, as NAME=VALUE after a colon, {EXAMPLE}",
                given=text,
            )
        found[name] = value(given)
    return found
