"""Moves batches from librdkafka's consumer into one `PartitionBuffer` per partition, and delivers
from these in turn.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Any, Final, cast
from weakref import WeakMethod

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.collector import collector_paused
from ..journal.control import TopicPartition
from ..journal.errors import ConsumerError, LogtxError
from ..journal.logs.interface import Log, LogConsumer
from ..journal.native.interface import Reader
from ..journal.position import Position
from .assigned import Assigned, MakeBuffer, StartedAt
from .config import MIB, ConsumerConfig
from .core.buffer import PartitionBuffer
from .core.counters import ConsumerCounters
from .core.pending import PendingTransactionMap, RawTxId, Record
from .core.shared import Shared
from .following import Following
from .lookup import LookUps
from .malformed import UnreadableHeadersError, readable_runs
from .out_of_range import OutOfRange, Refusal, Restart
from .side_read import SideReader
from .sidecar_read import SidecarReader, delivered
from .source import MessageSource, NativeSource, OtherQueueError, Part, Read
from .spill.store import RocksSpillStore
from .successors import Successors, unreadable
from .topic_ids import TopicIds
from .unseen import Unseen

_LOG = logging.getLogger(__name__)
FETCH_MAX_RECORDS: Final = 1_000
"""Records taken from librdkafka at a time; bounds what is read ahead of delivery. A batch twice as
large costs no less CPU per record, one half as large a seventh more."""
AHEAD_MAX_RECORDS: Final = 20_000
"""A partition with more records than this to deliver is paused, so that reading does not outrun a
long delivery. More costs memory, fewer pause and resume more often."""
AHEAD_MAX_BYTES: Final = 16 * MIB
"""A partition is paused too when it has read more bytes of values than this while something in it
waits for delivery. Costs as `AHEAD_MAX_RECORDS`."""
FETCH_EVERY_S: Final = 0.05
"""How often librdkafka is polled while a long transaction is delivered, or nothing more is to be
read ahead. Longer delays other partitions and rebalances, shorter slows that delivery."""
UPKEEP_EVERY_S: Final = 1.0
"""Pause between two rounds of look-ups, unless ``pending.lookup.age.ms`` / 2 is shorter. Longer
looks transactions up later; a round costs a pass over all that is pending."""
SIDE_READ_SLICE_S: Final = 0.005
"""Longest wait for a side read's next records before other partitions are looked after. Longer
delays those, shorter costs CPU."""


class Reading:
    """All assigned partitions of one consumer. One thread at a time may use it."""

    def __init__(
        self,
        log: Log,
        inner: LogConsumer,
        config: ConsumerConfig,
        counters: ConsumerCounters,
        reader: Reader | None = None,
    ) -> None:
        """Makes the spill store; no partition is assigned yet.

        Args:
            log: the log that `inner` reads.
            inner: librdkafka's consumer.
            config: the consumer's settings.
            counters: the consumer's counters.
            reader: what reads its partitions in C; None: nothing does.

        Raises:
            SpillError: ``pending.dir`` can't be written.
        """
        self.assigned: dict[TopicPartition, Assigned] = {}
        self.changes = 0
        """How often partitions were begun or stopped."""
        self.counters = counters
        self._inner = inner
        self._source: MessageSource | NativeSource = (
            MessageSource(inner, self.assigned.get)
            if reader is None
            else NativeSource(inner, reader, config.librdkafka.get("error_cb"))
        )
        self._config = config
        self._store = RocksSpillStore(config.pending_dir, config.pending_disk_max_bytes)
        self.pending_map = PendingTransactionMap(config.pending_memory_max_bytes, self._store)
        self.shared = Shared()
        self._side_reader = SideReader(log, config.librdkafka_quiet, self.pending_map, self.shared)
        self.shared.relocate = delivered
        self._sidecar_reader = SidecarReader(log, config.librdkafka_quiet)
        self._unseen = Unseen(log, config.librdkafka_quiet, is_needed=not config.tells_ends)
        self._look_ups = LookUps(log)
        self._active: deque[Assigned] = deque()
        self._events: deque[Message] = deque()
        self.topic_ids = TopicIds(log)
        """Which topics have the names that are read."""
        self._out = OutOfRange(log, self.topic_ids, config.auto_offset_reset)
        self._successors = Successors(log)
        high_of = WeakMethod(self._high_of)
        # Weakly: in a circle, a consumer that is dropped would wait for the garbage collector.
        self.following = Following(
            *(log, config, counters, self.pending_map, self.shared, self.topic_ids),
            lambda key: 0 if (method := high_of()) is None else method(key),
        )
        self._make_buffer: MakeBuffer = self.following.make_buffer
        self._turning: set[TopicPartition] = set()
        """Partitions that came to a mode record, and follow no home yet."""
        self.recreated: Callable[[], None] = _nothing
        """Called when a topic is found to be created anew, and reading can't go on by itself."""
        self._blocked: set[TopicPartition] = set()
        """Partitions that wait for a side read or have failed."""
        self.fetched_s = 0.0
        """Monotonic time at which librdkafka was last polled, and so the group was heard."""
        self._upkeep_s = 0.0
        self._ends: list[Message] = []
        """Kafka's events of the latest batch that a partition was read to its end."""
        self._former: list[Assigned] = []
        """Partitions that begin again, as they were before; their buffers are to be dropped."""
        self._taking: list[tuple[PartitionBuffer, object]] = []
        """Buffers that the call of the application under way takes records from, and the
        `last_take` of each before that."""
        self.is_ending = False
        """Whether another thread waits for the call that reads, to close the consumer."""
        self.interrupted = False
        """Whether records may have been taken from librdkafka and not be in a buffer, or librdkafka
        may read elsewhere than the buffers go on: an exception came in between."""
        self.half_moved = False
        """Whether the reason may be a move of ours: librdkafka may lack partitions that we have."""

    # ---- partitions -----------------------------------------------------------------------------

    def add(
        self,
        key: TopicPartition,
        start: Position,
        stored: Position | None,
        started_at: StartedAt = StartedAt.ELSEWHERE,
    ) -> Assigned:
        """Begins a partition with an empty buffer; one that is assigned already moves to `start`.

        Args:
            key: topic and number.
            start: where reading and delivery go on.
            stored: the committed position, if any.
            started_at: how `start` was chosen.
        """
        return self._begin(Assigned(key, start, stored, started_at))

    def _begin(self, assigned: Assigned) -> Assigned:
        assigned.buffer = self._make_buffer(assigned)
        self._put(assigned)
        return assigned

    def _put(self, assigned: Assigned) -> None:
        former = self.assigned.get(assigned.key)
        if former is not None:
            self._former.append(former)
            assigned.paused, assigned.marked = former.paused, former.marked
            assigned.claim, assigned.unsent = former.claim, former.unsent
            assigned.topic_id, assigned.sides = former.topic_id, former.sides
            assigned.checks_headers = former.checks_headers
        # Only then is the former one dropped: an exception in between would lose where it stands.
        self.assigned[assigned.key] = assigned
        self.following.begin(assigned)
        self._changed()
        self._drop_former()

    def _drop_former(self) -> None:
        while self._former:
            former = self._former[-1]
            # An exception right behind `append` leaves one here that is assigned still.
            if self.assigned.get(former.key) is not former:
                self._drop_buffer(former)
            self._former.pop()

    @contextmanager
    def moving(self) -> Iterator[None]:
        """Surrounds what moves buffers and librdkafka together.

        If an exception leaves the block, whichever it is, the next `fetch` begins all partitions
        again from where their buffers stand.
        """
        before = self.interrupted, self.half_moved
        self.interrupted = self.half_moved = True
        yield
        self.interrupted, self.half_moved = before

    def recover(self, make_buffer: MakeBuffer | None = None) -> None:
        """Begins all partitions again, from where they stand, if a call was interrupted.

        Args:
            make_buffer: makes the buffers from now on; None: as before.
        """
        if self.interrupted:
            self._make_buffer = make_buffer or self._make_buffer
            self._restart_all()

    def begin_taking(self) -> None:
        """Begins a call of the application: what was taken before, it has got."""
        self._taking.clear()

    def takes_from(self, buffer: PartitionBuffer) -> None:
        """Notes that records are about to be taken from a buffer."""
        self._taking.append((buffer, buffer.last_take))

    def commit_sequences(self) -> dict[RawTxId, int]:
        """Returns that of each transaction of which records were taken since `begin_taking`."""
        shares = (share for buffer, _ in self._taking for share in buffer.shares())
        entries = (entry for entry, _ in shares if entry is not None)
        return {entry.txid: entry.marker.commit_sequence for entry in entries}

    def put_back(self, *, interrupted: bool) -> None:
        """Takes back what was taken since `begin_taking`: an exception keeps it from the
        application. It will be delivered again.

        Args:
            interrupted: whether the exception may have come anywhere, as a signal handler's does.
        """
        self.interrupted |= interrupted
        for buffer, before in self._taking:
            if buffer.last_take is not before:
                buffer.put_back()
                self.interrupted = True
        self._taking.clear()

    def _restart_all(self) -> None:
        """Begins every partition again at its buffer's position, and drops what is read ahead."""
        self._ends.clear()
        # All begin empty. One whose removal was interrupted would be delivered from for ever.
        self._active.clear()
        self._drop_former()
        self.following.drop_all()
        for former in list(self.assigned.values()):
            again = Assigned(former.key, former.origin, former.stored, former.started_at)
            again.start = former.buffer.position()
            self._begin(again)
        if self.assigned:
            _LOG.info("reading_restarted partitions=%d", len(self.assigned))
            self.reassign(list(self.assigned))
        self.interrupted = self.half_moved = False

    def pass_over(self, topics: Iterable[str]) -> None:
        """Notes topics of which records may come, and are dropped: nobody reads them here."""
        self._source.topics.update(topics)

    def require(self, key: TopicPartition) -> Assigned:
        """Returns an assigned partition.

        Raises:
            KafkaException: it is not assigned.
        """
        assigned = self.assigned.get(key)
        if assigned is None:
            text = f"{key[0]}[{key[1]}] is not assigned"
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION, text))
        return assigned

    def rebuild(self, make_buffer: MakeBuffer) -> None:
        """Begins every partition again at its origin, with buffers of another kind from now on.

        Changes nothing if `make_buffer` raises for one of them.
        """
        begun = [Assigned(a.key, a.origin, a.stored, a.started_at) for a in self.assigned.values()]
        for assigned in begun:
            assigned.buffer = make_buffer(assigned)
        self._make_buffer = make_buffer
        for assigned in begun:
            self._put(assigned)
        if self.assigned:
            self.reassign(list(self.assigned))

    def remove(self, keys: Iterable[TopicPartition]) -> None:
        """Stops reading partitions and drops what is pending in them."""
        stopped = []
        with self.moving():
            for key in keys:
                assigned = self.assigned.get(key)
                if assigned is not None:
                    if assigned.paused or assigned.throttled:
                        stopped.append(assigned.kafka())
                    self._former.append(assigned)
                    del self.assigned[key]
            self._drop_former()
            if stopped:
                self._unpause(stopped)
            self._changed()

    def _unpause(self, places: list[KafkaPartition]) -> None:
        # librdkafka keeps a partition paused while other consumers have it. If it came back here,
        # nothing would resume it.
        try:
            self._inner.resume(places)
        except KafkaException as error:
            _LOG.info("resume_at_removal_failed error=%s", error)

    def _drop_buffer(self, assigned: Assigned) -> None:
        self._side_reader.forget(assigned.buffer)
        self._sidecar_reader.forget(assigned.buffer)
        self.following.forget(assigned)
        assigned.buffer.close()
        if assigned.active:
            with suppress(ValueError):  # An exception came while it was taken out.
                self._active.remove(assigned)
            assigned.active = False
        self._blocked.discard(assigned.key)

    def take_events(self, limit: int) -> list[Message]:
        """Returns up to `limit` of Kafka's own events, apart from what the buffers deliver."""
        return [self._events.popleft() for _ in range(min(limit, len(self._events)))]

    def _changed(self) -> None:
        self.changes += 1
        self.shared.divide(len(self.assigned))
        self._source.topics.update(topic for topic, _ in self.assigned)
        self._events = deque(
            e for e in self._events if (e.topic(), e.partition()) in self.assigned or not e.topic()
        )

    # ---- in -------------------------------------------------------------------------------------

    def fetch(self, timeout_s: float, limit: int = FETCH_MAX_RECORDS) -> bool:
        """Reads one batch into the buffers, after waiting up to `timeout_s` for its first record.

        Serves rebalances. Returns True if anything was read.

        Raises:
            SpillError: pending transactions can't be spilled; nothing was read.
            RuntimeError: another thread closes the consumer.
            Exception: what the application's rebalance callbacks raised.
        """
        if self.is_ending:
            raise RuntimeError("Consumer closed")
        # Spill what is over the limit before more is read: if the disk refuses, reading stops and
        # memory does not grow.
        self.pending_map.enforce()
        self.recover()
        if self._watches and self._all_have_enough():
            if time.monotonic() - self.fetched_s < FETCH_EVERY_S:
                self._await_homes(timeout_s)
                return False
            limit, timeout_s = 1, 0
        # Until all that was taken is in the buffers. An exception may come from anywhere within: a
        # callback that librdkafka serves, a signal handler, a header that does not decode.
        self.interrupted = True
        try:
            read = self._read(limit, timeout_s)
        except OtherQueueError:
            self._restart_all()
            return False
        self.fetched_s = time.monotonic()
        if read is None:
            self.interrupted = False
            return False
        with collector_paused():
            self._note(read.events)
            try:
                self._sort(read.parts)
            except UnreadableHeadersError:
                self._restart_all()
            self._note_ends()
        self.interrupted = False
        return True

    def _read(self, limit: int, timeout_s: float) -> Read | None:
        if not self._watches or timeout_s <= 0:
            return self._source.read(limit, timeout_s)
        timeout_s = min(timeout_s, self.following.wait_s)
        read = self._source.read(limit, 0)
        # An answer would not end a wait for data, and data that was read waits for it.
        if read is None and not self.following.homes.await_answer(timeout_s):
            read = self._source.read(limit, timeout_s)
        return read

    def _all_have_enough(self) -> bool:
        """Returns whether every partition has so much that waits for its home that more would help
        none.

        Then librdkafka keeps what it has fetched. It would drop that of a partition that is paused,
        and fetch it again: behind a long journal, that halved the rate at which a backlog is read.
        """
        reads = [a for a in self.assigned.values() if not (a.paused or a.throttled)]
        return bool(reads) and all(map(_has_enough, reads))

    def _await_homes(self, timeout_s: float) -> None:
        timeout_s = min(timeout_s, self.following.wait_s)
        if timeout_s > 0 and not self.following.homes.await_answer(timeout_s):
            time.sleep(timeout_s)

    def _owner(self, message: Message) -> Assigned | None:
        return self.assigned.get(cast(TopicPartition, (message.topic(), message.partition())))

    def tend(self) -> None:
        """Does the other work now and then while there is something to deliver.

        Serves rebalances, side reads and look-ups, and reads partitions that have nothing to
        deliver, so that a long transaction in one partition holds up no other.
        """
        if time.monotonic() - self.fetched_s < FETCH_EVERY_S or not self._active:
            return
        self.work()
        idle = any(not (a.active or a.throttled or a.paused) for a in self.assigned.values())
        self.fetch(0, FETCH_MAX_RECORDS if idle else 1)

    def _sort(self, parts: Iterable[Part]) -> None:
        for part in parts:
            # Records of a former assignment may still arrive.
            assigned = self.assigned.get(part.key)
            if assigned is not None:
                self._feed(assigned, part)

    def _feed(self, assigned: Assigned, part: Part) -> None:
        buffer, feeds, batch = assigned.buffer, assigned.input, part.records
        assigned.eof = assigned.cut_s = None
        if assigned.active or assigned.front is not None or assigned.key in self._blocked:
            size = part.value_bytes
            assigned.ahead_bytes += sum(map(len, batch)) if size is None else size
        # What waits for its horizon is fed later, when nobody could begin it again.
        if assigned.checks_headers or assigned.front is not None:
            readable = [cast(Sequence[Record], batch)] if part.runs else readable_runs(batch)
            for run in readable:
                feeds.feed(run)
        else:
            try:
                buffer.feed(cast(Sequence[Record], batch), part.runs)
            except SystemError as error:
                # confluent-kafka raises it for the name of a header that is not UTF-8.
                assigned.checks_headers = True
                raise UnreadableHeadersError from error
        self._wake(assigned)
        if buffer.mode_met is not None:
            self._turning.add(assigned.key)
        if assigned.throttled or assigned.urgent:
            return
        waiting = assigned.waiting_records
        if waiting <= AHEAD_MAX_RECORDS and assigned.ahead_bytes <= AHEAD_MAX_BYTES:
            return
        assigned.throttled = True
        self._inner.pause([assigned.kafka()])

    def _wake(self, assigned: Assigned) -> None:
        if assigned.buffer.ready:
            if not assigned.active:
                assigned.active = True
                self._active.append(assigned)
        elif assigned.buffer.blocked:
            self._blocked.add(assigned.key)

    def wake(self, key: TopicPartition) -> None:
        """Looks whether a partition has something to read again, for its turn may have come."""
        assigned = self.assigned.get(key)
        if assigned is not None:
            self._wake(assigned)

    def _note_ends(self) -> None:
        for event in self._ends:
            assigned = self._owner(event)
            if assigned is not None:
                assigned.eof, assigned.cut_s = event, None
                # Kafka's own markers may lie at the end, and records that it does not show.
                assigned.input.skip_unseen(cast(int, event.offset()))
        self._ends.clear()

    def _take_ends(self) -> Iterator[Message]:
        for assigned in self.assigned.values():
            event, buffer = assigned.eof, assigned.buffer
            if event is None or assigned.active or buffer.blocked:
                continue
            if buffer.next_offset >= cast(int, event.offset()):  # else it waits for the horizon
                assigned.eof = None
                yield event

    def _note(self, events: Sequence[Message]) -> None:
        for event in events:
            code = cast(KafkaError, event.error()).code()
            if code == KafkaError._AUTO_OFFSET_RESET:
                self._out_of_range(event)
            elif code == KafkaError._PARTITION_EOF:
                self._ends.append(event)
            else:
                self._events.append(event)

    def _out_of_range(self, event: Message) -> None:
        assigned = self._owner(event)
        if assigned is None:
            return
        found = self._out.restart(assigned)
        if found is Refusal.RECREATED:
            self.recreated()  # which finds it again, and says so
        elif found is Refusal.UNWANTED:
            self._events.append(event)
        elif isinstance(found, Restart):
            if found.started_at is not StartedAt.ELSEWHERE:
                # The records may have gone with their topic, whose home is to be followed no more.
                self.following.learn([assigned.key])
            with self.moving():
                self.add(assigned.key, found.position, assigned.stored, found.started_at)
                self.reassign([assigned.key])

    def reassign(self, keys: Sequence[TopicPartition]) -> None:
        """Makes librdkafka read these partitions from where their buffers go on."""
        with self.moving():
            if self._config.cooperative:
                there = {(p.topic, p.partition) for p in self._inner.assignment()}
                places = [self.assigned[key].kafka() for key in keys]
                self._inner.incremental_unassign(
                    [p for p in places if (p.topic, p.partition) in there]
                )
                self._inner.incremental_assign(places)
            else:
                # seek fails on a partition that stopped with an error, and assign replaces all.
                self._inner.assign([a.kafka() for a in self.assigned.values()])
            self.sync_pauses()

    def sync_pauses(self) -> None:
        """Pauses and resumes in librdkafka what is paused and not paused here.

        librdkafka's pauses outlive every seek and assignment.
        """
        stopped: list[KafkaPartition] = []
        going: list[KafkaPartition] = []
        for assigned in self.assigned.values():
            (stopped if assigned.paused or assigned.throttled else going).append(assigned.kafka())
        if stopped:
            self._inner.pause(stopped)
        if going:
            self._inner.resume(going)

    # ---- out ------------------------------------------------------------------------------------

    def take(self, limit: int) -> list[Message]:
        """Returns up to `limit` messages that can be delivered now, one partition after another.

        Kafka's events come first. What it returns counts as delivered.
        """
        taken: list[Any] = self.take_events(limit)
        for _ in range(len(self._active)):
            room = limit - len(taken)
            if room <= 0:
                break
            assigned = self._active[0]
            if assigned.paused:
                self._active.rotate(-1)
                continue
            self.takes_from(assigned.buffer)
            records = assigned.buffer.take(room)
            self._active.popleft()  # Only now: if `take` raises, the partition stays in the queue.
            self.counters.delivered_records += len(records)
            assigned.unsent = assigned.unsent or bool(records)
            if taken:
                taken += records
            else:
                taken = cast(list[Any], records)
            if assigned.buffer.ready:
                self._active.append(assigned)
                continue
            assigned.active = False
            assigned.ahead_bytes = 0
            self._wake(assigned)
            if not assigned.buffer.blocked:
                self.release(assigned)
        if self._config.partition_eof and len(taken) < limit:
            taken += islice(self._take_ends(), limit - len(taken))
        return taken

    def release(self, assigned: Assigned) -> None:
        """Ends the throttling of a partition, if there is any."""
        if assigned.throttled:
            assigned.throttled = False
            if not assigned.paused:
                self._inner.resume([assigned.kafka()])

    def raise_failure(self, *, again: bool) -> None:
        """Raises the error that stopped a partition, if any; with `again` also a second time."""
        failure = self.following.homes.failure
        if failure is not None and again:
            raise failure.with_traceback(None)
        for key in self._blocked:
            assigned = self.assigned[key]
            error = assigned.buffer.failure
            if error is not None and not assigned.paused and (again or not assigned.failure_raised):
                assigned.failure_raised = True
                raise error.with_traceback(None)

    # ---- side reads, look-ups -------------------------------------------------------------------

    def work(self) -> bool:
        """Does one slice of the side reads, and the look-ups that are due.

        Returns:
            True while side reads wait, or if something came of homes.

        Raises:
            SpillError: the records found can't be spilled.
            TopicRecreatedError: librdkafka reads nothing of a topic that was created anew.
        """
        waiting = False
        if self._watches:
            waiting = self._poll_homes()
        if self._unseen.is_looking and self._unseen.step(self.assigned):
            for assigned in self.assigned.values():
                self._wake(assigned)
            waiting = True
        if self._blocked:
            waiting = self._side_read() or waiting
            waiting = self._read_sidecars() or waiting
        now = time.monotonic()
        if now - self._upkeep_s >= min(UPKEEP_EVERY_S, self._config.pending_lookup_age_ms / 2000):
            self._upkeep_s = now
            self._look_up(now)
            self._sidecar_reader.tidy()
            self._unseen.watch(self.assigned.values())
            if again := self._out.to_read_again(self.assigned, now):
                self.reassign(again)
            if stuck := self._successors.look(self._standing(), now):
                for key in stuck:
                    # It names no place in the topic that has the name now: it is not committed.
                    self.assigned[key].stored = self.assigned[key].buffer.position()
                raise unreadable(stuck[0])
        return waiting

    def _standing(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yields the partitions that librdkafka is to read on, and where."""
        for key, assigned in self.assigned.items():
            if not (assigned.paused or assigned.throttled or key in self._blocked):
                yield key, assigned.input.next_offset

    def _high_of(self, key: TopicPartition) -> int:
        return self._inner.get_watermark_offsets(KafkaPartition(*key), cached=True)[1]

    @property
    def _watches(self) -> bool:
        return self.following.watches or bool(self._turning)

    def _poll_homes(self) -> bool:
        moved, anew = self.following.poll(self.assigned.values())
        for assigned in self.assigned.values():
            front = assigned.front
            if front is None:
                continue
            self._wake(assigned)
            if assigned.active or assigned.key in self._blocked or front.held_records:
                continue
            assigned.ahead_bytes = 0
            self.release(assigned)
        if anew:
            self._begin_anew(anew)
        return moved or bool(anew)

    def _begin_anew(self, partitions: Sequence[Assigned]) -> None:
        with self.moving():
            for assigned in partitions:
                self._turning.discard(assigned.key)
                self._begin(assigned)
            self.reassign([assigned.key for assigned in partitions])

    def _read_sidecars(self) -> bool:
        """Reads one slice of the sidecars. Returns whether something may have come of it."""
        waiting = [self.assigned[key] for key in self._blocked]
        # Of those that have something to deliver ranges are read on.
        buffers = [*(a.buffer for a in waiting), *self._sidecar_reader.buffers()]
        if not self._step_sidecars(buffers):
            return False
        for assigned in waiting:
            self._unblock(assigned)
        return True

    def read_sidecar(self, buffer: PartitionBuffer) -> bool:
        """Reads one slice for a buffer alone, which may be of a partition that was taken away.

        Returns:
            Whether something may have come of it.
        """
        return self._step_sidecars([buffer])

    def _step_sidecars(self, buffers: Sequence[PartitionBuffer]) -> bool:
        try:
            return self._sidecar_reader.step(buffers, SIDE_READ_SLICE_S)
        except ConsumerError:
            raise
        except KafkaException as error:
            _LOG.warning("sidecar_read_failed error=%s", error)
            return False

    def _unblock(self, assigned: Assigned) -> None:
        if not assigned.buffer.blocked:
            self._blocked.discard(assigned.key)
            # A long stream unblocks it time and again, while more waits behind it than should.
            if assigned.throttled and assigned.waiting_records <= AHEAD_MAX_RECORDS:
                self.release(assigned)
        self._wake(assigned)

    def _side_read(self) -> bool:
        buffers = [self.assigned[key].buffer for key in self._blocked]
        target = self._side_reader.busy_with
        if target is None:
            target = next((b for b in buffers if not (b.failure or b.stream_wanted())), None)
        if target is None:
            return False
        try:
            self._side_reader.step(target, SIDE_READ_SLICE_S)
        except ConsumerError:
            raise
        except KafkaException as error:
            _LOG.warning("side_read_failed partition=%s error=%s", target.partition, error)
        self._unblock(self.assigned[target.partition])
        return True

    def _look_up(self, now: float) -> None:
        age_s = self._config.pending_lookup_age_ms / 1000
        for answer in self._look_ups.answers():
            assigned = self.assigned.get(answer.partition)
            if assigned is None:
                continue
            try:
                again = self.following.looked_up(assigned, answer, now)
            except LogtxError as error:
                _LOG.warning("home_not_found partition=%s error=%s", assigned.key, error)
                answer.ask_again(assigned.buffer, now, age_s)
                continue
            if again is not None:
                self._begin_anew([again])
        due = []
        for assigned in self.assigned.values():
            settled, home = assigned.buffer.looked_up, assigned.home
            for pending in assigned.buffer.pending():
                if home is not None and home.is_known(pending.txid):
                    pending.since = pending.since or now
                    continue
                if pending.since is None:
                    pending.since = now
                elif pending.txid not in settled and pending.is_due(now, age_s):
                    due.append((assigned.key, pending.txid))
        self.counters.look_ups += self._look_ups.ask(due)

    def spilled_bytes(self) -> int:
        """Returns the bytes of pending records written to disk so far."""
        return self._store.spilled_bytes

    def close(self) -> None:
        """Drops all partitions, and closes look-ups, the second consumer and the spill store."""
        for assigned in self.assigned.values():
            self._drop_buffer(assigned)
        self.assigned.clear()
        self._look_ups.close()
        self.following.close()
        self._side_reader.close()
        self._sidecar_reader.close()
        self._unseen.close()
        self._store.close()


def _nothing() -> None:
    """Stands for positions that are not there."""


def _has_enough(assigned: Assigned) -> bool:
    """Returns whether half as much as may be read ahead waits for what a partition's home says."""
    held = 0 if assigned.front is None else assigned.front.held_records
    # Who waits for its next records is never throttled; it may wait for more than its home.
    if not held or assigned.urgent:
        return False
    return held > AHEAD_MAX_RECORDS // 2 or assigned.ahead_bytes > AHEAD_MAX_BYTES // 2
