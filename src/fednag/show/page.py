"""The report: one HTML file, its data, style and script inside, that asks no one for anything."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fednag.core.files import write_atomically
from fednag.errors import FednagError
from fednag.show.spec import COLOURS, DASHES


def html(document: Mapping[str, Any], live: bool = False) -> str:
    """The page. ``live`` lets it ask the server it came from, and no one else, for more."""
    assets = files("fednag.show") / "assets"
    style, script, frame = (
        (assets / name).read_text(encoding="utf-8") for name in ("page.css", "page.js", "page.html")
    )
    # Only this very style and script may be used: labels in the data can smuggle in nothing.
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": escape(f"{document['title']} · fednag"),
        "style": style,
        "data": inlined({**document, "live": live, "colours": COLOURS, "dashes": DASHES}),
        "script": script,
    }
    for name, text in parts.items():
        before, _, after = frame.partition(f"@{name}@")
        parts[name] = before + text
        frame = after
    return "".join(parts.values()) + frame


def inlined(document: Mapping[str, Any]) -> str:
    """JSON that cannot end the element it stands in."""
    text = json.dumps(document, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    unsafe = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028"}
    for character, escaped in (unsafe | {"\u2029": "\\u2029"}).items():
        text = text.replace(character, escaped)
    return text


def write_page(document: Mapping[str, Any], path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, html(document))
    except OSError as error:
        raise FednagError(
            f"{path}: cannot write the report ({error.strerror}); choose another with --out"
        ) from error
    return path


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
