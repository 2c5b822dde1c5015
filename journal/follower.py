"""Follows the journal: returns the entries of one or several partitions as they come."""

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
"""Longest single wait for entries in `read_to_ends`; its time-out is checked this often."""

Followed: TypeAlias = tuple[int, int, Entry]
"""(journal partition, offset, entry)."""


class JournalFollower:
    """Reads journal partitions continuously, through one consumer. One thread at a time.

    Does not filter: the caller decides which entries count, see `EpochFilter`.
    """

    def __init__(
        self, log: Log, places: Mapping[int, int], settings: Mapping[str, Any] | None = None
    ) -> None:
        """Opens the consumer, at `places`.

        Args:
            log: the log that the journal lies in.
            places: per journal partition to follow, the offset to begin at.
            settings: librdkafka's, instead of `READER_SETTINGS`.
        """
        self.next_offsets: dict[int, int] = {}
        """Per partition, the offset of the entry to come next."""
        self._log = log
        self._consumer = log.consumer(settings if settings is not None else READER_SETTINGS)
        self.move(places)

    def move(self, places: Mapping[int, int]) -> None:
        """Goes on from other places; stops following partitions that `places` does not name."""
        self.next_offsets = dict(places)
        self._consumer.assign([KafkaPartition(JOURNAL_TOPIC, p, o) for p, o in places.items()])

    def poll(self, timeout_s: float = 0) -> list[Followed]:
        """Returns the entries that are there; waits up to `timeout_s` only if there are none.

        Raises:
            RecordsTrimmedError: a partition no longer has a record at its place: it was trimmed, or
                the end of the journal was lost.
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
                # After a move, the consumer may still return what it had fetched before.
                if offset >= self.next_offsets.get(partition, offset + 1):
                    self.next_offsets[partition] = offset + 1
                    found.append((partition, offset, decode_message(message)))
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise RecordsTrimmedError(
                    f"{JOURNAL_TOPIC}-{partition} has no offset"
                    f" {self.next_offsets.get(partition)}: {error.str()}"
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                # The last offsets may hold no records (control records).
                self.next_offsets[partition] = max(self.next_offsets.get(partition, 0), offset)
            else:
                # A broker is away; librdkafka connects again by itself.
                _LOG.warning("journal_follower_error partition=%d error=%s", partition, error)
        return found

    def read_to_ends(self, *, timeout_s: float) -> Generator[Followed, None, None]:
        """Yields every entry up to the partitions' ends, as they are when the iteration begins.

        Args:
            timeout_s: longest wait in seconds without any progress.

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
        """Closes the consumer."""
        self._consumer.close()
