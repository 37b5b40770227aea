"""Draws the rooms of the package from its real imports: `python docs/drawing.py`.

It writes docs/images/architecture.svg. An arrow means "imports". One that follows from others is
left out: a room that imports `runs`, which imports `core`, may import `core` too. A room stands one
row above the highest of those it imports.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DRAWING = ROOT / "docs" / "images" / "architecture.svg"
sys.path.insert(0, str(ROOT / "tests"))

from layers import LAYERS, graph  # noqa: E402

WIDTH, HEIGHT = 112, 34  # of a box
ACROSS, DOWN = 132, 74  # from a box to the next
CONCEPTS = ("algorithms", "transforms", "aggregators", "controllers", "core")
ORDER = [name for names in LAYERS for name in names]
NAMES = {"__init__": "import fednag"}
SWEEPS = 8

Node = tuple[str, str, int]
"""A room, (name, "", row), or a place where an arrow passes a row: (from, to, row)."""


def reached(room: str, edges: dict[str, set[str]]) -> set[str]:
    """All rooms that a room depends on."""
    found: set[str] = set()
    waiting = [room]
    while waiting:
        new = edges[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def needed(edges: dict[str, set[str]]) -> dict[str, list[str]]:
    """The imports that do not follow from others."""
    below = {room: reached(room, edges) for room in edges}
    return {
        room: sorted(other for other in direct if not any(other in below[o] for o in direct))
        for room, direct in edges.items()
    }


def row_of(room: str, edges: dict[str, set[str]]) -> int:
    return 1 + max((row_of(other, edges) for other in edges[room]), default=-1)


def placed(edges: dict[str, set[str]]) -> tuple[dict[Node, float], list[list[Node]]]:
    """Where everything stands, from left to right, and the arrows as the places they pass."""
    rows = {room: row_of(room, edges) for room in ORDER}
    arrows: list[list[Node]] = []
    for room, others in needed(edges).items():
        for other in others:
            between = [(room, other, row) for row in range(rows[room] - 1, rows[other], -1)]
            arrows.append([(room, "", rows[room]), *between, (other, "", rows[other])])
    table: list[list[Node]] = [[] for _ in range(max(rows.values()) + 1)]
    for node in dict.fromkeys(
        [*((r, "", rows[r]) for r in ORDER), *(n for a in arrows for n in a)]
    ):
        table[node[2]].append(node)
    beside: dict[Node, list[Node]] = {}
    for arrow in arrows:
        for above, under in pairwise(arrow):
            beside.setdefault(above, []).append(under)
            beside.setdefault(under, []).append(above)
    at: dict[Node, float] = {}
    for row in table:
        at |= _spread(row)
    # What is joined comes to stand together: each row is sorted by where its neighbours are.
    for sweep in range(SWEEPS):
        for row in table if sweep % 2 else reversed(table):
            row.sort(key=lambda node: _mean([at[n] for n in beside.get(node, [])], at[node]))
            at |= _spread(row)
    return at, arrows


def _spread(row: list[Node]) -> dict[Node, float]:
    return {node: place - (len(row) - 1) / 2 for place, node in enumerate(row)}


def _mean(values: list[float], otherwise: float) -> float:
    return round(sum(values) / len(values), 6) if values else otherwise


def drawing() -> str:
    """The drawing as SVG."""
    edges = graph()
    at, arrows = placed(edges)
    left, top = min(at.values()), max(node[2] for node in at)

    def point(node: Node) -> tuple[int, int]:
        return round((at[node] - left) * ACROSS + ACROSS / 2), (top - node[2]) * DOWN + DOWN // 2

    wide = round((max(at.values()) - left + 1) * ACROSS)
    high = (top + 1) * DOWN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" '
        f'width="{wide}" height="{high}" font-family="sans-serif" font-size="14">',
        "<title>Rooms of the package and what they import</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" fill="#667"/></marker></defs>',
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
    ]
    for arrow in arrows:
        (x, y), *rest = map(point, arrow)
        y += HEIGHT // 2
        path = f"M{x} {y}"
        for place, (to_x, to_y) in enumerate(rest):
            end = to_y - HEIGHT // 2
            path += f"C{x} {(y + end) // 2} {to_x} {(y + end) // 2} {to_x} {end}"
            x, y = to_x, end
            if place < len(rest) - 1:  # it passes this row
                y = to_y + HEIGHT // 2
                path += f"V{y}"
        lines.append(f'<path d="{path}" fill="none" stroke="#667" marker-end="url(#tip)"/>')
    for node in sorted(node for node in at if not node[1]):
        x, y = point(node)
        name = NAMES.get(node[0], node[0])
        fill = "#e4e8fb" if node[0] in CONCEPTS else "#f3f3f5"
        lines += [
            f'<rect x="{x - WIDTH // 2}" y="{y - HEIGHT // 2}" width="{WIDTH}" height="{HEIGHT}" '
            f'rx="5" fill="{fill}" stroke="#445"/>',
            f'<text x="{x}" y="{y + 5}" text-anchor="middle" fill="#112">{name}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


if __name__ == "__main__":
    DRAWING.write_text(drawing(), encoding="utf-8")
    print(DRAWING.relative_to(ROOT))
