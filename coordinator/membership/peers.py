"""Streams between coordinators, on which each tells what it serves and gives partitions away.

Each coordinator calls every other and keeps a stream to it. A broken stream shows within
milliseconds that a process was killed; pings show that one was stopped. A process is called once
more before it is presumed dead: perhaps only the connection broke.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from ...journal.errors import ConfigError, CoordinatorNotAvailableError, TlsError
from ..protocol.topic_news import TopicAges
from ..tasks import essential_task
from ..transport.address import now_ms, split
from ..transport.alive import Alive
from ..transport.tls import Tls
from . import peers_pb2 as pb
from .balance import Member
from .links import Link
from .members import Members

_LOG = logging.getLogger(__name__)

HEARTBEAT_S: Final = 0.25
"""Longest time between two news of a stream. More often costs CPU; it must be below `HEARD_S`."""
SILENCE_S: Final = 4.0
"""A stream without news for this long is given up even if its pings are answered.

Shorter, and a process whose event loop is busy may be presumed dead; longer, and one that hangs
keeps its partitions for longer.
"""
ANSWER_S: Final = 0.4
"""How long a call waits for the first news. Longer delays the take-over from a stopped process;
shorter may presume a busy one dead."""
CALL_MIN_S: Final = 0.05
"""First pause before an address that did not answer is called again. It doubles each time."""
CALL_MAX_S: Final = 1.0
"""Upper bound of that pause. Longer finds a process that came back later; shorter calls more."""
AGE_MAX_MS: Final = 2**40
"""Longest time for which an id is said to be known: 34 years."""
NOT_CALLABLE_MAX: Final = 100
"""Addresses that are no addresses, or without TLS in common, which are logged; bounds memory."""
GIVE_S: Final = 5.0
"""Bound of a planned move. Past it the giver reads the journal to learn who owns the partition.

Clients of the partition wait meanwhile.
"""

TakeOver = Callable[[int, int, int], Awaitable[str | None]]
"""(journal partition, epoch to replace, end of the journal partition) → why it is not served, None
if it is."""


class TopicNews(Protocol):
    """What coordinators tell each other of data topics: `TopicKnowledge` has it."""

    def tell(self, told: int, now_ms: int) -> tuple[TopicAges, int]:
        """Returns what changed after `told`, and the number to pass next time. Nothing: no more."""

    def hear(self, ages: TopicAges, now_ms: int) -> None:
        """Takes what another coordinator told."""


class Peers:
    """Keeps one coordinator's streams to and from all others. Lives on its event loop."""

    def __init__(
        self,
        *,
        me: Callable[[], Member],
        members: Members,
        journal_id: str,
        changed: Callable[[], None],
        take_over: TakeOver,
        topics: TopicNews,
        alive: Alive | None = None,
        tls: Tls | None = None,
    ) -> None:
        """Prepares the streams; `call` opens them.

        Args:
            me: returns what to tell of this coordinator now.
            members: takes what the others tell, and whether they answer.
            journal_id: id of the journal topic. A coordinator of another journal is no peer.
            changed: called when `members` has changed.
            take_over: called when another coordinator asks this one to take over a partition.
            topics: takes and gives which topics had names.
            alive: speaks for this event loop while it is held up.
            tls: what streams to others are protected with; None: nothing.
        """
        self._me = me
        self._members = members
        self._journal_id = journal_id
        self._changed = changed
        self._take_over = take_over
        self._topics = topics
        self._alive, self._tls = alive, tls
        self._news_changed = asyncio.Event()
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._links: dict[int, Link] = {}
        self._incoming: dict[int, object] = {}
        self._closed = False
        self._not_callable: set[str] = set()
        """Addresses that were told to be none, each once."""
        self._distrusted: dict[str, str] = {}
        """Address → what the log said last of TLS with it."""

    def tell(self) -> None:
        """Sends the news to the others now, because what `me` returns has changed."""
        changed, self._news_changed = self._news_changed, asyncio.Event()
        changed.set()

    def call(self, addresses: Iterable[str]) -> None:
        """Keeps a stream to each of these addresses from now on, and to no other."""
        if self._closed:
            return
        wanted = set(filter(self._is_callable, addresses))
        for address in self._calls.keys() - wanted:
            self._calls.pop(address).cancel()
        for address in wanted - self._calls.keys():
            self._calls[address] = essential_task(self._call(address), f"peer-{address}")

    async def give(self, receiver: Member, partition: int, epoch: int, end: int) -> None:
        """Asks another coordinator to take over a journal partition, and waits until it serves it.

        Args:
            receiver: the coordinator to ask.
            partition: number of the journal partition.
            epoch: the epoch that it must replace.
            end: end of the journal partition, where its OWNER record must land.

        Raises:
            CoordinatorNotAvailableError: it does not serve the partition, or it is not known
                whether it does.
        """
        link = self._links.get(receiver.nonce)
        if link is None:
            raise CoordinatorNotAvailableError(f"no stream to {receiver.address}")
        request = pb.TakeOverRequest(
            partition=partition, epoch=epoch, end=end, process_nonce=receiver.nonce
        )
        try:
            reply = await link.take_over(request, GIVE_S)
        except CoordinatorNotAvailableError as error:
            raise CoordinatorNotAvailableError(f"{receiver.address}: {error}") from error
        if not reply.served:
            raise CoordinatorNotAvailableError(f"{receiver.address}: {reply.reason}")

    async def check_own_address(self, address: str) -> None:
        """Calls this coordinator at the address that it tells the others.

        Raises:
            ConfigError: another process answers there. If none answers, that is only logged, for
                the others may still reach the address.
        """
        if await self.who_answers(address) not in (None, self._me().nonce):
            raise ConfigError(
                f"another coordinator answers at {address}: give each its own --advertise"
            )

    async def who_answers(self, address: str) -> int | None:
        """Returns the nonce of the coordinator that answers at an address; None if none does."""
        link = Link(address, alive=self._alive, tls=self._tls)
        try:
            async with asyncio.timeout(ANSWER_S):
                news = await link.read()
        except (CoordinatorNotAvailableError, TimeoutError) as error:
            _LOG.warning("own_address_unreachable address=%s error=%s", address, _why(error))
            return None
        finally:
            await link.close()
        return news.process_nonce

    async def close(self) -> None:
        """Ends all streams."""
        self._closed = True
        tasks, self._calls = list(self._calls.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.tell()

    # ---- calling others -------------------------------------------------------------------------

    async def _call(self, address: str) -> None:
        pause_s = CALL_MIN_S
        while True:
            more_s = self._members.patience.more_s(time.monotonic())
            link = Link(address, more_s, alive=self._alive, tls=self._tls)
            try:
                answered = await self._watch(address, link, more_s)
            finally:
                await link.close()
            if answered:
                # Called again at once: the process is presumed dead only if none answers now.
                pause_s = CALL_MIN_S
                continue
            self._members.missed(address)
            self._changed()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, CALL_MAX_S)

    async def _watch(self, address: str, link: Link, more_s: float) -> bool:
        """Follows the news of the process that answers, to the end of the stream.

        Args:
            address: its address.
            link: a link to it.
            more_s: how much longer than usual it may take to answer. The stream ends once that is
                no longer needed, and is to be opened anew.

        Returns:
            Whether a peer answered.
        """
        telling = asyncio.create_task(self._tell(link))
        nonce: int | None = None
        why = "it ended the stream"
        try:
            while True:
                limit_s = (ANSWER_S if nonce is None else SILENCE_S) + more_s
                async with asyncio.timeout(limit_s):
                    news = await link.read()
                if not self._is_peer(news):
                    return nonce is not None
                if self._is_me(news):
                    _LOG.info("own_address address=%s", address)
                    self._members.answered_by_us(address)
                    return False
                if news.process_nonce != nonce:
                    nonce = news.process_nonce
                    self._links[nonce] = link
                    self._members.link(_member(news))
                    _LOG.info("peer_linked address=%s nonce=%d", address, nonce)
                    self._learn(news)
                    self._changed()
                else:
                    self._take(news, self._members.tell)
                    if more_s and not self._members.patience.more_s(time.monotonic()):
                        why = "it is called anew, with the usual times"
                        return True
        except (CoordinatorNotAvailableError, TimeoutError) as error:
            why = _why(error)
            _LOG.debug("peer_silent address=%s error=%s", address, why)
            if isinstance(error.__cause__, TlsError):
                self._tell_of_distrust(address, why)
            return nonce is not None
        finally:
            telling.cancel()
            if nonce is not None:
                _LOG.info("peer_unlinked address=%s nonce=%d why=%s", address, nonce, why)
                self._members.unlink(nonce)
                if self._links.get(nonce) is link:
                    del self._links[nonce]

    async def _tell(self, link: Link) -> None:
        # The task that reads the link notices when it breaks, and takes the error.
        with suppress(CoordinatorNotAvailableError):
            told = 0
            while True:
                changed = self._news_changed
                news, told = self._news(told)
                await link.write(news)
                await _until_more(news, changed)

    # ---- called by others -----------------------------------------------------------------------

    async def watch(self, incoming: AsyncIterator[pb.News]) -> AsyncIterator[pb.News]:
        """Sends news to the coordinator that called, and takes its news."""
        listening = asyncio.create_task(self._listen(incoming))
        told = 0
        try:
            while not (self._closed or listening.done()):
                changed = self._news_changed
                news, told = self._news(told)
                yield news
                await _until_more(news, changed)
        finally:
            listening.cancel()
            with suppress(asyncio.CancelledError):
                await listening

    async def _listen(self, incoming: AsyncIterator[pb.News]) -> None:
        nonce, token = 0, object()
        try:
            async for news in incoming:
                if not self._is_peer(news) or self._is_me(news):
                    return
                nonce = news.process_nonce
                self._incoming[nonce] = token
                self._take(news, lambda member: self._members.heard(member, time.monotonic()))
        finally:
            # If the process has a later stream, the end of this one says nothing.
            if self._incoming.get(nonce) is token:
                del self._incoming[nonce]
                self._members.silent(nonce)
                self._changed()

    async def take_over(self, request: pb.TakeOverRequest) -> pb.TakeOverReply:
        """Takes over a journal partition from its owner, which decides nothing there any more."""
        if request.process_nonce != self._me().nonce:
            return pb.TakeOverReply(served=False, reason="another process is at this address now")
        refusal = await self._take_over(request.partition, request.epoch, request.end)
        return pb.TakeOverReply(served=refusal is None, reason=refusal or "")

    # ---- news -----------------------------------------------------------------------------------

    def _take(self, news: pb.News, tell: Callable[[Member], None]) -> None:
        member = _member(news)
        before = self._members.get(member.nonce)
        tell(member)
        if self._learn(news) or before != member:
            self._changed()

    def _learn(self, news: pb.News) -> bool:
        if news.topics:
            ages = {n.topic: tuple((_age(h), h.topic_id) for h in n.ids) for n in news.topics}
            self._topics.hear(ages, now_ms())
        learnt = [self._members.learn(p.process_nonce, p.address) for p in news.peers]
        return any(learnt)

    def _is_callable(self, address: str) -> bool:
        # What somebody tells must not end the task that calls it, and so this coordinator.
        try:
            split(address)
        except ConfigError:
            if address not in self._not_callable and len(self._not_callable) < NOT_CALLABLE_MAX:
                self._not_callable.add(address)
                _LOG.warning("peer_address_unusable address=%r", address)
            return False
        return True

    def _tell_of_distrust(self, address: str, why: str) -> None:
        # Both take the other for dead then, and take its partitions again and again.
        if self._distrusted.get(address) == why:
            return
        if len(self._distrusted) >= NOT_CALLABLE_MAX:
            self._distrusted.clear()
        self._distrusted[address] = why
        _LOG.error("peer_distrusted address=%s error=%s", address, why)

    def _is_me(self, news: pb.News) -> bool:
        return bool(news.process_nonce == self._me().nonce)

    def _is_peer(self, news: pb.News) -> bool:
        if news.journal_id == self._journal_id:
            return True
        _LOG.warning("foreign_coordinator address=%s journal=%s", news.address, news.journal_id)
        return False

    def _news(self, told: int) -> tuple[pb.News, int]:
        """Returns what to tell, and up to which change of topics' ids that is.

        Args:
            told: up to which one was told on the stream.
        """
        me = self._me()
        ages, told = self._topics.tell(told, now_ms())
        news = pb.News(
            process_nonce=me.nonce,
            address=me.address,
            journal_id=self._journal_id,
            leaving=me.leaving,
            owned=[pb.Owned(partition=p, epoch=e) for p, e in me.owned.items()],
            following=sorted(me.following),
            peers=[
                pb.Peer(process_nonce=m.nonce, address=m.address)
                for m in self._members.reached(time.monotonic())
            ],
            ends=[pb.Seen(partition=p, end=e) for p, e in me.ends.items()],
            journal_format=me.journal_format,
            topics=[
                pb.Named(topic=t, ids=[pb.HadName(topic_id=i, age_ms=ms) for ms, i in had])
                for t, had in ages.items()
            ],
        )
        return news, told


def _member(news: pb.News) -> Member:
    return Member(
        nonce=news.process_nonce,
        address=news.address,
        owned={o.partition: o.epoch for o in news.owned},
        following=frozenset(news.following),
        leaving=news.leaving,
        ends={e.partition: e.end for e in news.ends},
        journal_format=news.journal_format,
    )


def _why(error: BaseException) -> str:
    return str(error) or repr(error)


def _age(had: pb.HadName) -> int:
    # More, and what is told on of it would not fit into its field.
    return min(had.age_ms, AGE_MAX_MS)


async def _until_more(news: pb.News, changed: asyncio.Event) -> None:
    if not news.topics:  # Else there may be more than one message takes.
        await _wait(changed)


async def _wait(changed: asyncio.Event) -> None:
    # Not wait_for: it loses a cancellation that comes together with the event.
    with suppress(TimeoutError):
        async with asyncio.timeout(HEARTBEAT_S):
            await changed.wait()
