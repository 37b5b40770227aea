"""The report's page, and a deployment's status, served and kept up to date.

Only a few addresses are answered, and only reading: no path of the disk can be asked for. The
report is for this machine's own browser; so is the status, unless it is asked to listen elsewhere.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fednag.errors import FednagError
from fednag.runs.targets import Target
from fednag.show import status
from fednag.show.document import document, html
from fednag.show.status import Deployed, Deployments
from fednag.show.watch import Follower

LOOPBACK = "127.0.0.1"
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Server(ThreadingHTTPServer):
    """Listens on loopback; ``port`` 0 takes a free one."""

    daemon_threads = True

    def __init__(self, follower: Follower, port: int = 0, target: Target | None = None) -> None:
        self.follower, self.target = follower, target
        self._lock = threading.Lock()
        self._made: tuple[str, Mapping[str, Any]] = ("", {})
        try:
            super().__init__((LOOPBACK, port), Handler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            raise FednagError(
                "--port",
                f"cannot listen there ({why})",
                "choose another, or leave it out",
                given=port,
            ) from error

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.server_port}/"

    def current(self) -> Mapping[str, Any]:
        """The page's data as the runs are now."""
        with self._lock:
            look = self.follower.look()
            if look.tag != self._made[0]:
                views = [view for view in look.views if view.records]
                root = str(self.follower.root)
                made = document(views, self.target) if views else waiting(root)
                notes = [*map(str, look.failed), *made["notes"]]
                self._made = look.tag, {**made, "notes": notes, "tag": look.tag}
            return self._made[1]


def waiting(root: str) -> dict[str, Any]:
    """A page about no runs."""
    lists = ("notes", "ranking", "methods", "tracks", "overlays", "charts")
    empty: dict[str, Any] = {key: [] for key in (*lists, "workers", "splits", "times", "runs")}
    sentence = f"No records in {root} yet; this page shows them as soon as there are some."
    empty |= {"title": root, "sentence": sentence, "target": None, "table": {}, "settings": {}}
    return empty


class Handler(BaseHTTPRequestHandler):
    server: Server
    server_version, sys_version = "fednag", ""
    timeout = 30

    def _is_ours(self, names: Collection[str] = (LOOPBACK, "localhost")) -> bool:
        """A page elsewhere could have its name point here: only our own names are answered."""
        port = self.server.server_port
        if self.headers.get("Host") in {f"{name}:{port}" for name in names}:
            return True
        self._answer(HTTPStatus.FORBIDDEN, "text/plain", "not a name of this server\n")
        return False

    def do_GET(self) -> None:
        if not self._is_ours():
            return
        path, _, query = self.path.partition("?")
        if path == "/":
            page = html(self.server.current(), live=True)
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page)
        elif path == "/data.json":
            found = self.server.current()
            if parse_qs(query).get("tag") == [found["tag"]]:
                self._answer(HTTPStatus.NO_CONTENT, "application/json", "")
                return
            text = json.dumps(found, allow_nan=False)
            self._answer(HTTPStatus.OK, "application/json", text)
        else:
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "nothing there\n")

    do_HEAD = do_GET  # noqa: N815

    def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """A request a second is no news."""


class StatusServer(ThreadingHTTPServer):
    """The silos of a folder of runs: a page, ``/metrics``, ``/status.json`` and ``/health``."""

    daemon_threads = True

    def __init__(
        self, root: Path, port: int = 0, host: str = LOOPBACK, names: Sequence[str] = ()
    ) -> None:
        if host not in (LOOPBACK, "localhost") and not names:
            raise FednagError(
                "--address",
                "is beyond loopback",
                "say by which names it is asked, e.g. --name fl.example.org",
                given=host,
            )
        self.deployments, self.names = Deployments(root), {LOOPBACK, "localhost", *names}
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), StatusHandler)
        except (OSError, OverflowError) as error:
            why = getattr(error, "strerror", None) or error
            remedy = "choose another, or leave it out"
            raise FednagError(
                "--port", f"cannot listen there ({why})", remedy, given=port
            ) from error

    @property
    def address(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_port}/"

    def look(self) -> tuple[list[Deployed], list[FednagError]]:
        with self._lock:
            return self.deployments.look()


class StatusHandler(Handler):
    server: StatusServer  # type: ignore[assignment]

    def do_GET(self) -> None:
        if not self._is_ours(self.server.names):
            return
        path = self.path.partition("?")[0]
        if path == "/health":
            self._answer(HTTPStatus.OK, "text/plain", "ok\n")
            return
        if path not in ("/", "/metrics", "/status.json"):
            self._answer(HTTPStatus.NOT_FOUND, "text/plain", "nothing there\n")
            return
        found, failed = self.server.look()
        if path == "/metrics":
            kind = "text/plain; version=0.0.4; charset=utf-8"
            self._answer(HTTPStatus.OK, kind, status.metrics(found, len(failed)))
        elif path == "/status.json":
            text = json.dumps(status.document(found, failed))
            self._answer(HTTPStatus.OK, "application/json", text)
        else:
            shown = status.page(found, failed, str(self.server.deployments.root))
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", shown)

    do_HEAD = do_GET  # noqa: N815
