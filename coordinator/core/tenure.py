"""One tenure: a journal partition served under one OWNER epoch. Pure: joins the shard to a shell.

The append is the decision. A command is decided on the state as it will be when everything before
it is durable. Its records are appended at predicted offsets, and its reply is parked until they are
acknowledged at exactly those offsets. The rules that make this sound:

- Replies are released strictly in append order. The first surprise (a gap, an error, a time-out, an
  unknown offset) ends the tenure, and every later acknowledgement is void.
- A reply that needs no record is parked behind the last append in flight: a retried commit must not
  be told "committed" while the decision may still be lost (trap 1).
- For an answer that could be stale, the tenure also asks for the journal's end after the request
  came, and waits until everything below that end is acknowledged as this owner's own.
- A surprise fails all parked replies with a retriable error. The next owner, which may be the same
  process, serves in a tenure of a new epoch, with a shard loaded from the journal.
- Sizes are checked before the records are applied: a command that is too large fails its own client
  alone (trap 6).

The shell appends, answers and asks; it has the I/O and the clock. Simulation and search run this
very code with shells of their own.

Source: Transactional Messaging in Kafka, "Transaction coordinator" and "Failure cases".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Final, Protocol, TypeAlias

from ...journal.control import TopicPartition
from ...journal.errors import CoordinatorLoadingError, LogtxError, RequestTooLargeError
from ...journal.places import GONE, PartitionId, Placed
from ...journal.position import Journal
from ...journal.records.codec import encode_entry
from ...journal.records.types import Entry, JournalRecord
from ...journal.txid import TxId
from ...journal.value import value
from ..protocol import commands
from .adopting import Answered, Answers, HandedOver, refusing
from .data_partitions import Topics
from .decision import (
    Decision,
    Effect,
    EndSidecars,
    Fenced,
    HandedFinished,
    HandOver,
    Instant,
    PlacesGiven,
    Ref,
    WriteLateMarkers,
    WriteMarkers,
    WriteOffsets,
)
from .floors import Floors, KnownWrites
from .placing import Placer, PlaceWrites, Question
from .shard import Shard
from .snapshot import SnapshotTaker

EFFECTS_MAX: Final = 500
"""Effects carried out in one turn: 500 transactions' markers hold an event loop for 50 ms.

More holds it longer; fewer makes a new owner take more ticks to redo what was left undone.
"""
DUE_MAX: Final = 500
"""Decisions that no client asks for in one turn, about 10 ms. A hundred thousand transactions may
expire at once; with more in one turn the others would believe that the owner is gone."""
ADOPTED_MAX: Final = 200
"""Transactions that are adopted in one turn, about 10 ms; more would hold the event loop longer."""
RECORD_MAX_BYTES: Final = 900_000
"""Largest journal record. Larger comes too near to Kafka's default limit of 1 MiB for a batch, at
which the append would fail and end the tenure; smaller refuses more requests."""


class Shell(KnownWrites, Protocol):
    """What a tenure needs of the outside world. Every call returns at once; results come later."""

    def append(self, predicted: int, value: bytes) -> None:
        """Appends a journal record. Calls `Tenure.acknowledged` later, in the order of appends."""

    def ask_end(self) -> None:
        """Asks for the journal's end offset. Calls `Tenure.end_told` later; one at a time."""

    def answer(self, ref: Ref, reply: commands.Reply) -> None:
        """Gives a client its reply: once per `Ref`."""

    def look_up(self, ref: Ref, command: commands.Command, txid: TxId) -> None:
        """Answers from a transaction's fate in the journal, by `answers.answer_fate`."""

    def execute(self, effect: Effect) -> None:
        """Carries out an effect: each says whom to tell when it is durable.

        Markers and offsets: `Tenure.written`. The tenure keeps to itself what concerns places and
        other homes: `PlaceWrites`, `PlacesGiven`, `HandOver`, `HandedFinished`.
        """

    def first_marker(self, key: TopicPartition) -> int | None:
        """Returns the commit sequence of this journal partition's first marker that a data
        partition lacks, those in flight among them; None if it lacks none. A mode record counts
        with the offset of its MODE record.
        """

    def places_given(self) -> None:
        """Learns that places became durable. Markers that `Placer.may_mark` held back may go out,
        and the next round may begin.
        """

    def answers_given(self) -> None:
        """Learns that other homes answered. Markers that `Tenure.may_mark` held back may go out."""

    def close_session(self, producer_id: str, nonce: int, error: LogtxError) -> None:
        """Ends a producer's session for good."""

    def surprised(self, why: str) -> None:
        """Learns that the tenure is over: another process may own the partition, or an append is
        lost.
        """


@value(frozen=True, slots=True)
class _Answer:
    ref: Ref
    reply: commands.Reply


@value(frozen=True, slots=True)
class _LookUp:
    ref: Ref
    command: commands.Command
    txid: TxId


@value(frozen=True, slots=True)
class _Doubt:
    # Only waits for the journal's end; has no reply.
    pass


@value(frozen=True, slots=True)
class _GoOn:
    # The end of a pause.
    pass


@value(frozen=True, slots=True)
class _Recorded:
    # A mode record that became durable during a pause.
    partition: PartitionId
    offset: int
    partitions: Collection[int]


@value(frozen=True, slots=True)
class _Kept:
    command: commands.Command
    ref: Ref
    doubt: LogtxError | None


@value(frozen=True, slots=True)
class _Act:
    # What is to be done when all records of now are durable.
    act: Callable[[], None]


_Item: TypeAlias = _Answer | _LookUp | Fenced | _Doubt | _GoOn | _Act


@value(frozen=True, slots=True)
class _Parked:
    item: _Item
    behind: int
    """The item is released when everything below this offset is acknowledged."""


class Tenure:
    """Serves a journal partition from one valid OWNER record to the first surprise."""

    def __init__(self, shard: Shard, shell: Shell) -> None:
        """Takes over a shard; `begin` starts to serve it.

        Args:
            shard: replayed up to and including this owner's OWNER record.
            shell: what the tenure acts through.
        """
        self.shard = shard
        self.over = False
        """Whether the tenure ended. From then on nothing has an effect."""
        self.acknowledged_end = shard.next_offset
        """Every record below this offset is durable, and this owner wrote or read it."""
        self.truncated_at: int | None = None
        """End of the journal before the broker lost its tail, if that was the surprise."""
        self.snapshot_offset = shard.snapshot_offset
        """First chunk of the latest snapshot of which every chunk is acknowledged."""
        self.quiescing = False
        """Whether nothing is decided any more, because another owner is to go on from here."""
        self._shell = shell
        self._taker: SnapshotTaker | None = None
        """The snapshot that is being taken, until all of it is acknowledged."""
        self._snapshot_end = 0
        """Offset behind the last chunk that it appended."""
        self._parked: deque[_Parked] = deque()
        self._asking: list[_Parked] = []
        """What waits for the next question for the journal's end."""
        self._asked: list[_Parked] = []
        """What waits for the question that is on its way."""
        self._asked_at = 0
        """`acknowledged_end` when it was asked. Later records may lie behind the answer."""
        self._now_ms = 0
        """Monotonic time when the log answered last. What is told with a time waited for that."""
        self._todo: deque[Effect] = deque()
        """Effects that are counted in `_unwritten` and not carried out yet."""
        self._unwritten: dict[int, int] = {}
        """BEGIN → number of its effects that are not durable yet."""
        self._gone_behind = 0
        """Offset behind the latest PLACED record that found a topic gone."""
        self._gone: dict[int, tuple[TopicPartition, ...]] = {}
        """BEGIN → its partitions that don't exist any more and got no marker."""
        self._pointers: dict[int, Mapping[TopicPartition, int]] = {}
        """BEGIN → sidecar partition → offset of the pointer, of what has some."""
        self.placer = Placer(shell.first_marker)
        """What is durably decided and not durably placed, and what to ask for next."""
        self._floors = Floors(shell)
        self.handed = HandedOver()
        """What is durably decided, handed over to other homes, and not durably finished."""
        self.answers = Answers()
        """What other homes have not answered."""
        self._recorded: list[_Recorded] = []
        self.more_due = False
        """Whether the latest tick left decisions that are due."""
        self._pausing = False
        self._kept: deque[_Kept] = deque()
        """Commands that arrived during a pause, decided at the first tick after it."""

    @property
    def in_flight(self) -> int:
        """Number of appends that are not acknowledged."""
        return self.shard.next_offset - self.acknowledged_end

    @property
    def parked(self) -> int:
        """Number of replies and other items that wait for an append or for the journal's end."""
        return len(self._parked) + len(self._asked) + len(self._asking)

    def begin(self, now: Instant, topics: Topics) -> None:
        """Redoes what earlier owners may have left undone, and does what is due.

        If there is a lot to redo, does the first `EFFECTS_MAX` now and the rest in later ticks. If
        an owner said nothing until all of it was on its way, the others would believe that it does
        not serve.
        """
        for handed in self.shard.handed.all():
            self.handed.replay_decided(handed, ())
        self._execute(self.shard.loaded(now))
        self.tick(now, topics)

    def submit(
        self,
        command: commands.Command,
        ref: Ref,
        now: Instant,
        topics: Topics,
        doubt: LogtxError | None = None,
    ) -> None:
        """Decides a command now, or after the pause. Its reply follows as soon as it is safe.

        Args:
            command: what a client asks.
            ref: the caller's token, given back with the reply.
            now: the time.
            topics: what is known of data topics. The caller has looked up those that the command
                names.
            doubt: why a command that names them can't be decided; None if it can.
        """
        assert not self.over, "the caller refuses what comes after the end"
        assert not self.quiescing, "the caller keeps what comes while the partition is given away"
        if self._pausing or self._kept:
            self._kept.append(_Kept(command, ref, doubt))
        else:
            self._decide(_Kept(command, ref, doubt), now, topics)
        self.tick(now, topics)

    def _decide(self, kept: _Kept, now: Instant, topics: Topics) -> None:
        command, ref = kept.command, kept.ref
        decision = self.shard.handle(command, ref, now, topics, kept.doubt)
        self._apply(decision)
        if decision.look_up is not None:
            item = _LookUp(ref, command, decision.look_up)
            self._ask(_Parked(item, self.shard.next_offset))

    def tick(self, now: Instant, topics: Topics) -> None:
        """Decides what was kept during a pause, and does what is due.

        Also carries out the next `EFFECTS_MAX` waiting effects. If more than `DUE_MAX` decisions
        are due, `more_due` is set, and the caller ticks again soon.

        Args:
            now: the time.
            topics: what is known of data topics.
        """
        while self._kept and not self._resting:
            self._decide(self._kept.popleft(), now, topics)
        self._carry_out()
        self.more_due = False
        for _ in range(DUE_MAX):
            if self._resting or (decision := self.shard.due(now, topics)) is None:
                return
            self._apply(decision)
        self.more_due = True

    @property
    def _resting(self) -> bool:
        """Whether nothing is decided, for the moment or for good."""
        return self.over or self.quiescing or self._pausing

    def pause(self) -> None:
        """Decides nothing until the journal's end proves that this is still the owner.

        For a process that stood still: another coordinator may own the partition by now. A record
        that this one appended would end the other's epoch, as any foreign record does.
        """
        if not self._resting:
            self._pausing = True
            self.placer.drop()
            self._ask(_Parked(_GoOn(), 0))

    def _go_on(self) -> None:
        self._pausing = False
        if self.quiescing:
            return
        for begin in [b for b, left in self._unwritten.items() if left == 0]:
            self._finish(begin)
        recorded, self._recorded = self._recorded, []
        for each in recorded:
            self.mode_recorded(each.partition, each.offset, each.partitions)

    def end_hour(self, groups: Collection[str], bindings: Collection[str]) -> None:
        """Ends an hour of service, and forgets what nobody used for long.

        Args:
            groups: those of `Ages.idle_groups` that have no member.
            bindings: those of `Ages.idle_bindings` whose groups have no offsets any more.
        """
        if not self._resting:
            self._apply(self.shard.end_hour(groups, bindings))

    def forget_rest(self) -> bool:
        """Forgets some of the producers for which the hour's record had no room.

        Returns:
            Whether there may be more of them.
        """
        if self._resting:
            return False
        decision = self.shard.forget_rest()
        self._apply(decision)
        return bool(decision.records)

    def snapshot(self) -> bool:
        """Appends the next chunk of the current snapshot, or the first of a new one.

        A snapshot is complete when `snapshot_offset` names it. Until then no checkpoint may point
        to it: one of its chunks may be lost, or a record that its rows rely on (trap 9).

        Returns:
            Whether there are further chunks to append.

        Raises:
            RequestTooLargeError: a chunk does not fit; the snapshot is given up.
        """
        if self._resting:
            return False
        taker = self._taker or SnapshotTaker(self.shard)
        if taker.done:
            return False  # Its last chunk is not acknowledged yet.
        self._taker = None
        self._append((taker.chunk(),))
        self._taker, self._snapshot_end = taker, self.shard.next_offset
        return not taker.done

    def quiesce(self) -> None:
        """Stops deciding, so that soon nothing is in flight. Commands in flight are still answered.

        The next owner writes the markers again that this owner does not finish any more.
        """
        self.quiescing = True
        self.placer.drop()

    def doubt(self) -> None:
        """Checks the journal's end, because another coordinator may own the partition."""
        self._ask(_Parked(_Doubt(), 0))

    def attach(self, producer_id: str) -> None:
        """Notes that a producer's stream is connected."""
        self.shard.attach(producer_id)

    def detach(self, producer_id: str, nonce: int, now: Instant) -> None:
        """Notes that a producer's stream broke."""
        self.shard.detach(producer_id, nonce, now)

    def forget(self, refs: Collection[Ref]) -> None:
        """Forgets requests that wait, or were kept during a pause, whose client went away."""
        gone = frozenset(map(id, refs))
        # Else a consumer would be attached by a stream that has ended, and never leave (trap 152).
        self._kept = deque(kept for kept in self._kept if id(kept.ref) not in gone)
        self.shard.forget_waiting(refs)

    def consumer_gone(self, group: str, consumer: int, now: Instant) -> None:
        """Notes that the stream of a queue's consumer broke."""
        self.shard.queues.dispatch.detach(group, consumer, now)

    def queue_ends_told(self, ends: Mapping[PartitionId, int], now: Instant) -> None:
        """Takes ends of partitions whose messages consumers of queues wait for.

        Args:
            ends: partition → an end that it has reached. Those of `Dispatch.wanted` are asked for.
            now: the time.
        """
        if self._resting:
            return
        queues = self.shard.queues
        queues.dispatch.ends_told(ends.items())
        while not self._resting and (decision := queues.due(now)) is not None:
            self._apply(decision)

    def acknowledged(self, predicted: int, offset: int | None, now_ms: int, why: str = "") -> None:
        """Takes the log's answer to an append.

        Args:
            predicted: the offset that was predicted for the record.
            offset: the offset that it got; None if the append failed or the offset is unknown.
            now_ms: monotonic time.
            why: the log's error in that case.
        """
        if self.over:
            return
        self._now_ms = now_ms
        if offset != predicted:
            if offset is not None and offset < self.acknowledged_end:
                self.truncated_at = self.acknowledged_end
            what = why or f"offset {offset}"
            self._surprised(f"the append predicted at {predicted} was answered by {what}")
            return
        if predicted != self.acknowledged_end:
            # That acknowledgements come in order is the shell's promise. If it were broken, this
            # one would be taken for a proof of those before it, which may be lost (trap 2).
            self._surprised(f"the append at {predicted} was acknowledged before earlier ones")
            return
        self.acknowledged_end = offset + 1
        if self._taker is not None and self._taker.done and offset + 1 >= self._snapshot_end:
            self.snapshot_offset, self._taker = self._taker.first, None
        effects = self.shard.acknowledge(offset)
        self._release()
        if not self.quiescing:
            self._execute(effects)

    def end_told(self, end: int | None, now_ms: int, why: str = "") -> None:
        """Takes the answer to `Shell.ask_end`: the journal's end at some time after the question.

        Args:
            end: offset that the next record gets; None if the log did not answer.
            now_ms: monotonic time.
            why: the log's error in that case.
        """
        if self.over or self.quiescing:
            # While quiescing, the end may lie behind the successor's OWNER record: that is no
            # surprise, and no proof either. Those who asked are answered when the tenure ends.
            return
        self._now_ms = now_ms
        asked, self._asked = self._asked, []
        if end is not None and end > self.shard.next_offset:
            self._asked = asked
            self._surprised(f"the journal ends at {end}, not {self.shard.next_offset}")
            return
        if end is not None and end < self._asked_at:
            # The tail is lost. An owner that appends nothing would not notice otherwise, and would
            # go on with a state that the journal no longer has.
            self._asked, self.truncated_at = asked, self.acknowledged_end
            self._surprised(f"the journal ends at {end}, below what was acknowledged")
            return
        for parked in asked:
            if end is None and isinstance(parked.item, _GoOn):
                self._asking.append(parked)
            elif end is None:
                error = CoordinatorLoadingError(f"the journal does not answer: {why}")
                self._fail(parked.item, error)
            else:
                self._park(_Parked(parked.item, max(parked.behind, end)))
        self._ask_next()

    def written(
        self,
        begin: int,
        gone: tuple[TopicPartition, ...] = (),
        pointers: Mapping[TopicPartition, int] | None = None,
    ) -> None:
        """Notes that an effect of a transaction is durable, and finishes it after the last one.

        Args:
            begin: offset of the transaction's BEGIN.
            gone: its partitions that don't exist any more and got no marker.
            pointers: sidecar partition → offset of its pointer in the main partition; None: it has
                none.
        """
        if self.over or self.quiescing:
            return
        if gone:
            self._gone[begin] = (*self._gone.get(begin, ()), *gone)
        if pointers:
            self._pointers[begin] = {**self._pointers.get(begin, {}), **pointers}
        self._unwritten[begin] -= 1
        if self._unwritten[begin] == 0 and not self._pausing:
            self._finish(begin)

    def _finish(self, begin: int) -> None:
        del self._unwritten[begin]
        gone, pointers = self._gone.pop(begin, ()), self._pointers.pop(begin, {})
        self._apply(self.shard.finish(begin, gone, pointers))

    # ---- places and modes -----------------------------------------------------------------------

    def place_question(self, now_ms: int) -> Question | None:
        """Returns the partitions whose ends to ask for now; None if there is nothing to ask.

        There is one question at a time. Ask again when something may have changed: effects were
        carried out, a marker was written, the round ended, or the time is `wake_ms`.

        Args:
            now_ms: monotonic time.
        """
        # While effects wait, the lanes do not have all markers of lower sequences.
        if self._resting or self._todo:
            return None
        return self.placer.ask(now_ms)

    def ends_told(self, question: Question, ends: Mapping[PartitionId, int], now: Instant) -> None:
        """Takes the ends of partitions, and places what was decided before the question.

        Args:
            question: what was asked. The answer to a question that was dropped is ignored.
            ends: partition → its end as its leader told it, or `GONE`. Those that could not be
                asked are missing; they are asked again later.
            now: the time.
        """
        if self._resting:
            return
        raised = self._floors.raised(ends, self.shard, question.asked_ms, now.monotonic_ms)
        found = self.placer.answered(question, raised, now.monotonic_ms)
        if found is not None and not self._place(question.upto, found):
            self.placer.drop()

    def _place(self, upto: int, ends: Mapping[PartitionId, int]) -> bool:
        """Places what waits at these ends, in as many records as it takes: each partition stands
        for itself (R5). Returns whether anything was appended.
        """
        decision = self.shard.place(upto, ends)
        if not decision.records:
            return False
        try:
            self._append(decision.records)
        except RequestTooLargeError:
            if len(ends) == 1:
                raise
            items = list(ends.items())
            half = len(items) // 2
            placed = [self._place(upto, dict(share)) for share in (items[:half], items[half:])]
            return any(placed)
        for record in decision.records:
            if isinstance(record, Placed):
                self._finish_with(record)
        return True

    def _finish_with(self, placed: Placed) -> None:
        """Finishes the transactions for which nothing is left but the places of a record in flight.

        Their COMMITTED stands behind it in the journal: it counts only if that does. So they need
        not wait for its acknowledgement, and both go in one batch.
        """
        if GONE in placed.ends.values():
            self._gone_behind = self.shard.next_offset
        if self.acknowledged_end < self._gone_behind:
            return  # Late markers may follow, also from one in flight since a pause (trap 260).
        for begin in self.placer.whole_by(placed):
            transaction = self.shard.transactions.get(begin)
            # What is adopted has none; nor what a record finished that is on its way since before a
            # pause. Sidecars are ended once the places are durable.
            if transaction is None or transaction.since or self._unwritten[begin] != 1:
                continue
            self._finish(begin)

    # ---- homes of other journals ----------------------------------------------------------------

    def adopt(self, journal: Journal, handed: HandedOver) -> bool:
        """Adopts what another journal hands over, if this is the home that it names.

        Args:
            journal: the journal that decides.
            handed: what its valid, durable records say.

        Returns:
            Whether there may be more.
        """
        if not handed:
            return False
        for _ in range(ADOPTED_MAX):
            if self._resting:
                return False
            record = self.shard.adopted.adopt(journal, handed, self.shard.config.adopt_bytes)
            if record is None:
                return False
            try:
                self._append((record,))
            except RequestTooLargeError:
                self._append((refusing(record),))
            if record.more:
                return True  # To encode one such record takes as long as a turn should.
        return True

    def when_durable(self, act: Callable[[], None]) -> None:
        """Calls `act` as soon as all records that were decided so far are durable; never, if they
        are lost."""
        if not (self.over or self.quiescing):
            self._park(_Parked(_Act(act), self.shard.next_offset))

    def answered(self, answers: Sequence[Answered]) -> None:
        """Takes what other homes answered, by durable records. What they refuse is marked."""
        if self.over or self.quiescing:
            return
        # One transaction after another: if all were taken at once, the first one's late marker
        # would be followed by what waited for both, before the second one's is there.
        in_order = sorted(answers, key=lambda each: each.sequence)
        for begin, group in groupby(in_order, key=lambda each: each.begin):
            refused, whole = self.answers.take(group)
            if refused:
                transaction = self.shard.transactions.get(begin)
                assert transaction is not None, "what lacks an answer is not finished"
                self._unwritten[begin] += 1
                where = tuple(each.partition.key for each in refused)
                self._shell.execute(WriteLateMarkers(transaction, where))
            if whole:
                self.written(begin)
        if answers:
            self._shell.answers_given()

    def may_mark(self, partition: PartitionId, sequence: int) -> bool:
        """Returns whether a marker, or mode record, of this sequence may go out there now (R4)."""
        placed = self.placer.may_mark(partition, sequence)
        return placed and self.answers.may_mark(partition, sequence)

    @property
    def wake_ms(self) -> int | None:
        """When `place_question` may have something to ask again; None: not with time alone."""
        return None if self._resting else self.placer.wake_ms

    def mode_recorded(
        self, partition: PartitionId, offset: int, partitions: Collection[int]
    ) -> None:
        """Notes that a mode record is durable. The last one ends the switch.

        Args:
            partition: the data partition.
            offset: offset of the mode record in it.
            partitions: all partitions of the topic, as far as is known.
        """
        if self.over or self.quiescing:
            return
        if self._pausing:
            self._recorded.append(_Recorded(partition, offset, partitions))
        else:
            self._apply(self.shard.mode_recorded(partition, offset, partitions))

    def mode_ends(
        self, topic: str, topic_id: str, ends: Mapping[int, int], asked_ms: int, now_ms: int
    ) -> bool:
        """Takes the ends of all partitions of a topic that is switched without mode records.

        Args:
            topic: name of the topic.
            topic_id: its id.
            ends: partition → its end, asked for after `WriteModeRecords` was carried out.
            asked_ms: when they were asked for; monotonic.
            now_ms: when they were told.

        Returns:
            Whether the switch is ended. If not, as while something is to be placed in the topic,
            or until ends were looked at twice, ask for them again after a pause.
        """
        if self._resting:
            return False
        told = {PartitionId(topic, p, topic_id): end for p, end in ends.items()}
        if (proved := self._floors.proved(told, asked_ms, now_ms)) is None:
            return False
        since = {partition.partition: end for partition, end in proved.items()}
        decision = self.shard.mode_ends(topic, topic_id, since)
        self._apply(decision)
        return bool(decision.records)

    def mode_published(self, topic: str) -> None:
        """Notes that readers are told of a topic's mode: `PublishMode` is carried out."""
        if not (self.over or self.quiescing):
            self.shard.published.add(topic)

    # ---- the end --------------------------------------------------------------------------------

    def end(self, error: LogtxError) -> None:
        """Ends the tenure: all waiting requests get the error, and no call has an effect."""
        self.over = True
        self.placer.drop()
        waiting = [*self._parked, *self._asked, *self._asking]
        self._parked.clear()
        self._asked, self._asking = [], []
        for parked in waiting:
            self._fail(parked.item, error)
        while self._kept:
            self._shell.answer(self._kept.popleft().ref, error)

    # ---- one decision ---------------------------------------------------------------------------

    def _apply(self, decision: Decision) -> None:
        shard = self.shard
        try:
            self._append(decision.records)
        except RequestTooLargeError as refusal:
            for ref, _ in decision.replies:
                self._park(_Parked(_Answer(ref, refusal), shard.next_offset))
            return
        for ref, reply in decision.replies:
            parked = _Parked(_Answer(ref, reply), shard.next_offset)
            if decision.fresh:
                self._ask(parked)
            else:
                self._park(parked)
        for fenced in decision.fenced:
            # Parked like a reply: if the fencing record is lost, the session must stay open.
            self._park(_Parked(fenced, shard.next_offset))

    def _append(self, records: Sequence[JournalRecord]) -> None:
        """Applies and appends the records of a decision: all of them, or none.

        Raises:
            RequestTooLargeError: a record does not fit; nothing was applied or appended.
        """
        shard = self.shard
        entries = [shard.entry(record, ahead) for ahead, record in enumerate(records)]
        raws = [_encode(entry) for entry in entries]
        for entry, raw in zip(entries, raws, strict=True):
            offset = shard.next_offset
            shard.replay(offset, entry)
            self._shell.append(offset, raw)

    def _execute(self, effects: Iterable[Effect]) -> None:
        effects = tuple(effects)
        # Counts all before it carries out the first: if the offsets were written at once, the
        # transaction would be finished before its markers are.
        for effect in effects:
            match effect:
                case WriteOffsets(begin=begin) | PlaceWrites(begin=begin):
                    self._unwritten[begin] = self._unwritten.get(begin, 0) + 1
                case HandOver(handed):
                    begin = handed.txid.offset
                    self._unwritten[begin] = self._unwritten.get(begin, 0) + 1
                case (
                    WriteMarkers(transaction)
                    | WriteLateMarkers(transaction)
                    | EndSidecars(transaction)
                ):
                    begin = transaction.begin
                    self._unwritten[begin] = self._unwritten.get(begin, 0) + 1
        behind = bool(self._todo)
        self._todo.extend(effects)
        if not behind:
            self._carry_out()

    def _carry_out(self) -> None:
        # In order, for markers must be written in commit-sequence order.
        for _ in range(EFFECTS_MAX):
            if not self._todo or self.over or self.quiescing:
                return  # The next owner redoes everything that is left here.
            match effect := self._todo.popleft():
                case PlaceWrites():
                    self.placer.place(effect)
                case PlacesGiven(placed):
                    for begin in self.placer.placed(placed):
                        if begin in self._unwritten:  # Else it was finished with the record.
                            self.written(begin)
                    self._shell.places_given()
                case HandOver(handed):
                    self.handed.replay_decided(handed, ())
                    self.answers.wait(handed)
                case HandedFinished(begin):
                    self.handed.replay_finished(begin)
                case _:
                    self._shell.execute(effect)

    # ---- replies --------------------------------------------------------------------------------

    def _park(self, parked: _Parked) -> None:
        self._parked.append(parked)
        self._release()

    def _release(self) -> None:
        while self._parked and self._parked[0].behind <= self.acknowledged_end:
            self._tell(self._parked.popleft().item)

    def _ask(self, parked: _Parked) -> None:
        """Parks a reply that could be stale until the journal's end proves that it is not."""
        self._asking.append(parked)
        if not self._asked:
            self._ask_next()

    def _ask_next(self) -> None:
        if self._asking:
            self._asked, self._asking = self._asking, []
            self._asked_at = self.acknowledged_end
            self._shell.ask_end()

    def _tell(self, item: _Item) -> None:
        match item:
            case _Answer(ref, reply):
                self._shell.answer(ref, self.shard.queues.told(reply, self._now_ms))
            case _LookUp(ref, command, txid):
                self._shell.look_up(ref, command, txid)
            case Fenced(producer_id, nonce, error):
                self._shell.close_session(producer_id, nonce, error)
            case _GoOn():
                self._go_on()
            case _Act(act):
                act()
            case _Doubt():
                pass

    def _fail(self, item: _Item, error: LogtxError) -> None:
        if isinstance(item, _Answer):
            self.shard.queues.untold(item.reply)
        if isinstance(item, _Answer | _LookUp):
            self._shell.answer(item.ref, error)

    def _surprised(self, why: str) -> None:
        self.over = True
        self._shell.surprised(why)


def _encode(entry: Entry) -> bytes:
    """Returns the bytes of a journal record.

    Raises:
        RequestTooLargeError: the record is too large, or one of its numbers is out of range.
    """
    try:
        raw = encode_entry(entry)
    except (OverflowError, ValueError) as error:
        raise RequestTooLargeError(f"a number of the request is out of range: {error}") from error
    if len(raw) > RECORD_MAX_BYTES:
        raise RequestTooLargeError(
            f"the request would take {len(raw)} bytes in the journal, which has"
            f" {RECORD_MAX_BYTES} for one; use fewer partitions, branches or offsets"
        )
    return raw
