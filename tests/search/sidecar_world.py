"""A main partition, its sidecar, and readers: every interleaving of two transactions.

Real: `PartitionBuffer` with `SettlingQueue`, `PointedTransaction` and its stream. Modelled: both
logs, the journal (commit sequences and `since` alone), end records in commit-sequence order, the
ones that a recovering owner or a zombie writes again, late records, retention of the main log, the
trimming of the sidecar behind it, and a side read as `SideReader` does it.

In every state a reader begins at every offset, and is killed behind each record and after each
fetch. Others began before retention moved, and come back after. What they deliver is compared with
the order that both whole logs define.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.counters import ConsumerCounters
from logtx.consumer.core.pending import PendingTransaction, PendingTransactionMap
from logtx.journal.control import TXCTL_HEADER, TXID_HEADER, BranchRange, Marker, encode_marker
from logtx.journal.position import Position
from logtx.journal.sidecar import in_sidecar, is_delivered_from_sidecar

from ..consumer.records import DATA, FakeRecord, malformed, txid
from .explore import Move, State

Span = tuple[int, int, int]
"""(first offset, last offset, count)."""


class Item(NamedTuple):
    """A record of the main log: plain, of a transaction, or its end."""

    kind: str
    transaction: int = -1
    committed: bool = False
    main: Span | None = None
    side: Span | None = None
    since: int = 0
    sequence: int = -1


class Txn(NamedTuple):
    """A transaction as it stands."""

    phase: str = "idle"
    written: int = 0
    main: Span | None = None
    side: Span | None = None
    since: int | None = None
    sequence: int | None = None
    copies: int = 0
    acknowledged: int | None = None


class Left(NamedTuple):
    """What may still happen."""

    plain: int
    copies: int
    late: int
    retention: int
    trims: int


ONE_OF_EACH: Final = Left(1, 1, 1, 1, 1)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What transactions write ("S" to the sidecar, "M" to the main partition), and what may
    happen."""

    name: str
    plans: tuple[str, str] = ("SS", "S")
    left: Left = ONE_OF_EACH
    length_max: int = 4
    since_of_each_copy: bool = False
    """Dropped rule: whoever writes the pointer again asks for the end anew."""
    in_lane: bool = True
    keeps_met: bool = True
    """Dropped rule, if False: a reader that retention overtook forgets the sequences met (trap
    94)."""


class SidecarWorld:
    """See the module."""

    def __init__(self, scenario: Scenario) -> None:
        self.name = scenario.name
        self._scenario = scenario
        self._checked: dict[Any, str | None] = {}

    @property
    def logs(self) -> int:
        """Number of different pairs of logs in which readers began everywhere."""
        return len(self._checked)

    def initial(self) -> State:
        """Returns the empty logs: main, sidecar, transactions, both starts, decisions, what is
        left."""
        return (), (), (tuple(Txn()), tuple(Txn())), 0, 0, 0, tuple(self._scenario.left)

    def moves(self, state: State) -> list[tuple[Move, State | str]]:
        """Returns every step."""
        found: list[tuple[Move, State | str]] = []
        for line, after in self._steps(state):
            found.append(((line, False), after))
        return found

    def tell(self, state: State, move: Move, traded: bool) -> str:  # noqa: ARG002
        """Returns a step as a line."""
        return str(move[0])

    def tell_end(self, state: State) -> list[str]:  # noqa: ARG002
        """Returns nothing: what a reader does is said by the violation."""
        return []

    # ---- what may happen ------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[tuple[str, State]]:
        main, side, txns, start, side_start, decisions, left_ = state
        left, scenario = Left(*left_), self._scenario
        room = len(main) < scenario.length_max

        def after(number: int, txn: Txn, **changed: Any) -> State:
            those = [*txns]
            those[number] = tuple(txn)
            state = {"main": main, "side": side, "decisions": decisions, "left": left, **changed}
            return (
                *(state["main"], state["side"], tuple(those), start, side_start),
                *(state["decisions"], tuple(state["left"])),
            )

        if left.plain and room:
            less = left._replace(plain=left.plain - 1)
            yield (
                f"a plain record at {len(main)}",
                (
                    (*main, tuple(Item("plain"))),
                    side,
                    txns,
                    start,
                    side_start,
                    decisions,
                    tuple(less),
                ),
            )
        for number, row in enumerate(txns):
            txn = Txn(*row)
            if txn.phase in ("idle", "open"):
                yield from self._open_steps(number, txn, state, after)
                continue
            if left.late and txn.side is not None:
                less = left._replace(late=left.late - 1)
                late = (*side, number)
                yield (
                    f"a late record of {number} in the sidecar",
                    after(number, txn, side=late, left=less),
                )
            if txn.main is None and (txn.phase == "abort" or txn.side is None):
                continue  # Nothing of it ever reaches the main partition.
            yield from self._end_steps(number, txn, state, after)
        if left.retention:
            less = left._replace(retention=left.retention - 1)
            for offset in range(start + 1, len(main) + 1):
                yield (
                    f"retention: the main partition begins at {offset}",
                    (main, side, txns, offset, side_start, decisions, tuple(less)),
                )
        if left.trims:
            yield from self._trim(state, left)

    def _open_steps(
        self, number: int, txn: Txn, state: State, after: Callable[..., State]
    ) -> Iterator[tuple[str, State]]:
        main, side, decisions = state[0], state[1], state[5]
        plan = self._scenario.plans[number]
        if txn.written < len(plan):
            written = txn._replace(phase="open", written=txn.written + 1)
            if plan[txn.written] == "S":
                written = written._replace(side=_grown(txn.side, len(side)))
                yield (
                    f"{number} writes to the sidecar",
                    after(number, written, side=(*side, number)),
                )
            elif len(main) < self._scenario.length_max:
                written = written._replace(main=_grown(txn.main, len(main)))
                record = tuple(Item("data", number))
                yield (
                    f"{number} writes at {len(main)}",
                    after(number, written, main=(*main, record)),
                )
        if not txn.written:
            return
        if txn.side is not None and txn.since is None:
            asked = txn._replace(since=len(main))
            yield f"the end is asked for {number}: {len(main)}", after(number, asked)
        if txn.side is None or txn.since is not None:
            decided = txn._replace(phase="commit", sequence=decisions)
            yield f"{number} is committed", after(number, decided, decisions=decisions + 1)
        decided = txn._replace(phase="abort", sequence=decisions)
        yield f"{number} is aborted", after(number, decided, decisions=decisions + 1)

    def _end_steps(
        self, number: int, txn: Txn, state: State, after: Callable[..., State]
    ) -> Iterator[tuple[str, State]]:
        main, txns, left = state[0], state[2], Left(*state[6])
        scenario = self._scenario
        since = len(main) if scenario.since_of_each_copy else txn.since
        end = Item(
            *("end", number, txn.phase == "commit", txn.main, txn.side),
            *(since or 0, txn.sequence),
        )
        room = len(main) < scenario.length_max
        assert txn.sequence is not None, "it is decided"
        before = [
            other
            for other in (Txn(*row) for row in txns)
            if other.phase == "commit" and not other.copies and (other.sequence or 0) < txn.sequence
        ]
        if not txn.copies and room and (not scenario.in_lane or not before):
            once = txn._replace(copies=1)
            yield f"{number} ends at {len(main)}", after(number, once, main=(*main, tuple(end)))
        if txn.copies and txn.acknowledged is None:
            at = max(o for o, r in enumerate(main) if Item(*r).kind == "end" and r[1] == number)
            yield (
                f"the end of {number} is acknowledged",
                after(number, txn._replace(acknowledged=at)),
            )
        if txn.copies and left.copies and room:
            less = left._replace(copies=left.copies - 1)
            more = txn._replace(copies=txn.copies + 1)
            yield (
                f"the end of {number} is written again at {len(main)}",
                after(number, more, main=(*main, tuple(end)), left=less),
            )

    def _trim(self, state: State, left: Left) -> Iterator[tuple[str, State]]:
        # As what trims must do: nothing is in progress, and what a pointer at or above the main
        # partition's start names stays.
        main, side, txns, start, side_start, decisions, _ = state
        known = [Txn(*row) for row in txns]
        for txn in known:
            ends_there = txn.main is not None or (txn.phase == "commit" and txn.side is not None)
            if txn.phase == "open" or (ends_there and txn.acknowledged is None):
                return
        kept = [
            t.side[0]
            for t in known
            if t.phase == "commit"
            and t.side
            and t.acknowledged is not None
            and t.acknowledged >= start
        ]
        to = min([len(side), *kept])
        if to > side_start:
            less = left._replace(trims=left.trims - 1)
            yield (
                f"the sidecar is trimmed to {to}",
                (main, side, txns, start, to, decisions, tuple(less)),
            )

    # ---- what readers must deliver --------------------------------------------------------------

    def check(self, state: State) -> str | None:
        """Lets readers begin everywhere."""
        main, side, txns, start, side_start = state[:5]
        for number, row in enumerate(txns):
            leaves_none = row[0] == "abort" and "M" not in self._scenario.plans[number]
            if leaves_none and any(item[1] == number for item in main):
                return "an aborted transaction touched the main partition"
        key = main, side, start, side_start
        if key not in self._checked:
            self._checked[key] = Readers(
                main, side, start, side_start, keeps_met=self._scenario.keeps_met
            ).problem()
        return self._checked[key]


def _grown(span: Span | None, offset: int) -> Span:
    return (offset, offset, 1) if span is None else (span[0], offset, span[2] + 1)


# ---- readers ------------------------------------------------------------------------------------

Place = tuple[str, int]
"""A record that was delivered: of which log, and its offset there."""
_FAR: Final = 2**60


class Run(NamedTuple):
    """What a reader delivered, and where it stood before the first record and behind each."""

    records: list[Place]
    positions: list[Position]
    stopped: str | None


class Readers:
    """Readers of two logs as they are."""

    def __init__(
        self,
        main: tuple[Any, ...],
        side: tuple[int, ...],
        start: int,
        side_start: int,
        *,
        keeps_met: bool,
    ) -> None:
        self._items = [Item(*each) for each in main]
        self._records = [_main_record(at, item) for at, item in enumerate(self._items)]
        self._side = [_side_record(at, owner) for at, owner in enumerate(side)]
        self._owners = side
        self._start, self._side_start = start, side_start
        self._keeps_met = keeps_met
        self._runs: dict[tuple[str, int, bool], Run] = {}

    def problem(self) -> str | None:
        """Returns what a reader does wrong, if one does."""
        end, expected = len(self._items), self._expected()
        torn = self._torn()
        for begin in range(end + 1):
            due = [r for at, r in expected if at >= begin and self._owner(r) not in torn]
            if begin < self._start:
                found = self._came_back(begin, due, torn)
            else:
                found = self._stayed(begin, due, torn)
            if found is not None:
                return f"a reader that begins at {begin}: {found}"
        return None

    def _stayed(self, begin: int, due: list[Place], torn: frozenset[int]) -> str | None:
        whole = self._run(Position.at(begin), len(self._items))
        if whole.stopped is not None:
            return f"stops: {whole.stopped}"
        got = self._clean(whole.records, torn)
        if got != due and not self._is_accepted(got, due):
            return _difference(got, due)
        for read_to in range(begin, len(self._items) + 1):
            run = self._run(Position.at(begin), read_to)
            for taken, position in enumerate(run.positions):
                rest = self._run(position, len(self._items))
                both = [*run.records[:taken], *rest.records]
                if rest.stopped is not None:
                    return f"killed behind {taken}: it stops: {rest.stopped}"
                if self._clean(both, torn) != got:
                    return f"killed behind {taken}: {_difference(both, got)}"
        return None

    def _is_accepted(self, got: list[Place], due: list[Place]) -> bool:
        # Retention cut between a pointer and its copy, and the reader knows of none: once, whole,
        # and later than readers who were there before.
        cut = {
            item.transaction
            for at, item in enumerate(self._items)
            if item.kind == "end" and at < self._start
        }
        return len(got) > len(due) and [r for r in got if self._owner(r) not in cut] == due

    def _came_back(self, begin: int, due: list[Place], torn: frozenset[int]) -> str | None:
        # It was there when nothing was deleted.
        for read_to in range(begin, len(self._items) + 1):
            run = self._run(Position.at(begin), read_to, whole=True)
            for taken, position in enumerate(run.positions):
                if position.o2 < self._start:
                    if position.o3:
                        continue  # In the middle of what is gone: that is told.
                    met = position.met if self._keeps_met else {}
                    position = replace(Position.at(self._start), met=met)  # noqa: PLW2901
                position = replace(position, o1=max(position.o1, self._start))  # noqa: PLW2901
                rest = self._run(position, len(self._items))
                if rest.stopped is not None:
                    return f"comes back behind {taken}: it stops: {rest.stopped}"
                both = self._clean([*run.records[:taken], *rest.records], torn)
                if len(set(both)) < len(both):
                    return f"comes back behind {taken}: delivered twice: {both}"
                places = {r: at for at, r in self._expected()}
                lost = [
                    r for r in due if r not in both and places[r] >= max(self._start, position.o2)
                ]
                if lost:
                    return f"comes back behind {taken}: lost: {lost}"
        return None

    def _expected(self) -> list[tuple[int, Place]]:
        """Returns what both whole logs define: (place, record), in order."""
        found: list[tuple[int, Place]] = []
        ended: set[int] = set()
        for at, item in enumerate(self._items):
            if item.kind == "plain":
                found.append((at, ("main", at)))
            if item.kind != "end" or item.transaction in ended:
                continue
            ended.add(item.transaction)
            if not item.committed:
                continue
            if item.main is not None:
                low, high, _ = item.main
                found += [
                    (at, ("main", o))
                    for o in range(low, high + 1)
                    if self._items[o][:2] == ("data", item.transaction)
                ]
            if item.side is not None:
                low, high, _ = item.side
                found += [
                    (at, ("side", o))
                    for o in range(low, high + 1)
                    if self._owners[o] == item.transaction
                ]
        return found

    def _torn(self) -> frozenset[int]:
        # Retention took a part: `torn.reset=skip` passes over it.
        return frozenset(
            item.transaction
            for item in self._items
            if item.kind == "end" and item.main is not None and item.main[0] < self._start
        )

    def _owner(self, record: Place) -> int:
        log, offset = record
        return self._owners[offset] if log == "side" else self._items[offset].transaction

    def _clean(self, records: list[Place], torn: frozenset[int]) -> list[Place]:
        return [r for r in records if self._owner(r) not in torn]

    # ---- one reader -----------------------------------------------------------------------------

    def _run(self, position: Position, read_to: int, *, whole: bool = False) -> Run:
        key = repr(position), read_to, whole
        if key not in self._runs:
            start, side_start = (0, 0) if whole else (self._start, self._side_start)
            self._runs[key] = self._deliver(position, read_to, start, side_start)
        return self._runs[key]

    def _deliver(self, position: Position, read_to: int, start: int, side_start: int) -> Run:
        counters = ConsumerCounters()
        buffer = PartitionBuffer(
            DATA,
            position,
            PendingTransactionMap(_FAR),
            malformed=malformed,
            counters=counters,
            torn_skip_below=_FAR,
        )
        buffer.feed(self._records[max(position.o1, start) : read_to])
        records: list[Place] = []
        positions = [buffer.position()]
        while True:
            self._side_reads(buffer, start)
            taken = buffer.take(1)
            if taken:
                records.append(_place(taken[0].offset()))
                positions.append(buffer.position())
            elif not self._stream(buffer, side_start):
                break
        failure = buffer.failure
        assert not counters.malformed_headers, "all headers decode"
        return Run(records, positions, None if failure is None else str(failure))

    def _stream(self, buffer: PartitionBuffer, side_start: int) -> bool:
        # One record at a time. Returns whether there was anything to read.
        wanted = buffer.stream_wanted()
        if wanted is None:
            return False
        if not wanted.is_open:
            buffer.open_stream(wanted, side_start, len(self._side))
        else:
            at = wanted.next_offset
            buffer.push_stream(wanted, self._side[at : at + 1], at + 1)
        return True

    def _side_reads(self, buffer: PartitionBuffer, start: int) -> None:
        for request in buffer.side_reads():
            found: PendingTransaction | None = None
            duplicate = False
            for record in self._records[max(request.first_offset, start) : request.end_offset]:
                item = self._items[record.offset()]
                if item.transaction < 0 or txid(item.transaction).to_bytes() != request.txid:
                    continue
                if item.kind == "end":
                    duplicate = True
                    break
                if found is None:
                    found = PendingTransaction(DATA, request.txid, record.offset())
                found.records.append(record)
            torn = request.first_offset < start
            buffer.answer_side_read(request, found, duplicate=duplicate, torn=torn)


def _difference(got: list[Place], due: list[Place]) -> str:
    if len(set(got)) < len(got):
        return f"delivered twice: {got}, not {due}"
    lost = [r for r in due if r not in got]
    if lost:
        return f"lost: {lost} of {due}"
    more = [r for r in got if r not in due]
    return f"delivered where others have it not: {more}" if more else f"in order {got}, not {due}"


def _place(offset: int) -> Place:
    if is_delivered_from_sidecar(offset):
        return "side", in_sidecar(offset)
    return "main", offset


@lru_cache(maxsize=4_096)
def _main_record(at: int, item: Item) -> FakeRecord:
    if item.kind == "plain":
        return FakeRecord(at)
    headers: list[tuple[str, bytes | None]] = [(TXID_HEADER, txid(item.transaction).to_bytes())]
    if item.kind == "data":
        return FakeRecord(at, headers)
    marker = Marker(
        committed=item.committed,
        commit_sequence=item.sequence,
        hw=0,
        epoch=0,
        branches=() if item.main is None or not item.committed else (BranchRange(0, *item.main),),
        sidecar=() if item.side is None or not item.committed else (BranchRange(0, *item.side),),
        since=item.since,
    )
    headers.append((TXCTL_HEADER, encode_marker(marker)))
    return FakeRecord(at, headers, payload=None)


@lru_cache(maxsize=4_096)
def _side_record(at: int, owner: int) -> FakeRecord:
    return FakeRecord(at, [(TXID_HEADER, txid(owner).to_bytes())])
