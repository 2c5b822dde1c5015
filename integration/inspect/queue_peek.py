"""Reads the next messages of a queue as its consumers would, and takes none of them.

The coordinator tells which spans may be given out, and this reads them as leases are read: whole
transactions, where they are delivered, in both modes of topics. Nothing is leased, so what is shown
may be given out, or acknowledged, a moment later.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from ...consumer.core.headers import txid_of
from ...consumer.core.pending import RawTxId, Record
from ...consumer.leased import LeaseReader
from ...consumer.range_reader.reading import ReadConfig
from ...coordinator.client.tls import tls_of
from ...coordinator.protocol.queues import Lease
from ...journal.control import TXCTL_HEADER, TXID_HEADER
from ...journal.errors import ConsumerError, MalformedHeaderError
from ...journal.logs.interface import Log
from ...journal.places import PartitionId
from ...journal.spans import AT_OFFSET, MessageId, Span
from ...journal.txid import TxId
from .subscriptions import PartitionRow

AVAILABLE_MAX: Final = 100
"""Most spans of a partition that are looked into, before what was never given out. More find more
of a queue that is worked off out of order, and take a longer answer."""
OFFSETS_MAX: Final = 100_000
"""Most offsets of a partition that are looked through. More take longer where there are only
markers and aborted records."""
SLICE_OFFSETS: Final = 5_000
"""Most offsets of one reading, as of a lease."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeekedMessage:
    """A message that may be given out next; or what can't be read."""

    partition: PartitionId
    place: MessageId
    """Its name in the order of delivery."""
    offset: int | None = None
    """Of its record; None of what can't be read."""
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    """Without those of logtx."""
    written_ms: int | None = None
    """When its record was written, in ms since 1970; None if nobody tells."""
    txid: TxId | None = None
    """The transaction that wrote it; None of a plain record."""
    failure: str | None = None
    """Why consumers can't read what stands here; None of a message."""


class QueuePeeker:
    """Reads the next messages of partitions. Call `close` when done."""

    def __init__(self, log: Log, kafka: Mapping[str, Any], group: str, *, timeout_s: float) -> None:
        """Opens what reads.

        Args:
            log: the log to read; the caller closes it.
            kafka: librdkafka's settings.
            group: the subscription.
            timeout_s: bound of each question to coordinators, in seconds.
        """
        config = ReadConfig(kafka=kafka, fail_on_data_loss=False, subscription=group)
        self._reader = LeaseReader(log, kafka, config, timeout_s=timeout_s, tls=tls_of(kafka))

    def close(self) -> None:
        """Closes what was opened."""
        self._reader.close()

    def peek(self, part: PartitionRow, limit: int) -> Iterator[PeekedMessage]:
        """Yields the next messages of a partition, at most `limit`, in the order of delivery.

        What can't be read is among them. Nothing is told of what lies behind it.

        Raises:
            BrokerError, RequestTimedOutError, CoordinatorNotAvailableError: nobody answers.
        """
        with closing(self._messages(part)) as messages:
            yield from islice(messages, limit)

    def _messages(self, part: PartitionRow) -> Generator[PeekedMessage, None, None]:
        for span in self._slices(part):
            is_read = yield from self._read(part.info.partition, span)
            if not is_read:
                return

    def _slices(self, part: PartitionRow) -> Iterator[Span]:
        """Yields spans that may be given out, none longer than one reading."""
        info = part.info
        if part.end is None or part.log_start is None:
            return
        at_ends = self._reader.may_be_placed([info.partition.topic])
        end = MessageId(part.end, AT_OFFSET if at_ends else 0)
        spans = [*info.available]
        if len(spans) < AVAILABLE_MAX:
            spans.append(Span(info.reached, end))
        looked = 0
        for lo, hi in spans:
            at = max(lo, MessageId(part.log_start))
            while at < min(hi, end) and looked < OFFSETS_MAX:
                bound = min(hi, end, MessageId(at.offset + SLICE_OFFSETS))
                yield Span(at, bound)
                looked += bound.offset - at.offset
                at = bound

    def _read(self, partition: PartitionId, span: Span) -> Generator[PeekedMessage, None, bool]:
        """Yields the messages of a span. Returns whether all of it can be read."""
        lease = Lease(number=0, partition=partition, span=span, delivery_count=1, left_ms=0)
        messages = self._reader.messages(lease)
        at = span.lo
        try:
            with closing(messages):
                for message, name in messages:
                    yield _peeked(partition, message, name)
                    at = name.behind
        except ConsumerError as error:
            yield PeekedMessage(partition=partition, place=at, failure=str(error))
            return False
        return True


def _peeked(partition: PartitionId, message: Message, name: MessageId) -> PeekedMessage:
    kind, written_ms = message.timestamp()
    own = (TXID_HEADER, TXCTL_HEADER)
    headers = cast("list[tuple[str, bytes | None]]", message.headers() or [])
    return PeekedMessage(
        partition=partition,
        place=name,
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple(each for each in headers if each[0] not in own),
        written_ms=None if kind == TIMESTAMP_NOT_AVAILABLE else written_ms,
        txid=_txid(txid_of(cast(Record, message))),
    )


def _txid(raw: RawTxId | None) -> TxId | None:
    try:
        return None if raw is None else TxId.from_bytes(raw)
    except MalformedHeaderError:
        return None
