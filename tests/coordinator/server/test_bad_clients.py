"""Clients that flood, go silent, or send what they must not: no other client is disturbed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logtx.coordinator.client.connection import Calls
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol.fields import NAME_MAX_BYTES, PROTOCOL_VERSION, TOPIC_MAX_BYTES
from logtx.coordinator.protocol.frames import MESSAGE_MAX_BYTES
from logtx.coordinator.protocol.open_pb2 import Open, OpenSession
from logtx.coordinator.protocol.requests import decode_request
from logtx.coordinator.runtime import pressure
from logtx.coordinator.server import streams, window
from logtx.coordinator.server.stream import PIPELINED_MAX, StreamLimits
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.errors import (
    ConfigError,
    CoordinatorBusyError,
    GroupBoundError,
    LogtxError,
    NotSupportedError,
    SessionClosedError,
    TooManyTransactionsError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC, journal_partition_of
from logtx.journal.txid import TxId

from ..streams import Frames, calls_to
from ..transport.served import message, raw_client, read_all

TIMEOUT_S = 60.0
"""A busy machine takes more than 15 s for the 20,000 requests of one test."""
PARTITIONS = 4
CALLS_MAX = 50


@pytest.fixture
def coordinator(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> Iterator[EmbeddedCoordinator]:
    """A coordinator with small limits."""
    monkeypatch.setattr(
        StreamLimits,
        "for_open_transactions",
        lambda per_producer: StreamLimits(
            requests_max=per_producer + PIPELINED_MAX, calls_max=CALLS_MAX
        ),
    )
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=PARTITIONS,
        limits=ShardConfig(max_open_transactions_per_producer=8, max_open_transactions=12),
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def address(coordinator: EmbeddedCoordinator) -> str:
    """Its address."""
    return coordinator.address


@pytest.fixture
def calls(address: str) -> Iterator[Calls]:
    """What asks it without a session."""
    with calls_to(address) as asking:
        yield asking


class RawStream:
    """A stream on which a test can send anything."""

    def __init__(self, address: str, *requests: pb.Request) -> None:
        self._frames = Frames(address)
        self._sent = 0
        self.send(*requests)

    def send(self, *requests: pb.Request) -> None:
        """Sends the requests in one message."""
        self._sent += 1
        self._frames.send(pb.ClientFrame(requests=requests))

    @property
    def taken(self) -> int:
        """Returns the number of messages that the transport took."""
        return self._sent - self._frames.waiting

    def read(self, count: int) -> list[pb.Reply]:
        """Reads until there are `count` replies."""
        replies: list[pb.Reply] = []
        while len(replies) < count:
            frame = self._frames.receive()
            assert frame is not None, "the coordinator ended the stream"
            replies.extend(frame.replies)
        return replies

    def is_ended(self) -> bool:
        """Waits for what comes next; returns whether that is the end."""
        return self._frames.receive() is None

    def close(self) -> None:
        """Ends the stream."""
        self._frames.close()


def connect(partition: int = 0, producer_id: str = "p") -> pb.Request:
    """A Connect."""
    wire = pb.Connect(
        version=PROTOCOL_VERSION, partition=partition, producer_id=producer_id, nonce=1
    )
    return pb.Request(request_id=0, connect=wire)


def begin(request_id: int) -> pb.Request:
    """A BEGIN."""
    return pb.Request(request_id=request_id, begin=pb.Begin(timeout_ms=60_000))


def commit(request_id: int, txid: bytes) -> pb.Request:
    """A commit without writes."""
    return pb.Request(request_id=request_id, end=pb.End(txid=txid))


def still_served(address: str, producer_id: str = "honest") -> None:
    """Checks that another producer can begin and commit."""
    stream = RawStream(address, connect(1, producer_id), begin(1))
    _, begun = stream.read(2)
    stream.send(commit(2, begun.began.txid))
    assert stream.read(1)[0].outcome.state == pb.Outcome.COMMITTING
    stream.close()


def test_too_many_transactions_are_refused_and_nothing_else(address: str) -> None:
    stream = RawStream(address, connect(), *(begin(n) for n in range(1, 11)))
    replies = {r.request_id: r for r in stream.read(11)}
    refused = [i for i, r in replies.items() if r.error.code == TooManyTransactionsError.code]
    assert refused == [9, 10]
    other = RawStream(address, connect(0, "q"), *(begin(n) for n in range(1, 6)))
    codes = [r.error.code for r in other.read(6)]
    assert codes == [0] * 5 + [TooManyTransactionsError.code], "12 in the journal partition"
    stream.send(commit(11, replies[1].began.txid), begin(9))
    assert {r.WhichOneof("result") for r in stream.read(2)} == {"outcome", "began"}
    still_served(address)


def test_a_client_that_reads_no_answers_is_not_read_either(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = watch_windows(monkeypatch)
    # The answer to each is an error that repeats the long name.
    nowhere = pb.Partitions(topic="x" * TOPIC_MAX_BYTES, partitions=[0])
    wanted = pb.AddPartitions(txid=TxId(0, 1, 1).to_bytes(), partitions=[nowhere])
    asked, batch = 20_000, 100
    stream = RawStream(address, connect())
    for first in range(1, asked, batch):
        numbers = range(first, first + batch)
        stream.send(*(pb.Request(request_id=n, add_partitions=wanted) for n in numbers))
    settled(lambda: stream.taken)
    assert stream.taken < asked // batch, "the transport holds the sender back"
    assert max(most) <= 8 + PIPELINED_MAX
    still_served(address)
    answered = {r.request_id for r in stream.read(asked + 1)}
    assert answered == set(range(asked + 1)), "and all is answered in the end"
    stream.close()


def test_a_slow_journal_slows_its_clients_and_loses_nothing(
    memory_log: MemoryLog, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pressure, "APPENDS_MAX", 100)
    memory_log.hold_appends(JOURNAL_TOPIC, 0)
    flood = [RawStream(address, connect(0, f"p{n}")) for n in range(400)]
    settled(lambda: memory_log.held_appends(JOURNAL_TOPIC, 0))
    held = memory_log.held_appends(JOURNAL_TOPIC, 0)
    still_served(address)
    memory_log.release_appends(JOURNAL_TOPIC, 0)
    for stream in flood:
        assert stream.read(1)[0].WhichOneof("result") == "connected"
        stream.close()
    assert held <= 101, "one more for the command that filled it"


def test_calls_beyond_a_number_are_refused(
    memory_log: MemoryLog, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pressure, "APPENDS_MAX", 1)
    memory_log.hold_appends(JOURNAL_TOPIC, 0)
    bind = pb.BindGroup(group=named_for(0), transaction_group="g")
    request = pb.CallRequest(partition=0, request=pb.Request(bind_group=bind))
    count = CALLS_MAX + 20
    with ThreadPoolExecutor(count) as threads:
        asked = [threads.submit(calls.call, request, TIMEOUT_S) for _ in range(count)]
        deadline = time.monotonic() + TIMEOUT_S
        while sum(each.done() for each in asked) < 20:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        refused = [each for each in asked if each.done()]
        assert {each.result().error.code for each in refused} == {CoordinatorBusyError.code}
        memory_log.release_appends(JOURNAL_TOPIC, 0)
        bound = [each.result().binding.transaction_group for each in asked if each not in refused]
    assert bound == ["g"] * CALLS_MAX


def test_a_stream_that_says_nothing_is_closed(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "CONNECT_TIMEOUT_S", 0.2)
    silent = RawStream(address)
    (reply,) = silent.read(1)
    assert reply.error.code == SessionClosedError.code
    assert "Connect" in reply.error.message
    assert silent.is_ended()


def test_wrong_order_is_answered_and_the_session_goes_on(address: str) -> None:
    stream = RawStream(address, connect())
    assert stream.read(1)[0].WhichOneof("result") == "connected"
    stream.send()
    stream.send(connect(), pb.Request(request_id=7), commit(8, b"short"))
    answers = [(r.request_id, r.error.code) for r in stream.read(3)]
    assert answers == [(n, NotSupportedError.code) for n in (0, 7, 8)]
    stream.send(begin(1))
    assert stream.read(1)[0].WhichOneof("result") == "began"


def test_a_name_that_is_too_long_is_refused_and_the_session_goes_on(address: str) -> None:
    refused = RawStream(address, connect(0, "p" * 100_000))
    assert refused.read(1)[0].error.code == ConfigError.code
    stream = RawStream(address, connect(0, "é" * (NAME_MAX_BYTES // 2)))
    assert stream.read(1)[0].WhichOneof("result") == "connected"
    nowhere = pb.Partitions(topic="t" * (TOPIC_MAX_BYTES + 1), partitions=[0])
    long_begin = pb.Request(request_id=1, begin=pb.Begin(timeout_ms=9, partitions=[nowhere]))
    stream.send(long_begin, begin(2))
    replies = {r.request_id: r for r in stream.read(2)}
    assert replies[1].error.code == ConfigError.code
    assert len(replies[1].error.message) < 200, "and is not sent back whole"
    assert replies[2].WhichOneof("result") == "began"


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (message(b"\xff\xff\xff"), b"a message is no ClientFrame"),
        (
            b"\x01" + (MESSAGE_MAX_BYTES + 1).to_bytes(3),
            f"of {MESSAGE_MAX_BYTES + 1} bytes, and {MESSAGE_MAX_BYTES} are allowed".encode(),
        ),
    ],
    ids=["malformed", "oversized"],
)
def test_a_message_that_is_none_ends_its_own_stream_alone(
    address: str, raw: bytes, told: bytes
) -> None:
    honest = RawStream(address, connect(2, "bystander"))
    honest.read(1)
    with raw_client(address) as client:
        client.sendall(message(Open(session=OpenSession()).SerializeToString()))
        client.sendall(message(pb.ClientFrame(requests=[connect()]).SerializeToString()))
        client.sendall(raw)
        assert told in read_all(client)
    honest.send(begin(1))
    assert honest.read(1)[0].WhichOneof("result") == "began"
    still_served(address)


def test_offsets_of_a_group_that_is_bound_elsewhere_are_refused(address: str, calls: Calls) -> None:
    """Trap 28: not even a client that never asked for the binding can commit to a second IOV."""
    home, elsewhere = "default", named_for(0)
    here = journal_partition_of(home, PARTITIONS)
    assert here != 0
    stream = RawStream(address, connect(here), begin(1))
    txid = stream.read(2)[1].began.txid
    for number, group, bind_to, code in (
        (2, "free", None, GroupBoundError.code),
        (3, "theirs", elsewhere, GroupBoundError.code),
        (4, "ours", home, 0),
        # It was bound meanwhile: that it once was not must not be remembered.
        (5, "free", home, 0),
    ):
        if bind_to is not None:
            bind = pb.BindGroup(group=group, transaction_group=bind_to)
            partition = journal_partition_of(group, PARTITIONS)
            call = pb.CallRequest(partition=partition, request=pb.Request(bind_group=bind))
            assert calls.call(call, TIMEOUT_S).binding.transaction_group == bind_to
        step = pb.OffsetStep(to=pb.Position(topic="in", partition=0, o1=1, o2=1))
        wanted = pb.AddOffsets(txid=txid, group=group, steps=[step])
        stream.send(pb.Request(request_id=number, add_offsets=wanted))
        (reply,) = stream.read(1)
        assert (reply.request_id, reply.error.code) == (number, code), reply
        if bind_to == elsewhere:
            assert elsewhere in reply.error.message


def test_a_claim_of_a_group_that_is_bound_elsewhere_is_refused(calls: Calls) -> None:
    """Trap 28: its answer would tell another IOV than the one that the group commits."""
    here, there = named_for(0), named_for(1)

    def call(partition: int, request: pb.Request) -> pb.Reply:
        return calls.call(pb.CallRequest(partition=partition, request=request), TIMEOUT_S)

    claim = pb.Request(
        claim_offsets=pb.ClaimOffsets(
            group="g", claimant=1, partitions=[pb.Partitions(topic="in", partitions=[0])]
        )
    )
    assert call(0, claim).error.code == GroupBoundError.code, "not bound yet"
    bind = pb.Request(bind_group=pb.BindGroup(group="g", transaction_group=there))
    assert call(journal_partition_of("g", PARTITIONS), bind).binding.transaction_group == there
    refused = call(0, claim).error
    assert refused.code == GroupBoundError.code
    assert there in refused.message
    assert here not in refused.message
    assert call(1, claim).WhichOneof("result") == "claimed"


def test_finding_17_claims_do_not_wait_for_the_questions_of_each_other(calls: Calls) -> None:
    here = named_for(0)
    claims = []
    for number in range(CALLS_MAX):
        group = f"g{number}"
        bind = pb.Request(bind_group=pb.BindGroup(group=group, transaction_group=here))
        home = journal_partition_of(group, PARTITIONS)
        calls.call(pb.CallRequest(partition=home, request=bind), TIMEOUT_S)
        named = pb.ClaimOffsets(
            group=group, claimant=1, partitions=[pb.Partitions(topic="in", partitions=[0])]
        )
        claims.append(pb.CallRequest(partition=0, request=pb.Request(claim_offsets=named)))
    with ThreadPoolExecutor(CALLS_MAX) as threads:
        asked = [threads.submit(calls.call, claim, TIMEOUT_S) for claim in claims]
    assert {each.result().WhichOneof("result") for each in asked} == {"claimed"}


def test_finding_23_a_binding_is_taken_in_its_groups_home_only(calls: Calls) -> None:
    """Trap 28: with two homes a group could have two bindings."""
    home = journal_partition_of("g", PARTITIONS)
    bind = pb.Request(bind_group=pb.BindGroup(group="g", transaction_group="t"))
    elsewhere = pb.CallRequest(partition=(home + 1) % PARTITIONS, request=bind)
    refused = calls.call(elsewhere, TIMEOUT_S).error
    assert refused.code == ConfigError.code
    assert f"home in journal partition {home}" in refused.message


@given(st.binary(max_size=200))
def test_any_bytes_decode_or_are_refused(raw: bytes) -> None:
    request = pb.Request()
    try:
        request.ParseFromString(raw)
    except Exception:  # noqa: BLE001 - protobuf's own, which ends the connection
        return
    try:
        decode_request(request, None)
    except (LogtxError, ValueError):
        return


def named_for(partition: int) -> str:
    """Returns a name whose home is this journal partition."""
    names = (f"group-{n}" for n in range(1_000))
    return next(n for n in names if journal_partition_of(n, PARTITIONS) == partition)


def watch_windows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets, at each new request, the number its stream has under way."""
    seen: list[int] = []
    enter = window.Window.enter

    async def watched(self: window.Window, size: int) -> None:
        await enter(self, size)
        seen.append(self.requests)

    monkeypatch.setattr(window.Window, "enter", watched)
    return seen


def settled(count: Callable[[], int]) -> None:
    """Waits until a number has not changed for a while."""
    deadline, last, since = time.monotonic() + TIMEOUT_S, -1, 0.0
    while True:
        now = count()
        if now != last:
            last, since = now, time.monotonic()
        if last > 0 and time.monotonic() - since > 0.5:
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)
