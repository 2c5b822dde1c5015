"""Reads sidecars: the ranges that pointers name, while they are delivered.

A consumer of its own, kept open, reads one range for each partition that stands at a pointer, side
by side. It buffers nothing but what was fetched ahead of delivery. `consumer.core.pointers` says
which records are delivered.

Source: PIP-31, "Sidecar Approach".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, cast

from confluent_kafka import KafkaError, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.errors import BrokerError, UnknownTopicError
from ..journal.logs.interface import Log, LogConsumer
from ..journal.sidecar import to_delivered
from .core.buffer import PartitionBuffer
from .core.pending import Record
from .core.pointers import StreamRequest

_LOG = logging.getLogger(__name__)
SLICE_RECORDS: Final = 2_000
"""Records of a slice after its first. More delay other partitions for longer, fewer cost more CPU
per record."""
AHEAD_MAX_RECORDS: Final = 2_000
"""A range is paused that has more records than this read and not taken. More cost memory, fewer
pause and resume more often."""
ANSWER_S: Final = 5.0
"""Time-out of the requests for a sidecar's start and end. A longer one blocks all partitions for
longer while a broker is away, a shorter one fails on a slow broker."""
CONFIRM_S: Final = 5.0
"""How long brokers must tell an end below what a pointer names, before its records count as lost. A
former leader tells an end of the past; with a longer time a loss is told later."""
AGAIN_S: Final = 0.25
"""Pause before a sidecar is asked for again. A shorter one asks the brokers more."""


def delivered(main: TopicPartition, record: Record) -> Record:
    """Returns a message of a sidecar as it is delivered: of the main topic, with its own offset."""
    message = cast(Message, record)
    made = Message(
        topic=main[0],
        partition=main[1],
        offset=to_delivered(cast(int, message.offset())),
        key=cast(bytes, message.key()),
        value=cast(bytes, message.value()),
        headers=cast(Any, message.headers()),
        timestamp=message.timestamp(),
    )
    return cast(Record, made)


class _Range:
    """A range that is being read for a buffer."""

    def __init__(self, buffer: PartitionBuffer, request: StreamRequest, ask_s: float) -> None:
        self.buffer = buffer
        self.identity = request.txid, request.pointer_offset
        self.key = request.sidecar
        self.paused = False
        self.is_assigned = False
        self.short_s: float | None = None
        """When the sidecar's end was first told to lie below what is to be read."""
        self.ask_s = ask_s
        """When to ask for the sidecar's start and end next."""


class SidecarReader:
    """Serves all partitions of one consumer that stand at a pointer."""

    def __init__(
        self,
        log: Log,
        settings: Mapping[str, Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Opens nothing: the first pointer opens the second consumer.

        Args:
            log: the log of the data partitions.
            settings: librdkafka's settings for the second consumer.
            clock: any clock that goes on, in seconds.
        """
        self._log = log
        self._clock = clock
        self._settings = {**settings, "enable.partition.eof": False}
        self._consumer: LogConsumer | None = None
        self._ranges: dict[TopicPartition, _Range] = {}
        self._ask_s: dict[TopicPartition, float] = {}
        """When to ask next for a sidecar whose reading was refused."""

    def step(self, buffers: Sequence[PartitionBuffer], timeout_s: float) -> bool:
        """Reads one slice for these buffers, those that need nothing among them.

        Waits up to `timeout_s` for the slice's first record, if any is to be read.

        Returns:
            Whether something may have come of it. False also where a sidecar is soon asked for
            again: who would call again at once would only burn CPU until then.
        """
        wanted = {
            request.sidecar: (buffer, request)
            for buffer in buffers
            if (request := buffer.stream_wanted()) is not None
        }
        for key, each in list(self._ranges.items()):
            found = wanted.get(key)
            if found is None or found[0] is not each.buffer or _identity(found[1]) != each.identity:
                self._drop(each)
        asked = False
        for key, (buffer, request) in wanted.items():
            if key not in self._ranges:
                self._ranges[key] = _Range(buffer, request, self._ask_s.pop(key, 0.0))
            asked = self._prepare(self._ranges[key], request) or asked
        reads = any(each.is_assigned and not each.paused for each in self._ranges.values())
        if reads:
            self._slice(timeout_s)
        return reads or asked

    def _prepare(self, each: _Range, request: StreamRequest) -> bool:
        # Returns whether brokers were asked.
        if not request.is_open:
            return self._open(each, request)
        if not each.is_assigned:
            self._assign(each, request)
        paused = request.ahead > AHEAD_MAX_RECORDS
        if each.is_assigned and paused != each.paused:
            assert self._consumer is not None
            (self._consumer.pause if paused else self._consumer.resume)([KafkaPartition(*each.key)])
            each.paused = paused
        return False

    def _open(self, each: _Range, request: StreamRequest) -> bool:
        now_s = self._clock()
        if now_s < each.ask_s:
            return False
        topic, partition = request.sidecar
        try:
            start = self._log.start_offset(topic, partition, timeout_s=ANSWER_S)
            end = self._log.end_offset(topic, partition, timeout_s=ANSWER_S)
        except UnknownTopicError:
            # To brokers that have not heard of it yet, or it was deleted.
            start, end = 0, 0
        except BrokerError as error:
            # It may have no leader: as long as that took, the others are served.
            asked_s = self._clock()
            each.ask_s = asked_s + max(AGAIN_S, asked_s - now_s)
            _LOG.warning("sidecar_not_told topic=%s partition=%d error=%s", topic, partition, error)
            return True
        each.ask_s = self._clock() + AGAIN_S
        if start <= request.next_offset and end <= request.last_offset:
            each.short_s = each.short_s or now_s
            if now_s - each.short_s < CONFIRM_S:
                return True  # A former leader may tell an end of the past.
            _LOG.warning("sidecar_short topic=%s partition=%d end=%d", topic, partition, end)
        each.buffer.open_stream(request, start, end)
        opened = each.buffer.stream_wanted()
        if opened is not None and opened.is_open and _identity(opened) == each.identity:
            self._assign(each, opened)
        return True

    def _assign(self, each: _Range, request: StreamRequest) -> None:
        if self._consumer is None:
            self._consumer = self._log.consumer(self._settings)
        self._consumer.incremental_assign([KafkaPartition(*each.key, request.next_offset)])
        each.is_assigned, each.paused = True, False

    def _slice(self, timeout_s: float) -> None:
        assert self._consumer is not None
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        batch = [first, *self._consumer.consume(SLICE_RECORDS, 0)]
        for key, run in groupby(batch, lambda m: (m.topic(), m.partition())):
            each = self._ranges.get(cast(TopicPartition, key))
            if each is None or not each.is_assigned:
                continue  # Of a range that is read no more.
            records = []
            for message in run:
                error = message.error()
                if error is None:
                    records.append(message)
                else:
                    self._event(each, error)
            if records and each.is_assigned:
                self._push(each, records)

    def _push(self, each: _Range, records: Sequence[Message]) -> None:
        request = each.buffer.stream_wanted()
        if request is None or _identity(request) != each.identity:
            return
        upto = cast(int, records[-1].offset()) + 1
        each.buffer.push_stream(request, cast(Sequence[Record], records), upto)
        if each.buffer.stream_wanted() is None:
            self._drop(each)

    def _event(self, each: _Range, error: KafkaError) -> None:
        topic, partition = each.key
        _LOG.warning("sidecar_read_error topic=%s partition=%d error=%s", topic, partition, error)
        # Deleted while we read, or a passing error: the next step looks again where it begins.
        self._drop(each)
        self._ask_s[each.key] = each.ask_s
        each.buffer.reopen_stream()

    def _drop(self, each: _Range) -> None:
        if self._ranges.get(each.key) is each:
            del self._ranges[each.key]
        if each.is_assigned and self._consumer is not None:
            each.is_assigned = False
            place = [KafkaPartition(*each.key)]
            if each.paused:
                # A pause outlives the assignment: the next range here would never be fetched.
                self._consumer.resume(place)
                each.paused = False
            self._consumer.incremental_unassign(place)

    def forget(self, buffer: PartitionBuffer) -> None:
        """Stops reading for a buffer whose partition is no longer read."""
        for each in [e for e in self._ranges.values() if e.buffer is buffer]:
            self._drop(each)

    def close(self) -> None:
        """Closes the second consumer."""
        self._ranges.clear()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _identity(request: StreamRequest) -> tuple[bytes, int]:
    return request.txid, request.pointer_offset
