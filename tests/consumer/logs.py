"""Writes transactions to a log without a coordinator: data, markers and, if asked, a journal."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from logtx.consumer.consumer import Consumer
from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    DataControl,
    Marker,
    encode_data_control,
    encode_marker,
)
from logtx.journal.logs.interface import Log
from logtx.journal.logs.memory.consumer import MemoryConsumer
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    Begin,
    Committed,
    DataPartition,
    Entry,
    JournalRecord,
    Owner,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
)
from logtx.journal.sidecar import is_sidecar, sidecar_of
from logtx.journal.txid import TxId

Headers = list[tuple[str, bytes | None]]
INCARNATION = 0x5EED


class Transactions:
    """Writes transactions to one log, with made-up TxIds unless `with_journal` is called first."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._producer = log.producer({"linger.ms": 5, "enable.idempotence": True})
        self._numbers = itertools.count(1)
        self.epoch: int | None = None
        self._written: dict[tuple[TxId, str, int], dict[int, list[int]]] = {}
        self.sequences: dict[TxId, int] = {}

    def append(
        self,
        topic: str,
        values: Sequence[bytes | None],
        headers: Headers | None = None,
        partition: int = 0,
        key: bytes | None = None,
    ) -> list[int]:
        """Appends records. Returns their offsets."""
        offsets: list[int] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            assert error is None, error
            offset = message.offset()
            assert offset is not None
            offsets.append(offset)

        for value in values:
            while True:
                try:
                    self._producer.produce(
                        topic, value, key, partition, headers=headers, on_delivery=delivered
                    )
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self._producer.poll(0)
        assert self._producer.flush(30) == 0
        return offsets

    # --- the journal

    def with_journal(self) -> None:
        """Makes a journal. From now on every step is written there too, by one owner."""
        self.log.create_topic(JOURNAL_TOPIC, partitions=1)
        self.epoch = -1
        self.epoch = self.journal(Owner(replaces=-1, address="nowhere:1", process_nonce=1))

    def journal(self, record: JournalRecord) -> int:
        assert self.epoch is not None
        # Called on the class, because tests replace the log's end_offset.
        at = type(self.log).end_offset(self.log, JOURNAL_TOPIC, 0)
        value = encode_entry(Entry(self.epoch, INCARNATION, record, at))
        return self.append(JOURNAL_TOPIC, [value])[0]

    def begin(self) -> TxId:
        number = next(self._numbers)
        if self.epoch is not None:
            number = self.journal(
                Begin(
                    producer_id="p",
                    generation=0,
                    session_nonce=1,
                    request_id=number,
                    answered_below=number,
                    timeout_ms=60_000,
                    started_ms=1_000,
                )
            )
        return TxId(0, INCARNATION, number)

    def decide(self, txid: TxId, *, commit: bool = True) -> int:
        """Decides a transaction. Returns the commit sequence."""
        if self.epoch is None:
            self.sequences[txid] = next(self._numbers)
            return self.sequences[txid]
        writes = tuple(
            PartitionWrites(DataPartition(topic, partition), self.ranges(txid, topic, partition))
            for (owner, topic, partition) in self._written
            if owner == txid
        )
        aside = tuple((w.partition.key, 0) for w in writes if is_sidecar(w.partition.topic))
        decision: JournalRecord = (
            PrepareCommit(begin=txid.offset, writes=writes, decided_ms=2_000, sidecar_since=aside)
            if commit
            else PrepareAbort(begin=txid.offset, reason=AbortReason.REQUESTED, decided_ms=2_000)
        )
        self.sequences[txid] = self.journal(decision)
        return self.sequences[txid]

    def finish(self, txid: TxId, *, commit: bool = True) -> None:
        """Writes COMMITTED or ABORTED to the journal."""
        self.journal(Committed(begin=txid.offset) if commit else Aborted(begin=txid.offset))

    # --- data partitions

    def write(
        self,
        txid: TxId,
        topic: str,
        values: Sequence[bytes],
        partition: int = 0,
        branch: int | None = None,
        first_sequence: int | None = None,
        accepted: bool = True,
    ) -> list[int]:
        """Writes records of a transaction. Returns their offsets."""
        headers: Headers = [(TXID_HEADER, txid.to_bytes())]
        if branch is None:
            offsets = self.append(topic, values, headers, partition)
        else:
            offsets = []
            for index, value in enumerate(values):
                sequence = None if first_sequence is None else first_sequence + index
                control = encode_data_control(DataControl(branch=branch, sequence=sequence))
                offsets += self.append(
                    topic, [value], [*headers, (TXCTL_HEADER, control)], partition
                )
        if accepted:
            branches = self._written.setdefault((txid, topic, partition), {})
            branches.setdefault(branch or 0, []).extend(offsets)
        return offsets

    def ranges(self, txid: TxId, topic: str, partition: int = 0) -> tuple[BranchRange, ...]:
        branches = self._written.get((txid, topic, partition), {})
        return tuple(
            BranchRange(b, offsets[0], offsets[-1], len(offsets))
            for b, offsets in sorted(branches.items())
        )

    def mark(
        self,
        txid: TxId,
        topic: str,
        partition: int = 0,
        *,
        commit: bool = True,
        hw: int = 0,
        ranges: tuple[BranchRange, ...] | None = None,
        topic_id: str = "",
    ) -> int:
        """Writes a marker, after deciding if the transaction is open. Returns its offset.

        If the transaction wrote to the sidecar of the topic, the marker is a pointer.
        """
        if txid not in self.sequences:
            self.decide(txid, commit=commit)
        branches = self.ranges(txid, topic, partition) if ranges is None else ranges
        sidecar = self.ranges(txid, sidecar_of(topic), partition)
        control = encode_marker(
            Marker(
                committed=commit,
                commit_sequence=self.sequences[txid],
                hw=hw,
                epoch=1,
                partition_count=1,
                branches=branches if commit else (),
                topic_id=topic_id,
                sidecar=sidecar if commit else (),
            )
        )
        headers: Headers = [(TXID_HEADER, txid.to_bytes()), (TXCTL_HEADER, control)]
        return self.append(topic, [None], headers, partition)[0]

    def transaction(
        self, topic: str, values: Sequence[bytes], partition: int = 0, *, commit: bool = True
    ) -> TxId:
        """Writes a whole transaction."""
        txid = self.begin()
        self.write(txid, topic, values, partition)
        self.mark(txid, topic, partition, commit=commit)
        return txid


def read(consumer: Consumer, count: int, timeout_s: float = 20) -> list[bytes | None]:
    """Returns the values of the next `count` messages, none of which may be an event."""
    found: list[bytes | None] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"got {found[-10:]} ({len(found)} of {count})"
        for message in consumer.consume(count - len(found), 0.2):
            assert message.error() is None, message.error()
            found.append(message.value())
    return found


def nothing_more(consumer: Consumer, wait_s: float = 0.3) -> bool:
    """Returns whether nothing is delivered for `wait_s` seconds."""
    return consumer.consume(10, wait_s) == []


def wait_for(condition: Callable[[], Any], consumer: Consumer, timeout_s: float = 20) -> None:
    """Polls until the condition holds; nothing may be delivered meanwhile."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        assert consumer.poll(0.05) is None


class Refused:
    """What a consumer of confluent-kafka gets of a topic that it may not read."""

    def error(self) -> KafkaError:
        return KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)


def refuse_reading(monkeypatch: pytest.MonkeyPatch, topic: str) -> None:
    """Lets clients of the log in memory describe a topic, and not read it."""
    fetch = MemoryConsumer._fetch

    def refuse(self: MemoryConsumer, count: int, timeout: float) -> list[Any]:
        if all(each.topic == topic for each in self.assignment()):
            return [Refused()]
        return fetch(self, count, timeout)

    monkeypatch.setattr(MemoryConsumer, "_fetch", refuse)
