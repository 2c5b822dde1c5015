"""confluent-kafka's calls: existing programs move over by changing an import."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException, Message, TopicPartition

from logtx.journal.errors import (
    ConfigError,
    OffsetsConflictError,
    TransactionAbortOnlyError,
    TransactionStateError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Place, Position
from logtx.journal.records.types import OffsetStep
from logtx.journal.state import State
from logtx.producer.producer import Producer

from ..conftest import MakeTopic
from .conftest import MakeProducer, ReadAll
from .fake import FakeCoordinators
from .test_faults import Source


def test_a_program_for_confluent_kafka(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    coordinators: FakeCoordinators,
    read_all: ReadAll,
) -> None:
    topic = make_topic()
    producer = make_producer()
    producer.init_transactions()
    producer.produce(topic, b"plain", headers={"h": b"1"}, partition=0)
    producer.flush()
    producer.begin_transaction()
    producer.produce(topic, value=b"in", key=b"k", partition=0)
    producer.poll(0)
    producer.commit_transaction()
    producer.begin_transaction()
    producer.produce(topic, b"not", partition=0)
    producer.abort_transaction()
    producer.produce(topic, b"plain again", partition=0)
    assert producer.flush(10) == 0
    assert len(producer) == 0
    found = [(m.value(), [n for n, _ in m.headers() or []]) for m in read_all(topic)]
    assert found == [
        (b"plain", ["h"]),
        (b"in", ["TxId"]),
        (b"not", ["TxId"]),
        (b"plain again", []),
    ]
    # Another may have been begun ahead of being asked for.
    states = [t.state for t in coordinators.transactions.values()]
    assert states[:2] == [State.COMMITTED, State.ABORTED]


def test_plain_records_have_their_callbacks(
    make_producer: MakeProducer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    producer = make_producer()
    seen: list[int] = []

    def on_delivery(error: object, message: Message) -> None:
        assert error is None
        seen.append(message.offset())

    for _ in range(3):
        producer.produce(topic, b"x", partition=0, on_delivery=on_delivery)
    producer.flush(10)
    assert seen == [0, 1, 2]


def test_a_plain_record_too_large_raises_as_there(
    make_producer: MakeProducer, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    producer = make_producer(message__max__bytes=2_000)
    with pytest.raises(KafkaException):
        producer.produce(topic, b"x" * 5_000)


def test_plain_records_wait_for_room(make_producer: MakeProducer, make_topic: MakeTopic) -> None:
    topic = make_topic()
    producer = make_producer(queue__buffering__max__messages=20)
    for _ in range(300):
        producer.produce(topic, b"x")
    assert producer.flush(10) == 0


def test_metadata(make_producer: MakeProducer, make_topic: MakeTopic, transport: str) -> None:
    topic = make_topic(partitions=3)
    producer = make_producer()
    if transport != "kafka":
        pytest.skip("a log in memory has no metadata, the mock's own number of partitions")
    assert len(producer.list_topics(topic, 10).topics[topic].partitions) == 3


@pytest.fixture
def producer(memory_log: MemoryLog, make_memory_producer: MakeProducer) -> Producer:
    memory_log.create_topic("t", partitions=1)
    return make_memory_producer()


@pytest.mark.parametrize("call", ["commit_transaction", "abort_transaction"])
def test_without_a_transaction(producer: Producer, call: str) -> None:
    with pytest.raises(TransactionStateError, match="begin_transaction"):
        getattr(producer, call)()
    with pytest.raises(TransactionStateError, match="begin_transaction"):
        producer.send_offsets_to_transaction([], "g")


def test_an_abort_only_transaction_takes_no_plain_records_instead(producer: Producer) -> None:
    assert producer.begin_transaction().txid
    with pytest.raises(TransactionAbortOnlyError, match="too large"):
        producer.produce("t", b"x" * 2_000_000)
    with pytest.raises(TransactionAbortOnlyError):
        producer.produce("t", b"x")
    with pytest.raises(TransactionAbortOnlyError):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.produce("t", b"plain")


def at(offset: int) -> list[TopicPartition]:
    return [TopicPartition("in", 0, offset)]


def test_plain_offsets_go_on_from_what_was_sent(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.committed["g"] = {("in", 0): Position.at(3)}
    for offset in (5, 8):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(at(offset), "g")
        producer.commit_transaction()
    assert coordinators.committed["g"]["in", 0].o2 == 8
    assert coordinators.count("fetch_offsets") == 1


def test_plain_offsets_are_asked_for_again_after_an_abort(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.send_offsets_to_transaction(at(5), "g")
        end()
    assert coordinators.committed["g"]["in", 0].o2 == 5
    assert coordinators.count("fetch_offsets") == 2


def test_plain_offsets_committed_by_somebody_else_conflict(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    producer.begin_transaction()
    producer.send_offsets_to_transaction(at(5), "g")
    coordinators.committed["g"] = {("in", 0): Position.at(4)}
    with pytest.raises(OffsetsConflictError):
        producer.commit_transaction()
    producer.abort_transaction()


def test_no_offset_is_refused(producer: Producer) -> None:
    producer.begin_transaction()
    with pytest.raises(ConfigError, match="no offset"):
        producer.send_offsets_to_transaction(at(-1001), "g")


def test_a_consumers_steps_must_agree_with_the_positions(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    steps = [OffsetStep("in", 0, None, Position(o1=2, o2=5))]
    producer.begin_transaction()
    producer.send_offsets_to_transaction(at(5), Source(steps))
    producer.commit_transaction()
    assert coordinators.committed["g"]["in", 0] == Position(o1=2, o2=5)
    producer.begin_transaction()
    later = [OffsetStep("in", 0, Place(5), Position.at(9))]
    with pytest.raises(ConfigError, match="up to 9"):
        producer.send_offsets_to_transaction(at(7), Source(later))
    producer.abort_transaction()
