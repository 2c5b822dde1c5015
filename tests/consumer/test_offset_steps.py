"""Input offsets for transactions: steps, resume from the IOV, rewind after an abort."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, TopicPartition

from logtx.consumer import topic_ids
from logtx.consumer.consumer import Consumer
from logtx.consumer.reading import Reading
from logtx.coordinator.protocol.commands import Binding, Claimed, GroupOffsets
from logtx.journal.control import TopicPartition as Key
from logtx.journal.errors import (
    ClaimFencedError,
    ConfigError,
    CoordinatorNotAvailableError,
    NotSupportedError,
    OffsetsPendingError,
    TopicRecreatedError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.offset_source import OffsetSource
from logtx.journal.position import Place, Position
from logtx.journal.records.types import OffsetStep

from .conftest import MakeConsumer
from .logs import Transactions, read, wait_for

PLACE = TopicPartition("t", 0)


class FakeQueries:
    """Answers as the coordinator does, with its compare-and-set."""

    def __init__(self) -> None:
        self.committed: dict[Key, Position] = {}
        self.bound: str | None = None
        self.pending_answers = 0
        self.claims: dict[Key, tuple[int, int]] = {}
        """Partition → (number, claimant)."""
        self.asked: list[tuple[tuple[Key, ...], Mapping[Key, int] | None]] = []
        self.lost_answers = 0
        self._numbers = itertools.count(1)

    def bind_group(
        self, group: str, transaction_group: str | None, *, timeout_s: float | None = None
    ) -> Binding:
        assert timeout_s is None or timeout_s > 0
        assert group
        assert transaction_group is None, "only a producer binds"
        return Binding(self.bound)

    def claim_offsets(
        self,
        group: str,
        transaction_group: str,
        partitions: Sequence[Key],
        claimant: int,
        expected: Mapping[Key, int] | None,
    ) -> Claimed:
        assert (self.bound, bool(group)) == (transaction_group, True)
        keys = tuple(partitions)
        self.asked.append((keys, expected))
        held = {self.claims.get(key) for key in keys}
        [number] = {h[0] for h in held if h and len(held) == 1 and h[1] == claimant} or {None}
        if number is None:
            now = {key: self.claims[key][0] for key in keys if key in self.claims}
            if expected is not None and now != dict(expected):
                raise ClaimFencedError(group)
            number = next(self._numbers)
            self.claims |= dict.fromkeys(keys, (number, claimant))
        if self.lost_answers > 0:
            self.lost_answers -= 1
            raise CoordinatorNotAvailableError(group)
        return Claimed(number, GroupOffsets({k: p for k, p in self.committed.items() if k in keys}))

    def fetch_offsets(
        self,
        group: str,
        partitions: Sequence[Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> GroupOffsets:
        assert timeout_s is None or timeout_s > 0
        assert partitions
        if self.pending_answers > 0:
            self.pending_answers -= 1
            raise OffsetsPendingError(group)
        return GroupOffsets(dict(self.committed))

    def commit(self, steps: Sequence[OffsetStep]) -> bool:
        self.bound = self.bound or "default"
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

    def make(log: object, *, timeout_s: float, tls: object) -> FakeQueries:
        assert (log, timeout_s, tls) == (memory_log, 2, None)
        return fake

    monkeypatch.setattr("logtx.coordinator.client.queries.CoordinatorQueries", make)
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


def created_anew(log: MemoryLog, *values: bytes) -> Transactions:
    """Deletes the topic, creates it again, and fills it."""
    log.delete_topic("t")
    log.create_topic("t", partitions=2)
    transactions = Transactions(log)
    transactions.append("t", list(values))
    return transactions


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers need not tell an id for long."""
    monkeypatch.setattr(topic_ids, "CONFIRM_S", 0.1)
    monkeypatch.setattr(topic_ids, "AGAIN_S", 0.01)


def stood_in_the_former(queries: FakeQueries, make: MakeConsumer, log: MemoryLog) -> None:
    """Lets a group read all of a topic, which is created anew then, with more records."""
    consumer = opened(make, group_id="g")
    read(consumer, 4)
    steps = consumer.offset_steps()
    assert {s.to.topic_id for s in steps} == {log.topic_info("t").topic_id}
    assert queries.commit(steps)
    consumer.close()
    created_anew(log, *(b"n%d" % n for n in range(9)))


@pytest.mark.usefixtures("written", "quick")
@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_a_place_in_a_topic_that_was_deleted_says_nothing_of_the_new_one(
    reset: str, queries: FakeQueries, make_consumer: MakeConsumer, log: MemoryLog
) -> None:
    # It has outgrown the committed offset: all below would be passed over without a word.
    stood_in_the_former(queries, make_consumer, log)
    for _ in range(2):
        with pytest.raises(TopicRecreatedError, match="logtx group reset g --topic t"):
            opened(make_consumer, group_id="g", auto_offset_reset=reset)


@pytest.mark.usefixtures("written", "quick")
def test_a_broker_that_tells_of_the_former_topic_stops_nobody(
    queries: FakeQueries,
    make_consumer: MakeConsumer,
    log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    consumer = opened(make_consumer, group_id="g")
    read(consumer, 1)
    assert queries.commit(consumer.offset_steps())
    consumer.close()
    answers, ask = iter([{"t": "former"}, {"t": "former"}, {}]), log.topic_ids
    monkeypatch.setattr(log, "topic_ids", lambda *a, **k: next(answers, None) or ask(*a, **k))
    assert read(opened(make_consumer, group_id="g"), 3) == [b"a2", b"p1", b"p2"]


@pytest.mark.usefixtures("written", "quick")
@pytest.mark.parametrize("committed", [False, True])
def test_a_running_consumer_that_comes_to_a_new_topic_stops_at_each_poll(
    committed: bool, queries: FakeQueries, make_consumer: MakeConsumer, log: MemoryLog
) -> None:
    queries.bound = "default"
    consumer = opened(make_consumer, group_id="g", auto_offset_reset="earliest")
    read(consumer, 4)
    if committed:
        assert queries.commit(consumer.offset_steps())
    created_anew(log, b"n0")
    consumer._positions.rewind_later()
    for _ in range(2):
        with pytest.raises(TopicRecreatedError):
            consumer.poll(1)


@pytest.mark.usefixtures("quick")
def test_that_no_id_is_told_proves_nothing(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    known = log.topic_info("t").topic_id
    told = topic_ids.TopicIds(log)
    assert not told.is_another("t", known)
    assert told.is_another("t", "former")
    assert told.becomes_another("t", "former")
    for ids in ({}, {"t": ""}):
        monkeypatch.setattr(log, "topic_ids", lambda *_, ids=ids, **__: ids)
        assert not told.is_another("t", known)
        assert not told.becomes_another("t", known)
    assert not told.is_another("t", "")


@pytest.mark.usefixtures("written")
def test_a_position_without_the_id_of_its_topic_is_believed(
    queries: FakeQueries, make_consumer: MakeConsumer, log: MemoryLog
) -> None:
    consumer = opened(make_consumer, group_id="g")
    read(consumer, 4)
    [step] = consumer.offset_steps()
    assert queries.commit([replace(step, to=replace(step.to, topic_id=""))])
    consumer.close()
    created_anew(log, *(b"n%d" % n for n in range(9)))
    assert read(opened(make_consumer, group_id="g"), 4) == [b"n5", b"n6", b"n7", b"n8"]


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


@pytest.mark.usefixtures("queries")
@pytest.mark.parametrize("then", ["steps", "rewind"])
def test_what_was_delivered_before_an_exception_stays_part_of_the_next_step(
    then: str, make_consumer: MakeConsumer, written: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = opened(make_consumer)
    read(consumer, 1)
    written.append("t", [b"p3"])
    with monkeypatch.context() as patch:
        patch.setattr(Reading, "_sort", _raise)
        with pytest.raises(ValueError, match="of a callback"):
            consumer._reading.fetch(1)
    consumer._reading.fetch(0.1)
    if then == "rewind":
        consumer.rewind()
        assert read(consumer, 5) == [b"a1", b"a2", b"p1", b"p2", b"p3"]
    else:
        assert places(consumer.offset_steps()) == [(0, None, Place(2, 1))]
        assert read(consumer, 4) == [b"a2", b"p1", b"p2", b"p3"]


def _raise(*_: object) -> None:
    raise ValueError("of a callback")


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
    assert queries.pending_answers == 3, "a claim waits for nobody"
    assert consumer.committed([PLACE])[0].offset == OFFSET_INVALID
    assert queries.pending_answers == 0
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


def claims_of(consumer: Consumer) -> set[int | None]:
    return {step.claim for step in consumer.offset_steps()}


def test_nothing_is_claimed_in_a_group_that_never_committed(
    queries: FakeQueries, written: Transactions, make_consumer: MakeConsumer
) -> None:
    consumer = opened(make_consumer)
    assert read(consumer, 1) == [b"a1"]
    assert claims_of(consumer) == {None}
    assert (queries.bound, queries.claims) == (None, {})
    del written


@pytest.mark.usefixtures("written")
def test_steps_carry_the_claim_under_which_they_were_read(
    queries: FakeQueries, make_consumer: MakeConsumer
) -> None:
    queries.bound = "ours"
    consumer = opened(make_consumer)
    assert queries.asked == [((("t", 0), ("t", 1)), None)]
    read(consumer, 1)
    steps = consumer.offset_steps()
    assert [step.claim for step in steps] == [1]
    assert queries.commit(steps)
    read(consumer, 1)
    consumer.rewind()
    assert queries.asked[-1] == ((("t", 0), ("t", 1)), {("t", 0): 1, ("t", 1): 1})
    consumer.seek(TopicPartition("t", 0, 0))
    read(consumer, 3)
    assert claims_of(consumer) == {2}


@pytest.mark.usefixtures("written")
def test_a_claim_whose_answer_was_lost_does_not_fence_its_own_repetition(
    queries: FakeQueries, make_consumer: MakeConsumer
) -> None:
    queries.bound = "default"
    consumer = opened(make_consumer)
    read(consumer, 1)
    queries.lost_answers = 2
    for _ in range(2):
        with pytest.raises(CoordinatorNotAvailableError):
            consumer.rewind()
    assert consumer.offset_steps() == [], "what was delivered is to be delivered again"
    assert read(consumer, 1) == [b"a1"]
    assert claims_of(consumer) == {2}


@pytest.mark.usefixtures("written")
def test_what_was_assigned_by_hand_and_claimed_by_another_is_an_error_until_assigned_again(
    queries: FakeQueries, make_consumer: MakeConsumer
) -> None:
    queries.bound = "default"
    zombie = opened(make_consumer, group_id="g")
    read(zombie, 1)
    live = opened(make_consumer, group_id="g")
    with pytest.raises(ClaimFencedError):
        zombie.rewind()
    with pytest.raises(ClaimFencedError):
        zombie.poll(0)
    assert zombie.offset_steps() == []
    assert queries.claims["t", 0][0] == 2, "the live one's"
    assert read(live, 1) == [b"a1"]
    zombie.assign([PLACE])
    assert read(zombie, 1) == [b"a1"]


@pytest.mark.usefixtures("written")
def test_trap_29_a_zombie_listens_to_its_group_before_it_claims_again(
    queries: FakeQueries, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.consumer.positions.FENCED_PAUSE_MIN_S", 0.4)
    queries.bound = "default"
    consumer = make_consumer(offsets_storage="transactions", coordinator_timeout_ms=2_000)
    consumer.subscribe(["t"])
    assert read(consumer, 2) == [b"a1", b"a2"]
    claimed = len(queries.asked)
    queries.claims["t", 0] = (77, 7)
    assert queries.commit([OffsetStep("t", 0, None, Position.at(3))])  # another consumer's
    began_s = time.monotonic()
    consumer.rewind()
    assert consumer.poll(0.05) is None, "it may be another's"
    assert consumer.offset_steps() == []
    assert queries.claims["t", 0] == (77, 7)
    # The group takes nothing away, so the partition is still ours.
    assert read(consumer, 2) == [b"p1", b"p2"]
    assert time.monotonic() - began_s > 0.2
    assert [expected is None for _, expected in queries.asked[claimed:]] == [False, True]
    assert claims_of(consumer) == {queries.claims["t", 0][0]}


@pytest.mark.usefixtures("written")
def test_trap_29_a_zombie_whose_group_goes_on_without_it_claims_nothing(
    queries: FakeQueries,
    log: MemoryLog,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logtx.consumer.positions.FENCED_PAUSE_MIN_S", 1.0)
    queries.bound = "default"
    settings = {"offsets_storage": "transactions", "coordinator_timeout_ms": 2_000}
    zombie = make_consumer(group_id="g", **settings)
    zombie.subscribe(["t"])
    read(zombie, 1)
    log.expel_member("g", str(zombie.memberid()))
    live = make_consumer(group_id="g", **settings)
    live.subscribe(["t"])
    assert read(live, 1) == [b"a1"]
    claims = dict(queries.claims)
    zombie.rewind()
    assert zombie.poll(0.1) is None
    assert (zombie.assignment(), queries.claims) == ([], claims)


@pytest.mark.usefixtures("written")
def test_finding_23_a_zombie_that_never_waits_listens_too(
    queries: FakeQueries,
    log: MemoryLog,
    make_consumer: MakeConsumer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logtx.consumer.positions.FENCED_PAUSE_MIN_S", 0.2)
    queries.bound = "default"
    settings = {"offsets_storage": "transactions", "coordinator_timeout_ms": 2_000}
    zombie = make_consumer(group_id="g", **settings)
    zombie.subscribe(["t"])
    read(zombie, 1)
    log.expel_member("g", str(zombie.memberid()))
    live = make_consumer(group_id="g", **settings)
    live.subscribe(["t"])
    assert read(live, 1) == [b"a1"]
    claims = dict(queries.claims)
    zombie.rewind()
    time.sleep(0.3)
    assert zombie.poll(0) is None
    assert (zombie.assignment(), queries.claims) == ([], claims)


@pytest.mark.usefixtures("written")
def test_finding_23_a_consumer_that_never_waits_claims_again_what_is_its_own(
    queries: FakeQueries, make_consumer: MakeConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.consumer.positions.FENCED_PAUSE_MIN_S", 0.2)
    queries.bound = "default"
    consumer = make_consumer(offsets_storage="transactions", coordinator_timeout_ms=2_000)
    consumer.subscribe(["t"])
    assert read(consumer, 2) == [b"a1", b"a2"]
    queries.claims["t", 0] = (77, 7)
    consumer.rewind()
    found = None
    deadline_s = time.monotonic() + 10
    while found is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
        found = consumer.poll(0)
    assert found.value() == b"a1"


@pytest.mark.usefixtures("written")
def test_trap_24_what_was_made_of_input_that_the_group_took_away_is_not_committed(
    queries: FakeQueries, log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    settings = {"offsets_storage": "transactions", "coordinator_timeout_ms": 2_000}
    consumer = make_consumer(group_id="g", **settings)
    consumer.subscribe(["t"])
    assert read(consumer, 2) == [b"a1", b"a2"]
    assert queries.commit(consumer.offset_steps())
    assert read(consumer, 1) == [b"p1"]  # some output is made of it
    log.expel_member("g", str(consumer.memberid()))
    # The group assigns the partition again, and delivery goes on from what is committed.
    assert read(consumer, 2) == [b"p2", b"p1"]
    with pytest.raises(ClaimFencedError, match="abort"):
        consumer.offset_steps()
    consumer.rewind()
    assert read(consumer, 2) == [b"p1", b"p2"]
    assert queries.commit(consumer.offset_steps())


@pytest.mark.usefixtures("queries")
def test_trap_24_what_was_passed_over_and_never_delivered_is_nobodys_loss(
    log: MemoryLog, make_consumer: MakeConsumer
) -> None:
    settings = {"offsets_storage": "transactions", "coordinator_timeout_ms": 2_000}
    consumer = make_consumer(group_id="g", **settings)
    consumer.subscribe(["t"])
    transactions = Transactions(log)
    transactions.transaction("t", [b"never"], commit=False)
    place = TopicPartition("t", 0)
    wait_for(lambda: consumer.position([place])[0].offset == 2, consumer)
    log.expel_member("g", str(consumer.memberid()))
    transactions.append("t", [b"p"])
    assert read(consumer, 1) == [b"p"]
    assert places(consumer.offset_steps()) == [(0, None, Place(3))]
