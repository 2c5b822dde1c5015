"""Reading group offsets of a broker that is slow to answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.journal.errors import BrokerError
from logtx.journal.logs.interface import LogConsumer
from logtx.journal.logs.kafka import KafkaLog

ANSWER_S = 0.6


class SlowConsumer:
    """Answers late, and must not be closed while it is asked."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.closed_s = 0.0
        self.answered_s = 0.0

    def committed(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        self.asked.set()
        time.sleep(min(ANSWER_S, timeout))
        self.answered_s = time.monotonic()
        return [TopicPartition(partitions[0].topic, partitions[0].partition, 7, metadata="m")]

    def close(self) -> None:
        self.closed_s = time.monotonic()


class SlowLog(KafkaLog):
    """Its consumers are slow."""

    def __init__(self) -> None:
        super().__init__({"bootstrap.servers": "nowhere:1"})
        self.made: list[SlowConsumer] = []

    def consumer(self, config: Mapping[str, Any]) -> LogConsumer:  # noqa: ARG002
        self.made.append(SlowConsumer())
        reader: Any = self.made[-1]
        return reader  # type: ignore[no-any-return]


def ask(log: SlowLog, timeout_s: float) -> int | None:
    found = log.group_offset("group", "topic", 0, timeout_s=timeout_s)
    return found.offset if found else None


def test_who_asks_behind_a_slow_question_waits_no_longer_than_asked() -> None:
    log = SlowLog()
    first = threading.Thread(target=ask, args=(log, 5.0))
    first.start()
    assert log.made or first.is_alive()
    while not log.made:
        time.sleep(0.001)
    assert log.made[0].asked.wait(5)
    began_s = time.monotonic()
    with pytest.raises(BrokerError, match="those who asked before"):
        ask(log, 0.1)
    assert time.monotonic() - began_s < ANSWER_S / 2
    first.join()
    assert ask(log, 5.0) == 7
    assert len(log.made) == 1


def test_a_reader_is_not_closed_while_it_is_asked() -> None:
    log = SlowLog()
    asking = threading.Thread(target=ask, args=(log, 5.0))
    asking.start()
    while not log.made:
        time.sleep(0.001)
    assert log.made[0].asked.wait(5)
    log.close()
    asking.join()
    assert log.made[0].closed_s >= log.made[0].answered_s > 0
