"""Two journals: one decides, and hands over to the other, which is the home of topic b."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from logtx.coordinator.core import tenure as tenures
from logtx.coordinator.core.adopting import refusing
from logtx.coordinator.core.decision import WriteLateMarkers, WriteMarkers
from logtx.coordinator.core.handing import Known, exchange, is_under_way
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.topic_homes import TopicHomes
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.modes import Mode
from logtx.journal.places import GONE, Adoption, PartitionId
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    Committed,
    Entry,
    JournalRecord,
    PrepareAbort,
    PrepareCommit,
    Snapshot,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..harness import Coordinator, Emitted, Journal, feed_lazily

HOME, OTHER = 0, 1
B0, B1 = PartitionId("b", 0, "id-b"), PartitionId("b", 1, "id-b")


class Journals:
    """The owners of both journals: in one process, or each with a replica of the other's."""

    def __init__(self, *, together: bool) -> None:
        self.together = together
        self.home = Coordinator(Journal(HOME))
        self.other = Coordinator(Journal(OTHER))
        for each in (self.home, self.other):
            each.keeps_late = True
            each.take_over()
        self.homes = TopicHomes(), TopicHomes()
        self._refs = itertools.count(1)
        reply = self.ask(self.other, commands.Connect(producer_id="p", nonce=1))
        assert isinstance(reply, commands.Connected)
        self.session = commands.SessionId("p", reply.generation, 1)
        self.switch(Mode.METADATA)

    # ---- what happens ---------------------------------------------------------------------------

    def submit(self, coordinator: Coordinator, command: commands.Command) -> int:
        ref = next(self._refs)
        coordinator.submit(command, ref)
        return ref

    def ask(self, coordinator: Coordinator, command: commands.Command) -> commands.Reply:
        ref = self.submit(coordinator, command)
        coordinator.ack()
        return coordinator.replies[ref]

    def switch(self, mode: Mode) -> None:
        self.ask(self.home, commands.SetTopicMode(topic="b", mode=mode))
        self.home.record_mode("b", 0)
        self.home.ack()
        self.home.publish("b")
        self.turn()

    def turn(self) -> None:
        """Lets each process exchange what it knows."""
        if self.together:
            exchange([self._owned(self.home), self._owned(self.other)], self.homes[0])
        else:
            exchange([self._owned(self.home), self._followed(self.other)], self.homes[0])
            exchange([self._followed(self.home), self._owned(self.other)], self.homes[1])

    def settle(self) -> None:
        """Lets all records land, and exchanges what follows from them."""
        for _ in range(4):
            self.turn()
            self.home.ack()
            self.other.ack()

    def _owned(self, coordinator: Coordinator) -> Known:
        return Known(coordinator.shard, coordinator.tenure)

    def _followed(self, coordinator: Coordinator) -> Known:
        return Known(coordinator.journal.load(), None)

    def place(self, **ends: int) -> None:
        assert self.home.ask_ends()
        ids = {"b0": B0, "b1": B1}
        self.home.tell_ends({ids[name]: end for name, end in ends.items()})

    def begin(self, *partitions: TopicPartition) -> TxId:
        command = commands.Begin(
            session=self.session,
            request_id=next(self._refs),
            answered_below=0,
            timeout_ms=60_000,
            partitions=partitions,
        )
        reply = self.ask(self.other, command)
        assert isinstance(reply, commands.Began)
        return reply.txid

    def commit(self, *keys: TopicPartition, lands: bool = True) -> TxId:
        txid = self.begin()
        writes = {key: (BranchRange(0, 0, 4, 5),) for key in keys}
        command = commands.End(
            session=self.session, txid=txid, action=commands.Action.COMMIT, writes=writes
        )
        self.submit(self.other, command)
        if lands:
            self.other.ack()
            self.written(txid)
        return txid

    def written(self, txid: TxId) -> None:
        """Reports the markers that a transaction gets at once."""
        self.other.finish(txid.offset)

    # ---- what there is --------------------------------------------------------------------------

    def state(self, txid: TxId) -> State:
        outcome = self.other.shard.transactions.outcome(txid.offset)
        assert outcome is not None
        return outcome.state

    def adoptions(self) -> list[Adoption]:
        return of_type(self.home, Adoption)


def of_type(coordinator: Coordinator, kind: type[JournalRecord]) -> list[JournalRecord]:
    """Returns the records of a type that are in the journal."""
    return [e.record for e in coordinator.journal.entries if isinstance(e.record, kind)]


@pytest.fixture(params=[False, True], ids=["apart", "together"])
def journals(request: pytest.FixtureRequest) -> Journals:
    return Journals(together=request.param)


def test_a_transaction_of_another_journal_is_placed_by_the_home(journals: Journals) -> None:
    txid = journals.commit(("a", 0), ("b", 0), ("b", 1))
    [decision] = of_type(journals.other, PrepareCommit)
    assert isinstance(decision, PrepareCommit)
    assert decision.handed == ((("b", 0), HOME), (("b", 1), HOME))
    assert decision.placed == ()
    assert journals.state(txid) is State.COMMITTING
    journals.turn()
    assert journals.adoptions() == []
    journals.home.ack()
    [adoption] = journals.adoptions()
    assert (adoption.txid, adoption.sequence, adoption.committed) == (txid, 3, True)
    assert [(w.partition, w.placed) for w in adoption.writes] == [(B0, True), (B1, True)]
    journals.settle()
    assert journals.state(txid) is State.COMMITTING, "adopted is not placed"
    journals.place(b0=5)
    journals.settle()
    assert journals.state(txid) is State.COMMITTING, "one place is missing"
    journals.home.now = replace(journals.home.now, monotonic_ms=1_000_000)
    journals.place(b1=7)
    journals.turn()
    journals.other.ack()
    assert journals.state(txid) is State.COMMITTING, "a place that is not durable says nothing"
    journals.settle()
    assert journals.state(txid) is State.COMMITTED
    assert journals.other.late_markers == {}
    assert len(journals.adoptions()) == 1
    assert not journals.other.tenure.handed
    assert not journals.home.shard.adopted.unplaced()


def test_an_abort_that_is_loaded_hands_over_what_its_parts_alone_name(journals: Journals) -> None:
    txid = journals.begin()
    written = {("b", 1): (BranchRange(7, 3, 8, 2),)}
    part = commands.AddWrites(session=journals.session, txid=txid, part=0, writes=written)
    assert journals.ask(journals.other, part) == commands.Done()
    abort = commands.AbortTransaction(txid=txid, reason=AbortReason.OPERATOR)
    journals.ask(journals.other, abort)
    replica = Replica(OTHER, journals.other.config)
    feed_lazily(replica, journals.other.journal.entries)
    transaction = replica.shard.transactions.get(txid.offset)
    assert transaction is not None
    assert transaction.handed == {("b", 1): HOME}
    journals.settle()
    assert [w.partition for a in journals.adoptions() for w in a.writes] == [B1]


def test_nothing_is_adopted_that_is_not_durable() -> None:
    journals = Journals(together=True)
    txid = journals.commit(("b", 0), lands=False)
    journals.turn()
    journals.home.ack()
    assert journals.adoptions() == []
    journals.other.ack()
    journals.written(txid)
    journals.turn()
    journals.home.ack()
    assert len(journals.adoptions()) == 1


def test_what_a_home_only_decided_is_no_answer() -> None:
    """The topic goes back to markers: the refusal must be durable before a marker goes out."""
    journals = Journals(together=True)
    txid = journals.commit(("b", 0))
    journals.switch(Mode.MARKERS)
    journals.turn()
    journals.turn()
    assert journals.other.late_markers == {}
    journals.home.ack()
    journals.settle()
    assert [*journals.other.late_markers] == [txid.offset]


def test_a_home_in_another_mode_refuses_and_the_marker_is_written(journals: Journals) -> None:
    txid = journals.commit(("b", 0))
    journals.ask(journals.home, commands.SetTopicMode(topic="b", mode=Mode.MARKERS))
    journals.settle()
    [adoption] = journals.adoptions()
    assert [w.placed for w in adoption.writes] == [False]
    [late] = journals.other.late_markers.values()
    assert late.partitions == (("b", 0),)
    assert journals.state(txid) is State.COMMITTING
    journals.other.finish_late(txid.offset, gone=False)
    journals.settle()
    assert journals.state(txid) is State.COMMITTED


def test_a_marker_waits_for_what_was_handed_over_before(journals: Journals) -> None:
    first = journals.commit(("b", 0))
    journals.ask(journals.home, commands.SetTopicMode(topic="b", mode=Mode.MARKERS))
    journals.turn()
    second = journals.begin()
    writes = {("b", 0): (BranchRange(0, 5, 6, 2),)}
    command = commands.End(
        session=journals.session, txid=second, action=commands.Action.COMMIT, writes=writes
    )
    journals.ask(journals.other, command)
    assert not journals.other.may_mark(second.offset)
    journals.settle()
    assert journals.other.may_mark(second.offset)
    assert [*journals.other.late_markers] == [first.offset]


def test_trap_72_a_marker_waits_for_each_late_one_of_a_lower_sequence(journals: Journals) -> None:
    """Two are refused by one look at the home, and a marker waits for both. A lane goes on as soon
    as it gets the first late marker: the one that waits must not follow before the second."""
    first, second = journals.commit(("b", 0)), journals.commit(("b", 0))
    journals.ask(journals.home, commands.SetTopicMode(topic="b", mode=Mode.MARKERS))
    journals.turn()
    third = journals.commit(("b", 0), lands=False)
    journals.other.ack()
    seen: list[tuple[int, bool]] = []

    def listen(event: object) -> None:
        if isinstance(event, Emitted) and isinstance(event.effect, WriteLateMarkers):
            waits = not journals.other.may_mark(third.offset)
            seen.append((event.effect.transaction.begin, waits))

    journals.other.listen = listen
    journals.settle()
    assert seen == [(first.offset, True), (second.offset, False)]


def test_nothing_is_handed_over_beside_a_marker(journals: Journals) -> None:
    """It was decided before the switch, and its marker is not written."""
    journals.switch(Mode.MARKERS)
    marked = journals.begin()
    writes = {("b", 0): (BranchRange(0, 0, 4, 5),)}
    command = commands.End(
        session=journals.session, txid=marked, action=commands.Action.COMMIT, writes=writes
    )
    journals.ask(journals.other, command)
    journals.switch(Mode.METADATA)
    beside_markers = journals.other.shard.is_beside_markers
    assert beside_markers([("a", 0), ("b", 0)], journals.other.topics)
    assert not beside_markers([("a", 0), ("b", 1), ("c", 0)], journals.other.topics)
    beside = journals.commit(("b", 0), ("b", 1))
    decisions = of_type(journals.other, PrepareCommit)
    assert isinstance(decisions[-1], PrepareCommit)
    assert decisions[-1].handed == ((("b", 1), HOME),)
    assert journals.state(beside) is State.COMMITTING
    journals.written(marked)
    journals.settle()
    journals.place(b1=5)
    journals.settle()
    assert journals.state(beside) is State.COMMITTED
    assert not beside_markers([("b", 0)], journals.other.topics)
    journals.commit(("b", 0))
    decisions = of_type(journals.other, PrepareCommit)
    assert isinstance(decisions[-1], PrepareCommit)
    assert decisions[-1].handed == ((("b", 0), HOME),)


def test_nothing_is_handed_over_while_an_older_coordinator_answers() -> None:
    journals = Journals(together=True)
    known = [journals._owned(journals.home), journals._owned(journals.other)]
    exchange(known, journals.homes[0], hands_over=False)
    marked = journals.commit(("b", 0))
    exchange(known, journals.homes[0])
    handed = journals.commit(("b", 0))
    journals.settle()
    assert (journals.state(marked), journals.state(handed)) == (State.COMMITTED, State.COMMITTING)
    assert [adoption.txid for adoption in journals.adoptions()] == [handed]


def test_an_abort_is_adopted_and_needs_no_place(journals: Journals) -> None:
    txid = journals.begin(("b", 0), ("a", 0))
    command = commands.End(
        session=journals.session, txid=txid, action=commands.Action.ABORT, writes={}
    )
    journals.ask(journals.other, command)
    journals.written(txid)
    [decision] = of_type(journals.other, PrepareAbort)
    assert isinstance(decision, PrepareAbort)
    assert decision.handed == ((("b", 0), HOME),)
    journals.settle()
    [adoption] = journals.adoptions()
    assert (adoption.committed, adoption.writes[0].branches) == (False, ())
    assert journals.state(txid) is State.ABORTED
    assert len(of_type(journals.other, Aborted)) == 1


@pytest.mark.parametrize("whose", ["home", "other", "both"])
@pytest.mark.parametrize("after", ["decided", "adopted", "placed"])
def test_a_new_owner_goes_on(journals: Journals, whose: str, after: str) -> None:
    txid = journals.commit(("b", 0))
    if after != "decided":
        journals.settle()
    if after == "placed":
        journals.place(b0=5)
        journals.home.ack()
    for each in (journals.home, journals.other):
        if whose in ("both", "home" if each is journals.home else "other"):
            each.take_over()
            each.markers.clear()
            each.tenure.written(txid.offset) if each is journals.other else None
    journals.settle()
    if after != "placed":
        journals.place(b0=5)
    journals.settle()
    assert journals.state(txid) is State.COMMITTED
    assert len(journals.adoptions()) == 1
    assert len(of_type(journals.other, Committed)) == 1


def test_an_adoption_that_is_lost_is_written_again(journals: Journals) -> None:
    txid = journals.commit(("b", 0))
    journals.turn()
    journals.home.lose()
    assert journals.adoptions() == []
    journals.settle()
    journals.place(b0=5)
    journals.settle()
    assert journals.state(txid) is State.COMMITTED


def test_an_adoption_that_is_too_large_is_refused(
    journals: Journals, monkeypatch: pytest.MonkeyPatch
) -> None:
    txid = journals.commit(("b", 0), ("b", 1))
    shard, decided = journals.home.shard, journals.other.shard
    whole = shard.adopted.adopt((OTHER, decided.incarnation), decided.handed)
    assert whole is not None
    small = len(encode_entry(shard.entry(refusing(whole))))
    monkeypatch.setattr(tenures, "RECORD_MAX_BYTES", small)
    journals.turn()
    monkeypatch.undo()
    journals.settle()
    [adoption] = journals.adoptions()
    assert [(w.placed, w.branches) for w in adoption.writes] == [(False, ()), (False, ())]
    [late] = journals.other.late_markers.values()
    assert late.partitions == (("b", 0), ("b", 1))
    journals.other.finish_late(txid.offset, gone=False)
    journals.settle()
    assert journals.state(txid) is State.COMMITTED


@pytest.mark.parametrize("gone", [True, False])
def test_trap_80_what_is_placed_nowhere_gets_a_late_marker(journals: Journals, gone: bool) -> None:
    txid = journals.commit(("b", 0), ("b", 1))
    journals.settle()
    journals.place(b0=GONE, b1=5)
    journals.home.ack()
    journals.home.take_over()
    journals.settle()
    assert journals.state(txid) is State.COMMITTING, "another topic may have its name"
    assert journals.home.late_markers == {}
    [late] = journals.other.late_markers.values()
    assert late.partitions == (("b", 0),)
    journals.other.finish_late(txid.offset, gone=gone)
    journals.settle()
    assert journals.state(txid) is State.COMMITTED
    assert len(journals.adoptions()) == 1


def snapshot(coordinator: Coordinator) -> Shard:
    """Takes a snapshot, and returns what a loader has that begins there."""
    while coordinator.tenure.snapshot():
        pass
    coordinator.ack()
    entries = coordinator.journal.entries
    chunks = (o for o, e in enumerate(entries) if isinstance(e.record, Snapshot))
    first = next(o for o in reversed(list(chunks)) if _index(entries[o]) == 0)
    partition = coordinator.journal.partition
    replica = Replica(partition, coordinator.config, first, certain=True)
    for offset in range(first, len(entries)):
        replica.feed(offset, entries[offset])
    return replica.shard


def _index(entry: Entry) -> int:
    assert isinstance(entry.record, Snapshot)
    return entry.record.index


def test_a_snapshot_has_what_is_handed_over_and_what_is_adopted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("logtx.coordinator.core.snapshot.CHUNK_BYTES", 300)
    journals = Journals(together=False)
    placed = journals.commit(("b", 0))
    journals.settle()
    journals.place(b0=5)
    journals.settle()
    half = journals.commit(("b", 0), ("b", 1), ("a", 1))
    journals.settle()
    journals.place(b0=6)
    journals.settle()
    journals.ask(journals.home, commands.SetTopicMode(topic="b", mode=Mode.MARKERS))
    refused = journals.commit(("b", 0))
    journals.settle()
    home, other = snapshot(journals.home), snapshot(journals.other)
    for loaded, whole in ((home, journals.home), (other, journals.other)):
        naive = whole.journal.load()
        assert loaded.adopted.rows() == naive.adopted.rows()
        assert loaded.adopted.unplaced() == naive.adopted.unplaced()
        assert loaded.places.rows() == naive.places.rows()
        assert loaded.handed.all() == naive.handed.all()
        assert [(t.begin, t.handed, t.placed) for t in loaded.transactions] == [
            (t.begin, t.handed, t.placed) for t in naive.transactions
        ]
    assert [a.txid for _, a in home.adopted.unplaced()] == [half]
    assert [h.txid for h in other.handed.all()] == [half, refused]
    assert journals.state(placed) is State.COMMITTED


def test_trap_95_a_journal_is_kept_as_long_as_the_data_that_it_handed_over() -> None:
    journals = Journals(together=True)
    journals.commit(("b", 0))
    loaded = snapshot(journals.other)
    assert loaded.fences.waiting is None, "it is unfinished, so the snapshot lists it"
    journals.settle()
    journals.place(b0=9)
    journals.settle()
    loaded = snapshot(journals.other)
    first = loaded.snapshot_offset
    assert first is not None
    assert loaded.fences.partitions() == [B0]
    loaded.fences.advance({B0: 4})
    assert loaded.fences.trim_to < first, "its last record is at 4"
    loaded.fences.advance({B0: 5})
    assert loaded.fences.trim_to == first


def test_where_no_topic_is_in_metadata_mode_nothing_is_under_way() -> None:
    coordinators = [Coordinator(Journal(HOME)), Coordinator(Journal(OTHER))]
    for each in coordinators:
        each.take_over()
    known = [Known(each.shard, each.tenure) for each in coordinators]
    assert not is_under_way(known)
    assert not exchange(known, TopicHomes())
    assert not any(each.shard.handed.watches for each in coordinators)
    assert not any(isinstance(e, WriteMarkers) for c in coordinators for e in c.markers.values())
