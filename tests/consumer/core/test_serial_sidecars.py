"""Serial order with transactions in sidecars: random logs, reading speeds, and stops.

Some transactions write to the main partitions, some to the sidecars, and some began in the main
partition and grew into the sidecar. Pointers are written again by recoveries. All of it is read in
slices, so that a transaction's turn comes before or after its sidecar is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logtx.consumer.core.buffer import PartitionBuffer
from logtx.consumer.core.pending import PendingTransaction, PendingTransactionMap, Record
from logtx.consumer.core.pointers import PointedTransaction
from logtx.consumer.core.serial_buffer import SerialBuffer
from logtx.consumer.core.serial_order import CommitDecision
from logtx.consumer.core.uncommitted import UncommittedBuffer
from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    Marker,
    TopicPartition,
    encode_marker,
)
from logtx.journal.errors import IntegrityError, SpillError, TornTransactionError
from logtx.journal.position import Position
from logtx.journal.sidecar import to_delivered
from logtx.journal.txid import TxId

from ...simulation.followers import MemoryStore
from ..records import INCARNATION, FakeRecord, data, malformed, plain
from .test_serial_order import KEYS, Life, World, a_floor

Delivered = tuple[TopicPartition, int]


@dataclass
class SidecarWorld(World):
    """Three data partitions with a sidecar each, and the journal."""

    sides: dict[TopicPartition, list[FakeRecord]] = field(default_factory=dict)


@dataclass
class Writes:
    """What a transaction wrote in one partition."""

    main: list[int] = field(default_factory=list)
    side: list[int] = field(default_factory=list)


def _span(offsets: list[int]) -> tuple[BranchRange, ...]:
    return (BranchRange(0, offsets[0], offsets[-1], len(offsets)),) if offsets else ()


def end_record(
    at: int,
    owner: TxId,
    sequence: int,
    writes: Writes,
    since: int,
    *,
    commit: bool,
    sidecar_id: str = "",
) -> FakeRecord:
    marker = Marker(
        committed=commit,
        commit_sequence=sequence,
        hw=0,
        epoch=1,
        branches=_span(writes.main) if commit else (),
        sidecar=_span(writes.side) if commit else (),
        since=since if commit and writes.side else 0,
        sidecar_id=sidecar_id,
    )
    headers: list[tuple[str, bytes | None]] = [
        (TXID_HEADER, owner.to_bytes()),
        (TXCTL_HEADER, encode_marker(marker)),
    ]
    return FakeRecord(at, headers, payload=None)


def sidecar_world(seed: int, count: int) -> SidecarWorld:  # noqa: PLR0912
    chance = Random(seed)
    made = SidecarWorld({k: [] for k in KEYS}, sides={k: [] for k in KEYS})
    lanes: dict[TopicPartition, list[tuple[TxId, int, bool, Writes, int]]] = {k: [] for k in KEYS}
    open_ones: list[tuple[TxId, str, dict[TopicPartition, Writes]]] = []
    unmarked: dict[int, tuple[CommitDecision, set[TopicPartition]]] = {}
    end = 0
    for _ in range(count):
        step, key = chance.randrange(7), chance.choice(KEYS)
        log, side = made.logs[key], made.sides[key]
        if step == 0:
            kind = chance.choice(("main", "side", "side", "grows"))
            open_ones.append((TxId(0, INCARNATION, end), kind, {}))
            end += 1
        elif step in (1, 2, 3) and open_ones:
            owner, kind, all_writes = chance.choice(open_ones)
            writes = all_writes.setdefault(key, Writes())
            grown = kind == "grows" and (writes.side or chance.random() < 0.5)
            if kind == "side" or grown:
                writes.side.append(len(side))
                side.append(data(len(side), owner))
            else:
                writes.main.append(len(log))
                log.append(data(len(log), owner))
        elif step == 4 and open_ones:
            owner, _, all_writes = open_ones.pop(chance.randrange(len(open_ones)))
            sequence, end, commit = end, end + 1, chance.random() < 0.8
            for place, writes in all_writes.items():
                if commit or writes.main:  # an abort leaves no trace of what lies in the sidecar
                    now = len(made.logs[place])
                    since = chance.randrange(max(0, now - 3), now + 1)
                    lanes[place].append((owner, sequence, commit, writes, since))
            if commit:
                decision = CommitDecision(sequence, owner, 0, tuple(sorted(all_writes)))
                made.journal.append(("decided", decision))
                if all_writes:
                    unmarked[sequence] = decision, set(all_writes)
                    records = [(k, o) for k in sorted(all_writes) for o in delivered(all_writes[k])]
                    made.wanted.append((sequence, records))
        elif lanes[key]:
            owner, sequence, commit, writes, since = lanes[key].pop(0)
            for _ in range(1 + (chance.random() < 0.3)):  # a recovery writes it again
                log.append(end_record(len(log), owner, sequence, writes, since, commit=commit))
            if sequence in unmarked:
                unmarked[sequence][1].discard(key)
                if not unmarked[sequence][1]:
                    made.journal.append(("finished", unmarked.pop(sequence)[0]))
    return made


def delivered(writes: Writes) -> list[int]:
    """Returns the offsets as they are delivered, in order."""
    return [*writes.main, *map(to_delivered, writes.side)]


class SidecarLife(Life):
    """A `Life` that reads sidecars, some records at a time."""

    world: SidecarWorld
    sidecar_ids: Mapping[TopicPartition, str] = MappingProxyType({})

    def read(self, chance: Random) -> bool:
        self.side_reads()
        streamed = chance.random() < 0.5 and self.stream(chance)
        return super().read(chance) or streamed or self.stream(chance)

    def ask_for_ends(self) -> bool:
        # As the shell: nothing is asked of the order while a transaction is delivered.
        return not self.shares and super().ask_for_ends()

    def side_reads(self) -> None:
        for key, buffer in self.buffers.items():
            log = self.world.logs[key]
            for request in buffer.side_reads():
                assert not request.marker.branches, "what lies in the main log is read from o1 on"
                again = any(
                    record.payload is None
                    and dict(record.header_list or [])[TXID_HEADER] == request.txid
                    for record in log[request.first_offset : request.marker_offset]
                )
                buffer.answer_side_read(request, None, duplicate=again, torn=False)

    def stream(self, chance: Random, only: SerialBuffer | None = None) -> bool:
        """Reads a little in the sidecars. Returns whether anything was wanted there."""
        wanted = False
        for key, buffer in self.buffers.items():
            request = buffer.stream_wanted() if only in (None, buffer) else None
            if request is None:
                continue
            wanted, side = True, self.world.sides[key]
            if not request.is_open:
                buffer.open_stream(request, 0, len(side), self.sidecar_ids.get(key, ""))
            elif request.ahead < 4:
                at = request.next_offset
                batch = side[at : at + chance.randrange(1, 4)]
                buffer.push_stream(request, batch, batch[-1].offset() + 1)
        return wanted

    def take_placed(self, limit: int) -> list[Delivered]:
        """Returns some records, in one partition, of the transaction whose turn it is."""
        return [(key, r.offset()) for key, r in self.take_share(limit)]

    def take_whole(self, chance: Random) -> tuple[int, list[Delivered]] | None:
        """Returns the next transaction as one, read to its end: (commit sequence, records)."""
        whole = self.order.take(self.buffers)
        if whole is None:
            return None
        entries = {
            key: self.buffers[key].hand_over(e.txid) for key, e in sorted(whole.entries.items())
        }
        found: list[Delivered] = []
        for key, entry in entries.items():
            buffer = self.buffers[key]
            found += offsets(key, buffer.stream(entry))
            in_sidecar = isinstance(entry, PointedTransaction)
            while in_sidecar and entry.taken < entry.total:
                assert self.stream(chance, buffer), "there is more, and nothing is asked for"
                found += offsets(key, buffer.stream(entry))
        for key, entry in entries.items():
            assert not self.buffers[key].failure
            self.buffers[key].finish(entry)
        return whole.decision.sequence, found


def offsets(key: TopicPartition, records: Iterable[Record]) -> list[Delivered]:
    return [(key, record.offset()) for record in records]


def settled(
    made: SidecarWorld, keys: Iterable[TopicPartition]
) -> list[tuple[int, list[Delivered]]]:
    """Returns what must come: all transactions before the first that lacks an end in `keys`."""
    by_sequence = {d.sequence: d for kind, d in made.journal if kind == "decided"}
    expected: list[tuple[int, list[Delivered]]] = []
    for sequence, records in made.wanted:
        mine = [record for record in records if record[0] in keys]
        raw = by_sequence[sequence].txid.to_bytes()
        for key in {key for key, _ in mine}:
            ends = (r for r in made.logs[key] if r.payload is None)
            if all(dict(r.header_list or [])[TXID_HEADER] != raw for r in ends):
                return expected
        if mine:
            expected.append((sequence, mine))
    return expected


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 150), st.integers(1, 3), st.integers(0, 2**32))
def test_whole_transactions_come_in_decision_order_through_every_crash(
    seed: int, count: int, width: int, reading: int
) -> None:
    made = sidecar_world(seed, count)
    keys, chance = KEYS[:width], Random(reading)
    positions = {key: Position.at(0) for key in keys}
    got: list[tuple[int, list[Delivered]]] = []
    while True:
        life = SidecarLife(made, positions, former_s=chance.random() * 20)
        found = None
        while found is None and life.read(chance):
            found = life.take_whole(chance)
        if found is None:
            break
        got.append(found)
        positions = life.positions()
    assert got == settled(made, keys)


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 2**32), st.integers(10, 120), st.integers(1, 3), st.integers(0, 2**32))
def test_trap_105_a_stop_at_any_record_loses_and_repeats_nothing(
    seed: int, count: int, width: int, reading: int
) -> None:
    """Each life delivers a few records of a transaction over several partitions, and dies."""
    made = sidecar_world(seed, count)
    keys, chance = KEYS[:width], Random(reading)
    want = [record for _, records in settled(made, keys) for record in records]
    positions = {key: Position.at(0) for key in keys}
    got: list[Delivered] = []
    for _ in range(len(want) + 2):
        life = SidecarLife(made, positions, a_floor(made, chance), chance.random() * 20)
        taken: list[Delivered] = []
        while not taken and life.read(chance):
            taken = life.take_placed(chance.randrange(1, 4))
        if not taken:
            break
        got += taken
        positions = life.positions()
        chosen = chance.randrange(len(taken))
        if chance.random() < 0.3:  # commit only up to one of them, as commit(message) does
            key, offset = taken[chosen]
            after = life.buffers[key].position_after(offset)
            assert after is not None
            positions[key] = Position.from_metadata(after.o1, after.to_metadata())
            del got[len(got) - len(taken) + chosen + 1 :]
    assert got == want


def two_partitions(side: int) -> tuple[SidecarWorld, dict[TopicPartition, Position]]:
    """Returns a transaction of two records in each of two sidecars, the second of which holds so
    many records."""
    owner, keys = TxId(0, INCARNATION, 0), KEYS[:2]
    records = [data(0, owner), data(1, owner)]
    decision = CommitDecision(1, owner, 0, keys)
    ends = {k: [end_record(0, owner, 1, Writes(side=[0, 1]), 0, commit=True)] for k in keys}
    made = SidecarWorld(ends, sides={keys[0]: records, keys[1]: records[:side]})
    made.journal += [("decided", decision), ("finished", decision)]
    return made, {key: Position.at(0) for key in keys}


def read_all(life: SidecarLife) -> list[Delivered]:
    chance, got = Random(1), list[Delivered]()
    for _ in range(40):
        life.read(chance)
        got += life.take_placed(1)
    return got


def test_trap_106_nothing_is_delivered_while_another_sidecar_lacks_records() -> None:
    made, positions = two_partitions(side=1)
    life = SidecarLife(made, positions)
    assert read_all(life) == []
    failure = life.order.failure(life.buffers)
    assert isinstance(failure, IntegrityError)
    assert "ends at 1, and its records go up to 1" in str(failure)


def test_nothing_of_a_turn_that_has_not_come_is_read() -> None:
    made, positions = two_partitions(side=2)
    life = SidecarLife(made, positions)
    chance, (first, second) = Random(1), KEYS[:2]
    life.buffers[first].feed(made.logs[first])
    assert life.stream(chance), "whether the sidecar holds the range is told before its turn"
    assert not life.buffers[first].blocked
    assert not life.stream(chance)
    assert life.buffers[first].queued_records == 1, "a pointer counts, so that many are throttled"
    assert [*life.buffers[first].pending()] == []
    del second
    got = read_all(life)
    assert got == [(key, to_delivered(n)) for key in KEYS[:2] for n in range(2)]


def test_a_trimmed_sidecar_fails_the_transaction_in_its_turn() -> None:
    made, positions = two_partitions(side=2)
    life = SidecarLife(made, positions)
    for key in KEYS[:2]:
        life.buffers[key].feed(made.logs[key])
        request = life.buffers[key].stream_wanted()
        assert request is not None
        life.buffers[key].open_stream(request, 1, 2)
    life.order.decide(made.journal[0][1])
    assert life.order.take(life.buffers) is None
    assert isinstance(life.order.failure(life.buffers), TornTransactionError)


def test_a_position_in_the_middle_keeps_the_place_in_the_sidecar() -> None:
    made, positions = two_partitions(side=2)
    life = SidecarLife(made, positions)
    chance, key = Random(1), KEYS[0]
    while not life.take_placed(1):
        life.read(chance)
    told = life.positions()[key]
    assert (told.o2, told.o3, told.side) == (0, 1, 1)
    again = SidecarLife(made, life.positions())
    again.buffers[key].feed(made.logs[key])
    request = again.buffers[key].stream_wanted()
    assert request is not None
    assert request.next_offset == 1
    assert again.buffers[key].position() == told, "before anything more is delivered"


def test_trap_107_a_copy_that_comes_while_its_pointer_is_delivered_is_not_collected() -> None:
    made, positions = two_partitions(side=2)
    key, owner = KEYS[0], TxId(0, INCARNATION, 0)
    life = SidecarLife(made, {key: positions[key]})
    chance = Random(1)
    while not life.take_placed(1):
        life.read(chance)
    copy = end_record(1, owner, 1, Writes(side=[0, 1]), 0, commit=True)
    life.buffers[key].feed([copy])
    assert life.buffers[key].first(owner.journal) is None
    while life.shares:
        life.read(chance)
        life.take_placed(1)
    assert life.buffers[key].position().o2 == 2


@pytest.mark.parametrize("side", [1, 2])
def test_trap_106_what_lies_in_the_topic_waits_for_the_sidecar(side: int) -> None:
    """The same for a reader of committed records, of a transaction that lies in both."""
    owner = TxId(0, INCARNATION, 0)
    end = end_record(1, owner, 1, Writes(main=[0], side=[0, 1]), 0, commit=True)
    records = [data(0, owner), data(1, owner)][:side]
    buffer = PartitionBuffer(
        KEYS[0], Position.at(0), PendingTransactionMap(1 << 30), malformed=malformed
    )
    buffer.feed([data(0, owner), end])
    assert buffer.take(9) == []
    request = buffer.stream_wanted()
    assert request is not None
    buffer.open_stream(request, 0, side)
    if side == 1:
        assert isinstance(buffer.failure, IntegrityError)
        return
    assert [r.offset() for r in buffer.take(9)] == [0]
    buffer.push_stream(request, records, 2)
    assert [r.offset() for r in buffer.take(9)] == [to_delivered(0), to_delivered(1)]


def test_trap_108_a_reader_of_uncommitted_records_delivers_a_pointer_at_its_place() -> None:
    owner = TxId(0, INCARNATION, 0)
    end = end_record(1, owner, 1, Writes(side=[0, 1]), 1, commit=True)
    log = [plain(0), end, plain(2)]
    got, position = [], Position.at(0)
    while True:  # it restarts behind each record
        buffer = UncommittedBuffer(
            KEYS[0], position, PendingTransactionMap(1 << 30), malformed=malformed
        )
        buffer.feed(log[position.o1 :])
        taken = buffer.take(1)
        while not taken and (request := buffer.stream_wanted()) is not None:
            if request.is_open:
                at = request.next_offset
                buffer.push_stream(request, [data(at, owner)], at + 1)
            else:
                buffer.open_stream(request, 0, 2)
            taken = buffer.take(1)
        if not taken:
            break
        got.append(taken[0].offset())
        position = buffer.position()
    assert got == [0, to_delivered(0), to_delivered(1), 2]


def test_what_was_read_aside_is_kept_while_the_sidecar_is_asked() -> None:
    owner = TxId(0, INCARNATION, 0)
    end = end_record(1, owner, 1, Writes(main=[0], side=[0]), 0, commit=True)
    pending_map = PendingTransactionMap(1, MemoryStore())
    buffer = PartitionBuffer(KEYS[0], Position.at(1), pending_map, malformed=malformed)
    buffer.feed([end])
    [request] = buffer.side_reads()
    found = PendingTransaction(KEYS[0], owner.to_bytes(), 0)
    found.records.append(data(0, owner))
    pending_map.charge([found])
    assert buffer.answer_side_read(request, found, duplicate=False, torn=False)
    pending_map.enforce()
    assert buffer.position().o1 == 0, "it is to be read again after a restart"
    stream = buffer.stream_wanted()
    assert stream is not None
    buffer.open_stream(stream, 0, 1)
    buffer.push_stream(stream, [data(0, owner)], 1)
    assert [r.offset() for r in buffer.take(9)] == [0, to_delivered(0)]
    assert buffer.failure is None


def test_a_pointer_that_waits_counts_as_a_record_that_is_read() -> None:
    buffer = PartitionBuffer(
        KEYS[0], Position.at(0), PendingTransactionMap(10**6), malformed=malformed
    )
    buffer.feed(
        [
            end_record(n, TxId(0, INCARNATION, n), n + 1, Writes(side=[2 * n]), n, commit=True)
            for n in range(3)
        ]
    )
    assert buffer.queued_records == 3


@pytest.mark.parametrize("aside", [True, False])
@pytest.mark.parametrize("sequence", [1, 100])
def test_trap_115_what_a_former_journal_decided_stands_in_front_of_nothing(
    aside: bool, sequence: int
) -> None:
    """The journal is made anew, and its offsets begin at 0 again."""
    key, former, owner = KEYS[0], TxId(0, INCARNATION - 1, 0), TxId(0, INCARNATION, 0)
    before = Writes(side=[0]) if aside else Writes(main=[0])
    log = [
        data(0, former),
        end_record(1, former, sequence, before, 0, commit=True),
        end_record(2, owner, 5, Writes(side=[1, 2]), 0, commit=True),
    ]
    side = [data(0, former), data(1, owner), data(2, owner)]
    decision = CommitDecision(5, owner, 0, (key,))
    made = SidecarWorld({key: log}, sides={key: side})
    made.journal += [("decided", decision), ("finished", decision)]
    life = SidecarLife(made, {key: Position.at(0)})
    assert read_all(life) == [(key, to_delivered(1)), (key, to_delivered(2))]
    again = SidecarLife(made, life.positions())
    assert read_all(again) == []


def test_trap_118_nothing_is_delivered_while_records_of_a_sidecar_made_anew_are_counted() -> None:
    made, positions = two_partitions(side=2)
    anew = [data(0, TxId(0, INCARNATION, 7)), data(1, TxId(0, INCARNATION, 7))]
    first, second = KEYS[:2]
    for key in (first, second):
        owner = TxId(0, INCARNATION, 0)
        end = end_record(0, owner, 1, Writes(side=[0, 1]), 0, commit=True, sidecar_id="old")
        made.logs[key] = [end]
    made.sides[second] = anew
    life = SidecarLife(made, positions)
    life.sidecar_ids = {first: "old", second: "new"}
    assert read_all(life) == []
    failure = life.order.failure(life.buffers)
    assert isinstance(failure, IntegrityError)
    assert "holds 0 of the 2 records" in str(failure)
    assert "deleted and created anew" in str(failure)


def test_a_spilled_part_that_is_gone_is_told() -> None:
    class Emptied(MemoryStore):
        def read(self, run: int) -> Iterator[Record]:
            return iter([*super().read(run)][:1])

    owner, pending_map = TxId(0, INCARNATION, 0), PendingTransactionMap(1, Emptied())
    buffer = SerialBuffer(
        KEYS[0], Position.at(0), pending_map, journal_partition=0, malformed=malformed
    )
    buffer.feed([data(n, owner) for n in range(3)])
    pending_map.enforce()
    buffer.feed([end_record(3, owner, 1, Writes(main=[0, 1, 2], side=[0]), 0, commit=True)])
    request = buffer.stream_wanted()
    assert request is not None
    buffer.open_stream(request, 0, 1)
    entry = buffer.hand_over(owner.to_bytes())
    with pytest.raises(SpillError, match="missing"):
        buffer.stream(entry)
