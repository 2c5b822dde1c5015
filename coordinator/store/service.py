"""Answers for the metadata store of a coordinator: questions, watches, horizons.

Source: PIP-471, "MetadataTransactionBuffer" and "Notification mechanism".
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, Final

from ...journal.errors import (
    BrokerError,
    LogtxError,
    MetadataNotServedError,
    MetadataStoreError,
    NotSupportedError,
)
from ...journal.logs.interface import Log
from ...journal.reader import JOURNAL_TOPIC
from ..protocol import metadata_pb2 as pb
from ..protocol.fields import check_topic
from ..protocol.metadata import StoreStatus
from ..protocol.metadata_wire import (
    error_to_wire,
    horizon_to_wire,
    page_to_wire,
    question_from_wire,
    status_to_wire,
    wait_s_of,
)
from .asking import answer, horizon, watch
from .base import MetadataStore
from .counters import StoreCounters
from .projector import Projector

QUERIES_MAX: Final = 8
"""Questions answered at one time; more wait. More hold the event loop for longer."""
ASK_TIMEOUT_S: Final = 5.0
"""Longest wait for one answer of Kafka."""
ASKERS: Final = 4
"""Questions to Kafka at one time."""


class MetadataService:
    """Answers from the store of one coordinator; lives on its event loop."""

    def __init__(self, log: Log, partition_count: int) -> None:
        """Answers everything with `MetadataNotServedError` before `serve`.

        Args:
            log: the log that the journal and the data lie in.
            partition_count: number of journal partitions.
        """
        self._log = log
        self._journal = [(JOURNAL_TOPIC, partition) for partition in range(partition_count)]
        self._store: MetadataStore | None = None
        self._projector: Projector | None = None
        self._counters = StoreCounters()
        self._history_ms: int | None = None
        self._busy = asyncio.Semaphore(QUERIES_MAX)
        self._askers = ThreadPoolExecutor(ASKERS, thread_name_prefix="metadata-ask")
        self._ends: Mapping[int, int] = {}

    def serve(
        self,
        store: MetadataStore,
        projector: Projector,
        counters: StoreCounters,
        history_ms: int | None,
    ) -> None:
        """Answers from a store from now on."""
        self._store, self._projector, self._counters = store, projector, counters
        self._history_ms = history_ms

    def close(self) -> None:
        """Lets go of the threads."""
        self._askers.shutdown(wait=False, cancel_futures=True)

    def _served(self) -> tuple[MetadataStore, Projector]:
        if self._store is None or self._projector is None:
            raise MetadataNotServedError(
                "this coordinator has no metadata store: start one with --metadata-store, as"
                " rocksdb:DIRECTORY"
            )
        return self._store, self._projector

    # ---- what clients call ----------------------------------------------------------------------

    async def query(self, request: pb.MetadataQuery) -> AsyncIterator[pb.MetadataPage]:
        """Answers with what is there."""
        try:
            store, _ = self._served()
            question = question_from_wire(request)
            if request.fresh:
                await self._refresh(wait_s_of(request.timeout_ms))
            async with (
                self._busy,
                aclosing(
                    answer(store, question, request.limit, self._counters)  # type: ignore[type-var]
                ) as pages,
            ):
                async for found in pages:
                    yield page_to_wire(found)
        except (LogtxError, ValueError) as error:
            yield pb.MetadataPage(error=error_to_wire(_as_logtx(error)))

    async def watch(self, request: pb.MetadataQuery) -> AsyncIterator[pb.MetadataPage]:
        """Answers with what is there, and then with what changes."""
        try:
            store, _ = self._served()
            question = question_from_wire(request)
            if request.fresh:
                await self._refresh(wait_s_of(request.timeout_ms))
            async with aclosing(watch(store, question)) as pages:  # type: ignore[type-var]
                async for found in pages:
                    yield page_to_wire(found or (), ready=found is None)
        except (LogtxError, ValueError) as error:
            yield pb.MetadataPage(error=error_to_wire(_as_logtx(error)))

    async def horizon(self, request: pb.HorizonRequest) -> pb.HorizonReply:
        """Answers up to where a data partition is settled."""
        try:
            store, _ = self._served()
            topic, partition = check_topic(request.topic), request.partition
            # The end comes first: what was written below it was begun before, so the journal, whose
            # ends are asked for next, has all of it that is registered.
            end = await self._ask(
                lambda: self._log.end_offset(topic, partition, timeout_s=ASK_TIMEOUT_S)
            )
            await self._refresh(wait_s_of(request.timeout_ms))
            async with self._busy:
                found = await horizon(store, topic, partition, end, self._counters)
            return horizon_to_wire(found)
        except (LogtxError, ValueError) as error:
            return pb.HorizonReply(error=error_to_wire(_as_logtx(error)))

    async def status(self) -> pb.StatusReply:
        """Answers how far the store has the journal."""
        try:
            return status_to_wire(await self._status())
        except (LogtxError, ValueError) as error:
            return pb.StatusReply(error=error_to_wire(_as_logtx(error)))

    async def _status(self) -> StoreStatus:
        store, projector = self._served()
        problem = projector.store_problem
        try:
            self._ends = await self._journal_ends()
        except BrokerError as error:
            problem = problem or str(error)
        try:
            self._counters.operations = await store.outstanding()
        except MetadataStoreError as error:
            problem = str(error)
        return StoreStatus(
            back_end=store.name,
            shared=store.shared,
            operations=self._counters.operations,
            partitions=projector.describe(self._ends),
            swept_ms=self._counters.swept_ms,
            swept_operations=self._counters.swept_operations,
            swept_headers=self._counters.swept_headers,
            history_ms=self._history_ms or 0,
            problem=problem,
        )

    # ---- freshness ------------------------------------------------------------------------------

    async def _refresh(self, timeout_s: float) -> None:
        """Waits until the store has all that the journal has by now."""
        _, projector = self._served()
        await projector.projected(await self._journal_ends(), timeout_s)

    async def _journal_ends(self) -> dict[int, int]:
        ends = await self._ask(
            lambda: self._log.end_offsets(self._journal, timeout_s=ASK_TIMEOUT_S)
        )
        return {partition: end for (_, partition), end in ends.items()}

    async def _ask(self, question: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._askers, question)


def _as_logtx(error: Exception) -> LogtxError:
    """Returns an error that a client can be told."""
    if isinstance(error, LogtxError):
        return error if error.code else NotSupportedError(str(error))
    return NotSupportedError(f"the request does not decode: {error}")
