"""A TCP proxy on loopback whose line can be cut, for benchmarks/deployment.py."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Proxy:
    """Passes bytes on to a port; while it is cut, open connections end and new ones are refused."""

    def __init__(self, target: int) -> None:
        self.target, self.cut = target, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def set_cut(self, cut: bool) -> None:
        self.cut = cut
        for one in list(self._open) if cut else []:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
                one.close()

    def close(self) -> None:
        self.set_cut(True)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    if self.cut:
                        raise ConnectionRefusedError
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:  # also while the server is down
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
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._open.discard(one)
