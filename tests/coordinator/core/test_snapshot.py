"""Snapshots compared with their journal: a reader that begins at one knows what all others know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any, Final

import pytest

from logtx.coordinator.core import snapshot as snapshots
from logtx.coordinator.core.decision import Decision, ShardConfig
from logtx.coordinator.core.producers import ProducerRows, Producers
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.snapshot import SnapshotTaker
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange
from logtx.journal.errors import ClaimFencedError
from logtx.journal.position import Position
from logtx.journal.records.codec import decode_entry, encode_entry
from logtx.journal.records.types import (
    Claim,
    Entry,
    Owner,
    PrepareAbort,
    ProducerRecord,
    Snapshot,
    SnapshotProducer,
)

from ...parameters import slow
from ..harness import INCARNATION, PARTITION, Coordinator, Journal, dump, step, txid
from .test_shard_stateful import WEIGHTS, World

SMALL_CHUNK_BYTES: Final = 300
"""Room for a row or two."""


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", SMALL_CHUNK_BYTES)


class SnapshotWorld(World):
    """A `World` whose coordinators now and then append a chunk of a snapshot."""

    def __init__(self) -> None:
        super().__init__()
        self._takers: dict[int, tuple[Shard, SnapshotTaker]] = {}

    def append_chunk(self, where: int) -> None:
        """Appends the next chunk of the coordinator's snapshot, or the first of another one."""
        coordinator = self.at(where)
        if not coordinator.serving:
            return
        shard, taker = self._takers.get(id(coordinator), (None, None))
        if taker is None or taker.done or shard is not coordinator.shard:
            shard, taker = coordinator.shard, SnapshotTaker(coordinator.shard)
            self._takers[id(coordinator)] = shard, taker
        coordinator.apply(Decision(records=(taker.chunk(),)))


def history(seed: int, steps: int = 80) -> list[Entry]:
    """Returns the journal of a random history."""
    chance = Random(seed)
    world = SnapshotWorld()
    for who in (0, 2):
        world.connect(who, 0, 0)
    world.ack(9, 0)
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    for _ in range(steps):
        [action] = chance.choices(names, weights)
        a, b = chance.choice((0, 0, 0, 2, 2, 1, 3)), chance.randrange(16)
        world.act(action, a, b, int(chance.random() < 0.1))
        for _ in range(chance.choice((0, 0, 0, 1, 2))):
            world.append_chunk(int(chance.random() < 0.1))
    world.ack(99, 0)
    return world.journal.entries


def known(shard: Shard) -> dict[str, Any]:
    """Returns what a shard knows, without the outcomes of finished transactions."""
    return {
        **dump(shard),
        "outcomes": None,
        "snapshot": shard.snapshot_offset,
        "hw": shard.hw,
        "fence": shard.fences.waiting,
    }


def replica(entries: list[Entry], start: int = 0, *, certain: bool = False) -> Replica:
    """Returns a replica that began at `start` and has followed the journal to its end."""
    found = Replica(PARTITION, ShardConfig(), start, certain=certain)
    for offset in range(start, len(entries)):
        found.feed(offset, entries[offset])
    return found


def counting(entries: list[Entry]) -> list[int]:
    """Returns the first chunks of the snapshots that count, found by reading everything."""
    shard, found = Shard(PARTITION), []
    for offset, entry in enumerate(entries):
        shard.replay(offset, entry)
        if shard.snapshot_offset is not None and shard.snapshot_offset not in found:
            found.append(shard.snapshot_offset)
    return found


@pytest.mark.parametrize("seed", [*range(30), *slow(range(30, 60))])
def test_a_load_from_a_snapshot_equals_one_from_the_start(seed: int) -> None:
    entries = history(seed)
    truth = known(replica(entries).shard)
    snapshots_found = counting(entries)
    for start in snapshots_found:
        assert known(replica(entries, start, certain=True).shard) == truth
    # A loader without a checkpoint begins where the trimmed journal does. Traps 8, 9.
    for start in range(1, max(snapshots_found, default=0) + 1):
        assert known(replica(entries, start).shard) == truth


@pytest.mark.parametrize("seed", [*range(60, 68), *slow(range(68, 80))])
def test_a_torn_snapshot_never_counts(seed: int) -> None:
    """Its owner died between two chunks, had a surprise, or was replaced: trap 9."""
    entries = history(seed)
    firsts = {e.record.first for e in entries if isinstance(e.record, Snapshot)}
    for cut in range(len(entries)):
        truth, counted = known(replica(entries[:cut]).shard), counting(entries[:cut])
        for start in sorted(first for first in firsts if first < cut):
            found = replica(entries[:cut], start, certain=True)
            if start in counted:
                assert known(found.shard) == truth
            else:
                assert not found.ready or found.shard.snapshot_offset in counted


def test_histories_hold_what_could_go_wrong() -> None:
    """Without these the tests above could not fail."""
    counted = torn = spread = 0
    for seed in range(10):
        entries = history(seed)
        chunks = [e.record for e in entries if isinstance(e.record, Snapshot)]
        found = counting(entries)
        counted += len(found)
        torn += len({chunk.first for chunk in chunks} - set(found))
        spread += len({chunk.first for chunk in chunks if chunk.index > 2} & set(found))
    assert min(counted, torn, spread) > 3


def forget_claims(patch: pytest.MonkeyPatch) -> None:
    """A snapshot leaves out the claims (trap 8)."""
    rows = snapshots._rows
    patch.setattr(snapshots, "_rows", lambda shard: (*rows(shard)[:4], [], *rows(shard)[5:]))


def forget_doomed(patch: pytest.MonkeyPatch) -> None:
    """A snapshot forgets which transactions are doomed: they look as if they could commit."""
    row = snapshots._transaction_row
    patch.setattr(snapshots, "_transaction_row", lambda t: row(t)._replace(doomed=None))


@pytest.mark.parametrize("forget", [forget_claims, forget_doomed])
def test_a_snapshot_without_claims_is_found_out(
    forget: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(monkeypatch)
    with pytest.raises(AssertionError):
        test_claims_and_what_they_doom_are_in_a_snapshot()


def test_claims_and_what_they_doom_are_in_a_snapshot() -> None:
    """Trap 8: the snapshot lies behind a claim; the aborts that follow from the claim are lost."""
    journal = Journal()
    owner = Coordinator(journal)
    owner.take_over()
    owner.submit(commands.Connect(producer_id="p", nonce=1, generation=None), "connect")
    session = commands.SessionId("p", 0, 1)
    owner.submit(
        commands.Begin(session=session, request_id=1, answered_below=0, timeout_ms=9), "begin"
    )
    steps = (step(("a", 0), None, 1),)
    owner.submit(
        commands.AddOffsets(session=session, txid=txid(2), group="g", steps=steps), "offsets"
    )
    owner.ack()
    claims = [
        Claim(group="g", claimant=1, partitions=(("a", 0), ("a", 1), ("b", 0))),
        Claim(group="g", claimant=2, partitions=(("a", 1),)),
    ]
    owner.apply(Decision(records=tuple(claims)))
    first = take_snapshot(owner)
    owner.ack()
    found = replica(journal.entries, first, certain=True).shard
    assert known(found) == known(replica(journal.entries).shard)
    claimed = {p: row.number for row in found.claims.rows() for p in row.partitions}
    assert claimed == {("a", 0): 4, ("b", 0): 4, ("a", 1): 5}
    refused = commands.AddOffsets(session=session, txid=txid(2), group="g", steps=steps)
    [(_, reply)] = found.handle(refused, "ref", owner.now, owner.topics).replies
    assert isinstance(reply, ClaimFencedError)
    # An owner that loads from there writes the abort.
    found.loaded(owner.now)
    due = found.due(owner.now, owner.topics)
    assert due is not None
    assert [type(r) for r in due.records] == [PrepareAbort]


def take_snapshot(owner: Coordinator) -> int:
    """Appends a whole snapshot; returns the offset that its first chunk should get."""
    taker = SnapshotTaker(owner.shard)
    while not taker.done:
        owner.apply(Decision(records=(taker.chunk(),)))
    return taker.first


def landed_void(stranger: Entry) -> tuple[list[Entry], int]:
    """Makes a journal with a void snapshot, consistent in itself, between two that count.

    Owner c1 has a BEGIN and a snapshot in flight. The BEGIN is lost, and the stranger's record
    lands in its place. Then c1's snapshot lands where it was predicted.

    Returns:
        The journal, and the void snapshot's offset.
    """
    journal = Journal()
    c1, c2 = Coordinator(journal, name="c1"), Coordinator(journal, name="c2")
    c1.take_over()
    c1.submit(commands.Connect(producer_id="p", nonce=1, generation=None), "connect")
    counts = take_snapshot(c1)
    c1.ack()
    c1.submit(
        commands.Begin(
            session=commands.SessionId("p", 0, 1), request_id=1, answered_below=0, timeout_ms=1_000
        ),
        "begin",
    )
    take_snapshot(c1)
    _begin, chunk = c1.in_flight
    journal.append(stranger)
    assert journal.append(chunk.entry) == chunk.predicted
    c2.take_over()
    c2.submit(commands.Connect(producer_id="q", nonce=2, generation=None), "connect")
    behind = take_snapshot(c2)
    c2.ack()
    assert counting(journal.entries) == [counts, behind]
    return journal.entries, chunk.predicted


def test_a_void_snapshot_is_not_believed_by_who_knows_better() -> None:
    usurper = Owner(replaces=0, address="c3", process_nonce=3)
    entries, _void = landed_void(Entry(0, INCARNATION, usurper))
    counts = counting(entries)[0]
    for cut in range(counts + 1, len(entries)):
        assert known(replica(entries[:cut], counts).shard) == known(replica(entries[:cut]).shard)


@pytest.mark.parametrize("replaces", [0, 77], ids=["usurper", "loser"])
def test_a_void_snapshot_is_found_out(replaces: int) -> None:
    """The stranger's OWNER ends c1's epoch, or is void and a surprise: traps 2, 7, 9."""
    stranger = Owner(replaces=replaces, address="c3", process_nonce=3)
    entries, void = landed_void(Entry(replaces, INCARNATION, stranger))
    believed = replica(entries[: void + 1], void)
    assert believed.ready, "the trap is not set"
    assert "q" not in believed.shard.producers
    truth = known(replica(entries).shard)
    assert not truth["unfinished"]
    assert known(replica(entries, void).shard) == truth


def test_a_record_that_does_not_follow_from_a_void_snapshot_finds_it_out() -> None:
    """The next owner finishes again what the void snapshot says is finished."""
    journal = Journal()
    c1, c2 = Coordinator(journal, name="c1"), Coordinator(journal, name="c2")
    c1.take_over()
    c1.submit(commands.Connect(producer_id="p", nonce=1, generation=None), "connect")
    take_snapshot(c1)
    c1.ack()
    session = commands.SessionId("p", 0, 1)
    c1.submit(
        commands.Begin(session=session, request_id=1, answered_below=0, timeout_ms=1_000), "begin"
    )
    c1.ack()
    begun = c1.replies["begin"]
    assert isinstance(begun, commands.Began)
    c1.submit(
        commands.End(session=session, txid=begun.txid, action=commands.Action.COMMIT, writes={}),
        "commit",
    )
    c1.ack()
    c1.finish(begun.txid.offset)
    take_snapshot(c1)
    _committed, chunk = c1.in_flight
    journal.append(Entry(77, INCARNATION, Owner(replaces=77, address="c3", process_nonce=3)))
    assert journal.append(chunk.entry) == chunk.predicted
    c2.take_over()
    c2.finish(begun.txid.offset)
    c2.ack()
    believed = replica(journal.entries[:-1], chunk.predicted)
    assert believed.ready, "the trap is not set"
    assert not replica(journal.entries, chunk.predicted).ready
    take_snapshot(c2)
    c2.ack()
    truth = known(replica(journal.entries).shard)
    assert known(replica(journal.entries, chunk.predicted).shard) == truth


def test_a_bid_for_a_void_epoch_is_found_out() -> None:
    """A loser's bid lands behind the void snapshot, and would be valid by that snapshot."""
    usurper = Owner(replaces=0, address="c3", process_nonce=3)
    entries, void = landed_void(Entry(0, INCARNATION, usurper))
    late_bid = Entry(0, INCARNATION, Owner(replaces=0, address="c4", process_nonce=4))
    behind = next(i for i in range(void, len(entries)) if isinstance(entries[i].record, Owner))
    journal = Journal()
    for entry in (*entries[:behind], late_bid):
        journal.append(entry)
    owner = Coordinator(journal, name="c2")
    owner.take_over()
    take_snapshot(owner)
    owner.ack()
    assert known(replica(journal.entries, void).shard) == known(replica(journal.entries).shard)


def test_a_huge_transaction_is_spread_over_chunks_that_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "CHUNK_BYTES", 5_000)
    journal = Journal()
    owner = Coordinator(journal)
    owner.take_over()
    owner.submit(commands.Connect(producer_id="p", nonce=1, generation=None), "connect")
    session, big = commands.SessionId("p", 0, 1), {}
    for number in range(2):
        ref = f"begin {number}"
        owner.submit(
            commands.Begin(session=session, request_id=number, answered_below=0, timeout_ms=1_000),
            ref,
        )
        owner.ack()
        big[number] = owner.replies[ref].txid  # type: ignore[union-attr]
        for part in range(10):
            first = 10_000 * number + 100 * part
            steps = tuple(step(("a", p), None, 7) for p in range(first, first + 100))
            owner.submit(
                commands.AddOffsets(session=session, txid=big[number], group="g", steps=steps),
                (number, part),
            )
    branches = tuple(BranchRange(branch, 0, 9, 10) for branch in range(100))
    owner.submit(
        commands.End(
            session=session,
            txid=big[0],
            action=commands.Action.COMMIT,
            writes={("b", p): branches for p in range(4)},
        ),
        "commit",
    )
    owner.ack()
    first = take_snapshot(owner)
    owner.ack()
    chunks = [e for e in journal.entries if isinstance(e.record, Snapshot)]
    assert len(chunks) > 10
    assert max(len(encode_entry(chunk)) for chunk in chunks) < 5_000
    found = replica(journal.entries, first, certain=True)
    assert known(found.shard) == known(replica(journal.entries).shard)


def test_a_large_position_fits_a_chunk_of_its_own() -> None:
    """A part larger than a chunk should be gets a chunk alone; it fitted into a record before."""
    shard = Shard(PARTITION)
    owner = Owner(replaces=-1, address="c1", process_nonce=1)
    shard.replay(0, Entry(-1, INCARNATION, owner))
    met = {(number, 2**48 - 1): 2**62 for number in range(5_000)}
    shard.offsets.restore("g", [("a", 0, Position(o1=0, o2=0, met=met))], txid(5), 6)
    taker = SnapshotTaker(shard)
    entry = shard.entry(taker.chunk())
    assert taker.done
    assert decode_entry(encode_entry(entry)) == entry


def test_producers_that_change_between_chunks_are_told_as_they_were() -> None:
    """Also those that are forgotten, and not those that come."""
    owner = Coordinator(Journal(), name="c1")
    owner.take_over()
    for name in "abcde":
        connect = commands.Connect(producer_id=name, nonce=1, generation=None)
        owner.submit(connect, f"connect {name}")
    owner.ack()
    producers = owner.shard.producers
    before = list(ProducerRows(producers))
    rows = iter(ProducerRows(producers))
    found = [next(rows)]
    owner.submit(commands.Connect(producer_id="c", nonce=2, generation=1), "newer")
    owner.submit(commands.Connect(producer_id="f", nonce=1, generation=None), "late")
    session = commands.SessionId("d", 0, 1)
    begin = commands.Begin(session=session, request_id=1, answered_below=0, timeout_ms=1_000)
    owner.submit(begin, "begin")
    producers.replay_forget(["e"])
    found += rows
    assert [row.producer_id for row in before] == list("abcde")
    assert sorted(found) == before
    assert producers["c"].generation == 1
    assert producers["d"].begins


def test_a_snapshot_that_was_given_up_keeps_nothing() -> None:
    producers = Producers()
    session = ProducerRecord(producer_id="p", generation=0, session_nonce=1, owner="o")
    producers.replay(session, 0)
    rows = ProducerRows(producers)
    assert producers.rows is not None
    del rows
    producers.replay(replace(session, generation=1), 0)
    assert producers.rows is None


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_producers_are_those_of_their_moment(seed: int) -> None:
    """Whatever is replayed while they are given out; also if they are given up for others."""
    chance, finished = Random(seed), 0
    producers, names = Producers(), [f"p{n}" for n in range(chance.randrange(1, 12))]
    taking: tuple[Iterator[SnapshotProducer], list[SnapshotProducer]] | None = None
    found: list[SnapshotProducer] = []
    for offset in range(2_000):
        draw = chance.random()
        if draw < (0.05 if taking is None else 0.01):
            wanted = sorted(ProducerRows(producers))
            taking, found = (iter(ProducerRows(producers)), wanted), []
        elif draw < 0.3 and taking is not None:
            row = next(taking[0], None)
            if row is not None:
                found.append(row)
                continue
            assert sorted(found) == taking[1]
            taking, finished = None, finished + 1
        else:
            replay_something(producers, chance, chance.choice(names), offset)
    assert finished > 10


def replay_something(producers: Producers, chance: Random, name: str, offset: int) -> None:
    draw = chance.random()
    if draw < 0.4 or name not in producers:
        record = ProducerRecord(
            producer_id=name,
            generation=chance.randrange(5),
            session_nonce=chance.randrange(3),
            owner=chance.choice("ab"),
            voided=chance.random() < 0.1,
            connected_ms=offset,
        )
        producers.replay(record, chance.randrange(9))
    elif draw < 0.8:
        below = max(0, offset - chance.randrange(6))
        begin: Any = SimpleNamespace(producer_id=name, request_id=offset, answered_below=below)
        transaction: Any = SimpleNamespace(begin=offset, producer_id=name, generation=0)
        producers.replay_begin(begin, transaction, chance.randrange(9))
    else:
        producers.replay_forget([name])
