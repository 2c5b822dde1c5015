"""Streams between coordinators: who is there, what each serves, and taking over on request.

Each coordinator calls every other and keeps a stream to it. A killed process is noticed by its
broken stream in milliseconds, a stopped one by the pings of HTTP/2. Before anything is concluded
it is called once more: what broke may have been the connection alone.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import grpc

from ...journal.errors import ConfigError, CoordinatorNotAvailableError
from ..tasks import essential_task
from . import peers_pb2 as pb
from . import peers_pb2_grpc as pb_grpc
from .balance import Member
from .members import Members

_LOG = logging.getLogger(__name__)

CHANNEL_OPTIONS: Final = (
    # Answered by the other's library, not its event loop: a busy one is not taken for a dead one.
    ("grpc.keepalive_time_ms", 200),
    ("grpc.http2.ping_timeout_ms", 300),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.use_local_subchannel_pool", 1),
)
HEARTBEAT_S: Final = 0.25
SILENCE_S: Final = 4.0
"""Without news for so long, a stream is given up though its pings are answered."""
ANSWER_S: Final = 0.4
"""Bound of a call's first answer."""
CALL_MIN_S: Final = 0.05
CALL_MAX_S: Final = 1.0
GIVE_S: Final = 5.0
"""Bound of a planned move; past it the giver looks into the journal for who owns the partition."""

TakeOver = Callable[[int, int, int], Awaitable[str | None]]
"""From journal partition, epoch to replace and its end, to why it is not served; None if it is."""


class Peers(pb_grpc.PeersServicer):
    """One coordinator's streams to and from all others; lives on its event loop."""

    def __init__(
        self,
        *,
        me: Callable[[], Member],
        members: Members,
        journal_id: str,
        changed: Callable[[], None],
        take_over: TakeOver,
    ) -> None:
        """Call nobody before `call`.

        Args:
            me: what to tell of this coordinator, as of now.
            members: where to put what the others tell, and whether they answer.
            journal_id: of the journal topic; a coordinator of another journal is no peer.
            changed: called when `members` changed.
            take_over: called when another asks this one to take a journal partition over.
        """
        self._me = me
        self._members = members
        self._journal_id = journal_id
        self._changed = changed
        self._take_over = take_over
        self._news_changed = asyncio.Event()
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._channels: dict[int, Any] = {}
        self._incoming: dict[int, object] = {}
        self._closed = False

    def tell(self) -> None:
        """What `me` says has changed: tell the others now."""
        changed, self._news_changed = self._news_changed, asyncio.Event()
        changed.set()

    def call(self, addresses: Iterable[str]) -> None:
        """Keep a stream to each of these addresses, and to no other."""
        if self._closed:
            return
        wanted = set(addresses)
        for address in self._calls.keys() - wanted:
            self._calls.pop(address).cancel()
        for address in wanted - self._calls.keys():
            self._calls[address] = essential_task(self._call(address), f"peer-{address}")

    async def give(self, receiver: Member, partition: int, epoch: int, end: int) -> None:
        """Ask another to take a journal partition over, and wait until it serves it.

        Raises:
            CoordinatorNotAvailableError: it does not, or nobody knows whether it does.
        """
        channel = self._channels.get(receiver.nonce)
        if channel is None:
            raise CoordinatorNotAvailableError(f"no stream to {receiver.address}")
        request = pb.TakeOverRequest(
            partition=partition, epoch=epoch, end=end, process_nonce=receiver.nonce
        )
        try:
            reply = await _stub(channel).TakeOver(request, timeout=GIVE_S)
        except (grpc.RpcError, asyncio.CancelledError) as error:
            # grpc cancels a call whose channel is closed, as it is when the receiver has died.
            _raise_if_cancelled(error)
            raise CoordinatorNotAvailableError(f"{receiver.address}: {_why(error)}") from error
        if not reply.served:
            raise CoordinatorNotAvailableError(f"{receiver.address}: {reply.reason}")

    async def check_own_address(self, address: str) -> None:
        """Call this coordinator at the address that it tells others.

        Raises:
            ConfigError: another process answers there. (If none does, others may see more.)
        """
        if await self.who_answers(address) not in (None, self._me().nonce):
            raise ConfigError(
                f"another coordinator answers at {address}: give each its own --advertise"
            )

    async def who_answers(self, address: str) -> int | None:
        """Nonce of the coordinator that answers at an address; None if none does."""
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            stream = _stub(channel).Watch()
            try:
                async with asyncio.timeout(ANSWER_S):
                    news = await stream.read()
            except (grpc.RpcError, TimeoutError, asyncio.CancelledError) as error:
                _raise_if_cancelled(error)
                _LOG.warning("own_address_unreachable address=%s error=%s", address, _why(error))
                return None
            finally:
                stream.cancel()
        return None if news is grpc.aio.EOF else int(news.process_nonce)

    async def close(self) -> None:
        """End all streams."""
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
            channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
            try:
                answered = await self._watch(address, channel)
            finally:
                await channel.close()
            if answered:
                # Called again at once: it is dead only if nobody answers now.
                pause_s = CALL_MIN_S
                continue
            self._members.missed(address)
            self._changed()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, CALL_MAX_S)

    async def _watch(self, address: str, channel: Any) -> bool:
        """Follow the news of whoever answers, to the end of the stream; False if nobody did."""
        stream = _stub(channel).Watch()
        telling = asyncio.create_task(self._tell(stream))
        nonce: int | None = None
        try:
            while True:
                limit_s = ANSWER_S if nonce is None else SILENCE_S
                async with asyncio.timeout(limit_s):
                    news = await stream.read()
                if news is grpc.aio.EOF or not self._is_peer(news):
                    return nonce is not None
                if self._is_me(news):
                    _LOG.info("own_address address=%s", address)
                    self._members.answered_by_us(address)
                    return False
                if news.process_nonce != nonce:
                    nonce = news.process_nonce
                    self._channels[nonce] = channel
                    self._members.link(_member(news))
                    _LOG.info("peer_linked address=%s nonce=%d", address, nonce)
                    self._learn(news)
                    self._changed()
                else:
                    self._take(news, self._members.tell)
        except (grpc.RpcError, TimeoutError, asyncio.CancelledError) as error:
            _raise_if_cancelled(error)
            _LOG.debug("peer_silent address=%s error=%s", address, _why(error))
            return nonce is not None
        finally:
            telling.cancel()
            stream.cancel()
            if nonce is not None:
                _LOG.info("peer_unlinked address=%s nonce=%d", address, nonce)
                self._members.unlink(nonce)
                if self._channels.get(nonce) is channel:
                    del self._channels[nonce]

    async def _tell(self, stream: Any) -> None:
        # A stream that broke is noticed, and its error taken, by whoever reads it.
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            while True:
                changed = self._news_changed
                await stream.write(self._news())
                await _wait(changed)

    # ---- called by others -----------------------------------------------------------------------

    async def Watch(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.News], context: Any
    ) -> AsyncIterator[pb.News]:
        """Tell another coordinator the news, and take its own."""
        del context
        listening = asyncio.create_task(self._listen(request_iterator))
        try:
            while not (self._closed or listening.done()):
                changed = self._news_changed
                yield self._news()
                await _wait(changed)
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
            # A later stream of the same process says more than the end of this one.
            if self._incoming.get(nonce) is token:
                del self._incoming[nonce]
                self._members.silent(nonce)
                self._changed()

    async def TakeOver(  # noqa: N802
        self, request: pb.TakeOverRequest, context: Any
    ) -> pb.TakeOverReply:
        """Take a journal partition over from its owner, which decides nothing there any more."""
        del context
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
        learnt = [self._members.learn(p.process_nonce, p.address) for p in news.peers]
        return any(learnt)

    def _is_me(self, news: pb.News) -> bool:
        return bool(news.process_nonce == self._me().nonce)

    def _is_peer(self, news: pb.News) -> bool:
        if news.journal_id == self._journal_id:
            return True
        _LOG.warning("foreign_coordinator address=%s journal=%s", news.address, news.journal_id)
        return False

    def _news(self) -> pb.News:
        me = self._me()
        return pb.News(
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
        )


def _member(news: pb.News) -> Member:
    return Member(
        nonce=news.process_nonce,
        address=news.address,
        owned={o.partition: o.epoch for o in news.owned},
        following=frozenset(news.following),
        leaving=news.leaving,
        ends={e.partition: e.end for e in news.ends},
    )


def _stub(channel: Any) -> Any:
    return pb_grpc.PeersStub(channel)  # type: ignore[no-untyped-call]


def _raise_if_cancelled(error: BaseException) -> None:
    """Go on after a CancelledError that grpc raised for a call that it ended by itself."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error


def _why(error: BaseException) -> str:
    # The text of grpc's errors takes several lines.
    details = getattr(error, "details", None)
    return str(details()) if details is not None else repr(error)


async def _wait(changed: asyncio.Event) -> None:
    # Not wait_for, which loses a cancellation that comes together with what it waits for.
    with suppress(TimeoutError):
        async with asyncio.timeout(HEARTBEAT_S):
            await changed.wait()
