"""Connects Spark's helper processes to the keeper in the driver's Python: a connection per request.

Imports nothing heavy, because planners are started for every write. Messages are JSON and never
pickles, so that a stranger who connects to the port can't make either side run code.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from multiprocessing.context import AuthenticationError
from typing import Any, Final

from ...journal import errors as journal_errors
from ...journal.errors import LogtxError
from . import errors as spark_errors
from .errors import KeeperError

ANSWER_MAX_S: Final = 1_200.0
"""Longest wait for an answer: above all time-outs of the keeper itself. With a smaller value a job
could fail whose commit then succeeds."""


@dataclass(frozen=True, slots=True)
class KeeperAddress:
    """Where the keeper listens, and the secret that shows it who belongs to the application."""

    host: str
    port: int
    secret: bytes

    def ask(self, what: str, **fields: Any) -> Any:
        """Sends a request. Returns the answer.

        Raises:
            KeeperError: the keeper does not answer: the driver's Python has ended, or is about to.
            LogtxError: the error that the keeper raised.
        """
        try:
            with Client((self.host, self.port)) as connection:
                _send_at_once(connection)
                answer_challenge(connection, self.secret)
                deliver_challenge(connection, self.secret)
                connection.send_bytes(json.dumps({"do": what, **fields}).encode())
                if not connection.poll(ANSWER_MAX_S):
                    raise KeeperError(f"the driver's keeper did not answer in {ANSWER_MAX_S:g} s")
                answer = json.loads(connection.recv_bytes())
        except (OSError, EOFError, AuthenticationError) as error:
            raise KeeperError(
                f"the driver's keeper at {self.host}:{self.port} can't be reached "
                f"({type(error).__name__}): the driver's Python has ended, so its open "
                "transactions are aborted; run the job again"
            ) from error
        if "error" in answer:
            raise make_error(answer["error"], answer["text"])
        return answer["ok"]


def _send_at_once(connection: Connection) -> None:
    # The end of the handshake and the request are two small messages. Without this the second waits
    # until the other side acknowledges the first, which its kernel puts off for 40 ms.
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def answer_of(connection: Connection, result: Any) -> None:
    """Sends the keeper's answer: the result, or the name and text of an error."""
    if isinstance(result, BaseException):
        told = {"error": type(result).__name__, "text": str(result)}
    else:
        told = {"ok": result}
    connection.send_bytes(json.dumps(told).encode())


def make_error(name: str, text: str) -> LogtxError:
    """Makes the error of this class name; a `LogtxError` if logtx has no such class."""
    for module in (journal_errors, spark_errors):
        kind = getattr(module, name, None)
        if isinstance(kind, type) and issubclass(kind, LogtxError):
            return kind(text)
    return LogtxError(f"{name}: {text}")
