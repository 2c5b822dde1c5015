"""A coordinator in a thread of this process: for tests, notebooks and logs in memory."""

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
STOP_TIMEOUT_S: Final = 30.0


class EmbeddedCoordinator:
    """Runs a coordinator on an event loop of its own thread; a context manager.

    Args:
        config: as of a coordinator process; ``listen`` may have port 0.
        log: instead of one opened by ``bootstrap_servers``. It is closed with the coordinator.
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
        """host:port while it runs."""

    def start(self) -> Self:
        """Start, and wait until every journal partition is served.

        Raises:
            LogtxError: what the coordinator says of why it can't.
        """
        self._started.clear()
        self._failure = None
        self._thread = threading.Thread(target=self._run, name="coordinator", daemon=True)
        self._thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            raise CoordinatorNotAvailableError(f"not started within {START_TIMEOUT_S:.0f} s")
        if self._failure is not None:
            raise self._failure
        # A restart serves at the same address, as a process with a fixed port would.
        self._config = replace(self._config, listen=self.address)
        return self

    def stop(self) -> None:
        """Stop and wait for the end; open transactions live on in the journal.

        Raises:
            Exception: a bug had ended it before.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if self._loop is not None and self._stopping is not None and thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        thread.join(STOP_TIMEOUT_S)
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> Self:
        """Start."""
        return self.start()

    def __exit__(self, *_exception: object) -> None:
        """Stop."""
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - given to whoever started the thread
            self._failure = error
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        await serve(self._config, self._stopping, self._ready, self._log)

    def _ready(self, coordinator: Coordinator, _unserved: Mapping[int, LogtxError]) -> None:
        self.address = coordinator.address
        self._started.set()
