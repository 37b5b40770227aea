"""How a method looks on every picture, PNG and page alike: its colour, dash and marker.

A method's look is its place in ``FIRST`` or, for all others, in the registry, whatever else is
drawn beside it. So new methods go to the end of the registry. Ten colours, distinguishable with
any colour vision, are repeated with other dashes and markers; a method of the user's own takes one
of the looks after ``OWN``, by its name's checksum.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fednag.algorithms import ALGORITHMS
from fednag.runs.view import RunView

# Okabe and Ito's vermilion, blue, green and black; the others were searched for, so that any two
# are at least 17 apart in CIELAB with normal vision and with each kind of colour blindness.
COLOURS = [
    *("#D55E00", "#0072B2", "#009E73", "#E18ED1", "#FE8E21"),
    *("#8A80F7", "#000000", "#9F5336", "#6D2436", "#7425D0"),
]
# The same, to be seen on a dark page.
DARK = [
    *("#F5824E", "#4AA8E8", "#2FCF9F", "#EBA6D6", "#F7C948"),
    *("#8C8CFF", "#F4F4F4", "#B5613A", "#E8487F", "#A35CFF"),
]
DASHES = [
    *([1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [12, 4]),
    *([4, 4], [1, 3], [10, 2, 2, 2, 2, 2], [3, 6], [14, 3, 4, 3]),
]
MARKERS = ["circle", "square", "triangle-up", "diamond", "triangle-down", "cross"]

# Those that are compared most: each has a colour of its own.
FIRST = (
    *("fednag", "fedavg", "fedmom", "slowmo", "mime"),
    *("csgd", "cnag", "scaffold", "fedprox", "mimelite"),
)
BOUNDS = 50  # the first look of a theorem's bounds; the registry stays below it
OWN = 60  # looks from here on are of methods that are not shipped
ALL = len(COLOURS) * len(DASHES)

LEADING = re.compile(r"[\w.-]+(?=$|[ (,])")  # the name with which a label may begin


@dataclass(frozen=True)
class Look:
    """A line's colour, the lengths of its dashes, and its marker."""

    colour: str
    dash: list[int]
    marker: str


def look(style: int) -> Look:
    """The look of this number.

    >>> from fednag.show.look import look
    >>> look(0)
    Look(colour='#D55E00', dash=[1, 0], marker='circle')
    """
    row, place = divmod(style, len(COLOURS))
    return Look(
        COLOURS[place],
        # Where a colour comes again, it comes with another dash and marker.
        DASHES[(place + row) % len(DASHES)],
        MARKERS[(place + row) % len(MARKERS)],
    )


def style_of(method: str) -> int:
    """The number of a method's look.

    >>> from fednag.show.look import style_of
    >>> style_of("fednag"), style_of("fedavg"), style_of("my_method") >= 60
    (0, 1, True)
    """
    if method in FIRST:
        return FIRST.index(method)
    if method in ALGORITHMS:
        others = [name for name in ALGORITHMS if name not in FIRST]
        return len(FIRST) + others.index(method)
    return OWN + zlib.crc32(method.encode()) % (ALL - OWN)


def method_in(label: str) -> str | None:
    """The method a label names: the word it begins with; None where it names none.

    >>> from fednag.show.look import method_in
    >>> method_in("fednag (tau=5)"), method_in("MyMethod"), method_in("momentum=0.9")
    ('fednag', 'MyMethod', None)
    """
    found = LEADING.match(label)
    if not found:
        return None
    word = found[0]
    if word.lower() in ALGORITHMS:
        return word.lower()
    return word if word == label else None


def styles(labels: Sequence[str], methods: Mapping[str, str | None] | None = None) -> list[int]:
    """The number of each label's look in one picture; ``methods`` says whose labels they are.

    A method has its own look. Of several lines of one method the first has it, and the others have
    its colour with other dashes and markers. Where all lines are of one method, or of none, as in a
    sweep, colours distinguish the lines.
    """
    named = {label: (methods or {}).get(label) or method_in(label) for label in labels}
    groups = set(named.values())
    if (len(named) > 1 and len(groups) == 1) or groups == {None}:
        places = list(named)
        return [places.index(label) % ALL for label in labels]
    found: dict[str, int] = {}
    taken: set[int] = set()
    # Shipped methods come first, so that nothing else moves them.
    order = sorted(named, key=lambda label: named[label] not in ALGORITHMS)
    firsts = {named[label]: label for label in reversed(order)}
    for label in sorted(order, key=lambda label: firsts[named[label]] != label):
        style = style_of(named[label] or label)
        while style in taken:
            style = _other(style, taken)
        found[label] = style
        taken.add(style)
    return [found[label] for label in labels]


def _other(style: int, taken: set[int]) -> int:
    """A look that is free: one of the same colour, if there is any."""
    same = [(style + len(COLOURS) * row) % ALL for row in range(1, len(DASHES))]
    every = [*same, *range(ALL)]
    return next((one for one in every if one not in taken), (style + 1) % ALL)


def styles_of(runs: Sequence[RunView]) -> dict[str, int]:
    """The number of each label's look in a picture of these runs."""
    methods = {run.label: _method(run) for run in reversed(runs)}
    labels = list(dict.fromkeys(run.label for run in runs))
    return dict(zip(labels, styles(labels, methods), strict=True))


def _method(run: RunView) -> str | None:
    name = run.settings.get("algorithm.name")
    return name.rpartition(":")[2] if isinstance(name, str) else None


def themes() -> str:
    """The colours as a page's style: for a light page, a dark one, and paper."""
    light, dark = (
        " ".join(f"--s{place}: {colour};" for place, colour in enumerate(own))
        for own in (COLOURS, DARK)
    )
    every = ':root, :root[data-theme="dark"]'
    dark = f':root[data-theme="dark"] {{ {dark} }}'
    return f":root {{ {light} }}\n{dark}\n@media print {{ {every} {{ {light} }} }}\n"
