"""`logtx sidecar compact`, and consumers that read what it has moved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaError

import logtx
from logtx.coordinator.server import compacting, trimming
from logtx.integration.inspect.audit import run_audit
from logtx.integration.inspect.checks import Severity
from logtx.integration.inspect.sums import sum_up
from logtx.journal.errors import (
    BrokerError,
    IntegrityError,
    NotAuthorizedError,
    TornTransactionError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.relocation import RELOCATIONS_TOPIC, Relocations
from logtx.journal.relocation_log import RelocationLog
from logtx.journal.sidecar import in_sidecar

from ...coordinator.clusters import until
from .test_sidecar import SIDE, commit, coordinator, producer, run

__all__ = ["coordinator", "producer"]
pytestmark = pytest.mark.usefixtures("coordinator")

TIMEOUT_S = 20.0
Read = Callable[..., logtx.Consumer]


@pytest.fixture
def consumer(memory_log: MemoryLog) -> Iterator[Read]:
    """Makes consumers of the topic from its start, closed at the end."""
    made: list[logtx.Consumer] = []

    def make(group: str = "readers", **settings: Any) -> logtx.Consumer:
        config = {
            "bootstrap.servers": memory_log.bootstrap_servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        each = logtx.Consumer(config | {k.replace("_", "."): v for k, v in settings.items()})
        made.append(each)
        each.subscribe(["orders"])
        return each

    yield make
    for each in made:
        each.close()


def take(reader: logtx.Consumer, count: int) -> list[tuple[int, bytes | None]]:
    """Takes so many records: (offset in the sidecar, value)."""
    found = []
    while len(found) < count:
        message = reader.poll(TIMEOUT_S)
        assert message is not None, found
        error = message.error()
        assert error is None, error
        found.append((in_sidecar(message.offset() or 0), message.value()))
    return found


def abort(producer: logtx.Producer, count: int) -> None:
    """A transaction with so many records in the sidecar, which is aborted."""
    txn = producer.begin_transaction(sidecar=True)
    for number in range(count):
        txn.produce("orders", str(number), partition=0)
    producer.flush(10)
    txn.abort()
    until(lambda: producer.outcome(txn.txid).state.finished)


def compact(log: MemoryLog, *arguments: str) -> list[dict[str, Any]]:
    """Runs it. Returns what it tells of partition 0."""
    result = run(log, "compact", "orders", "--grace", "0", "--json", *arguments)
    assert result.exit_code == 0, (result.exception, result.output)
    return [row for row in json.loads(result.stdout) if row["partition"] == 0]


def written(producer: logtx.Producer) -> list[tuple[int, bytes]]:
    """Three offsets of a commit, twenty of an abort, and four of another commit."""
    commit(producer, 2)
    abort(producer, 19)
    commit(producer, 3)
    return [(0, b"0"), (1, b"1"), (23, b"0"), (24, b"1"), (25, b"2")]


@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted", "serializable"])
def test_what_a_pointer_needs_moves_and_is_the_same_to_readers(
    memory_log: MemoryLog, producer: logtx.Producer, consumer: Read, level: str
) -> None:
    # Trap 191: with the same offsets.
    expected = written(producer)
    before = take(consumer("before", isolation_level=level), 5)
    assert before == expected
    told = compact(memory_log, "--dry-run")
    assert memory_log.start_offset(SIDE, 0) == 0
    assert (told[0]["new_start"], told[0]["ranges"], told[0]["copied"]) == (27, 2, 5)
    assert compact(memory_log) == told
    assert memory_log.start_offset(SIDE, 0) == 27
    assert take(consumer("after", isolation_level=level), 5) == before
    commit(producer, 1)
    abort(producer, 30)
    assert compact(memory_log)[0]["ranges"] == 3, "copies are copied"
    assert take(consumer("later", isolation_level=level), 6)[:5] == before


def test_a_reader_in_the_middle_goes_on_in_the_copy(
    memory_log: MemoryLog, producer: logtx.Producer, consumer: Read
) -> None:
    expected = written(producer)
    reader = consumer("restarted")
    assert take(reader, 1) == expected[:1]
    reader.commit(asynchronous=False)
    reader.close()
    compact(memory_log)
    again = consumer("restarted")
    assert take(again, 4) == expected[1:]
    assert again.stats()["relocated_pointers"] == 2


def test_key_headers_and_time_stay(
    memory_log: MemoryLog, producer: logtx.Producer, consumer: Read
) -> None:
    with producer.begin_transaction(sidecar=True) as txn:
        txn.produce("orders", b"v", b"k", partition=0, headers=[("n", b"x")], timestamp=5_000)
    txn.commit(finished=True)
    abort(producer, 9)
    compact(memory_log)
    message = consumer().poll(TIMEOUT_S)
    assert message is not None
    assert (message.key(), message.value(), message.timestamp()[1]) == (b"k", b"v", 5_000)
    headers = message.headers() or []
    assert ("n", b"x") in headers
    assert sorted(name for name, _ in headers) == ["TxId", "n"]


def test_an_open_transaction_and_a_dear_head_stay(
    memory_log: MemoryLog, producer: logtx.Producer, consumer: Read
) -> None:
    # Trap 193.
    commit(producer, 9)
    assert compact(memory_log)[0]["new_start"] == 0, "nearly all of it would be copied"
    abort(producer, 20)
    open_ = producer.begin_transaction(sidecar=True)
    open_.produce("orders", "open", partition=0)
    producer.flush(10)
    [told] = compact(memory_log)
    assert (told["new_start"], told["held_by"]) == (31, str(open_.txid))
    open_.commit(finished=True)
    assert [value for _, value in take(consumer(), 10)][-1] == b"open"


def planned_by(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, of: type, asked: str, told: object
) -> list[compacting.Planned]:
    """What is planned of what was noted, by somebody who is told this when he asks."""
    noted = trimming.look_at(log, [SIDE], print)
    with monkeypatch.context() as patch:
        patch.setattr(of, asked, lambda *_, **__: told)
        return compacting.plan_partitions(log, noted, share=1.0, grace_s=0.0)


def test_an_end_of_the_past_hides_nothing(
    memory_log: MemoryLog,
    producer: logtx.Producer,
    consumer: Read,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Trap 206: the leader tells the end that is noted, and a former one the end to read up to.
    expected = written(producer)
    planned = planned_by(memory_log, monkeypatch, MemoryLog, "end_offset", 0)
    [plan] = [each.plan for each in planned if each.key == (SIDE, 0)]
    assert (plan.bound, [each.count for each in plan.copies]) == (27, [2, 3])
    with closing(compacting.Copier(memory_log)) as copier:
        copier.run(planned)
    assert take(consumer(), 5) == expected


def test_relocations_of_the_past_cost_no_copies(
    memory_log: MemoryLog,
    producer: logtx.Producer,
    consumer: Read,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Trap 208: whoever tells the plan of relocations has not heard of those of the run before.
    expected = written(producer)
    compact(memory_log)
    abort(producer, 60)
    planned = planned_by(memory_log, monkeypatch, RelocationLog, "read", Relocations())
    again = pytest.raises(BrokerError, match="run it again")
    with closing(compacting.Copier(memory_log)) as copier, again:
        copier.run(planned)
    assert take(consumer(), 5) == expected


def test_a_relocation_that_cannot_be_read_is_told(
    memory_log: MemoryLog, producer: logtx.Producer, consumer: Read
) -> None:
    written(producer)
    compact(memory_log)
    stranger = memory_log.producer({})
    stranger.produce(RELOCATIONS_TOPIC, b"x", b"y", 0)
    assert stranger.flush(TIMEOUT_S) == 0
    with pytest.raises(IntegrityError, match=RELOCATIONS_TOPIC):
        consumer().poll(TIMEOUT_S)


@pytest.mark.parametrize("step", ["_write", "_trim"])
def test_a_run_that_dies_is_run_again(
    memory_log: MemoryLog,
    producer: logtx.Producer,
    consumer: Read,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    expected = written(producer)

    def dies(*_: object) -> None:
        raise BrokerError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(compacting.Copier, step, dies)
        result = run(memory_log, "compact", "orders", "--grace", "0")
        assert "killed" in str(result.exception)
    assert memory_log.start_offset(SIDE, 0) == 0
    assert take(consumer("between"), 5) == expected
    compact(memory_log)
    assert memory_log.start_offset(SIDE, 0) >= 27
    assert take(consumer("after"), 5) == expected


def test_without_the_relocations_nothing_is_lost_in_silence(
    memory_log: MemoryLog,
    producer: logtx.Producer,
    consumer: Read,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written(producer)
    compact(memory_log)

    def denied(self: MemoryLog, topic: str, partition: int, **named: Any) -> int:
        if topic == RELOCATIONS_TOPIC:
            raise BrokerError(
                KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED).str(),
                kafka_code=KafkaError.TOPIC_AUTHORIZATION_FAILED,
            )
        return end_offset(self, topic, partition, **named)

    end_offset = MemoryLog.end_offset
    with monkeypatch.context() as patch:
        patch.setattr(MemoryLog, "end_offset", denied)
        with pytest.raises(NotAuthorizedError, match=RELOCATIONS_TOPIC):
            consumer("denied", torn_reset="skip").poll(TIMEOUT_S)
    memory_log.delete_topic(RELOCATIONS_TOPIC)
    with pytest.raises(TornTransactionError):
        consumer("gone").poll(TIMEOUT_S)


def test_relocations_of_copies_that_are_gone_are_deleted(
    memory_log: MemoryLog, producer: logtx.Producer
) -> None:
    written(producer)
    compact(memory_log)
    abort(producer, 30)
    compact(memory_log)
    known = RelocationLog(memory_log).read(timeout_s=5)
    [topic_id] = memory_log.topic_ids([SIDE]).values()
    assert len(known.of((SIDE, 0), topic_id)) == 2, "tombstones are read as such"


def test_audit_finds_what_has_moved(memory_log: MemoryLog, producer: logtx.Producer) -> None:
    written(producer)
    compact(memory_log)

    def sums(spans: Any) -> Any:
        return [g for key, span in spans.items() for g in sum_up(memory_log, key, span)]

    report = run_audit(memory_log, ["orders"], sums)
    # The markers of the sidecar lay in its head.
    assert {check for _, check in report.counts} == {"decision_markers"}
    memory_log.delete_topic(RELOCATIONS_TOPIC)
    report = run_audit(memory_log, ["orders"], sums)
    assert (Severity.VIOLATION, "pointer_records") in report.counts
