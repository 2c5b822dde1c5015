"""The metadata store of one coordinator: its projector, its sweeps, its service.

A failure of any of it is logged and told to those who ask. It never ends the coordinator, and no
transaction waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Final

from ...journal.logs.interface import Log
from .counters import StoreCounters
from .opening import MetadataConfig, make_store
from .projector import Projector
from .service import MetadataService
from .sweeper import Sweeper, sweep_for_ever

_LOG = logging.getLogger(__name__)

STOP_S: Final = 10.0
"""How long `stop` waits for a write that is under way."""


class MetadataRuntime:
    """Runs the store, if the settings name one; lives on the coordinator's event loop."""

    def __init__(
        self,
        log: Log,
        config: MetadataConfig,
        *,
        partition_count: int,
        served: Callable[[], Collection[int]],
    ) -> None:
        """Does nothing before `start`.

        Args:
            log: the log that the journal and the data lie in.
            config: the settings.
            partition_count: number of journal partitions.
            served: returns those that this coordinator serves.
        """
        self.counters = StoreCounters()
        self.service = MetadataService(log, partition_count)
        self.projector: Projector | None = None
        """None if there is no store."""
        self._log = log
        self._config = config
        self._all = range(partition_count)
        self._served = served
        self._tasks: list[asyncio.Task[None]] = []
        self._closing: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._sweeper: Sweeper | None = None

    def start(self) -> None:
        """Starts projecting, sweeping and answering."""
        if not self._config.served:
            return
        store = make_store(self._config)
        wanted = self._served if store.shared else lambda: self._all
        projector = self.projector = Projector(self._log, store, wanted, self.counters)
        self._sweeper = Sweeper(
            self._log,
            store,
            self.counters,
            mine=wanted,
            history_ms=self._config.kept_ms,
            header_retention_ms=self._config.header_retention_ms,
        )
        self.service.serve(store, projector, self.counters, self._config.kept_ms)
        self._closing = [projector.close, store.close]
        self._run(projector.run(), "projector")
        self._run(sweep_for_ever(self._sweeper, self._config.sweep_interval_ms / 1_000), "sweeper")

    def _run(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=f"metadata {name}")
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or (error := task.exception()) is None:
            return
        # A mistake in this code must not end a coordinator that serves transactions.
        _LOG.error("metadata_ended what=%s", task.get_name(), exc_info=error)
        if self.projector is not None:
            self.projector.store_problem = f"{task.get_name()} ended: {error!r}; restart it"

    async def stop(self) -> None:
        """Ends all of it, in bounded time."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)
        for close in self._closing:
            await close()
        if self._sweeper is not None:
            self._sweeper.close()
        self.service.close()
