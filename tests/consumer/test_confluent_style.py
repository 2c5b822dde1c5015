"""What programs for confluent-kafka expect of a consumer, beyond what other tests show."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.journal.errors import ConsumerError

from ..conftest import MakeTopic
from .conftest import MakeConsumer


@pytest.mark.parametrize("count", [-100, -1, 1_000_001])
def test_consume_takes_at_most_a_million(count: int, make_consumer: MakeConsumer) -> None:
    with pytest.raises(ValueError, match=r"^num_messages must be between 0 and 1000000 \(1M\)$"):
        make_consumer().consume(count)


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
