"""Input offsets for transactions: steps, resume from the IOV, rewind after an abort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from logtx.consumer.consumer import Consumer
from logtx.coordinator.commands import Binding, GroupOffsets
from logtx.journal.errors import ConfigError, NotSupportedError, OffsetsPendingError
from logtx.journal.memory_log import MemoryLog
from logtx.journal.offsets import OffsetSource
from logtx.journal.position import Place, Position
from logtx.journal.records import OffsetStep

from .conftest import MakeConsumer
from .logs import Transactions, read

PLACE = TopicPartition("t", 0)


class FakeQueries:
    """The coordinator's answers, and its compare-and-set."""

    def __init__(self) -> None:
        self.committed: dict[tuple[str, int], Position] = {}
        self.bound: str | None = None
        self.pending_answers = 0

    def bind_group(self, group: str, transaction_group: str | None) -> Binding:
        assert group, transaction_group is None
        return Binding(self.bound)

    def fetch_offsets(self, group: str, partitions: Sequence[Any] | None = None) -> GroupOffsets:
        assert partitions
        if self.pending_answers > 0:
            self.pending_answers -= 1
            raise OffsetsPendingError(group)
        return GroupOffsets(dict(self.committed))

    def commit(self, steps: Sequence[OffsetStep]) -> bool:
        self.bound = "default"
        for step in steps:
            now = self.committed.get((step.topic, step.partition))
            if (now.place if now else None) != step.from_place:
                return False
        for step in steps:
            self.committed[step.topic, step.partition] = step.to
        return True

    def close(self) -> None:
        pass


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    memory_log.create_topic("t", partitions=2)
    return memory_log


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch, memory_log: MemoryLog) -> FakeQueries:
    fake = FakeQueries()

    def make(log: object, *, timeout_s: float) -> FakeQueries:
        assert (log, timeout_s) == (memory_log, 2)
        return fake

    monkeypatch.setattr("logtx.coordinator.client.CoordinatorQueries", make)
    return fake


@pytest.fixture
def written(log: MemoryLog) -> Transactions:
    transactions = Transactions(log)
    transactions.transaction("t", [b"a1", b"a2"])
    transactions.append("t", [b"p1", b"p2"])
    return transactions


def opened(make_consumer: MakeConsumer, **settings: Any) -> Consumer:
    settings = {"offsets_storage": "transactions", "coordinator_timeout_ms": 2_000} | settings
    consumer = make_consumer(**settings)
    consumer.assign([PLACE, TopicPartition("t", 1)])
    return consumer


def places(steps: Sequence[OffsetStep]) -> list[tuple[int, Place | None, Place]]:
    return [(s.partition, s.from_place, s.to.place) for s in steps]


@pytest.mark.usefixtures("queries", "written")
def test_steps_build_on_each_other_and_name_what_moved_only(
    queries: FakeQueries, make_consumer: MakeConsumer
) -> None:
    consumer = opened(make_consumer)
    source: OffsetSource = consumer
    assert source.group_id == consumer.group_id
    assert source.offset_steps() == []
    assert read(consumer, 1) == [b"a1"]
    first = consumer.offset_steps()
    assert places(first) == [(0, None, Place(2, 1))]
    assert consumer.offset_steps() == []
    assert read(consumer, 2) == [b"a2", b"p1"]
    second = consumer.offset_steps()
    assert places(second) == [(0, Place(2, 1), Place(4, 0))]
    assert queries.commit(first)
    assert queries.commit(second)


@pytest.mark.usefixtures("queries", "written")
def test_a_restart_resumes_from_the_iov(queries: FakeQueries, make_consumer: MakeConsumer) -> None:
    wanted = [b"a1", b"a2", b"p1", b"p2"]
    group = "resuming"
    for value in wanted:
        consumer = opened(make_consumer, group_id=group)
        assert read(consumer, 1) == [value]
        assert queries.commit(consumer.offset_steps())
        consumer.close()


@pytest.mark.usefixtures("queries", "written")
def test_trap_26_after_an_abort_later_steps_are_refused_and_rewind_goes_back(
    queries: FakeQueries, make_consumer: MakeConsumer
) -> None:
    consumer = opened(make_consumer)
    read(consumer, 1)
    assert queries.commit(consumer.offset_steps())
    read(consumer, 1)
    consumer.offset_steps()  # aborted
    read(consumer, 1)
    assert not queries.commit(consumer.offset_steps())
    consumer.rewind()
    assert read(consumer, 3) == [b"a2", b"p1", b"p2"]
    [step] = consumer.offset_steps()
    assert step.from_place == Place(2, 1)
    assert queries.commit([step])


@pytest.mark.usefixtures("queries", "written")
def test_rewind_without_a_commit_goes_back_to_the_start(
    make_consumer: MakeConsumer,
) -> None:
    consumer = opened(make_consumer)
    read(consumer, 4)
    consumer.offset_steps()
    consumer.rewind()
    assert read(consumer, 4) == [b"a1", b"a2", b"p1", b"p2"]
    [step] = consumer.offset_steps()
    assert step.from_place is None


@pytest.mark.usefixtures("queries", "written")
def test_seek_does_not_change_what_the_next_step_goes_from(
    queries: FakeQueries, make_consumer: MakeConsumer
) -> None:
    consumer = opened(make_consumer)
    read(consumer, 3)
    assert queries.commit(consumer.offset_steps())
    consumer.seek(TopicPartition("t", 0, 0))
    assert places(consumer.offset_steps()) == [(0, Place(4), Place(0))]


@pytest.mark.usefixtures("queries", "written")
def test_an_offset_that_a_pending_transaction_holds_is_waited_for_then_an_error(
    queries: FakeQueries, make_consumer: MakeConsumer
) -> None:
    queries.bound = "default"
    queries.pending_answers = 3
    consumer = opened(make_consumer)
    assert queries.pending_answers == 0
    assert read(consumer, 1) == [b"a1"]
    queries.pending_answers = 10**6
    with pytest.raises(OffsetsPendingError):
        consumer.committed([PLACE])


@pytest.mark.usefixtures("queries", "written")
def test_commit_says_to_use_send_offsets(
    make_consumer: MakeConsumer,
) -> None:
    consumer = opened(make_consumer)
    read(consumer, 1)
    with pytest.raises(NotSupportedError, match="send_offsets"):
        consumer.commit()


@pytest.mark.usefixtures("queries", "written")
def test_steps_need_the_iov(make_consumer: MakeConsumer) -> None:
    consumer = make_consumer()
    consumer.assign([PLACE])
    with pytest.raises(ConfigError, match=r"offsets\.storage=transactions"):
        consumer.offset_steps()


def test_transactions_hand_out_steps_that_differ_where_deliveries_do(
    queries: FakeQueries, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    transactions = Transactions(log)
    transactions.with_journal()
    hanging = transactions.begin()
    transactions.write(hanging, "t", [b"h"])
    for number in range(3):
        transactions.transaction("t", [b"%d" % number])
    consumer = opened(make_consumer, group_id="whole")
    stream = consumer.transactions(0.3)
    for _ in range(2):
        next(stream)
        steps = consumer.offset_steps()
        assert steps
        assert all(s.from_place != s.to.place for s in steps)
        assert queries.commit(steps)
    consumer.close()
    again = opened(make_consumer, group_id="whole")
    assert [[r.value() for r in t.records] for t in again.transactions(0.3)] == [[b"2"]]
