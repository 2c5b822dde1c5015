"""Decides which marker goes out next, how, and when it counts as written.

There is one lane per journal partition and data partition. Consumers rely on this rule: in every
data partition, the first markers of a journal partition stand in commit-sequence order. They take
a marker at or below the last commit sequence met for a duplicate. So a lane never lets a marker
overtake one that failed. A lane is in one of these states (`lane.VALID_PREVIOUS` has the
transitions):

- FLOWING: many markers in flight, by the shared producer of all lanes. That one is idempotent and
  gapless: when the broker refuses a batch, nothing behind the refused marker is written, in any
  partition, and the producer takes nothing any more.
- FAILED: a marker failed. Nothing goes out until all in flight are answered, and no answer counts
  from the failure on: an acknowledgement behind it would be out of order. Then everything that was
  in flight is put back in order, and goes out again. A marker whose acknowledgement was lost is
  written twice; consumers ignore the second.
- PAUSED: it waits before it tries again; the pauses grow.
- CAREFUL: one marker at a time, by the careful producer, which all lanes share whose partition was
  the cause of a failure. It promises no order, and needs none: the next marker goes out when the
  one before is answered. A partition that can't take its marker so delays only itself, and costs no
  producer of its own. It lasts until a marker is written. After a batch that was too large it lasts
  until no marker waits, unless a look-up has told a limit that explains it: flowing again at once,
  where logs don't tell their limits, would stop the shared producer again and again.
- DOUBTFUL: the topic of the next marker may be gone. Nothing goes out until further look-ups agree
  (`topics`). For each marker those count that were asked while it waited. A marker of a topic that
  is gone counts as written, and the journal says so. A marker that is given up though its topic
  lives would lose a commit that was told (trap 12). A topic that was created again gets the markers
  of its predecessor. They state its id, and so no reader misses the records that they claim.

A marker that gets no answer at all fails its lane: the shared producer is replaced. It never
reports such a marker by itself, because none times out there. An acknowledgement that comes before
that of an older marker does the same.

Why the order holds. A lane has its markers in flight with one producer (`Lane.producer`), and
changes to another only when none is in flight. In FLOWING the gapless producer keeps the order, up
to the first failure; in CAREFUL there is only one. `Flow` covers a producer's local refusals, which
are not in the broker's order: when one of a lane's markers was refused before it was sent, the
shell refuses those behind it too.

A broker keeps the order of a producer that it knows. Of one that it has not met in a partition it
takes any batch, as Kafka does: the first one may be refused for a moment, as the leader changes,
and the second one be taken. The broker calls the first one's repetition a duplicate, and librdkafka
reports it as written (trap 291). So the first marker of a producer in a partition goes alone: the
others of all lanes follow when it is answered. Lanes that rest are forgotten, and with them whom a
broker has met: it does not remember for ever.

A lane also has the mode records of its journal partition, which tell readers that a topic is
switched (`mode_records`). One stands at the journal offset of its MODE record, between the markers
of lower and of higher sequences. And where a partition has places beside markers, both keep one
order (R4): a marker or mode record whose turn it is may have to wait until what was decided before
it is placed there (`Placer.may_mark`). That is no state of its own, for it says nothing of how a
marker is to be sent: a lane that waits for a place stays FLOWING or CAREFUL, has nothing in flight
that could fail behind it, and goes on with `resume`. Other lanes don't wait with it.

Records of a transaction in a sidecar (`journal.sidecar`) are delivered at a pointer in the main
partition. That is the transaction's marker there, and stands in the lane of the main partition
between the markers of lower and of higher sequences: beside the lane it could overtake one, and
readers would take it, or the other, for a duplicate (trap 90). The marker of the sidecar itself
follows when the pointer is acknowledged, and states its offset, which is also told with the
transaction's end: it says how long the sidecar is needed (`staircases`). A pointer whose
acknowledgement tells no offset is written again. Nobody needs an order of these markers. The
pointer says what the decision says, `since` too: a copy that a new owner writes must not claim that
the first pointer lies behind itself (trap 91).

No batch is larger than a topic takes: the markers in flight to one data partition are bounded by
its ``max.message.bytes``, over all its lanes. A topic with a small limit so never stops the shared
producer, except while its limit is not known, or was just lowered.

Pure: the shell has the producers, the clock and the log.

Source: Transactional Messaging in Kafka, "Transaction flow", End phase, steps 4 to 6.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, Protocol

from ...journal.control import PartitionList, TopicPartition
from ...journal.places import PartitionId
from ...journal.records.types import DataPartition
from .floors import WrittenBeside
from .lane import (
    VALID_PREVIOUS,
    Ending,
    Failure,
    Finished,
    Flow,
    Headers,
    Job,
    Lane,
    LaneState,
    Producer,
    Reached,
    Target,
    count,
    headers_of,
)
from .mode_records import MayMark, ModeRecords, ModeWrite
from .sidecars import placed_sidecars, pointing
from .topics import Existence, TopicKnowledge
from .transactions import TransactionMetadata

IN_FLIGHT_MAX: Final = 1_000
"""Markers of one lane in flight at once. Fewer make a lane wait for the broker more often; more are
written a second time after a failure."""
RANGES_MAX: Final = 5_000
"""Ranges of branches that the markers of one large transaction state in one turn: about 10 ms. With
more the others would wait; with fewer its markers take more turns."""
UNKNOWN_LIMIT_BYTES: Final = 16_384
"""Bytes in flight to a data partition whose ``max.message.bytes`` is not known yet. More could stop
the shared producer; less makes recovery wait for more answers until the topics are looked up."""
MARKER_OVERHEAD_BYTES: Final = 128
"""Upper bound of what a marker takes in a batch beside its control header."""
BATCH_OVERHEAD_BYTES: Final = 128
"""Upper bound of what a batch takes beside its records."""
RETRY_MIN_MS: Final = 50
"""First pause after a lane failed."""
RETRY_MAX_MS: Final = 1_000
"""Longest pause: bounds how late a lane goes on once its partition takes markers again."""
LOOK_PAUSE_MS: Final = 500
"""Pause between two look-ups of a topic that may be gone. A shorter one asks the brokers more; a
longer one delays the verdict, which also needs `topics.CONFIRM_MS`."""


class Shell(Protocol):
    """What the lanes need of the outside world. Every call returns at once; answers come later."""

    def append(self, job: Job, headers: Headers, producer: Producer, flow: Flow) -> None:
        """Sends a marker. Calls `MarkerLanes.written` or `not_written` later, once."""

    def renew(self) -> None:
        """Replaces the shared producer, which has stopped. The old one is closed."""

    def look_up(self, topic: str) -> None:
        """Looks a topic up, and calls `MarkerLanes.looked_up` when there is an answer, or none."""

    def wake_at(self, at_ms: int) -> None:
        """Calls `MarkerLanes.tick` at this monotonic time, or soon after.

        Only the earliest time counts: `tick` asks for the next one.
        """


class MarkerLanes:
    """The lanes of all journal partitions that one coordinator owns."""

    def __init__(self, shell: Shell, topics: TopicKnowledge) -> None:
        """Begins without lanes.

        Args:
            shell: what the lanes act through.
            topics: what is known of data topics; the shell tells it what look-ups find.
        """
        self._shell = shell
        self._topics = topics
        self._lanes: dict[tuple[int, TopicPartition], Lane] = {}
        self._targets: dict[TopicPartition, Target] = {}
        self._shared = 1
        """Number of the current shared producer."""
        self._due: list[tuple[int, int, Lane]] = []
        """Heap of (monotonic ms, order of entry, lane): PAUSED lanes."""
        self._later: dict[Lane, None] = {}
        """Lanes of large transactions that go on in one of the next turns, in order."""
        self._looks: dict[str, dict[Lane, None]] = {}
        """Topic → its DOUBTFUL lanes, in the order in which they came to doubt."""
        self._look_at: list[tuple[int, str]] = []
        """Heap of (monotonic ms, topic): look-ups to come."""
        self._entered = 0
        self._modes = ModeRecords(topics)
        self._unplaced: dict[int, dict[Lane, None]] = {}
        """Journal partition → lanes whose next job waits until something is placed."""
        self._reached: dict[int, dict[PartitionId, Reached]] = {}
        """Journal partition → data partition → how far its present tenure wrote."""
        self._ids: dict[int, dict[str, dict[str, None]]] = {}
        """Journal partition → topic → the ids under which it wrote there: one, nearly always."""

    # ---- what is written ------------------------------------------------------------------------

    def write(
        self,
        transaction: TransactionMetadata,
        epoch: int,
        hw: Callable[[], int],
        finished: Finished,
        may_mark: MayMark = lambda _partition, _sequence: True,
    ) -> None:
        """Writes a decided transaction's markers, but where it is placed. Call it in
        commit-sequence order.

        Args:
            transaction: a transaction whose decision is acknowledged.
            epoch: the owner's epoch.
            hw: returns the journal partition's high watermark; called when a marker goes out.
            finished: called once, when every partition has its marker or is gone.
            may_mark: tells whether a marker may go out now; `resume` follows when it may.
        """
        partitions, placed = transaction.partitions, transaction.placed
        # `end_sidecars` ends it in the sidecars of partitions in which it is placed.
        missing = len(partitions) - len(placed) - len(placed_sidecars(transaction))
        if not missing:
            finished(transaction.begin, (), {})
            return
        listed = PartitionList.of(partitions)
        ending = Ending(transaction, epoch, listed, missing, hw, finished, may_mark)
        journal, ranges = transaction.txid.partition, 0
        points_to = pointing(transaction)
        for key, partition in partitions.items():
            if key in placed or key in transaction.since:
                continue  # A sidecar's own marker follows its pointer.
            lane = self._lane(journal, key)
            if self._modes and (write := self._modes.before(journal, partition)):
                mode_partition = DataPartition(*key, write.topic_id)
                lane.queue.append(Job(lane, write, mode_partition))
            job = Job(lane, ending, partition)
            if points_to:
                job.points_to = points_to.get(key)
            lane.queue.append(job)
            ranges += len(transaction.branches.get(key, ())) if transaction.parts else 0
            if ranges > RANGES_MAX:
                self._later[lane] = None
            else:
                self._send(lane)
        if self._later:
            self._shell.wake_at(0)

    def end_sidecars(
        self,
        transaction: TransactionMetadata,
        epoch: int,
        hw: Callable[[], int],
        finished: Finished,
        places: Mapping[TopicPartition, int],
    ) -> None:
        """Writes markers to sidecars whose main partitions have the transaction's place. Call it in
        commit-sequence order.

        Args:
            transaction, epoch, hw, finished: see `write`.
            places: sidecar partition → the place, of those to be written.
        """
        listed = PartitionList.of(transaction.partitions)
        ending = Ending(
            transaction,
            epoch,
            listed,
            len(places),
            hw,
            finished,
            lambda _partition, _sequence: True,
        )
        ending.pointers.update(places)
        for key, place in places.items():
            lane = self._lane(transaction.txid.partition, key)
            lane.queue.append(Job(lane, ending, transaction.partitions[key], pointer=place))
            self._send(lane)

    def write_late(
        self,
        transaction: TransactionMetadata,
        epoch: int,
        hw: Callable[[], int],
        finished: Finished,
        may_mark: MayMark,
        keys: Collection[TopicPartition],
    ) -> None:
        """Writes markers where a transaction was to be placed, in a topic that is gone by now.

        They go to the topic that has the name, before the markers of later sequences: those waited
        for the place. If none has it, they are given up, as all markers there.

        Args:
            transaction, epoch, hw, finished, may_mark: see `write`.
            keys: where.
        """
        listed = PartitionList.of(transaction.partitions)
        points_to = pointing(transaction)
        # A sidecar's own marker follows the pointer, as in `write`.
        missing = len(keys) + len(points_to.keys() & set(keys))
        ending = Ending(transaction, epoch, listed, missing, hw, finished, may_mark)
        for key in keys:
            lane = self._lane(transaction.txid.partition, key)
            job = Job(lane, ending, transaction.partitions[key], points_to=points_to.get(key))
            later = (n for n, each in enumerate(lane.queue) if each.sequence > job.sequence)
            lane.queue.insert(next(later, len(lane.queue)), job)
            self._send(lane)

    def write_mode(self, write: ModeWrite) -> None:
        """Writes a mode record to each partition of a topic. Call it in the order of sequences.

        A repeated call for the topic replaces the one before.
        """
        for partition in self._modes.begin(write):
            self._queue(write, partition)
        if self._modes.waits_for(write.topic):
            self._shell.look_up(write.topic)

    def stop_mode(self, journal_partition: int, topic: str) -> Mapping[int, int]:
        """Gives up the mode records of a topic that are not on their way: its switch goes on
        without them.

        What stands behind them goes on. Those in flight stay, and no place overtakes them (R4): a
        reader that comes to one must find all places behind it.

        Returns:
            Partition → offset of its mode record. Those in flight are added when they are written.
        """
        write = self._modes.stop(journal_partition, topic)
        if write is None:
            return {}
        for partition in write.asked:
            lane = self._lanes.get((journal_partition, (topic, partition)))
            if lane is not None:
                lane.queue = deque(job for job in lane.queue if job.part_of is not write)
                self._send(lane)
        return write.offsets

    def _queue(self, write: ModeWrite, partition: DataPartition) -> None:
        lane = self._lane(write.txid.partition, partition.key)
        lane.queue.append(Job(lane, write, partition))
        self._send(lane)

    def resume(self, journal_partition: int) -> None:
        """Goes on with what waited until something is placed: a PLACED record is durable."""
        for lane in self._unplaced.pop(journal_partition, ()):
            self._send(lane)

    def _lane(self, journal_partition: int, key: TopicPartition) -> Lane:
        lane = self._lanes.get((journal_partition, key))
        return self._open(journal_partition, key) if lane is None else lane

    def _open(self, journal_partition: int, key: TopicPartition) -> Lane:
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = Target()
            if key[0] not in self._topics.facts:
                self._shell.look_up(key[0])
        lane = self._lanes[journal_partition, key] = Lane(target)
        return lane

    def _send(self, lane: Lane) -> None:
        """Sends what may go out now."""
        flowing = lane.state is LaneState.FLOWING
        if not flowing and lane.state is not LaneState.CAREFUL:
            return
        number = self._shared if flowing else 0
        if lane.in_flight and lane.producer != number:
            return  # Until they are answered: a marker could overtake those of another producer.
        in_flight_max = IN_FLIGHT_MAX if flowing else 1
        while lane.queue and len(lane.in_flight) < in_flight_max:
            job = lane.queue[0]
            if self._topics.is_missing(job.partition.topic):
                # Also if it was gone once: perhaps it was created again long ago.
                if not lane.in_flight:
                    self._doubt(lane)
                return
            if not job.may_go:
                self._unplaced.setdefault(job.txid.partition, {})[lane] = None
                return
            headers = headers_of(job)
            size = len(headers[1][1] or b"") + MARKER_OVERHEAD_BYTES
            # A careful lane has one in flight, and needs no order.
            knows_us = not flowing or lane.target.known == self._known_as(number, job)
            if not self._has_room(lane.target, job.partition.topic, size, knows_us=knows_us):
                lane.target.held_back[lane] = None
                return
            lane.queue.popleft()
            job.size = size
            lane.target.bytes_in_flight += size
            lane.producer = number
            lane.in_flight.append(job)
            producer = Producer.SHARED if flowing else Producer.CAREFUL
            self._shell.append(job, headers, producer, lane.flow)

    def _known_as(self, number: int, job: Job) -> tuple[int, str, str]:
        """Returns what a broker knows a producer by: it forgets it with the topic."""
        facts = self._topics.facts.get(job.partition.topic)
        return number, job.partition.topic_id, "" if facts is None else facts.topic_id

    def _has_room(self, target: Target, topic: str, size: int, *, knows_us: bool) -> bool:
        if target.bytes_in_flight == 0:
            return True
        if not knows_us:
            return False
        facts = self._topics.facts.get(topic)
        limit = UNKNOWN_LIMIT_BYTES if facts is None else facts.record_max_bytes
        return target.bytes_in_flight + size + BATCH_OVERHEAD_BYTES <= limit

    def _tells(self, topic: str, size: int) -> bool:
        """Returns whether a look-up told that a topic takes less than this size, in bytes."""
        facts = self._topics.facts.get(topic)
        return facts is not None and facts.record_max_bytes < size

    # ---- what the producers answer --------------------------------------------------------------

    def written(self, job: Job, now_ms: int, offset: int | None = None) -> None:
        """Takes the acknowledgement of a marker or mode record.

        Args:
            job: what was written.
            now_ms: monotonic time in milliseconds.
            offset: its offset in the data partition, as the producer tells it.
        """
        lane = job.lane
        if lane.state is LaneState.FAILED:
            self._answered(lane, now_ms)
            return
        if lane.in_flight[0] is not job:
            self._disorder(lane, now_ms)
            return
        lane.in_flight.popleft()
        if lane.producer:
            lane.target.known = self._known_as(lane.producer, job)
        self._reach(job, offset, now_ms)
        lane.pause_ms = 0
        self._free(lane.target, job)
        topic = job.partition.topic
        if not lane.queue or not lane.refused_bytes or self._tells(topic, lane.refused_bytes):
            lane.refused_bytes = None
            if lane.state is LaneState.CAREFUL:
                self._turn(lane, LaneState.FLOWING)
        if lane.queue and self._tells(topic, job.size + BATCH_OVERHEAD_BYTES):
            self._shell.look_up(topic)  # It takes more by now: else one marker at a time goes out.
        if isinstance(job.part_of, Ending):
            self._end_written(job.part_of, job, offset)
        else:
            self._mode_written(job.part_of, job, offset, now_ms)
        self._send(lane)

    def _end_written(self, ending: Ending, job: Job, offset: int | None) -> None:
        if offset is None and job.points_to is not None and ending.is_live:
            # What may be trimmed depends on its offset, which this answer does not tell: that of a
            # copy serves as well.
            again = Job(job.lane, ending, job.partition, points_to=job.points_to)
            job.lane.queue.appendleft(again)
            return
        self._follow(ending, job, offset)
        count(job, gone=False)

    def _follow(self, ending: Ending, job: Job, offset: int | None) -> None:
        """Queues the marker of the sidecar behind its pointer, at this offset; None: there is none,
        as the main topic is gone."""
        if job.points_to is None or not ending.is_live:
            return  # The next owner writes both.
        if offset is not None:
            ending.pointers[job.points_to.key] = offset
        lane = self._lane(job.txid.partition, job.points_to.key)
        lane.queue.append(Job(lane, ending, job.points_to, pointer=offset))
        self._send(lane)

    def _reach(self, job: Job, offset: int | None, now_ms: int) -> None:
        # What an earlier tenure had in flight may lie below what another owner has written since.
        if not job.part_of.is_live:
            return
        journal, where = job.txid.partition, job.partition.identity
        partitions = self._reached.setdefault(journal, {})
        reached = partitions.get(where)
        if reached is None:
            reached = partitions[where] = Reached()
            topics = self._ids.setdefault(journal, {})
            topics.setdefault(where.topic, {})[where.topic_id] = None
        reached.at_ms = now_ms
        if offset is None:
            reached.is_untold = True
        else:
            reached.behind = max(offset + 1, reached.behind or 0)

    def _mode_written(self, write: ModeWrite, job: Job, offset: int | None, now_ms: int) -> None:
        if offset is None:
            # Its offset must be known, and this answer does not tell it.
            if write.is_live:
                job.lane.queue.append(Job(job.lane, write, job.partition))
        elif self._modes.written(write, job.partition.partition, offset, now_ms):
            self._shell.look_up(write.topic)

    def _disorder(self, lane: Lane, now_ms: int) -> None:
        """Takes an acknowledgement that came before one of an older marker."""
        # librdkafka keeps an older marker back, or has lost it, as when the topic is deleted and
        # created anew. Only a producer that is closed reports it for sure.
        self._fail(lane, Failure.STALLED)
        if lane.producer == self._shared:
            self._shared += 1
            self._shell.renew()
        self._answered(lane, now_ms)

    def not_written(self, job: Job, failure: Failure, now_ms: int) -> None:
        """Takes a producer's report that a marker was not written, or that it is not known."""
        lane = job.lane
        if lane.state is not LaneState.FAILED:
            self._fail(lane, failure)
        assert lane.failure is not None
        if failure.value > lane.failure.value:
            # A stopped producer refuses new records at once, before it reports what stopped it.
            lane.failure = failure
        self._answered(lane, now_ms)

    def _fail(self, lane: Lane, failure: Failure) -> None:
        self._turn(lane, LaneState.FAILED)
        lane.failure, lane.answered = failure, 0

    def _answered(self, lane: Lane, now_ms: int) -> None:
        lane.answered += 1
        if lane.answered < len(lane.in_flight):
            return
        jobs, lane.in_flight = lane.in_flight, deque()
        # What an ended tenure left behind is written again by the next one, in its own order.
        lane.queue.extendleft(j for j in reversed(jobs) if j.part_of.is_live)
        lane.flow = Flow()
        failure = lane.failure
        assert failure is not None
        if lane.producer == self._shared and failure is not Failure.FULL:
            self._shared += 1
            self._shell.renew()
        for job in jobs:
            self._free(lane.target, job)
        if failure is Failure.TOO_LARGE:
            topic = jobs[0].partition.topic
            size = BATCH_OVERHEAD_BYTES + sum(job.size for job in jobs)
            if lane.refused_bytes != 0:
                lane.refused_bytes = 0 if self._tells(topic, size) else size
            self._shell.look_up(topic)
        lane.doubted = failure is Failure.NO_TOPIC and bool(lane.queue) and not lane.doubted
        if lane.doubted:
            self._doubt(lane)
        else:
            self._pause(lane, now_ms)

    def _free(self, target: Target, job: Job) -> None:
        target.bytes_in_flight -= job.size
        if target.held_back:
            waiting, target.held_back = target.held_back, {}
            for lane in waiting:
                self._send(lane)

    def _pause(self, lane: Lane, now_ms: int) -> None:
        self._turn(lane, LaneState.PAUSED)
        lane.pause_ms = min(max(lane.pause_ms * 2, RETRY_MIN_MS), RETRY_MAX_MS)
        self._entered += 1
        heapq.heappush(self._due, (now_ms + lane.pause_ms, self._entered, lane))
        self._shell.wake_at(now_ms + lane.pause_ms)

    def tick(self, now_ms: int) -> None:
        """Goes on with the lanes whose turn it is, and looks up topics again."""
        self._send_later(now_ms)
        while self._due and self._due[0][0] <= now_ms:
            lane = heapq.heappop(self._due)[2]
            self._go_on(lane)
        while self._look_at and self._look_at[0][0] <= now_ms:
            topic = heapq.heappop(self._look_at)[1]
            if topic in self._looks or self._modes.waits_for(topic):
                self._shell.look_up(topic)
        due_ms = [heap[0][0] for heap in (self._due, self._look_at) if heap]
        if due_ms:
            self._shell.wake_at(min(due_ms))

    def _send_later(self, now_ms: int) -> None:
        ranges = 0
        while self._later and ranges <= RANGES_MAX:
            lane = next(iter(self._later))
            del self._later[lane]
            if lane.queue:
                job = lane.queue[0]
                if isinstance(job.part_of, Ending):
                    branches = job.part_of.transaction.branches
                    ranges += len(branches.get(job.partition.key, ()))
                self._send(lane)
        if self._later:
            self._shell.wake_at(now_ms)

    def _go_on(self, lane: Lane) -> None:
        failure, lane.failure = lane.failure, None
        careful = failure is not None and failure.is_of_the_partition
        self._turn(lane, LaneState.CAREFUL if careful else LaneState.FLOWING)
        self._send(lane)

    def watch(self) -> None:
        """Fails the lanes that have got no answer since the call before this one."""
        stalled = [lane for lane in self._lanes.values() if self._is_stalled(lane)]
        for lane in stalled:
            if lane.state is LaneState.FLOWING:
                self._fail(lane, Failure.STALLED)
        if stalled:
            self._shared += 1
            self._shell.renew()

    def _is_stalled(self, lane: Lane) -> bool:
        # An older producer is being closed, and the careful one has a time-out: both report.
        if not lane.in_flight or lane.producer != self._shared:
            lane.watched = None
            return False
        now = lane.in_flight[0], lane.answered
        watched, lane.watched = lane.watched, now
        return watched == now

    # ---- topics that may be gone ----------------------------------------------------------------

    def _doubt(self, lane: Lane) -> None:
        self._turn(lane, LaneState.DOUBTFUL)
        topic = lane.queue[0].partition.topic
        self._looks.setdefault(topic, {})[lane] = None
        self._shell.look_up(topic)

    def looked_up(self, topic: str, now_ms: int) -> None:
        """Goes on after a look-up whose answer, if there is one, `topics` has been told."""
        for lane in list(self._looks.get(topic, ())):
            if self._is_settled(lane, now_ms):
                del self._looks[topic][lane]
                self._go_on(lane)
        for write, partition in self._modes.looked_up(topic, now_ms):
            self._queue(write, partition)
        if not self._looks.get(topic):
            self._looks.pop(topic, None)
        if topic in self._looks or self._modes.waits_for(topic):
            heapq.heappush(self._look_at, (now_ms + LOOK_PAUSE_MS, topic))
            self._shell.wake_at(now_ms + LOOK_PAUSE_MS)

    def _is_settled(self, lane: Lane, now_ms: int) -> bool:
        """Gives up the markers whose topic is gone. Returns whether the next one may go out."""
        for job in reversed(lane.queue):
            if job.doubted_ms is not None:
                break
            job.doubted_ms = now_ms
        while lane.queue:
            job = lane.queue[0]
            if job.doubted_ms is None:
                job.doubted_ms = now_ms  # It came late, before others (`write_late`).
            # It may have been decided behind the first look-ups that found none: when the topic was
            # created again, and brokers did not tell of it yet (trap 272).
            existence = self._topics.existence(job.partition.topic, now_ms, from_ms=job.doubted_ms)
            if existence is not Existence.GONE:
                return existence is Existence.ALIVE
            lane.queue.popleft()
            if isinstance(job.part_of, Ending):
                # The sidecar outlives its main topic: its own transaction must end there, too.
                self._follow(job.part_of, job, None)
                count(job, gone=True)
            else:
                self._modes.give_up(job.part_of)
        return True

    # ---- what others ask ------------------------------------------------------------------------

    @property
    def has_lanes(self) -> bool:
        """Whether there are lanes; without one there is no marker to write."""
        return bool(self._lanes)

    def backlog(self, journal_partition: int, partition: TopicPartition) -> int:
        """Returns the number of markers of a journal partition that a data partition lacks."""
        lane = self._lanes.get((journal_partition, partition))
        return 0 if lane is None else len(lane.queue) + len(lane.in_flight)

    def backlogs(self) -> dict[int, tuple[int, int]]:
        """Returns journal partition → (markers not written, most of one data partition)."""
        found: dict[int, tuple[int, int]] = {}
        for (journal_partition, _), lane in self._lanes.items():
            total, longest = found.get(journal_partition, (0, 0))
            waiting = len(lane.queue) + len(lane.in_flight)
            found[journal_partition] = total + waiting, max(longest, waiting)
        return found

    def first(self, journal_partition: int, partition: TopicPartition) -> int | None:
        """Returns the lowest sequence of a marker or mode record of a journal partition that a data
        partition lacks; None if it lacks none.

        What an earlier tenure has in flight counts too, and may lie behind what the present one has
        in the queue.
        """
        lane = self._lanes.get((journal_partition, partition))
        if lane is None:
            return None
        firsts = (*lane.in_flight, lane.queue[0]) if lane.queue else lane.in_flight
        return min((job.sequence for job in firsts), default=None)

    def reached(self, journal_partition: int, partition: PartitionId) -> int | None:
        """Returns the offset behind the last marker or mode record that the present tenure of a
        journal partition has written to a data partition; None if it has written none."""
        reached = self._reached.get(journal_partition, {}).get(partition)
        return None if reached is None else reached.behind

    def reached_beside(
        self, journal_partition: int, partition: PartitionId
    ) -> WrittenBeside | None:
        """Returns what the present tenure of a journal partition has written to a data partition
        under other topic ids; None if it has written nothing under any."""
        ids = self._ids.get(journal_partition, {}).get(partition.topic, {})
        partitions = self._reached.get(journal_partition, {})
        others = [partition._replace(topic_id=i) for i in ids if i != partition.topic_id]
        found = [partitions[each] for each in others if each in partitions]
        if not found:
            return None
        told = [r.behind for r in found if r.behind is not None and not r.is_untold]
        behind = max(told) if len(told) == len(found) else None
        return WrittenBeside(behind, max(r.at_ms for r in found))

    def forget(self, journal_partition: int) -> None:
        """Drops the queued markers of a journal partition that this coordinator must load again.

        Markers in flight stay: their decisions are durable, and the lane keeps its order.
        """
        self._modes.forget(journal_partition)
        self._reached.pop(journal_partition, None)
        self._ids.pop(journal_partition, None)
        self._unplaced.pop(journal_partition, None)
        for key, lane in self._lanes.items():
            if key[0] == journal_partition:
                lane.queue.clear()
                for job in lane.in_flight:
                    job.part_of.abandon()

    def sweep(self) -> None:
        """Drops lanes that have nothing to do: topics and partitions come and go."""
        for key, lane in list(self._lanes.items()):
            resting = lane.state in (LaneState.FLOWING, LaneState.CAREFUL)
            if resting and not lane.queue and not lane.in_flight:
                lane.target.held_back.pop(lane, None)
                del self._lanes[key]
        used = {key for _, key in self._lanes}
        for partition in [p for p in self._targets if p not in used]:
            del self._targets[partition]

    def _turn(self, lane: Lane, state: LaneState) -> None:
        assert lane.state in VALID_PREVIOUS[state], f"{lane.state} → {state}"
        lane.state = state
