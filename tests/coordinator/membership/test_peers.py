"""Streams between coordinators, without the journal partitions behind them."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import grpc
import pytest

from logtx.coordinator.membership import peers_pb2_grpc as pb_grpc
from logtx.coordinator.membership.balance import Member
from logtx.coordinator.membership.members import Members
from logtx.coordinator.membership.peers import Peers, TakeOver
from logtx.journal.errors import CoordinatorNotAvailableError

TIMEOUT_S = 10.0


async def refuse(_partition: int, _epoch: int, _end: int) -> str:
    return "not here"


def peers_of(me: Member, members: Members, take_over: TakeOver, met: asyncio.Event) -> Peers:
    return Peers(
        me=lambda: me, members=members, journal_id="j", changed=met.set, take_over=take_over
    )


def test_a_gift_ends_when_the_stream_to_its_receiver_is_closed() -> None:
    """The receiver is killed during a move: grpc cancels the call, but not the waiting task."""
    asyncio.run(asyncio.wait_for(give_to_one_that_goes_away(), TIMEOUT_S))


async def give_to_one_that_goes_away() -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def hang(_partition: int, _epoch: int, _end: int) -> str:
        asked.set()
        await never.wait()
        return ""

    async with AsyncExitStack() as stack:
        server = grpc.aio.server()
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        receiver, giver = Member(nonce=2, address=address), Member(nonce=1, address="127.0.0.1:1")
        theirs = peers_of(receiver, Members(2, address), hang, asyncio.Event())
        pb_grpc.add_PeersServicer_to_server(theirs, server)  # type: ignore[no-untyped-call]
        await server.start()
        stack.push_async_callback(server.stop, None)
        members, met = Members(1, giver.address), asyncio.Event()
        ours = peers_of(giver, members, refuse, met)
        stack.push_async_callback(ours.close)
        ours.call([address])
        while not members.linked():
            await met.wait()
            met.clear()
        giving = asyncio.create_task(ours.give(receiver, 0, 0, 0))
        await asked.wait()
        ours.call([])
        with pytest.raises(CoordinatorNotAvailableError):
            await giving


def test_trap_7_who_reaches_itself_is_no_peer_of_its_own() -> None:
    """It came back under another name, and calls the address of its former process."""
    asyncio.run(asyncio.wait_for(call_itself(), TIMEOUT_S))


async def call_itself() -> None:
    async with AsyncExitStack() as stack:
        server = grpc.aio.server()
        former = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        me, met = Member(nonce=1, address="by-another-name:1"), asyncio.Event()
        members = Members(me.nonce, me.address)
        members.learn(2, former)
        ours = peers_of(me, members, refuse, met)
        pb_grpc.add_PeersServicer_to_server(ours, server)  # type: ignore[no-untyped-call]
        await server.start()
        stack.push_async_callback(server.stop, None)
        stack.push_async_callback(ours.close)
        ours.call(members.addresses(0, [2]))
        while not members.dead(2, 0):
            await met.wait()
            met.clear()
        assert members.reached(0) == []
        assert members.addresses(0, [2]) == set(), "nor is it called again"
