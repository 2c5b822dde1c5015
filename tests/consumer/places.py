"""Writes transactions that are placed, and what a home says of it, without a coordinator.

`expected` merges the partition's log and the home's journal in the plainest way: what every reader
must deliver, from a start on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import pytest
from confluent_kafka import Message

from logtx.consumer.consumer import Consumer
from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    Marker,
    ModeRecord,
    decode_control,
    encode_mode_record,
)
from logtx.journal.logs.interface import GroupOffset, Log
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.mode_registry import (
    MODES_TOPIC_SETTINGS,
    ModeKey,
    TopicModeRecord,
    encode_key,
    encode_value,
)
from logtx.journal.modes import MODES_TOPIC, EndedSwitch, ModeChange, Phase
from logtx.journal.places import PartitionId, Placed
from logtx.journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC, read_entries, read_records
from logtx.journal.records.types import (
    DataPartition,
    PartitionWrites,
    PrepareAbort,
    PrepareCommit,
    Snapshot,
)
from logtx.journal.sidecar import sidecar_of
from logtx.journal.txid import TxId

from .logs import INCARNATION, Transactions

HOME = (0, INCARNATION)
SIDE = sidecar_of("t")


@pytest.fixture(name="log")
def log_with_sidecar(memory_log: MemoryLog) -> MemoryLog:
    """A log in memory with topic t and its sidecar: each test has a journal of its own."""
    memory_log.create_topic("t", partitions=1)
    memory_log.create_topic(SIDE, partitions=1)
    return memory_log


class Places:
    """The home of one topic, whose journal `Transactions.with_journal` made."""

    def __init__(self, written: Transactions, topic: str, *, partitions: int = 1) -> None:
        self.written, self.topic, self.partitions = written, topic, partitions
        self.log: Log = written.log
        self.topic_id = self.log.topic_ids([topic]).get(topic, "")
        self.mode_offset = -1
        self.earlier: list[EndedSwitch] = []
        """The switches that are over, but for the latest."""
        self._latest: EndedSwitch | None = None

    def partition(self, number: int = 0) -> PartitionId:
        return PartitionId(self.topic, number, self.topic_id)

    # ---- the mode -------------------------------------------------------------------------------

    def switch(self, to: Phase, *, records: bool = True, publish: bool = True) -> dict[int, int]:
        """Switches the topic. Returns the offsets of the mode records."""
        first = Phase.TO_METADATA if to is Phase.METADATA else Phase.TO_MARKERS
        self.begin_switch(first)
        since = {}
        for number in range(self.partitions):
            since[number] = (
                self.mode_record(number, places=to is Phase.METADATA)
                if records
                else self.end(number)
            )
        self.written.journal(ModeChange(self.topic, self.topic_id, to, since, records))
        self._latest = EndedSwitch(self.mode_offset, to, since, records)
        if publish:
            self.publish(to, since, with_records=records)
        return since

    def begin_switch(self, phase: Phase) -> None:
        if self._latest is not None:
            self.earlier.append(self._latest)
        self.mode_offset = self.written.journal(ModeChange(self.topic, self.topic_id, phase))

    def mode_record(self, number: int = 0, *, places: bool, mode_offset: int | None = None) -> int:
        at = self.mode_offset if mode_offset is None else mode_offset
        control = encode_mode_record(ModeRecord(places, self.topic_id))
        headers = [(TXID_HEADER, TxId(*HOME, at).to_bytes()), (TXCTL_HEADER, control)]
        return self.written.append(self.topic, [None], headers, number)[0]

    def publish(self, phase: Phase, since: Mapping[int, int], *, with_records: bool = True) -> None:
        """Says the topic's mode in `__transaction_topics`."""
        self.log.create_topic(MODES_TOPIC, partitions=1, settings=MODES_TOPIC_SETTINGS)
        assert self.written.epoch is not None
        told = TopicModeRecord(
            topic=self.topic,
            topic_id=self.topic_id,
            phase=phase,
            home=HOME,
            mode_offset=self.mode_offset,
            offset=self.log.end_offset(JOURNAL_TOPIC, 0),
            since=since,
            with_records=with_records,
            earlier=tuple(self.earlier),
        )
        key = encode_key(ModeKey(self.topic, *HOME, self.written.epoch))
        self.written.append(MODES_TOPIC, [encode_value(told)], key=key)

    # ---- transactions ---------------------------------------------------------------------------

    def decide(self, txid: TxId) -> int:
        """Commits a transaction, which is to be placed. Returns its sequence."""
        writes = tuple(
            PartitionWrites(
                DataPartition(self.topic, number, self.topic_id),
                self.written.ranges(txid, self.topic, number),
            )
            for number in range(self.partitions)
            if self.written.ranges(txid, self.topic, number)
        )
        aside = tuple(
            PartitionWrites(DataPartition(side, number, self.topic_id_of(side)), ranges)
            for number in range(self.partitions)
            if (ranges := self.written.ranges(txid, side := sidecar_of(self.topic), number))
        )
        named = {w.partition.partition for w in writes}
        writes += tuple(
            PartitionWrites(DataPartition(self.topic, w.partition.partition, self.topic_id), ())
            for w in aside
            if w.partition.partition not in named
        )
        record = PrepareCommit(
            begin=txid.offset,
            writes=writes + aside,
            decided_ms=2_000,
            placed=tuple(w.partition.key for w in writes),
            sidecar_since=tuple((w.partition.key, 0) for w in aside),
        )
        self.written.sequences[txid] = self.written.journal(record)
        return self.written.sequences[txid]

    def topic_id_of(self, topic: str) -> str:
        return self.log.topic_ids([topic]).get(topic, "")

    def end(self, number: int = 0) -> int:
        # Called on the class, because tests replace the log's methods.
        return type(self.log).end_offset(self.log, self.topic, number)

    def place(self, *numbers: int, upto: int | None = None, at: int | None = None) -> None:
        """Places all that is decided, at the partitions' ends."""
        upto = max(self.written.sequences.values()) if upto is None else upto
        ends = {
            self.partition(n): self.end(n) if at is None else at
            for n in numbers or range(self.partitions)
        }
        self.written.journal(Placed(upto, ends))

    def transaction(self, values: Sequence[bytes], number: int = 0) -> TxId:
        """Writes, decides and places a whole transaction."""
        txid = self.written.begin()
        self.written.write(txid, self.topic, values, number)
        self.decide(txid)
        self.place(number)
        return txid


def snapshot(home: Places, **rows: object) -> int:
    """Writes a snapshot of one chunk. Returns its offset."""
    written, log = home.written, home.log
    at = log.end_offset(JOURNAL_TOPIC, 0)
    found = Snapshot(
        first=at,
        index=0,
        last=True,
        replaces=-1,
        address="nowhere:1",
        process_nonce=1,
        partition_count=1,
        past_epochs=(),
        **rows,  # type: ignore[arg-type]
    )
    assert written.journal(found) == at
    log.commit_group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, 0, GroupOffset(at, ""))
    return at


# ---- the naive reading --------------------------------------------------------------------------


def records(log: Log, topic: str, number: int = 0) -> list[Message]:
    end = type(log).end_offset(log, topic, number)
    return list(read_records(log, topic, number, 0, end, timeout_s=10))


Ranges = tuple[BranchRange, ...]


def _ends(log: Log, topic: str, number: int) -> list[tuple[int, int, TxId, Ranges, Ranges]]:
    """Returns (offset, sequence, TxId, what it accepts, and what of its sidecar) of what is placed
    in a partition."""
    waiting: dict[int, tuple[TxId, Ranges, Ranges]] = {}
    found = []
    end = type(log).end_offset(log, JOURNAL_TOPIC, 0)
    for offset, entry in read_entries(log, 0, 0, end, timeout_s=10):
        match entry.record:
            case PrepareCommit(begin=begin, writes=writes, placed=placed):
                by_key = {each.partition.key: each.branches for each in writes}
                if (topic, number) in by_key and (topic, number) in placed:
                    aside = by_key.get((sidecar_of(topic), number), ())
                    waiting[offset] = TxId(*HOME, begin), by_key[topic, number], aside
            case PrepareAbort():
                pass
            case Placed(upto=upto, ends=ends):
                for partition, place in ends.items():
                    if partition.key != (topic, number):
                        continue
                    for sequence in sorted(s for s in waiting if s <= upto):
                        found.append((place, sequence, *waiting.pop(sequence)))
    return found


def expected(log: Log, topic: str, number: int = 0, start: int = 0) -> list[bytes | None]:
    """Returns the values that a reader delivers which begins at an offset."""
    data = records(log, topic, number)
    has_sidecar = sidecar_of(topic) in log.topics()
    aside = records(log, sidecar_of(topic), number) if has_sidecar else []
    out: list[bytes | None] = []

    def accepted(raw: bytes, ranges: Ranges, in_sidecar: Ranges) -> list[bytes | None]:
        return [
            m.value()
            for there, stated in ((data, ranges), (aside, in_sidecar))
            for m in there
            for r in stated
            if dict(m.headers() or ()).get(TXID_HEADER) == raw
            and TXCTL_HEADER not in dict(m.headers() or ())
            and r.first_offset <= (m.offset() or 0) <= r.last_offset
        ]

    places, ended = sorted(_ends(log, topic, number)), set()
    behind = (data[-1].offset() or 0) + 1 if data else 0
    by_offset = {m.offset(): m for m in data}
    for offset in range(behind + 1):
        for place, _, txid, ranges, in_sidecar in places:
            if place == offset and place >= start:
                out += accepted(txid.to_bytes(), ranges, in_sidecar)
        message = by_offset.get(offset)
        if message is None:
            continue
        headers = dict(message.headers() or ())
        raw = headers.get(TXID_HEADER)
        if raw is None:
            if offset >= start:
                out.append(message.value())
        elif TXCTL_HEADER in headers:
            control = decode_control(headers[TXCTL_HEADER])
            if isinstance(control, Marker) and raw not in ended:
                ended.add(raw)
                if control.committed and offset >= start:
                    out += accepted(raw, control.branches, control.sidecar)
    return out


def read_upto(consumer: Consumer, wanted: Sequence[bytes | None]) -> list[bytes | None]:
    """Returns what is delivered until there is as much as is wanted, or nothing comes for 10 s."""
    found: list[bytes | None] = []
    deadline = time.monotonic() + 10
    while len(found) < len(wanted) and time.monotonic() < deadline:
        for message in consumer.consume(len(wanted) - len(found), 0.2):
            assert message.error() is None, message.error()
            found.append(message.value())
    return found
