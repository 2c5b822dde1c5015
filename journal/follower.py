"""Following the journal: its entries as they come, of one partition or several."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Mapping
from typing import Any, Final, TypeAlias, cast

from confluent_kafka import KafkaError
from confluent_kafka import TopicPartition as KafkaPartition

from .errors import BrokerError
from .logs.interface import Log
from .reader import BATCH_MAX, JOURNAL_TOPIC, READER_SETTINGS, RecordsTrimmedError, decode_message
from .records.types import Entry

_LOG = logging.getLogger(__name__)

_POLL_S: Final = 0.05

Followed: TypeAlias = tuple[int, int, Entry]
"""Journal partition, offset, entry."""


class JournalFollower:
    """Reads journal partitions on and on, through one consumer. One thread at a time.

    Which entries count is the caller's to tell: see `EpochFilter`.
    """

    def __init__(
        self, log: Log, places: Mapping[int, int], settings: Mapping[str, Any] | None = None
    ) -> None:
        """Make a consumer.

        Args:
            log: that the journal lies in.
            places: each journal partition to follow, and the offset to begin at.
            settings: librdkafka's, in place of `READER_SETTINGS`.
        """
        self.next_offsets: dict[int, int] = {}
        """Of each partition, the offset of the entry to come next."""
        self._log = log
        self._consumer = log.consumer(settings if settings is not None else READER_SETTINGS)
        self.move(places)

    def move(self, places: Mapping[int, int]) -> None:
        """Go on from other places; what was followed and is not named is let go."""
        self.next_offsets = dict(places)
        self._consumer.assign([KafkaPartition(JOURNAL_TOPIC, p, o) for p, o in places.items()])

    def poll(self, timeout_s: float = 0) -> list[Followed]:
        """What is there; waits up to `timeout_s` for the first, and for nothing more.

        Raises:
            RecordsTrimmedError: a partition has no record at its place any more: it was trimmed, or
                lost with the end of the journal.
            CorruptRecordError, UnknownRecordError: with partition and offset in the message.
        """
        first = self._consumer.poll(timeout_s)
        if first is None:
            return []
        found: list[Followed] = []
        for message in [first, *self._consumer.consume(BATCH_MAX, 0)]:
            partition, offset = cast(int, message.partition()), cast(int, message.offset())
            error = message.error()
            if error is None:
                # A consumer that was moved may still have what it had fetched before.
                if offset >= self.next_offsets.get(partition, offset + 1):
                    self.next_offsets[partition] = offset + 1
                    found.append((partition, offset, decode_message(message)))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise RecordsTrimmedError(
                    f"{JOURNAL_TOPIC}-{partition} has no offset"
                    f" {self.next_offsets.get(partition)}: {error.str()}"
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                # The last offsets may hold no records.
                self.next_offsets[partition] = max(self.next_offsets.get(partition, 0), offset)
            else:
                # A broker that is away; librdkafka connects again by itself.
                _LOG.warning("journal_follower_error partition=%d error=%s", partition, error)
        return found

    def read_to_ends(self, *, timeout_s: float) -> Generator[Followed, None, None]:
        """Everything up to the partitions' ends as of now.

        Args:
            timeout_s: longest wait without any progress.

        Raises:
            BrokerError: no progress in time; also as `poll`.
        """
        ends = {p: self._log.end_offset(JOURNAL_TOPIC, p) for p in self.next_offsets}
        deadline_s = time.monotonic() + timeout_s
        while behind := [p for p, end in ends.items() if self.next_offsets[p] < end]:
            found = self.poll(_POLL_S)
            yield from found
            if found:
                deadline_s = time.monotonic() + timeout_s
            elif time.monotonic() > deadline_s:
                partition = behind[0]
                raise BrokerError(
                    f"reading {JOURNAL_TOPIC}-{partition} stood at"
                    f" {self.next_offsets[partition]} of {ends[partition]} for {timeout_s} s"
                )

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
