"""Which transaction group a consumer group's offsets belong to: asked once, before they count.

A consumer group whose offsets two journal partitions took would have half a truth in each (trap
28). Its binding lies in the journal partition of its own name, most often another coordinator's,
so the shard that takes the offsets can't see it. It never changes: what was read once is true.

Source: Transactional Messaging in Kafka, "Producer IDs and state groups".
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from ...journal.errors import (
    BrokerError,
    CoordinatorBusyError,
    GroupBoundError,
    RetriableError,
)
from ...journal.logs.interface import Log
from ...journal.reader import journal_partition_of
from ..client.queries import CoordinatorQueries

ASK_TIMEOUT_S: Final = 10.0
REMEMBERED_MAX: Final = 100_000


class GroupBindings:
    """Bindings as they were asked for; lives on the coordinator's event loop."""

    def __init__(self, log: Log) -> None:
        """Nothing is known."""
        self._queries = CoordinatorQueries(log, timeout_s=ASK_TIMEOUT_S)
        # Threads of its own: an owner that does not answer must hold up nothing else.
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="bindings")
        self._known: dict[str, str] = {}
        self._asking: dict[str, asyncio.Future[str | None]] = {}

    async def check(self, group: str, partition: int, partition_count: int) -> None:
        """Make sure that a consumer group's offsets belong to a journal partition.

        Args:
            group: the consumer group.
            partition: the journal partition that is to take them.
            partition_count: of the journal.

        Raises:
            GroupBoundError: they belong to another, or nobody bound the group yet.
            CoordinatorBusyError: the owner of the binding does not answer.
        """
        bound = self._known.get(group) or await self._ask(group)
        if bound is None:
            raise GroupBoundError(
                f"consumer group {group!r} is bound to no transaction group: bind it first"
            )
        if journal_partition_of(bound, partition_count) != partition:
            raise GroupBoundError(
                f"consumer group {group!r} commits its offsets in transaction group {bound!r}:"
                " set transaction.group to that one"
            )

    async def _ask(self, group: str) -> str | None:
        asking = self._asking.get(group)
        if asking is None:
            loop = asyncio.get_running_loop()
            asking = loop.run_in_executor(self._threads, self._read, group)
            self._asking[group] = asking
            asking.add_done_callback(partial(self._asked, group))
        try:
            # Shielded: others wait for the same answer.
            bound = await asyncio.shield(asking)
        except (BrokerError, RetriableError) as error:
            raise CoordinatorBusyError(f"the binding of {group!r} is not known: {error}") from error
        if bound is not None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[group] = bound
        return bound

    def _asked(self, group: str, asking: asyncio.Future[str | None]) -> None:
        del self._asking[group]
        if not asking.cancelled():
            # Looked at, lest asyncio should complain where all who asked went away.
            asking.exception()

    def _read(self, group: str) -> str | None:
        return self._queries.bind_group(group, None).transaction_group

    def close(self) -> None:
        """Ask no more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._queries.close()
