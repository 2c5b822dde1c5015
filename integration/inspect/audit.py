"""Runs the audit: reads whole data topics and the journal, and checks what logs can show."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import cache, partial
from typing import Any, Final

from ...journal.control import TXCTL_HEADER, TXID_HEADER, TopicPartition
from ...journal.errors import UnknownTopicError
from ...journal.headers import headers_of
from ...journal.logs.interface import Log
from ...journal.reader import read_records
from ...journal.relocation_log import RelocationLog
from ...journal.sidecar import SUFFIX, is_sidecar
from ...journal.state import State
from .checks import Audit, Report, Suspect
from .committed_offsets import committed_iovs
from .groups import Span
from .journal import Journal
from .sums import READ_TIMEOUT_S, TASK_OFFSETS

Told = Callable[[int], None]
"""Called with a number of offsets."""
_FINISHED: Final = (State.COMMITTED, State.ABORTED)


def tell_nobody(_: int) -> None:
    """Does nothing."""


def run_audit(
    log: Log,
    topics: Sequence[str] | None,
    sums: Any,
    wave_offsets: int = TASK_OFFSETS,
    begun: Told = tell_nobody,
) -> Report:
    """Runs the audit, in the order of reading that `checks` needs.

    Args:
        log: the log to audit.
        topics: data topics to check; None checks all topics that the journal names.
        sums: function that sums up ranges: {partition: span} → groups.
        wave_offsets: sums of at most this many offsets, or of one larger partition, are held in
            memory at a time.
        begun: called once, with the number of offsets to be summed up.

    Raises:
        UnknownTopicError: there is no journal, or no topic of this name.
        JournalError, BrokerError, RecordsTrimmedError: the logs can't be read.
    """
    with closing(Journal(log)) as journal:
        audited, spans_of_all = _begin(log, topics, journal)
    begun(sum(end - start for start, end in spans_of_all.values()))
    for spans in waves(spans_of_all, wave_offsets):
        audited.feed(sums(spans))
        audited.check(spans)
    report = audited.finish(committed_iovs(log))
    for suspect in report.suspects:
        audited.resolve(suspect, _count(log, suspect))
    return report


def _begin(
    log: Log, topics: Sequence[str] | None, journal: Journal
) -> tuple[Audit, dict[TopicPartition, Span]]:
    """Reads the journal, asks for the ends of the data, and then reads the journal on."""
    journal.read_on()
    finished = {s.txid: s for s in journal if s.state in _FINISHED}
    keys = _partitions(log, topics, journal)
    # Sidecars first: one that is trimmed meanwhile would seem to lack what a pointer names that was
    # there when its topic's start was told.
    keys.sort(key=lambda key: not is_sidecar(key[0]))
    starts = {key: log.start_offset(*key) for key in keys}
    ends = {key: log.end_offset(*key) for key in keys}
    journal.read_on()
    audited = Audit(
        finished_before=finished,
        parts=journal.parts,
        starts=starts,
        now_ms=round(time.time() * 1000),
        # Read behind the starts: what was trimmed up to there has a relocation from before that.
        relocations=cache(partial(RelocationLog(log).read, timeout_s=READ_TIMEOUT_S)),
    )
    return audited, {key: (starts[key], ends[key]) for key in keys}


def waves(
    spans: Mapping[TopicPartition, Span], offsets: int
) -> Iterator[dict[TopicPartition, Span]]:
    """Yields the partitions in portions of at most `offsets` offsets; a larger one comes alone."""
    wave: dict[TopicPartition, Span] = {}
    room = offsets
    for key, (start, end) in spans.items():
        if wave and end - start > room:
            yield wave
            wave, room = {}, offsets
        wave[key] = start, end
        room -= end - start
    if wave:
        yield wave


def _partitions(
    log: Log, topics: Sequence[str] | None, journal: Iterable[Any]
) -> list[TopicPartition]:
    named = {topic for seen in journal for topic, _ in seen.partitions}
    if topics is None:
        chosen = sorted(named)
    else:
        sidecars = {topic + SUFFIX for topic in topics} & named
        chosen = sorted({*topics, *sidecars})
    keys = []
    for topic in chosen:
        try:
            count = log.partition_count(topic)
        except UnknownTopicError:
            if topics is not None and topic in topics:
                raise
            continue  # deleted since
        keys += [(topic, partition) for partition in range(count)]
    return keys


def _count(log: Log, suspect: Suspect) -> int:
    group, stated = suspect.group, suspect.stated
    found = 0
    start = log.start_offset(group.topic, group.partition)
    span = max(stated.first_offset, start), stated.last_offset + 1
    records = read_records(log, group.topic, group.partition, *span, timeout_s=READ_TIMEOUT_S)
    with closing(records):
        for record in records:
            try:
                headers: dict[str, Any] = dict(headers_of(record) or ())
            except SystemError:
                continue  # Somebody else's: the name of a header is not UTF-8.
            if headers.get(TXID_HEADER) == group.raw_txid:
                found += (headers.get(TXCTL_HEADER) or b"") == group.ctl
    return found
