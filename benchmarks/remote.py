"""A process of its own and the pipe to it: starts it, asks it, and ends it."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from signal import Signals
from typing import Any, Final

_END_TIMEOUT_S: Final = 60.0
"""How long a process may take to end when its pipe is closed, before it is killed. A queue's worker
waits for its last answers, and leaves."""


class RemoteFailedError(Exception):
    """A process raised an error, which the message has, or ended, or did not answer in time."""


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a process sends in place of an answer."""

    trace: str


class Remote:
    """A process that was started, and the pipe to it."""

    def __init__(
        self, name: str, serve: Callable[..., None], *arguments: Any, daemon: bool = True
    ) -> None:
        """Starts the process.

        Args:
            name: of the process, for errors.
            serve: what it runs, in `answering`: called with its end of the pipe and with
                `arguments`. It ends when the pipe is closed.
            arguments: all that `serve` needs, as the process inherits nothing.
            daemon: whether it has no processes of its own. Then it is killed when this one ends.
        """
        self._name = name
        spawning = multiprocessing.get_context("spawn")
        self._connection, other = spawning.Pipe()
        self._process = spawning.Process(
            target=serve, args=(other, *arguments), daemon=daemon, name=name
        )
        self._process.start()
        other.close()  # Else its end would not be seen here.

    def send(self, request: Any) -> None:
        """Sends a request."""
        self._connection.send(request)

    def receive(self, timeout_s: float) -> Any:
        """Returns the next answer. Raises RemoteFailedError."""
        if not self._connection.poll(timeout_s):
            raise RemoteFailedError(f"{self._name} did not answer within {timeout_s:.0f} s")
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError):  # The latter if it had not read all.
            raise RemoteFailedError(f"the process of {self._name} ended") from None
        if isinstance(answer, _Failure):
            raise RemoteFailedError(f"{self._name}: {answer.trace}")
        return answer

    def signal(self, number: Signals) -> None:
        """Sends a signal."""
        assert self._process.pid is not None, "it was started"
        os.kill(self._process.pid, number)

    def close(self) -> None:
        """Closes the pipe, and waits until the process ends; kills it if it does not in time."""
        self._connection.close()
        self._process.join(_END_TIMEOUT_S)
        self.kill()

    def kill(self) -> None:
        """Ends the process at once, if it runs."""
        self._process.kill()
        self._process.join(_END_TIMEOUT_S)
        self._connection.close()


@contextmanager
def answering(connection: Connection) -> Iterator[None]:
    """Reports errors to the process that asks. Ends quietly when that one has closed the pipe.

    Args:
        connection: the end of the pipe that the process was started with.
    """
    try:
        yield
    except EOFError:
        pass
    except Exception:  # noqa: BLE001 - every error is reported to the other process
        connection.send(_Failure(traceback.format_exc()))
