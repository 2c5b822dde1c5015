"""Which journal partitions this coordinator serves, together with all others of the cluster.

What `Members` knows of the others comes from `Peers`, and from the OWNER records that the `Tail`
reads. Here it is brought together, and decided upon by `balance.py`: whom to call, what to give
away for an even spread or when leaving.

Source: Transactional Messaging in Kafka, "Transaction coordinator".
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Final

from ..journal.errors import CoordinatorLoadingError, JournalTopicError, LogtxError
from ..journal.logs.interface import Log
from .membership.balance import Gift, Member, farewell, gift
from .membership.members import Members
from .membership.peers import Peers
from .runtime.partition import PartitionRuntime, Role
from .runtime.tail import Batch, Tail
from .tasks import essential_task

_LOG = logging.getLogger(__name__)

BALANCE_S: Final = 0.1
"""Between two looks at the balance: a move takes about half of it."""
GIVE_FAILED_S: Final = 2.0
"""Pause after a move that failed: the receiver may be on its way out."""
LEAVE_S: Final = 5.0
"""Bound of giving everything away; what is left is found by the others when this process ends."""
POLL_S: Final = 0.01
_DOING: Final = (Role.SERVING, Role.GIVING)


class Ownership:
    """One coordinator among all; lives on its event loop."""

    def __init__(
        self,
        log: Log,
        runtimes: Mapping[int, PartitionRuntime],
        *,
        address: str,
        nonce: int,
        journal_id: str,
    ) -> None:
        """Follow nothing and call nobody yet.

        Args:
            log: that the journal lies in.
            runtimes: one per journal partition, at the latest when this is started.
            address: host:port of this coordinator.
            nonce: of this process.
            journal_id: of the journal topic.
        """
        self.members = Members(nonce, address)
        self.tail = Tail(log, self._deliver)
        self.peers = Peers(
            me=self.me,
            members=self.members,
            journal_id=journal_id,
            changed=self.changed,
            take_over=self._take_over,
        )
        self._address = address
        self._nonce = nonce
        self._runtimes = runtimes
        self._leaving = False
        self._told: Member | None = None
        self._reaction: asyncio.Handle | None = None
        self._balancing: asyncio.Task[None] | None = None
        self._moving = asyncio.Lock()
        """Held while a partition is moved for an even spread."""

    def me(self) -> Member:
        """This coordinator as the others are told of it."""
        serving = (r for r in self._runtimes.values() if r.role in _DOING)
        ready = (p for p, r in self._runtimes.items() if r.is_ready)
        return Member(
            nonce=self._nonce,
            address=self._address,
            owned={r.partition: r.epoch for r in serving},
            following=frozenset(ready),
            leaving=self._leaving,
            ends={p: r.known_end for p, r in self._runtimes.items()},
        )

    def start(self) -> None:
        """Let the partitions be followed, and served as their turn comes."""
        for runtime in self._runtimes.values():
            runtime.start()
        self._balancing = essential_task(self._balance(), "balance")

    def changed(self) -> None:
        """Something that decisions are made upon is not as it was."""
        # One reaction to all that changes in one turn of the event loop.
        if self._reaction is None:
            self._reaction = asyncio.get_running_loop().call_soon(self._react)

    def _react(self) -> None:
        self._reaction = None
        now_s = time.monotonic()
        owners = (r.owner for r in self._runtimes.values())
        needed = [owner.process_nonce for owner in owners if owner is not None]
        if not self._leaving or self.me().owned:
            self.peers.call(self.members.addresses(now_s, needed))
        reached = self.members.reached(now_s)
        for partition, runtime in self._runtimes.items():
            runtime.wake()
            # A process that was stopped for a while learns so that it was replaced.
            if any(m.owned.get(partition, -1) > runtime.epoch for m in reached):
                runtime.doubt()
        me = self.me()
        if me != self._told:
            self._told = me
            self.peers.tell()

    def _deliver(self, batch: Batch) -> None:
        runtime = self._runtimes.get(batch.partition)
        if runtime is not None:
            runtime.feed(batch)

    async def _take_over(self, partition: int, epoch: int, end: int) -> str | None:
        runtime = self._runtimes.get(partition)
        if runtime is None or self._leaving:
            return "it is shutting down"
        return await runtime.take_over(epoch, end)

    # ---- planned moves --------------------------------------------------------------------------

    async def _balance(self) -> None:
        while True:
            await asyncio.sleep(BALANCE_S)
            if self.me() != self._told:
                self.changed()
            async with self._moving:
                due = gift(self.me(), self.members.linked())
                failed = due is not None and not await self._give(due)
            if failed:
                await asyncio.sleep(GIVE_FAILED_S)

    async def _end_balance(self) -> None:
        # Cancelled in the middle of a move, the partition would have to be found by the others.
        async with self._moving:
            if self._balancing is not None:
                self._balancing.cancel()

    async def _give(self, due: Gift) -> bool:
        ask = partial(self.peers.give, due.receiver, due.partition)
        given = await self._runtimes[due.partition].give(due.receiver, ask)
        if given:
            # Its own news may come later than our next look at the balance.
            self.members.gained(due.receiver.nonce, due.partition, -1)
        return given

    async def leave(self) -> None:
        """Give every partition to whoever can take it, if anybody is there; bounded."""
        self._leaving = True
        for runtime in self._runtimes.values():
            runtime.leave()
        self.peers.tell()
        gifts = farewell(self.me(), self.members.linked())
        if gifts:
            _LOG.info("leaving partitions=%d", len(gifts))
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await asyncio.gather(self._end_balance(), *map(self._give, gifts))

    async def wait_served(self, timeout_s: float) -> dict[int, LogtxError]:
        """Wait until every partition that can be is served, here or by another that was reached.

        Returns:
            The journal partitions that can't be served here, and why not.

        Raises:
            CoordinatorLoadingError: not within `timeout_s`.
            JournalTopicError: the journal's partition count was changed.
            JournalError: no partition can be served here.
        """
        deadline_s = time.monotonic() + timeout_s
        failed: dict[int, LogtxError] = {}
        for partition, runtime in self._runtimes.items():
            while not self._is_served(runtime):
                if isinstance(runtime.failure, JournalTopicError):
                    raise runtime.failure
                if runtime.failure is not None:
                    failed[partition] = runtime.failure
                    break
                if time.monotonic() > deadline_s:
                    raise CoordinatorLoadingError(
                        f"journal partition {partition} was not served within {timeout_s:.0f} s"
                    )
                await asyncio.sleep(POLL_S)
        if failed and len(failed) == len(self._runtimes):
            raise next(iter(failed.values()))
        return failed

    def _is_served(self, runtime: PartitionRuntime) -> bool:
        if runtime.role is Role.SERVING:
            return True
        if runtime.role is not Role.STANDBY:
            return False
        reached = self.members.reached(time.monotonic())
        return any(m.owned.get(runtime.partition) == runtime.epoch for m in reached)

    async def stop(self) -> None:
        """Stop following and calling; what is still served here is served no more."""
        if self._balancing is not None:
            self._balancing.cancel()
        await asyncio.gather(*(r.stop() for r in self._runtimes.values()))
        await self.peers.close()
        await self.tail.close()
