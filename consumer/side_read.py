"""Side reads: reads a transaction's records again if the buffer lacks what the marker states.

A second consumer, kept open, reads from the marker's lowest first offset up to the marker. It reads
a slice at a time, between other work, so a long side read holds up its own partition only. It
changes only the transactions that it was asked for.

Source: Transactional Messaging in Kafka, "Consumer failure".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final, cast

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.errors import MalformedHeaderError
from ..journal.logs.interface import Log, LogConsumer
from .core.buffer import PartitionBuffer
from .core.entries import SideRead
from .core.headers import control_of, is_marker, txid_of
from .core.pending import PendingTransaction, PendingTransactionMap, RawTxId, Record
from .core.shared import Shared

_LOG = logging.getLogger(__name__)
SLICE_RECORDS: Final = 2_000
"""Records that a slice reads after its first. More delay the other partitions for longer, fewer
cost more CPU per record."""
ANSWER_S: Final = 5.0
"""Time-out of the requests for the log's start and the topic's id. A longer one blocks all
partitions for longer while a broker is away, a shorter one fails on a slow broker."""
TOPIC_CONFIRM_S: Final = 5.0
"""How long brokers must tell the topic id that a marker names before its records count as lost. A
broker that does not know yet that the topic was created again would stop the partition; with a
longer time a loss is told later."""


class _Pass:
    """One pass over a range of a partition. It serves all side reads within the range."""

    def __init__(self, buffer: PartitionBuffer, requests: list[SideRead], log_start: int) -> None:
        self.buffer = buffer
        self.log_start = log_start
        self.wanted: dict[RawTxId, SideRead] = {r.txid: r for r in requests}
        self.missing: list[SideRead] = []
        """Requests whose records are not all there: the topic's id must be asked for."""
        self.missed_s: float | None = None
        """When it was asked for first."""
        self.found: dict[RawTxId, PendingTransaction] = {}
        self.next_offset = max(log_start, min(r.first_offset for r in requests))
        self.end_offset = max(r.marker_offset for r in requests)


def overlapping(requests: list[SideRead]) -> list[SideRead]:
    """Returns the leading requests whose ranges overlap or touch: one pass serves them.

    A request further on gets a pass of its own, so that nothing between them is read.
    """
    chosen = requests[:1]
    low, high = chosen[0].first_offset, chosen[0].marker_offset
    for request in requests[1:]:
        if request.first_offset > high:
            break
        low, high = min(low, request.first_offset), max(high, request.marker_offset)
        chosen.append(request)
    return chosen


class SideReader:
    """Serves the side reads of all partitions of one consumer, one pass at a time."""

    def __init__(
        self,
        log: Log,
        settings: Mapping[str, Any],
        pending_map: PendingTransactionMap,
        shared: Shared | None = None,
    ) -> None:
        """Opens nothing: the first pass opens the second consumer.

        Args:
            log: the log of the data partitions.
            settings: librdkafka's settings for the second consumer.
            pending_map: where the records found are kept, and from where they are spilled.
            shared: shared with the consumer's buffers; None shares nothing.
        """
        self._log = log
        # The range of what is placed may end where no record is.
        self._settings = {**settings, "enable.partition.eof": True}
        self._pending_map = pending_map
        self._view = pending_map.view()
        self._controls = (shared or Shared()).controls
        self._consumer: LogConsumer | None = None
        self._pass: _Pass | None = None

    @property
    def busy_with(self) -> PartitionBuffer | None:
        """The buffer whose side reads are being served, if any."""
        return self._pass.buffer if self._pass else None

    def step(self, buffer: PartitionBuffer, timeout_s: float) -> bool:
        """Reads one slice of the current pass; begins a pass for `buffer` if there is none.

        Returns whether anything came of it: brokers may tell a start and an end, and then no record
        (trap 228).

        Waits up to `timeout_s` for the slice's first record. If anything is raised, the pass is
        dropped, and the next call begins it again: records of the slice may be lost.

        Raises:
            BrokerError: the log's start or the topic's id could not be fetched; call again.
            SpillError: the records found can't be spilled.
        """
        try:
            if self._pass is None:
                requests = buffer.side_reads()
                if not requests:
                    return False
                self._begin(buffer, overlapping(requests))
            # Before the read: if the disk refuses, reading stops and memory does not grow.
            self._pending_map.enforce()
            if self._pass is None or self._pass.wanted:
                return self._slice(timeout_s)
            self._identify(self._pass, timeout_s)
            return True
        except BaseException:
            self._drop()
            raise

    def _slice(self, timeout_s: float) -> bool:
        assert self._consumer is not None
        first = self._consumer.poll(timeout_s)
        if first is None:
            return False
        has_come = False
        for message in [first, *self._consumer.consume(SLICE_RECORDS, 0)]:
            current = self._pass
            if current is None or not current.wanted:
                return True
            if message.error() is not None:
                has_come = self._event(current, message) or has_come
            else:
                self._record(current, cast(Record, message))
                has_come = True
        self._pending_map.charge(list(self._view.values()))
        self._pending_map.enforce()
        return has_come

    def _begin(self, buffer: PartitionBuffer, requests: list[SideRead]) -> None:
        topic, partition = buffer.partition
        log_start = self._log.start_offset(topic, partition, timeout_s=ANSWER_S)
        current = _Pass(buffer, requests, log_start)
        if self._consumer is None:
            self._consumer = self._log.consumer(self._settings)
        self._pass = current
        if current.next_offset >= current.end_offset:
            self._settle_below(current, current.end_offset + 1)
            return
        self._assign(current)
        _LOG.info(
            "side_read_begun topic=%s partition=%d transactions=%d first=%d end=%d",
            *(topic, partition, len(requests), current.next_offset, current.end_offset),
        )

    def _assign(self, current: _Pass) -> None:
        assert self._consumer is not None
        topic, partition = current.buffer.partition
        self._consumer.assign([KafkaPartition(topic, partition, current.next_offset)])

    def _event(self, current: _Pass, message: Message) -> bool:
        # Returns whether it says where the log begins or ends.
        error = message.error()
        assert error is not None
        topic, partition = current.buffer.partition
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            # Retention deleted records while we read.
            start = self._log.start_offset(topic, partition, timeout_s=ANSWER_S)
            # A topic that was created anew, and is shorter, tells the same again and again.
            has_moved = start > current.next_offset
            current.log_start = max(current.log_start, start)
            current.next_offset = max(current.next_offset, start)
            self._settle_below(current, current.next_offset)
            if self._pass is not None and current.wanted:
                self._assign(current)
                return has_moved
        elif error.code() == KafkaError._PARTITION_EOF:
            self._settle_below(current, cast(int, message.offset()))
        else:
            _LOG.warning("side_read_error topic=%s partition=%d error=%s", topic, partition, error)
            return False
        return True

    def _record(self, current: _Pass, record: Record) -> None:
        offset = record.offset()
        if offset < current.next_offset:
            return
        self._settle_below(current, offset)
        current.next_offset = offset + 1
        try:
            raw = txid_of(record)
        except SystemError:  # of confluent-kafka, for the name of a header that is not UTF-8
            return  # the main consumer reports it at its place
        if raw is None or raw not in current.wanted:
            return
        if is_marker(record):
            # An earlier marker of this TxId: the one that asked is a duplicate.
            self._settle(current, current.wanted.pop(raw), duplicate=True)
            return
        control = control_of(record)
        if control is not None:
            try:
                self._controls.decode(control)
            except MalformedHeaderError:
                return  # the main consumer reports it at its place
        found = current.found.get(raw)
        if found is None:
            found = PendingTransaction(current.buffer.partition, raw, offset)
            found.control = control
            current.found[raw] = self._view[raw] = found
        found.uniform = found.uniform and found.control == control
        found.further_headers = found.further_headers or len(record.headers() or ()) > 1
        found.records.append(record)
        self._settle_below(current, offset + 1)

    def _settle_below(self, current: _Pass, offset: int) -> None:
        reached = [r for r in current.wanted.values() if r.end_offset <= offset]
        for request in reached:
            del current.wanted[request.txid]
            self._settle(current, request, duplicate=False)

    def _settle(self, current: _Pass, request: SideRead, *, duplicate: bool) -> None:
        found = current.found.pop(request.txid, None)
        if found is not None:
            self._pending_map.charge([found])
            del self._view[request.txid]
        answered = current.buffer.answer_side_read(
            request, found, duplicate=duplicate, torn=request.first_offset < current.log_start
        )
        if not answered:
            current.missing.append(request)
        if not current.wanted:
            self._end(done=not current.missing)

    def _identify(self, current: _Pass, timeout_s: float) -> None:
        """Tells the buffer which topic this is, for markers whose records are missing."""
        topic, partition = current.buffer.partition
        info = self._log.topic_info(topic, timeout_s=ANSWER_S)
        now_s = time.monotonic()
        if current.missed_s is None:
            current.missed_s = now_s
        is_named = any(r.marker.topic_id == info.topic_id for r in current.missing)
        if is_named and not info.certain and now_s - current.missed_s < TOPIC_CONFIRM_S:
            time.sleep(timeout_s)
            return
        for request in current.missing:
            _LOG.warning(
                "records_missing topic=%s partition=%d marker=%d topic_id=%s marker_topic_id=%s",
                *(topic, partition, request.marker_offset),
                *(info.topic_id, request.marker.topic_id),
            )
            current.buffer.answer_topic(request, info.topic_id)
        self._end()

    def _end(self, *, done: bool = True) -> None:
        if done:
            self._pass = None
        if self._consumer is not None:
            self._consumer.unassign()

    def forget(self, buffer: PartitionBuffer) -> None:
        """Drops the current pass if it serves `buffer`, whose partition is no longer read."""
        if self._pass is not None and self._pass.buffer is buffer:
            self._drop()

    def _drop(self) -> None:
        for pending in self._view.values():
            self._pending_map.discard(pending)
        self._view.clear()
        self._end()

    def close(self) -> None:
        """Drops the current pass and closes the second consumer."""
        self._drop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
