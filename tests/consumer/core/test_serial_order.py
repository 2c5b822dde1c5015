"""`SerialOrder` against its definition, over random logs, reading speeds and crashes."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from logtx.consumer.core.counters import ConsumerCounters
from logtx.consumer.core.entries import EndedTransaction
from logtx.consumer.core.looks import CONTRADICTED_APART_S, LOOKS_APART_S
from logtx.consumer.core.pending import PendingTransactionMap, Record
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.consumer.core.serial_order import CommitDecision, Floor, SerialOrder, Whole
from logtx.journal.control import TopicPartition
from logtx.journal.position import Position
from logtx.journal.txid import TxId

from ...parameters import examples
from ..records import INCARNATION, FakeRecord, data, malformed, marker, plain

KEYS: tuple[TopicPartition, ...] = (("t", 0), ("t", 1), ("u", 0))
Event = tuple[str, CommitDecision]


JOURNAL_END = 10**6
"""The journals of these worlds are whole from the start."""


@dataclass
class World:
    """Three data partitions and the journal, as a coordinator writes them."""

    logs: dict[TopicPartition, list[FakeRecord]]
    journal: list[Event] = field(default_factory=list)
    wanted: list[tuple[int, list[tuple[TopicPartition, int]]]] = field(default_factory=list)
    """(commit sequence, records) of each committed transaction with records."""


def world(seed: int, count: int) -> World:
    chance = Random(seed)
    made = World({key: [] for key in KEYS})
    lanes: dict[TopicPartition, list[tuple[TxId, int, bool, list[int]]]] = {k: [] for k in KEYS}
    open_ones: list[tuple[TxId, dict[TopicPartition, list[int]]]] = []
    unmarked: dict[int, tuple[CommitDecision, set[TopicPartition]]] = {}
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
                decision = CommitDecision(sequence, owner, 0, tuple(sorted(writes)))
                made.journal.append(("decided", decision))
                if writes:
                    unmarked[sequence] = decision, set(writes)
                    records = [(k, o) for k in sorted(writes) for o in writes[k]]
                    made.wanted.append((sequence, records))
        elif lanes[key]:
            owner, sequence, commit, offsets = lanes[key].pop(0)
            ranges = [(0, offsets[0], offsets[-1], len(offsets))] if commit else []
            log.append(marker(len(log), owner, sequence, *ranges, committed=commit))
            if chance.random() < 0.2:  # a recovery writes it again
                log.append(marker(len(log), owner, sequence, *ranges, committed=commit))
            if sequence in unmarked:
                unmarked[sequence][1].discard(key)
                if not unmarked[sequence][1]:
                    made.journal.append(("finished", unmarked.pop(sequence)[0]))
    return made


class Life:
    """One consumer, from its positions until it is dropped.

    With `floor` it reads the journal from that event on, as if a snapshot were there. For some
    seconds, from `former_s` on, ends are told by former leaders of the partitions (trap 63).
    """

    def __init__(
        self,
        of: World,
        positions: dict[TopicPartition, Position],
        floor: int | None = None,
        former_s: float = 0.0,
    ) -> None:
        self.world = of
        self.now_s = 0.0
        self.former_s = former_s
        self.order = SerialOrder(ConsumerCounters())
        self.map = PendingTransactionMap(1 << 30)
        self.buffers: dict[TopicPartition, SerialBuffer] = {}
        for key, position in positions.items():
            buffer = SerialBuffer(key, position, self.map, journal_partition=0, malformed=malformed)
            self.buffers[key] = buffer
        self.at = {key: position.o1 for key, position in positions.items()}
        self.journal_at = 0
        self.shares: list[tuple[TopicPartition, EndedTransaction]] = []
        if floor is not None:
            self.begin_above(floor)

    def begin_above(self, floor: int) -> None:
        before = self.world.journal[:floor]
        self.journal_at = floor
        finished = {d.sequence for kind, d in before if kind == "finished"}
        decided = [d for kind, d in before if kind == "decided"]
        above = max((d.sequence for d in decided), default=-1) + 1
        self.order.begin(Floor((0, INCARNATION), above))
        for decision in decided:
            if decision.sequence not in finished:
                self.order.decide(decision)

    def read(self, chance: Random) -> bool:
        """Reads a little, somewhere. Returns False when everything is read."""
        behind = [k for k in self.buffers if self.at[k] < len(self.world.logs[k])]
        if self.journal_at < len(self.world.journal) and (not behind or chance.random() < 0.3):
            kind, decision = self.world.journal[self.journal_at]
            self.journal_at += 1
            if kind == "decided":
                self.order.decide(decision)
            else:
                self.order.finish(decision, self.journal_at)
        elif behind:
            key = chance.choice(behind)
            size = chance.randrange(1, 6)
            self.buffers[key].feed(self.world.logs[key][self.at[key] : self.at[key] + size])
            self.at[key] += size
        elif self.ask_for_ends():
            return True
        else:
            self.now_s += LOOKS_APART_S + 1
            return self.ask_for_ends()
        self.now_s += chance.random()
        self.ask_for_ends()
        return True

    def ask_for_ends(self) -> bool:
        missing = self.order.wants_ends(self.buffers, self.now_s)
        if not missing:
            return False
        ends = {k: self.told(k) for k in missing}
        self.order.set_ends(ends, JOURNAL_END, self.now_s, self.now_s)
        return True

    def told(self, key: TopicPartition) -> int:
        end = len(self.world.logs[key])
        is_former = self.former_s <= self.now_s < self.former_s + LOOKS_APART_S
        return min(end, int(self.former_s * 1_000) % 20) if is_former else end

    def take(self) -> tuple[int, list[tuple[TopicPartition, int]]] | None:
        """Returns the next transaction as one: (commit sequence, records)."""
        whole: Whole | None = self.order.take(self.buffers)
        if whole is None:
            return None
        records = []
        for key in sorted(whole.entries):
            entry = self.buffers[key].hand_over(whole.entries[key].txid)
            records += [(key, r.offset()) for r in self.buffers[key].stream(entry)]
            self.buffers[key].finish(entry)
        return whole.decision.sequence, records

    def take_records(self, limit: int) -> list[tuple[TopicPartition, FakeRecord]]:
        """Returns some records, in one partition, of the transaction whose turn it is."""
        return [(key, r) for key, r in self.take_share(limit) if isinstance(r, FakeRecord)]

    def take_share(self, limit: int) -> list[tuple[TopicPartition, Record]]:
        """Returns the same as `take_records`, whatever kind the records are of."""
        if not self.shares:
            whole = self.order.take(self.buffers)
            if whole is None:
                return []
            self.shares = sorted(whole.entries.items())
            self.buffers[self.shares[0][0]].let_through(self.shares[0][1].txid)
        key = self.shares[0][0]
        taken = self.buffers[key].take(limit)
        if not self.buffers[key].delivering:
            self.shares.pop(0)
            if self.shares:
                self.buffers[self.shares[0][0]].let_through(self.shares[0][1].txid)
        return [(key, r) for r in taken]

    def positions(self) -> dict[TopicPartition, Position]:
        return {
            k: Position.from_metadata(p.o1, p.to_metadata())
            for k, b in self.buffers.items()
            for p in [b.position()]
        }


def settled(made: World, keys: tuple[TopicPartition, ...]) -> list[tuple[int, list[object]]]:
    """Returns what must come: all transactions before the first that lacks a marker in `keys`."""
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


@examples(400)
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
        life = Life(made, positions, former_s=chance.random() * 20)
        found = None
        while found is None and life.read(chance):
            found = life.take()
        if found is None:
            break
        got.append((found[0], list(found[1])))
        if chance.random() < 0.5:  # take one more in the same life
            found = life.take()
            if found is not None:
                got.append((found[0], list(found[1])))
        positions = life.positions()
        life.order.begin()
    assert got == settled(made, keys)
    assert [s for s, _ in got] == sorted(s for s, _ in got)


@examples(300)
@given(st.integers(0, 2**32), st.integers(10, 150), st.integers(0, 40))
def test_a_start_in_the_middle_never_hangs_on_what_lies_before(
    seed: int, count: int, start: int
) -> None:
    made = world(seed, count)
    chance = Random(seed)
    starts = {key: Position.at(min(start, len(made.logs[key]))) for key in KEYS}
    life = Life(made, starts, former_s=chance.random() * 20)
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
                # What begins before the start is skipped, as if retention had deleted it.
                buffer.torn_skip_below = 2**63
                buffer.answer_side_read(request, None, duplicate=again, torn=True)
        found = life.take()
        if found is not None:
            got.append(found[0])
        elif not reading:
            break
    assert got == sorted(got)
    waiting = life.order.head(life.buffers)
    if waiting is not None:
        # The order may wait only for a transaction that is not finished.
        assert ("finished", waiting) not in made.journal


def a_floor(made: World, chance: Random) -> int | None:
    return chance.randrange(len(made.journal) + 1) if chance.random() < 0.5 else None


@examples(400)
@given(st.integers(0, 2**32), st.integers(10, 150), st.integers(1, 3), st.integers(0, 2**32))
def test_trap_18_23_a_stop_at_any_record_loses_and_repeats_nothing(
    seed: int, count: int, width: int, reading: int
) -> None:
    """Each life delivers a few records of a transaction over several partitions, and dies.

    The next life begins to read the journal at its start, or at a random floor.
    """
    made = world(seed, count)
    keys = KEYS[:width]
    chance = Random(reading)
    want = [record for _, records in settled(made, keys) for record in records]
    positions = {key: Position.at(0) for key in keys}
    got: list[object] = []
    for _ in range(len(want) + 2):
        life = Life(made, positions, a_floor(made, chance), chance.random() * 20)
        taken: list[tuple[TopicPartition, FakeRecord]] = []
        while not taken and life.read(chance):
            taken = life.take_records(chance.randrange(1, 4))
        if not taken:
            break
        chosen = chance.randrange(len(taken))
        key = taken[chosen][0]
        got += [(k, r.at) for k, r in taken]
        positions = life.positions()
        if chance.random() < 0.3:  # commit only up to one of them, as commit(message) does
            after = life.buffers[key].position_after(taken[chosen][1].offset())
            assert after is not None
            positions[key] = Position.from_metadata(after.o1, after.to_metadata())
            del got[len(got) - len(taken) + chosen + 1 :]
    assert got == want


@examples(200)
@given(st.integers(0, 2**32), st.integers(10, 150), st.integers(0, 2**32))
def test_partitions_that_move_are_neither_lost_nor_repeated(
    seed: int, count: int, reading: int
) -> None:
    """Of two members, each reads some records; then any partition may move, with its position."""
    made = world(seed, count)
    chance = Random(reading)
    positions = {key: Position.at(0) for key in KEYS}
    got: dict[TopicPartition, list[tuple[int, int]]] = {key: [] for key in KEYS}
    for still in range(10_000):
        mine = {key: chance.random() < 0.5 for key in KEYS}
        moved = False
        for member in (True, False):
            held = {k: p for k, p in positions.items() if mine[k] is member}
            life = Life(made, held, a_floor(made, chance), chance.random() * 20)
            last = -1
            for _ in range(chance.randrange(1, 12)):
                while not (taken := life.take_records(2)) and life.read(chance):
                    pass
                for key, record in taken:
                    moved = True
                    sequence = sequence_of(made, record)
                    # While its partitions stay, a member delivers in serial order.
                    assert last <= sequence
                    last = sequence
                    got[key].append((sequence, record.at))
            positions |= life.positions()
        if not moved and still > 5:
            break
    wanted: dict[TopicPartition, list[tuple[int, int]]] = {key: [] for key in KEYS}
    for key in KEYS:
        for sequence, records in settled(made, (key,)):
            wanted[key] += [(sequence, offset) for k, offset in records if k == key]  # type: ignore[misc]
    for key in KEYS:
        # The two members together saw a partition's records in order and without a gap, as far as
        # both could go.
        assert got[key] == wanted[key][: len(got[key])]


def sequence_of(made: World, record: FakeRecord) -> int:
    raw = dict(record.header_list or [])["TxId"]
    return next(
        d.sequence for kind, d in made.journal if kind == "decided" and d.txid.to_bytes() == raw
    )


def test_what_should_lie_ahead_is_given_up_when_no_end_shows_it_for_long() -> None:
    """Its marker went with a topic that was created again, and the journal calls it finished."""
    met, lost = TxId(0, INCARNATION, 0), TxId(0, INCARNATION, 1)
    log = [data(0, met), marker(1, met, 2, (0, 0, 0, 1))]
    made = World({("t", 0): log, ("t", 1): [], ("u", 0): []})
    life = Life(made, {("t", 0): Position.at(0)}, former_s=-10.0)
    life.buffers["t", 0].feed(log)
    for decision in (CommitDecision(2, met, 0, KEYS[:1]), CommitDecision(3, lost, 0, KEYS[:1])):
        life.order.decide(decision)
        life.order.finish(decision, decision.sequence)
    assert life.take() == (2, [(("t", 0), 0)])
    while life.now_s < CONTRADICTED_APART_S:
        life.ask_for_ends()
        assert life.take() is None
        assert life.order.missing(life.buffers) == [("t", 0)]
        life.now_s += LOOKS_APART_S + 1
    life.ask_for_ends()
    assert life.take() is None
    assert len(life.order) == 0
    assert life.order.counters.skipped_transactions == 1
