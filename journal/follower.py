"""Follows the journal: returns the entries of one or several partitions as they come."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Mapping
from typing import Any, Final, TypeAlias, cast

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from .errors import BrokerError, LogtxError
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
        self._failure: LogtxError | None = None
        """Why `poll` can't go on from here."""
        self.failed: int | None = None
        """The partition whose entries can't be read from here; None while all can."""
        self.next_offsets: dict[int, int] = {}
        """Per partition, the offset of the entry to come next."""
        self._log = log
        self._consumer = log.consumer(settings if settings is not None else READER_SETTINGS)
        self.move(places)

    def move(self, places: Mapping[int, int]) -> None:
        """Goes on from other places; stops following partitions that `places` does not name."""
        self._failure = self.failed = None
        self.next_offsets = dict(places)
        self._consumer.assign([KafkaPartition(JOURNAL_TOPIC, p, o) for p, o in places.items()])

    def poll(self, timeout_s: float = 0) -> list[Followed]:
        """Returns the entries that are there; waits up to `timeout_s` only if there are none.

        An error comes after the entries before it, and again at each call until `move`: a reader
        that passed over a record would be wrong about everything behind it.

        Raises:
            RecordsTrimmedError: a partition no longer has a record at its place: it was trimmed, or
                the end of the journal was lost.
            CorruptRecordError, UnknownRecordError: with partition and offset in the message.
        """
        found: list[Followed] = []
        if self._failure is None:
            first = self._consumer.poll(timeout_s)
            if first is None:
                return []
            try:
                for message in [first, *self._consumer.consume(BATCH_MAX, 0)]:
                    self.failed = message.partition()
                    self._read(message, found)
                self.failed = None
            except LogtxError as error:
                self._failure = error
        if self._failure is not None and not found:
            raise self._failure.with_traceback(None)
        return found

    def _read(self, message: Message, found: list[Followed]) -> None:
        partition, offset = cast(int, message.partition()), cast(int, message.offset())
        error = message.error()
        if error is None:
            # After a move, the consumer may still return what it had fetched before.
            if offset >= self.next_offsets.get(partition, offset + 1):
                found.append((partition, offset, decode_message(message)))
                self.next_offsets[partition] = offset + 1
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

    def read_to_ends(self, *, timeout_s: float) -> Generator[Followed, None, None]:
        """Yields every entry up to the partitions' ends, as they are when the iteration begins.

        Args:
            timeout_s: longest time in seconds that a partition may stand still before its end.

        Raises:
            BrokerError: a partition stood still for longer, or did not tell its end in that time.
            RecordsTrimmedError, CorruptRecordError, UnknownRecordError: as `poll`.
        """
        ends = {
            p: self._log.end_offset(JOURNAL_TOPIC, p, timeout_s=timeout_s)
            for p in self.next_offsets
        }
        # A deadline for each: what others write to a partition must not prolong the wait for one
        # whose leader is gone.
        deadlines_s = dict.fromkeys(ends, time.monotonic() + timeout_s)
        while behind := [p for p, end in ends.items() if self.next_offsets[p] < end]:
            before = dict(self.next_offsets)
            yield from self.poll(_POLL_S)
            now_s = time.monotonic()
            for partition in behind:
                place = self.next_offsets[partition]
                if place != before[partition]:
                    deadlines_s[partition] = now_s + timeout_s
                elif now_s > deadlines_s[partition]:
                    raise BrokerError(
                        f"reading {JOURNAL_TOPIC}-{partition} stood at {place} of"
                        f" {ends[partition]} for {timeout_s} s"
                    )

    def close(self) -> None:
        """Closes the consumer."""
        self._consumer.close()
