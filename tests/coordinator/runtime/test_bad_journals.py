"""A journal that can't be read as it is: the coordinator says why, and nothing else suffers."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import replace

import pytest

from logtx.coordinator.client.queries import CoordinatorQueries
from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.membership.peers import Peers
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.service import Coordinator, CoordinatorConfig
from logtx.journal.errors import (
    CoordinatorLoadingError,
    CorruptRecordError,
    JournalTopicError,
    LogtxError,
    UnknownRecordError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.codec import encode_entry
from logtx.journal.txid import TxId

from ..core.test_replica import SENSELESS, journal
from ..server.test_bad_clients import RawStream, connect, still_served
from ..streams import calls_to


def config(log: MemoryLog, partitions: int = 2) -> CoordinatorConfig:
    """Returns a coordinator's settings; it creates the journal with `partitions`, if it must."""
    return CoordinatorConfig(
        bootstrap_servers=log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=partitions,
    )


def start(log: MemoryLog, partitions: int = 2) -> EmbeddedCoordinator:
    """Returns such a coordinator in a thread of its own, not started."""
    return EmbeddedCoordinator(config(log, partitions))


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", CorruptRecordError),
        (b"\x02\x03", CorruptRecordError),
        (b"\x02\x63rest", UnknownRecordError),
        (b"\x63\x01rest", UnknownRecordError),
    ],
    ids=["empty", "torn", "unknown type", "unknown version"],
)
def test_a_partition_whose_record_does_not_decode_stops_alone(
    memory_log: MemoryLog, raw: bytes, error: type[LogtxError]
) -> None:
    with start(memory_log):
        pass
    offset = memory_log.append_directly(JOURNAL_TOPIC, 0, value=raw)
    with start(memory_log) as running:
        still_served(running.address)
        (reply,) = RawStream(running.address, connect(0)).read(1)
    assert reply.error.code == error.code, reply
    for said in (f"{JOURNAL_TOPIC}-0", f"offset {offset}"):
        assert said in reply.error.message


def test_a_journal_of_which_nothing_can_be_read_is_one_error(memory_log: MemoryLog) -> None:
    with start(memory_log, 1):
        pass
    memory_log.append_directly(JOURNAL_TOPIC, 0, value=b"\x02\x63")
    with pytest.raises(UnknownRecordError):
        start(memory_log).start()


def test_a_changed_partition_count_is_refused_and_both_are_named(memory_log: MemoryLog) -> None:
    with start(memory_log, 2):
        pass
    memory_log.add_partitions(JOURNAL_TOPIC, 4)
    with pytest.raises(JournalTopicError, match=r"4.*2|2.*4"):
        start(memory_log).start()


def test_nobody_begins_in_a_partition_that_was_added(memory_log: MemoryLog) -> None:
    with start(memory_log, 1):
        pass
    memory_log.add_partitions(JOURNAL_TOPIC, 2)
    found: list[int] = []

    async def ask_all_along() -> None:
        log = MemoryLog.named(memory_log.bootstrap_servers.removeprefix("memory://"))
        coordinator = Coordinator(config(memory_log), log)
        await coordinator.start()
        with calls_to(coordinator.address) as calls:
            bind = pb.BindGroup(group="g", transaction_group="g")
            call = pb.CallRequest(partition=1, request=pb.Request(request_id=1, bind_group=bind))
            while JournalTopicError.code not in found:
                reply = await asyncio.to_thread(calls.call, call, 5)
                found.append(reply.error.code)
        with pytest.raises(JournalTopicError):
            await coordinator.wait_serving()
        await coordinator.stop()

    asyncio.run(asyncio.wait_for(ask_all_along(), 30))
    assert set(found) <= {CoordinatorLoadingError.code, JournalTopicError.code, 11}


def test_a_client_of_a_journal_that_grew_is_refused(memory_log: MemoryLog) -> None:
    # If the coordinator sees 2 partitions and the client 3, names have two homes.
    with start(memory_log, 2):
        memory_log.add_partitions(JOURNAL_TOPIC, 3)
        client = CoordinatorClient(memory_log, SessionOptions(producer_id="p", timeout_s=5))
        with pytest.raises(JournalTopicError, match="3 partitions for the client and 2 for"):
            client.connect()
        queries = CoordinatorQueries(memory_log, timeout_s=5)
        with pytest.raises(JournalTopicError, match="must never change"):
            queries.outcome(TxId(0, 1, 2))
        queries.close()


def test_one_that_has_just_started_does_not_count_the_journal_yet(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The coordinator listens already, to check the address that it advertises. If it told a client
    # of a journal without partitions, that client would never come back.
    with start(memory_log, 2):
        pass

    async def ask_at_the_start() -> None:
        listens, asked = asyncio.Event(), asyncio.Event()

        async def wait(_peers: Peers, _address: str) -> None:
            listens.set()
            await asked.wait()

        monkeypatch.setattr(Peers, "check_own_address", wait)
        log = MemoryLog.named(memory_log.bootstrap_servers.removeprefix("memory://"))
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        settings = replace(config(memory_log), listen=address, advertised=address)
        coordinator = Coordinator(settings, log)
        starting = asyncio.ensure_future(coordinator.start())
        await listens.wait()
        with calls_to(address) as calls:
            bind = pb.Request(bind_group=pb.BindGroup(group="g"))
            call = pb.CallRequest(partition=1, partition_count=2, request=bind)
            reply = await asyncio.to_thread(calls.call, call, 10)
            assert reply.error.code == CoordinatorLoadingError.code
        (reply,) = await asyncio.to_thread(RawStream(address, connect(1)).read, 1)
        assert reply.error.code == CoordinatorLoadingError.code
        asked.set()
        await starting
        await coordinator.wait_serving()
        await coordinator.stop()

    asyncio.run(asyncio.wait_for(ask_at_the_start(), 30))


def test_a_senseless_record_stops_its_partition_alone(memory_log: MemoryLog) -> None:
    with start(memory_log):
        pass
    memory_log.truncate(JOURNAL_TOPIC, 0, 0)
    for entry in journal(SENSELESS):
        memory_log.append_directly(JOURNAL_TOPIC, 0, encode_entry(entry))
    with start(memory_log) as running:
        still_served(running.address)
        (reply,) = RawStream(running.address, connect(0)).read(1)
    assert reply.error.code == CorruptRecordError.code, reply
    assert "at offset 2" in reply.error.message
