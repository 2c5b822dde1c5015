"""Reads sidecars: the ranges that pointers name, while they are delivered.

A consumer of its own, kept open, reads one range for each partition that stands at a pointer, side
by side. `consumer.core.pointers` says which records are delivered.

Ranges follow one another, mostly without a gap, and those of transactions that were open together
overlap. So when a range ends, its partition stays assigned for a while, and what was fetched around
the last place that was read stays in its *window*: the next pointer finds its records there, or on
their way. What is fetched for one partition brings records of the others. One that has enough of
them ahead rests, and is paused before others are fetched: to drop those that the next pointers name
would mean to fetch them again.

A range that was copied, and trimmed where it lay, is read in its copy: see `journal.relocation`.
Records of a copy go to the buffer as if they lay where their originals did.

Source: PIP-31, "Sidecar Approach".
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.errors import (
    IntegrityError,
    JournalError,
    LogtxError,
    NotAuthorizedError,
    UnknownTopicError,
)
from ..journal.logs.interface import Log, LogConsumer
from ..journal.relocation import Relocation
from ..journal.relocation_log import RelocationLog
from ..journal.rights import grant
from ..journal.sidecar import to_delivered
from .core.buffer import PartitionBuffer
from .core.pending import Record
from .core.pointers import StreamRequest
from .malformed import make_readable
from .sidecar_copies import CopyPlaces, originals

_LOG = logging.getLogger(__name__)
MIB: Final = 1024 * 1024
FIRST_BYTES: Final = 16 * 1024
"""What is taken for the size of a record before one was fetched: more makes the first slices of
small records smaller, less the first one of large records larger."""
SLICE_RECORDS: Final = 2_000
"""Most records of a slice after its first. More delay other partitions for longer and cost memory,
fewer cost more CPU per record. As many are kept for the next pointers of a partition: with fewer,
some of a slice would be fetched again."""
SLICE_BYTES: Final = 2 * MIB
"""About how many bytes of values a slice has at most, as far as those before it tell. More cost
memory where records are large, fewer cost more CPU."""
STANDING_MAX: Final = 32
"""Partitions that stay assigned while nobody stands at a pointer into them. More cost memory, with
fewer a pointer into another one is a seek away."""
STANDS_S: Final = 5.0
"""How long such a partition stays assigned. A longer time fetches what no pointer names yet for
longer, after a shorter one the next pointer opens a fetch of its own."""
COPIES_MAX: Final = 32
"""Copies whose places are kept. More cost memory, some 10 kB for a million records; with fewer, a
queue may read one from its first record again."""
BELOW_SHARE: Final = 4
"""A partition begins to be read below a pointer's range, by the records of a slice divided by this:
transactions that were open together commit in another order. A smaller one reads more that no
pointer may name, with a larger one the next pointer is more often a seek back."""
PASS_MAX: Final = 2_000
"""Offsets up to the next range that are read and passed over. Reading more takes longer than to
seek."""
AHEAD_MAX_RECORDS: Final = 2_000
"""A range rests that has more records than this read and not taken. More cost memory, with fewer it
rests more often."""
AHEAD_MAX_BYTES: Final = 8 * MIB
"""The same in bytes of values, about."""
ANSWER_S: Final = 5.0
"""Time-out of each request for starts, ends and ids of sidecars. A longer one blocks all partitions
for longer while a broker is away, a shorter one fails on a slow broker."""
BELIEVED_S: Final = 1.0
"""How long it is believed where a sidecar begins, and which topic it is. With a longer time it may
be noticed only in the middle of a transaction that somebody deleted them; a shorter one asks the
brokers more."""
CONFIRM_S: Final = 5.0
"""How long brokers must tell an end below what a pointer names, before its records count as lost,
and how long they must refuse to let it be read. A former leader tells an end of the past, and
rights take a while to reach all brokers; with a longer time the application is told later."""
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


@dataclass(frozen=True, slots=True)
class _Told:
    """What brokers tell of a partition of a sidecar."""

    start: int
    end: int
    topic_id: str
    """"" if it is not known."""
    asked_s: float
    at_s: float
    """When it was told. That may be long after it was asked: another sidecar had no leader."""


class _Sidecar:
    """One partition of a sidecar: for whom it is read, and what of it is at hand."""

    def __init__(self, key: TopicPartition) -> None:
        self.key = key
        self.buffer: PartitionBuffer | None = None
        """Whom it is read for; None: nobody."""
        self.identity: tuple[bytes, int] | None = None
        """The pointer that it is read for."""
        self.used_s = 0.0
        """When it was last read for somebody."""
        self.is_assigned = False
        self.rests = False
        """Whether it is not to be fetched for now."""
        self.paused = False
        """Whether the consumer was told so: see `_pause_who_rests`."""
        self.window: list[Message] = []
        """Records that were fetched, in order: all from `first` up to `next_offset`."""
        self.first = self.next_offset = 0
        self.used = 0
        """Where it was read last."""
        self.has_failed = False
        """Whether the last fetch failed, or reading was broken off. What lies below a range would
        be read again at each failure, and with many of them the range was never reached."""
        self.record_bytes = FIRST_BYTES
        """Bytes of a record's value, on average of those that came last."""
        self.told: _Told | None = None
        self.ask_s = 0.0
        """When to ask what it holds, if it is to be asked."""
        self.short_s: float | None = None
        """When it was asked, the first of the times in a row at which its end was told to lie below
        what is to be read (trap 156)."""
        self.denied_s: float | None = None
        """When it was first refused to be read."""
        self.is_denied = False
        """Whether it was refused again, long enough after that."""
        self.lost_s: float | None = None
        """Since when a range was told to be in no copy."""
        self._lost_start = 0
        self.lost_below, self.lost_id = 0, ""
        """Where the sidecar with this id began then: below, all relocations are known."""
        self.places: CopyPlaces | None = None
        """Those of the copy in which it is read for the pointer; None: it is read where its records
        always lay."""

    @property
    def is_fetched(self) -> bool:
        """Whether the consumer fetches it, for somebody or in passing."""
        return self.is_assigned and not self.rests

    def kafka(self) -> KafkaPartition:
        return KafkaPartition(*self.key)

    def request(self) -> StreamRequest | None:
        """Returns what its buffer wants, if that is the same pointer as before."""
        request = None if self.buffer is None else self.buffer.stream_wanted()
        return request if request is not None and _identity(request) == self.identity else None

    def begin(self, buffer: PartitionBuffer, request: StreamRequest) -> None:
        """Begins to serve another pointer."""
        self.buffer, self.identity = buffer, _identity(request)
        self.ask_s, self.short_s, self.places, self.lost_s = 0.0, None, None, None

    def move(self, places: CopyPlaces | None) -> None:
        """Reads a copy from now on; None: where the range always lay."""
        self.places = places

    def place(self, request: StreamRequest) -> tuple[int, int]:
        """Returns the next offset to read for a request, and the last."""
        if self.places is None:
            return request.next_offset, request.last_offset
        return self.places.of(request.next_offset), self.places.moved.last

    def has_lost(self, offset: int, told: _Told) -> bool:
        """Returns whether it was told for long enough that an offset is in no copy either."""
        if offset < self.lost_below and told.topic_id == self.lost_id:
            return True
        if self.lost_s is None:
            self.lost_s, self._lost_start = told.asked_s, told.start
        if told.asked_s - self.lost_s < CONFIRM_S:
            return False
        # What was trimmed up to that start has had its relocations from before these seconds.
        self.lost_s, self.lost_below, self.lost_id = None, self._lost_start, told.topic_id
        return True

    def clear(self, next_offset: int = 0) -> None:
        """Drops the window: the next record to come has this offset, or a higher one."""
        self.window = []
        self.first = self.next_offset = self.used = next_offset

    def take_in(self, records: Sequence[Message]) -> None:
        """Adds what was fetched to the window."""
        if _offset_of(records[0]) < self.next_offset:
            records = [r for r in records if _offset_of(r) >= self.next_offset]
        if records:
            make_readable(records)
            self.window += records
            self.record_bytes = sum(map(len, records)) // len(records) + 1
            self.next_offset = _offset_of(records[-1]) + 1
            self.has_failed = False

    @property
    def slice_records(self) -> int:
        """How many records a slice may have after its first."""
        return min(max(1, SLICE_BYTES // self.record_bytes), SLICE_RECORDS)

    @property
    def has_enough(self) -> bool:
        """Whether the window has a slice of records ahead of the last place that was read."""
        return len(self.window) - self._count_below_used() >= self.slice_records

    def trim(self) -> None:
        """Drops the oldest records, if there are too many below the last place that was read."""
        excess = self._count_below_used() - self.slice_records
        if excess > 0:
            del self.window[:excess]
            self.first = _offset_of(self.window[0]) if self.window else self.next_offset

    def _count_below_used(self) -> int:
        return bisect_left(self.window, self.used, key=_offset_of)

    def between(self, first: int, stop: int) -> list[Message]:
        """Returns the records of the window in this range of offsets."""
        low = bisect_left(self.window, first, key=_offset_of)
        return self.window[low : bisect_left(self.window, stop, lo=low, key=_offset_of)]


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
        self._sidecars: dict[TopicPartition, _Sidecar] = {}
        """Those that are wanted, or stand."""
        self._relocations = RelocationLog(log)
        self._places: dict[tuple[TopicPartition, bytes, bytes], CopyPlaces] = {}
        """(partition of a sidecar, copy, TxId) → its places, those that were used last. What was
        noted there stays true."""
        self._relocated_s = -1.0
        """When relocations were last asked for."""
        self._interrupted = False
        """Whether the consumer may read otherwise than is noted here: an exception came."""

    def buffers(self) -> Iterator[PartitionBuffer]:
        """Yields the buffers that it reads for."""
        return (each.buffer for each in self._sidecars.values() if each.buffer is not None)

    def step(
        self, buffers: Collection[PartitionBuffer], timeout_s: float, *, ahead: bool = True
    ) -> bool:
        """Reads one slice for these buffers, those that need nothing among them.

        Waits up to `timeout_s` for the slice's first record, if any is to be read.

        Args:
            buffers: the buffers.
            timeout_s: longest wait.
            ahead: whether to fetch more for a buffer that was given records out of a window. If the
                next one to read the range begins among those, the window would be past them.

        Returns:
            Whether something may have come of it. False also where a sidecar is soon asked for
            again: who would call again at once would only burn CPU until then.
        """
        with self._moving():
            return self._step(buffers, timeout_s, ahead)

    @contextmanager
    def _moving(self) -> Iterator[None]:
        """Surrounds what moves the consumer. If an exception leaves the block, whichever it is,
        another consumer is opened before the next one."""
        if self._interrupted:
            self._begin_anew()
        self._interrupted = True
        yield
        self._interrupted = False

    def _begin_anew(self) -> None:
        consumer, self._consumer = self._consumer, None
        for each in self._sidecars.values():
            each.is_assigned = each.rests = each.paused = False
            each.has_failed = True
            each.clear()
        if consumer is not None:
            consumer.close()

    def _step(self, buffers: Collection[PartitionBuffer], timeout_s: float, ahead: bool) -> bool:
        wanted = self._wanted(buffers)
        asked = self._ask([each for each in wanted if self._must_ask(each)])
        served = False
        for each in wanted:
            served = self._serve(each) or served
        reading = [each for each in wanted if self._reads(each)]
        if reading and (ahead or not served):
            limit = min(e.slice_records for e in self._sidecars.values() if e.is_fetched)
            self._slice(0 if served else timeout_s, limit)
        return bool(reading) or asked or served

    def _wanted(self, buffers: Collection[PartitionBuffer]) -> list[_Sidecar]:
        wanted: dict[TopicPartition, _Sidecar] = {}
        now_s = self._clock()
        for buffer in buffers:
            request = buffer.stream_wanted()
            if request is None:
                continue
            key = request.sidecar
            if key not in self._sidecars:
                self._sidecars[key] = _Sidecar(key)
            each = wanted[key] = self._sidecars[key]
            if each.buffer is not buffer or each.identity != _identity(request):
                each.begin(buffer, request)
            each.used_s = now_s
        standing = [each for key, each in self._sidecars.items() if key not in wanted]
        for each in standing:
            each.buffer = each.identity = None
        if len(standing) > STANDING_MAX:
            standing.sort(key=lambda each: each.used_s)
            for each in standing[:-STANDING_MAX]:
                self._leave(each)
        return list(wanted.values())

    def _reads(self, each: _Sidecar) -> bool:
        request = each.request()
        return each.is_fetched and request is not None and request.is_open

    # ---- what a sidecar holds -------------------------------------------------------------------

    def _must_ask(self, each: _Sidecar) -> bool:
        request, now_s = each.request(), self._clock()
        if request is None or request.is_open or now_s < each.ask_s:
            return False
        told = each.told
        is_believed = told is not None and now_s - told.at_s <= BELIEVED_S
        return not is_believed or self._end_of(each) <= request.last_offset

    def _end_of(self, each: _Sidecar) -> int:
        told = 0 if each.told is None else each.told.end
        if not each.is_assigned or self._consumer is None:
            return told
        # Who fetches is told the end with the records: mostly nobody has to ask for it.
        with suppress(KafkaException):
            return max(told, self._consumer.get_watermark_offsets(each.kafka(), cached=True)[1])
        return told

    def _ask(self, due: Sequence[_Sidecar]) -> bool:
        # Returns whether brokers were asked.
        if not due:
            return False
        began_s = self._clock()
        for each in due:
            each.ask_s = began_s + AGAIN_S  # Whatever is raised below.
        keys = {each.key for each in due}
        starts = self._log.each_start_offset(keys, timeout_s=ANSWER_S)
        led = {key for key in keys if isinstance(starts[key], int)}
        ends = self._log.each_end_offset(led, timeout_s=ANSWER_S) if led else {}
        ids: Mapping[str, str] = {}
        try:
            if led:
                ids = self._log.topic_ids(sorted({t for t, _ in led}), timeout_s=ANSWER_S)
        except LogtxError as unanswered:
            ends = dict.fromkeys(led, unanswered)
        now_s = self._clock()
        for each in due:
            start, end = starts[each.key], ends.get(each.key, 0)
            each.ask_s = now_s + AGAIN_S
            if isinstance(start, int) and isinstance(end, int):
                told = _Told(start, end, ids.get(each.key[0], ""), began_s, now_s)
                self._tell(each, told)
                continue
            error = start if isinstance(start, LogtxError) else end
            assert isinstance(error, LogtxError)
            if isinstance(error, UnknownTopicError):
                # To brokers that have not heard of it yet, or it was deleted.
                self._stop(each)
                self._tell(each, _Told(0, 0, "", began_s, now_s))
                continue
            # It may have no leader: as long as that took, the others are served.
            each.ask_s = now_s + max(AGAIN_S, now_s - began_s)
            each.short_s = None  # It was not told again.
            self._refused(each, error.args[0], now_s)
        return True

    def _tell(self, each: _Sidecar, told: _Told) -> None:
        before = "" if each.told is None else each.told.topic_id
        if "" not in (before, told.topic_id) and before != told.topic_id:
            self._stop(each)  # What it fetched was of another topic.
        each.told = told

    def _refused(self, each: _Sidecar, error: KafkaError, now_s: float) -> None:
        topic, partition = each.key
        _LOG.warning("sidecar_refused topic=%s partition=%d error=%s", topic, partition, error)
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            each.denied_s = each.denied_s or now_s
            each.is_denied = now_s - each.denied_s >= CONFIRM_S

    # ---- serving a pointer ----------------------------------------------------------------------

    def _serve(self, each: _Sidecar) -> bool:
        # Returns whether its buffer was given something.
        request = each.request()
        served = request is not None and not request.is_open and self._open(each, request)
        while self._push(each):
            served = True
        request = each.request()
        if request is not None and request.is_open:
            self._place(each, request)
        return served

    def _open(self, each: _Sidecar, request: StreamRequest) -> bool:
        now_s, told, buffer = self._clock(), each.told, each.buffer
        assert buffer is not None
        if each.is_denied:
            buffer.refuse_stream(request, NotAuthorizedError(self._denied(each)))
            return True
        if told is None or now_s - told.at_s > BELIEVED_S:
            return False
        start, end, last = told.start, self._end_of(each), request.last_offset
        each.move(None)
        if start > request.next_offset:
            try:
                moved = self._look_up(each, request, told)
            except NotAuthorizedError as error:
                buffer.refuse_stream(request, error)
                return True
            except JournalError as error:
                buffer.refuse_stream(request, IntegrityError(str(error)))
                return True
            except LogtxError as error:
                _LOG.warning("relocations_not_read error=%s", error)
                # As long as that took, the others are served.
                ended_s = self._clock()
                each.ask_s, each.told = ended_s + max(AGAIN_S, ended_s - now_s), None
                return False
            if moved is not None:
                buffer.counters.relocated_pointers += 1
                each.move(self._places_in(moved))
                start, last = request.next_offset, moved.last
            elif not each.has_lost(request.next_offset, told):
                return False  # A former leader may tell relocations of the past, or of no topic.
        if start <= request.next_offset and end <= last:
            each.short_s = each.short_s or told.asked_s
            if told.asked_s - each.short_s < CONFIRM_S:
                return False  # A former leader may tell an end of the past.
            _LOG.warning("sidecar_short topic=%s partition=%d end=%d", *each.key, end)
        else:
            each.short_s = None
        if each.places is not None:  # To the buffer, all of it lies where it always lay.
            end = request.last_offset + (end > last)
        buffer.open_stream(request, start, end, told.topic_id)
        return True

    def _look_up(self, each: _Sidecar, request: StreamRequest, told: _Told) -> Relocation | None:
        # Relocations are read behind the start: what was trimmed up to there has one from before.
        if self._relocated_s < told.at_s:
            now_s = self._clock()
            known = self._relocations.read(timeout_s=ANSWER_S)
            self._relocated_s = now_s
        else:
            known = self._relocations.known
        return known.find(each.key, told.topic_id, request.txid, told.start)

    def _places_in(self, moved: Relocation) -> CopyPlaces:
        # One copy of a transaction has ranges of several partitions.
        name = moved.sidecar, moved.copy_id, moved.txid
        places = self._places.pop(name, None) or CopyPlaces(moved)
        self._places[name] = places  # The one that was used last.
        if len(self._places) > COPIES_MAX:
            del self._places[next(iter(self._places))]
        return places

    def _denied(self, each: _Sidecar) -> str:
        topic, log = each.key[0], self._log
        mend = grant(log.bootstrap_servers, log.principal, ["READ"], topic=topic)
        return f"this consumer may not READ topic {topic}: give it the right with: {mend}"

    def _push(self, each: _Sidecar) -> bool:
        # Returns whether its buffer took something from the window.
        request = each.request()
        if request is None or not request.is_open:
            return False
        at, last = each.place(request)
        if not each.first <= at < each.next_offset:
            return False
        each.used = stop = min(each.next_offset, last + 1)
        records = each.between(at, stop)
        assert each.buffer is not None
        if each.places is not None:
            moved = originals(records, each.places.moved, request.next_offset)
            upto = request.next_offset if not moved else moved[-1].offset() + 1
            upto = request.last_offset + 1 if stop > last else upto
            each.places.passed(upto, stop)
            each.buffer.push_stream(request, cast(Sequence[Record], moved), upto)
            return True
        each.buffer.push_stream(request, cast(Sequence[Record], records), stop)
        return True

    def _place(self, each: _Sidecar, request: StreamRequest) -> None:
        # Makes the consumer read on for what the window does not have.
        consumer, (at, _) = self._open_consumer(), each.place(request)
        begin = at
        if each.places is None and each.told is not None and not each.has_failed:
            begin = max(min(each.told.start, at), at - each.slice_records // BELOW_SHARE)
        place = KafkaPartition(*each.key, begin)
        if not each.is_assigned:
            consumer.incremental_assign([place])
            each.is_assigned = True
            each.clear(begin)
        elif not each.next_offset <= at <= each.next_offset + PASS_MAX:
            try:
                consumer.seek(place)
            except KafkaException:
                # librdkafka can't seek right behind an assignment.
                consumer.incremental_unassign([place])
                consumer.incremental_assign([place])
            each.clear(begin)
        each.used = at
        ahead_bytes = request.ahead * each.record_bytes
        each.rests = request.ahead > AHEAD_MAX_RECORDS or ahead_bytes > AHEAD_MAX_BYTES

    def _open_consumer(self) -> LogConsumer:
        if self._consumer is None:
            self._consumer = self._log.consumer(self._settings)
        return self._consumer

    # ---- fetching -------------------------------------------------------------------------------

    def _slice(self, timeout_s: float, limit: int) -> None:
        consumer = self._open_consumer()
        self._pause_who_rests([e for e in self._sidecars.values() if e.is_assigned])
        first = consumer.poll(timeout_s)
        if first is None:
            return
        batch = [first, *consumer.consume(limit, 0)]
        for key, run in groupby(batch, lambda m: (m.topic(), m.partition())):
            each = self._sidecars.get(cast(TopicPartition, key))
            if each is None or not each.is_assigned:
                continue  # Of one that is read no more.
            records = []
            for message in run:
                error = message.error()
                if error is None:
                    records.append(message)
                    continue
                # What came before it is not fetched again: each answer might end so.
                self._take(each, records)
                records = []
                self._event(each, error)
            self._take(each, records)

    def _pause_who_rests(self, assigned: Sequence[_Sidecar]) -> None:
        # Only before others are fetched: while all rest, nobody asks for more. A pause drops what
        # librdkafka has fetched, and a lone partition is not fetched again for up to a second (trap
        # 289).
        for each in assigned:
            if each.rests != each.paused:
                consumer = self._open_consumer()
                (consumer.pause if each.rests else consumer.resume)([each.kafka()])
                each.paused = each.rests

    def _take(self, each: _Sidecar, records: Sequence[Message]) -> None:
        if not records or not each.is_assigned:
            return
        each.denied_s, each.is_denied = None, False
        each.take_in(records)
        while self._push(each):
            pass
        if each.has_enough and not self._reads(each):
            each.rests = True  # Nobody needs more for now.
        each.trim()

    def _event(self, each: _Sidecar, error: KafkaError) -> None:
        # Deleted while we read, or a passing error: the next step looks again where it begins.
        now_s = self._clock()
        self._refused(each, error, now_s)
        self._stop(each)
        each.has_failed = True
        each.told, each.ask_s = None, now_s + AGAIN_S
        if each.buffer is not None:
            each.buffer.reopen_stream()

    # ---- the end of it --------------------------------------------------------------------------

    def _stop(self, each: _Sidecar) -> None:
        """Stops reading a partition, and forgets what was fetched."""
        each.clear()
        if each.is_assigned and self._consumer is not None:
            # A pause outlives the assignment: whatever is read next here would never be fetched.
            each.rests = False
            self._pause_who_rests([each])
            each.is_assigned = False
            self._consumer.incremental_unassign([each.kafka()])

    def _leave(self, each: _Sidecar) -> None:
        self._stop(each)
        del self._sidecars[each.key]

    def tidy(self) -> None:
        """Stops reading partitions that nobody has wanted for a while. Call it now and then."""
        last_s = self._clock() - STANDS_S
        idle = [each for each in self._sidecars.values() if each.used_s <= last_s]
        self._leave_all([each for each in idle if each.request() is None])

    def forget(self, buffer: PartitionBuffer) -> None:
        """Stops reading for a buffer whose partition is no longer read."""
        self._leave_all([e for e in self._sidecars.values() if e.buffer is buffer])

    def _leave_all(self, sidecars: Sequence[_Sidecar]) -> None:
        if not sidecars:
            return
        try:
            with self._moving():
                for each in sidecars:
                    self._leave(each)
        except KafkaException as error:
            # Another consumer will be opened, without them.
            _LOG.warning("sidecars_not_left error=%s", error)
            for each in sidecars:
                self._sidecars.pop(each.key, None)

    def close(self) -> None:
        """Closes the second consumer."""
        self._sidecars.clear()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()


def _identity(request: StreamRequest) -> tuple[bytes, int]:
    return request.txid, request.pointer_offset


def _offset_of(message: Message) -> int:
    return cast(int, message.offset())
