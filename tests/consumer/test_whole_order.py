"""`WholeOrder` against the order it is defined by, over random logs, reading speeds and crashes."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from logtx.consumer.counters import Counters
from logtx.consumer.pending import PendingTransactionMap
from logtx.consumer.whole import Decision, Whole, WholeBuffer, WholeOrder
from logtx.journal.control import TopicPartition
from logtx.journal.position import Position
from logtx.journal.txid import TxId

from .records import INCARNATION, FakeRecord, data, malformed, marker, plain

KEYS: tuple[TopicPartition, ...] = (("t", 0), ("t", 1), ("u", 0))
Event = tuple[str, Decision]


@dataclass
class World:
    """Three data partitions and the journal, as a coordinator writes them."""

    logs: dict[TopicPartition, list[FakeRecord]]
    journal: list[Event] = field(default_factory=list)
    wanted: list[tuple[int, list[tuple[TopicPartition, int]]]] = field(default_factory=list)
    """Commit sequence and records of each committed transaction."""


def world(seed: int, count: int) -> World:
    chance = Random(seed)
    made = World({key: [] for key in KEYS})
    lanes: dict[TopicPartition, list[tuple[TxId, int, bool, list[int]]]] = {k: [] for k in KEYS}
    open_ones: list[tuple[TxId, dict[TopicPartition, list[int]]]] = []
    unmarked: dict[int, tuple[Decision, set[TopicPartition]]] = {}
    journal_end = 0
    for _ in range(count):
        step = chance.randrange(8)
        key = chance.choice(KEYS)
        log = made.logs[key]
        if step == 0:
            open_ones.append((TxId(0, INCARNATION, journal_end), {}))
            journal_end += 1
        elif step == 1:
            log.append(plain(len(log)))
        elif step in (2, 3, 4) and open_ones:
            owner, writes = chance.choice(open_ones)
            writes.setdefault(key, []).append(len(log))
            log.append(data(len(log), owner))
        elif step == 5 and open_ones:
            owner, writes = open_ones.pop(chance.randrange(len(open_ones)))
            sequence, journal_end = journal_end, journal_end + 1
            commit = chance.random() < 0.8
            for place, offsets in writes.items():
                lanes[place].append((owner, sequence, commit, offsets))
            if commit:
                decision = Decision(sequence, owner, 0, tuple(sorted(writes)))
                made.journal.append(("decided", decision))
                if writes:
                    unmarked[sequence] = decision, set(writes)
                    records = [(k, o) for k in sorted(writes) for o in writes[k]]
                    made.wanted.append((sequence, records))
        elif lanes[key]:
            owner, sequence, commit, offsets = lanes[key].pop(0)
            ranges = [(0, offsets[0], offsets[-1], len(offsets))] if commit else []
            log.append(marker(len(log), owner, sequence, *ranges, committed=commit))
            if chance.random() < 0.2:  # a recovery repeats it
                log.append(marker(len(log), owner, sequence, *ranges, committed=commit))
            if sequence in unmarked:
                unmarked[sequence][1].discard(key)
                if not unmarked[sequence][1]:
                    made.journal.append(("finished", unmarked.pop(sequence)[0]))
    return made


class Life:
    """One consumer, from its positions until it is dropped."""

    def __init__(self, of: World, positions: dict[TopicPartition, Position]) -> None:
        self.world = of
        self.order = WholeOrder(Counters())
        self.buffers: dict[TopicPartition, WholeBuffer] = {}
        for key, position in positions.items():
            buffer = WholeBuffer(key, position, PendingTransactionMap(1 << 30), malformed=malformed)
            buffer.collect(0)
            self.buffers[key] = buffer
        self.at = {key: position.o1 for key, position in positions.items()}
        self.journal_at = 0

    def read(self, chance: Random) -> bool:
        """Read a little somewhere; False when all is read."""
        behind = [k for k in self.buffers if self.at[k] < len(self.world.logs[k])]
        if self.journal_at < len(self.world.journal) and (not behind or chance.random() < 0.3):
            kind, decision = self.world.journal[self.journal_at]
            self.journal_at += 1
            if kind == "decided":
                self.order.decide(decision)
            else:
                self.order.finish(decision.txid)
        elif behind:
            key = chance.choice(behind)
            size = chance.randrange(1, 6)
            self.buffers[key].feed(self.world.logs[key][self.at[key] : self.at[key] + size])
            self.at[key] += size
        else:
            return self.ask_for_ends()
        self.ask_for_ends()
        return True

    def ask_for_ends(self) -> bool:
        missing = self.order.missing(self.buffers)
        if not missing or not self.order.wants_ends:
            return False
        self.order.set_ends({k: len(self.world.logs[k]) for k in missing})
        return True

    def take(self) -> tuple[int, list[tuple[TopicPartition, int]]] | None:
        whole: Whole | None = self.order.take(self.buffers)
        if whole is None:
            return None
        records = [(k, r.offset()) for k in sorted(whole.entries) for r in whole.entries[k].stream]
        return whole.decision.sequence, records

    def positions(self) -> dict[TopicPartition, Position]:
        return {
            k: Position.from_metadata(p.o1, p.to_metadata())
            for k, b in self.buffers.items()
            for p in [b.position()]
        }


def settled(made: World, keys: tuple[TopicPartition, ...]) -> list[tuple[int, list[object]]]:
    """What must come: all, up to the first whose markers are not all written in `keys`."""
    expected: list[tuple[int, list[object]]] = []
    by_sequence = {d.sequence: d for kind, d in made.journal if kind == "decided"}
    for sequence, records in made.wanted:
        mine: list[object] = [r for r in records if r[0] in keys]
        if not mine:
            continue
        raw = by_sequence[sequence].txid.to_bytes()
        for key in {r[0] for r in records if r[0] in keys}:
            marked = any(
                r.payload is None and dict(r.header_list or [])["TxId"] == raw
                for r in made.logs[key]
            )
            if not marked:
                return expected
        expected.append((sequence, mine))
    return expected


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 150), st.integers(1, 3), st.integers(0, 2**32))
def test_whole_transactions_come_in_decision_order_through_every_crash(
    seed: int, count: int, width: int, reading: int
) -> None:
    made = world(seed, count)
    keys = KEYS[:width]
    chance = Random(reading)
    positions = {key: Position.at(0) for key in keys}
    got: list[tuple[int, list[object]]] = []
    while True:
        life = Life(made, positions)
        found = None
        while found is None and life.read(chance):
            found = life.take()
        if found is None:
            break
        got.append((found[0], list(found[1])))
        if chance.random() < 0.5:  # and one more in the same life
            found = life.take()
            if found is not None:
                got.append((found[0], list(found[1])))
        positions = life.positions()
        life.order.clear()
    assert got == settled(made, keys)
    assert [s for s, _ in got] == sorted(s for s, _ in got)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 150), st.integers(0, 40))
def test_a_start_in_the_middle_never_hangs_on_what_lies_before(
    seed: int, count: int, start: int
) -> None:
    made = world(seed, count)
    chance = Random(seed)
    life = Life(made, {key: Position.at(min(start, len(made.logs[key]))) for key in KEYS})
    got: list[int] = []
    for _ in range(10_000):
        reading = life.read(chance)
        for buffer in life.buffers.values():
            for request in buffer.side_reads():
                earlier = made.logs[buffer.partition][request.first_offset : request.marker_offset]
                again = any(
                    r.payload is None and dict(r.header_list or [])["TxId"] == request.txid
                    for r in earlier
                )
                # Whole or not at all: here the rest counts as deleted.
                buffer.torn_skip_below = 2**63
                buffer.settle(request, None, duplicate=again, torn=True)
        found = life.take()
        if found is not None:
            got.append(found[0])
        elif not reading:
            break
    assert got == sorted(got)
    waiting = life.order.head(life.buffers)
    if waiting is not None:
        # Only a transaction that is not finished may be waited for.
        assert ("finished", waiting) not in made.journal
