"""Loading a journal partition: from its checkpoint to its end, in a thread of the caller's.

The checkpoint is a hint that anybody may have overwritten late, or that Kafka has forgotten (the
offsets of a group without members, after 7 days). So what it says is looked at and not believed:
where it leads nowhere, the journal is read from its start, which has a snapshot if it was trimmed.

Source: Transactional Messaging in Kafka, "Transaction coordinator"; PIP-31, "TC Startup".
"""

from __future__ import annotations

import logging
import time
from contextlib import closing
from typing import Final

from ...journal.collector import collector_paused
from ...journal.errors import BrokerError, JournalTruncatedError
from ...journal.logs.interface import Log
from ...journal.reader import (
    COORDINATORS_GROUP,
    JOURNAL_TOPIC,
    RecordsTrimmedError,
    read_entries,
)
from ..core.decision import ShardConfig
from ..core.replica import Replica, missing

_LOG = logging.getLogger(__name__)

TRIMMED_RETRIES: Final = 3
"""The owner may trim between our question for the start and the read; it does so seldom."""
CONFIRM_S: Final = 5.0
"""How long a journal must be told to end below what is known of it before its tail is lost. A
leader that was woken hears of its successor within a second, on a busy machine within two."""
CONFIRM_PAUSE_S: Final = 0.2


def load(
    log: Log,
    partition: int,
    config: ShardConfig,
    *,
    timeout_s: float,
    acknowledged_end: int = 0,
) -> Replica:
    """What a journal partition says up to its end as of this call; blocks.

    Args:
        log: that the journal lies in.
        partition: its number.
        config: for the shard.
        timeout_s: for the whole of it.
        acknowledged_end: everything below is known to have been acknowledged, to this process.

    Returns:
        A replica that is ready.

    Raises:
        JournalTruncatedError: the journal ends below what was acknowledged or checkpointed, or
            begins behind its snapshots.
        CorruptRecordError, UnknownRecordError: a record can't be read; with its offset.
        BrokerError: no answer in time.
        UnknownTopicError: there is no such partition.
    """
    deadline_s = time.monotonic() + timeout_s
    for attempt in range(TRIMMED_RETRIES):
        try:
            return _load(log, partition, config, deadline_s, acknowledged_end)
        except RecordsTrimmedError as error:
            if attempt == TRIMMED_RETRIES - 1:
                raise BrokerError(f"the journal is trimmed while it is read: {error}") from error
    raise AssertionError("unreachable")


def _load(
    log: Log, partition: int, config: ShardConfig, deadline_s: float, acknowledged_end: int
) -> Replica:
    # The checkpoint first and the end last: a journal only grows, so one that ends below what
    # was known of it before has lost its tail.
    committed = log.group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, partition)
    snapshot = committed.offset if committed is not None else 0
    first = log.start_offset(JOURNAL_TOPIC, partition)
    known_end = max(acknowledged_end, snapshot + 1 if snapshot else 0)
    end = journal_end(log, partition, known_end)
    if end < known_end:
        raise lost_tail(partition, known_end)
    if snapshot and snapshot >= first:
        replica = Replica(partition, config, snapshot, certain=True)
        read(log, replica, end, deadline_s)
        if replica.ready:
            return replica
    replica = Replica(partition, config, first)
    read(log, replica, end, deadline_s)
    if not replica.ready:
        raise JournalTruncatedError(
            f"journal partition {partition} begins at {first} and has no complete snapshot behind:"
            f" somebody else than its owner trimmed it; restore it from a copy, and see that"
            f" retention.ms and retention.bytes of {JOURNAL_TOPIC} are -1"
        )
    replica.certain = True
    return replica


def journal_end(log: Log, partition: int, known_end: int) -> int:
    """Offset that the next record of a journal partition will get; blocks.

    A partition's leader that was paused for seconds, and replaced, tells the end that it knew until
    it hears of its successor. So one answer proves no loss: it is asked again for `CONFIRM_S`.

    Args:
        log: that the journal lies in.
        partition: of the journal.
        known_end: everything below was acknowledged, or read.

    Returns:
        The end; below `known_end` if that was the answer to the last.

    Raises:
        UnknownTopicError: no such partition.
        BrokerError: no answer, or refused.
    """
    until_s = time.monotonic() + CONFIRM_S
    while True:
        end = log.end_offset(JOURNAL_TOPIC, partition)
        if end >= known_end or time.monotonic() >= until_s:
            return end
        _LOG.warning(
            "journal_ends_below partition=%d end=%d known_end=%d", partition, end, known_end
        )
        time.sleep(CONFIRM_PAUSE_S)


def lost_tail(partition: int, lost: int) -> JournalTruncatedError:
    """Why nobody may serve a journal that ended below `lost`: TxIds would be given out twice."""
    return JournalTruncatedError(
        f"the broker lost the tail of journal partition {partition}: offset {lost - 1} was"
        f" acknowledged, and the journal ended below; restore it from a replica that has it, or if"
        f" there is none see logtx journal accept-loss {partition} --end {lost}"
    )


def read(log: Log, replica: Replica, end: int, deadline_s: float) -> None:
    """Feed a replica all below `end`; blocks.

    Raises:
        CorruptRecordError: some are missing.
        RecordsTrimmedError, BrokerError, JournalError: as `read_entries`.
    """
    timeout_s = max(deadline_s - time.monotonic(), 0)
    start = replica.next_offset
    entries = read_entries(log, replica.partition, start, end, timeout_s=timeout_s, lazily=True)
    with closing(entries), collector_paused():
        for offset, entry in entries:
            replica.feed(offset, entry)
        replica.read_decisions()
    if replica.next_offset < end:
        # Else a bid would wait in vain until all below the end was read.
        raise missing(replica.partition, replica.next_offset, end)
