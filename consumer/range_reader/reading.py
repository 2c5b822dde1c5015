"""Reads ranges of one partition with the consumer's own cores.

A range [start, end) delivers its plain records, and all of each transaction whose marker is in it.
A side read fetches such a transaction's records below `start`. So ranges need no state from each
other, and can be read again, anywhere, with one result. There is no look-up: a transaction without
a marker in the range belongs to a later one. A pointer is such a marker: what it names in the
sidecar is read when its turn comes, by the task of the range, and none of it is buffered. A range
may begin within a pointer, or within any transaction: at o3.

Where a home places transactions, the range carries what is placed in it. A place stands for a
pointer, too: the range has what lies in the sidecar, as the home's journal says it (decision 40).
If retention has taken the place since, nothing is due that is not whole any more, as with a marker
that is gone; a reader that must not lose anything has stopped before. A range that carries
nothing may come to a mode record: its topic was switched when it was planned, and that was not
published yet. Then the reader waits until it is published, so that the next range is planned with
it, and reads the home itself.
"""

from __future__ import annotations

import logging
import os
import random
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from shlex import quote
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException, Message

from ...journal.collector import collector_paused
from ...journal.control import TopicPartition
from ...journal.errors import (
    BrokerError,
    ConsumerError,
    MalformedHeaderError,
    TornTransactionError,
)
from ...journal.fetcher import Fetcher
from ...journal.logs.interface import Log
from ...journal.position import Passed, Position
from ...journal.spans import AT_OFFSET, MessageId
from ..core.buffer import PartitionBuffer
from ..core.entries import EndedTransaction, ModeMet, PlainRun
from ..core.pending import PendingTransactionMap, RawTxId, Record
from ..core.placed_buffer import PlacedBuffer, PlacedTransaction
from ..core.places_uncommitted import UncommittedPlacedBuffer
from ..core.pointers import StreamRequest, place_in_sidecar
from ..core.shared import Shared
from ..core.uncommitted import UncommittedBuffer
from ..fetching import OpenFetcher, open_fetcher
from ..malformed import make_readable, malformed_event
from ..side_read import SideReader
from ..sidecar_read import SidecarReader, delivered
from ..spill.store import RocksSpillStore
from ..topic_ids import TopicIds, with_sidecars
from .due import PlacedRangeInput, RangePlaces
from .errors import DataLossError, SwitchedError
from .large import Large, LargePart
from .places import PLACE_S, PlacesAhead, require_complete
from .spot import Spot

_LOG = logging.getLogger(__name__)
FETCH_RECORDS: Final = 10_000
"""Most records of one fetch: a larger value takes more memory, a smaller one more time."""
TAKE_RECORDS: Final = 1_000
"""Most records of a share, and most that are read back from the disk at a time: a larger value
takes more memory, a smaller one more time."""
STALL_S: Final = 60.0
"""Longest wait for a record that exists: a smaller value fails tasks on slow brokers, a larger one
reports dead ones later."""
_POLL_S: Final = 0.1
"""Longest wait of one fetch or step of a side read; bounds how late a stall is noticed."""
CONSUMER: Final[Mapping[str, Any]] = {
    "group.id": "logtx-spark",  # librdkafka requires one; it is never joined or committed to
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_uncommitted",
    "fetch.wait.max.ms": 10,
    "fetch.queue.backoff.ms": 5,
    "queued.max.messages.kbytes": 32_768,
}
"""librdkafka's settings of consumers that read ranges; the options may replace them."""

_HOPELESS: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._FATAL,
    KafkaError._BAD_MSG,
)
"""Errors that a retry can't mend; after all others librdkafka retries by itself."""
_error_of: Any = methodcaller("error")
_offset_of: Any = methodcaller("offset")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadConfig:
    """Settings for reading ranges; picklable."""

    kafka: Mapping[str, Any]
    """librdkafka's settings, with ``bootstrap.servers``."""
    committed: bool = True
    """False means ``isolation.level=read_uncommitted``."""
    pending_memory_max_bytes: int = 64 * 1024 * 1024
    """Pending records that a task holds in memory; more goes to disk."""
    pending_dir: str | None = None
    """Where it goes; None: Spark's local directory on the executor."""
    torn_skip: bool = False
    """Whether to skip torn transactions instead of failing."""
    subscription: str = ""
    """The subscription whose messages are read; "" for none. Errors say how it goes on."""
    fail_on_data_loss: bool = True
    """Whether to fail if retention deleted records that are to be read."""
    sequences: tuple[int, int, int] | None = None
    """(journal partition, above, up to): only transactions decided there, with a commit sequence in
    this range; None delivers everything."""


@dataclass(frozen=True, slots=True)
class Range:
    """A range of a partition to read; picklable."""

    topic: str
    partition: int
    start: Position
    end: int
    """Offset to stop before."""
    large: Large | None = None
    """The transaction whose records these are; None delivers what ends in the range."""
    places: RangePlaces | None = None
    """What the partition's home places in the range; None: transactions end by markers."""
    is_part: bool = False
    """Whether other tasks read the rest of what was planned of the partition."""


@dataclass(frozen=True, slots=True)
class Share:
    """Consecutive records of one transaction, or plain ones."""

    txid: RawTxId | None
    """The transaction; None for plain records."""
    commit_sequence: int | None
    """None for plain records, and for records that are not known to be committed."""
    records: Sequence[Message]
    first: MessageId | None = None
    """Name of the first record, from which those of the others follow; None for plain records,
    whose offsets name them."""
    side: int | None = None
    """Where in the sidecar the first record lies, if reading may begin there; None elsewhere."""


def _local_dir() -> str | None:
    """Returns one of the directories that Spark gives a Python worker for its files, or None."""
    given = [d for d in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if d]
    return random.choice(given) if given else None


class RangeReader:
    """Reads one range, and those that border on it: `shares` once for each, `close` at last."""

    def __init__(
        self,
        config: ReadConfig,
        part: Range,
        log: Log,
        fetcher: Fetcher | None = None,
        *,
        sidecars: SidecarReader | None = None,
        on_step: Callable[[], object] = lambda: None,
        on_gone: Callable[[], object] = lambda: None,
        on_fetch: Callable[[], object] = lambda: None,
    ) -> None:
        """Opens a fetcher and a store for spilled records.

        Args:
            config: how to read.
            part: what to read.
            log: the log to read; the caller closes it.
            fetcher: reads the records, with `CONSUMER`'s settings; the caller closes it. None
                opens one.
            sidecars: reads what pointers name; the caller closes it. None: one of its own.
            on_step: called again and again while `shares` reads, for what must not wait that long.
            on_gone: called for each transaction that is passed over because retention has taken it.
            on_fetch: called behind each fetch in which records came, before they are looked at.
        """
        self._config = config
        self._part = part
        self._log = log
        self._store = RocksSpillStore(config.pending_dir or _local_dir())
        self._pending = PendingTransactionMap(config.pending_memory_max_bytes, self._store)
        self._settings = {**CONSUMER, **config.kafka}
        self._shared = Shared()
        self._shared.relocate = delivered
        if config.subscription:
            self._shared.go_on = partial(_by_skipping, config.subscription)
        self._on_step, self._on_gone, self._on_fetch = on_step, on_gone, on_fetch
        self._side_reader = SideReader(self._log, self._settings, self._pending, self._shared)
        self._own_sidecars = SidecarReader(log, self._settings) if sidecars is None else None
        self._sidecars = cast(SidecarReader, sidecars or self._own_sidecars)
        self._placed: PlacedRangeInput | None = None
        """Ends what the home places; None without a home, and when all of it is ended."""
        self._buffer = self._make_buffer(part.start, part.places)
        self._large = None if part.large is None else LargePart(part.large, part.start.o2)
        self._own = self._open_fetcher() if fetcher is None else None
        self._fetcher = cast(Fetcher, fetcher or self._own)
        self._reached = part.start.o2 >= part.end
        self._is_read = False
        """Whether all of the range was given out."""
        self.fetches = 0
        """Number of fetches in which records came."""
        self.has_followed = False
        """Whether it came to a mode record, and read the home by itself."""

    def _open_fetcher(self) -> OpenFetcher:
        offsets = self._part.end - self._part.start.o2
        return open_fetcher(self._log.consumer, self._settings, records=offsets)

    def _make_buffer(self, start: Position, places: RangePlaces | None) -> PartitionBuffer:
        key, options = (self._part.topic, self._part.partition), self._options()
        committed = self._config.committed
        if places is None:
            kind = PartitionBuffer if committed else UncommittedBuffer
            buffer = kind(key, start, self._pending, **options)
            buffer.known_mode = -1
            return buffer
        home, ended = places.home, set(places.elsewhere)
        if start.passed is None or start.passed.home != home:
            start = replace(start, passed=Passed(home, -1))  # all that is due is carried along
        placing = (PlacedBuffer if committed else UncommittedPlacedBuffer)(
            key, start, self._pending, home=home, has_ended=ended.__contains__, **options
        )
        self._placed = PlacedRangeInput(placing, places, ended)
        return placing

    def _options(self) -> dict[str, Any]:
        return {
            "malformed": malformed_event,
            "torn_skip_below": 2**63 if self._config.torn_skip else 0,
            "shared": self._shared,
        }

    def go_on(self, part: Range) -> bool:
        """Begins the next range, with what of its transactions was read in the last one. So these
        records are not read again on the side.

        Returns:
            Whether it did. Only if the last one was given out whole, this one begins at its end,
            and no home places transactions in either.
        """
        last = self._part
        borders = part == replace(last, start=Spot(last.end).position, end=part.end)
        ends_by_markers = part.places is None and part.large is None
        if not (borders and ends_by_markers and self._is_read and not self.has_followed):
            return False
        self._part, self._is_read = part, False
        self._reached = part.start.o2 >= part.end
        self._buffer.skip_unseen(part.start.o2)  # The last offsets may hold no records.
        return True

    def shares(self) -> Iterator[Share]:
        """Yields everything that ends in the range, in delivery order.

        Raises:
            DataLossError: retention deleted records that are to be read.
            TornTransactionError, IntegrityError: a committed transaction is not whole.
            MalformedHeaderError: a record's TxId or TxCtl header does not decode, or the name of a
                header is not UTF-8.
            SwitchedError: the topic was switched when the range was planned.
            NotAuthorizedError: a sidecar may not be read.
            BrokerError: no progress in `STALL_S`.
        """
        part, buffer = self._part, self._buffer
        self._assign(buffer.next_offset)
        progress_s = time.monotonic()
        while True:
            for share in self._taken() if self._large is None else self._taken_of(self._large):
                yield share
                progress_s = time.monotonic()  # Who takes them may do so slowly.
            if buffer.failure is not None:
                if self._is_gone(buffer):
                    continue
                raise buffer.failure
            self._on_step()
            wanted = buffer.stream_wanted()
            if wanted is not None:
                has_come = self._stream(buffer, wanted)
            elif buffer.blocked:
                has_come = self._side_reader.step(buffer, _POLL_S)
            elif buffer.mode_met is not None:
                self._follow(buffer.mode_met)
                buffer = self._buffer
                continue
            elif self._reached and self._placed is not None:
                self._placed.finish(part.end)
                self._placed = None
                continue
            elif self._reached:
                self._is_read = True
                return
            else:
                has_come = self._fetch()
            if has_come:
                progress_s = time.monotonic()
            else:
                self._check_progress(progress_s, wanted)

    def _is_gone(self, buffer: PartitionBuffer) -> bool:
        """Passes over what can't be read, if retention has taken its place and that may be."""
        if self._config.fail_on_data_loss or not isinstance(buffer, PlacedBuffer):
            return False
        if not isinstance(buffer.failure, TornTransactionError):
            return False
        key, error = (self._part.topic, self._part.partition), buffer.failure
        log_start = self._log.start_offset(*key)
        if not buffer.pass_gone(log_start):
            return False
        self._on_gone()
        _LOG.warning(
            "gone_transaction_passed_over partition=%s log_start=%d error=%s", key, log_start, error
        )
        return True

    def _check_progress(self, progress_s: float, wanted: StreamRequest | None) -> None:
        if time.monotonic() - progress_s <= STALL_S:
            return
        if wanted is None:
            topic, partition = self._part.topic, self._part.partition
            at, end = self._buffer.next_offset, self._part.end
        else:
            (topic, partition), at, end = wanted.sidecar, wanted.next_offset, wanted.last_offset + 1
        raise BrokerError(
            f"reading {topic}[{partition}] stood at {at} of {end} for {STALL_S:g} s: check the"
            " brokers"
        )

    def _stream(self, buffer: PartitionBuffer, wanted: StreamRequest) -> bool:
        """Reads a slice of what a pointer names. Returns whether anything came of it."""
        try:
            # What others read, too, is read on by leases that begin within a pointer.
            is_own = self._own_sidecars is not None
            is_busy = self._sidecars.step([buffer], _POLL_S, ahead=is_own)
        except ConsumerError:
            raise
        except KafkaException as error:
            _LOG.warning("sidecar_read_failed error=%s", error)
            is_busy = False
        if not is_busy:
            time.sleep(_POLL_S)
        return buffer.failure is not None or buffer.stream_wanted() != wanted

    def _assign(self, offset: int) -> None:
        if not self._reached:
            self._fetcher.assign(self._part.topic, self._part.partition, offset)

    def _fetch(self) -> bool:
        self._pending.enforce()
        # Ask for no more records than the range has: a `ConsumingFetcher` waits for them.
        before = self._buffer.next_offset
        wanted = max(min(FETCH_RECORDS, self._part.end - before), 1)
        with collector_paused():
            fetched = self._fetcher.fetch(wanted, _POLL_S)
            if not (fetched.records or fetched.events):
                return False
            self.fetches += 1
            self._on_fetch()
            self._events(fetched.events)
            end = self._part.end
            if fetched.records and cast(int, fetched.records[-1].offset()) >= end - 1:
                self._reached = True
                fetched = fetched.below(bisect_left(fetched.records, end, key=_offset_of))
            if fetched.runs is None:
                make_readable(fetched.records)
            records = cast(Sequence[Record], fetched.records)
            if self._placed is not None:
                self._placed.feed(records, fetched.runs)
            elif self._large is None:
                self._buffer.feed(records, fetched.runs)
            else:
                self._large.feed(records, fetched.runs)
                self._buffer.next_offset = self._large.next_offset
        # Events alone may be told again and again (trap 228).
        return bool(records) or self._reached or self._buffer.next_offset > before

    def _events(self, events: Sequence[Message]) -> None:
        place = self._part.topic, self._part.partition
        for event in events:
            error = event.error()
            assert error is not None
            if event.topic() is not None and (event.topic(), event.partition()) != place:
                continue  # of what the consumer read before
            if error.code() == KafkaError._PARTITION_EOF:
                # The last offsets of the range may hold no records, so its end is seen only here.
                self._reached = self._reached or (event.offset() or 0) >= self._part.end
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._out_of_range()
            elif error.code() in _HOPELESS:
                raise BrokerError(f"{self._part.topic}[{self._part.partition}]: {error}")

    def _out_of_range(self) -> None:
        part = self._part
        start = self._log.start_offset(part.topic, part.partition)
        if start > part.start.o2 and part.large is not None:
            # Of a transaction that tasks share, all records come or none.
            raise DataLossError(
                f"{part.topic}[{part.partition}] begins at {start} now: retention deleted a part of"
                " a transaction while tasks shared it; run the job or query again, and one task"
                " reads it, as torn.reset says"
            )
        if start > part.start.o2 and self._config.fail_on_data_loss:
            raise DataLossError(
                f"{part.topic}[{part.partition}] begins at {start} now, and offset "
                f"{self._buffer.next_offset} was to be read: retention deleted it; start anew, or "
                "set failOnDataLoss=false to go on without it"
            )
        if start >= part.end:
            self._reached = True
        else:
            self._buffer.next_offset = max(start, self._buffer.next_offset)
            self._assign(self._buffer.next_offset)

    def _follow(self, met: ModeMet) -> None:
        """Goes on behind a mode record, with what its home places in the rest of the range."""
        self.has_followed = True
        part, key = self._part, (self._part.topic, self._part.partition)
        needs_home = self._config.committed or with_sidecars(self._log, [part.topic])
        if not needs_home or TopicIds(self._log).is_another(part.topic, met.topic_id):
            # Or it was meant for a topic of this name that was deleted.
            self._go_on(Position.at(met.offset), None)
            self._buffer.known_mode = met.mode_offset
            return
        # Each place lies behind the mode record.
        start = Spot(met.offset, passed=Passed(met.home, met.mode_offset))
        end = Spot(part.end)
        with closing(PlacesAhead(self._log, self._settings)) as ahead:
            self._await_published(ahead, met)
            reach = ahead.reach(
                {key: start}, {key: end}, {part.topic: met.topic_id}, wait_s=PLACE_S
            )
            require_complete(reach)
        # One that has markers again at the mode record places nothing behind it.
        places = reach[key].until(end) if key in reach else RangePlaces(met.home)
        self._go_on(start.position, places)

    def _await_published(self, ahead: PlacesAhead, met: ModeMet) -> None:
        topic = self._part.topic
        if not ahead.await_published(topic, met.topic_id, met.mode_offset, wait_s=PLACE_S):
            raise SwitchedError(
                f"{topic} is being switched, and its home has not published that within"
                f" {PLACE_S:g} s: is a coordinator running? Run the job or query again"
            )
        if self._part.is_part:
            # The tasks of the other parts do not meet the mode record.
            raise SwitchedError(
                f"{topic} was switched while this was planned: run the job or query again"
            )

    def _go_on(self, start: Position, places: RangePlaces | None) -> None:
        self._buffer.close()
        self._buffer = self._make_buffer(start, places)
        self._reached = start.o2 >= self._part.end
        self._assign(start.o2)

    def _taken(self) -> Iterator[Share]:
        buffer = self._buffer
        while buffer.ready:
            buffer.take(TAKE_RECORDS)
            for entry, start, records in buffer.last_take:
                if not records:
                    continue
                if isinstance(entry, PlainRun):
                    yield from self._plain(cast(Sequence[Message], records))
                elif self._wanted(entry.txid, entry.marker.commit_sequence):
                    sequence, first = entry.marker.commit_sequence, _named(entry, start)
                    side = place_in_sidecar(entry, records[0].offset())
                    yield Share(entry.txid, sequence, cast(Sequence[Message], records), first, side)

    def _taken_of(self, part: LargePart) -> Iterator[Share]:
        if self._reached:
            part.end(self._part.end)
        large, records = self._part.large, cast(Sequence[Message], part.records)
        assert large is not None
        if records and self._wanted(large.txid, large.commit_sequence):
            for first in range(0, len(records), TAKE_RECORDS):
                chunk = records[first : first + TAKE_RECORDS]
                yield Share(large.txid, large.commit_sequence, chunk)
        part.records.clear()

    def _plain(self, records: Sequence[Message]) -> Iterator[Share]:
        error = next(filter(None, map(_error_of, records)), None)
        if error is not None:
            raise MalformedHeaderError(error.str())
        if self._config.sequences is None:
            yield Share(None, None, records)

    def _wanted(self, txid: RawTxId, sequence: int) -> bool:
        wanted = self._config.sequences
        if wanted is None:
            return True
        partition, above, up_to = wanted
        return int.from_bytes(txid[:2], "big") == partition and above < sequence <= up_to

    def close(self) -> None:
        """Releases everything that was opened."""
        if self._own is not None:
            self._own.close()
        self._side_reader.close()
        if self._own_sidecars is not None:
            self._own_sidecars.close()
        self._buffer.close()
        self._store.close()


def _by_skipping(
    group: str, partition: TopicPartition, entry: EndedTransaction, without: str
) -> str:
    """Says how a queue goes on behind what can't be read."""
    topic, number = partition
    offsets = f"{entry.marker_offset}"
    if isinstance(entry, PlacedTransaction):
        # The offset of its place would name the record there alone, and leave the transaction.
        offsets += f"@{entry.marker.commit_sequence}"
    skip = f"logtx subscription skip {quote(group)} '{topic}[{number}]' {offsets} --execute"
    return f"to go on without {without}: {skip}"


def _named(entry: EndedTransaction, nth: int) -> MessageId:
    """Returns the name of a transaction's n-th message."""
    is_placed = isinstance(entry, PlacedTransaction)
    sequence = entry.marker.commit_sequence if is_placed else AT_OFFSET
    return MessageId(entry.marker_offset, sequence, nth)
