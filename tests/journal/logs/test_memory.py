"""The log in memory: its faults, its consumer groups, its producer's queue."""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition

from logtx.journal.errors import BrokerError
from logtx.journal.logs.interface import GroupOffset, LogConsumer, LogProducer
from logtx.journal.logs.memory.log import MemoryLog

Report = tuple[int | None, int | None]


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    memory_log.create_topic("t", partitions=4)
    return memory_log


def reports(producer: LogProducer, count: int = 1) -> list[Report]:
    """Produce records to t-0 that report (error code, offset) into the list returned."""
    found: list[Report] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        found.append((error.code() if error else None, message.offset()))

    for _ in range(count):
        producer.produce("t", b"v", partition=0, on_delivery=delivered)
    return found


def test_one_name_is_one_log_until_it_is_dropped() -> None:
    log = MemoryLog.named("memory://same")
    assert MemoryLog.named("same") is log
    MemoryLog.drop("same")
    assert MemoryLog.named("same") is not log
    MemoryLog.drop("same")


def test_failed_appends_take_no_offset(log: MemoryLog) -> None:
    producer = log.producer({})
    log.fail_appends("t", 0, KafkaError.NOT_ENOUGH_REPLICAS, count=2)
    found = reports(producer, 3)
    assert producer.flush() == 0
    assert found == [(KafkaError.NOT_ENOUGH_REPLICAS, None)] * 2 + [(None, 0)]


def test_held_appends_land_later_and_in_order(log: MemoryLog) -> None:
    producer = log.producer({})
    log.hold_appends("t", 0)
    found = reports(producer, 3)
    assert (producer.poll(0.01), producer.flush(0.01), log.end_offset("t", 0)) == (0, 3, 0)
    assert log.append_directly("t", 0, b"foreign") == 0
    log.release_appends("t", 0, count=1)
    assert (producer.poll(0), log.end_offset("t", 0), log.held_appends("t", 0)) == (1, 2, 2)
    log.release_appends("t", 0)
    assert producer.flush() == 0
    assert found == [(None, 1), (None, 2), (None, 3)]


def test_a_held_append_times_out_and_lands_all_the_same(log: MemoryLog) -> None:
    producer = log.producer({"message.timeout.ms": 20})
    log.hold_appends("t", 0)
    found = reports(producer)
    assert producer.poll(1) == 1
    log.release_appends("t", 0)
    assert (producer.flush(), log.end_offset("t", 0)) == (0, 1)
    assert found == [(KafkaError._MSG_TIMED_OUT, None)]


def test_a_lost_acknowledgement_is_a_time_out_of_something_appended(log: MemoryLog) -> None:
    producer = log.producer({})
    log.lose_acknowledgements("t", 0)
    found = reports(producer, 2)
    producer.flush()
    assert found == [(KafkaError._MSG_TIMED_OUT, None), (None, 1)]
    assert log.end_offset("t", 0) == 2


IDEMPOTENT = {"enable.idempotence": True, "retry.backoff.ms": 10}


def test_a_record_without_an_answer_is_sent_again_and_known(log: MemoryLog) -> None:
    producer = log.producer(IDEMPOTENT)
    log.lose_answers("t", 0)
    found = reports(producer, 3)
    assert (producer.poll(0), log.end_offset("t", 0)) == (0, 1)
    assert producer.flush(5) == 0
    assert (found, log.end_offset("t", 0)) == ([(None, 0), (None, 1), (None, 2)], 3)


@pytest.mark.parametrize("failing", ["refused", "timed out"])
def test_behind_a_failure_it_is_written_again_trap_295(log: MemoryLog, failing: str) -> None:
    producer = log.producer(IDEMPOTENT)
    log.create_topic("u", partitions=1)
    log.lose_answers("t", 0)
    found = reports(producer, 2)
    if failing == "refused":
        log.fail_appends("u", 0, KafkaError.MSG_SIZE_TOO_LARGE)
    else:
        log.lose_acknowledgements("u", 0)
    producer.produce("u", b"another", partition=0)
    assert producer.flush(5) == 0
    assert (found, log.end_offset("t", 0)) == ([(None, 1), (None, 2)], 3)


def test_a_time_out_without_a_leader_takes_a_new_epoch_later_trap_295(log: MemoryLog) -> None:
    producer = log.producer({**IDEMPOTENT, "message.timeout.ms": 500})
    log.unavailable()
    lost = reports(producer)
    assert producer.flush(5) == 0
    log.unavailable(False)
    assert lost == [(KafkaError._MSG_TIMED_OUT, None)]
    log.create_topic("u", partitions=1)
    log.lose_answers("u", 0)
    producer.produce("u", b"written", partition=0)
    assert log.end_offset("u", 0) == 1
    assert reports(producer) is not None
    assert producer.flush(5) == 0
    assert (log.end_offset("t", 0), log.end_offset("u", 0)) == (1, 2)


def test_without_idempotence_it_is_written_again_in_any_case(log: MemoryLog) -> None:
    producer = log.producer({"retry.backoff.ms": 10})
    log.lose_answers("t", 0)
    found = reports(producer)
    assert producer.flush(5) == 0
    assert (found, log.end_offset("t", 0)) == ([(None, 1)], 2)


def test_what_is_sent_again_may_lose_its_answer_again_or_time_out(log: MemoryLog) -> None:
    producer = log.producer({**IDEMPOTENT, "message.timeout.ms": 200})
    log.lose_answers("t", 0, 2)
    found = reports(producer, 2)
    assert producer.flush(5) == 0
    assert (found, log.end_offset("t", 0)) == ([(None, 0), (None, 1)], 2)
    log.lose_answers("t", 0)
    producer.produce("t", b"late", partition=0)
    log.unavailable()
    assert producer.flush(5) == 0
    log.unavailable(False)
    assert log.end_offset("t", 0) == 3


def test_purge_fails_what_has_no_place(log: MemoryLog) -> None:
    producer = log.producer({})
    log.hold_appends("t", 0)
    found = reports(producer)
    producer.purge()
    assert producer.flush() == 0
    log.release_appends("t", 0)
    assert (found, log.end_offset("t", 0)) == ([(KafkaError._PURGE_INFLIGHT, None)], 1)
    log.unavailable()
    found = reports(producer)
    producer.purge()
    assert producer.flush() == 0
    log.unavailable(False)
    assert (found, log.end_offset("t", 0)) == ([(KafkaError._PURGE_QUEUE, None)], 1)


def test_an_outage_times_everything_out_and_ends(log: MemoryLog) -> None:
    patient, hasty = log.producer({}), log.producer({"message.timeout.ms": 10})
    consumer = log.consumer({"group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    log.unavailable()
    kept, given_up = reports(patient), reports(hasty)
    assert hasty.poll(1) == 1
    assert given_up == [(KafkaError._MSG_TIMED_OUT, None)]
    with pytest.raises(BrokerError):
        log.end_offset("t", 0, timeout_s=0.01)
    with pytest.raises(KafkaException):
        consumer.committed([TopicPartition("t", 0)], timeout=0.01)
    assert consumer.poll(0.01) is None
    threading.Timer(0.05, log.unavailable, [False]).start()
    assert (patient.flush(5), kept) == (0, [(None, 0)])
    assert (consumer.poll(5).offset(), log.end_offset("t", 0)) == (0, 1)


def test_unknown_topics_fail_in_the_report(log: MemoryLog) -> None:
    producer, codes = log.producer({}), []
    for topic, partition in (("none", -1), ("t", 4)):
        producer.produce(
            topic, b"v", partition=partition, on_delivery=lambda e, _: codes.append(e.code())
        )
    producer.flush()
    assert codes == [KafkaError.UNKNOWN_TOPIC_OR_PART] * 2


def test_the_queue_fills_up_when_nobody_polls(log: MemoryLog) -> None:
    producer = log.producer({"queue.buffering.max.messages": 2})
    reports(producer, 2)
    with pytest.raises(BufferError):
        reports(producer)
    producer.poll(0)
    reports(producer)


def test_a_callback_that_raises_ends_the_call_and_loses_only_its_own(log: MemoryLog) -> None:
    producer = log.producer({})

    def boom(*_: object) -> None:
        raise ZeroDivisionError

    producer.produce("t", b"v", partition=0, on_delivery=boom)
    found = reports(producer)
    with pytest.raises(ZeroDivisionError):
        producer.poll(0)
    assert (producer.poll(0), found, len(producer)) == (1, [(None, 1)], 0)


def test_null_keys_go_round(log: MemoryLog) -> None:
    producer = log.producer({})
    for _ in range(8):
        producer.produce("t", b"v")
    producer.flush()
    assert [log.end_offset("t", p) for p in range(4)] == [2, 2, 2, 2]


def test_poll_wakes_at_once_when_a_record_comes(log: MemoryLog) -> None:
    consumer = log.consumer({"group.id": "g"})
    consumer.assign([TopicPartition("t", 0, OFFSET_END)])
    threading.Timer(0.05, log.append_directly, ["t", 0, b"v"]).start()
    began = time.monotonic()
    message = consumer.poll(5)
    assert message is not None
    assert message.value() == b"v"
    assert time.monotonic() - began < 3


def test_a_truncated_log_resets_its_readers(log: MemoryLog) -> None:
    consumer = log.consumer({"group.id": "g", "auto.offset.reset": "error"})
    for _ in range(3):
        log.append_directly("t", 0, b"v")
    consumer.assign([TopicPartition("t", 0, 0)])
    assert len(consumer.consume(3, 1)) == 3
    log.truncate("t", 0, 1)
    assert log.end_offset("t", 0) == 1
    event = consumer.poll(0)
    assert event is not None
    assert event.error().code() == KafkaError._AUTO_OFFSET_RESET
    assert consumer.poll(0) is None


def test_start_without_a_committed_offset_follows_the_reset(log: MemoryLog) -> None:
    log.append_directly("t", 0, b"v")
    starts = {"earliest": 0, "latest": None, "error": KafkaError._AUTO_OFFSET_RESET}
    for reset, expected in starts.items():
        consumer = log.consumer({"group.id": "g", "auto.offset.reset": reset})
        consumer.assign([TopicPartition("t", 0)])
        message = consumer.poll(0)
        if message is None:
            assert expected is None
        else:
            error = message.error()
            assert (error.code() if error else message.offset()) == expected


def test_seek_right_after_assign_fails_as_in_librdkafka(log: MemoryLog) -> None:
    consumer = log.consumer({"group.id": "g"})
    consumer.assign([TopicPartition("t", 0, 0)])
    with pytest.raises(KafkaException):
        consumer.seek(TopicPartition("t", 0, 0))


class Follower:
    """A group member that keeps an account of its callbacks."""

    def __init__(self, log: MemoryLog, **config: object) -> None:
        self.events: list[tuple[str, list[int]]] = []
        self.consumer: LogConsumer = log.consumer(
            {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
            | {name.replace("_", "."): value for name, value in config.items()}
        )
        self.consumer.subscribe(
            ["t"],
            on_assign=lambda _, ps: self.note("assign", ps),
            on_revoke=lambda _, ps: self.note("revoke", ps),
            on_lost=lambda _, ps: self.note("lost", ps),
        )

    def note(self, what: str, partitions: list[TopicPartition]) -> None:
        self.events.append((what, [p.partition for p in partitions]))


def settle(*followers: Follower) -> list[list[int]]:
    """Poll in turn until everybody has what the group gives; the shares."""
    for _ in range(3):
        for follower in followers:
            follower.consumer.poll(0)
    return [[p.partition for p in f.consumer.assignment()] for f in followers]


def test_members_share_by_ranges_and_give_back_before_others_get(log: MemoryLog) -> None:
    first = Follower(log)
    assert settle(first) == [[0, 1, 2, 3]]
    second = Follower(log)
    assert second.consumer.poll(0.01) is None
    assert second.events == []  # the first one has not given anything back yet
    assert settle(first, second) == [[0, 1], [2, 3]]
    assert first.events[1:] == [("revoke", [0, 1, 2, 3]), ("assign", [0, 1])]
    third = Follower(log)
    assert settle(first, second, third) == [[0, 1], [2], [3]]
    first.consumer.close()
    assert first.events[-1] == ("revoke", [0, 1])
    assert settle(second, third) == [[0, 1], [2, 3]]


def test_an_expelled_member_loses_its_partitions_and_may_not_commit(log: MemoryLog) -> None:
    zombie, heir = Follower(log), Follower(log)
    settle(zombie, heir)
    log.expel_member("g", str(zombie.consumer.memberid()))
    with pytest.raises(KafkaException) as raised:
        zombie.consumer.commit(offsets=[TopicPartition("t", 0, 1)], asynchronous=False)
    assert raised.value.args[0].code() == KafkaError.UNKNOWN_MEMBER_ID
    assert settle(heir) == [[0, 1, 2, 3]]
    shares = settle(zombie, heir)
    assert ("lost", [0, 1]) in zombie.events
    assert sorted(p for share in shares for p in share) == [0, 1, 2, 3]


def test_what_was_fetched_comes_before_a_rebalance_and_goes_with_its_partitions(
    log: MemoryLog,
) -> None:
    for partition in range(4):
        log.append_directly("t", partition, b"v")
    first = Follower(log)
    settle(first)
    first.consumer.assign([TopicPartition("t", number, 0) for number in range(4)])
    taken: list[int] = []
    take = first.consumer._take
    first.consumer._take = lambda found, limit: (take(found, limit), taken.append(len(found)))
    log.expel_member("g", str(first.consumer.memberid()))
    found = first.consumer.consume(10, 0)
    assert taken[0] == 4
    assert ("lost", [0, 1, 2, 3]) in first.events
    # It was given them again within the same call: they come once.
    assert sorted(int(m.partition() or 0) for m in found) == [0, 1, 2, 3]


def test_answers_to_commits_come_late(log: MemoryLog) -> None:
    heard: list[int] = []
    settings = {"group.id": "g", "enable.auto.commit": False}
    consumer = log.consumer(
        {**settings, "on_commit": lambda _, places: heard.append(places[0].offset)}
    )
    log.hold_answers()
    for offset in (1, 2):
        consumer.commit(offsets=[TopicPartition("t", 0, offset)])
        consumer.poll(0)
    assert heard == []
    assert log.group_offset("g", "t", 0) == GroupOffset(2, "")
    log.hold_answers(False)
    consumer.poll(0)
    assert heard == [1, 2]
    log.hold_answers()
    consumer.commit(offsets=[TopicPartition("t", 0, 3)])
    consumer.close()
    assert heard == [1, 2, 3]


def test_a_silent_member_is_expelled(log: MemoryLog) -> None:
    silent, heir = Follower(log, max_poll_interval_ms=50), Follower(log)
    settle(silent, heir)
    until = time.monotonic() + 5
    while len(heir.consumer.assignment()) < 4 and time.monotonic() < until:
        heir.consumer.poll(0.02)
    assert len(heir.consumer.assignment()) == 4


def test_offsets_are_committed_in_on_revoke_and_taken_up(log: MemoryLog) -> None:
    for _ in range(4):
        log.append_directly("t", 0, b"v")
    consumer = log.consumer(
        {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )

    def revoked(me: LogConsumer, partitions: list[TopicPartition]) -> None:
        assert len(partitions) == 4
        me.commit(offsets=[TopicPartition("t", 0, 2, "half")], asynchronous=False)

    consumer.subscribe(["t"], on_revoke=revoked)
    assert len(consumer.consume(4, 1)) == 4
    consumer.close()
    assert log.group_offset("g", "t", 0) == GroupOffset(2, "half")
    again = Follower(log)
    message = again.consumer.poll(0)
    assert message is not None
    assert message.offset() == 2


def test_a_topic_that_comes_later_is_assigned(memory_log: MemoryLog) -> None:
    follower = Follower(memory_log)
    assert settle(follower) == [[]]
    memory_log.create_topic("t", partitions=2)
    assert settle(follower) == [[0, 1]]
    memory_log.delete_topic("t")
    assert settle(follower) == [[]]


def test_concurrent_writers_leave_no_gap(log: MemoryLog) -> None:
    offsets: list[int] = []

    def write() -> None:
        producer = log.producer({})
        for _ in range(500):
            producer.produce(
                "t", b"v", partition=0, on_delivery=lambda _, m: offsets.append(m.offset())
            )
            producer.poll(0)
        producer.flush()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(offsets) == list(range(2000))
