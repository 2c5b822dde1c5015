"""The small world of fences: where readers begin, and what retention and trimming leave them.

Its steps make histories without a reader: records, decisions, PLACED, snapshots anywhere. In each
state in which all is over, and for every start of the partition's log that retention may leave,
every fence that the journal may then be trimmed to, and every offset in the log, a reader begins
there, knowing nothing, and must deliver what the naive reading of both whole logs says. The one
that begins at the log's start is also killed behind each record, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from logtx.consumer.core.home_view import (
    Candidate,
    HomeView,
    HomeWrites,
    Listed,
    Start,
    where_to_begin,
)
from logtx.consumer.core.pending import PendingTransactionMap
from logtx.consumer.core.placed_buffer import PlacedBuffer
from logtx.consumer.core.placed_input import PlacedInput, has_ended
from logtx.consumer.side_read import SideReader
from logtx.coordinator.core.places import Fence, PlacedWrites, Places
from logtx.coordinator.core.staircases import Staircases
from logtx.journal.control import BranchRange
from logtx.journal.modes import Phase
from logtx.journal.position import Position
from logtx.journal.records.snapshots import last_needed
from logtx.journal.records.types import PointerStep
from logtx.journal.sidecar import sidecar_of

from ..consumer.records import malformed
from .buffers import LogRecord, OneLog
from .explore import Move, State
from .placed_cores import take_in, told_aside
from .placed_logs import (
    DATA,
    HOME,
    Decided,
    Item,
    Told,
    aside_of,
    decided,
    expected,
    placed_of,
    record_of,
)
from .tenures import CORE_ERRORS

SNAPSHOT: Final = ("snapshot",)
SIDECAR: Final = (sidecar_of(DATA.topic), DATA.partition)
OLDEST: Final = 1
"""Journal offset of the first BEGIN."""


@dataclass(frozen=True)
class FencesScenario:
    """A small configuration."""

    name: str
    what: str
    records: tuple[int, ...] = (2, 1)
    plain: int = 2
    snapshots: int = 2
    stale: int = 0
    """Ends that are told one too low, or lower."""
    length_max: int = 5
    switched: bool = False
    """Whether the history begins when the topic goes over to places: one mode record lies at 0, and
    what is decided before MODE says so is marked, at any time."""
    held_up: bool = False
    """Whether what is placed is finished at any time later, or never: it waits for another
    partition, for a marker there or for its IOV."""
    asides: tuple[int, ...] = ()
    """Records that each transaction has in the sidecar, by transaction."""

    def aside(self, begin: int) -> tuple[int, ...]:
        """Returns the number of a transaction's records in the sidecar, if there are any."""
        return tuple(n for n in self.asides[begin - OLDEST : begin - OLDEST + 1] if n)


@dataclass(frozen=True)
class _Snapshot:
    """What a snapshot says."""

    fence: Fence
    rows: tuple[PlacedWrites, ...]
    open: tuple[int, ...]
    marked: tuple[int, ...]


class _Log(OneLog):
    """A log whose first records retention has deleted."""

    def __init__(self, records: list[LogRecord], log_start: int) -> None:
        super().__init__(records)
        self._log_start = log_start

    def start_offset(self, *_: Any, timeout_s: float) -> int:  # noqa: ARG002
        return self._log_start


class FencesWorld:
    """A scenario's states and steps. A state: (data, journal, plain records, snapshots, stale ends
    that are left)."""

    def __init__(self, scenario: FencesScenario) -> None:
        """Begins without any state visited."""
        self.name = scenario.name
        self.scenario = scenario
        self.data, self.journals = Told(), Told()
        self.starts = 0
        """Readers that began."""
        self._places: dict[int, Places] = {}

    @property
    def steps_of_cores(self) -> int:
        """Number of readers that began."""
        return self.starts

    # ---- the search's questions -----------------------------------------------------------------

    def initial(self) -> State:
        """Returns the state with all transactions begun."""
        scenario = self.scenario
        data, journal = 0, self.journals.append(0, (-1, ("owner", -1)))
        for _ in scenario.records:
            journal = self.journals.append(journal, (0, ("begin",)))
        if scenario.switched:
            mode_offset = self.journals.lengths[journal]
            change = ("mode", Phase.TO_METADATA.value, ())
            journal = self.journals.append(journal, (0, change))
            data = self.data.append(data, ("s", Phase.TO_METADATA.value, mode_offset))
        return data, journal, scenario.plain, scenario.snapshots, scenario.stale

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step from a state."""
        data, journal, plain, snapshots, stale = state
        items, told = self.data.items(data), decided(self.journals.items(journal))
        found: list[tuple[Move, State | str]] = []

        def add(move: Move, data: int = data, journal: int = journal, *left: int) -> None:
            found.append(((*move, False), (data, journal, *(left or (plain, snapshots, stale)))))

        def append(item: Item) -> int:
            return self.journals.append(journal, (0, item))

        begins = {OLDEST + n: most for n, most in enumerate(self.scenario.records)}
        if len(items) < self.scenario.length_max:
            if plain:
                landed = self.data.append(data, ("x",))
                add(("plain",), landed, journal, plain - 1, snapshots, stale)
            for begin, most in begins.items():
                if begin not in told and items.count(("d", begin)) < most:
                    add(("write", begin), self.data.append(data, ("d", begin)))
        active = not self.scenario.switched or any(
            item[:2] == ("mode", Phase.METADATA.value) for _, item in self.journals.items(journal)
        )
        for begin in begins:
            mine = [at for at, item in enumerate(items) if item == ("d", begin)]
            aside = self.scenario.aside(begin)
            if (mine or aside) and begin not in told:
                where = (mine[0], mine[-1]) if mine else (0, -1)
                item = ("commit", begin, *where, len(mine), active, *aside)
                add(("commit", begin, active), data, append(item))
        if not active:
            add(("mode",), data, append(("mode", Phase.METADATA.value, ((0, 0),))))
        marked = [(b, t) for b, t in told.items() if not t.placed and not _marker(items, b)]
        if marked and len(items) < self.scenario.length_max:
            begin, each = marked[0]
            landed = ("m", begin, each.sequence, each.first, each.last, each.count, 0)
            finished = append(("finished", begin))
            add(("marker", begin), self.data.append(data, landed), finished)
        if not marked and any(t.placed and t.place is None for t in told.values()):
            upto = max(t.sequence for t in told.values())
            for lag in range(min(stale, len(items)) + 1):
                record = self.places(journal).place(upto, {DATA: len(items) - lag})
                if record is None:
                    lost = "what is decided and not placed is known to no later owner"
                    found.append((("place", -1, False), lost))
                    continue
                placed = append(("placed", record.upto, record.ends[DATA]))
                add(("place", record.ends[DATA]), data, placed, plain, snapshots, stale - lag)
        found += self._finishes(state)
        if snapshots and self.journals.items(journal)[-1][1] != SNAPSHOT:
            add(("snapshot",), data, append(SNAPSHOT), plain, snapshots - 1, stale)
        return found

    def _finishes(self, state: State) -> list[tuple[Move, State | str]]:
        data, journal, *left = state
        rows = self.places(journal).rows() if self.scenario.held_up else []
        ended = [(row.begin, (0, ("finished", row.begin))) for row in rows if row.places]
        return [
            (("finish", begin, False), (data, self.journals.append(journal, record), *left))
            for begin, record in ended
        ]

    def places(self, journal: int) -> Places:
        """Returns what the real state of an owner is behind a journal."""
        found = self._places.get(journal)
        if found is None:
            found = self._places[journal] = self._replayed(self.journals.items(journal))
        return found

    def _replayed(self, items: tuple[Item, ...]) -> Places:
        places = Places()
        for offset, (_, item) in enumerate(items):
            match item:
                case ("commit", begin, _, last, _, True, *_):
                    places.replay_commit(begin, offset, {DATA: last + 1})
                case ("placed", *_):
                    for begin in places.replay_placed(placed_of(item)):
                        if not self.scenario.held_up:
                            places.replay_finished(begin)
                case ("finished", begin):
                    places.replay_finished(begin)
                case ("snapshot",):
                    # A new owner may have loaded it.
                    places = Places.restore(places.fence(offset), places.rows())
                case _:
                    pass
        return places

    def check(self, state: State) -> str | None:
        """Returns what a reader of this history does wrong, if one does."""
        data, journal, *_ = state
        items, records = self.data.items(data), self.journals.items(journal)
        told = decided(records)
        if not told or not self.is_over(items, told):
            return None
        snapshots = self._snapshots(records)
        first = 1 if self.scenario.switched else 0
        kept = min(self.unfinished(records), default=len(records))
        for log_start in range(first, len(items) + 1):
            for trimmed in self.trims(snapshots, log_start, kept):
                left = [s for s in snapshots if s.fence.offset >= trimmed]
                for x in range(log_start, len(items) + 1):
                    found = self._read(items, records, told, left, (log_start, trimmed, x))
                    if found is not None:
                        return found
        return None

    @staticmethod
    def is_over(items: tuple[Item, ...], told: dict[int, Decided]) -> bool:
        """Returns whether all that is decided is placed or marked."""
        return all(t.place is not None if t.placed else _marker(items, b) for b, t in told.items())

    @staticmethod
    def trims(snapshots: list[_Snapshot], log_start: int, kept: int) -> list[int]:
        """Returns where the journal may begin: at a fence that the data has passed, or at the BEGIN
        of what is not finished, which is `kept`."""
        passed = (s.fence.offset for s in snapshots if _is_passed(s, log_start))
        return sorted({0, *(min(offset, kept) for offset in passed)})

    def steps(self, records: tuple[Item, ...]) -> list[PointerStep]:
        """Returns what the journal remembers of pointers, by the real staircases."""
        told = decided(records)
        stairs = Staircases()
        for begin in self.finished(records):
            each = told[begin]
            if each.aside and each.place is not None:
                first = aside_of(begin, each.aside)[0]
                stairs.replay([PointerStep(SIDECAR, each.place, first)])
        return [step for row in stairs.rows() for step in row]

    def finished(self, records: tuple[Item, ...]) -> list[int]:
        """Returns the BEGINs of what is finished."""
        if self.scenario.held_up:
            return [item[1] for _, item in records if item[0] == "finished"]
        return [begin for begin, t in decided(records).items() if t.place is not None]

    def unfinished(self, records: tuple[Item, ...]) -> list[int]:
        """Returns the BEGINs of what is not finished."""
        begins = [OLDEST + n for n in range(len(self.scenario.records))]
        ended = {item[1] for _, item in records if item[0] == "finished"}
        return [b for b in begins if b not in ended] if self.scenario.held_up else []

    # ---- readers --------------------------------------------------------------------------------

    def _snapshots(self, records: tuple[Item, ...]) -> list[_Snapshot]:
        found = []
        for offset, (_, item) in enumerate(records):
            if item == SNAPSHOT:
                places = self._replayed(records[:offset])
                told = decided(records[:offset])
                ended = {i[1] for _, i in records[:offset] if i[0] == "finished"}
                begins = [OLDEST + n for n in range(len(self.scenario.records))]
                undecided = tuple(b for b in begins if b not in told)
                marked = tuple(b for b, t in told.items() if not t.placed and b not in ended)
                rows = tuple(places.rows())
                fence = places.fence(offset)
                steps = self.steps(records[:offset])
                aside = [t.place for t in told.values() if t.aside and t.place is not None]
                steps += [PointerStep(SIDECAR, place, 0) for place in aside]
                if steps:
                    fence = Fence(offset, last_needed(fence.last, steps))
                found.append(_Snapshot(fence, rows, undecided, marked))
        return found

    def _read(
        self,
        items: tuple[Item, ...],
        records: tuple[Item, ...],
        told: dict[int, Decided],
        snapshots: list[_Snapshot],
        where: tuple[int, int, int],
    ) -> str | None:
        log_start, trimmed, x = where
        read = partial(self._reader, items, records, told, snapshots, log_start, trimmed)
        torn = [("d", begin) for begin, t in told.items() if t.first < log_start]
        want = [o for o in expected(items, told, x) if items[o] not in torn]
        who = f"a reader from {x} (log from {log_start}, journal from {trimmed})"
        try:
            positions = list(read(Position.at(x)))
            got = [offset for offset, _ in positions]
            if got != want:
                return f"{who} delivers {got}, and {want} is due"
            for count, (_, position) in enumerate(positions if x == log_start else (), 1):
                rest = [offset for offset, _ in read(position)]
                if rest != want[count:]:
                    return f"{who}, killed behind {got[:count]}, goes on with {rest}: {want} is due"
        except CORE_ERRORS as error:
            return f"{who} broke: {error!r}"
        return None

    def _reader(
        self,
        items: tuple[Item, ...],
        records: tuple[Item, ...],
        told: dict[int, Decided],
        snapshots: list[_Snapshot],
        log_start: int,
        trimmed: int,
        position: Position,
    ) -> Iterator[tuple[int, Position]]:
        self.starts += 1
        passed = position.passed
        start = Start(
            position.o2,
            None if passed is None else passed.sequence,
            position.o1,
            log_start,
            1 + len(self.scenario.records) if self.scenario.switched else -1,
        )
        candidates = [Candidate(s.fence.offset, s.fence.last) for s in snapshots]
        begin = where_to_begin(DATA, start, trimmed, candidates)
        assert begin is not None, "retention took what is needed"
        offset, is_snapshot = begin
        view = HomeView(HOME, offset)
        listed = (
            next(self._listed(s, told) for s in snapshots if s.fence.offset == offset)
            if (is_snapshot)
            else None
        )
        view.attach(DATA, start, listed)
        pending = PendingTransactionMap(2**62)
        buffer = PlacedBuffer(
            DATA.key,
            position,
            pending,
            home=HOME,
            has_ended=lambda begin: has_ended(view, DATA, begin),
            malformed=malformed,
            torn_skip_below=2**62,
        )
        reads = PlacedInput(DATA, view, buffer, None)
        log = [
            record_of(at, ("x",) if item[0] == "s" else item, at) for at, item in enumerate(items)
        ]
        for at, (_, item) in enumerate(records[offset:], offset):
            take_in(view, at, item)
            view.read_to(at + 1)
        reads.feed(log[max(position.o1, log_start) :])
        frontier = reads.frontier()
        if frontier is not None:
            reads.gate(frontier, len(records))
        # A side read ends behind the log's last record, too.
        side = SideReader(_Log([*log, LogRecord(len(log))], log_start), {}, pending)  # type: ignore[arg-type]
        while buffer.side_reads():
            side.step(buffer, 0)
        while buffer.ready:
            for record in buffer.take(1):
                if items[record.offset()][0] != "s":
                    yield record.offset(), buffer.position()
        if buffer.failure is not None:
            raise buffer.failure

    @staticmethod
    def _listed(snapshot: _Snapshot, told: dict[int, Decided]) -> list[Listed]:
        listed = [Listed(begin) for begin in snapshot.open]
        for begin in snapshot.marked:
            writes = (HomeWrites(DATA, _ranges(told[begin]), False),)
            listed.append(Listed(begin, told[begin].sequence, writes=writes))
        for row in snapshot.rows:
            aside = told_aside(row.begin, told[row.begin].aside)
            writes = (HomeWrites(DATA, _ranges(told[row.begin]), True, aside),)
            listed.append(Listed(row.begin, row.sequence, writes=writes, places=row.places))
        return listed

    # ---- words ----------------------------------------------------------------------------------

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: ARG002
        """Returns a step in words."""
        end, length = self.data.lengths[state[0]], self.journals.lengths[state[1]]
        match move[:-1]:
            case ("plain",):
                return f"partition[{end}]: a plain record"
            case ("write", begin):
                return f"partition[{end}]: a record of T{begin}"
            case ("marker", begin):
                return f"partition[{end}]: the marker of T{begin}"
            case ("commit", begin, placed):
                how = "placed" if placed else "marked"
                return f"journal[{length}]: commit T{begin}, to be {how}"
            case ("mode",):
                return f"journal[{length}]: MODE metadata"
            case ("place", place):
                return f"journal[{length}]: PLACED at {place}"
            case ("snapshot",):
                return f"journal[{length}]: a snapshot"
            case ("finish", begin):
                return f"journal[{length}]: T{begin} is finished"
            case _:
                raise AssertionError(move)

    def tell_end(self, state: State) -> list[str]:  # noqa: ARG002
        """Returns nothing: `check` says which reader it is."""
        return []


def _marker(items: tuple[Item, ...], begin: int) -> bool:
    return any(item[:2] == ("m", begin) for item in items)


def _is_passed(snapshot: _Snapshot, log_start: int) -> bool:
    return snapshot.fence.passed({DATA: log_start})


def _ranges(told: Decided) -> tuple[BranchRange, ...]:
    return (BranchRange(0, told.first, told.last, told.count),) if told.count else ()
