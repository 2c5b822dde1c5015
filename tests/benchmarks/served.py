"""What the processes of `test_remote` run: they find it under the package's name."""

from __future__ import annotations

import os
from multiprocessing.connection import Connection

from logtx.benchmarks.remote import answering


def divide(connection: Connection, dividend: int) -> None:
    """Answers with quotients."""
    with answering(connection):
        while True:
            connection.send(dividend // connection.recv())


def end(connection: Connection) -> None:
    """Ends when it is asked, without an answer."""
    connection.recv()
    os._exit(3)
