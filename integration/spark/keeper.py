"""The keeper: holds a Spark application's transactions open, in the driver's own Python.

Spark begins a transaction in one process, commits it in another, and keeps neither process alive
(see `docs/spark.md`). A transaction needs a producer whose connection lives as long as the job, so
the keeper has that producer. The requests of the other processes name the transaction that they
mean, so a repeated request is harmless and none can act on a later transaction.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import struct
import threading
import time
from contextlib import suppress
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from multiprocessing.context import AuthenticationError
from typing import Any, Final

from ...journal.errors import LogtxError
from .application import Application
from .cluster import PAUSE_S
from .jobs import Jobs
from .keeper_client import KeeperAddress, answer_of
from .plans import Plans
from .steps import steps_from_json

_LOG = logging.getLogger(__name__)
ASKERS_MAX: Final = 64
"""Requests answered at one time, each in a thread. Commits can take long: with a smaller value they
delay each other."""
HANDSHAKE_S: Final = 10
"""How long a connection may say nothing, in whole seconds. With a larger value strangers that say
nothing hold up to `ASKERS_MAX` places for longer; a smaller one refuses processes of a machine that
is too busy to go on."""
EXTEND_LOOK_S: Final = 1.0
"""Between two looks which timeouts to begin anew; a shorter pause wakes the driver more often."""


class Keeper:
    """Listens at a port for what Spark's processes ask, and keeps what they ask for."""

    def __init__(self) -> None:
        """Prepares a keeper that does not listen yet, see `start`."""
        self.application = Application()
        """Whom to ask about Spark."""
        self.plans = Plans()
        """The input that was read for consumer groups."""
        self.jobs = Jobs(self.plans, lambda: self.application)
        """The transactions."""
        self._listener: Listener | None = None
        self._askers = threading.Semaphore(ASKERS_MAX)
        self._closing = threading.Event()
        self.address: KeeperAddress
        """The address to listen on; set by `start`."""

    def start(self) -> None:
        """Starts to listen, in a thread."""
        secret = secrets.token_bytes(32)
        # Without `authkey`: `accept` would wait there for a stranger that says nothing.
        self._listener = Listener(("127.0.0.1", 0), backlog=ASKERS_MAX)
        host, port = self._listener.address
        self.address = KeeperAddress(str(host), int(port), secret)
        threading.Thread(target=self._listen, name="logtx-keeper", daemon=True).start()
        threading.Thread(target=self._keep, name="logtx-keeper-extends", daemon=True).start()

    def close(self) -> None:
        """Aborts open transactions, and stops listening."""
        self._closing.set()
        if self._listener is not None:
            # A thread in accept() does not notice that its socket is closed.
            with suppress(OSError):
                socket.create_connection((self.address.host, self.address.port), 1).close()
            self._listener.close()
        self.jobs.close()

    # ---- in threads -----------------------------------------------------------------------------

    def _keep(self) -> None:
        """Begins the timeouts of running jobs anew, for as long as their application runs."""
        while not self._closing.wait(EXTEND_LOOK_S):
            try:
                self.jobs.extend(time.monotonic())
            except Exception:  # noqa: BLE001 - the next round tries again
                _LOG.exception("keeper_extend_failed")

    def _listen(self) -> None:
        assert self._listener is not None
        while not self._closing.is_set():
            try:
                connection = self._listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    _LOG.warning("keeper_refused error=%s", type(error).__name__)
                    time.sleep(PAUSE_S)
                continue
            if self._closing.is_set():
                connection.close()
                return
            self._askers.acquire()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        try:
            with connection:
                _shake_hands(connection, self.address.secret)
                question = json.loads(connection.recv_bytes())
                answer_of(connection, self._result(question))
        except AuthenticationError as error:
            _LOG.warning("keeper_refused error=%s", error)
        except (OSError, EOFError, ValueError) as error:
            # The process that asked is gone. Another one asks again, or Spark gives up the job.
            _LOG.warning("keeper_asker_gone error=%s", error)
        finally:
            self._askers.release()

    def _result(self, question: dict[str, Any]) -> Any:
        what = question.pop("do")
        try:
            match what:
                case "begin":
                    return self.jobs.begin(**question)
                case "plan":
                    steps = steps_from_json(question["steps"])
                    return self.plans.plan(question["group"], steps, reader=question["reader"])
                case "commit":
                    return self.jobs.commit(**question)
                case "accept":
                    return self.jobs.accept(**question)
                case "abort":
                    return self.jobs.abort(**question)
                case "abort_stream":
                    return self.jobs.abort_stream(**question)
                case "to_the_end":
                    return self.application.reads_to_the_end(question["source"])
                case _:
                    return LogtxError(f"the keeper does not know {what!r}: use one logtx version")
        except Exception as error:  # noqa: BLE001 - sent to the process that asked
            if not isinstance(error, LogtxError):
                _LOG.exception("keeper_failed question=%s", what)
            return error


def _shake_hands(connection: Connection, secret: bytes) -> None:
    """Makes both sides show that they know the secret, as `Listener` does; bounded in time.

    Raises:
        AuthenticationError: the other side does not know it.
        OSError: it said nothing for `HANDSHAKE_S`.
    """
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        wait = struct.pack("ll", HANDSHAKE_S, 0)
        same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
    deliver_challenge(connection, secret)
    answer_challenge(connection, secret)
