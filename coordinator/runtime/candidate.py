"""A hot standby of one journal partition, and how it becomes the owner.

To own a partition, a candidate reads the journal to its end, appends OWNER, and reads up to that
record. It has won if its record is the current epoch then. A void OWNER record would be a surprise
to the present owner. Therefore a candidate bids only if the partition is given to it, or if the
owner is presumed dead or does not serve.

Source: Transactional Messaging in Kafka, "Transaction coordinator"; PIP-31, "TC Startup".
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException

from ...journal.errors import BrokerError, ConfigError, JournalError, LogtxError
from ...journal.reader import JOURNAL_TOPIC
from ...journal.records.codec import encode_entry
from ...journal.records.fate import NO_EPOCH
from ...journal.records.types import Entry, Owner
from ..core.replica import Replica
from ..core.shard import Shard
from ..membership.balance import Member, backoff_s, bid_delay_s
from .appender import Appender
from .loading import lost_tail
from .services import Services
from .tail import Batch

_LOG = logging.getLogger(__name__)

READ_TIMEOUT_S: Final = 30.0
"""Longest wait until a known end of the journal is read; past it the bid fails, and comes again."""
LATE_S: Final = 1.0
"""How long a record may be missing before the candidate asks for the journal's end. A shorter time
asks the brokers more; with a longer one a lost tail is noticed later."""
OWNER_TIMEOUT_S: Final = 35.0
"""Bound of appending OWNER. Longer than the appender's message.timeout.ms, so that the append's
fate is known."""
LOOK_S: Final = 0.1
"""How often a standby looks whether its turn has come although nothing woke it."""
IDLE_S: Final = 0.3
"""How long an owner that is reached may say nothing of serving before others bid. Its news may be
under way, so a shorter time takes partitions from healthy owners. Or it loads the journal again
after a surprise: with a longer time clients wait, though others could serve at once."""


Refusal: TypeAlias = str
"""The reason why a partition is not taken over."""


@dataclass(slots=True)
class _Following:
    replica: Replica
    token: int
    has_begun: bool = False
    """Whether the tail has brought anything: its first fetch takes up to half a second."""
    is_current: bool = False
    """Whether the journal was read up to an end that was asked for after that first fetch."""
    failure: LogtxError | None = None
    turn_s: float | None = None
    """Monotonic time at which to bid; None while the partition has an owner that serves."""


@dataclass(slots=True)
class _Request:
    """The owner's request to take over."""

    epoch: int
    end: int
    outcome: asyncio.Future[Refusal | None]


@dataclass(frozen=True, slots=True)
class Won:
    """A bid that was won. The partition must be served at once."""

    shard: Shard
    """Replayed up to its own OWNER record, inclusive."""
    request: _Request | None
    """The former owner's request, if it gave the partition away; else None."""

    def tell(self, refusal: Refusal | None = None) -> None:
        """Tells a former owner that asked that the partition is served, or why it is not."""
        if self.request is not None:
            _answer(self.request, refusal)


class Candidate:
    """Follows one journal partition and bids for it; lives on the coordinator's event loop."""

    def __init__(
        self,
        partition: int,
        services: Services,
        *,
        ask: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        """Follows nothing before `follow`.

        Args:
            partition: number of the journal partition.
            services: what the coordinator's partitions share.
            ask: runs a coroutine in the background; the partition's `stop` cancels it.
        """
        self.journal: Appender = services.journal
        """Appends OWNER and the records behind it."""
        self.leaving = False
        """True once this candidate must not bid any more."""
        self.read_end = 0
        """Everything below this offset was read here, so it was durable: a journal that ends below
        has lost its tail."""
        self._partition = partition
        self._services = services
        self._ask = ask
        self._journal_in_doubt = False
        """Whether an earlier append to this partition may still be in flight."""
        self._following: _Following | None = None
        self._request: _Request | None = None
        self._losses = 0
        self._not_before_s = float("-inf")
        self._epoch_seen = NO_EPOCH
        self._woken = asyncio.Event()

    # ---- following ------------------------------------------------------------------------------

    @property
    def shard(self) -> Shard | None:
        """The state of the journal as far as it was read; None while it is not followed."""
        return self._following.replica.shard if self._following is not None else None

    @property
    def failure(self) -> LogtxError | None:
        """Why the journal can't be followed; None while it is, or is not wanted."""
        return self._following.failure if self._following is not None else None

    def follow(self, replica: Replica) -> None:
        """Follows the journal from where a replica stands."""
        token = self._services.tail.follow(self._partition, replica.next_offset)
        following = self._following = _Following(replica, token)
        self.read_end = max(self.read_end, replica.next_offset)
        self._see_owner(replica.shard)
        self._ask(self._catch_up(following))

    @property
    def is_current(self) -> bool:
        """Whether the journal is followed closely: a take-over would not wait for reading."""
        return self._following is not None and self._following.is_current

    async def _catch_up(self, following: _Following) -> None:
        while self._following is following and not following.is_current:
            await self._wait(LOOK_S)
            if not following.has_begun:
                continue
            try:
                await self._reach(following, await self._services.journal_end(self._partition))
            except (LogtxError, KafkaException) as error:
                _LOG.debug("not_current partition=%d error=%s", self._partition, error)
            else:
                following.is_current = True
                self._services.membership_changed()

    def unfollow(self) -> None:
        """Stops following the journal."""
        if self._following is not None:
            self._services.tail.leave(self._partition)
            self._following = None

    def feed(self, batch: Batch) -> None:
        """Takes what the tail has read."""
        following = self._following
        if following is None or batch.token != following.token:
            return
        replica = following.replica
        following.has_begun = True
        try:
            for offset, entry in batch.entries:
                replica.feed(offset, entry)
        except JournalError as error:
            following.failure = error
        else:
            following.failure = batch.failure
        self.read_end = max(self.read_end, replica.next_offset)
        if following.failure is not None:
            self._services.tail.leave(self._partition)
        if replica.shard.epoch != self._epoch_seen:
            following.turn_s = None
            self._see_owner(replica.shard)
        self._woken.set()

    def wake(self) -> None:
        """Makes the waiting tasks look again, as knowledge of other coordinators has changed."""
        self._woken.set()

    def _see_owner(self, shard: Shard) -> None:
        owner, members = shard.owner, self._services.members
        if owner is not None:
            members.owns(owner.process_nonce, owner.address, self._partition)
            if self._epoch_seen not in (NO_EPOCH, shard.epoch):
                # The record was not there when this process started: it was appended just now.
                members.proven(owner.process_nonce, owner.address, time.monotonic())
                if owner.address == self._services.address and not self._is_mine(owner):
                    self._ask(self._refuse_double(owner.address))
        self._epoch_seen = shard.epoch
        self._services.membership_changed()

    async def _refuse_double(self, address: str) -> None:
        """Ends this process if another one advertises its address.

        Otherwise each would take the other for its own former process, and would take over its
        partitions at once, for ever.
        """
        if await self._services.who_answers(address) == self._services.process_nonce:
            # The record is of a former process at this address that has ended; it was long in
            # flight.
            _LOG.info("late_owner partition=%d address=%s", self._partition, address)
            return
        raise ConfigError(
            f"another coordinator advertises the same address {address}: give each its own"
            " --advertise"
        )

    async def _reach(self, following: _Following, end: int) -> None:
        """Waits until everything below `end` was read; some coordinator saw it durable.

        Raises:
            JournalTruncatedError: the journal ends below `end`.
            BrokerError: it was not read within `READ_TIMEOUT_S`.
            LogtxError: the journal can't be followed.
        """
        now_s = time.monotonic()
        deadline_s, ask_s = now_s + READ_TIMEOUT_S, now_s + LATE_S
        while following.replica.next_offset < end:
            self._check(following)
            now_s = time.monotonic()
            if now_s > ask_s:
                # If the tail was lost, no record will ever arrive.
                ask_s = now_s + LATE_S
                if await self._services.journal_end(self._partition, end) < end:
                    raise lost_tail(self._partition, end)
            if now_s > deadline_s:
                raise BrokerError(
                    f"journal partition {self._partition} was not read up to {end} within"
                    f" {READ_TIMEOUT_S:.0f} s"
                )
            await self._wait(LOOK_S)

    async def _wait(self, seconds: float) -> None:
        # Not wait_for: it loses a cancellation that comes together with the awaited event.
        self._woken.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._woken.wait()

    def _check(self, following: _Following) -> None:
        if following.failure is None:
            return
        if isinstance(following.failure, BrokerError):
            self.unfollow()
        raise following.failure

    # ---- whose turn it is -----------------------------------------------------------------------

    @property
    def owner(self) -> Owner | None:
        """The current OWNER record, as far as the journal was read."""
        return self._following.replica.shard.owner if self._following is not None else None

    def is_gone(self, now_s: float) -> bool:
        """Returns whether no owner is left that a client could be sent to."""
        owner = self.owner
        if owner is None or self._is_mine(owner):
            return True
        return self._services.members.dead(owner.process_nonce, now_s)

    def _is_orphaned(self, now_s: float) -> bool:
        """Returns whether nobody seems to serve the partition: a guess. A wrong one is harmless."""
        owner, shard = self.owner, self.shard
        if self.leaving:
            return False
        if owner is None or shard is None or self.is_gone(now_s):
            return True
        return self._services.members.idle(owner.process_nonce, self._partition, shard.epoch, now_s)

    def _is_mine(self, owner: Owner) -> bool:
        return owner.process_nonce == self._services.process_nonce

    def pause_bids(self, *, seconds: float | None = None, anew: bool = False) -> float:
        """Stops bidding for a while. Returns the pause in seconds.

        Args:
            seconds: length of the pause; None: a random one that grows with each call.
            anew: restarts the back-off at its minimum.
        """
        if seconds is None:
            self._losses = 1 if anew else self._losses + 1
            seconds = backoff_s(self._losses, random.random())
        self._not_before_s = time.monotonic() + seconds
        return seconds

    async def turn(self) -> None:
        """Waits until it is this coordinator's turn to bid.

        Raises:
            LogtxError: the journal can't be followed. After a `BrokerError` the candidate no longer
                follows it.
        """
        following = self._require()
        while True:
            self._check(following)
            now_s = time.monotonic()
            if self._request is not None:
                return
            wait_s = LOOK_S
            if not self._is_orphaned(now_s):
                following.turn_s = None
            else:
                if following.turn_s is None:
                    following.turn_s = max(now_s, self._not_before_s) + self._delay_s(now_s)
                if now_s >= following.turn_s:
                    self._say_why(now_s)
                    return
                wait_s = min(wait_s, following.turn_s - now_s)
            await self._wait(wait_s)

    def _say_why(self, now_s: float) -> None:
        owner, shard = self.owner, self.shard
        if owner is None or shard is None or self._is_mine(owner):
            return
        why = "its owner is presumed dead" if self.is_gone(now_s) else "its owner does not serve it"
        _LOG.info("bidding partition=%d epoch=%d why=%s", self._partition, shard.epoch, why)

    def _delay_s(self, now_s: float) -> float:
        owner, services = self.owner, self._services
        if owner is not None and self._is_mine(owner):
            return 0.0
        me = Member(nonce=services.process_nonce, address=services.address)
        more_s = services.members.patience.more_s(now_s)
        delay_s = bid_delay_s(self._partition, me, services.members.reached(now_s), more_s)
        return delay_s if self.is_gone(now_s) else delay_s + IDLE_S + more_s

    def _require(self) -> _Following:
        assert self._following is not None, "nothing is followed"
        return self._following

    # ---- bidding --------------------------------------------------------------------------------

    async def take_over(self, epoch: int, end: int) -> Refusal | None:
        """Accepts the partition from its owner.

        Args:
            epoch: epoch of the owner.
            end: the journal's end, at which the owner stopped deciding.

        Returns:
            The reason for refusing; None once the partition is served here.
        """
        if self._request is not None or self._following is None:
            return "it is not ready"
        outcome: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._request = _Request(epoch, end, outcome)
        self._woken.set()
        return await outcome

    def refuse(self, why: Refusal) -> None:
        """Refuses the waiting request to take over, if there is one."""
        request, self._request = self._request, None
        if request is not None:
            _answer(request, why)

    async def bid(self) -> Won | None:
        """Bids for the partition. Refuses a request to take over if the bid is not won.

        Returns:
            The bid that was won, to be served at once; None if it was lost or not made.

        Raises:
            LogtxError: as in `turn`, or the journal did not take the OWNER record.
        """
        request, self._request = self._request, None
        if request is not None and request.outcome.done():
            return None  # the owner no longer waits, and goes on by itself
        outcome: Won | Refusal = "the bid failed"
        try:
            outcome = await self._win(request)
        finally:
            if request is not None and isinstance(outcome, Refusal):
                _answer(request, outcome)
        return outcome if isinstance(outcome, Won) else None

    async def _win(self, request: _Request | None) -> Won | Refusal:
        started_s, following = time.monotonic(), self._require()
        replica = following.replica
        replaced = replica.shard.epoch
        # Read before the question: records that the tail reads meanwhile may lie behind the answer.
        known = self._services.members.known_end(self._partition, self.read_end)
        if request is not None:
            await self._reach(following, request.end)
            if replica.shard.epoch != request.epoch:
                return "it has had another owner since"
        else:
            end = await self._services.journal_end(self._partition, known)
            if end < known:
                raise lost_tail(self._partition, known)
            await self._reach(following, end)
            if replica.shard.epoch != replaced:
                # Its news of serving is not here yet, so it looks idle. To bid now would take the
                # partition from an owner that has only just won it, which would do the same.
                return "another candidate was faster"
            if not self._is_orphaned(time.monotonic()):
                return "somebody else owns it"
        offset = await self._append_owner(replica.shard)
        if offset < known:
            # For a request the end was not asked for; otherwise it may have been lost since.
            raise lost_tail(self._partition, known)
        await self._reach(following, offset + 1)
        if replica.shard.epoch != offset:
            _LOG.info("bid_lost partition=%d offset=%d", self._partition, offset)
            self.pause_bids()
            return "another candidate won it"
        if replica.next_offset != offset + 1:
            # We appended nothing behind the OWNER record, so a stranger did. All readers take
            # everything behind it for void, and clients would be told decisions that no reader
            # believes.
            _LOG.info("epoch_spoilt partition=%d epoch=%d", self._partition, offset)
            self.pause_bids()
            return "somebody else's record followed the OWNER record"
        self.unfollow()
        self._epoch_seen = offset
        _LOG.info(
            "partition_owned partition=%d epoch=%d open=%d bid_ms=%d",
            self._partition, offset, len(replica.shard.transactions),
            (time.monotonic() - started_s) * 1000,
        )  # fmt: skip
        return Won(replica.shard, request)

    async def _append_owner(self, shard: Shard) -> int:
        services = self._services
        owner = Owner(
            replaces=shard.epoch,
            address=services.address,
            process_nonce=services.process_nonce,
            partition_count=services.partition_count,
        )
        incarnation = random.getrandbits(48) if shard.epoch == NO_EPOCH else shard.incarnation
        value = encode_entry(Entry(shard.epoch, incarnation, owner))
        answer: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

        def acknowledge(offset: int | None, _error: KafkaError | None) -> None:
            if not answer.done():
                answer.set_result(offset)

        self._renew_journal()
        self.journal.append(JOURNAL_TOPIC, self._partition, acknowledge, value=value)
        offset = None
        with suppress(TimeoutError):
            async with asyncio.timeout(OWNER_TIMEOUT_S):
                offset = await answer
        if offset is None:
            self._journal_in_doubt = True
            raise BrokerError(f"the journal took no OWNER record in partition {self._partition}")
        return offset

    def doubt_journal(self, journal: Appender) -> None:
        """Notes that an append by `journal` got no answer, or an error."""
        self._journal_in_doubt |= journal is self.journal

    def _renew_journal(self) -> None:
        """Takes a new producer if OWNER would wait behind appends that got no answer.

        librdkafka sends nothing more to a partition until it knows the outcome of every request in
        flight, which takes up to a minute. A new producer does not wait for them.
        """
        self._services.journal.renew_if_broken()
        if not self._journal_in_doubt:
            return
        self._journal_in_doubt = False
        former = self.journal
        self.journal = Appender(self._services.log, {}, f"journal-{self._partition}")
        if former is not self._services.journal:
            self._ask(former.close())

    async def close(self) -> None:
        """Stops following, and closes the producer if it is this partition's own."""
        self.unfollow()
        if self.journal is not self._services.journal:
            await self.journal.close()


def _answer(request: _Request, why: Refusal | None) -> None:
    if not request.outcome.done():
        request.outcome.set_result(why)
