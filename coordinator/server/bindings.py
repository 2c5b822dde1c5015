"""Checks which transaction group a consumer group's offsets belong to, before they are taken.

If two journal partitions took the offsets of one consumer group, each would have half the truth
(trap 28). The group's binding lies in the journal partition that its own name maps to. Most often
another coordinator owns that one, so the shard that takes the offsets can't see the binding. A
binding ends only after the shard has forgotten the group's offsets. So what was read stays true for
as long as the shard has offsets of the group. Claims alone keep no binding.

Source: Transactional Messaging in Kafka, "Producer IDs and state groups".
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from ...journal.errors import (
    BrokerError,
    CoordinatorBusyError,
    GroupBoundError,
    OffsetsPendingError,
    RetriableError,
    TlsError,
)
from ...journal.logs.interface import Log
from ...journal.reader import journal_partition_of
from ..client.queries import CoordinatorQueries
from ..protocol.commands import BindGroup, Binding, Reply
from ..runtime.partition import PartitionRuntime, Role
from ..transport.tls import Tls

ASK_TIMEOUT_S: Final = 10.0
"""Bound of one question; past it the client gets CoordinatorBusyError and asks again."""
THREADS: Final = 8
"""Questions to other coordinators at a time. With fewer, one that does not answer holds up those to
the others for longer."""
REMEMBERED_MAX: Final = 100_000
"""Most bindings kept; beyond it all are forgotten and asked for again. Bounds memory."""


class GroupBindings:
    """Asks for bindings and keeps them; lives on the coordinator's event loop."""

    def __init__(
        self, log: Log, runtimes: Mapping[int, PartitionRuntime], tls: Tls | None = None
    ) -> None:
        """Asks nothing yet.

        Args:
            log: the log.
            runtimes: those of this coordinator, filled when it starts.
            tls: what connections to other coordinators are protected with; None: nothing.
        """
        self._runtimes = runtimes
        self._queries = CoordinatorQueries(log, timeout_s=ASK_TIMEOUT_S, tls=tls)
        # Own threads: an owner that does not answer must not hold up anything else.
        self._is_closed = False
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="bindings")
        self._known: dict[str, str] = {}
        self._asking: dict[str, asyncio.Future[str | None]] = {}

    async def check(
        self, group: str, partition: int, partition_count: int, *, has_offsets: bool
    ) -> None:
        """Checks that a consumer group's offsets belong to a journal partition.

        Args:
            group: the consumer group.
            partition: the journal partition that shall take the offsets.
            partition_count: partition count of the journal.
            has_offsets: whether that partition's shard has offsets of the group.

        Raises:
            GroupBoundError: they belong to another partition, or the group is not bound yet.
            CoordinatorBusyError: the owner of the binding does not answer.
        """
        home = partial(journal_partition_of, partition_count=partition_count)
        bound = self._known.get(group) if has_offsets else None
        if bound is None or home(bound) != partition:
            # What was read may be of a binding that has ended since (trap 148).
            bound = await self._ask(group)
        if bound is None:
            raise GroupBoundError(
                f"consumer group {group!r} is bound to no transaction group: bind it first"
            )
        if home(bound) != partition:
            raise GroupBoundError(
                f"consumer group {group!r} commits its offsets in transaction group {bound!r}:"
                " set transaction.group to that one"
            )

    async def bound(self, name: str) -> str | None:
        """Returns the transaction group that a name is bound to now; None: it is bound to none.

        Raises:
            CoordinatorBusyError: the owner of the binding does not answer.
        """
        return await self._ask(name)

    async def _ask(self, group: str) -> str | None:
        if self._is_closed:  # A call that was under way when the coordinator began to end.
            raise _unknown(group, "this coordinator ends")
        asking = self._asking.get(group)
        if asking is None:
            asking = self._ask_here(group) or asyncio.get_running_loop().run_in_executor(
                self._threads, self._read, group
            )
            self._asking[group] = asking
            asking.add_done_callback(partial(self._asked, group))
        try:
            # Shielded, because others wait for the same answer.
            bound = await asyncio.shield(asking)
        except (BrokerError, RetriableError, TlsError) as error:
            raise _unknown(group, error) from error
        if bound is not None:
            if len(self._known) >= REMEMBERED_MAX:
                self._known.clear()
            self._known[group] = bound
        return bound

    def _ask_here(self, group: str) -> asyncio.Future[str | None] | None:
        """Asks the shard of this coordinator, if it serves the group's home."""
        runtime = self._runtimes[journal_partition_of(group, len(self._runtimes))]
        if runtime.role is not Role.SERVING:
            return None
        answered: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

        def answer(reply: Reply) -> None:
            if answered.done():
                return
            if isinstance(reply, Binding):
                answered.set_result(reply.transaction_group)
            else:
                answered.set_exception(CoordinatorBusyError(f"{reply}"))

        runtime.submit(BindGroup(group=group, transaction_group=None), answer)
        return answered

    def _asked(self, group: str, asking: asyncio.Future[str | None]) -> None:
        del self._asking[group]
        if not asking.cancelled():
            # Retrieved so that asyncio does not complain when all askers have gone.
            asking.exception()

    def _read(self, group: str) -> str | None:
        return self._queries.bound(group).transaction_group

    async def is_free(self, group: str) -> bool:
        """Returns whether a consumer group has no offsets, so that its binding may end.

        A subscription's may not: another home would begin anew with all messages.

        Raises:
            CoordinatorBusyError: the coordinator that would have them does not answer.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.run_in_executor(self._threads, self._queries.fetch_offsets, group)
        except (OffsetsPendingError, GroupBoundError):
            return False  # The latter: it is a subscription.
        except (BrokerError, RetriableError, TlsError) as error:
            raise CoordinatorBusyError(f"offsets of {group!r} are not known: {error}") from error
        return not found.offsets

    def close(self) -> None:
        """Stops asking; questions under way fail."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._queries.close()


def _unknown(group: str, why: object) -> CoordinatorBusyError:
    return CoordinatorBusyError(f"the binding of {group!r} is not known: {why}")
