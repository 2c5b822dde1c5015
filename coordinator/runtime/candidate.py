"""A hot standby of one journal partition, and how it comes to own it.

To own a partition: read the journal to its end, append OWNER, read up to it; it won if it is the
current epoch then. A void OWNER would be a surprise to the owner that there is, so nobody bids
unless the partition is given to it, or its owner is presumed dead or does not serve.

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
LATE_S: Final = 1.0
"""How long a record may take to come before anybody asks whether it is there."""
OWNER_TIMEOUT_S: Final = 35.0
"""Longer than the appender's message.timeout.ms, so that an append's fate is known."""
LOOK_S: Final = 0.1
"""How often a standby looks whether its turn has come without having been told."""
IDLE_S: Final = 0.3
"""How long an owner that is reached may not serve: its news may be on their way, or it loads the
journal again after a surprise, which takes long where it is long; others could serve at once."""


Refusal: TypeAlias = str
"""Why a partition is not taken over."""


@dataclass(slots=True)
class _Following:
    replica: Replica
    token: int
    has_begun: bool = False
    """Whether the tail has brought anything: its first fetch takes up to half a second."""
    is_current: bool = False
    """Whether it was read up to an end that was asked for after that."""
    failure: LogtxError | None = None
    turn_s: float | None = None
    """When to bid, while the partition has no owner that lives."""


@dataclass(slots=True)
class _Request:
    """The owner asks this coordinator to take over."""

    epoch: int
    end: int
    outcome: asyncio.Future[Refusal | None]


@dataclass(frozen=True, slots=True)
class Won:
    """A bid that was won: the partition is to be served at once."""

    shard: Shard
    """Replayed up to its own OWNER record, inclusive."""
    request: _Request | None
    """Of the former owner, if it gave the partition away."""

    def tell(self, refusal: Refusal | None = None) -> None:
        """Tell the former owner, if it asked, that the partition is served, or why it is not."""
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
        """Follow nothing yet.

        Args:
            partition: of the journal.
            services: of the coordinator.
            ask: lets something run in the background, until the partition is stopped.
        """
        self.journal: Appender = services.journal
        """What OWNER, and what follows it, is appended by."""
        self.leaving = False
        """Whether to bid for nothing any more."""
        self.read_end = 0
        """Everything below was read here: it was durable, so a journal that ends below lost it."""
        self._partition = partition
        self._services = services
        self._ask = ask
        self._journal_in_doubt = False
        """Whether an earlier append of this partition may still be on its way."""
        self._following: _Following | None = None
        self._request: _Request | None = None
        self._losses = 0
        self._not_before_s = float("-inf")
        self._epoch_seen = NO_EPOCH
        self._woken = asyncio.Event()

    # ---- following ------------------------------------------------------------------------------

    @property
    def shard(self) -> Shard | None:
        """What the journal says as far as it was read; None while it is not followed."""
        return self._following.replica.shard if self._following is not None else None

    def follow(self, replica: Replica) -> None:
        """Follow the journal from where a replica stands."""
        token = self._services.tail.follow(self._partition, replica.next_offset)
        following = self._following = _Following(replica, token)
        self.read_end = max(self.read_end, replica.next_offset)
        self._see_owner(replica.shard)
        self._ask(self._catch_up(following))

    @property
    def is_current(self) -> bool:
        """Whether the journal is followed closely: taking over would not wait for the reading."""
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
        """Follow no more."""
        if self._following is not None:
            self._services.tail.leave(self._partition)
            self._following = None

    def feed(self, batch: Batch) -> None:
        """What the tail has read."""
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
        """What is known of other coordinators has changed."""
        self._woken.set()

    def _see_owner(self, shard: Shard) -> None:
        owner, members = shard.owner, self._services.members
        if owner is not None:
            members.owns(owner.process_nonce, owner.address, self._partition)
            if self._epoch_seen not in (NO_EPOCH, shard.epoch):
                # Not what was there when this process came: it was appended just now.
                members.proven(owner.process_nonce, owner.address, time.monotonic())
                if owner.address == self._services.address and not self._is_mine(owner):
                    self._ask(self._refuse_double(owner.address))
        self._epoch_seen = shard.epoch
        self._services.membership_changed()

    async def _refuse_double(self, address: str) -> None:
        """End this process, if another advertises its address.

        Each would take the other for its own former process, and its partitions at once: for ever.
        """
        if await self._services.who_answers(address) == self._services.process_nonce:
            # Of a process that was here before us and is gone; its record was long on its way.
            _LOG.info("late_owner partition=%d address=%s", self._partition, address)
            return
        raise ConfigError(
            f"another coordinator advertises the same address {address}: give each its own"
            " --advertise"
        )

    async def _reach(self, following: _Following, end: int) -> None:
        """Wait until everything below `end`, which somebody saw durable, was read.

        Raises:
            JournalTruncatedError: the journal ends below.
            BrokerError: it takes too long.
        """
        now_s = time.monotonic()
        deadline_s, ask_s = now_s + READ_TIMEOUT_S, now_s + LATE_S
        while following.replica.next_offset < end:
            self._check(following)
            now_s = time.monotonic()
            if now_s > ask_s:
                # Of a lost tail nothing would ever come.
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
        # Not wait_for, which loses a cancellation that comes together with what it waits for.
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
        """Whose OWNER record is the current one, as far as was read."""
        return self._following.replica.shard.owner if self._following is not None else None

    def is_gone(self, now_s: float) -> bool:
        """Whether there is no owner that a client could be sent to."""
        owner = self.owner
        if owner is None or self._is_mine(owner):
            return True
        return self._services.members.dead(owner.process_nonce, now_s)

    def _is_orphaned(self, now_s: float) -> bool:
        """Whether nobody serves the partition: a guess, which being wrong harms nobody."""
        owner, shard = self.owner, self.shard
        if self.leaving:
            return False
        if owner is None or shard is None or self.is_gone(now_s):
            return True
        return self._services.members.idle(owner.process_nonce, self._partition, shard.epoch, now_s)

    def _is_mine(self, owner: Owner) -> bool:
        return owner.process_nonce == self._services.process_nonce

    def pause_bids(self, *, seconds: float | None = None, anew: bool = False) -> float:
        """Bid for nothing for a while; how long.

        Args:
            seconds: by default longer each time, and random.
            anew: whether this is the first time again.
        """
        if seconds is None:
            self._losses = 1 if anew else self._losses + 1
            seconds = backoff_s(self._losses, random.random())
        self._not_before_s = time.monotonic() + seconds
        return seconds

    async def turn(self) -> None:
        """Until it is this coordinator's turn to bid.

        Raises:
            LogtxError: the journal can't be followed; after a `BrokerError` it is not any more.
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
                    return
                wait_s = min(wait_s, following.turn_s - now_s)
            await self._wait(wait_s)

    def _delay_s(self, now_s: float) -> float:
        owner, services = self.owner, self._services
        if owner is not None and self._is_mine(owner):
            return 0.0
        me = Member(nonce=services.process_nonce, address=services.address)
        delay_s = bid_delay_s(self._partition, me, services.members.reached(now_s))
        return delay_s if self.is_gone(now_s) else delay_s + IDLE_S

    def _require(self) -> _Following:
        assert self._following is not None, "nothing is followed"
        return self._following

    # ---- bidding --------------------------------------------------------------------------------

    async def take_over(self, epoch: int, end: int) -> Refusal | None:
        """Accept the partition from its owner.

        Args:
            epoch: the owner's.
            end: the journal's end, at which it decided nothing more.

        Returns:
            Why it is not served; None once it is.
        """
        if self._request is not None or self._following is None:
            return "it is not ready"
        outcome: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        self._request = _Request(epoch, end, outcome)
        self._woken.set()
        return await outcome

    def refuse(self, why: Refusal) -> None:
        """Take nothing over any more that was asked for."""
        request, self._request = self._request, None
        if request is not None:
            _answer(request, why)

    async def bid(self) -> Won | None:
        """Try to win an OWNER epoch. A request to take over is refused if that fails.

        Returns:
            What was won, to be served at once; None if the bid was lost or not made.

        Raises:
            LogtxError: as `turn`, or the journal takes no record.
        """
        request, self._request = self._request, None
        if request is not None and request.outcome.done():
            return None  # whoever asked waits no more, and goes on by itself
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
        # Read before the question: what the tail reads meanwhile may lie behind the answer.
        known = max(self.read_end, self._services.members.known_end(self._partition))
        if request is not None:
            await self._reach(following, request.end)
            if replica.shard.epoch != request.epoch:
                return "it has had another owner since"
        else:
            end = await self._services.journal_end(self._partition, known)
            if end < known:
                raise lost_tail(self._partition, known)
            await self._reach(following, end)
            if not self._is_orphaned(time.monotonic()):
                return "somebody else owns it"
        offset = await self._append_owner(replica.shard)
        if offset < known:
            # By request nobody asked for the end; and it may have been lost since.
            raise lost_tail(self._partition, known)
        await self._reach(following, offset + 1)
        if replica.shard.epoch != offset:
            _LOG.info("bid_lost partition=%d offset=%d", self._partition, offset)
            self.pause_bids()
            return "another candidate won it"
        if replica.next_offset != offset + 1:
            # Nothing of ours stands there, so it is a stranger's: all readers hold whatever comes
            # behind it for void, and clients would be told of decisions that nobody believes.
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
        """An append by it got no answer, or an error."""
        self._journal_in_doubt |= journal is self.journal

    def _renew_journal(self) -> None:
        """See to it that OWNER does not wait behind appends that got no answer.

        librdkafka sends nothing more to a partition before it knows of each request in flight
        what became of it, which takes up to a minute. A producer of its own is not concerned.
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
        """Let go of what is this partition's alone."""
        self.unfollow()
        if self.journal is not self._services.journal:
            await self.journal.close()


def _answer(request: _Request, why: Refusal | None) -> None:
    if not request.outcome.done():
        request.outcome.set_result(why)
