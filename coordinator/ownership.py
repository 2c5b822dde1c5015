"""Shares the journal partitions between this coordinator and all others of the cluster.

`Members` learns about the other coordinators from `Peers` and from the OWNER records that the
`Tail` reads. `Ownership` brings this knowledge together: it calls the others, and gives partitions
away, as `balance.py` decides, for an even spread or when this coordinator leaves.

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
from ..journal.records.codec import FORMAT_VERSION
from .core.topics import TopicKnowledge
from .membership.balance import Gift, Member, farewell, gift
from .membership.members import Members
from .membership.peers import Peers
from .runtime.partition import PartitionRuntime, Role
from .runtime.tail import Batch, Tail
from .tasks import essential_task
from .transport.alive import Alive
from .transport.tls import Tls

_LOG = logging.getLogger(__name__)

BALANCE_S: Final = 0.1
"""Pause between two looks at the balance. A move takes about half of it; a longer pause spreads
the partitions later after a coordinator joined."""
GIVE_FAILED_S: Final = 2.0
"""Pause after a move that failed: the receiver may be about to leave."""
LEAVE_S: Final = 5.0
"""Bound of giving everything away. When this process ends, the others take over what is left,
which stalls its clients longer."""
POLL_S: Final = 0.01
"""Pause between two looks of `Ownership.wait_served`."""
_DOING: Final = (Role.SERVING, Role.GIVING)


class Ownership:
    """One coordinator's part among all coordinators; lives on its event loop."""

    def __init__(
        self,
        log: Log,
        runtimes: Mapping[int, PartitionRuntime],
        *,
        address: str,
        nonce: int,
        journal_id: str,
        topics: TopicKnowledge,
        alive: Alive | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Starts the thread of the tail; follows nothing and calls nobody before `start`.

        Args:
            log: the log that holds the journal.
            runtimes: journal partition → its runtime; may be filled until `start` is called.
            address: host:port of this coordinator.
            nonce: 63 random bits of this process.
            journal_id: topic id of the journal.
            topics: what this coordinator knows of data topics.
            alive: speaks to other coordinators for this event loop while it is held up.
            tls: what streams to other coordinators are protected with; None: nothing.
        """
        self.members = Members(nonce, address)
        self.tail = Tail(log, self._deliver)
        self.peers = Peers(
            me=self.me,
            members=self.members,
            journal_id=journal_id,
            changed=self.changed,
            take_over=self._take_over,
            topics=topics,
            alive=alive,
            tls=tls,
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
        """Returns what the others are told about this coordinator."""
        serving = (r for r in self._runtimes.values() if r.role in _DOING)
        ready = (p for p, r in self._runtimes.items() if r.is_ready)
        return Member(
            nonce=self._nonce,
            address=self._address,
            owned={r.partition: r.epoch for r in serving},
            following=frozenset(ready),
            leaving=self._leaving,
            journal_format=FORMAT_VERSION,
            ends={p: r.known_end for p, r in self._runtimes.items()},
        )

    def start(self) -> None:
        """Starts following all partitions, serving each when its turn comes, and balancing."""
        for runtime in self._runtimes.values():
            runtime.start()
        self._balancing = essential_task(self._balance(), "balance")

    def changed(self) -> None:
        """Reacts soon to a change in what is known about owners or other coordinators."""
        # One reaction covers all changes in one turn of the event loop.
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
            # This is how a process that was stopped for a while learns that it was replaced.
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
        # If a move were cancelled halfway, nobody would serve the partition until another
        # coordinator notices.
        async with self._moving:
            if self._balancing is not None:
                self._balancing.cancel()

    async def _give(self, due: Gift) -> bool:
        ask = partial(self.peers.give, due.receiver, due.partition)
        given = await self._runtimes[due.partition].give(due.receiver, ask)
        if given:
            # The receiver's own message may come later than our next look at the balance.
            self.members.gained(due.receiver.nonce, due.partition, -1)
        return given

    async def leave(self) -> None:
        """Gives each partition to a coordinator that can take it; takes at most `LEAVE_S`."""
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
        """Waits until each partition is served, here or by another coordinator that was reached.

        Partitions that can't be served here are not waited for.

        Returns:
            Journal partition that can't be served here → why not.

        Raises:
            CoordinatorLoadingError: a partition was not served within `timeout_s` seconds.
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
        """Stops serving, following and calling."""
        if self._balancing is not None:
            self._balancing.cancel()
        await asyncio.gather(*(r.stop() for r in self._runtimes.values()))
        await self.peers.close()
        await self.tail.close()
