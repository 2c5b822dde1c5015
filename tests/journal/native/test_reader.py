"""Records read in C, as light messages, beside those that confluent-kafka makes of the same log."""

from __future__ import annotations

import copy
import gc
import pickle
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer.source import NativeSource, OtherQueueError, open_consumer
from logtx.consumer.spill.chunks import decode_chunk, encode_chunks
from logtx.journal.native import loading
from logtx.journal.native.interface import Reader

from ...children import in_child
from .conftest import Mock
from .messages import fields

MakeReading = Callable[..., tuple[Any, NativeSource]]
SETTINGS = {"enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
RECORDS: list[dict[str, Any]] = [
    {"value": b"v"},
    {"value": None},
    {"value": b"", "key": b""},
    {"key": b"k", "value": b"v" * 5_000},
    {"value": b"v", "headers": [("TxId", b"0123456789abcdef")]},
    {"value": b"w", "headers": [("TxId", b"0123456789abcdef")]},
    {"value": b"v", "headers": [("a", None), ("a", b""), ("\N{SNOWMAN}", b"\xff\0")]},
    {"value": b"v", "timestamp": 1_234_567},
]


@pytest.fixture
def make_reading(mock: Mock, extension: Any) -> Iterator[MakeReading]:
    """`make_reading(**settings)`: (consumer, source)."""
    del extension
    made: list[Any] = []

    def make(**settings: Any) -> tuple[Any, NativeSource]:
        named = {name.replace("_", "."): value for name, value in settings.items()}
        config = {"bootstrap.servers": mock.address, "group.id": f"g{time.monotonic_ns()}"}
        consumer, reader = open_consumer(Consumer, {**config, **SETTINGS, **named})  # type: ignore[arg-type]
        assert reader is not None
        made.append(consumer)
        return consumer, NativeSource(consumer, reader)

    yield make
    for consumer in made:
        consumer.close()


@pytest.fixture
def topic(mock: Mock) -> str:
    """A topic with `RECORDS` in partition 0."""
    name = f"t{time.monotonic_ns()}"
    write(mock, name, RECORDS)
    return name


def write(mock: Mock, topic: str, records: list[dict[str, Any]], partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": mock.address, "linger.ms": 0, "log_level": 0})
    for record in records:
        producer.produce(topic, partition=partition, **record)
    assert producer.flush(20) == 0


def read(source: NativeSource, count: int, timeout_s: float = 20, limit: int = 1_000) -> list[Any]:
    """Returns the next records, of which it takes `limit` at a time."""
    found: list[Any] = []
    until = time.monotonic() + timeout_s
    while len(found) < count:
        assert time.monotonic() < until, f"got {len(found)} of {count}"
        got = source.read(limit, 0.2)
        if got is not None:
            assert not got.events, got.events[0].error()
            found += [message for part in got.parts for message in part.records]
    return found


def test_a_message_says_what_confluents_says(
    mock: Mock, topic: str, make_reading: MakeReading
) -> None:
    consumer, source = make_reading()
    consumer.assign([KafkaPartition(topic, 0, 0)])
    light = read(source, len(RECORDS))
    other = Consumer({"bootstrap.servers": mock.address, "group.id": "other", **SETTINGS})
    try:
        other.assign([KafkaPartition(topic, 0, 0)])
        expected: list[Message] = []
        while len(expected) < len(RECORDS):
            expected += other.consume(len(RECORDS) - len(expected), 1)
    finally:
        other.close()
    assert [fields(m) for m in light] == [fields(m) for m in expected]
    names = {name for name in dir(Message) if not name.startswith("__")}
    assert names <= set(dir(type(light[0])))
    for message, same in zip(light, expected, strict=True):
        assert isinstance(message, Message)
        assert type(message) is not Message
        assert fields(pickle.loads(pickle.dumps(message))) == fields(same)
        assert fields(copy.copy(message)) == fields(same)
        assert message == copy.copy(message)
        assert message == same
        assert [message == each for each in light] == [same == each for each in expected]
        assert [message != each for each in light] == [same != each for each in expected]
        assert message != "another kind"
        with pytest.raises(TypeError, match="unhashable"):
            hash(message)
        assert message.headers() is message.headers()
        assert not gc.is_tracked(message)


def test_what_is_set_is_of_that_message_alone(topic: str, make_reading: MakeReading) -> None:
    consumer, source = make_reading()
    consumer.assign([KafkaPartition(topic, 0, 4)])
    first, second = read(source, 4)[:2]
    first.headers().append(("more", b""))
    assert second.headers() == RECORDS[5]["headers"]
    for name, value in {"topic": "u", "key": {}, "value": [1, 2], "error": 7, "headers": 1}.items():
        getattr(first, f"set_{name}")(value)
        assert getattr(first, name)() == value
    assert len(first) == 2
    first.set_value(None)
    assert (first.value(), len(first), second.value()) == (None, 0, b"w")


def test_messages_can_be_spilled(topic: str, make_reading: MakeReading) -> None:
    consumer, source = make_reading()
    consumer.assign([KafkaPartition(topic, 0, 0)])
    light = read(source, len(RECORDS))
    assert light[0].content_bytes(light) == sum(
        len(record.get("key") or b"") + len(record["value"] or b"") for record in RECORDS
    )
    assert light[0].content_bytes([*light, Message()]) is None
    back: list[Any] = []
    for chunk in encode_chunks(light):
        back += decode_chunk((topic, 0), chunk)
    assert [fields(m) for m in back] == [fields(m) for m in light]


def test_parts_tell_runs_of_headers_and_bytes(
    mock: Mock, topic: str, make_reading: MakeReading
) -> None:
    # More than are taken from librdkafka at a time: a run goes on where the next ones begin.
    write(mock, topic, [{"value": b"1", "headers": [("TxId", b"1" * 16)]}] * 200)
    consumer, source = make_reading()
    consumer.assign([KafkaPartition(topic, 0, len(RECORDS))])
    parts = []
    while sum(len(part.records) for part in parts) < 200:
        got = source.read(1_000, 5)
        assert got is not None
        parts += list(got.parts)
    assert {part.key for part in parts} == {(topic, 0)}
    runs = [run for part in parts for run in part.runs or ()]
    assert sum(count for _, count in runs) == 200
    assert len(runs) == len(parts)
    assert {headers for headers, _ in runs} == {(("TxId", b"1" * 16),)}
    assert sum(part.value_bytes or 0 for part in parts) == 200


def test_a_batch_over_partitions_keeps_the_order_of_each(
    mock: Mock, make_reading: MakeReading
) -> None:
    name = f"t{time.monotonic_ns()}"
    for partition in range(4):
        write(mock, name, [{"value": b"%d" % n} for n in range(300)], partition)
    consumer, source = make_reading()
    consumer.assign([KafkaPartition(name, n, 0) for n in range(4)])
    found = read(source, 1_200)
    for partition in range(4):
        offsets = [m.offset() for m in found if m.partition() == partition]
        assert offsets == list(range(300))


def test_unreadable_headers_are_told_as_confluents_are(
    mock: Mock, make_reading: MakeReading
) -> None:
    name = f"t{time.monotonic_ns()}"
    write(mock, name, [{"value": b"v", "headers": [("a", b"1")]}])
    raw = Producer({"bootstrap.servers": mock.address})
    produce_raw_header(raw, name)
    consumer, source = make_reading()
    consumer.assign([KafkaPartition(name, 0, 0)])
    parts: list[Any] = []
    while sum(len(p.records) for p in parts) < 2:
        got = source.read(10, 5)
        assert got is not None
        parts += list(got.parts)
    assert parts[-1].runs is None
    assert parts[0].records[0].headers() == [("a", b"1")]
    with pytest.raises(SystemError):
        parts[-1].records[-1].headers()


def produce_raw_header(producer: Any, topic: str) -> None:
    """Produces a record with a header whose name is not UTF-8, which Python can't name."""
    import ctypes

    from confluent_kafka import cimpl

    library = ctypes.CDLL(cimpl.__file__)
    handle = ctypes.c_void_p.from_address(id(producer) + 16)
    topic_tag, value_tag, header_tag, end = 1, 4, 9, 0
    value = ctypes.create_string_buffer(b"v", 1)
    library.rd_kafka_producev.restype = ctypes.c_int
    assert not library.rd_kafka_producev(
        *(handle, topic_tag, ctypes.c_char_p(topic.encode()), 3, ctypes.c_int32(0)),
        *(7, ctypes.c_int(2), value_tag, value, ctypes.c_size_t(1)),
        *(header_tag, ctypes.c_char_p(b"\xff\xfe"), value, ctypes.c_ssize_t(1), end),
    )
    assert producer.flush(20) == 0


def test_events_are_as_confluents(mock: Mock, topic: str, make_reading: MakeReading) -> None:
    consumer, source = make_reading(enable_partition_eof=True, auto_offset_reset="error")
    places = [KafkaPartition(topic, 0, len(RECORDS)), KafkaPartition(topic, 1, 1_000)]
    consumer.assign(places)
    events: list[Message] = []
    until = time.monotonic() + 20
    while len(events) < 2 and time.monotonic() < until:
        got = source.read(10, 0.5)
        events += got.events if got is not None else ()
    by_partition = {event.partition(): event for event in events}
    end, reset = by_partition[0], by_partition[1]
    assert (end.topic(), end.offset()) == (topic, len(RECORDS))
    assert end.error().code() == KafkaError._PARTITION_EOF  # type: ignore[union-attr]
    error = reset.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert reset.value() == error.str().encode()
    also = {"enable.partition.eof": True, "auto.offset.reset": "error"}
    other = Consumer({"bootstrap.servers": mock.address, "group.id": "o", **SETTINGS, **also})
    try:
        other.assign(places)
        expected: dict[int | None, Message] = {}
        until = time.monotonic() + 20
        while len(expected) < 2 and time.monotonic() < until:
            expected |= {message.partition(): message for message in other.consume(2, 1)}
    finally:
        other.close()
    for number, event in by_partition.items():
        assert fields(event) == fields(expected[number])
        assert event.error().str() == expected[number].error().str()  # type: ignore[union-attr]


@pytest.mark.parametrize("cooperative", [False, True])
def test_a_partition_that_is_assigned_again_is_read_on_trap_270(
    topic: str, make_reading: MakeReading, cooperative: bool
) -> None:
    strategy = "cooperative-sticky" if cooperative else "range"
    consumer, source = make_reading(partition_assignment_strategy=strategy)
    place = KafkaPartition(topic, 0, 0)
    for turn in range(20):
        if not cooperative:
            consumer.assign([place])
        else:
            if turn:
                consumer.incremental_unassign([place])
            consumer.incremental_assign([place])
        if turn % 3 == 0:
            consumer.pause([place])
            consumer.resume([place])
        assert [m.offset() for m in read(source, len(RECORDS))] == list(range(len(RECORDS)))
        assert source.read(10, 0) is None


def test_records_that_come_while_it_waits_end_the_wait(
    mock: Mock, topic: str, make_reading: MakeReading
) -> None:
    consumer, source = make_reading(fetch_wait_max_ms=10)
    consumer.assign([KafkaPartition(topic, 0, len(RECORDS))])
    assert source.read(10, 0.3) is None
    thread = threading.Timer(0.3, write, (mock, topic, [{"value": b"late"}]))
    thread.start()
    started = time.monotonic()
    got = source.read(10, 20)
    assert got is not None
    assert [m.value() for part in got.parts for m in part.records] == [b"late"]
    assert time.monotonic() - started < 10
    thread.join()


def test_messages_outlive_their_consumer(topic: str, make_reading: MakeReading) -> None:
    consumer, source = make_reading()
    consumer.assign([KafkaPartition(topic, 0, 0)])
    kept = read(source, len(RECORDS))
    consumer.close()
    consumer.close()
    assert [m.value() for m in kept] == [record["value"] for record in RECORDS]
    assert kept[0].topic() == topic
    with pytest.raises(RuntimeError, match="closed"):
        consumer._reader.read(1)


def test_a_consumer_that_is_closed_or_dropped_without_the_reader_ends(
    topic: str, make_reading: MakeReading
) -> None:
    for drops in (False, True):
        consumer, source = make_reading()
        consumer.assign([KafkaPartition(topic, 0, 0)])
        got = source.read(3, 20)  # The others stay in the queue.
        assert got is not None
        reader = consumer._reader
        if drops:
            consumer._inner = Consumer({"group.id": "another"})
            del source
        else:
            consumer._inner.close()
        gc.collect()
        with pytest.raises(RuntimeError, match="closed"):
            reader.read(1)
        del reader


def test_another_thread_is_refused_and_close_waits_for_it(
    topic: str, make_reading: MakeReading
) -> None:
    consumer, _ = make_reading()
    reader: Reader = consumer._reader
    reader.wait(0)
    thread = threading.Thread(target=reader.wait, args=(20_000,))
    thread.start()
    time.sleep(0.2)
    with pytest.raises(RuntimeError, match="another thread"):
        reader.read(1)
    with pytest.raises(RuntimeError, match="another thread"):
        reader.take_over(topic, 0)
    started = time.monotonic()
    reader.close()
    assert time.monotonic() - started < 10
    thread.join()


def test_a_child_has_the_messages_and_no_reader(topic: str, make_reading: MakeReading) -> None:
    consumer, source = make_reading()
    consumer.assign([KafkaPartition(topic, 0, 0)])
    kept = read(source, len(RECORDS))

    def look() -> str:
        values = [m.value() for m in kept]
        kept.clear()
        try:
            consumer._reader.read(1)
        except RuntimeError as error:
            consumer._reader.close()
            return f"{len(values)} {error}"
        return "it read"

    assert in_child(look) == f"{len(RECORDS)} the reader is closed"
    assert kept


def test_a_record_of_another_queue_is_told_trap_271(topic: str, make_reading: MakeReading) -> None:
    consumer, source = make_reading()
    consumer._inner.assign([KafkaPartition(topic, 0, 0)])  # Not taken over.
    with pytest.raises(OtherQueueError):
        read(source, 1)
    consumer.assign([KafkaPartition(topic, 0, 0)])
    assert [m.offset() for m in read(source, len(RECORDS))] == list(range(len(RECORDS)))


def test_an_error_of_make_is_raised(extension: Any) -> None:
    del extension
    with pytest.raises(Exception, match=r"no\.such\.setting"):
        loading.opened_consumer(
            lambda made: Consumer(dict(made)),  # type: ignore[arg-type,return-value]
            {"group.id": "g", "no.such.setting": 1},
        )


def test_a_producer_made_with_a_reader_reads_nothing(extension: Any) -> None:
    made: list[Any] = []

    def make() -> Any:
        made.append(Producer({"plugin.library.paths": extension.__file__, "log_level": 0}))
        return made[0]

    assert not extension.Reader(make).is_reading


def test_nothing_is_left_of_many_records(mock: Mock, make_reading: MakeReading) -> None:
    name = f"t{time.monotonic_ns()}"
    header = [("TxId", b"0123456789abcdef"), ("more", b"m")]
    write(mock, name, [{"value": b"v" * 700, "key": b"k", "headers": header}] * 4_000)
    consumer, source = make_reading()
    sizes = []
    for turn in range(30):
        consumer.assign([KafkaPartition(name, 0, OFFSET_BEGINNING)])
        for message in read(source, 4_000):
            message.headers()
            message.set_error(turn)
        if turn in (10, 29):
            sizes.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    # 76,000 records of 1 KB came in between.
    assert sizes[1] - sizes[0] < 30_000, sizes


def test_trap_277_an_error_of_a_partition_that_is_not_there_is_told_as_confluents_is(
    mock: Mock, topic: str, extension: Any
) -> None:
    """In a child: confluent-kafka ended the process when C code read the error."""
    del extension
    told = in_child(lambda: codes_and_count_of_no_partition(mock.address, topic))
    assert told == f"({[KafkaError._UNKNOWN_PARTITION]}, {len(RECORDS)})"


def codes_and_count_of_no_partition(address: str, topic: str) -> tuple[list[int], int]:
    """Reads a topic, and a partition that it does not have. Returns what `error_cb` was told, and
    how many records came; the callback raises, which loses none."""
    told: list[int] = []

    def error_cb(error: KafkaError) -> None:
        told.append(error.code())
        raise ValueError

    config: dict[str, Any] = {"bootstrap.servers": address, "group.id": "g", **SETTINGS}
    consumer, reader = open_consumer(Consumer, config)  # type: ignore[arg-type]
    assert reader is not None
    source, found = NativeSource(consumer, reader, error_cb), 0
    consumer.assign([KafkaPartition(topic, 0, 0), KafkaPartition(topic, 99, 0)])
    until = time.monotonic() + 20
    while (not told or found < len(RECORDS)) and time.monotonic() < until:
        with suppress(ValueError):
            got = source.read(1_000, 0.2)
            found += 0 if got is None else sum(len(part.records) for part in got.parts)
    consumer.close()
    return sorted(set(told)), found


@pytest.mark.parametrize("way", ["assign", "unassign", "incremental", "given back"])
def test_trap_278_what_waits_outlives_a_topic_that_is_deleted_after_it_was_given_up(
    mock: Mock, topic: str, make_reading: MakeReading, way: str
) -> None:
    strategy = "cooperative-sticky" if way == "incremental" else "range"
    consumer, source = make_reading(
        partition_assignment_strategy=strategy,
        fetch_wait_max_ms=10,
        topic_metadata_propagation_max_ms=0,
    )
    other = f"o{time.monotonic_ns()}"
    write(mock, other, RECORDS)
    kept, given_up = KafkaPartition(topic, 0, 0), KafkaPartition(other, 0, 0)
    move = consumer.incremental_assign if way == "incremental" else consumer.assign
    move([kept, given_up])
    read(source, 2 * len(RECORDS))
    if way == "incremental":
        consumer.incremental_unassign([kept, given_up])
    elif way == "unassign":
        consumer.unassign()
    # librdkafka ends the forwarding as it stops a partition, and the reader begins it again.
    for _ in range(5):
        move([kept])
        assert [m.offset() for m in read(source, 1, limit=1)] == [0]
        if way == "incremental":
            consumer.incremental_unassign([kept])
    move([kept])
    if way == "given back":  # It is forwarded when that comes.
        consumer._reader.take_over(other, 0)
        consumer._reader.give_back(other, 0)
    first = read(source, 1, limit=1)
    mock.delete(other)
    assert consumer.list_topics(other, 20).topics[other].error is not None
    time.sleep(0.5)  # librdkafka ends the partition in threads of its own.
    found = [*first, *read(source, len(RECORDS) - 1)]
    assert [m.offset() for m in found] == list(range(len(RECORDS)))


def test_what_the_group_takes_is_given_back(topic: str, make_reading: MakeReading) -> None:
    consumer, source = make_reading()
    told: list[str] = []
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: consumer.assign(partitions),
        on_revoke=lambda _, partitions: told.append(f"revoked {len(partitions)}"),
    )
    read(source, len(RECORDS))
    assert len(consumer._taken._keys) == 4
    consumer.unsubscribe()
    until = time.monotonic() + 20
    while consumer._taken._keys and time.monotonic() < until:
        source.read(1, 0.1)
    assert (consumer._taken._keys, told) == (set(), ["revoked 4"])


@pytest.mark.parametrize("before", [1, 63, 64])
def test_trap_303_what_is_behind_an_event_has_its_own_headers(
    mock: Mock, make_reading: MakeReading, before: int
) -> None:
    headers = [("TxId", b"0123456789abcdef")]
    for attempt in range(20):
        name = f"t{time.monotonic_ns()}"
        write(mock, name, [{"value": b"v", "headers": headers}] * before)
        consumer, source = make_reading(enable_partition_eof=True, fetch_wait_max_ms=10)
        consumer.assign([KafkaPartition(name, 0, 0)])
        time.sleep(0.1 * (attempt + 1))  # So that the end is in the queue, too.
        write(mock, name, [{"value": b"v"}])
        time.sleep(0.1 * (attempt + 1))
        got = source.read(1_000, 5)
        parts = list(got.parts) if got is not None else []
        found = [message for part in parts for message in part.records]
        if len(found) == before + 1 and got is not None and got.events:
            break
    assert [message.headers() for message in found] == [headers] * before + [None]
    assert [(run and list(run), n) for part in parts for run, n in part.runs or ()] == [
        (headers, before),
        (None, 1),
    ]
