"""What programs for confluent-kafka expect of a consumer, beyond what other tests show."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import OFFSET_STORED, KafkaError, Message, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.journal.errors import ConfigError, ConsumerError
from logtx.journal.logs.memory.log import MemoryLog

from ..conftest import MakeTopic
from .conftest import MakeConsumer
from .logs import Transactions, read


@pytest.mark.parametrize("count", [-100, -1, 1_000_001])
def test_consume_takes_at_most_a_million(count: int, make_consumer: MakeConsumer) -> None:
    with pytest.raises(ValueError, match=r"^num_messages must be between 0 and 1000000 \(1M\)$"):
        make_consumer().consume(count)


@pytest.mark.parametrize("name", ["consume", "consume_arrow"])
def test_a_count_that_is_no_whole_number_is_refused_before_anything_is_taken(
    name: str, transactions: Transactions, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    transactions.append(topic, [b"v"])
    consumer = make_consumer()
    consumer.assign([TopicPartition(topic, 0, 0)])
    with pytest.raises(TypeError, match="integer"):
        getattr(consumer, name)(1.0, 5)


def test_what_has_the_wrong_type_raises_a_type_error(make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    calls: list[Any] = [consumer.assign, consumer.position, consumer.committed, consumer.pause]
    for call in calls:
        with pytest.raises(TypeError, match=r"^expected a TopicPartition, not 't'$"):
            call(["t"])
    wrong: Any = None
    with pytest.raises(TypeError, match=r"^expected a TopicPartition, not None$"):
        consumer.seek(wrong)
    wrong = "t"
    with pytest.raises(TypeError, match=r"^expected a Message, not 't'$"):
        consumer.commit(wrong)
    wrong = [1]
    with pytest.raises(TypeError, match=r"^expected a list of topics' names, with 1 in it$"):
        consumer.subscribe(wrong)


def test_a_message_and_offsets_are_not_committed_together(make_consumer: MakeConsumer) -> None:
    consumer = make_consumer(enable_auto_offset_store=False)
    message, offsets = Message(topic="t", partition=0, offset=1), [TopicPartition("t", 0, 1)]
    for call in (consumer.commit, consumer.store_offsets):
        with pytest.raises(ValueError, match=r"^message and offsets are mutually exclusive$"):
            call(message=message, offsets=offsets)


def test_consume_of_nothing_waits_for_nothing(make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    assert consumer.consume(0) == []
    consumer.close()
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.consume(0)


@pytest.mark.parametrize("kind", ["error_cb", "stats_cb"])
def test_an_event_callback_that_raises_does_not_stop_a_close(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    called: list[object] = []

    def callback(told: object) -> None:
        called.append(told)
        raise ZeroDivisionError

    config: dict[str, Any] = {
        "bootstrap.servers": "127.0.0.1:9",
        "group.id": "g",
        "log_level": 0,
        "session.timeout.ms": 1000,
        "statistics.interval.ms": 10,
        kind: callback,
    }
    consumer = Consumer(config)
    consumer.subscribe(["t"])
    time.sleep(0.5)
    with pytest.raises(ZeroDivisionError):
        consumer.poll(1)
    time.sleep(0.5)
    before = len(called)
    consumer.close()
    if len(called) > before:
        assert "callback_raised_at_close" in caplog.text
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll(0)


@pytest.mark.parametrize("call", ["commit", "store_offsets"])
def test_what_was_not_delivered_is_an_invalid_argument(
    call: str, make_topic: MakeTopic, make_consumer: MakeConsumer
) -> None:
    topic = make_topic()
    consumer = make_consumer(enable_auto_commit=False, enable_auto_offset_store=False)
    consumer.assign([TopicPartition(topic, 0)])
    event = Message(error=KafkaError(KafkaError._MAX_POLL_EXCEEDED))
    for given in (Message(topic=topic, partition=0, offset=7), event):
        with pytest.raises(ConsumerError, match="none of the messages") as caught:
            getattr(consumer, call)(given)
        assert caught.value.args[0].code() == KafkaError._INVALID_ARG


def _tail(count: int) -> TopicPartition:
    # librdkafka's OFFSET_TAIL, a macro, which confluent-kafka has no name for
    return TopicPartition("t", 0, -2000 - count)


def test_seek_to_the_committed_position_and_to_the_tail(memory_log: MemoryLog) -> None:
    memory_log.create_topic("t", partitions=1)
    Transactions(memory_log).append("t", [b"%d" % number for number in range(10)])
    config = {"group.id": "g", "enable.auto.commit": False}
    with Consumer(config, log=memory_log) as consumer:
        consumer.assign([TopicPartition("t", 0, 0)])
        assert read(consumer, 4) == [b"0", b"1", b"2", b"3"]
        consumer.commit(asynchronous=False)
        assert read(consumer, 6)[-1] == b"9"
        consumer.seek(TopicPartition("t", 0, OFFSET_STORED))
        assert read(consumer, 1) == [b"4"]
        for tail, expected in ((3, b"7"), (100, b"0")):
            consumer.seek(_tail(tail))
            assert read(consumer, 1) == [expected]
        consumer.assign([_tail(1)])
        assert read(consumer, 1) == [b"9"]


def test_what_is_no_callback_is_refused(memory_log: MemoryLog) -> None:
    match = "on_assign must be callable, not 4"
    with (
        Consumer({"group.id": "g"}, log=memory_log) as consumer,
        pytest.raises(TypeError, match=match),
    ):
        consumer.subscribe(["t"], on_assign=4)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="on_commit must be callable, not 3"):
        Consumer({"group.id": "g", "on_commit": 3}, log=memory_log)
    with pytest.raises(TypeError, match=r"logger must be a logging.Logger, not 3"):
        Consumer({"group.id": "g"}, log=memory_log, logger=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"group.id must be text, not 5"):
        Consumer({"group.id": 5}, log=memory_log)
