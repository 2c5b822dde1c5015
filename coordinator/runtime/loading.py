"""Loads a journal partition from its checkpoint to its end, in a thread of the caller.

The checkpoint is a hint. A former owner may have overwritten it late, or Kafka may have forgotten
it (it forgets the offsets of a group without members after 7 days). So the checkpoint is tried and
not believed: if it leads nowhere, the journal is read from its start, where a snapshot stands if
the journal was trimmed.

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
from ..protocol.checkpoint import Checkpoint

_LOG = logging.getLogger(__name__)

TRIMMED_RETRIES: Final = 3
"""Attempts to load. The owner may trim the journal between our question for its start and the read;
it trims so seldom that three attempts suffice."""
CONFIRM_S: Final = 5.0
"""How long the broker must answer with an end below the known end before the tail counts as lost. A
leader that wakes up hears of its successor within a second, on a busy machine within two; a
shorter time would take such a leader's answer for a loss."""
CONFIRM_PAUSE_S: Final = 0.2
"""Pause between two such questions."""


def load(
    log: Log,
    partition: int,
    config: ShardConfig,
    *,
    timeout_s: float,
    acknowledged_end: int = 0,
) -> Replica:
    """Reads a journal partition up to the end that it has at this call. Blocks.

    Args:
        log: the log that holds the journal.
        partition: number of the journal partition.
        config: limits of the shard.
        timeout_s: bound of the whole call in seconds.
        acknowledged_end: this process knows that everything below this offset was acknowledged.

    Returns:
        A replica that is ready.

    Raises:
        JournalTruncatedError: the journal ends below what was acknowledged or checkpointed, or
            begins behind its snapshots.
        CorruptRecordError, UnknownRecordError: a record can't be read; names its offset.
        BrokerError: no answer in time, or the journal was trimmed at every attempt.
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
    # The checkpoint is read first and the end last: a journal only grows, so a journal that ends
    # below an end known earlier has lost its tail.
    committed = log.group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, partition)
    snapshot = committed.offset if committed is not None else 0
    first = log.start_offset(JOURNAL_TOPIC, partition)
    checkpoint = Checkpoint.from_group_offset(committed)
    # The OWNER record of who wrote the checkpoint is there too: an epoch is its offset. A lost tail
    # may have taken every record by which others would know of that owner.
    owned_end = 0 if checkpoint is None else checkpoint.epoch + 1
    known_end = max(acknowledged_end, snapshot + 1 if snapshot else 0, owned_end)
    end = journal_end(log, partition, known_end)
    if end < known_end:
        raise lost_tail(partition, known_end)
    if snapshot and snapshot >= first:
        replica = Replica(partition, config, snapshot, certain=True)
        read(log, replica, end, deadline_s)
        if replica.ready and replica.certain:
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
    """Asks for the offset that the next record of a journal partition will get. Blocks.

    A leader that was paused for seconds and replaced answers with the end that it knew, until it
    hears of its successor. So one answer below `known_end` proves no loss, and the question is
    repeated for `CONFIRM_S`.

    Args:
        log: the log that holds the journal.
        partition: number of the journal partition.
        known_end: everything below this offset was acknowledged, or read.

    Returns:
        The end; it is below `known_end` only if every answer was.

    Raises:
        UnknownTopicError: there is no such partition.
        BrokerError: no answer, or the broker refused.
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
    """Returns the error that forbids serving a journal that ended below `lost`.

    Serving it would give out TxIds twice (trap 10).
    """
    return JournalTruncatedError(
        f"the broker lost the tail of journal partition {partition}: offset {lost - 1} was"
        f" acknowledged, and the journal ended below; restore it from a replica that has it, or if"
        f" there is none see logtx journal accept-loss {partition} --end {lost}"
    )


def read(log: Log, replica: Replica, end: int, deadline_s: float) -> None:
    """Feeds a replica all records below the offset `end`. Blocks.

    Raises:
        CorruptRecordError: some records are missing.
        RecordsTrimmedError, BrokerError, JournalError: as `read_entries` raises them.
    """
    timeout_s = max(deadline_s - time.monotonic(), 0)
    start = replica.next_offset
    entries = read_entries(log, replica.partition, start, end, timeout_s=timeout_s, lazily=True)
    with closing(entries), collector_paused():
        for offset, entry in entries:
            replica.feed(offset, entry)
        replica.read_decisions()
    if replica.next_offset < end:
        # Otherwise a bid would wait in vain for the missing records.
        raise missing(replica.partition, replica.next_offset, end)
