"""The cores of metadata mode as machines: an owner that places, and a reader of its partition."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Final

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.ended import EndedTxIds
from logtx.consumer.core.home_view import (
    Aside,
    Fate,
    HomeView,
    HomeWrites,
    Start,
    where_to_begin,
)
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.placed_buffer import PlacedBuffer
from logtx.consumer.core.placed_input import PlacedInput, has_ended
from logtx.consumer.side_read import SideReader
from logtx.coordinator.core.adopting import Adopted, Answers, Handed, HandedOver, HandedWrites
from logtx.coordinator.core.modes import TopicModes
from logtx.coordinator.core.places import Places
from logtx.coordinator.core.placing import Placer, PlaceWrites, Question
from logtx.journal.control import BranchRange, Marker
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.position import Passed, Position
from logtx.journal.records.fate import EpochFilter
from logtx.journal.txid import TxId

from ..consumer.records import malformed
from ..coordinator.harness import PARTITION
from .buffers import LogRecord, OneLog
from .machines import Fingerprint
from .placed_logs import (
    BESIDE,
    DATA,
    HOME,
    IN_SHARES,
    OTHER,
    Item,
    Told,
    adoption_of,
    aside_of,
    change_of,
    entry_of,
    foreign_txid,
    item_of,
    placed_of,
    record_of,
)

ONE_PARTITION: Final = 1
"""Bytes of an ADOPT record that has room for one partition."""
SEQUENCES: Final = range(24)
"""No journal of a scenario is longer."""
_OWNER: Final = Fingerprint(
    {Placer: frozenset({"_first_marker"}), Adopted: frozenset({"_places", "_modes"})}, {}
)
_READER: Final = Fingerprint(
    {
        PlacedBuffer: frozenset(
            {
                *("counters", "partition", "_malformed", "_pending_map", "_controls", "_shared"),
                *(
                    "last_take",
                    "_past",
                    "_met_before",
                    "_has_ended_there",
                    "_prefix",
                    "_home",
                    "_end_marked",
                ),
            }
        ),
        PartitionBuffer: frozenset(
            {
                *("counters", "partition", "_malformed", "_pending_map", "_controls", "_shared"),
                *("last_take", "_past", "_met_before"),
            }
        ),
        PlacedInput: frozenset({"_view", "_buffer", "_partition"}),
        # Their sets are told apart by what is in them, in order.
        HomeView: frozenset(),
        EndedTxIds: frozenset(),
    },
    {
        LogRecord: lambda record: (record.at, record.number),
        Marker: lambda m: (m.committed, m.commit_sequence, m.hw, m.branches),
        BranchRange: lambda r: (r.branch, r.first_offset, r.last_offset, r.count),
    },
)


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """What the world needs to know of an owner's state."""

    is_placed: bool
    """Whether what is decided now is placed."""
    phase: str
    change: ModeChange | None
    """The record that begins the next switch."""
    mode_offset: int
    """Offset of the MODE record whose mode record is to be written; -1 without one."""
    may_mark: tuple[int, ...]
    """Sequences whose marker may go out now."""
    waits: bool
    """Whether something is decided and not placed."""


class LiveOwner:
    """The placing of one tenure: real `Places`, `TopicModes` and `Placer`."""

    def __init__(self, journals: Told, origin: int, *, foreign: Told) -> None:
        """Takes a journal over whose last record is this tenure's OWNER record."""
        self._journals, self._foreign = journals, foreign
        self.places, self.modes = Places(), TopicModes()
        self.adopted = Adopted(PARTITION, self.places, self.modes)
        self.placer = Placer(lambda _: self._first_marker)
        self._first_marker: int | None = None
        self._question: Question | None = None
        self._given: list[tuple[Any, ...]] = []
        epochs, found = EpochFilter(), []
        for offset, (epoch, item) in enumerate(journals.items(origin)):
            if epochs.accept(offset, entry_of(offset, epoch, item)):
                self._replay(offset, item)
                found.append(item)
        # What a new owner is told to do again is what its state says.
        for row in self.places.rows():
            left = tuple(p for p in row.ends if p not in row.places)
            if left:
                self.placer.place(PlaceWrites(row.begin, row.sequence, left))

    def _replay(self, offset: int, item: Item) -> None:
        match item:
            case ("commit", begin, _, last, _, True):
                self.places.replay_commit(begin, offset, {DATA: last + 1})
            case ("adopt" | "share", *_):
                self.adopted.replay(offset, adoption_of(item))
            case ("placed", *_):
                self.adopted.replay_placed(self.places.replay_placed(placed_of(item)))
            case ("mode", *_):
                self.modes.replay(offset, change_of(item))
            case _:
                pass

    def apply(self, key: Hashable) -> None:
        """Takes an input."""
        match key:
            case ("record", offset, number):
                self._record(offset, self._journals.numbers.values[number][1])
            case ("ask", first_marker):
                self._first_marker = None if first_marker < 0 else first_marker
                self._question = self.placer.ask(0)
                self._first_marker = None
                self._given.append(("asked", self._question is not None))
            case ("answer", end):
                self._answer(end)
            case ("adopt", chain):
                replica = replica_of(self._foreign.items(chain))
                found = self.adopted.adopt(OTHER, replica, ONE_PARTITION)
                if found is not None:
                    self._given.append(("append", item_of(found)))
            case ("recorded", offset):
                change = self.modes.recorded(DATA, offset, (0,))
                if change is not None:
                    self._given.append(
                        ("append", ("mode", change.phase.value, tuple(change.since.items())))
                    )
            case _:
                raise AssertionError(key)

    def _record(self, offset: int, item: Item) -> None:
        # A record of its own, which is durable.
        self._replay(offset, item)
        match item:
            case ("commit", begin, *_, True):
                self.placer.place(PlaceWrites(begin, offset, (DATA,)))
            case ("adopt", _, _, True, True, *_):
                self.placer.place(PlaceWrites(offset, offset, (DATA,)))
            case ("placed", *_):
                self.placer.placed(placed_of(item))
            case _:
                pass

    def _answer(self, end: int) -> None:
        assert self._question is not None
        question, self._question = self._question, None
        ends = self.placer.answered(question, {DATA: end}, 0)
        record = None if ends is None else self.places.place(question.upto, ends)
        if record is None:
            self.placer.drop()
        else:
            self._given.append(("append", ("placed", record.upto, record.ends[DATA])))

    def drain(self) -> tuple[tuple[Any, ...], ...]:
        """Returns what it gave out since the last call."""
        given, self._given = tuple(self._given), []
        return given

    def fingerprint(self) -> bytes:
        """Returns its whole state."""
        return _OWNER((self.places, self.adopted, self.modes, self.placer, self._question))

    def facts(self) -> OwnerFacts:
        """Returns what the world needs to know."""
        phase = self.modes.phase(DATA.topic, DATA.topic_id)
        to = Phase.METADATA if phase is Phase.MARKERS else Phase.MARKERS
        under_way = [mode.offset for _, mode in self.modes.under_way() if not mode.recorded]
        return OwnerFacts(
            is_placed=self.modes.is_placed(DATA),
            phase=phase.value,
            change=self.modes.switch(DATA.topic, DATA.topic_id, to),
            mode_offset=under_way[0] if under_way else -1,
            may_mark=tuple(s for s in SEQUENCES if self.placer.may_mark(DATA, s)),
            waits=len(self.placer) > 0,
        )


@dataclass(frozen=True, slots=True)
class ForeignFacts:
    """What the world needs to know of the owner of the other journal."""

    may_hand: bool
    """Whether what is decided now may be handed over."""
    may_mark: tuple[int, ...]
    """Sequences whose marker may go out now."""
    waiting: tuple[int, ...]
    """BEGINs for which the home has not answered."""
    unfinished: tuple[int, ...]
    """BEGINs that are decided and not finished."""


def replay_foreign(handed: HandedOver, offset: int, item: Item) -> None:
    """Applies a valid record of the other journal."""
    match item:
        case ("commit", begin, first, last, count, is_handed):
            accepted = (BranchRange(0, first, last, count),)
            _replay_decided(handed, begin, offset, accepted, is_handed)
        case ("abort", begin, is_handed):
            _replay_decided(handed, begin, offset, (), is_handed)
        case ("finished", begin):
            handed.replay_finished(begin)
        case _:
            pass


def _replay_decided(
    handed: HandedOver,
    begin: int,
    offset: int,
    accepted: tuple[BranchRange, ...],
    is_handed: bool | str,
) -> None:
    writes = (HandedWrites(DATA, accepted, PARTITION),) if is_handed else ()
    if is_handed == IN_SHARES:
        writes += tuple(HandedWrites(partition, (), PARTITION) for partition in BESIDE)
    each = Handed(foreign_txid(begin), offset, bool(accepted), writes)
    handed.replay_decided(each, () if is_handed else (DATA.key,))


def handed_by(items: tuple[Item, ...]) -> HandedOver:
    """Returns what the valid records of the other journal say."""
    handed, epochs = HandedOver(), EpochFilter()
    handed.watch(())
    for offset, (epoch, item) in enumerate(items):
        if epochs.accept(offset, entry_of(offset, epoch, item)):
            replay_foreign(handed, offset, item)
    return handed


def replica_of(items: tuple[Item, ...]) -> HandedOver:
    """Returns the other journal as the home's owner follows it."""
    return handed_by(items)


def home_of(journals: Told, chain: int) -> Adopted:
    """Returns the home as the other journal's owner follows it, from a snapshot of now."""
    owner = LiveOwner(journals, chain, foreign=Told())
    places = Places.restore(owner.places.fence(0), owner.places.rows())
    adopted = owner.adopted
    return Adopted.restore(PARTITION, places, owner.modes, adopted.rows(), adopted.unplaced())


class LiveForeign:
    """The owner of the other journal: real `HandedOver` and `Answers`, a replica of the home."""

    def __init__(self, foreign: Told, journals: Told, origin: int) -> None:
        """Takes a journal over whose last record is this tenure's OWNER record."""
        self._foreign, self._journals = foreign, journals
        self.handed, self.answers = handed_by(foreign.items(origin)), Answers()
        self._given: list[tuple[Any, ...]] = []
        for each in self.handed.all():
            self.answers.wait(each)

    def apply(self, key: Hashable) -> None:
        """Takes an input."""
        match key:
            case ("record", offset, number):
                item = self._foreign.numbers.values[number][1]
                replay_foreign(self.handed, offset, item)
                each = None if item[0] == "finished" else self.handed.get(item[1])
                if each is not None:
                    self.answers.wait(each)
            case ("home", chain):
                home = home_of(self._journals, chain)
                refusals, _ = self.answers.take(self.answers.ask(home))
                for refused in refusals:
                    if refused.partition == DATA:
                        self._given.append(("mark", refused.begin, refused.sequence))
            case _:
                raise AssertionError(key)

    def drain(self) -> tuple[tuple[Any, ...], ...]:
        """Returns what it gave out since the last call."""
        given, self._given = tuple(self._given), []
        return given

    def fingerprint(self) -> bytes:
        """Returns its whole state."""
        return _OWNER(
            (
                self.handed._handed,
                self.handed._marked,
                self.handed._sequences,
                self.handed._marks,
                {b: (h, sorted(left)) for b, (h, left) in self.answers._waiting.items()},
            )
        )

    def facts(self) -> ForeignFacts:
        """Returns what the world needs to know."""
        unfinished = tuple(sorted({*self.handed._sequences, *self.handed._marked}))
        return ForeignFacts(
            may_hand=self.handed.may_hand(DATA.key),
            may_mark=tuple(s for s in SEQUENCES if self.answers.may_mark(DATA, s)),
            waiting=tuple(b for b in unfinished if self.answers.is_waiting(b)),
            unfinished=unfinished,
        )


Origin = tuple[Any, ...]
"""(whether it follows the home, last MODE record known, o1, o2, o3, met, passed)."""
FROM_THE_START: Final[Origin] = (True, -1, 0, 0, 0, (), None)
MARKERS_FIRST: Final[Origin] = (False, -1, 0, 0, 0, (), None)


@dataclass(frozen=True, slots=True)
class ReaderFacts:
    """What the world needs to know of a reader's state."""

    follows: bool
    reads: bool
    """Whether it reads the journal."""
    next_offset: int
    """Next record to fetch."""
    frontier: int
    """What to ask a gate for; -1: nothing."""
    waits: bool
    """Whether a gate is not passed yet."""
    blocked: bool
    failure: str | None
    pending: tuple[int, ...]
    """BEGINs of the home whose records are held."""
    foreign: tuple[int, ...]
    """BEGINs of the other journal whose records are held."""


def packed(position: Position, *, follows: bool, known: int) -> Origin:
    """Returns a position as plain values."""
    passed = position.passed
    told = None if passed is None else (*passed.home, passed.sequence, passed.taken)
    met = tuple(sorted(position.met.items()))
    return (follows, known, position.o1, position.o2, position.o3, met, told)


def unpacked(origin: Origin) -> Position:
    """Returns the position of an origin."""
    _, _, o1, o2, o3, met, told = origin
    passed = None if told is None else Passed(told[:2], *told[2:])
    return Position(o1=o1, o2=o2, o3=o3, met=dict(met), passed=passed)


class LiveReader:
    """A real reader, which goes over to a home and back at mode records, as the shells do."""

    reads_ahead = False
    """Whether it reads the journal where it follows no home, for other partitions."""

    def __init__(self, data: Told, journals: Told, origin: Origin) -> None:
        """Begins at a position."""
        self._data, self._journals = data, journals
        self._given: list[tuple[Any, ...]] = []
        self._epochs = EpochFilter()
        self._begin(origin[0], origin[1], unpacked(origin))

    def _begin(self, follows: bool, known: int, position: Position) -> None:
        self.follows, self._known = follows, known
        self._back: tuple[int, int] | None = None
        """(offset of the mode record, of its MODE record) from which on there are markers again."""
        pending = self._pending = PendingTransactionMap(2**62)
        self.view: HomeView | None = None
        self.input: PlacedInput | None = None
        if not follows:
            self.buffer = PartitionBuffer(DATA.key, position, pending, malformed=malformed)
            return
        passed = position.passed
        start = Start(position.o2, None if passed is None else passed.sequence, position.o1)
        self.view = view = self._follow(start)
        self.buffer = buffer = PlacedBuffer(
            DATA.key,
            position,
            pending,
            home=HOME,
            has_ended=lambda begin: has_ended(view, DATA, begin),
            malformed=malformed,
        )
        self.input = PlacedInput(DATA, view, buffer, None)

    def _follow(self, start: Start) -> HomeView:
        begin = where_to_begin(DATA, start, 0, ())
        assert begin is not None
        self._epochs = EpochFilter()
        view = HomeView(HOME, begin[0])
        view.attach(DATA, start)
        return view

    def apply(self, key: Hashable) -> None:
        """Takes an input, and delivers all that may be delivered."""
        match key:
            case ("fetch", offset, *numbers):
                for at, number in enumerate(numbers, offset):
                    if not self._fetch(at, number):
                        return
            case ("gate", frontier, end):
                assert self.input is not None
                self.input.gate(frontier, end)
            case ("journal", offset, *numbers):
                for at, number in enumerate(numbers, offset):
                    self._journal(at, self._journals.numbers.values[number])
                if self.input is not None:
                    self.input.advance()
            case ("look up", begin, end):
                raw = foreign_txid(begin).to_bytes()
                self.buffer.resolve(raw, end_offset=end, ended=True)
            case ("side read", chain):
                self._side_read(self._data.items(chain))
            case _:
                raise AssertionError(key)
        self._deliver()
        self._go_back()

    def _side_read(self, items: tuple[Item, ...]) -> None:
        # A mode record tells a side read nothing; and it ends behind the last record, too.
        numbers = self._data.numbers
        log = [
            record_of(at, ("x",) if item[0] == "s" else item, numbers(item))
            for at, item in enumerate(items)
        ]
        reader = SideReader(OneLog([*log, LogRecord(len(log))]), {}, self._pending)  # type: ignore[arg-type]
        while self.buffer.side_reads() and reader.busy_with is None:
            reader.step(self.buffer, 0)

    def _fetch(self, offset: int, number: int) -> bool:
        # Returns False if it begins anew, and the rest is to be fetched again.
        item: Item = self._data.numbers.values[number]
        if item[0] != "s":
            record = record_of(offset, item, number)
            (self.input or self.buffer).feed([record])
            return True
        _, phase, mode_offset = item
        if mode_offset > self._known:
            if phase == Phase.TO_METADATA and self.input is None:
                if not self._may_follow(mode_offset):
                    return False
                self._deliver()
                position = self.buffer.position()
                passed = Passed(HOME, mode_offset)
                position = Position(o1=position.o1, o2=offset, met=position.met, passed=passed)
                self._anew(True, mode_offset, position)
                return False
            if phase == Phase.TO_MARKERS and self.input is not None and self._back is None:
                self._back = offset, mode_offset
                self.input.end_with(offset)
        (self.input or self.buffer).skip_unseen(offset + 1)
        return True

    def _may_follow(self, mode_offset: int) -> bool:  # noqa: ARG002
        return True

    def _go_back(self) -> None:
        if self.input is not None and self.input.is_over and self._back is not None:
            position = self.buffer.position()
            plain = Position(o1=position.o1, o2=position.o2, o3=position.o3, met=position.met)
            self._anew(False, self._back[1], plain)

    def _anew(self, follows: bool, known: int, position: Position) -> None:
        self._begin(follows, known, position)
        self._given.append(("anew", position.o1))

    @property
    def _told(self) -> HomeView | None:
        return self.view

    def _journal(self, offset: int, record: tuple[int, Item]) -> None:
        view = self._told
        assert view is not None
        epoch, item = record
        counts = self._epochs.accept(offset, entry_of(offset, epoch, item))
        if counts and offset >= view.next_offset:
            take_in(view, offset, item, collects=self.reads_ahead)
        view.read_to(offset + 1)

    def _deliver(self) -> None:
        while self.buffer.ready:
            for record in self.buffer.take(1):
                self._given.append(("record", record.offset(), self._packed()))

    def _packed(self) -> Origin:
        return packed(self.buffer.position(), follows=self.follows, known=self._known)

    def drain(self) -> tuple[tuple[Any, ...], ...]:
        """Returns what it gave out since the last call."""
        given, self._given = tuple(self._given), []
        return given

    def fingerprint(self) -> bytes:
        """Returns its whole state."""
        epochs = self._epochs if self.follows else None
        return _READER(
            (self.follows, self._known, self._back, self.buffer, self.view, self.input, epochs)
        )

    def facts(self) -> ReaderFacts:
        """Returns what the world needs to know."""
        reads = self.input or self.buffer
        frontier = None if self.input is None else self.input.frontier()
        failure = self.buffer.failure
        txids = [TxId.from_bytes(p.txid) for p in self.buffer.pending()]
        return ReaderFacts(
            follows=self.follows,
            reads=self.follows or self.reads_ahead,
            next_offset=reads.next_offset,
            frontier=-1 if frontier is None else frontier,
            waits=self.input is not None and self.input.has_gate,
            blocked=self.buffer.blocked,
            failure=None if failure is None else f"{type(failure).__name__}: {failure}",
            pending=tuple(t.offset for t in txids if t.journal == HOME),
            foreign=tuple(t.offset for t in txids if t.journal == OTHER),
        )


class AheadReader(LiveReader):
    """A `LiveReader` that reads the journal all the time, as for another partition.

    It goes over to the home only once it has read the journal to there: else it would begin as a
    `LiveReader` does.
    """

    reads_ahead = True
    _lasting: HomeView | None = None

    def _begin(self, follows: bool, known: int, position: Position) -> None:
        lasting = self._lasting
        if lasting is not None and not follows:
            lasting.leave(DATA)
        super()._begin(follows, known, position)
        if lasting is None:
            self._lasting = self.view or HomeView(HOME, 0)

    def _follow(self, start: Start) -> HomeView:
        if self._lasting is None:
            return super()._follow(start)
        assert start.passed is not None
        assert self._lasting.may_resume(DATA, start.passed)
        self._lasting.resume(DATA, start.passed)
        return self._lasting

    def _may_follow(self, mode_offset: int) -> bool:
        assert self._lasting is not None
        return mode_offset < self._lasting.next_offset

    def _anew(self, follows: bool, known: int, position: Position) -> None:
        self._begin(follows, known, position)
        self._given.append(("again", position.o1))

    @property
    def _told(self) -> HomeView | None:
        return self._lasting

    def facts(self) -> ReaderFacts:
        """Returns what the world needs to know. What a look-up will tell is not pending."""
        found = super().facts()
        if not self.follows or self._lasting is None:
            return found
        fates = ((begin, self._lasting.fate(DATA, begin)) for begin in found.pending)
        return replace(found, pending=tuple(b for b, fate in fates if fate is not Fate.UNKNOWN))

    def fingerprint(self) -> bytes:
        """Returns its whole state."""
        return super().fingerprint() + _READER((self._lasting, self._epochs))


def told_aside(begin: int, count: int) -> Aside | None:
    """Returns what a decision says of the sidecar."""
    offsets = aside_of(begin, count)
    return Aside((BranchRange(0, offsets[0], offsets[-1], count),)) if offsets else None


def take_in(view: HomeView, offset: int, item: Item, *, collects: bool = False) -> None:
    """Tells a view what a valid record of its home says, as `Homes` does."""
    match item:
        case ("begin",):
            view.begun(offset)
        case ("commit", begin, first, last, count, placed, *aside):
            accepted = (BranchRange(0, first, last, count),) if count else ()
            writes = HomeWrites(DATA, accepted, placed, told_aside(begin, sum(aside)))
            view.committed(begin, offset, [writes])
        case ("abort", begin):
            view.aborted(begin)
        case ("adopt" | "share", *_):
            view.adopted(offset, adoption_of(item))
        case ("placed", *_):
            view.placed(placed_of(item))
        case ("mode", phase, since):
            view.switched(offset, ModeChange(*DATA[::2], Phase(phase), dict(since)))
            if collects and phase == Phase.TO_METADATA:
                view.collect(DATA)
        case _:
            pass
