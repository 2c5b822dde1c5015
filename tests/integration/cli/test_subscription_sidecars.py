"""`logtx subscription` where messages of a queue lie in sidecars."""

from __future__ import annotations

from contextlib import suppress

import pytest

import logtx
from logtx.consumer.share_consumer import ShareConsumer
from logtx.journal.errors import SubscriptionResetError, TornTransactionError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.sidecar import sidecar_of

from ...waiting import eventually
from .test_subscription import asked, coordinator, producer, queue, run, shown, take
from .test_subscription_reset import Away, reset

__all__ = ["coordinator", "producer", "queue"]


def aside(producer: logtx.Producer, *written: bytes) -> None:
    """Commits a transaction that has these records in the sidecar of partition 0."""
    txn = producer.begin_transaction(sidecar=True)
    for value in written:
        txn.produce("orders", value, partition=0)
    txn.commit(finished=True)


def test_a_reset_begins_a_pointer_anew(
    memory_log: MemoryLog, queue: ShareConsumer, producer: logtx.Producer
) -> None:
    """Whatever of it was worked off, is held, or was given back for others."""
    numbers = [b"%d" % number for number in range(30)]
    aside(producer, *numbers)
    first, second = queue.poll(10.0, max_records=10), queue.poll(10.0, max_records=10)
    assert len(first) == len(second) == 10
    queue.acknowledge_cumulative(first[-1])
    queue.commit_sync()
    away = Away(memory_log, queue)
    reset(memory_log, "--to-earliest", "--execute")
    away.comes_back()
    again = take(queue, 30)
    assert [message.value() for message in again] == numbers
    assert {queue.delivery_count(message) for message in again} == {1}
    with pytest.raises(SubscriptionResetError):
        queue.acknowledge(second[3])
    queue.acknowledge_cumulative(again[-1])
    assert set(queue.commit_sync().values()) == {None}
    assert shown(memory_log)["depth"] == 0


def test_to_pass_over_a_pointer_is_to_pass_over_all_that_it_names(
    memory_log: MemoryLog, queue: ShareConsumer, producer: logtx.Producer
) -> None:
    aside(producer, b"a", b"b", b"c")
    aside(producer, b"d", b"e")
    first, *_ = take(queue, 5)
    queue.acknowledge(first)
    queue.commit_sync()
    queue.close()
    done = run(memory_log, "skip", "invoicing", "orders[0]", "0", "--execute")
    assert done.exit_code == 0, done.output
    (part, _) = asked(memory_log, "show", "invoicing")["partitions"]
    assert part["depth"] == 1, "the other pointer"
    with_rest = ShareConsumer(
        {"group.id": "invoicing", "share.acknowledgement.mode": "explicit"}, log=memory_log
    )
    with with_rest:
        with_rest.subscribe(["orders"])
        assert [message.value() for message in take(with_rest, 2)] == [b"d", b"e"]
        assert with_rest.poll(0.5) == []


def test_what_can_not_be_read_is_passed_over_as_the_error_says(
    memory_log: MemoryLog, queue: ShareConsumer, producer: logtx.Producer
) -> None:
    aside(producer, *(b"%d" % number for number in range(4)))
    for message in take(queue, 4)[:2]:
        queue.acknowledge(message)
    queue.release_all()
    queue.commit_sync()
    memory_log.delete_records(sidecar_of("orders"), 0, 4)
    queue.close()
    other = ShareConsumer(
        {"group.id": "invoicing", "share.acknowledgement.mode": "explicit"}, log=memory_log
    )
    told: list[str] = []

    def fails() -> bool:
        try:
            other.poll(0.2)
        except TornTransactionError as error:
            told.append(str(error))
        return bool(told)

    with other:
        other.subscribe(["orders"])
        eventually(fails)
        command = told[0].partition("logtx subscription ")[2].partition(";")[0].partition(". ")[0]
        assert command == "skip invoicing 'orders[0]' 0 --execute"
        done = run(memory_log, *command.replace("'", "").split())
        assert done.exit_code == 0, done.output
        producer.produce("orders", b"next", partition=0)
        producer.flush()
        found: list[bytes | None] = []

        def goes_on() -> bool:
            # What was given out before is told once more at most.
            with suppress(TornTransactionError):
                found.extend(message.value() for message in other.poll(0.2))
            return bool(found)

        eventually(goes_on)
        assert found == [b"next"]
