"""A TCP proxy on loopback whose line can be cut, for benchmarks/deployment.py."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes bytes on to a port; while it is cut, open connections end and new ones are refused."""

    def __init__(self, target: int) -> None:
        self.target = target
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._listen()

    def cut(self) -> None:
        # A thread that waits in accept() keeps a closed listener alive: wake it first.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in list(self._open):
            _end(one)

    def mend(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def _listen(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                self._open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for one in (source, sink):
            _end(one)
            self._open.discard(one)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
