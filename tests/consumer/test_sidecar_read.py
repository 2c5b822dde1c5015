"""Reading ranges of sidecars: what one range leaves to the next, and to its neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.pointers import StreamRequest
from logtx.consumer.sidecar_read import AHEAD_MAX_RECORDS, SidecarReader
from logtx.journal.control import TopicPartition
from logtx.journal.errors import BrokerError
from logtx.journal.logs.interface import Log


class Waiting:
    """A buffer that waits for a range of its topic's sidecar."""

    def __init__(self, topic: str) -> None:
        self.sidecar = f"{topic}._txnlog", 0
        self.pointer, self.ahead, self.is_open = 5, 0, False

    def stream_wanted(self) -> StreamRequest:
        return StreamRequest(b"x" * 16, self.pointer, self.sidecar, 0, 9, self.is_open, self.ahead)

    def open_stream(self, *_: object) -> None:
        self.is_open = True

    def reopen_stream(self) -> None:
        self.is_open = False


class Refused:
    """An event in the place of a sidecar's records."""

    def __init__(self, sidecar: TopicPartition) -> None:
        self._sidecar = sidecar

    def topic(self) -> str:
        return self._sidecar[0]

    def partition(self) -> int:
        return self._sidecar[1]

    def error(self) -> KafkaError:
        return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


class Fetched:
    """The second consumer, which tells what is assigned and paused, and gives out `events`."""

    def __init__(self) -> None:
        self.assigned: set[TopicPartition] = set()
        self.paused: set[TopicPartition] = set()
        self.events: list[Any] = []

    def incremental_assign(self, places: Sequence[KafkaPartition]) -> None:
        self.assigned |= {(p.topic, p.partition) for p in places}

    def incremental_unassign(self, places: Sequence[KafkaPartition]) -> None:
        self.assigned -= {(p.topic, p.partition) for p in places}

    def pause(self, places: Sequence[KafkaPartition]) -> None:
        self.paused |= {(p.topic, p.partition) for p in places}

    def resume(self, places: Sequence[KafkaPartition]) -> None:
        self.paused -= {(p.topic, p.partition) for p in places}

    def poll(self, _: float) -> Any:
        return self.events.pop() if self.events else None

    def consume(self, *_: object) -> list[Any]:
        return []


class Brokers:
    """A log whose sidecars hold all that is asked for."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.asked: list[str] = []
        self.fetched = Fetched()
        self.leaderless = ""

    def start_offset(self, topic: str, _: int, *, timeout_s: float) -> int:
        assert timeout_s > 0
        self.asked.append(topic)
        if topic == self.leaderless:
            self.now_s += timeout_s
            raise BrokerError("no leader")
        return 0

    def end_offset(self, *_: object, timeout_s: float) -> int:
        assert timeout_s > 0
        return 10

    def consumer(self, _: object) -> Fetched:
        return self.fetched


def reader_of(log: Brokers) -> SidecarReader:
    return SidecarReader(cast(Log, log), {}, lambda: log.now_s)


def step(reader: SidecarReader, *buffers: Waiting) -> bool:
    return reader.step(cast(list[PartitionBuffer], list(buffers)), 0)


def test_a_range_that_was_paused_leaves_no_pause_to_the_next() -> None:
    log, buffer = Brokers(), Waiting("a")
    reader = reader_of(log)
    step(reader, buffer)
    buffer.ahead = AHEAD_MAX_RECORDS + 1
    step(reader, buffer)
    assert log.fetched.paused == {buffer.sidecar}
    buffer.pointer, buffer.ahead, buffer.is_open = 6, 0, False
    step(reader, buffer)
    assert log.fetched.assigned == {buffer.sidecar}
    assert not log.fetched.paused


def test_a_sidecar_without_a_leader_holds_up_no_other() -> None:
    log, without, other = Brokers(), Waiting("a"), Waiting("b")
    log.leaderless = without.sidecar[0]
    reader = reader_of(log)
    step(reader, without, other)
    assert log.fetched.assigned == {other.sidecar}
    for _ in range(10):  # And is not asked again at once.
        log.now_s += 0.1
        step(reader, without, other)
    assert log.asked.count(log.leaderless) == 1
    log.leaderless = ""
    log.now_s += 10
    step(reader, without, other)
    assert log.fetched.assigned == {without.sidecar, other.sidecar}


def test_a_sidecar_that_refuses_is_asked_again_after_a_pause() -> None:
    log, buffer = Brokers(), Waiting("a")
    reader = reader_of(log)
    for _ in range(100):
        log.fetched.events = [Refused(buffer.sidecar)]
        step(reader, buffer)
        log.now_s += 0.01
    assert 2 <= len(log.asked) <= 5
