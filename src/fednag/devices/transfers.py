"""Transfers that are really made and timed: to this machine itself, or to a listener elsewhere.

A request is one byte, ``U`` or ``D``, and a length of eight bytes. ``U``: so many bytes follow, and
the listener answers with one. ``D``: the listener sends so many bytes.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress

from fednag.errors import FednagError

MOST = 1 << 32  # bytes a listener takes or sends at once
BLOCK = 1 << 18
PATIENCE = 30.0  # seconds without a byte
REQUEST = struct.Struct("!cQ")


class Listener:
    """Takes and sends bytes for those who time them; on loopback unless asked otherwise."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._socket = socket.create_server((host, port), family=family)
        except (OSError, OverflowError, UnicodeError) as error:
            raise FednagError(
                f"--host {host} --port {port}", f"cannot listen there ({error})", "choose another"
            ) from error
        self.host, self.port = self._socket.getsockname()[:2]

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def serve(self, once: bool = False) -> None:
        """Answer one visitor after the other, until the socket is closed."""
        while True:
            try:
                visitor, _ = self._socket.accept()
            except OSError:
                return
            with visitor, suppress(OSError, EOFError):
                visitor.settimeout(PATIENCE)
                visitor.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while _answer(visitor):
                    pass
            if once:
                return


def _answer(visitor: socket.socket) -> bool:
    """One request; False when there are no more, or it makes no sense."""
    head = b""
    while len(head) < REQUEST.size:
        more = visitor.recv(REQUEST.size - len(head))
        if not more:
            return False
        head += more
    kind, size = REQUEST.unpack(head)
    if kind not in (b"U", b"D") or not 0 < size <= MOST:
        return False
    if kind == b"U":
        _take(visitor, size)
        visitor.sendall(b"!")
    else:
        _give(visitor, size)
    return True


def _take(link: socket.socket, size: int) -> None:
    while size:
        got = len(link.recv(min(size, BLOCK)))
        if not got:
            raise EOFError
        size -= got


def _give(link: socket.socket, size: int) -> None:
    block = bytes(min(size, BLOCK))
    while size:
        part = block[: min(size, BLOCK)]
        link.sendall(part)
        size -= len(part)


class Peer:
    """The other end of the transfers: a listener of our own on loopback, or one at an address."""

    def __init__(self, link: socket.socket, words: str, own: Listener | None) -> None:
        self._link, self.words, self._own = link, words, own

    @classmethod
    def at(cls, address: str = "") -> Peer:
        own = None
        if not address:
            own = Listener()
            threading.Thread(target=own.serve, args=(True,), daemon=True).start()
            place, words = (own.host, own.port), "within this machine (loopback)"
        else:
            host, colon, port = address.rpartition(":")
            if not colon or not host or not port.isdecimal() or int(port) > 65535:
                raise FednagError(
                    "--host", remedy="write HOST:PORT, e.g. 192.168.1.5:5209", given=address
                )
            place, words = (host.strip("[]"), int(port)), f"to {address}"
        try:
            link = socket.create_connection(place, timeout=PATIENCE)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, UnicodeError) as error:
            raise FednagError(
                "--host",
                f"cannot be reached ({error})",
                "run `fednag time listen` there",
                given=address,
            ) from error
        return cls(link, words, own)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()
        if self._own:
            self._own.__exit__()

    def up(self, size: int) -> float:
        """Seconds to send ``size`` bytes and hear that they are there."""
        return self._timed(b"U", size)

    def down(self, size: int) -> float:
        """Seconds to ask for ``size`` bytes and have them."""
        return self._timed(b"D", size)

    def _timed(self, kind: bytes, size: int) -> float:
        try:
            began = time.perf_counter()
            self._link.sendall(REQUEST.pack(kind, size))
            if kind == b"U":
                _give(self._link, size)
                _take(self._link, 1)
            else:
                _take(self._link, size)
            return time.perf_counter() - began
        except (OSError, EOFError) as error:
            raise FednagError(
                "--host",
                f"the transfer broke off ({error or 'closed at the other end'})",
                "is it `fednag time listen` that answers there?",
            ) from error
