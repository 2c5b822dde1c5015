"""What comes of a set of golden logs, as text: loaded and delivered by the code of today.

The text says what a user would notice: what a coordinator knows and does after loading, the fate
of every transaction, and what a consumer delivers, in which order, at which positions. Nothing of
how that is kept in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import groupby, islice
from typing import Any
from uuid import uuid4

from confluent_kafka import TopicPartition as KafkaPartition

from logtx.consumer.consumer import Consumer
from logtx.consumer.core.pending import PendingTransaction, Record
from logtx.consumer.serial_reader import CommittedTransaction
from logtx.coordinator.core.decision import ClearOffsets, WriteMarkers, WriteOffsets
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.transactions import TransactionMetadata
from logtx.coordinator.runtime.offsets_topic import decode_key, decode_value
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import MalformedHeaderError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.position import Position
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.records.codec import decode_entry
from logtx.journal.records.fate import EpochFilter
from logtx.journal.records.types import DataPartition, Entry, OffsetStep, PrepareAbort
from logtx.journal.spans import AT_OFFSET, Span
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..consumer.core.test_buffer_against_naive import Reader
from ..consumer.records import FakeRecord
from ..coordinator.harness import (
    PARTITION,
    Appended,
    Coordinator,
    Emitted,
    Event,
    Journal,
    Owned,
    fates,
    load,
)
from .files import GoldenLogs

MEMORY_MAX_BYTES = 500_000
"""Of the consumer: the large transaction spills."""
WAIT_S = 20.0
ALONE = 8
"""Records in a row of one transaction are shown one by one up to so many."""
READ_AT_ONCE = 100


def entries_of(logs: GoldenLogs) -> list[Entry]:
    """The journal's records."""
    return [decode_entry(raw) for raw in logs.journal]


@contextmanager
def memory_log(logs: GoldenLogs) -> Iterator[MemoryLog]:
    """A log in memory that holds all of it."""
    name = uuid4().hex
    log = MemoryLog.named(name)
    try:
        log.create_topic(JOURNAL_TOPIC, partitions=1)
        for value in logs.journal:
            log.append_directly(JOURNAL_TOPIC, 0, value)
        counts: dict[str, int] = {}
        for topic, partition in logs.data:
            counts[topic] = max(counts.get(topic, 0), partition + 1)
        for topic, count in counts.items():
            log.create_topic(topic, partitions=count)
        for (topic, partition), records in logs.data.items():
            for r in records:
                log.append_directly(topic, partition, r.value(), r.key(), r.headers(), 1_000)
        yield log
    finally:
        MemoryLog.drop(name)


def text(logs: GoldenLogs) -> str:
    """All of it."""
    entries = entries_of(logs)
    shard = load(entries)
    lines = ["# What a coordinator knows", "", *state(shard), ""]
    lines += ["# What the next owner does first", "", *redone(entries), ""]
    lines += ["# What became of every transaction", "", *fate_lines(entries), ""]
    lines += ["# What __transaction_offsets says", "", *offsets_lines(logs), ""]
    for partition, records in logs.partitions().items():
        lines += [f"# What a read_committed consumer of {name(partition)} gets", ""]
        lines += [*delivery_lines(records, logs.aside(partition)), ""]
    lines += ["# Whole transactions in serial order", "", *whole_lines(logs)]
    return "\n".join(lines) + "\n"


# ---- words --------------------------------------------------------------------------------------


def name(partition: TopicPartition) -> str:
    """A partition."""
    return f"{partition[0]}/{partition[1]}"


def txid(told: TxId) -> str:
    """A transaction, by the offset of its BEGIN."""
    return f"T{told.offset}"


def shown(position: Position) -> str:
    """A position as a Kafka group offset holds it."""
    return f"{position.o1} {position.to_metadata()}"


def _partition(found: DataPartition) -> str:
    first = "" if found.first_offset < 0 else f" from {found.first_offset}"
    return f"{name(found.key)} ({found.topic_id}){first}"


def _branches(ranges: Iterable[BranchRange]) -> str:
    parts = [
        f"{'own' if r.branch == 0 else f'branch {r.branch}'} {r.count} in "
        f"{r.first_offset}-{r.last_offset}"
        for r in ranges
    ]
    return ", ".join(parts) or "nothing"


def _span(span: Span) -> str:
    places = ("/".join("at" if n == AT_OFFSET else str(n) for n in place) for place in span)
    return "-".join(places)


def _step(step: OffsetStep) -> str:
    start = step.from_place
    begins = "none" if start is None else f"{start.o2}+{start.o3}"
    return f"{name((step.topic, step.partition))} {begins} -> {shown(step.to)}"


# ---- the journal --------------------------------------------------------------------------------


def state(shard: Shard) -> Iterator[str]:
    """What a shard knows that was loaded from the journal."""
    assert shard.owner is not None
    past = " ".join(map(str, shard.past_epochs))
    yield f"journal {shard.partition} incarnation {shard.incarnation:012x}"
    ends = f"next offset {shard.next_offset}, high watermark {shard.hw}"
    yield f"{ends}, snapshot {shard.snapshot_offset}"
    yield f"owner {shard.owner.address} of epoch {shard.epoch}; epochs before: {past}"
    for producer_id, p in sorted(shard.producers.items()):
        voided = ", voided" if p.voided else ""
        yield f"producer {producer_id}: generation {p.generation}, nonce {p.nonce}{voided}"
        yield f"  owner {p.owner}, connected {p.connected_ms}, answered below {p.answered_below}"
        begins = " ".join(f"{request}=T{begin}" for request, begin in sorted(p.begins.items()))
        yield f"  begins {begins}; open {' '.join(f'T{begin}' for begin in sorted(p.open))}"
    for transaction in shard.transactions:
        yield from _transaction(transaction)
        yield from _places(shard, transaction)
    for topic, mode in shard.modes.rows():
        if mode.phase is not Phase.MARKERS:
            since = ", ".join(f"{p} from {offset}" for p, offset in sorted(mode.since.items()))
            yield f"topic {topic} ({mode.topic_id}) {mode.phase}: {since}"
    for group in sorted(shard.offsets.groups()):
        iov = shard.offsets.committed(group)
        assert iov.last_commit is not None
        yield f"group {group}: by {txid(iov.last_commit)} at {iov.commit_sequence}"
        for partition, position in sorted(iov.offsets.items()):
            yield f"  {name(partition)} {shown(position)}"
    for group, bound in sorted(shard.bindings.items()):
        yield f"group {group} commits in transaction group {bound}"
    for row in shard.claims.rows():
        claimed = " ".join(map(name, row.partitions))
        yield f"claim {row.number} of group {row.group} by {row.claimant}: {claimed}"
    for row in shard.staircases.rows():
        steps = ", ".join(f"up to {step.pointer} from {step.first} on" for step in row)
        yield f"pointers of {name(row[0].sidecar)} need {steps}"
    for each in shard.queues.subscriptions.rows():
        if each.deleted or each.pending:
            era = f", era {each.era}" if each.era else ""
            yield f"subscription {each.group} ({each.kind}) {name(each.partition.key)}{era}"
            yield f"  deleted {' '.join(map(_span, each.deleted))}"
            for begin, span in each.pending:
                yield f"  pending in T{begin} {_span(span)}"


def _transaction(found: TransactionMetadata) -> Iterator[str]:
    decided = "" if found.commit_sequence is None else f" at {found.commit_sequence}"
    why = "" if found.reason is None else f" ({found.reason})"
    doomed = "" if found.doomed is None else f", doomed ({found.doomed})"
    yield f"{txid(found.txid)} {found.state}{decided}{why}{doomed}"
    whose = f"of {found.producer_id} {found.generation}"
    yield f"  {whose}, begun {found.started_ms} for {found.timeout_ms} ms"
    for key, partition in sorted(found.partitions.items()):
        wrote = f": {_branches(found.branches[key])}" if key in found.branches else ""
        yield f"  {_partition(partition)}{wrote}"
    for group, steps in sorted(found.offsets.items()):
        for _, step in sorted(steps.items()):
            yield f"  group {group} {_step(step)}"


def _places(shard: Shard, found: TransactionMetadata) -> Iterator[str]:
    """Where a transaction is placed, or is to be."""
    writes = shard.places.of(found.txid.offset)
    if writes is None:
        return
    for partition, end in sorted(writes.ends.items()):
        place = writes.places.get(partition)
        yield f"  {name(partition.key)} up to {end} placed at {place}"


def redone(entries: list[Entry]) -> list[str]:
    """What an owner does that has just loaded the journal."""
    journal = Journal()
    journal.entries, journal.meant = list(entries), [None] * len(entries)
    lines: list[str] = []
    coordinator = Coordinator(
        journal, name="next", listen=lambda _, event: lines.extend(_event(event))
    )
    coordinator.take_over()
    coordinator.ack()
    return lines


def _event(event: Event) -> Iterator[str]:
    match event:
        case Owned(epoch):
            yield f"owns epoch {epoch}"
        case Appended(offset, PrepareAbort() as record):
            yield f"aborts T{record.begin} at {offset} ({record.reason})"
        case Appended(offset, record):
            yield f"appends {record.type.name} at {offset}"
        case Emitted(WriteMarkers(transaction), hw):
            named = " ".join(name(key) for key in sorted(transaction.partitions))
            what = f"{txid(transaction.txid)} {transaction.state} at {transaction.commit_sequence}"
            yield f"marks {what} in {named or 'no partition'}, high watermark {hw}"
        case Emitted(WriteOffsets(group, _, offsets), _):
            assert offsets.last_commit is not None
            yield f"writes the offsets of group {group} by {txid(offsets.last_commit)}"
        case Emitted(ClearOffsets(group), _):
            yield f"clears the offsets of group {group}"


def begun(entries: Iterable[Entry]) -> list[TxId]:
    """Every transaction that counts."""
    epochs, found = EpochFilter(), []
    for offset, entry in enumerate(entries):
        if epochs.accept(offset, entry) and entry.record.type.name == "BEGIN":
            found.append(TxId(PARTITION, entry.incarnation, offset))
    return found


def fate_lines(entries: list[Entry]) -> Iterator[str]:
    """The fate of each, as a reader of the journal learns it."""
    found = fates(entries, begun(entries))
    for told, fate in sorted(found.items(), key=lambda pair: pair[0].offset):
        decided = "" if fate.commit_sequence is None else f" at {fate.commit_sequence}"
        why = "" if fate.reason is None else f" ({fate.reason})"
        yield f"{txid(told)} {fate.state}{decided}{why}"
        wrote = {w.partition.key: w.branches for w in fate.writes}
        for partition in sorted(fate.partitions, key=lambda p: p.key):
            what = f": {_branches(wrote[partition.key])}" if partition.key in wrote else ""
            yield f"  {name(partition.key)}{what}"


def offsets_lines(logs: GoldenLogs) -> Iterator[str]:
    """The records of ``__transaction_offsets``."""
    for raw_key, raw_value in logs.offsets:
        key = decode_key(raw_key)
        who = f"group {key.group}, journal {key.partition} {key.incarnation:012x}"
        if raw_value is None:
            yield f"{who}, epoch {key.epoch}: cleared"
            continue
        offsets = decode_value(raw_value)
        by = f"by {offsets.last_commit} at {offsets.commit_sequence}"
        yield f"{who}, epoch {key.epoch}: {by}"
        for partition, position in sorted(offsets.offsets.items()):
            yield f"  {name(partition)} {shown(position)}"


# ---- data partitions ----------------------------------------------------------------------------


def deliveries(
    records: list[FakeRecord], start: Position, limit: int = 1, aside: Sequence[FakeRecord] = ()
) -> Iterator[tuple[Record, Position]]:
    """What a consumer that starts there delivers, and its position behind each `take`'s last.

    Args:
        records: of the partition.
        start: where it begins.
        limit: most records of one `take`.
        aside: records of the partition's sidecar.
    """
    reader = Reader(records, start)
    while reader.at < len(records):
        reader.read(READ_AT_ONCE)
        for record in _drain(reader, aside, limit):
            yield record, reader.buffer.position()
    assert reader.buffer.failure is None


def _drain(reader: Reader, aside: Sequence[FakeRecord], limit: int) -> Iterator[Record]:
    while True:
        taken = reader.buffer.take(limit)
        yield from taken
        wanted = reader.buffer.stream_wanted()
        if not taken and wanted is None:
            return
        if wanted is not None and not wanted.is_open:
            reader.buffer.open_stream(wanted, 0, len(aside))
        elif wanted is not None and not taken:
            stop = min(wanted.next_offset + READ_AT_ONCE, len(aside))
            reader.buffer.push_stream(wanted, aside[wanted.next_offset : stop], stop)


def is_malformed(record: Record) -> bool:
    """Whether it is an event in the place of one."""
    return isinstance(record, FakeRecord) and record.malformed


def _owner(record: Record) -> str:
    if is_malformed(record):
        return "malformed"
    raw = dict(record.headers() or ()).get("TxId")
    return "plain" if raw is None else txid(TxId.from_bytes(raw))


def delivery_lines(records: list[FakeRecord], aside: Sequence[FakeRecord]) -> Iterator[str]:
    """Each record delivered with the position behind it, what was dropped, and what is pending."""
    yield "offset  of  value  position behind it"
    found = deliveries(records, Position.at(0), aside=aside)
    for owner, group in groupby(found, key=lambda pair: _owner(pair[0])):
        run = list(group)
        several = len(run) > ALONE
        if several:
            digest = blake2b(b"".join(r.value() or b"" for r, _ in run), digest_size=8).hexdigest()
            first, last = run[0][0].offset(), run[-1][0].offset()
            yield f"{first} to {last}: {len(run)} records, blake2b {digest}"
        for record, position in (run[0], run[-1]) if several else run:
            value = "-" if record.value() is None else (record.value() or b"").decode("ascii")
            yield f"{record.offset()}  {owner}  {value!r}  {shown(position)}"
    reader = Reader(records, Position.at(0))
    reader.read(len(records))
    for _ in _drain(reader, aside, READ_AT_ONCE):
        pass
    yield f"position behind what can be delivered: {shown(reader.buffer.position())}"
    counted = reader.buffer.counters
    yield (
        f"late records {counted.late_records}, duplicate markers {counted.duplicate_markers}, "
        f"malformed headers {counted.malformed_headers}, "
        f"discarded transactions {counted.discarded_transactions}"
    )
    for pending in reader.buffer.pending():
        yield _pending(pending)


def _pending(found: PendingTransaction) -> str:
    owner = txid(TxId.from_bytes(found.txid))
    return f"pending: {owner}, {found.count} records, the first at {found.first_offset}"


def consumer(log: MemoryLog, logs: GoldenLogs, **settings: Any) -> Consumer:
    """One that reads all data partitions from their start, and spills."""
    config = {
        "group.id": "golden",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "pending.memory.max.bytes": MEMORY_MAX_BYTES,
        **{key.replace("_", "."): value for key, value in settings.items()},
    }
    made = Consumer(config, log=log)
    made.assign([KafkaPartition(topic, partition, 0) for topic, partition in logs.partitions()])
    return made


def whole_lines(logs: GoldenLogs) -> Iterator[str]:
    """Committed transactions as `Consumer.transactions` gives them, and what it says of headers."""
    entries = entries_of(logs)
    # One without records here does not come: to wait for it would take all of `WAIT_S`.
    committed = [
        fate
        for fate in fates(entries, begun(entries)).values()
        if fate.state is State.COMMITTED
        and any(w.branches and w.partition.key in logs.data for w in fate.writes)
    ]
    events: list[str] = []
    with memory_log(logs) as log, consumer(log, logs) as reading:
        for found in islice(_transactions(reading, events), len(committed)):
            whole = "whole" if found.complete else "a part"
            where = " ".join(map(name, found.partitions))
            yield (
                f"{txid(found.txid)} at {found.commit_sequence}, decided {found.timestamp}, "
                f"{whole}: {where}"
            )
            digest, count = blake2b(digest_size=8), 0
            for message in found.records:
                digest.update(message.value() or b"")
                count += 1
            yield f"  {count} records, blake2b {digest.hexdigest()}"
    yield from sorted(events)


def _transactions(reading: Consumer, events: list[str]) -> Iterator[CommittedTransaction]:
    while True:
        stream = reading.transactions(WAIT_S)
        try:
            yield from stream
        except MalformedHeaderError as error:
            events.append(f"{error}")
        else:
            return
