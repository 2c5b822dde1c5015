"""Streams between coordinators, without the journal partitions behind them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from logtx.coordinator.core.topic_ids import TELL_MAX
from logtx.coordinator.core.topics import TopicKnowledge
from logtx.coordinator.membership import links
from logtx.coordinator.membership import peers as module
from logtx.coordinator.membership import peers_pb2 as pb
from logtx.coordinator.membership.balance import Member
from logtx.coordinator.membership.members import Members
from logtx.coordinator.membership.peers import Peers, TakeOver
from logtx.coordinator.server.opened import Opened
from logtx.coordinator.transport.on_loop import Listener
from logtx.journal.errors import ConfigError, CoordinatorNotAvailableError

from ..transport.served import PATIENT, dead_port

TIMEOUT_S = 30.0


async def refuse(_partition: int, _epoch: int, _end: int) -> str:
    return "not here"


def peers_of(
    me: Member,
    members: Members,
    take_over: TakeOver,
    met: asyncio.Event,
    topics: TopicKnowledge | None = None,
) -> Peers:
    return Peers(
        me=lambda: me,
        members=members,
        journal_id="j",
        changed=met.set,
        take_over=take_over,
        topics=topics or TopicKnowledge(),
    )


async def serve(stack: AsyncExitStack, peers: Peers, address: str) -> None:
    """Serves a coordinator's peers at an address."""
    nobody: Any = None
    listener = Listener(deadlines=PATIENT)
    listener.bind(address)
    await listener.start(Opened(nobody, nobody, peers).serve)
    stack.push_async_callback(listener.stop)


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine may be busy."""
    monkeypatch.setattr(module, "ANSWER_S", 10.0)
    monkeypatch.setattr(links, "PONG_S", 10.0)


def test_a_gift_ends_when_the_stream_to_its_receiver_is_closed() -> None:
    """The receiver is killed during a move."""
    asyncio.run(asyncio.wait_for(give_to_one_that_goes_away(), TIMEOUT_S))


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def linked(ours: Peers, members: Members, met: asyncio.Event, address: str) -> None:
    ours.call([address])
    while not members.linked():
        await met.wait()
        met.clear()


class Pair(NamedTuple):
    """Two coordinators, of which the first is linked to the second."""

    ours: Peers
    theirs: Peers
    receiver: Member
    members: Members
    met: asyncio.Event


async def pair_of(stack: AsyncExitStack, take_over: TakeOver) -> Pair:
    """Links them. The second one is asked to take over partitions."""
    address = f"127.0.0.1:{dead_port()}"
    receiver, giver = Member(nonce=2, address=address), Member(nonce=1, address="127.0.0.1:1")
    theirs = peers_of(receiver, Members(2, address), take_over, asyncio.Event())
    await serve(stack, theirs, address)
    members, met = Members(1, giver.address), asyncio.Event()
    ours = peers_of(giver, members, refuse, met)
    stack.push_async_callback(ours.close)
    await linked(ours, members, met, address)
    return Pair(ours, theirs, receiver, members, met)


async def give_to_one_that_goes_away() -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(_partition: int, _epoch: int, _end: int) -> str:
        asked.set()
        await never.wait()
        return ""

    async with AsyncExitStack() as stack:
        pair = await pair_of(stack, hang)
        ours, receiver = pair.ours, pair.receiver
        giving = asyncio.create_task(ours.give(receiver, 0, 0, 0))
        await asked.wait()
        ours.call([])
        with pytest.raises(CoordinatorNotAvailableError):
            await giving


def test_a_gift_is_taken_or_refused(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(asyncio.wait_for(give(), TIMEOUT_S))
    assert "KeyError" in caplog.text, "a bug is logged, and told to the giver"


async def give() -> None:
    asked: list[tuple[int, int, int]] = []

    async def take_over(partition: int, epoch: int, end: int) -> str | None:
        asked.append((partition, epoch, end))
        if partition == 3:
            raise KeyError
        return None if partition == 1 else "not here"

    async with AsyncExitStack() as stack:
        ours, theirs, receiver, members, met = await pair_of(stack, take_over)
        await ours.give(receiver, 1, 7, 1_000)
        with pytest.raises(CoordinatorNotAvailableError, match="not here"):
            await ours.give(receiver, 2, 8, 1_001)
        with pytest.raises(CoordinatorNotAvailableError):
            await ours.give(receiver, 3, 9, 1_002)
        # None of them has ended the stream.
        assert [member.nonce for member in members.linked()] == [2]
        await ours.give(receiver, 1, 9, 1_003)
        assert asked == [(1, 7, 1_000), (2, 8, 1_001), (3, 9, 1_002), (1, 9, 1_003)]
        await theirs.close()
        while members.linked():
            await met.wait()
            met.clear()
        with pytest.raises(CoordinatorNotAvailableError, match="no stream"):
            await ours.give(receiver, 1, 9, 1_003)


def test_news_come_both_ways_and_a_foreign_coordinator_is_no_peer() -> None:
    asyncio.run(asyncio.wait_for(tell(), TIMEOUT_S))


async def tell() -> None:
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{dead_port()}"
        first = Member(nonce=1, address="127.0.0.1:1", owned={3: 4})
        second = Member(nonce=2, address=address, owned={5: 6}, ends={5: 70})
        heard, heard_met = Members(2, address), asyncio.Event()
        await serve(stack, peers_of(second, heard, refuse, heard_met), address)
        members, met = Members(1, first.address), asyncio.Event()
        ours = peers_of(first, members, refuse, met)
        stack.push_async_callback(ours.close)
        await linked(ours, members, met, address)
        assert members.linked() == [second]
        while heard.get(1) != first:
            await heard_met.wait()
            heard_met.clear()
        assert await ours.who_answers(address) == 2
        with pytest.raises(ConfigError, match="another coordinator answers"):
            await ours.check_own_address(address)
        assert await ours.who_answers(f"127.0.0.1:{dead_port()}") is None
        foreign = Peers(
            me=lambda: first,
            members=Members(1, first.address),
            journal_id="another",
            changed=lambda: None,
            take_over=refuse,
            topics=TopicKnowledge(),
        )
        stack.push_async_callback(foreign.close)
        foreign.call([address])
        await asyncio.sleep(0.5)
        assert foreign._members.linked() == []


def test_topics_ids_are_told_both_ways_and_when_they_change() -> None:
    asyncio.run(asyncio.wait_for(tell_of_topics(), TIMEOUT_S))


async def tell_of_topics() -> None:
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{dead_port()}"
        theirs, ours = TopicKnowledge(), TopicKnowledge()
        for n in range(TELL_MAX + 2):
            theirs.ids.note(f"t{n}", "former", 1)
        ours.ids.note("u", "x", 1)
        second, met = Member(nonce=2, address=address), asyncio.Event()
        peers = peers_of(second, Members(2, address), refuse, asyncio.Event(), theirs)
        await serve(stack, peers, address)
        members = Members(1, "127.0.0.1:1")
        caller = peers_of(Member(nonce=1, address="127.0.0.1:1"), members, refuse, met, ours)
        stack.push_async_callback(caller.close)
        await linked(caller, members, met, address)
        await until(lambda: len(ours.ids) == len(theirs.ids) == TELL_MAX + 3)
        [(told_ms, topic_id)] = ours.ids.of("t0")
        assert topic_id == "former"
        assert 1 <= told_ms < 1 + TIMEOUT_S * 1000
        theirs.ids.note("t0", "new", 2 * told_ms)
        theirs.ids.note("v", "y", 3)
        await until(lambda: bool(ours.ids.of("v")))


def test_what_a_stranger_tells_ends_no_coordinator(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(asyncio.wait_for(be_told_nonsense(), TIMEOUT_S))
    assert "peer_address_unusable address='a..b:9095'" in caplog.text


async def be_told_nonsense() -> None:
    async with AsyncExitStack() as stack:
        address = f"127.0.0.1:{dead_port()}"
        topics = TopicKnowledge()
        second, members = Member(nonce=2, address=address), Members(2, address)
        peers = peers_of(second, members, refuse, asyncio.Event(), topics)
        stack.push_async_callback(peers.close)
        await serve(stack, peers, address)
        link = links.Link(address)
        stack.push_async_callback(link.close)
        had = pb.HadName(topic_id="x", age_ms=2**64 - 1)
        named = pb.Named(topic="t", ids=[had])
        told = [pb.Peer(process_nonce=4, address=a) for a in ("a..b:9095", "a\0:1", "x")]
        news = pb.News(process_nonce=3, address="y", journal_id="j", peers=told, topics=[named])
        assert await link.read() is not None
        await link.write(news)
        await until(lambda: bool(topics.ids.of("t")))
        peers.call(members.addresses(0, ()))
        peers.call(["a..b:9095"])
        peers.tell()
        while (answer := await link.read()) is not None and not answer.topics:
            pass
        assert answer is not None


def test_trap_7_who_reaches_itself_is_no_peer_of_its_own() -> None:
    """It came back under another name, and calls the address of its former process."""
    asyncio.run(asyncio.wait_for(call_itself(), TIMEOUT_S))


async def call_itself() -> None:
    async with AsyncExitStack() as stack:
        former = f"127.0.0.1:{dead_port()}"
        me, met = Member(nonce=1, address="by-another-name:1"), asyncio.Event()
        members = Members(me.nonce, me.address)
        members.learn(2, former)
        ours = peers_of(me, members, refuse, met)
        await serve(stack, ours, former)
        stack.push_async_callback(ours.close)
        ours.call(members.addresses(0, [2]))
        while not members.dead(2, 0):
            await met.wait()
            met.clear()
        assert members.reached(0) == []
        assert members.addresses(0, [2]) == set(), "nor is it called again"
