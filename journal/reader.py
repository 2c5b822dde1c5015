"""Reads a log between two offsets, and the journal and the fates of transactions in it."""

from __future__ import annotations

import logging
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import closing
from operator import methodcaller
from types import MappingProxyType
from typing import Any, Final, cast

from confluent_kafka import KafkaError, Message

from .errors import BrokerError, JournalError, LogtxError, UnknownTopicError
from .fetcher import Fetched, Fetcher, PollingFetcher
from .logs.interface import Log
from .modes import MODES_TOPIC
from .native.records import entry_decoder
from .records.fate import UNKNOWN_FATE, EpochFilter, Fate, FateScan
from .records.snapshots import EarlierSnapshots, FoundSnapshot, SnapshotScan, begins_at
from .records.types import Entry
from .relocation import RELOCATIONS_TOPIC
from .rights import may_not_read
from .state import State
from .txid import TxId

JOURNAL_TOPIC: Final = "__transaction_control"
OFFSETS_TOPIC: Final = "__transaction_offsets"
RESERVED: Final = {
    **dict.fromkeys((JOURNAL_TOPIC, OFFSETS_TOPIC, MODES_TOPIC, RELOCATIONS_TOPIC), "logtx's own"),
    **dict.fromkeys(
        (
            "__consumer_offsets",
            "__transaction_state",
            "__share_group_state",
            "__cluster_metadata",
        ),
        "Kafka's own",
    ),
}
"""Topics that no transaction may write to and no pattern matches, and whose they are. Kafka refuses
markers in its own for ever."""
COORDINATORS_GROUP: Final = "logtx-coordinators"
"""The group whose committed offsets in the journal are the checkpoints.

No consumer subscribes in it: a group with members refuses commits from outside.
"""

_LOG = logging.getLogger(__name__)
BATCH_MAX: Final = 1_000
"""Most records taken from librdkafka at once; fewer cost more calls, more hold more memory."""
_POLL_S: Final = 0.1
"""Longest single wait for records; the reader's own time-out is checked this often."""
_TRIMMED_RETRIES: Final = 3
"""How often reading starts over when the owner trims the journal under it, before it fails."""
_offset_of: Final = methodcaller("offset")
READER_SETTINGS: Final[Mapping[str, Any]] = {
    "group.id": "logtx-reader",  # librdkafka insists on one; no reader joins it or commits
    "auto.offset.reset": "error",  # any other value silently skips trimmed records
    "check.crcs": True,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "fetch.queue.backoff.ms": 5,  # with the default, 1 s, a backlog is read at 1/8 of the rate
    "fetch.wait.max.ms": 10,
    "isolation.level": "read_uncommitted",
}
"""Settings of consumers that read a log by offset, outside of any consumer group."""

STANDING_READER_SETTINGS: Final[Mapping[str, Any]] = {
    **READER_SETTINGS,
    # Each such reader asks every broker that often, idle or not: at 10 ms, those of three
    # coordinators kept three brokers at half a core. What is new comes at once all the same; only
    # a partition that is followed anew waits for it.
    "fetch.wait.max.ms": 100,
}
"""`READER_SETTINGS` of consumers that a coordinator keeps open all its life."""


class RecordsTrimmedError(LogtxError):
    """The requested range begins below the log's start: its records are deleted."""


def journal_partition_of(name: str, partition_count: int) -> int:
    """Returns a name's journal partition: CRC-32 of its UTF-8, modulo the count.

    Part of the protocol: clients and coordinators of every version and language must agree, so this
    never changes. Names are those of transaction groups, and of consumer groups for BIND.
    """
    return zlib.crc32(name.encode()) % partition_count


def read_records(
    log: Log,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    timeout_s: float,
) -> Generator[Message, None, None]:
    """Reads like `read_batches`, and yields one record at a time."""
    batches = read_batches(log, topic, partition, start, end, timeout_s=timeout_s)
    with closing(batches):
        for records in batches:
            yield from records


def read_batches(
    log: Log,
    topic: str,
    partition: int,
    start: int,
    end: int,
    *,
    timeout_s: float,
) -> Generator[list[Message], None, None]:
    """Reads the records with offsets in [start, end), in order, without a consumer group.

    Yields them in lists as they come, never an empty one. Skips offsets that hold no record
    (compacted away, or Kafka's own control records).

    Args:
        log: the log to read.
        topic: its name.
        partition: its number.
        start: first offset.
        end: offset to stop before; records that are not there yet are waited for.
        timeout_s: longest wait in seconds without any progress.

    Raises:
        RecordsTrimmedError: `start` lies below the log's start, or the place reached does, because
            the log was trimmed while reading.
        BrokerError: no progress in `timeout_s`, or the log ends below `start`.
        UnknownTopicError: no such topic or partition.
    """
    if start >= end:
        return
    with closing(PollingFetcher(log.consumer(READER_SETTINGS))) as fetcher:
        fetched = read_fetched(log, topic, partition, start, end, fetcher, timeout_s=timeout_s)
        for batch in fetched:
            yield batch.records


def read_fetched(
    log: Log,
    topic: str,
    partition: int,
    start: int,
    end: int,
    fetcher: Fetcher,
    *,
    timeout_s: float,
) -> Generator[Fetched, None, None]:
    """Reads like `read_batches`, by a fetcher that is given, and yields what that found out, too.

    The fetcher has settings like `READER_SETTINGS`. It is the caller's to close.
    """
    if start >= end:
        return
    fetcher.assign(topic, partition, start)
    deadline_s = time.monotonic() + timeout_s
    problem = "no records came"
    place, checked = start, False
    while place < end:
        fetched = fetcher.fetch(BATCH_MAX, _POLL_S)
        records = fetched.records
        if not (records or fetched.events or checked):
            # librdkafka reports no error for a partition that does not exist; this call does.
            log.end_offset(topic, partition, timeout_s=timeout_s)
            checked = True
        if records:
            place = _offset_of(records[-1]) + 1
            if place > end:
                fetched = fetched.below(bisect_left(records, end, key=_offset_of))
            if fetched.records:
                yield fetched
            # The time that the caller spends on the records is not the log's.
            deadline_s = time.monotonic() + timeout_s
        for event in fetched.events:
            error = cast(KafkaError, event.error())
            if error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise _out_of_range(log, topic, partition, place, timeout_s)
            if error.code() != KafkaError._PARTITION_EOF:
                problem = _passing(log, topic, error)
            elif _offset_of(event) >= end:
                return  # the last offsets of the range hold no records
        if time.monotonic() > deadline_s:
            raise BrokerError(
                f"reading {topic}-{partition} stood at {place} of {end} "
                f"for {timeout_s} s: {problem}"
            )


def _passing(log: Log, topic: str, error: KafkaError) -> str:
    """Returns what librdkafka says of an error that may pass; raises another one."""
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        sentence = may_not_read(log.bootstrap_servers, log.principal, topic)
        raise BrokerError(sentence, kafka_code=error.code())
    return error.str()


def _out_of_range(log: Log, topic: str, partition: int, place: int, timeout_s: float) -> LogtxError:
    log_start = log.start_offset(topic, partition, timeout_s=timeout_s)
    if place < log_start:
        return RecordsTrimmedError(f"{topic}-{partition} begins at {log_start}, not at {place}")
    return BrokerError(f"{topic}-{partition} has no offset {place}: the log ends below")


def read_entries(
    log: Log, partition: int, start: int, end: int, *, timeout_s: float, lazily: bool = False
) -> Generator[tuple[int, Entry], None, None]:
    """Reads and decodes the journal between two offsets: yields (offset, entry), in order.

    Args:
        log: the log to read.
        partition: number of the journal partition.
        start: first offset.
        end: offset to stop before.
        timeout_s: longest wait in seconds without any progress.
        lazily: see `decode_entry`.

    Raises:
        CorruptRecordError, UnknownRecordError: with partition and offset in the message.
        RecordsTrimmedError, BrokerError, UnknownTopicError: as `read_records`.
    """
    decode = entry_decoder(lazily=lazily)
    batches = read_batches(log, JOURNAL_TOPIC, partition, start, end, timeout_s=timeout_s)
    with closing(batches):
        for messages in batches:
            for message in messages:
                yield _offset_of(message), _decoded(message, decode)


def decode_message(message: Message) -> Entry:
    """Decodes the journal entry in a record.

    Raises:
        CorruptRecordError, UnknownRecordError: with partition and offset in the message.
    """
    return _decoded(message, entry_decoder())


def _decoded(message: Message, decode: Callable[[bytes | None], Entry]) -> Entry:
    try:
        return decode(message.value())
    except JournalError as error:
        where = f"{JOURNAL_TOPIC}-{message.partition()} at offset {message.offset()}"
        raise type(error)(f"{where}: {error}") from error


def find_fates(
    log: Log,
    txids: Iterable[TxId],
    *,
    timeout_s: float,
    reached: Mapping[int, int] = MappingProxyType({}),
) -> dict[TxId, Fate]:
    """Returns what became of transactions, as of the journal's end when this is called.

    Reads each journal partition once, from the lowest BEGIN to the end, and stops early when
    nothing that follows could change a fate. Needs no coordinator.

    Args:
        log: the log that the journal lies in.
        txids: TxIds found in data or returned by a coordinator; see `FateScan` on made-up ones.
        timeout_s: longest time for the whole call, in seconds.
        reached: journal partition → an end that it is known to have reached.

    Returns:
        The fate of each TxId, without its writes; `State.UNKNOWN` if its BEGIN was trimmed or never
        was, or lies behind the end that was told.

    Raises:
        BrokerError: no answer in time, or one of a broker that leads the partition no more.
        JournalError: a record on the way does not decode.
        UnknownTopicError: there is no journal.
    """
    deadline_s = time.monotonic() + timeout_s
    by_partition: dict[int, list[TxId]] = {}
    for txid in txids:
        by_partition.setdefault(txid.partition, []).append(txid)
    fates: dict[TxId, Fate] = {}
    for partition, wanted in sorted(by_partition.items()):
        for attempt in range(_TRIMMED_RETRIES):
            try:
                fates |= _scan(log, partition, wanted, deadline_s, reached.get(partition, 0))
                break
            except RecordsTrimmedError:
                # The owner trimmed after this asked for the start, and before it read there.
                if attempt == _TRIMMED_RETRIES - 1:
                    raise
    return fates


def _scan(
    log: Log, partition: int, txids: list[TxId], deadline_s: float, reached: int
) -> dict[TxId, Fate]:
    def left_s() -> float:
        left = deadline_s - time.monotonic()
        if left <= 0:
            raise BrokerError(f"no answer about {len(txids)} transactions in time")
        return left

    try:
        # The end comes first: a decision made before this call must be seen.
        end = log.end_offset(JOURNAL_TOPIC, partition, timeout_s=left_s())
        log_start = log.start_offset(JOURNAL_TOPIC, partition, timeout_s=left_s())
    except UnknownTopicError as error:
        info = log.topic_info(JOURNAL_TOPIC, timeout_s=left_s())  # raises if there is no journal
        if partition < info.partition_count:
            # Brokers say so for a moment. If it were reported as UNKNOWN, committed data would be
            # dropped.
            raise BrokerError(f"{JOURNAL_TOPIC}-{partition} is there, but: {error}") from error
        return dict.fromkeys(txids, UNKNOWN_FATE)
    if end < reached:
        raise BrokerError(
            f"{JOURNAL_TOPIC}-{partition} reaches {reached}, and a broker tells {end} for its end:"
            " it stood still, and does not know yet that another one leads the partition"
        )
    fates = {t: Fate(State.UNKNOWN, ahead=t.offset >= end) for t in txids}
    present = [t for t in txids if log_start <= t.offset < end]
    if not present:
        return fates
    return fates | _scan_between(log, partition, present, end, left_s)


def _scan_between(
    log: Log, partition: int, present: list[TxId], end: int, left_s: Callable[[], float]
) -> dict[TxId, Fate]:
    """Scans from the first BEGIN of these transactions to the end, or until all fates are final."""
    scan = FateScan(present, writes=False)
    entries = read_entries(log, partition, scan.start, end, timeout_s=left_s())
    with closing(entries):
        for offset, entry in entries:
            scan.feed(offset, entry)
            if scan.is_final:
                break
            left_s()
    _LOG.debug("fates_found partition=%d count=%d", partition, len(present))
    return scan.fates()


def find_snapshot(log: Log, partition: int, *, timeout_s: float) -> FoundSnapshot | None:
    """Finds a snapshot that counts: the checkpoint's, or without that the journal's last.

    `timeout_s` bounds all of it.
    """
    deadline_s = time.monotonic() + timeout_s

    def left_s() -> float:
        return max(deadline_s - time.monotonic(), 0)

    # The checkpoint is read before the end: it names only what is acknowledged, so it names nothing
    # above the end.
    hint = log.group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, partition, timeout_s=timeout_s)
    for attempt in range(_TRIMMED_RETRIES):
        start = log.start_offset(JOURNAL_TOPIC, partition, timeout_s=left_s())
        end = log.end_offset(JOURNAL_TOPIC, partition, timeout_s=left_s())
        try:
            if hint is not None and start <= hint.offset < end:
                found = _scan_snapshots(log, partition, hint.offset, end, deadline_s, first=True)
                if found is not None:
                    return found
            return _scan_snapshots(log, partition, start, end, deadline_s, first=False)
        except RecordsTrimmedError:
            # The owner trimmed after this asked for the start, and before it read there.
            if attempt == _TRIMMED_RETRIES - 1:
                raise
    raise AssertionError("unreachable")


def _scan_snapshots(
    log: Log, partition: int, start: int, end: int, deadline_s: float, *, first: bool
) -> FoundSnapshot | None:
    scan = SnapshotScan(start)
    entries = read_entries(
        log, partition, start, end, timeout_s=max(deadline_s - time.monotonic(), 0)
    )
    with closing(entries):
        for offset, entry in entries:
            if first and offset == start and not begins_at(offset, entry):
                return None  # the hint is wrong: no snapshot begins here
            scan.feed(offset, entry)
            if first and scan.found is not None:
                return scan.found
            if time.monotonic() > deadline_s:
                raise BrokerError(f"{JOURNAL_TOPIC}-{partition} was not read in time")
    return None if first else scan.found


def earlier_snapshots(
    log: Log, partition: int, start: int, end: int, epochs: EpochFilter, *, timeout_s: float
) -> list[int]:
    """Finds the complete snapshots that count before one that is known to.

    Args:
        log: the log that the journal lies in.
        partition: journal partition.
        start: journal offset to search from.
        end: offset of the known one's first chunk.
        epochs: what is known of epochs there.
        timeout_s: longest wait without progress, in seconds.

    Returns:
        Journal offsets of their first chunks, in order.

    Raises:
        BrokerError, RecordsTrimmedError, JournalError: the journal can't be read.
    """
    earlier = EarlierSnapshots(epochs)
    with closing(read_entries(log, partition, start, end, timeout_s=timeout_s)) as entries:
        for offset, entry in entries:
            earlier.feed(offset, entry)
    return earlier.counting()
