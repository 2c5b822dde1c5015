"""The small world of lives: readers that follow a home while it goes on, and are restarted.

Its histories are those of `fences_world`, with the moment of each step: how far the partition
reached when a record of the journal landed. In each history that is over, a reader begins at every
moment, at every offset that existed, by the snapshots that were there. It reads the partition up to
where it ended, and the journal record by record, with a gate at each. Wherever that changed its
position, it is killed, then or when later snapshots were there. It goes on in the same log, or in
one of which retention took what it has passed, with the journal trimmed to a fence. All lives
together must deliver what the naive reading of both whole logs says. A later life must stop at
nothing that is not to come in the first one.

A later life reads at the pace of the first, or the whole journal before the partition.

Transactions may have records in the sidecar, which is trimmed as far as the real staircases allow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from logtx.consumer.core.entries import EndedTransaction
from logtx.consumer.core.home_view import Candidate, HomeView, Start, where_to_begin
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.placed_buffer import PlacedBuffer
from logtx.consumer.core.placed_input import PlacedInput, has_ended
from logtx.consumer.core.pointers import PointedTransaction
from logtx.consumer.side_read import SideReader
from logtx.coordinator.core.staircases import Staircases
from logtx.journal.control import TXID_HEADER
from logtx.journal.position import Position
from logtx.journal.sidecar import in_sidecar, is_delivered_from_sidecar

from ..consumer.records import malformed
from .buffers import LogRecord
from .explore import Move, State
from .fences_world import OLDEST, SIDECAR, FencesScenario, FencesWorld, _Log, _Snapshot
from .placed_cores import take_in
from .placed_logs import (
    ASIDE_STRIDE,
    DATA,
    HOME,
    Decided,
    Item,
    aside_of,
    decided,
    expected,
    record_of,
)
from .tenures import CORE_ERRORS, txid_of

FAR: Final = 2**62


@dataclass(frozen=True)
class LivesScenario(FencesScenario):
    """A small configuration."""

    first: tuple[Move, ...] = ()
    """How each history begins."""


class _History(NamedTuple):
    """What happened."""

    items: tuple[Item, ...]
    records: tuple[Item, ...]
    ends: tuple[int, ...]
    """By moment, the number of records in the journal: where the partition ended before the next
    one landed."""
    told: dict[int, Decided]
    snapshots: list[_Snapshot]
    log: list[LogRecord]
    side: list[LogRecord]
    """The sidecar, whole."""


class _Left(NamedTuple):
    """What a life finds."""

    moment: int
    """Number of records that the journal has."""
    log_start: int
    journal_start: int


class _Moment(NamedTuple):
    """A reader at some moment."""

    moment: int
    delivered: tuple[int, ...]
    position: Position


class _Life(NamedTuple):
    """What became of a reader."""

    moments: list[_Moment]
    torn: frozenset[int]
    """Commit sequences of the transactions of which it found that retention took a part."""
    stopped: str | None

    @property
    def delivered(self) -> tuple[int, ...]:
        """All that it delivered."""
        return self.moments[-1].delivered if self.moments else ()


class _Buffer(PlacedBuffer):
    """Tells what it found torn."""

    torn: set[int]

    def _settle_missing(self, entry: EndedTransaction, torn: bool) -> None:
        if torn:
            self.torn.add(entry.marker.commit_sequence)
        super()._settle_missing(entry, torn)

    def _settle_trimmed(self, entry: PointedTransaction, start: int) -> None:
        self.torn.add(entry.marker.commit_sequence)
        super()._settle_trimmed(entry, start)


class LivesWorld(FencesWorld):
    """A scenario's states and steps: those of `FencesWorld`, and the end of the partition at each
    journal record."""

    scenario: LivesScenario

    def initial(self) -> State:
        """Returns the state with all transactions begun."""
        first = super().initial()
        state: State = (*first, (self.data.lengths[first[0]],) * self.journals.lengths[first[1]])
        for step in self.scenario.first:
            state = next(after for move, after in self.moves(state) if move[: len(step)] == step)  # type: ignore[assignment]
        return state

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step from a state."""
        *before, ends = state
        found: list[tuple[Move, State | str]] = []
        for move, after in super().moves(tuple(before)):
            if isinstance(after, str):
                found.append((move, after))
                continue
            # A marker lands before the record that says so.
            landed = self.data.lengths[after[0]]
            more = self.journals.lengths[after[1]] - len(ends)
            found.append((move, (*after, (*ends, *(landed,) * more))))
        return found

    def tell(self, state: State, move: Move, traded: bool) -> str:
        """Returns a step in words."""
        return super().tell(state[:-1], move, traded)

    # ---- lives ----------------------------------------------------------------------------------

    def check(self, state: State) -> str | None:
        """Returns what a reader of this history does wrong, if one does."""
        data, journal, plain, snapshots, _, ends = state
        if plain or snapshots:
            return None  # The lives of a longer history are the same so far.
        items, records = self.data.items(data), self.journals.items(journal)
        told = decided(records)
        if not told or not self.is_over(items, told):
            return None
        # A mode record tells these readers nothing.
        plain_log = [record_of(o, ("x",) if i[0] == "s" else i, o) for o, i in enumerate(items)]
        snapshots_there = self._snapshots(records)
        side = self._sidecar()
        history = _History(
            items, records, (*ends, len(items)), told, snapshots_there, plain_log, side
        )
        lives: dict[tuple[Any, ...], _Life] = {}

        def read(left: _Left, position: Position, whole_journal: bool) -> _Life:
            key = left, _key(position), whole_journal
            if key not in lives:
                lives[key] = self._live(history, left, position, whole_journal)
            return lives[key]

        oldest = 1 if self.scenario.switched else 0
        first_moment = len(self.scenario.records) + (2 if self.scenario.switched else 1)
        begins = {first_moment, *(s.fence.offset + 1 for s in history.snapshots), len(records)}
        for moment in sorted(begins):
            for log_start in range(oldest, history.ends[moment] + 1):
                for trimmed in self._trims_at(history, moment, log_start):
                    left = _Left(moment, log_start, trimmed)
                    for x in range(log_start, history.ends[moment] + 1):
                        found = self._lives(history, read, left, x)
                        if found is not None:
                            return found
        return None

    def _sidecar(self) -> list[LogRecord]:
        found = []
        for begin, count in enumerate(self.scenario.asides, OLDEST):
            headers: list[tuple[str, bytes | None]] = [(TXID_HEADER, txid_of(begin).to_bytes())]
            found += [LogRecord(offset, headers) for offset in aside_of(begin, count)]
        return sorted(found, key=LogRecord.offset)

    def side_start(self, history: _History, moment: int, log_start: int) -> int:
        """Returns where the sidecar may begin: at what pointers and places need that are in the log
        or to come."""
        records = history.records[:moment]
        stairs, finished = Staircases(), self.finished(records)
        stairs.replay(self.steps(records))
        needed = stairs.needed(SIDECAR, log_start)
        held = [0 if needed is None else needed.first] * (needed is not None)
        for begin, count in enumerate(self.scenario.asides, OLDEST):
            if count and begin not in finished:
                held.append(aside_of(begin, count)[0])
        return min(held, default=len(history.side) * ASIDE_STRIDE)

    def _trims_at(self, history: _History, moment: int, log_start: int) -> list[int]:
        there = [s for s in history.snapshots if s.fence.offset < moment]
        # What has written nothing so far may begin later, as far as anything here goes by that.
        written = {item[1] for item in history.items[: history.ends[moment]] if item[0] == "d"}
        unfinished = written.intersection(self.unfinished(history.records[:moment]))
        return self.trims(there, log_start, min(unfinished, default=moment))

    def _lives(self, history: _History, read: Any, left: _Left, x: int) -> str | None:
        whole = read(left, Position.at(x), False)
        want = self._due(history, left, x)
        who = f"a reader from {x} at journal[{left.moment}], log from {left.log_start}, journal"
        who += f" from {left.journal_start},"
        if whole.stopped is not None:
            return f"{who} stops: {whole.stopped}"
        # Retention took what was open: whoever began before that was decided may deliver them.
        taken = {t.sequence for t in history.told.values() if t.first < left.log_start and t.count}
        free = self._alone_before(history, left, x, taken)

        def compare(got: tuple[int, ...]) -> str | None:
            some = tuple(o for o in got if self._begin_at(history, o) not in free)
            needed = [o for o in want if self._begin_at(history, o) not in free]
            return self._compare(history, x, some, needed)

        wrong = compare(whole.delivered)
        if wrong is not None:
            return f"{who} {wrong}"
        if whole.torn & self._gone_before(history, left):
            return f"{who} stops at what was gone before it began: {sorted(whole.torn)}"
        for at in whole.moments:
            for later in self._later(history, left, at, {*want, *whole.delivered}):
                for whole_journal in (False, True):
                    rest = read(later, at.position, whole_journal)
                    both = (*at.delivered, *rest.delivered)
                    wrong = rest.stopped or compare(both)
                    if at.position.passed is not None and set(both) != set(whole.delivered):
                        wrong = wrong or f"delivers {both}, and one life {whole.delivered}"
                    if rest.torn - whole.torn:
                        wrong = "it stops at what is torn, and was not due"
                    if wrong is not None:
                        return (
                            f"{who} killed at journal[{at.moment}] behind {at.delivered} with"
                            f" {at.position}, goes on at {later}: {wrong}"
                        )
        return None

    def _due(self, history: _History, left: _Left, x: int) -> list[int]:
        torn = [("d", b) for b, t in history.told.items() if t.first < left.log_start]
        due = expected(history.items, history.told, x)
        if not history.side:
            return [offset for offset in due if history.items[offset] not in torn]
        gone = {b for b, t in history.told.items() if t.count and t.first < left.log_start}
        # What lies in the sidecar alone is due where the log starts, but not before what is gone.
        gone |= self._alone_before(history, left, x, self._gone_before(history, left))
        return [offset for offset in due if self._begin_at(history, offset) not in gone]

    @staticmethod
    def _alone_before(history: _History, left: _Left, x: int, gone: Collection[int]) -> set[int]:
        """Returns the BEGINs of what lies in the sidecar alone, is placed where the log starts, and
        is decided before one of these commit sequences."""
        last = max(gone, default=-1) if x == left.log_start else -1
        return {
            begin
            for begin, t in history.told.items()
            if t.placed and not t.count and t.place == left.log_start and t.sequence < last
        }

    @staticmethod
    def _begin_at(history: _History, offset: int) -> int | None:
        """Returns the BEGIN of the transaction that a delivered record is of."""
        if is_delivered_from_sidecar(offset):
            return in_sidecar(offset) % ASIDE_STRIDE
        item = history.items[offset]
        return item[1] if item[0] == "d" else None

    @staticmethod
    def _gone_before(history: _History, left: _Left) -> set[int]:
        """Returns the commit sequences of what was placed where the log starts, or below, when the
        reader began."""
        told = decided(history.records[: left.moment])
        return {
            t.sequence
            for t in told.values()
            if t.count and t.place is not None and t.place <= left.log_start
        }

    def _compare(
        self, history: _History, x: int, got: tuple[int, ...], want: list[int]
    ) -> str | None:
        if not self.scenario.stale:
            return None if list(got) == want else f"delivers {got}, and {want} is due"
        if len(set(got)) < len(got):
            return f"delivers twice: {got}"
        # What was placed too low after it began may come, too.
        after = set(expected(history.items, history.told, x))
        below = set(expected(history.items, history.told)) - after
        if set(want) <= set(got) <= {*want, *below}:
            return None
        return f"delivers {got}, and {want} is due"

    def _later(self, history: _History, left: _Left, at: _Moment, due: set[int]) -> Iterator[_Left]:
        """Yields what a reader may find that is killed at some moment."""
        behind = (s.fence.offset + 1 for s in history.snapshots)
        for moment in sorted({at.moment, len(history.records), *behind}):
            if moment < at.moment:
                continue
            yield left._replace(moment=moment)
            # Nothing that it has not delivered is deleted.
            rest = due - set(at.delivered)
            firsts = (
                t.first if t.count else (t.place or 0)
                for b, t in history.told.items()
                if self._has(history, b, rest)
            )
            rest = {offset for offset in rest if not is_delivered_from_sidecar(offset)}
            for log_start in {left.log_start, min([at.position.o1, *firsts, *rest])}:
                for trimmed in self._trims_at(history, moment, log_start):
                    if log_start >= left.log_start and trimmed >= left.journal_start:
                        yield _Left(moment, log_start, trimmed)

    @staticmethod
    def _has(history: _History, begin: int, offsets: set[int]) -> bool:
        return any(LivesWorld._begin_at(history, offset) == begin for offset in offsets)

    def _live(
        self, history: _History, left: _Left, position: Position, whole_journal: bool
    ) -> _Life:
        self.starts += 1
        passed = position.passed
        start = Start(
            position.o2,
            None if passed is None else passed.sequence,
            position.o1,
            left.log_start,
            1 + len(self.scenario.records) if self.scenario.switched else -1,
        )
        known = [s for s in history.snapshots if left.journal_start <= s.fence.offset < left.moment]
        candidates = [Candidate(s.fence.offset, s.fence.last) for s in known]
        begin = where_to_begin(DATA, start, left.journal_start, candidates)
        if begin is None:
            return _Life([], frozenset(), "retention took what is needed")
        view, listed = HomeView(HOME, begin[0]), None
        if begin[1]:
            fence = next(s for s in known if s.fence.offset == begin[0])
            listed = self._listed(fence, history.told)
        view.attach(DATA, start, listed)
        side_start = self.side_start(history, left.moment, left.log_start)
        reader, stopped = _Reader(history, left.log_start, position, view, side_start), None
        try:
            reader.read(left.moment, whole_journal=whole_journal)
        except CORE_ERRORS as error:
            stopped = repr(error)
        return _Life(reader.moments, frozenset(reader.torn), stopped)


class _Reader:
    """One life: the cores that read a partition and its home."""

    def __init__(
        self,
        history: _History,
        log_start: int,
        position: Position,
        view: HomeView,
        side_start: int,
    ) -> None:
        self._history, self._log_start, self._view = history, log_start, view
        self._side_start = side_start
        self._pending = PendingTransactionMap(FAR)
        self._buffer = buffer = _Buffer(
            DATA.key,
            position,
            self._pending,
            home=HOME,
            has_ended=lambda begin: has_ended(view, DATA, begin),
            malformed=malformed,
            torn_skip_below=FAR,
        )
        self.torn = buffer.torn = set()
        self._input = PlacedInput(DATA, view, buffer, None)
        self._fed = max(position.o1, log_start)
        self._delivered: tuple[int, ...] = ()
        self._noted: Any = None
        self.moments: list[_Moment] = []

    def read(self, moment: int, *, whole_journal: bool) -> None:
        """Reads from some moment on until all is over."""
        last = len(self._history.records)
        if whole_journal:
            self._read_journal(last)
        for each in [last] if whole_journal else range(moment, last + 1):
            self._read_on(each)

    def _read_journal(self, moment: int) -> None:
        view = self._view
        for at in range(view.next_offset, moment):
            take_in(view, at, self._history.records[at][1])
            view.read_to(at + 1)
        self._input.advance()

    def _read_on(self, moment: int) -> None:
        end, log = self._history.ends[moment], self._history.log
        self._input.feed(log[self._fed : end])
        self._fed = max(self._fed, end)
        self._read_journal(moment)
        frontier = self._input.frontier()
        if frontier is not None:
            self._input.gate(frontier, moment)
        buffer = self._buffer
        if buffer.side_reads():
            there = _Log([*log[:end], LogRecord(end)], self._log_start)
            side = SideReader(there, {}, self._pending)  # type: ignore[arg-type]
            while buffer.side_reads():
                side.step(buffer, 0)
        self._note(moment)
        while True:
            while buffer.ready:
                for record in buffer.take(1):
                    if not self._is_mode_record(record.offset()):
                        self._delivered = (*self._delivered, record.offset())
                    self._note(moment)
            if not self._stream():
                break
        if buffer.failure is not None:
            raise buffer.failure

    def _is_mode_record(self, offset: int) -> bool:
        is_here = not is_delivered_from_sidecar(offset)
        return is_here and bool(self._history.items[offset][0] == "s")

    def _stream(self) -> bool:
        # A few records at a time. Returns whether there was anything to read.
        wanted, side = self._buffer.stream_wanted(), self._history.side
        if wanted is None:
            return False
        if not wanted.is_open:
            self._buffer.open_stream(wanted, self._side_start, side[-1].offset() + 1)
        else:
            upto = wanted.next_offset + ASIDE_STRIDE // 2
            read = [r for r in side if wanted.next_offset <= r.offset() < upto]
            self._buffer.push_stream(wanted, read, upto)
        return True

    def _note(self, moment: int) -> None:
        position = self._buffer.position()
        key = _key(position), self._delivered
        if key != self._noted:
            self.moments.append(_Moment(moment, self._delivered, position))
        self._noted = key


def _key(position: Position) -> Any:
    passed = position.passed
    told = None if passed is None else (passed.sequence, passed.taken)
    return position.o1, position.o2, position.o3, tuple(sorted(position.met.items())), told
