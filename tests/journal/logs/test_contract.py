"""What every `Log` promises, over memory, librdkafka's mock cluster and a real broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message, TopicPartition

from logtx.journal.errors import BrokerError, UnknownTopicError
from logtx.journal.logs.interface import GroupOffset, Log, LogConsumer

MakeTopic = Callable[..., str]
Append = Callable[..., list[int]]

CONSUMER = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
}


def skip_on_mock(transport: str, reason: str) -> None:
    if transport == "mock":
        pytest.skip(f"librdkafka's mock cluster {reason}")


def take(consumer: LogConsumer, count: int, timeout_s: float = 10) -> list[Message]:
    until, found = time.monotonic() + timeout_s, []
    while len(found) < count and time.monotonic() < until:
        message = consumer.poll(0.1)
        # A message without a value has length 0, so is false.
        found += [message] if message is not None else []
    return found


@pytest.fixture
def consumer(log: Log, unique: Callable[[str], str]) -> Iterator[LogConsumer]:
    made = log.consumer({**CONSUMER, "group.id": unique("group")})
    yield made
    made.close()


def test_topic_info_tells_partitions_settings_and_an_id_of_its_own(
    log: Log, make_topic: MakeTopic, transport: str
) -> None:
    skip_on_mock(transport, "has its own partition count and tells no settings")
    topic = make_topic(partitions=3, settings={"cleanup.policy": "compact", "retention.ms": "-1"})
    info = log.topic_info(topic)
    assert (info.topic, info.partition_count, info.compacted) == (topic, 3, True)
    assert info.replication_factor == 1
    assert info.settings is not None
    assert info.settings["retention.ms"] == "-1"
    for name in (
        "retention.bytes",
        "max.message.bytes",
        "min.insync.replicas",
        "unclean.leader.election.enable",
        "message.timestamp.type",
    ):
        assert name in info.settings
    log.delete_topic(topic)
    with pytest.raises(UnknownTopicError):
        log.topic_info(topic)
    assert log.create_topic(topic, partitions=1)
    assert log.topic_info(topic).topic_id not in ("", info.topic_id)


def test_partitions_are_raised_once(log: Log, make_topic: MakeTopic, transport: str) -> None:
    skip_on_mock(transport, "adds no partitions")
    topic = make_topic(partitions=1)
    for _ in range(2):  # the second one finds it done
        log.raise_partitions(topic, 3)
        assert log.partition_count(topic) == 3
    log.raise_partitions(topic, 2)
    assert log.partition_count(topic) == 3
    assert log.end_offset(topic, 2) == 0
    log.delete_topic(topic)
    with pytest.raises(UnknownTopicError):
        log.raise_partitions(topic, 4)


def test_mock_tells_no_settings(log: Log, make_topic: MakeTopic, transport: str) -> None:
    if transport != "mock":
        pytest.skip("of the mock only")
    info = log.topic_info(make_topic())
    assert (info.settings, info.topic_id, info.compacted) == (None, "", False)
    with pytest.raises(BrokerError, match="mock"):
        log.delete_topic(info.topic)
    with pytest.raises(BrokerError, match="mock"):
        log.delete_records(info.topic, 0, 0)
    with pytest.raises(BrokerError, match="mock"):
        log.offset_for_time(info.topic, 0, 0)


def test_creating_a_topic_again_says_so(log: Log, make_topic: MakeTopic) -> None:
    assert not log.create_topic(make_topic(), partitions=1)


def test_unknown_topics_and_partitions(log: Log, make_topic: MakeTopic) -> None:
    topic = make_topic()
    for ask in (
        lambda: log.topic_info("there-is-none"),
        lambda: log.end_offset("there-is-none", 0),
        lambda: log.start_offset(topic, 99),
        lambda: log.start_offsets([(topic, 0), (topic, 99)]),
        lambda: log.end_offsets([("there-is-none", 0), (topic, 0)]),
        lambda: log.commit_group_offset("g", "there-is-none", 0, GroupOffset(1, "")),
    ):
        with pytest.raises(UnknownTopicError):
            ask()


def test_the_names_of_all_topics(log: Log, make_topic: MakeTopic) -> None:
    made = {make_topic(), make_topic()}
    assert made <= log.topics()
    assert "nowhere-at-all" not in log.topics()


def test_offsets_are_contiguous_and_the_end_is_exact(
    log: Log, make_topic: MakeTopic, append: Append
) -> None:
    topic = make_topic()
    assert (log.start_offset(topic, 0), log.end_offset(topic, 0)) == (0, 0)
    for count in range(1, 20):
        (offset,) = append(topic, 0, [b"x"])
        assert (offset, log.end_offset(topic, 0)) == (count - 1, count)


def test_the_offsets_of_many_partitions_at_once(
    log: Log, make_topic: MakeTopic, append: Append
) -> None:
    some = [(make_topic(), 0) for _ in range(3)]
    for count, (topic, partition) in enumerate(some):
        append(topic, partition, [b"x"] * count)
    assert log.end_offsets(some) == dict(zip(some, range(3), strict=True))
    assert log.start_offsets(some) == dict.fromkeys(some, 0)
    assert log.end_offsets([]) == {}


def test_the_offsets_of_many_partitions_with_their_errors_one_by_one(
    log: Log, make_topic: MakeTopic, append: Append
) -> None:
    first, second = make_topic(), make_topic()
    append(first, 0, [b"x"] * 3)
    append(second, 0, [b"x"])
    asked = [(first, 0), ("there-is-none", 0), (second, 0), (second, 99)]
    for ask, wanted in ((log.each_end_offset, (3, 1)), (log.each_start_offset, (0, 0))):
        told = ask(asked, timeout_s=5)
        assert list(told) == asked
        assert (told[first, 0], told[second, 0]) == wanted
        for unknown in (("there-is-none", 0), (second, 99)):
            assert isinstance(told[unknown], UnknownTopicError)
        assert unknown[0] in str(told[unknown])
        assert ask([]) == {}


def test_an_end_lies_behind_an_open_transaction_of_kafka_s_own(
    log: Log, make_topic: MakeTopic, unique: Callable[[str], str], transport: str
) -> None:
    if transport != "kafka":
        pytest.skip("a log in memory has no such transactions, and the mock no ends of theirs")
    topic = make_topic()
    producer: Any = log.producer({"transactional.id": unique("own")})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(10)
    assert log.each_end_offset([(topic, 0)]) == {(topic, 0): 1}
    assert log.end_offset(topic, 0) == 1
    producer.abort_transaction(10)


def test_records_come_back_as_they_were(
    make_topic: MakeTopic, append: Append, consumer: LogConsumer
) -> None:
    topic = make_topic()
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("b", None), ("a", b""), ("ü", b"\0")]
    append(topic, 0, [b"value"], key=b"key", headers=headers)
    append(topic, 0, [None, b""])
    before_ms = time.time() * 1000
    consumer.assign([TopicPartition(topic, 0, 0)])
    full, null, empty = take(consumer, 3)
    assert (full.topic(), full.partition(), full.offset()) == (topic, 0, 0)
    assert (full.key(), full.value(), full.headers()) == (b"key", b"value", headers)
    kind, stamp = full.timestamp()
    assert kind == 1
    assert abs(stamp - before_ms) < 60_000
    assert (null.key(), null.value(), null.headers()) == (None, None, None)
    assert (empty.value(), empty.offset(), empty.error()) == (b"", 2, None)


def test_trimming_moves_the_start_and_a_reader_below_it_is_told(
    log: Log, make_topic: MakeTopic, append: Append, consumer: LogConsumer, transport: str
) -> None:
    skip_on_mock(transport, "trims nothing")
    topic = make_topic()
    append(topic, 0, [b"x"] * 5)
    log.delete_records(topic, 0, 3)
    assert (log.start_offset(topic, 0), log.end_offset(topic, 0)) == (3, 5)
    with pytest.raises(BrokerError):
        log.delete_records(topic, 0, 6)
    consumer.assign([TopicPartition(topic, 0, 1)])
    (event,) = take(consumer, 1)
    assert event.error().code() == KafkaError._AUTO_OFFSET_RESET
    with pytest.raises(KafkaException) as raised:
        consumer.seek(TopicPartition(topic, 0, 3))
    assert raised.value.args[0].code() == KafkaError._STATE
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    assert [m.offset() for m in take(consumer, 2)] == [3, 4]


def test_a_compacted_topic_refuses_null_keys_and_trimming(
    log: Log, make_topic: MakeTopic, transport: str
) -> None:
    skip_on_mock(transport, "knows no settings")
    topic = make_topic(settings={"cleanup.policy": "compact"})
    codes = []
    producer = log.producer({"linger.ms": 0})
    producer.produce(topic, b"v", on_delivery=lambda error, _: codes.append(error.code()))
    producer.produce(topic, b"v", b"k")
    assert producer.flush(10) == 0
    assert codes == [KafkaError.INVALID_RECORD]
    with pytest.raises(BrokerError):
        log.delete_records(topic, 0, 0)


def test_too_large_is_refused_by_the_client_and_by_the_topic(
    log: Log, make_topic: MakeTopic, transport: str
) -> None:
    topic = make_topic(settings={"max.message.bytes": "1000"})
    producer = log.producer({"linger.ms": 0})
    with pytest.raises(KafkaException) as raised:
        producer.produce(topic, bytes(1_100_000))
    assert raised.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE
    skip_on_mock(transport, "knows no settings")
    codes = []
    producer.produce(topic, bytes(1100), on_delivery=lambda error, _: codes.append(error.code()))
    producer.flush(10)
    assert codes == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_callbacks_come_in_poll_and_flush_only(log: Log, make_topic: MakeTopic) -> None:
    topic, served = make_topic(), []
    producer = log.producer({"linger.ms": 0})
    producer.produce(topic, b"v", partition=0, on_delivery=lambda _, m: served.append(m.offset()))
    time.sleep(0.05)
    assert served == []
    assert len(producer) > 0  # librdkafka counts record and report, so 2
    assert producer.flush(10) == 0
    assert (served, len(producer)) == ([0], 0)
    assert bool(producer)


@pytest.mark.parametrize(
    ("partitioner", "partitions"),
    [
        ("consistent_random", [3, 2, 0, 0, 3, 1, 2]),
        ("murmur2_random", [0, 0, 2, 3, 2, 1, 1]),
    ],
)
def test_keys_go_to_the_same_partitions_on_every_transport(
    log: Log, make_topic: MakeTopic, partitioner: str, partitions: list[int]
) -> None:
    topic = make_topic(partitions=4)  # the mock's own count
    keys = (b"a", b"key-1", b"longer key", b"\xff\xfe\xfd\xfc", b"12345678", b"xy", b"z" * 7)
    placed: dict[bytes | None, int | None] = {}

    def delivered(_: object, message: Message) -> None:
        placed[message.key()] = message.partition()

    producer = log.producer({"linger.ms": 0, "partitioner": partitioner})
    for key in keys:
        producer.produce(topic, b"v", key, on_delivery=delivered)
    producer.flush(10)
    assert [placed[k] for k in keys] == partitions


def test_group_offset_and_its_metadata(
    log: Log, make_topic: MakeTopic, append: Append, unique: Callable[[str], str], transport: str
) -> None:
    topic, group = make_topic(), unique("group")
    append(topic, 0, [b"x"] * 5)
    assert log.group_offset(group, topic, 0) is None
    for value in (GroupOffset(3, "ß" * 4000), GroupOffset(2, "")):
        log.commit_group_offset(group, topic, 0, value)
        assert log.group_offset(group, topic, 0) == value
    if transport != "mock":  # which takes metadata of any size
        with pytest.raises(BrokerError):
            log.commit_group_offset(group, topic, 0, GroupOffset(1, "x" * 4097))
    consumer = log.consumer({**CONSUMER, "group.id": group})
    consumer.assign([TopicPartition(topic, 0)])
    assert [m.offset() for m in take(consumer, 3)] == [2, 3, 4]
    consumer.commit(offsets=[TopicPartition(topic, 0, 4, "text")], asynchronous=False)
    (committed,) = consumer.committed([TopicPartition(topic, 0)], timeout=10)
    assert (committed.offset, committed.metadata) == (4, "text")
    consumer.close()
    assert log.group_offset(group, topic, 0) == GroupOffset(4, "text")


def test_nobody_else_commits_for_a_group_with_members(
    log: Log, make_topic: MakeTopic, unique: Callable[[str], str], transport: str
) -> None:
    topic, group = make_topic(), unique("group")
    member = log.consumer({**CONSUMER, "group.id": group, "auto.offset.reset": "earliest"})
    assigned: list[TopicPartition] = []
    member.subscribe([topic], on_assign=lambda _, partitions: assigned.extend(partitions))
    until = time.monotonic() + 20
    while not assigned and time.monotonic() < until:
        member.poll(0.1)
    assert {p.topic for p in assigned} == {topic}
    with pytest.raises(BrokerError):
        log.commit_group_offset(group, topic, 0, GroupOffset(1, ""))
    member.close()
    skip_on_mock(transport, "keeps a member that left")
    log.commit_group_offset(group, topic, 0, GroupOffset(0, ""))


def test_assign_seek_pause_and_eof(
    log: Log, make_topic: MakeTopic, append: Append, unique: Callable[[str], str], transport: str
) -> None:
    topic = make_topic()
    append(topic, 0, [b"x"] * 4)
    place = TopicPartition(topic, 0)
    consumer = log.consumer({**CONSUMER, "group.id": unique("g"), "enable.partition.eof": True})
    consumer.assign([TopicPartition(topic, 0, 2)])
    assert consumer.position([place])[0].offset == -1001
    two, three, eof = take(consumer, 3)
    assert [two.offset(), three.offset()] == [2, 3]
    assert (eof.error().code(), eof.offset()) == (KafkaError._PARTITION_EOF, 4)
    assert consumer.position([place])[0].offset == 4
    consumer.seek(TopicPartition(topic, 0, 1))
    assert [m.offset() for m in take(consumer, 3)] == [1, 2, 3]
    take(consumer, 1)
    consumer.pause([place])
    append(topic, 0, [b"y"])
    assert take(consumer, 1, timeout_s=0.3) == []
    consumer.resume([place])
    assert take(consumer, 1)[0].value() == b"y"
    assert consumer.get_watermark_offsets(place, timeout=10) == (0, 5)
    (end,) = consumer.offsets_for_times([TopicPartition(topic, 0, 2**62)], timeout=10)
    assert end.offset == -1
    if transport != "mock":  # which knows start and end only
        (first,) = consumer.offsets_for_times([TopicPartition(topic, 0, 1)], timeout=10)
        assert first.offset == 0
    assert consumer.assignment() == [place]
    consumer.unassign()
    assert consumer.assignment() == []
    consumer.close()
    with pytest.raises(RuntimeError):
        consumer.poll(0)


def test_the_first_offset_of_a_time_is_by_the_log_s_own_clock(
    log: Log, make_topic: MakeTopic, append: Append, transport: str
) -> None:
    skip_on_mock(transport, "knows start and end only")
    topic = make_topic(partitions=2, settings={"message.timestamp.type": "LogAppendTime"})
    assert log.offset_for_time(topic, 0, 0) is None
    append(topic, 0, [b"x", b"x"])
    time.sleep(0.05)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.05)
    append(topic, 0, [b"x", b"x"])
    assert log.offset_for_time(topic, 0, 0) == 0
    assert log.offset_for_time(topic, 0, between_ms) == 2
    assert log.offset_for_time(topic, 0, between_ms + 3_600_000) is None
    assert log.offsets_for_times({(topic, 0): between_ms, (topic, 1): 0}) == {
        (topic, 0): 2,
        (topic, 1): None,
    }
    assert log.offsets_for_times({}) == {}
    log.delete_records(topic, 0, 1)
    assert log.offset_for_time(topic, 0, 0) == 1
    with pytest.raises(UnknownTopicError):
        log.offset_for_time(topic, 9, 0)


def test_consume_waits_its_whole_time_unless_full(
    make_topic: MakeTopic, append: Append, consumer: LogConsumer
) -> None:
    topic = make_topic()
    append(topic, 0, [b"x"] * 3)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert len(consumer.consume(2, 10)) == 2
    began = time.monotonic()
    assert len(consumer.consume(2, 0.3)) == 1
    assert time.monotonic() - began > 0.25


def test_end_offset_is_quick_enough_to_ask_before_every_stale_answer(
    log: Log, make_topic: MakeTopic
) -> None:
    topic = make_topic()
    log.end_offset(topic, 0)
    began = time.perf_counter()
    for _ in range(50):
        log.end_offset(topic, 0)
    # 0.3 ms on a quiet machine; the bound only catches a reconnect or a fetch wait per call.
    assert (time.perf_counter() - began) / 50 < 0.05


def test_questions_to_nobody_are_bounded() -> None:
    from logtx.journal.logs.kafka import KafkaLog

    log = KafkaLog({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    for ask in (
        lambda: log.end_offset("t", 0, timeout_s=0.2),
        lambda: log.topic_info("t", timeout_s=0.2),
        lambda: log.group_offset("g", "t", 0, timeout_s=0.2),
        lambda: log.create_topic("t", partitions=1, timeout_s=0.2),
    ):
        began = time.monotonic()
        with pytest.raises(BrokerError):
            ask()
        assert time.monotonic() - began < 2
    began = time.monotonic()
    told = log.each_end_offset([("t", 0), ("u", 7)], timeout_s=0.2)
    assert [type(error) for error in told.values()] == [BrokerError, BrokerError]
    assert time.monotonic() - began < 2


def test_groups_with_members(
    log: Log, make_topic: MakeTopic, unique: Callable[[str], str], transport: str
) -> None:
    skip_on_mock(transport, "describes no groups")
    group, empty = unique("group"), unique("group")
    topic = make_topic()
    log.commit_group_offset(empty, topic, 0, GroupOffset(1, ""))
    member = log.consumer({**CONSUMER, "group.id": group})
    member.subscribe([topic])
    until = time.monotonic() + 20
    while not member.assignment() and time.monotonic() < until:
        member.poll(0.1)
    assert log.groups_with_members([group, empty, unique("never")]) == {group}
    (named,) = log.group_members(group)
    assert transport == "memory" or named.endswith(" at 127.0.0.1")
    member.close()
    assert log.group_members(group) == log.group_members(unique("never")) == []
    assert log.groups_with_members([group, empty]) == set()
    assert log.groups_with_members([]) == set()
