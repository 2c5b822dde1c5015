"""confluent-kafka's calls: existing programs move over by changing an import."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.position_store import Taken
from logtx.journal.control import TopicPartition as Key
from logtx.journal.errors import (
    ConfigError,
    CoordinatorNotAvailableError,
    LogtxError,
    OffsetsConflictError,
    QueueFullError,
    RequestTimedOutError,
    RetriableError,
    TransactionAbortOnlyError,
    TransactionStateError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Place, Position
from logtx.journal.state import State
from logtx.producer.batch import produce_batch
from logtx.producer.producer import Producer

from ..conftest import MakeTopic
from ..consumer.logs import Transactions, read
from .conftest import MakeProducer, ReadAll, read_topic
from .fake import FakeCoordinators


@pytest.mark.parametrize("topic", [None, b"t"])
def test_a_topic_of_another_type_is_refused_and_costs_nothing(
    topic: Any, make_producer: MakeProducer, make_topic: MakeTopic, read_all: ReadAll
) -> None:
    name = make_topic()
    with make_producer().begin_transaction() as txn:
        with pytest.raises(TypeError, match=r"^topic must be a str, not "):
            txn.produce(topic, b"v")
        txn.produce(name, b"kept", partition=0)
    assert [message.value() for message in read_all(name)] == [b"kept"]


def test_a_program_for_confluent_kafka(
    make_producer: MakeProducer,
    make_topic: MakeTopic,
    coordinators: FakeCoordinators,
    read_all: ReadAll,
) -> None:
    topic = make_topic()
    producer = make_producer()
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


def test_a_transaction_beside_the_current_one_takes_nothing_of_it(
    make_producer: MakeProducer, make_topic: MakeTopic, coordinators: FakeCoordinators
) -> None:
    """Trap 130: a queue's consumer writes dead letters between begin and commit."""
    topic = make_topic()
    producer = make_producer()
    producer.begin_transaction()
    producer.produce(topic, b"in", partition=0)
    beside = producer.begin_transaction(current=False)
    beside.produce(topic, b"beside", partition=0)
    producer.produce(topic, b"in, too", partition=0)
    txid = producer.commit_transaction().txid
    assert beside.is_open
    assert beside.abort().state.aborts
    assert coordinators.transactions[txid].state is State.COMMITTED
    (written,) = coordinators.transactions[txid].writes.values()
    assert sum(each.count for each in written) == 2


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


def test_a_partition_of_which_nothing_was_delivered_does_not_count(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    producer.begin_transaction()
    producer.send_offsets_to_transaction(at(-1001), "g")
    producer.commit_transaction()
    assert "g" not in coordinators.committed


def test_finding_5_a_place_within_a_transaction_is_sent_whole(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    place = Position(o1=2, o2=5, o3=4)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition("in", 0, place.o2, place.to_metadata())], "g"
    )
    producer.commit_transaction()
    assert coordinators.committed["g"]["in", 0].place == place.place


@pytest.fixture
def consumer(
    producer: Producer, coordinators: FakeCoordinators, memory_log: MemoryLog
) -> Iterator[Consumer]:
    """Has got two of three records of a transaction, and its claims are answered."""
    memory_log.create_topic("in", partitions=1)
    written = Transactions(memory_log)
    written.append("in", [b"p"])
    written.transaction("in", [b"a", b"b", b"c"])
    opened = Consumer(
        {"group.id": "g", "auto.offset.reset": "earliest", "offsets.storage": "transactions"},
        log=memory_log,
    )
    opened._positions.store = Claims(coordinators)  # type: ignore[assignment]
    opened.assign([TopicPartition("in", 0)])
    assert read(opened, 3) == [b"p", b"a", b"b"]
    producer.begin_transaction()
    yield opened
    opened.close()


class Claims:
    """Committed positions, of a coordinator that knows no claims."""

    def __init__(self, coordinators: FakeCoordinators) -> None:
        self._coordinators = coordinators

    def take(self, keys: Sequence[Key]) -> Taken:
        """Returns committed positions."""
        del keys
        return Taken(dict(self._coordinators.committed.get("g", {})), None)

    def close(self) -> None:
        """Does nothing."""


@pytest.mark.parametrize("source", ["consumer", "metadata"])
def test_a_consumers_offsets_are_sent_in_the_forms_of_confluent_programs(
    source: str, producer: Producer, consumer: Consumer, coordinators: FakeCoordinators
) -> None:
    given = consumer if source == "consumer" else consumer.consumer_group_metadata()
    producer.send_offsets_to_transaction(consumer.position(consumer.assignment()), given)
    producer.commit_transaction()
    assert coordinators.committed["g"]["in", 0].place == Place(4, 2)
    [last] = consumer.consume(1, 1)
    producer.begin_transaction()
    offset = last.offset()
    assert offset is not None
    producer.send_offsets_to_transaction(at(offset + 1), given)
    producer.commit_transaction()
    assert coordinators.committed["g"]["in", 0].place == Place(5)


@pytest.mark.parametrize("offset", [5, 99])
def test_finding_6_offsets_that_are_refused_cost_nothing(
    offset: int, producer: Producer, consumer: Consumer, coordinators: FakeCoordinators
) -> None:
    with pytest.raises(ConfigError, match=r"position\(\)"):
        producer.send_offsets_to_transaction([*at(3), *at(offset)], consumer)
    with pytest.raises(ConfigError, match="not assigned"):
        producer.send_offsets_to_transaction([*at(3), TopicPartition("in", 1, 3)], consumer)
    producer.send_offsets_to_transaction(at(3), consumer)
    producer.commit_transaction()
    assert coordinators.committed["g"]["in", 0].place == Place(4, 2), "behind b"


def test_a_message_of_before_can_be_the_last_that_counts(
    producer: Producer, consumer: Consumer, coordinators: FakeCoordinators
) -> None:
    producer.send_offsets_to_transaction(at(2), consumer)
    producer.commit_transaction()
    assert coordinators.committed["g"]["in", 0].place == Place(4, 1), "behind a"
    producer.begin_transaction()
    with pytest.raises(ConfigError, match="sent before"):
        producer.send_offsets_to_transaction(at(1), consumer)
    producer.send_offsets_to_transaction([], consumer)
    producer.commit_transaction()
    assert coordinators.committed["g"]["in", 0].place == Place(4, 1)


def test_what_is_no_group_is_told(producer: Producer) -> None:
    producer.begin_transaction()
    with pytest.raises(TypeError, match="consumer_group_metadata"):
        producer.send_offsets_to_transaction(at(1), object())  # type: ignore[arg-type]


# ---- between transactions -----------------------------------------------------------------------


def test_finding_2_after_init_transactions_nothing_is_written_plainly(
    producer: Producer, memory_log: MemoryLog
) -> None:
    producer.init_transactions()
    with pytest.raises(KafkaException) as caught:
        producer.produce("t", b"x")
    assert caught.value.args[0].code() == KafkaError._STATE
    with producer.begin_transaction() as txn:
        txn.produce("t", b"in")
    with pytest.raises(TransactionStateError):
        producer.produce("t", b"x")
    producer.begin_transaction()
    producer.produce("t", b"in too")
    producer.commit_transaction()
    with pytest.raises(TransactionStateError):
        producer.produce("t", b"x")
    assert [m.value() for m in read_topic(memory_log, "t")] == [b"in", b"in too"]


def test_a_loop_of_a_confluent_program_goes_on_after_an_abort(
    producer: Producer, coordinators: FakeCoordinators, memory_log: MemoryLog
) -> None:
    producer.init_transactions()
    for attempt in range(2):
        transaction = producer.begin_transaction()
        producer.produce("t", b"%d" % attempt)
        if attempt == 0:
            coordinators.expire(transaction.txid)
        try:
            producer.commit_transaction()
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            with pytest.raises(TransactionStateError):
                producer.produce("t", b"between")
            producer.abort_transaction()
    assert [m.value() for m in read_topic(memory_log, "t")] == [b"0", b"1"]
    assert transaction.is_committed


def test_init_transactions_waits_as_long_as_it_is_told(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.reachable = False
    began_s = time.monotonic()
    with pytest.raises(KafkaException) as caught:
        producer.init_transactions(0.01)
    assert time.monotonic() - began_s < 0.15
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT
    assert caught.value.args[0].retriable()
    with pytest.raises(TransactionStateError):
        producer.produce("t", b"x")


def test_after_init_transactions_failed_it_is_called_again(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    coordinators.reachable = False
    with pytest.raises(RequestTimedOutError):
        producer.init_transactions(0.01)
    coordinators.reachable = True
    for call in (
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send_offsets_to_transaction([], "g"),
    ):
        with pytest.raises(RetriableError, match="init_transactions") as caught:
            call()
        assert caught.value.args[0].code() == KafkaError._CONFLICT
    producer.init_transactions()
    producer.begin_transaction()
    producer.commit_transaction()


# ---- forms of calls -----------------------------------------------------------------------------


def test_settings_may_be_keywords(memory_log: MemoryLog) -> None:
    logger = logging.getLogger("mine")
    with Producer(log=memory_log, logger=logger, **{"linger.ms": 7}) as producer:
        assert producer._config.librdkafka["linger.ms"] == 7
        assert producer._config.librdkafka["logger"] is logger
    with pytest.raises(TypeError, match="expected configuration dict"):
        Producer()
    with Consumer({"group.id": "a"}, log=memory_log, **{"group.id": "b"}) as consumer:
        assert consumer.group_id == "b"
    with pytest.raises(TypeError, match="expected configuration dict"):
        Consumer()
    with pytest.raises(ValueError, match=r"group\.id must be set"):
        Consumer({}, log=memory_log)


def test_callbacks(coordinators: FakeCoordinators, memory_log: MemoryLog) -> None:
    memory_log.create_topic("t", partitions=1)
    told: list[tuple[str, bytes | None]] = []

    def callback(name: str) -> Callable[[Any, Message], None]:
        return lambda _, message: told.append((name, message.value()))

    with Producer(
        {"linger.ms": 0, "on_delivery": callback("default")},
        log=memory_log,
        coordinators=coordinators,
    ) as producer:
        producer.produce("t", b"plain")
        producer.produce("t", b"plain, own", callback=callback("own"))
        producer.flush()
        producer.begin_transaction()
        producer.produce("t", b"in")
        producer.produce("t", b"in, own", callback=callback("own"))
        producer.commit_transaction()
    assert sorted(told) == [
        ("default", b"in"),
        ("default", b"plain"),
        ("own", b"in, own"),
        ("own", b"plain, own"),
    ]


def test_finding_16_what_a_callback_raises_is_raised_by_poll_or_flush_alone(
    producer: Producer,
) -> None:
    def raising(_error: object, message: Message) -> None:
        raise ZeroDivisionError(message.value())

    producer.produce("t", b"plain", on_delivery=raising)
    transaction = producer.begin_transaction()
    for _ in range(1_000):
        transaction.produce("t", b"x")
    with pytest.raises(ZeroDivisionError, match="plain"):
        producer.flush()
    assert producer.flush() == 0
    producer.produce("t", b"in", on_delivery=raising)
    assert producer.commit_transaction().state.commits
    with pytest.raises(ZeroDivisionError, match="in"):
        producer.poll(0)
    assert producer.poll(0) == 0


def test_finding_17_records_that_are_dropped_are_told(
    producer: Producer, coordinators: FakeCoordinators
) -> None:
    told: list[tuple[int, bytes | None]] = []
    held = coordinators.hold("begin")
    transaction = producer.begin_transaction()
    for number in range(5):
        transaction.produce(
            "t",
            f"{number}",
            on_delivery=lambda error, message: told.append((error.code(), message.value())),
        )
    producer.close(0)
    with pytest.raises(LogtxError):
        assert transaction.txid
    assert told == [(KafkaError._PURGE_QUEUE, b"%d" % n) for n in range(5)]
    held.set()


def test_finding_17_records_that_are_refused_when_the_txid_comes_are_told(
    make_memory_producer: MakeProducer, memory_log: MemoryLog, coordinators: FakeCoordinators
) -> None:
    memory_log.create_topic("small", partitions=1)
    producer = make_memory_producer(queue__buffering__max__messages=1)
    told: list[int] = []
    held = coordinators.hold("begin")
    transaction = producer.begin_transaction()
    for value in (b"x" * 2_000_000, b"1", b"2"):
        transaction.produce(
            "small", value, on_delivery=lambda error, _: told.append(error.code() if error else 0)
        )
    future = transaction.commit_async()
    memory_log.hold_appends("small", 0)
    held.set()
    # Fails although the queue is too full for the rest of the records.
    with pytest.raises(TransactionAbortOnlyError):
        future.result(5)
    memory_log.release_appends("small", 0)
    transaction.abort()
    assert told[0] == KafkaError.MSG_SIZE_TOO_LARGE
    assert len(told) == 3


def test_produce_batch(producer: Producer, memory_log: MemoryLog) -> None:
    told: list[bytes | None] = []
    assert producer.begin_transaction().txid
    messages: list[dict[str, Any]] = [
        {"value": "v", "key": b"k", "headers": {"h": b"1"}, "timestamp": 7, "partition": 0},
        {"callback": lambda _, message: told.append(message.value())},
        {"value": b"x" * 2_000_000},
    ]
    assert producer.produce_batch("t", messages, on_delivery=lambda *_: None) == 2
    assert [m.get("_error") and m["_error"].txn_requires_abort() for m in messages] == [
        None,
        None,
        True,
    ]
    producer.abort_transaction()
    assert told == [None]
    assert producer.produce_batch("t", [{"value": b"plain"}]) == 1
    producer.flush()
    first = read_topic(memory_log, "t")[0]
    assert (first.value(), first.key(), first.timestamp()[1]) == (b"v", b"k", 7)


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ("no list", "messages must be a list"),
        ([{}, "no dict"], "Message at index 1 must be a dict"),
        ([{"value": 1}], "Message value at index 0 must be bytes or str"),
        ([{"key": [b"k"]}], "Message key at index 0 must be bytes or str"),
        ([{"partition": "0"}], "Message partition at index 0 must be int"),
    ],
)
def test_a_batch_that_cant_be_used_sends_nothing(
    producer: Producer, messages: Any, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        producer.produce_batch("t", messages)
    with pytest.raises(TypeError, match="topic"):
        producer.produce_batch(None, [])  # type: ignore[arg-type]
    assert len(producer) == 0


@pytest.mark.parametrize(
    "error",
    [
        QueueFullError("no room"),
        RequestTimedOutError("the transaction did not begin in time"),
        CoordinatorNotAvailableError("nobody opens the sidecar"),
    ],
)
def test_a_batch_waits_once(error: LogtxError) -> None:
    asked: list[bytes] = []

    def produce(_: str, value: bytes, *__: object) -> None:
        asked.append(value)
        if len(asked) > 2:
            raise error

    messages: list[dict[str, Any]] = [{"value": b"%d" % n} for n in range(5)]
    assert produce_batch(produce, "t", messages, -1, None) == 2
    assert asked == [b"0", b"1", b"2"]
    errors = [m["_error"].code() if "_error" in m else None for m in messages]
    assert errors == [None, None, *[error.args[0].code()] * 3]


def test_what_finds_no_room_is_a_buffer_error(
    memory_log: MemoryLog, make_memory_producer: MakeProducer
) -> None:
    memory_log.create_topic("t", partitions=1)
    memory_log.hold_appends("t", 0)
    producer = make_memory_producer(queue__buffering__max__messages=1, transaction__timeout__ms=300)
    producer.produce("t", b"x")
    with pytest.raises(BufferError) as caught:
        producer._engine.sender.make_room(time.monotonic())
    assert isinstance(caught.value, QueueFullError)


@pytest.mark.parametrize("headers", [("a", "b"), ["ab"], [["a", b"b"]], {"a": 1}, 7])
def test_headers_that_are_no_pairs(producer: Producer, headers: Any) -> None:
    for write in (producer.produce, producer.begin_transaction().produce, producer.produce):
        with pytest.raises(TypeError):
            write("t", b"x", headers=headers)
    producer.commit_transaction()


def not_made() -> Producer:
    class WithoutInit(Producer):
        def __init__(self) -> None:
            """Forgets that of `Producer`."""

    return WithoutInit()


def closed() -> Producer:
    producer = Producer(
        {"transactional.id": "p"}, log=MemoryLog("memory://closed"), coordinators=FakeCoordinators()
    )
    assert producer.close()
    return producer


@pytest.mark.parametrize("make", [closed, not_made])
def test_a_closed_producer_says_so(make: Callable[[], Producer]) -> None:
    producer = make()
    assert producer.close()
    assert len(producer) == 0
    for call in (
        lambda: producer.produce("t"),
        lambda: producer.produce_batch("t", [{}]),
        producer.poll,
        producer.flush,
        producer.purge,
        producer.init_transactions,
        producer.begin_transaction,
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send_offsets_to_transaction([], "g"),
    ):
        with pytest.raises(RuntimeError, match="Producer has been closed"):
            call()


def test_a_producer_of_a_log_in_memory_tells_its_topics(memory_log: MemoryLog) -> None:
    memory_log.create_topic("t", partitions=3)
    with Producer({"bootstrap.servers": memory_log.bootstrap_servers}, log=memory_log) as producer:
        assert len(producer.list_topics().topics["t"].partitions) == 3
        assert producer.cluster_id() is None
