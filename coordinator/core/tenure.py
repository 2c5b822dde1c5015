"""One tenure: a journal partition served under one OWNER epoch. Pure: joins the shard to a shell.

The append is the decision. A command is decided on the state as it will be when everything
before it is durable, its records are appended at predicted offsets, and its reply is parked until
they are acknowledged at exactly those offsets. The rules that make this sound:

- replies are released strictly in append order; the first surprise (a gap, an error, a time-out,
  an unknown offset) ends the tenure, and every later acknowledgement is void;
- a reply that needs no record is parked behind the last append in flight: a retried commit must
  not be told "committed" while the decision may still be lost;
- an answer that could be stale also asks for the journal's end after the request came, and waits
  until everything below that end is acknowledged as this owner's own;
- a surprise fails whatever is parked with a retriable error; whoever goes on does so with a shard
  loaded from the journal, in a tenure of a new epoch;
- sizes are checked before speculation: a command too large fails its client alone.

The shell appends, answers and asks; it has the I/O and the clock. Simulation and search run this
very code with shells of their own.

Source: Transactional Messaging in Kafka, "Transaction coordinator" and "Failure cases".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, TypeAlias

from ...journal.control import TopicPartition
from ...journal.errors import CoordinatorLoadingError, LogtxError, RequestTooLargeError
from ...journal.records.codec import encode_entry
from ...journal.records.types import Entry, JournalRecord
from ...journal.txid import TxId
from ...journal.value import value
from ..protocol import commands
from .data_partitions import Topics
from .decision import Decision, Effect, Fenced, Instant, Ref, WriteOffsets
from .shard import Shard
from .snapshot import SnapshotTaker

EFFECTS_MAX: Final = 500
"""Transactions whose markers are begun at a stretch: they hold an event loop for 50 ms."""
RECORD_MAX_BYTES: Final = 900_000
"""Largest journal record: below Kafka's default limit of 1 MiB for a batch, with room."""


class Shell(Protocol):
    """What a tenure needs of the world; every call returns at once, and is answered later."""

    def append(self, predicted: int, value: bytes) -> None:
        """Append a journal record; tell `Tenure.acknowledged`, in the order of the appends."""

    def ask_end(self) -> None:
        """Ask for the journal's end offset; tell `Tenure.end_told`. One question at a time."""

    def answer(self, ref: Ref, reply: commands.Reply) -> None:
        """Give a client its reply: once per `Ref`."""

    def look_up(self, ref: Ref, command: commands.Command, txid: TxId) -> None:
        """Answer from a transaction's fate in the journal, by `answers.answer_fate`."""

    def execute(self, effect: Effect) -> None:
        """Write markers or offsets; tell `Tenure.written` when that is durable."""

    def close_session(self, producer_id: str, nonce: int, error: LogtxError) -> None:
        """End a producer's session for good."""

    def surprised(self, why: str) -> None:
        """The tenure is over: somebody else may own the partition, or an append is lost."""


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
    # Waits for the journal's end alone; tells nobody.
    pass


@value(frozen=True, slots=True)
class _GoOn:
    # The end of a pause.
    pass


@value(frozen=True, slots=True)
class _Kept:
    command: commands.Command
    ref: Ref


_Item: TypeAlias = _Answer | _LookUp | Fenced | _Doubt | _GoOn


@value(frozen=True, slots=True)
class _Parked:
    item: _Item
    behind: int
    """Released when everything below this offset is acknowledged."""


class Tenure:
    """Serves a journal partition from one valid OWNER record to the first surprise."""

    def __init__(self, shard: Shard, shell: Shell) -> None:
        """Nothing happens before `begin`.

        Args:
            shard: replayed up to its own OWNER record, inclusive.
            shell: what it acts through.
        """
        self.shard = shard
        self.over = False
        """Whether it ended; from then on nothing has an effect."""
        self.acknowledged_end = shard.next_offset
        """Everything below is durable, and this owner's own or read by it."""
        self.truncated_at: int | None = None
        """End of the journal before the broker lost its tail, if that was the surprise."""
        self.snapshot_offset = shard.snapshot_offset
        """First chunk of the latest snapshot of which every chunk is acknowledged."""
        self.quiescing = False
        """Whether nothing is decided any more, because another is to go on from here."""
        self._shell = shell
        self._taker: SnapshotTaker | None = None
        """Of a snapshot that is not complete."""
        self._snapshot_end = 0
        """Behind its last chunk so far."""
        self._parked: deque[_Parked] = deque()
        self._asking: list[_Parked] = []
        self._asked: list[_Parked] = []
        """Those that the question on its way is for."""
        self._asked_at = 0
        """What was acknowledged when it was asked; what came later may lie behind the answer."""
        self._todo: deque[Effect] = deque()
        """Effects that were counted and not carried out."""
        self._unwritten: dict[int, int] = {}
        """BEGIN → effects that are not durable yet."""
        self._gone: dict[int, tuple[TopicPartition, ...]] = {}
        self._pausing = False
        self._kept: deque[_Kept] = deque()
        """What came during a pause; decided at the first tick behind it."""

    @property
    def in_flight(self) -> int:
        """Appends that are not acknowledged."""
        return self.shard.next_offset - self.acknowledged_end

    @property
    def parked(self) -> int:
        """Replies that wait for an append, or for the journal's end."""
        return len(self._parked) + len(self._asked) + len(self._asking)

    def begin(self, now: Instant, topics: Topics) -> None:
        """Redo what earlier owners may have left undone, and do what is due.

        Of very much only the first: the rest by and by, in each `tick`. An owner that said nothing
        before all of it was on its way would be taken for one that does not serve.
        """
        self._execute(self.shard.loaded(now))
        self.tick(now, topics)

    def submit(self, command: commands.Command, ref: Ref, now: Instant, topics: Topics) -> None:
        """Decide a command now; its reply comes when it may be told.

        Args:
            command: what a client asks.
            ref: given back with the reply.
            now: the time.
            topics: what is known of data topics; those that the command names were looked up.
        """
        assert not self.over, "the caller refuses what comes after the end"
        assert not self.quiescing, "the caller keeps what comes while the partition is given away"
        if self._pausing or self._kept:
            self._kept.append(_Kept(command, ref))
        else:
            self._decide(command, ref, now, topics)
        self.tick(now, topics)

    def _decide(self, command: commands.Command, ref: Ref, now: Instant, topics: Topics) -> None:
        decision = self.shard.handle(command, ref, now, topics)
        self._apply(decision)
        if decision.look_up is not None:
            item = _LookUp(ref, command, decision.look_up)
            self._ask(_Parked(item, self.shard.next_offset))

    def tick(self, now: Instant, topics: Topics) -> None:
        """Decide what was kept during a pause, and do what time and other decisions have made due.

        Args:
            now: the time.
            topics: what is known of data topics.
        """
        while self._kept and not self._resting:
            kept = self._kept.popleft()
            self._decide(kept.command, kept.ref, now, topics)
        self._carry_out()
        while not self._resting and (decision := self.shard.due(now, topics)) is not None:
            self._apply(decision)

    @property
    def _resting(self) -> bool:
        """Whether nothing is decided, for now or any more."""
        return self.over or self.quiescing or self._pausing

    def pause(self) -> None:
        """Decide nothing until the journal's end says that this still is the owner.

        For a process that stood still: another may own the partition by now, and whatever were
        appended here would end its epoch, as a stranger's record does.
        """
        if not self._resting:
            self._pausing = True
            self._ask(_Parked(_GoOn(), 0))

    def _go_on(self) -> None:
        self._pausing = False
        if self.quiescing:
            return
        for begin in [b for b, left in self._unwritten.items() if left == 0]:
            self._finish(begin)

    def snapshot(self) -> bool:
        """Append the next chunk of a snapshot, or the first of another.

        A snapshot is complete when `snapshot_offset` says so. Until then nobody may be pointed at
        it: an append of it may be lost, or what its rows say.

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
        """Decide nothing more, so that soon nothing is in flight; what is, is still answered.

        Whoever goes on writes the markers again that this owner does not finish any more.
        """
        self.quiescing = True

    def doubt(self) -> None:
        """Somebody says that the partition has another owner: look at the journal's end."""
        self._ask(_Parked(_Doubt(), 0))

    def attach(self, producer_id: str) -> None:
        """A producer's stream is connected."""
        self.shard.attach(producer_id)

    def detach(self, producer_id: str, nonce: int, now: Instant) -> None:
        """A producer's stream broke."""
        self.shard.detach(producer_id, nonce, now)

    def forget(self, refs: Iterable[Ref]) -> None:
        """Nobody waits for these replies any more."""
        self.shard.forget_waiting(refs)

    def acknowledged(self, predicted: int, offset: int | None, why: str = "") -> None:
        """An append was answered.

        Args:
            predicted: the offset that it was appended for.
            offset: the one it got; None if it failed or nobody knows.
            why: what the log said then.
        """
        if self.over:
            return
        if offset != predicted:
            if offset is not None and offset < self.acknowledged_end:
                self.truncated_at = self.acknowledged_end
            what = why or f"offset {offset}"
            self._surprised(f"the append predicted at {predicted} was answered by {what}")
            return
        self.acknowledged_end = offset + 1
        if self._taker is not None and self._taker.done and offset + 1 >= self._snapshot_end:
            self.snapshot_offset, self._taker = self._taker.first, None
        effects = self.shard.acknowledge(offset)
        self._release()
        if not self.quiescing:
            self._execute(effects)

    def end_told(self, end: int | None, why: str = "") -> None:
        """The journal's end offset as of some time after `Shell.ask_end`.

        Args:
            end: offset that the next record gets; None if the log did not answer.
            why: what it said then.
        """
        if self.over or self.quiescing:
            # While quiescing the end may be past the successor's OWNER record: no surprise, and
            # no proof either. Whoever asked is told at the end of the tenure.
            return
        asked, self._asked = self._asked, []
        if end is not None and end > self.shard.next_offset:
            self._asked = asked
            self._surprised(f"the journal ends at {end}, not {self.shard.next_offset}")
            return
        if end is not None and end < self._asked_at:
            # An owner that appends nothing would go on with a state that nobody can read.
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

    def written(self, begin: int, gone: tuple[TopicPartition, ...] = ()) -> None:
        """An effect of the transaction that began at `begin` is durable.

        Args:
            begin: offset of its BEGIN.
            gone: partitions that don't exist any more and got no marker.
        """
        if self.over or self.quiescing:
            return
        if gone:
            self._gone[begin] = gone
        self._unwritten[begin] -= 1
        if self._unwritten[begin] == 0 and not self._pausing:
            self._finish(begin)

    def _finish(self, begin: int) -> None:
        del self._unwritten[begin]
        self._apply(self.shard.finish(begin, self._gone.pop(begin, ())))

    def end(self, error: LogtxError) -> None:
        """Stop: whoever waits gets the error, and nothing has an effect any more."""
        self.over = True
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
            # Parked like a reply: if the fencing is lost, the session must not have been closed.
            self._park(_Parked(fenced, shard.next_offset))

    def _append(self, records: Sequence[JournalRecord]) -> None:
        """Apply and append what was decided: all of it, or nothing.

        Raises:
            RequestTooLargeError: one does not fit; nothing was decided.
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
        # All are counted before the first is carried out: were its offsets written at once, a
        # transaction would be finished before its markers.
        for effect in effects:
            begin = effect.begin if isinstance(effect, WriteOffsets) else effect.transaction.begin
            self._unwritten[begin] = self._unwritten.get(begin, 0) + 1
        behind = bool(self._todo)
        self._todo.extend(effects)
        if not behind:
            self._carry_out()

    def _carry_out(self) -> None:
        # In order, for markers must stand in commit-sequence order.
        for _ in range(EFFECTS_MAX):
            if not self._todo or self.over or self.quiescing:
                return  # Of what is left here, whoever goes on does all again.
            self._shell.execute(self._todo.popleft())

    # ---- replies --------------------------------------------------------------------------------

    def _park(self, parked: _Parked) -> None:
        self._parked.append(parked)
        self._release()

    def _release(self) -> None:
        while self._parked and self._parked[0].behind <= self.acknowledged_end:
            self._tell(self._parked.popleft().item)

    def _ask(self, parked: _Parked) -> None:
        """Park a reply that could be stale until the journal's end says that it is not."""
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
                self._shell.answer(ref, reply)
            case _LookUp(ref, command, txid):
                self._shell.look_up(ref, command, txid)
            case Fenced(producer_id, nonce, error):
                self._shell.close_session(producer_id, nonce, error)
            case _GoOn():
                self._go_on()
            case _Doubt():
                pass

    def _fail(self, item: _Item, error: LogtxError) -> None:
        if isinstance(item, _Answer | _LookUp):
            self._shell.answer(item.ref, error)

    def _surprised(self, why: str) -> None:
        self.over = True
        self._shell.surprised(why)


def _encode(entry: Entry) -> bytes:
    """A record as it goes into the journal.

    Raises:
        RequestTooLargeError: it does not fit.
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
