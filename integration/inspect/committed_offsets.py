"""Lists committed IOVs as rows: their present state from `__transaction_offsets`, and their history
from the journal. Reads only the log: needs no coordinator and no Spark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing
from typing import Final, NamedTuple

from confluent_kafka import Message

from ...coordinator.core.offsets_lanes import OffsetsKey
from ...coordinator.protocol.commands import GroupOffsets
from ...coordinator.runtime.offsets_topic import decode_key, decode_value
from ...journal.errors import UnknownTopicError
from ...journal.logs.interface import Log
from ...journal.position import Journal as JournalName
from ...journal.reader import JOURNAL_TOPIC, OFFSETS_TOPIC, read_entries, read_records
from ...journal.records.types import Begin, JournalRecord, PrepareCommit
from ...journal.txid import TxId
from .journal import Journal
from .rows import BATCH_TOPIC, IovRow, PlaceRow, StepRow

READ_TIMEOUT_S: Final = 60.0
"""Longest wait without progress: a smaller value fails on slow brokers, a larger one reports dead
ones later."""


def committed_iovs(log: Log) -> dict[str, tuple[OffsetsKey, GroupOffsets]]:
    """Returns each group's IOV: of all written for it in a journal partition, the one with the
    highest commit sequence.

    A group that was unbound and is bound elsewhere may have one of each, until the former is
    removed: the one that was written last counts.

    Raises:
        BrokerError: the topic `__transaction_offsets` can't be read.
        CorruptRecordError: a record does not decode.
    """
    found: dict[str, tuple[OffsetsKey, GroupOffsets]] = {}
    try:
        count = log.partition_count(OFFSETS_TOPIC)
    except UnknownTopicError:
        return found
    newest: dict[bytes | None, Message] = {}
    for partition in range(count):
        start = log.start_offset(OFFSETS_TOPIC, partition)
        end = log.end_offset(OFFSETS_TOPIC, partition)
        records = read_records(log, OFFSETS_TOPIC, partition, start, end, timeout_s=READ_TIMEOUT_S)
        with closing(records):
            for record in records:
                newest[record.key()] = record
    best: dict[tuple[str, JournalName], _Written] = {}
    for raw_key, record in newest.items():
        if record.value() is None:
            continue
        written = _Written(decode_key(raw_key), decode_value(record.value()), record.timestamp()[1])
        key = written.key
        place = key.group, (key.partition, key.incarnation)
        before = best.get(place)
        if before is None or written.rank > before.rank:
            best[place] = written
    for written in sorted(best.values(), key=lambda w: w.written_ms):
        found[written.key.group] = written.key, written.offsets
    return found


class _Written(NamedTuple):
    key: OffsetsKey
    offsets: GroupOffsets
    written_ms: int

    @property
    def rank(self) -> tuple[int, int]:
        # The highest commit sequence wins, so a late write of a former owner changes nothing.
        return self.offsets.commit_sequence or -1, self.key.epoch


def iov_rows(log: Log, group: str | None = None) -> list[IovRow]:
    """Returns the IOVs of all groups, or of one, with their lag behind the partitions' ends."""
    rows = []
    ends: dict[tuple[str, int], int | None] = {}
    for name, (key, offsets) in sorted(committed_iovs(log).items()):
        if group not in (None, name):
            continue
        decided_ms = _decided_ms(log, key.partition, offsets.commit_sequence or 0)
        for partition, position in sorted(offsets.offsets.items()):
            if partition not in ends:
                ends[partition] = _end(log, *partition)
            end = ends[partition]
            rows.append(
                IovRow(
                    *(name, *partition, position.o2, position.o3, str(offsets.last_commit)),
                    commit_sequence=offsets.commit_sequence or 0,
                    committed_ms=decided_ms,
                    lag=None if end is None else max(end - position.o2, 0),
                )
            )
    return rows


def place_rows(log: Log, rows: list[IovRow], topics: Collection[str]) -> list[PlaceRow]:
    """Returns where a group stands in all partitions of some topics, also where it has no offset.

    Args:
        log: the log.
        rows: the group's, as `iov_rows` returns them.
        topics: the topics; none: all in which it has offsets.

    Raises:
        UnknownTopicError: there is no topic of this name.
    """
    found = {
        (row.topic, row.partition): PlaceRow(
            *(row.topic, row.partition, row.offset, row.records),
            end=None if row.lag is None else row.offset + row.lag,
            lag=row.lag,
        )
        for row in rows
        if row.topic in topics or not topics
    }
    named = topics or {row.topic for row in rows if row.lag is not None}
    all_keys = {(t, n) for t in named if t != BATCH_TOPIC for n in range(log.partition_count(t))}
    new = all_keys - found.keys()
    starts, ends = log.start_offsets(new), log.end_offsets(new)
    rest = [PlaceRow(*key, None, 0, ends[key], ends[key] - starts[key]) for key in new]
    return sorted([*found.values(), *rest])


def _end(log: Log, topic: str, partition: int) -> int | None:
    if topic == BATCH_TOPIC:
        return None
    try:
        return log.end_offset(topic, partition)
    except UnknownTopicError:
        return None


def _decided_ms(log: Log, partition: int, sequence: int) -> int | None:
    record = _journal_record(log, partition, sequence)
    return record.decided_ms if isinstance(record, PrepareCommit) else None


def producer_of(log: Log, txid: TxId) -> str | None:
    """Returns the producer id of a transaction; None if the journal was trimmed above its BEGIN."""
    record = _journal_record(log, txid.partition, txid.offset)
    return record.producer_id if isinstance(record, Begin) else None


def _journal_record(log: Log, partition: int, offset: int) -> JournalRecord | None:
    if log.start_offset(JOURNAL_TOPIC, partition) > offset:
        return None
    entries = read_entries(log, partition, offset, offset + 1, timeout_s=READ_TIMEOUT_S)
    with closing(entries):
        return next((entry.record for _, entry in entries), None)


def step_rows(log: Log, group: str | None = None) -> Iterator[StepRow]:
    """Yields the committed steps of all groups, or of one, as far as the journal goes back: journal
    partition by journal partition, each in commit order."""
    with closing(Journal(log)) as journal:
        decided = journal.read_on()
    for seen in decided:
        if not seen.state.commits:
            continue
        for name, step in seen.offsets:
            if group in (None, name):
                place = step.from_place
                yield StepRow(
                    *(name, step.topic, step.partition, None if place is None else place.o2),
                    to_offset=step.to.o2,
                    txid=str(seen.txid),
                    commit_sequence=seen.commit_sequence or 0,
                    committed_ms=seen.decided_ms,
                    producer_id=seen.producer_id,
                )
