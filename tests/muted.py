"""A way to a broker whose answers a test can lose: the requests have come, and nobody is told."""

from __future__ import annotations

import socket
import socketserver
import threading
from typing import Any, Self, cast

HOST = "127.0.0.1"


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    muted: Muted


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        """Carries both ways until one end closes."""
        muted = cast(_Server, self.server).muted
        try:
            broker = socket.create_connection((HOST, muted.broker_port))
        except OSError:
            return  # There is no broker any more.
        with broker:
            muted.links += (self.request, broker)
            back = threading.Thread(target=self._carry, args=(broker, self.request, True))
            back.start()
            self._carry(self.request, broker, False)
            back.join()

    def _carry(self, source: socket.socket, target: socket.socket, is_answer: bool) -> None:
        muted = cast(_Server, self.server).muted
        try:
            while data := source.recv(65536):
                if not (is_answer and muted.is_muted):
                    target.sendall(data)
        except OSError:
            return  # It was cut.
        finally:
            _shut(target)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # It is closed.


class Muted:
    """The way: a port that leads to the broker's."""

    def __init__(self) -> None:
        self.broker_port = 0
        self.is_muted = False
        self.links: list[socket.socket] = []
        self._server = _Server((HOST, 0), _Handler)
        self._server.muted = self
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: Any) -> None:
        self.cut()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def cut(self) -> None:
        """Closes all connections, and carries answers again."""
        links, self.links = self.links, []
        for end in links:
            _shut(end)
        self.is_muted = False
