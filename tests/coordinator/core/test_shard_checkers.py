"""Checkers of the shard: a naive reading of the journal, and what must hold of every answer.

`Reference` reads a journal in the slow and obvious way. `Checker` compares everything that
coordinators tell with it: the invariants of the design, by their numbers. Both look at the journal
alone. The tests at the end show that each finds a journal that breaks its rule.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from logtx.coordinator.core.decision import WriteMarkers, WriteOffsets
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.protocol import commands
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import (
    ClaimFencedError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from logtx.journal.modes import ModeChange, Phase
from logtx.journal.places import GONE, PartitionId, Placed
from logtx.journal.position import Place
from logtx.journal.records.fate import NO_EPOCH
from logtx.journal.records.types import (
    Aborted,
    AbortReason,
    AddOffsets,
    AddPartitions,
    AddWrites,
    Begin,
    Bind,
    Claim,
    Committed,
    DataPartition,
    Entry,
    Forget,
    JournalRecord,
    OffsetStep,
    Owner,
    PrepareAbort,
    PrepareCommit,
    ProducerRecord,
    StepIdentity,
)
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..harness import (
    INCARNATION,
    Coordinator,
    Emitted,
    Event,
    Journal,
    Owned,
    Ref,
    Replied,
    dump,
    fates,
    load,
    step,
    txid,
)


@dataclass(slots=True)
class NaiveTransaction:
    """One transaction as the journal tells it."""

    producer_id: str
    generation: int
    nonce: int
    request_id: int
    state: State = State.OPEN
    sequence: int | None = None
    steps: dict[tuple[str, TopicPartition], list[OffsetStep]] = field(default_factory=dict)
    claims: dict[tuple[str, StepIdentity], int | None] = field(default_factory=dict)
    """For each step, the claim of its partition when it was added."""
    parts: int = 0
    writes: dict[TopicPartition, list[BranchRange]] = field(default_factory=dict)
    """What the parts and the decision say, by partition."""
    partitions: dict[TopicPartition, str] = field(default_factory=dict)
    """Its partitions, with the topic ids that they came with."""
    due: dict[PartitionId, int] = field(default_factory=dict)
    """Where it is to be placed: partition → offset behind its last record."""
    places: dict[PartitionId, int] = field(default_factory=dict)
    doomed: bool = False
    """Whether a partition whose offset it would move was claimed while it was open."""


Numbers = dict[TopicPartition, int]
Places = dict[TopicPartition, Place]


def identity(each: OffsetStep) -> StepIdentity:
    """Returns what is the same whenever a step is sent."""
    return each.topic, each.partition, each.from_place, each.to.place


Request = tuple[str, int, int, int]
"""Producer id, generation, nonce and request id of a BEGIN."""


class Reference:
    """Derives a journal's state in the slow and obvious way, and checks what must always hold.

    Raises:
        AssertionError: a record acts on another transaction than its writer meant (invariant 2);
            a transaction of a fenced generation was committed (6), or one whose input another
            consumer claimed, or whose input leaves a gap or overlaps (8).
    """

    def __init__(self, journal: Journal) -> None:
        """Read a journal from offset 0."""
        self.modes: dict[str, tuple[str, Phase]] = {}
        """Topic → (id, phase) as the latest MODE record says it."""
        self.recorded: set[str] = set()
        """Topics whose latest MODE record speaks of mode records."""
        self.last: dict[PartitionId, int] = {}
        """The latest place of each partition."""
        self.transactions: dict[int, NaiveTransaction] = {}
        self.generations: dict[str, tuple[int, bool]] = {}
        self.highest: dict[str, int] = {}
        """Highest generation of each producer that ever was, forgotten or not."""
        self.hours = 0
        self.forgotten: dict[str, int] = {}
        """Consumer group → offset of the record that forgot its offsets or its binding last."""
        self.bindings: dict[str, str] = {}
        self.iovs: dict[str, list[tuple[int, Places]]] = {}
        """Group → its IOV after each commit, with the commit sequence."""
        self.claims: dict[str, Numbers] = {}
        """Group → the latest claim of each partition."""
        self.claimed: dict[int, tuple[Claim, Numbers]] = {}
        """Every claim by its number, and the group's claims before it."""
        self.end = 0
        epoch, incarnation, in_place = NO_EPOCH, 0, False
        for offset, entry in enumerate(journal.entries):
            self.end, record = offset + 1, entry.record
            bids = isinstance(record, Owner) and record.replaces == epoch
            if bids and (epoch == NO_EPOCH or entry.incarnation == incarnation):
                epoch, incarnation, in_place = offset, entry.incarnation, True
                continue
            # Decisions that build on a lost or foreign record were never made.
            in_place = in_place and (entry.epoch, entry.incarnation, entry.predicted) == (
                *(epoch, incarnation, offset),
            )
            if in_place:
                self._apply(offset, record)
                self._check_meant(journal, offset)

    def _check_meant(self, journal: Journal, offset: int) -> None:
        meant = journal.meant[offset]
        if meant is not None:
            begin = getattr(journal.entries[offset].record, "begin", NO_EPOCH)
            assert journal.entries[begin].record == meant, (
                f"the record at {offset} was meant for another transaction than T{begin}"
            )

    @property
    def hw(self) -> int:
        """Returns the oldest unfinished BEGIN, else the journal's end."""
        unfinished = (b for b, t in self.transactions.items() if not t.state.finished)
        return min(unfinished, default=self.end)

    def iov(self, group: str, sequence: int | None = None) -> Places:
        """Returns a group's IOV now, or as of a commit sequence."""
        history = self.iovs.get(group, [])
        return next((p for s, p in reversed(history) if sequence in (None, s)), {})

    def _turn(self, offset: int, record: ModeChange) -> None:
        known = self.modes.get(record.topic, (record.topic_id, Phase.MARKERS))
        topic_id, phase = known
        before = phase if topic_id == record.topic_id else Phase.MARKERS
        steps = (Phase.MARKERS, Phase.TO_METADATA, Phase.METADATA, Phase.TO_MARKERS)
        if before is record.phase and before in (Phase.TO_METADATA, Phase.TO_MARKERS):
            told = f"MODE {record.phase} at {offset} is told again"
            assert not record.with_records, told
            assert record.topic in self.recorded, told
        else:
            assert record.phase is steps[(steps.index(before) + 1) % 4], (
                f"MODE {record.phase} at {offset} follows {before}"
            )
        self.modes[record.topic] = record.topic_id, record.phase
        (self.recorded.add if record.with_records else self.recorded.discard)(record.topic)

    def _apply(self, offset: int, record: JournalRecord) -> None:
        match record:
            case ProducerRecord():
                self._producer(offset, record)
            case Forget():
                self._forget(offset, record)
            case Begin():
                if record.producer_id.startswith("&"):
                    others = (t for t in self.transactions.values() if t.state is State.OPEN)
                    assert record.producer_id not in {t.producer_id for t in others}, (
                        f"a transaction key has two open transactions at {offset}"
                    )
                told = self.transactions[offset] = NaiveTransaction(
                    record.producer_id, record.generation, record.session_nonce, record.request_id
                )
                _join(told, record.partitions)
            case Placed():
                self._place(offset, record)
            case ModeChange():
                self._turn(offset, record)
            case Bind():
                self.bindings.setdefault(record.group, record.transaction_group)
            case Claim():
                self._claim(offset, record)
            case (
                AddOffsets()
                | AddPartitions()
                | AddWrites()
                | PrepareCommit()
                | PrepareAbort()
                | Committed()
                | Aborted()
            ):
                transaction = self.transactions.get(record.begin)
                if transaction is not None:
                    self._move(offset, transaction, record)
            case _:
                pass

    def _producer(self, offset: int, record: ProducerRecord) -> None:
        name, generation = record.producer_id, record.generation
        highest = self.highest.get(name, -1)
        assert generation > highest or name in self.generations, (
            f"generation {generation} of {name} comes back at {offset}, after {highest} (trap 32)"
        )
        assert generation >= highest, f"generation {generation} of {name} follows {highest}"
        self.generations[name], self.highest[name] = (generation, record.voided), generation

    def _forget(self, offset: int, record: Forget) -> None:
        self.hours += record.hours
        for told in self.transactions.values():
            assert told.state is not State.OPEN or told.producer_id not in record.producers
            groups = {group for group, _ in told.steps}
            assert told.state.finished or not groups & set(record.groups)
        for name in record.producers:
            self.generations.pop(name, None)
        for group in record.groups:
            self.iovs.pop(group, None)
            self.claims.pop(group, None)
        for group in record.bindings:
            self.bindings.pop(group, None)
        self.forgotten |= dict.fromkeys((*record.groups, *record.bindings), offset)

    def _claim(self, offset: int, record: Claim) -> None:
        former = self.claims.get(record.group, {})
        self.claimed[offset] = record, former
        self.claims[record.group] = {**former, **dict.fromkeys(record.partitions, offset)}
        for told in self.transactions.values():
            held = {p for group, p in told.steps if group == record.group}
            if told.state is State.OPEN and held & set(record.partitions):
                told.doomed = True

    def _move(
        self,
        offset: int,
        told: NaiveTransaction,
        record: AddOffsets
        | AddPartitions
        | AddWrites
        | PrepareCommit
        | PrepareAbort
        | Committed
        | Aborted,
    ) -> None:
        match record:
            case AddPartitions() if told.state is State.OPEN:
                _join(told, record.partitions)
            case AddOffsets() if told.state is State.OPEN:
                self._add(told, record)
            case AddWrites() if told.state is State.OPEN:
                assert record.part == told.parts, f"part {record.part} at {offset} is out of turn"
                told.parts += 1
                self._write(offset, told, record)
            case PrepareCommit() if told.state is State.OPEN:
                of_parts = set(told.writes)
                self._write(offset, told, record)
                # Where no marker adds them up, readers must know of the parts (trap 68).
                named = {w.partition.key for w in record.writes} - set(record.placed)
                assert {p.key for p in record.added} == of_parts - named, (
                    f"the commit at {offset} does not name the partitions of its parts"
                )
                told.state, told.sequence = State.COMMITTING, offset
                assert self.generations[told.producer_id] == (told.generation, False), (
                    f"a fenced transaction was committed at {offset}"
                )
                assert not told.doomed, (
                    f"a transaction whose input was claimed was committed at {offset}"
                )
                self._commit(offset, told)
                self._decide_places(offset, told, record)
            case PrepareAbort() if told.state is State.OPEN:
                told.state, told.sequence = State.ABORTING, offset
                assert told.doomed or record.reason is not AbortReason.CLAIMED, (
                    f"a transaction of which nobody claimed anything was aborted at {offset}"
                )
            case Committed() if told.state is State.COMMITTING:
                assert told.due.keys() == told.places.keys(), (
                    f"finished at {offset} without all of its places"
                )
                gone = {p.key for p, place in told.places.items() if place == GONE}
                assert gone <= set(record.gone), f"{gone} are gone, and {offset} does not say so"
                told.state = State.COMMITTED
            case Aborted() if told.state is State.ABORTING:
                told.state = State.ABORTED
            case _:
                pass

    def _decide_places(self, offset: int, told: NaiveTransaction, record: PrepareCommit) -> None:
        placed = {
            PartitionId(*key, topic_id)
            for key, topic_id in told.partitions.items()
            if self.modes.get(key[0]) == (topic_id, Phase.METADATA)
        }
        assert {p.key for p in placed} == set(record.placed), (
            f"the commit at {offset} says that it is placed in {record.placed}, not {placed}"
        )
        ranges = {p: told.writes.get(p.key, ()) for p in placed}
        told.due = {p: 1 + max(r.last_offset for r in rs) for p, rs in ranges.items() if rs}

    def _place(self, offset: int, record: Placed) -> None:
        waiting = [
            t
            for t in sorted(self.transactions.values(), key=lambda t: t.sequence or 0)
            if t.state is State.COMMITTING and t.sequence is not None and t.sequence <= record.upto
        ]
        for partition, place in record.ends.items():
            covered = [t for t in waiting if partition in t.due and partition not in t.places]
            assert covered, f"PLACED at {offset} covers nothing in {partition}"
            for told in covered:
                told.places[partition] = place
            if place == GONE:
                self.last.pop(partition, None)
                continue
            assert place >= self.last.get(partition, 0), f"places fall at {offset} (R3)"
            assert all(place >= t.due[partition] for t in covered), (
                f"the place at {offset} lies below what it places (R3)"
            )
            self.last[partition] = place

    def _write(
        self, offset: int, told: NaiveTransaction, record: AddWrites | PrepareCommit
    ) -> None:
        _join(told, (w.partition for w in record.writes))
        for w in record.writes:
            ranges = told.writes.setdefault(w.partition.key, [])
            ranges += w.branches
            assert len({r.branch for r in ranges}) == len(ranges), (
                f"a branch is named twice at {offset} (invariant 5)"
            )

    def _add(self, told: NaiveTransaction, record: AddOffsets) -> None:
        claims = self.claims.get(record.group, {})
        for each in record.steps:
            number = claims.get((each.topic, each.partition))
            told.claims.setdefault((record.group, identity(each)), number)
            chain = told.steps.setdefault((record.group, (each.topic, each.partition)), [])
            if each not in chain:
                chain.append(each)

    def _commit(self, offset: int, told: NaiveTransaction) -> None:
        moved: dict[str, Places] = {}
        for (group, partition), steps in told.steps.items():
            places = moved.setdefault(group, dict(self.iov(group)))
            for each in steps:
                assert places.get(partition) == each.from_place, (
                    f"the input of {group} in {partition} stood at {places.get(partition)}, and the"
                    f" commit at {offset} goes on from {each.from_place}"
                )
                places[partition] = each.to.place
        for group, places in moved.items():
            self.iovs.setdefault(group, []).append((offset, places))


def _join(told: NaiveTransaction, partitions: Iterable[DataPartition]) -> None:
    for partition in partitions:
        told.partitions.setdefault(partition.key, partition.topic_id)


# ---- the checkers -------------------------------------------------------------------------------


class Checker:
    """Compares what coordinators tell with the journal; `listen` is for `Coordinator`."""

    def __init__(self, journal: Journal) -> None:
        """Checks the coordinators of this journal."""
        self.journal = journal
        self.hw = 0
        """The highest HW that any marker could have stated."""
        self.begun: dict[TxId, Request] = {}
        """TxIds that clients were told → the requests that they answered."""
        self._answers: dict[Request, TxId] = {}
        self._marked: dict[Coordinator, int] = {}
        self._to_assert: dict[Coordinator, set[str]] = {}
        self._floors: dict[Ref, int] = {}
        self._known: dict[Ref, bool] = {}
        self._reference: Reference | None = None

    @property
    def reference(self) -> Reference:
        """The naive reading of the present journal."""
        if self._reference is None or self._reference.end != self.journal.end:
            self._reference = Reference(self.journal)
        return self._reference

    def asked(self, ref: Ref, command: commands.Command) -> None:
        """Notes what a command's answer must take into account; call it before submitting."""
        if isinstance(command, commands.FetchOffsets | commands.ClaimOffsets):
            self._floors[ref] = max(
                (sequence for sequence, _ in self.reference.iovs.get(command.group, [])), default=-1
            )
        self._known[ref] = (
            command.group in self.reference.bindings
            if isinstance(command, commands.BindGroup)
            else getattr(command, "txid", None) in self.begun
        )

    def listen(self, coordinator: Coordinator, event: Event) -> None:
        """Check one event."""
        match event:
            case Replied():
                self._replied(event.ref, coordinator.commands[event.ref], event.reply)
            case Owned():
                self._marked[coordinator] = -1
                self._to_assert[coordinator] = set(self.reference.iovs)
            case Emitted(WriteMarkers(transaction), hw):
                sequence = transaction.commit_sequence
                self._decided(transaction.txid, transaction.state, sequence)
                assert sequence is not None
                assert sequence > self._marked[coordinator], "markers out of order (invariant 4)"
                self._marked[coordinator] = sequence
                self.published(hw)
            case Emitted(WriteOffsets(group, _, offsets), hw):
                self._iov(group, offsets, None)
                self._to_assert[coordinator].discard(group)
                self.published(hw)
            case _:
                pass

    def published(self, hw: int) -> None:
        """Checks an HW that a marker may state: no transaction below it may still commit."""
        self.hw = max(self.hw, hw)
        assert self.hw <= self.reference.hw, (
            f"HW {self.hw} is above the unfinished BEGIN or end at {self.reference.hw}"
        )

    def after_step(self, coordinators: Iterable[Coordinator]) -> None:
        """Checks that live, replayed and naive states agree; call it after each step."""
        reference, entries = self.reference, self.journal.entries
        shard = load(entries)
        self._agree(shard, reference)
        assert self.hw <= reference.hw, "HW went back"
        for coordinator in coordinators:
            if not coordinator.serving:
                continue
            assert not self._to_assert[coordinator], "an IOV was not asserted again (trap 27)"
            self.published(coordinator.shard.hw)
            self._doomed(coordinator.shard)
            if coordinator.acknowledged_end == self.journal.end:
                flying = [flying.entry for flying in coordinator.in_flight]
                again = load([*entries, *flying])
                assert dump(again) == dump(coordinator.shard), "replay differs from the live state"

    @staticmethod
    def _doomed(shard: Shard) -> None:
        for transaction in shard.transactions:
            if transaction.state is not State.OPEN:
                continue
            producer = shard.producers[transaction.producer_id]
            fenced = producer.voided or transaction.generation < producer.generation
            assert not fenced, f"{transaction.txid} of a fenced generation is still open"
            assert transaction.doomed is None, (
                f"{transaction.txid}, whose input was claimed, is still open"
            )

    @staticmethod
    def _agree(shard: Shard, reference: Reference) -> None:
        for begin, told in reference.transactions.items():
            outcome = shard.transactions.outcome(begin)
            if outcome is None and told.state.finished and not shard.transactions._outcomes:
                continue  # The test makes it forget finished transactions.
            assert outcome is not None, f"the shard lost the transaction at {begin}"
            assert (outcome.state, outcome.commit_sequence) == (told.state, told.sequence)
        unfinished = {b for b, t in reference.transactions.items() if not t.state.finished}
        assert {t.begin for t in shard.transactions} == unfinished
        for group in {*reference.iovs, *shard.offsets.groups()}:
            offsets = shard.offsets.committed(group).offsets
            assert {p: o.place for p, o in offsets.items()} == reference.iov(group)
        held = {n: (p.generation, p.voided) for n, p in shard.producers.items()}
        assert held == reference.generations
        assert shard.bindings == reference.bindings
        assert shard.ages.hour == reference.hours
        phases = {topic: (mode.topic_id, mode.phase) for topic, mode in shard.modes.rows()}
        assert phases == reference.modes
        assert shard.places.last == reference.last
        rows = {row.begin: (row.sequence, row.ends, row.places) for row in shard.places.rows()}
        assert rows == {
            begin: (told.sequence, told.due, told.places)
            for begin, told in reference.transactions.items()
            if told.due and not told.state.finished
        }
        claims: dict[str, Numbers] = {}
        for row in shard.claims.rows():
            claims.setdefault(row.group, {}).update(dict.fromkeys(row.partitions, row.number))
        assert claims == reference.claims
        for transaction in shard.transactions:
            doomed = reference.transactions[transaction.begin].doomed
            assert (transaction.doomed is not None) == doomed

    def _replied(self, ref: Ref, command: commands.Command, reply: commands.Reply) -> None:
        match reply:
            case commands.Began():
                assert isinstance(command, commands.Begin)
                self._began(command, reply.txid)
            case commands.Outcome() if reply.state.commits or reply.state.aborts:
                self._decided(reply.txid, reply.state, reply.commit_sequence)
            case TransactionCommittedError():
                self._decided(command.txid, State.COMMITTING, None)  # type: ignore[union-attr]
            case TransactionAbortedError():
                self._decided(command.txid, State.ABORTING, None)  # type: ignore[union-attr]
            case commands.Outcome(state=State.UNKNOWN):
                assert not self._known[ref], f"{reply.txid} was begun, and is denied"
            case commands.GroupOffsets():
                assert isinstance(command, commands.FetchOffsets)
                self._fresh(ref, command.group, reply)
                self._iov(command.group, reply, command.partitions)
            case commands.Claimed():
                assert isinstance(command, commands.ClaimOffsets)
                self._fresh(ref, command.group, reply.offsets)
                self._iov(command.group, reply.offsets, command.partitions)
                self._claimed(command, reply.number)
            case commands.Done() if isinstance(command, commands.AddOffsets):
                self._added(command)
            case ClaimFencedError():
                self._claim_fenced(command)
            case commands.Binding(bound):
                assert isinstance(command, commands.BindGroup)
                if command.group not in self.reference.forgotten:
                    assert bound is not None or not self._known[ref], "a binding is denied"
                    known = self.reference.bindings.get(command.group)
                    assert bound in (None, known), "bound elsewhere"
            case _:
                pass

    def _fresh(self, ref: Ref, group: str, offsets: commands.GroupOffsets) -> None:
        sequence = offsets.commit_sequence
        known = -1 if sequence is None else sequence
        known = max(known, self.reference.forgotten.get(group, -1))
        assert known >= self._floors[ref], "a stale IOV was told"

    def _claimed(self, command: commands.ClaimOffsets, number: int) -> None:
        assert number in self.reference.claimed, f"claim {number} is not in the journal"
        record, former = self.reference.claimed[number]
        assert (record.group, record.claimant) == (command.group, command.claimant)
        assert set(command.partitions) <= set(record.partitions)
        if command.expected is not None:
            assert all(former.get(p) == command.expected.get(p) for p in command.partitions), (
                f"claim {number} holds though {former} was not expected"
            )

    def _added(self, command: commands.AddOffsets) -> None:
        told = self.reference.transactions[command.txid.offset]
        for each in command.steps:
            latest = told.claims[command.group, identity(each)]
            assert each.claim is None or latest is None or each.claim >= latest, (
                f"input of claim {each.claim} was taken though {latest} was made before"
            )

    def _claim_fenced(self, command: commands.Command) -> None:
        # Claim numbers only rise: what a claim refused then it would refuse now.
        if isinstance(command, commands.ClaimOffsets):
            claims, expected = self.reference.claims.get(command.group, {}), command.expected
            assert expected is not None, "a claim without a condition was refused"
            assert any(claims.get(p) != expected.get(p) for p in command.partitions)
            return
        assert isinstance(command, commands.AddOffsets | commands.End)
        told = self.reference.transactions[command.txid.offset]
        steps = command.steps if isinstance(command, commands.AddOffsets) else ()
        group = command.group if isinstance(command, commands.AddOffsets) else ""
        claims = self.reference.claims.get(group, {})
        assert told.doomed or any(
            s.claim is not None and s.claim < claims.get((s.topic, s.partition), -1) for s in steps
        ), f"nobody claimed the input of {told}"

    def _began(self, command: commands.Begin, told: TxId) -> None:
        session = command.session
        request = session.producer_id, session.generation, session.nonce, command.request_id
        assert self.begun.setdefault(told, request) == request, f"{told} was given out twice"
        assert self._answers.setdefault(request, told) == told, f"{request} began two"
        found = self.reference.transactions.get(told.offset)
        assert found is not None, f"{told} was told before it was durable"
        assert (found.producer_id, found.generation, found.nonce, found.request_id) == request

    def _decided(self, told: TxId, state: State, sequence: int | None) -> None:
        found = self.reference.transactions.get(told.offset)
        assert found is not None, f"{told} was said to be {state}, and is not in the journal"
        assert (found.state.commits, found.state.aborts) == (state.commits, state.aborts), (
            f"{told} was said to be {state}; the journal has it {found.state}"
        )
        assert sequence in (None, found.sequence)
        fate = fates(self.journal.entries, [told])[told]
        assert (fate.state, fate.commit_sequence) == (found.state, found.sequence)

    def _iov(
        self, group: str, offsets: commands.GroupOffsets, asked: Iterable[TopicPartition] | None
    ) -> None:
        expected = self.reference.iov(group, offsets.commit_sequence)
        if offsets.commit_sequence is None:
            expected = {}
        elif asked is not None:
            wanted = set(asked)
            expected = {p: place for p, place in expected.items() if p in wanted}
        assert {p: o.place for p, o in offsets.offsets.items()} == expected, (
            f"an IOV of {group} that no commit made was told"
        )


# ---- the checkers' own tests --------------------------------------------------------------------


def journal_of(*records: JournalRecord) -> Journal:
    """Returns a journal: OWNER at 0, PRODUCER at 1, BEGIN at 2 and 3, then these records."""
    journal = Journal()
    journal.append(Entry(-1, INCARNATION, Owner(replaces=-1, address="c1", process_nonce=1)))
    producer = ProducerRecord(producer_id="p", generation=0, session_nonce=1, owner="default")
    begins = (
        Begin(
            producer_id="p",
            generation=0,
            session_nonce=1,
            request_id=request_id,
            answered_below=1,
            timeout_ms=1_000,
            started_ms=0,
        )
        for request_id in (1, 2)
    )
    for record in (producer, *begins, *records):
        journal.append(Entry(0, INCARNATION, record, journal.end))
    return journal


def commit(begin: int) -> PrepareCommit:
    return PrepareCommit(begin=begin, writes=(), decided_ms=0)


def offsets(begin: int, start: int | None, to: int) -> AddOffsets:
    return AddOffsets(begin=begin, group="g", steps=(step(("a", 0), start, to),))


def test_reference_follows_a_chain_of_input() -> None:
    steps = offsets(2, None, 1), offsets(2, 1, 2), offsets(3, 2, 5)
    reference = Reference(journal_of(*steps, commit(2), commit(3), Committed(begin=2)))
    assert reference.iov("g") == {("a", 0): Place(5)}
    assert reference.iov("g", 7) == {("a", 0): Place(2)}
    assert reference.hw == 3


@pytest.mark.parametrize("start", [0, 2])
def test_reference_refuses_gaps_and_overlaps(start: int) -> None:
    journal = journal_of(offsets(2, None, 1), offsets(3, start, 3), commit(2), commit(3))
    with pytest.raises(AssertionError, match="the input of g"):
        Reference(journal)


def test_reference_refuses_the_commit_of_a_fenced_generation() -> None:
    newer = ProducerRecord(producer_id="p", generation=1, session_nonce=2, owner="default")
    with pytest.raises(AssertionError, match="fenced"):
        Reference(journal_of(newer, commit(2)))


CLAIM: Final = Claim(group="g", claimant=1, partitions=(("a", 0),))


def test_reference_refuses_the_commit_of_claimed_input() -> None:
    with pytest.raises(AssertionError, match="claimed was committed"):
        Reference(journal_of(offsets(2, None, 1), CLAIM, commit(2)))
    # A claim does not concern later steps, other groups or other partitions.
    for records in (
        (CLAIM, offsets(2, None, 1)),
        (offsets(2, None, 1), Claim(group="h", claimant=1, partitions=(("a", 0),))),
        (offsets(2, None, 1), Claim(group="g", claimant=1, partitions=(("a", 1),))),
    ):
        assert Reference(journal_of(*records, commit(2))).iov("g") == {("a", 0): Place(1)}


def test_reference_refuses_an_abort_for_a_claim_that_nobody_made() -> None:
    abort = PrepareAbort(begin=2, reason=AbortReason.CLAIMED, decided_ms=0)
    Reference(journal_of(offsets(2, None, 1), CLAIM, abort))
    with pytest.raises(AssertionError, match="nobody claimed"):
        Reference(journal_of(offsets(2, None, 1), abort))


def test_checker_refuses_a_claim_that_the_journal_does_not_have() -> None:
    checker = Checker(journal_of(CLAIM, CLAIM))
    ask = commands.ClaimOffsets(
        group="g", claimant=1, partitions=(("a", 0),), expected={("a", 0): 4}
    )
    checker.asked(1, ask)
    checker._replied(1, ask, commands.Claimed(5, commands.GroupOffsets({})))
    for number in (3, 4, 6):
        with pytest.raises(AssertionError):
            checker._replied(1, ask, commands.Claimed(number, commands.GroupOffsets({})))
    with pytest.raises(AssertionError):
        checker._replied(
            1, replace(ask, claimant=2), commands.Claimed(5, commands.GroupOffsets({}))
        )
    with pytest.raises(AssertionError, match="without a condition"):
        checker._replied(1, replace(ask, expected=None), ClaimFencedError("no"))


def test_checker_refuses_input_of_an_older_claim() -> None:
    checker = Checker(journal_of(CLAIM, CLAIM, offsets(2, None, 1)))
    for claim in (None, 5, 4):
        steps = (step(("a", 0), None, 1, claim),)
        ask = commands.AddOffsets(
            session=commands.SessionId("p", 0, 1), txid=txid(2), group="g", steps=steps
        )
        checker.asked(1, ask)
        if claim == 4:
            with pytest.raises(AssertionError, match="input of claim 4"):
                checker._replied(1, ask, commands.Done())
        else:
            checker._replied(1, ask, commands.Done())
            with pytest.raises(AssertionError, match="nobody claimed"):
                checker._replied(1, ask, ClaimFencedError("no"))


def test_reference_refuses_a_record_meant_for_another() -> None:
    journal = journal_of()
    other = journal.entries[3].record
    assert isinstance(other, Begin)
    journal.append(Entry(0, INCARNATION, commit(2), 4), other)
    with pytest.raises(AssertionError, match="meant for another"):
        Reference(journal)


def test_reference_believes_nothing_behind_a_surprise() -> None:
    journal = journal_of()
    for record, predicted in ((commit(2), 5), (commit(2), 5), (commit(3), 6)):
        journal.append(Entry(0, INCARNATION, record, predicted))
    assert all(t.state is State.OPEN for t in Reference(journal).transactions.values())


def test_checker_refuses_what_the_journal_does_not_say() -> None:
    journal = journal_of(commit(2))
    checker = Checker(journal)
    ask = commands.GetOutcome(txid=txid(2))
    checker.asked(1, ask)
    checker._replied(1, ask, commands.Outcome(txid(2), State.COMMITTING, 4))
    for told in (
        commands.Outcome(txid(2), State.ABORTING, 4),
        commands.Outcome(txid(2), State.COMMITTING, 5),
        TransactionAbortedError("no"),
    ):
        with pytest.raises(AssertionError):
            checker._replied(1, ask, told)
    with pytest.raises(AssertionError, match="above"):
        checker.published(3)
