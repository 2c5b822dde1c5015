"""Branches: many writers, one transaction, and only those that the owner accepted count."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import KafkaError, KafkaException

from logtx.journal.control import BranchRange, DataControl, decode_control
from logtx.journal.errors import (
    BrokerError,
    ConfigError,
    LogtxError,
    RequestTimedOutError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionStateError,
)
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.sidecar import sidecar_of
from logtx.producer.branch import Branch, Branches
from logtx.producer.core.summary import BranchSummary
from logtx.producer.sender_thread import SERVE_EVERY

from ..conftest import MakeTopic
from ..waiting import eventually
from .conftest import MakeProducer, ReadAll
from .fake import FakeCoordinators

Join = Callable[..., Branch]


@pytest.fixture
def join(log: Log, coordinators: FakeCoordinators) -> Iterator[Join]:
    """Join as another process would, with the log at hand."""
    joined: list[Branch] = []

    def make(token: str, **settings: object) -> Branch:
        config = {name.replace("__", "."): value for name, value in settings.items()}
        joined.append(Branch.join(config, token, log=log, coordinators=coordinators))
        return joined[-1]

    yield make
    for branch in joined:
        branch.close()


def test_several_writers_in_one_transaction(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    coordinators: FakeCoordinators,
    join: Join,
    read_all: ReadAll,
) -> None:
    topic = make_topic()
    txn = make_producer().begin_transaction()
    txn.produce(topic, b"own", partition=0)
    token = txn.branch_token()
    summaries = []
    for name in (b"one", b"two"):
        branch = join(token)
        for _ in range(3):
            branch.produce(topic, name, partition=0)
        summaries.append(BranchSummary.from_bytes(branch.finish().to_bytes()))
    stray = join(token)
    stray.produce(topic, b"stray", partition=0)
    stray.finish()
    for summary in summaries:
        txn.accept(summary)
    txn.commit()
    (written,) = coordinators.transactions[txn.txid].writes.values()
    assert {r.branch: r.count for r in written} == {
        0: 1,
        summaries[0].branch: 3,
        summaries[1].branch: 3,
    }
    assert summaries[0].branch != summaries[1].branch
    for message in read_all(topic):
        headers = dict(message.headers())
        assert headers["TxId"] == txn.txid.to_bytes()
        control = decode_control(headers["TxCtl"]) if "TxCtl" in headers else DataControl()
        assert isinstance(control, DataControl)
        expected = {b"own": 0, b"one": summaries[0].branch, b"two": summaries[1].branch}
        if message.value() in expected:
            assert control.branch == expected[message.value()]


def test_a_branch_of_the_same_producer(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    topic = make_topic()
    with make_producer().begin_transaction() as txn:
        txn.produce(topic, b"own", partition=0)
        kept, dropped = txn.branch(), txn.branch()
        kept.produce(topic, b"kept", partition=0, headers={"h": b"1"})
        dropped.produce(topic, b"dropped", partition=0)
        txn.accept(kept.finish())
    (written,) = coordinators.transactions[txn.txid].writes.values()
    assert [r.branch for r in written] == [0, kept.tally.branch]


def test_a_finished_branch_takes_no_more(
    make_producer: MakeProducer, make_topic: MakeTopic, join: Join
) -> None:
    topic = make_topic()
    txn = make_producer().begin_transaction()
    branch = join(txn.branch_token())
    branch.produce(topic, b"x", partition=0)
    summary = branch.finish()
    assert branch.finish() == summary
    with pytest.raises(TransactionStateError):
        branch.produce(topic, b"late")
    txn.accept(summary)
    txn.accept(summary)
    txn.commit()


def test_an_empty_branch(make_producer: MakeProducer, join: Join) -> None:
    txn = make_producer().begin_transaction()
    with join(txn.branch_token()) as branch:
        summary = branch.finish()
    assert summary.writes == {}
    txn.accept(summary)
    txn.commit()


def test_a_joined_branch_registers_its_partitions(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    coordinators: FakeCoordinators,
    join: Join,
) -> None:
    topic = make_topic(partitions=2)
    txn = make_producer().begin_transaction()
    branch = join(txn.branch_token(), partition__registration__delay__ms=20)
    branch.produce(topic, b"x", partition=1)
    eventually(lambda: coordinators.transactions[txn.txid].partitions == {(topic, 1)})
    txn.abort()


def test_not_a_token(join: Join) -> None:
    with pytest.raises(ConfigError, match="branch_token"):
        join("3-9f3ac1d2e4b7-17042")


# Faults: on the log in memory.


@pytest.fixture
def memory_join(memory_log: MemoryLog, coordinators: FakeCoordinators) -> Iterator[Join]:
    yield from join.__wrapped__(memory_log, coordinators)  # type: ignore[attr-defined]


def test_a_failed_record_fails_the_branch_and_not_the_transaction(
    memory_log: MemoryLog,
    make_memory_producer: MakeProducer,
    coordinators: FakeCoordinators,
    memory_join: Join,
) -> None:
    memory_log.create_topic("t", partitions=1)
    txn = make_memory_producer().begin_transaction()
    first = memory_join(txn.branch_token())
    first.produce("t", b"one")
    memory_log.fail_appends("t", 0, KafkaError.INVALID_RECORD)
    first.produce("t", b"lost")
    first.produce("t", b"three")
    with pytest.raises(BrokerError, match="another"):
        first.finish()
    second = memory_join(txn.branch_token())
    second.produce("t", b"again")
    txn.accept(second.finish())
    txn.commit()
    assert coordinators.transactions[txn.txid].writes == {
        ("t", 0): (BranchRange(second.tally.branch, 2, 2, 1),)
    }


@pytest.mark.parametrize("what", ["a refusal", "the end of the transaction"])
def test_finish_returns_again_what_it_returned(
    make_producer: MakeProducer, make_topic: MakeTopic, join: Join, what: str
) -> None:
    topic = make_topic()
    txn = make_producer().begin_transaction()
    branch = join(txn.branch_token())
    branch.produce(topic, b"v", partition=0)
    summary = branch.finish()
    if what == "a refusal":
        branch.tally._floors.refusals.note((topic, 0))
    else:
        branch.fail(TransactionCommittedError("it has ended"))
    assert branch.finish() is summary
    branch.close()
    assert branch.finish(0) is summary


def test_finish_is_bounded(
    memory_log: MemoryLog, make_memory_producer: MakeProducer, memory_join: Join
) -> None:
    memory_log.create_topic("t", partitions=1)
    memory_log.hold_appends("t", 0)
    branch = memory_join(make_memory_producer().begin_transaction().branch_token())
    branch.produce("t", b"held")
    with pytest.raises(RequestTimedOutError):
        branch.finish(timeout=0.05)
    memory_log.release_appends("t", 0)
    assert len(branch.finish(timeout=5).writes) == 1


def test_a_branch_learns_that_its_transaction_ended(
    memory_log: MemoryLog,
    make_memory_producer: MakeProducer,
    memory_join: Join,
) -> None:
    memory_log.create_topic("t", partitions=1)
    txn = make_memory_producer().begin_transaction()
    branch = memory_join(txn.branch_token(), partition__registration__delay__ms=10)
    txn.abort()
    branch.produce("t", b"x")

    def refused() -> bool:
        try:
            branch.produce("t", b"more")
        except TransactionAbortedError:
            return True
        return False

    eventually(refused)
    with pytest.raises(TransactionAbortedError):
        branch.finish()


def test_an_unreachable_coordinator_does_not_stop_a_branch(
    memory_log: MemoryLog,
    make_memory_producer: MakeProducer,
    coordinators: FakeCoordinators,
    memory_join: Join,
) -> None:
    memory_log.create_topic("t", partitions=1)
    txn = make_memory_producer().begin_transaction()
    branch = memory_join(txn.branch_token(), partition__registration__delay__ms=10)
    coordinators.reachable = False
    branch.produce("t", b"x")
    eventually(lambda: coordinators.count("add_partitions") > 2)
    coordinators.reachable = True
    eventually(lambda: coordinators.transactions[txn.txid].partitions == {("t", 0)})
    txn.accept(branch.finish())
    txn.commit()


def test_branches_of_several_transactions_share_a_producer(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    log: Log,
    coordinators: FakeCoordinators,
) -> None:
    topic = make_topic()
    owner = make_producer()
    branches = Branches({}, log=log, coordinators=coordinators)
    try:
        for records in (2, 3):
            txn = owner.begin_transaction()
            with branches.join(txn.branch_token()) as branch, branches.join(txn.branch_token()):
                for _ in range(records):
                    branch.produce(topic, b"x", partition=0)
                summary = branch.finish()
            txn.accept(summary)
            txn.commit()
            (written,) = coordinators.transactions[txn.txid].writes.values()
            assert [r.count for r in written] == [records]
        with pytest.raises(ConfigError):
            branches.join("no token")
    finally:
        branches.close()


def test_columns_are_the_records_of_their_rows(
    make_producer: MakeProducer, make_topic: MakeTopic, join: Join, read_all: ReadAll
) -> None:
    topic, count = make_topic(), 2 * SERVE_EVERY + 10
    txn = make_producer().begin_transaction()
    branch = join(txn.branch_token())
    values = [b"%d" % number for number in range(count)]
    keys = [None if number % 2 else "key" for number in range(count)]
    branch.produce_columns(topic, values, keys, [0] * count, range(1, count + 1))
    branch.produce_columns(topic, [], [], [], [])
    (written,) = branch.finish().writes.values()
    assert written.count == count
    found = read_all(topic)
    assert [m.value() for m in found[:count]] == values
    assert [m.key() for m in found[:count]] == [k and k.encode() for k in keys]
    assert [m.timestamp()[1] for m in found[:count]] == list(range(1, count + 1))
    with pytest.raises(TransactionStateError):
        branch.produce_columns(topic, [b"late"], [None], [0], [0])
    assert branch.tally.settled


@pytest.mark.parametrize("full_at", [{0}, {1, 2}, {SERVE_EVERY - 1, SERVE_EVERY, 300}])
def test_columns_wait_for_room(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    join: Join,
    read_all: ReadAll,
    full_at: set[int],
) -> None:
    topic, count = make_topic(), SERVE_EVERY + 100
    branch = join(make_producer().begin_transaction().branch_token())
    send, calls = branch._send, []

    def often_full(*record: object) -> None:
        calls.append(record)
        if len(calls) - 1 in full_at:
            raise BufferError("full")
        send(*record)  # type: ignore[arg-type]

    branch._send, branch._watch = often_full, None  # All records go through it.
    values = [b"%d" % number for number in range(count)]
    branch.produce_columns(topic, values, [None] * count, [0] * count, [0] * count)
    (written,) = branch.finish().writes.values()
    assert (written.count, len(calls)) == (count, count + len(full_at))
    assert [m.value() for m in read_all(topic)[:count]] == values


@pytest.mark.parametrize("bad", [0, 5, SERVE_EVERY + 5])
def test_columns_end_at_a_record_that_is_not_taken(
    make_producer: MakeProducer, make_topic: MakeTopic, join: Join, bad: int
) -> None:
    topic, count = make_topic(), SERVE_EVERY + 20
    branch = join(make_producer().begin_transaction().branch_token())
    values: list[object] = [b"x"] * count
    values[bad] = 1.5
    with pytest.raises(TypeError):
        branch.produce_columns(topic, values, [None] * count, [0] * count, [0] * count)  # type: ignore[arg-type]
    assert sum(r.count for r in branch.finish().writes.values()) == bad


@pytest.mark.parametrize("size", [None, 0, 100])
def test_columns_for_a_sidecar_are_refused_and_not_awaited(
    make_producer: MakeProducer, make_topic: MakeTopic, join: Join, size: int | None
) -> None:
    # Trap 136.
    settings = {} if size is None else {"transaction__sidecar__min__bytes": size}
    branch = join(make_producer().begin_transaction().branch_token(), **settings)
    with pytest.raises(ConfigError, match="is the sidecar of"):
        branch.produce_columns(sidecar_of(make_topic()), [b"x"] * 9, [None] * 9, [0] * 9, [0] * 9)
    assert branch.finish(5).writes == {}


@pytest.mark.parametrize("full_at", [{3}, {4}, {5, 6}])
def test_columns_that_go_over_to_the_sidecar_wait_for_room(
    log: Log,
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    join: Join,
    read_all: ReadAll,
    full_at: set[int],
) -> None:
    topic = make_topic()
    log.create_topic(sidecar_of(topic), partitions=1)
    size = {"transaction__sidecar__min__bytes": 10}
    branch = join(make_producer().begin_transaction().branch_token(), **size)
    send, calls = branch._send, []

    def often_full(*record: object) -> None:
        calls.append(record)
        if len(calls) - 1 in full_at:
            raise BufferError("full")
        send(*record)  # type: ignore[arg-type]

    branch._send = often_full
    values = [b"%02d" % number for number in range(12)]
    branch.produce_columns(topic, values, [None] * 12, [0] * 12, [0] * 12)
    branch.produce(topic, b"", partition=0)
    written = branch.finish().writes
    assert {key: r.count for key, r in written.items()} == {
        (topic, 0): 5,
        (sidecar_of(topic), 0): 8,
    }
    found = [*read_all(topic)[:5], *read_all(sidecar_of(topic))[:8]]
    assert [m.value() or b"" for m in found] == [*values, b""]


@pytest.mark.parametrize(("size", "here"), [(-1, 5), (0, 0), (1, 1), (4, 4), (5, 5)])
def test_columns_go_where_single_records_would(
    log: Log, make_producer: MakeProducer, make_topic: MakeTopic, join: Join, size: int, here: int
) -> None:
    topic = make_topic()
    log.create_topic(sidecar_of(topic), partitions=1)
    token = make_producer().begin_transaction().branch_token()
    columns, single = (join(token, transaction__sidecar__min__bytes=size) for _ in range(2))
    columns.produce_columns(topic, [b"x"] * 5, [None] * 5, [0] * 5, [0] * 5)
    for _ in range(5):
        single.produce(topic, b"x", partition=0)
    due = {(topic, 0): here, (sidecar_of(topic), 0): 5 - here}
    for branch in (columns, single):
        written = {key: r.count for key, r in branch.finish().writes.items()}
        assert written == {key: count for key, count in due.items() if count}


def test_columns_stop_at_a_record_that_librdkafka_refuses(
    make_producer: MakeProducer, make_topic: MakeTopic, join: Join
) -> None:
    branch = join(make_producer().begin_transaction().branch_token())
    send, calls = branch._send, []

    def refuse(*record: object) -> None:
        calls.append(record)
        if len(calls) == 4:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "too large"))
        send(*record)  # type: ignore[arg-type]

    branch._send = refuse
    with pytest.raises(LogtxError, match="too large"):
        branch.produce_columns(make_topic(), [b"x"] * 9, [None] * 9, [0] * 9, [0] * 9)
    assert len(calls) == 4
    with pytest.raises(BrokerError, match="too large"):
        branch.finish()
    eventually(lambda: branch.tally.settled)
