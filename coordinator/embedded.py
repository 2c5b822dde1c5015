"""Runs a coordinator in a thread of this process: for tests, notebooks and logs in memory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Self

from ..journal.errors import CoordinatorNotAvailableError, LogtxError
from ..journal.logs.interface import Log
from .service import Coordinator, CoordinatorConfig, serve

START_TIMEOUT_S: Final = 60.0
"""How long `start` waits; a shorter bound fails where a long journal is loaded."""
STOP_TIMEOUT_S: Final = 30.0
"""How long `stop` waits for the thread; past it the thread is left behind, and `stop` raises."""


class EmbeddedCoordinator:
    """Runs a coordinator on an event loop in its own thread. A context manager.

    Args:
        config: the settings of a coordinator process; ``listen`` may have port 0.
        log: the log to use instead of opening ``bootstrap_servers``; closed with the coordinator.
    """

    def __init__(self, config: CoordinatorConfig, log: Log | None = None) -> None:
        self._config = config
        self._log = log
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None
        self.address = ""
        """host:port of the coordinator, set once it runs."""

    def start(self) -> Self:
        """Starts the coordinator and waits until each journal partition is served or can't be.

        Raises:
            LogtxError: the coordinator can't start; the message says why.
        """
        self._started.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise CoordinatorNotAvailableError(f"not started within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            raise self._failure
        # A restart listens at the same address, as a process with a fixed port would.
        self._config = replace(self._config, listen=self.address)
        return self

    def stop(self) -> None:
        """Stops the coordinator and waits for its end. Open transactions live on in the journal.

        Raises:
            CoordinatorNotAvailableError: it does not stop in time.
            Exception: a bug had already ended the coordinator.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stopping is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(STOP_TIMEOUT_S)
        if self._failure is not None:
            raise self._failure
        if thread.is_alive():
            raise CoordinatorNotAvailableError(f"not stopped within {STOP_TIMEOUT_S:.0f} s")

    def __enter__(self) -> Self:
        """Starts the coordinator."""
        return self.start()

    def __exit__(self, *_exception: object) -> None:
        """Stops the coordinator."""
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - raised by `start` or `stop`
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        await serve(self._config, self._stopping, self._ready, self._log)

    def _ready(self, coordinator: Coordinator, _unserved: Mapping[int, LogtxError]) -> None:
        self.address = coordinator.address
        self._started.set()
