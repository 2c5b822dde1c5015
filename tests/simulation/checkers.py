"""One checker for each promise of the design; they see a `History` and nothing of the simulator.

A checker yields what it finds wrong. `violations` runs all of them: a history that breaks one
promise often breaks others too, and each checker reports its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, TypeAlias

from logtx.coordinator.protocol import commands
from logtx.journal.control import TopicPartition
from logtx.journal.errors import (
    OffsetsConflictError,
    TopicError,
    TransactionAbortedError,
    TransactionCommittedError,
    UnknownTransactionError,
)
from logtx.journal.places import GONE
from logtx.journal.sidecar import is_delivered_from_sidecar, is_sidecar
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .claim_checkers import claims, processed
from .history import Consumed, Delivered, History, Rest, Resumed, Told
from .lost_checkers import nobody_knew
from .place_checkers import lost_unaware, may_come_late, placed_order
from .queue_checkers import acknowledged, given_out, results, worked_off
from .reference import Decision, Journal, JournalTransaction, Partition, Reading
from .serial_checkers import serial_order
from .session_checkers import refused, sessions, timely
from .shown_checkers import shown
from .sidecar_checkers import sidecars

ANSWER_MAX_MS: Final = 1_200
"""Longest commit once the faults have stopped, whatever hangs beside it."""

Checker: TypeAlias = Callable[[History, Reading], Iterator[str]]


@dataclass(slots=True)
class View:
    """What the application of one consumer kept in the end, and everything it ever saw."""

    name: str
    consumed: Consumed
    partition: Partition
    kept: list[int] = field(default_factory=list)
    """Offsets that were delivered, and that no later restart took back."""
    ever: list[Delivered] = field(default_factory=list)
    rests: list[tuple[Rest, frozenset[int]]] = field(default_factory=list)
    """Each rest, with the offsets delivered by then."""
    late: frozenset[TxId] = frozenset()
    """What may come behind its place: see `may_come_late`."""

    def is_late(self, offset: int) -> bool:
        """Returns whether a record may come behind the place of its transaction."""
        return self.partition.placed.get(offset) in self.late

    def expected(self) -> list[tuple[int, int]]:
        """Returns (place, offset) of each record that a reader from its start on must get."""
        start = self.consumed.start
        return [item for item in self.partition.expected if item[0] >= start]


def views(history: History, reading: Reading) -> Iterator[View]:
    """Yields every consumer's view."""
    for name, consumed in history.consumed.items():
        partition = reading.partitions.get(consumed.partition)
        if partition is None:
            continue
        late = may_come_late(history, reading, partition, name)
        view = View(name, consumed, partition, late=late)
        for event in consumed.events:
            match event:
                case Delivered(offset):
                    view.kept.append(offset)
                    view.ever.append(event)
                case Resumed(kept=kept):
                    del view.kept[kept:]
                case Rest():
                    view.rests.append((event, frozenset(view.kept)))
        yield view


def named(reading: Reading, checker: str) -> Iterator[str]:
    """Yields what the journals hold and must not, if it is for this checker to report."""
    for journal in reading.journals:
        for name, what in journal.wrong:
            if name == checker:
                yield f"journal {journal.partition} at {what}"


# ---- 1 ------------------------------------------------------------------------------------------


def atomic(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 1: all of a committed transaction in a partition, or nothing; nothing of others."""
    for view in views(history, reading):
        txids = view.partition.txids
        for delivered in view.ever:
            txid = txids.get(delivered.offset)
            if txid is None:
                continue
            found = reading.transaction(txid)
            decision = found.decision if found else None
            if decision is None or not decision.committed or decision.at > delivered.at:
                yield f"{view.name} got offset {delivered.offset} of {txid}: {decision}"
        items = [(place, offset) for place, offset in view.expected() if offset in txids]
        for rest, got in view.rests:
            # If the marker lies ahead, delivery began before a restart, and goes on at the marker.
            due = [o for place, o in items if place < rest.next_offset and not view.is_late(o)]
            parts = Counter(txids[offset] for offset in due if offset in got)
            sizes = Counter(txids[offset] for offset in due)
            for txid, number in parts.items():
                if number < sizes[txid]:
                    yield (
                        f"{view.name} rests at {rest.next_offset} with {number} of the"
                        f" {sizes[txid]} records of {txid}"
                    )


# ---- 2 and 3 ------------------------------------------------------------------------------------


def _ends(told: Told) -> tuple[TxId, bool, int | None] | None:
    """Returns (TxId, whether it commits, commit sequence) if the answer tells them."""
    reply = told.reply
    match reply:
        case commands.Outcome() if reply.state.commits or reply.state.aborts:
            return reply.txid, reply.state.commits, reply.commit_sequence
        case TransactionCommittedError() | TransactionAbortedError():
            txid: TxId = told.command.txid  # type: ignore[union-attr]
            return txid, isinstance(reply, TransactionCommittedError), None
    return None


def decided_once(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 2: one decision, the first in the journal, and nobody is told another."""
    yield from named(reading, "decided-once")
    yield from _begun_twice(history)
    for told in history.told:
        ends = _ends(told)
        if ends is not None and _contradicts(reading, *ends):
            yield f"{told.coordinator} told {told.reply!r}: {_decision(reading, ends[0])}"
        refused = _refused_for_good(told)
        decision = None if refused is None else _decision(reading, refused)
        # One that was replaced may still refuse what its successor has aborted: both say the same.
        if decision is not None and decision.committed and decision.at < told.asked_at:
            yield f"{told.coordinator} told {told.reply!r} of {refused}, which was committed"
    for txid, work in history.works.items():
        decision = _decision(reading, txid)
        if work.believes and (
            decision is None or (work.believes == "committed") != decision.committed
        ):
            yield f"{work.producer} believes that {txid} is {work.believes}: {decision}"
    for key, partition in reading.partitions.items():
        for marked in partition.markers:
            decision = _decision(reading, marked.txid)
            if decision is not None and decision.committed != marked.marker.committed:
                yield f"{key} {marked.record.offset()}: {marked.marker} of {marked.txid}"


def _begun_twice(history: History) -> Iterator[str]:
    begun: dict[TxId, tuple[object, ...]] = {}
    answers: dict[tuple[object, ...], TxId] = {}
    for told in history.told:
        if isinstance(told.reply, commands.Began) and isinstance(told.command, commands.Begin):
            session, txid = told.command.session, told.reply.txid
            request = session.producer_id, session.nonce, told.command.request_id
            if begun.setdefault(txid, request) != request:
                yield f"{txid} was given to {begun[txid]} and to {request}"
            if answers.setdefault(request, txid) != txid:
                yield f"{request} began {answers[request]} and {txid}"


def _refused_for_good(told: Told) -> TxId | None:
    """Returns the transaction if its commit was told to be not done, now and for ever."""
    command = told.command
    if isinstance(command, commands.End) and command.action is commands.Action.COMMIT:
        return command.txid if isinstance(told.reply, TopicError | OffsetsConflictError) else None
    return None


def _contradicts(reading: Reading, txid: TxId, commits: bool, sequence: int | None) -> bool:
    decision = _decision(reading, txid)
    return decision is not None and (
        decision.committed != commits or sequence not in (None, decision.sequence)
    )


def _decision(reading: Reading, txid: TxId) -> Decision | None:
    found = reading.transaction(txid)
    return found.decision if found else None


def _missing(
    reading: Reading, txid: TxId, sequence: int | None, before: int
) -> tuple[str, str] | None:
    """Yields why a decision made known by `before` can't be relied on: (checker, what)."""
    journal = reading.journals[txid.partition]
    if sequence is not None and (why := journal.void.get(sequence)) is not None:
        owner = "of a coordinator that was replaced" if why == "epoch" else "behind a lost one"
        return ("fenced" if why == "epoch" else "durable"), f"the record at {sequence} is {owner}"
    found = reading.transaction(txid)
    if found is None or found.decision is None or found.decision.at > before:
        return "durable", "the journal did not have it"
    return None


def _unfounded(history: History, reading: Reading, checker: str) -> Iterator[str]:
    """Yields answers and markers without a decision in the journal, if this checker's to report."""
    for told in history.told:
        ends = _ends(told)
        if ends is not None:
            missing = _missing(reading, ends[0], ends[2], told.at)
            if missing is not None and missing[0] == checker:
                yield f"{told.coordinator} told {told.reply!r} of {ends[0]}: {missing[1]}"
    for key, partition in reading.partitions.items():
        for marked in partition.markers:
            marker, record = marked.marker, marked.record
            missing = _missing(reading, marked.txid, marker.commit_sequence, record.handed_at)
            if missing is not None and missing[0] == checker:
                yield f"{key} {record.offset()}: marker of {marked.txid}: {missing[1]}"


def durable(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 3: what was told lies in the journal by then; markers are written in the end."""
    yield from _unfounded(history, reading, "durable")
    for told in history.told:
        journal, command = reading.journals[told.partition], told.command
        if _denied(history, reading, told):
            yield f"{told.coordinator} told {told.reply!r} of one that the journal has"
        if isinstance(told.reply, commands.Began):
            found = reading.transaction(told.reply.txid)
            if found is None or found.at > told.at:
                yield f"{told.coordinator} told {told.reply!r}, which the journal did not have"
        elif isinstance(told.reply, commands.Connected) and isinstance(command, commands.Connect):
            now = journal.generations.get(command.producer_id, [])
            if not any(at < told.at and r.generation == told.reply.generation for at, r in now):
                yield f"{told.coordinator} told {told.reply}, which the journal did not have"
        elif isinstance(told.reply, commands.Done) and isinstance(command, commands.AddOffsets):
            found = reading.transaction(command.txid)
            steps = [(g, s) for at, g, s in found.steps if at < told.at] if found else []
            lost = [s for s in command.steps if (command.group, s) not in steps]
            if lost and not _is_decided(reading, command.txid, told.asked_at):
                yield f"{told.coordinator} told that {lost} are part of {command.txid}"
    if history.settled_ms is None or history.unfinished or history.crash is not None:
        return
    logs = *reading.partitions.items(), *reading.former.items()
    marked = {(m.txid, k) for k, p in logs for m in p.markers}
    for journal in reading.journals:
        for found in journal.transactions.values():
            gone = {k for k in found.gone if _was_gone(history, k, found)}
            placed = found.decision.placed if found.decision is not None else frozenset()
            ends = found.partitions - gone - placed
            without = [k for k in sorted(ends) if (found.txid, k) not in marked]
            if found.decision is not None and without:
                yield f"{found.txid} has no marker in {without}"


def _was_gone(history: History, partition: TopicPartition, found: JournalTransaction) -> bool:
    """Whether a topic did not exist for some time between a decision and its end."""
    assert found.decision is not None
    assert found.finished_at is not None
    began, ended = found.decision.at, found.finished_at
    return any(
        absence.topic == partition[0] and absence.at <= ended and began <= absence.until_at
        for absence in history.absent
    )


def _denied(history: History, reading: Reading, told: Told) -> bool:
    """Whether the answer calls a transaction unknown although it could be looked up."""
    unknown = isinstance(told.reply, commands.Outcome) and told.reply.state is State.UNKNOWN
    if not (unknown or isinstance(told.reply, UnknownTransactionError)):
        return False
    txid: TxId = told.command.txid  # type: ignore[union-attr]
    found = reading.transaction(txid)
    start = max((t.before for t in history.trims[txid.partition] if t.at < told.at), default=0)
    return found is not None and found.at < told.asked_at and start <= txid.offset


def _is_decided(reading: Reading, txid: TxId, at: int) -> bool:
    found = reading.transaction(txid)
    return found is not None and found.decision is not None and found.decision.at < at


# ---- 4 ------------------------------------------------------------------------------------------


def commit_order(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 4: first markers in commit-sequence order, and one order for every consumer."""
    for key, partition in reading.partitions.items():
        if is_sidecar(key[0]):
            continue  # An abort's marker overtakes there what waits for a pointer: nobody reads it.
        last: dict[tuple[int, int], int] = {}
        here = None if key not in history.former else set(partition.txids.values())
        for marked in partition.markers:
            # A marker of records that went with the topic's predecessor may be written again.
            if marked.first and (here is None or marked.txid in here):
                sequence, before = marked.marker.commit_sequence, last.get(marked.txid.journal, -1)
                if sequence <= before:
                    where = f"{key} {marked.record.offset()}"
                    yield f"{where}: first marker of sequence {sequence} behind that of {before}"
                last[marked.txid.journal] = sequence
    for view in views(history, reading):
        yield from _disordered(view)


def _disordered(view: View) -> Iterator[str]:
    order = {offset: n for n, (_, offset) in enumerate(view.partition.expected)}
    known = [order[o] for o in view.kept if o in order and not view.is_late(o)]
    if any(a > b for a, b in pairwise(known)):
        yield f"{view.name} got offsets in the order {view.kept}"
    # Late or not, what is placed comes in the order of its home.
    sequences = {end.txid: end.sequence for end in view.partition.ends}
    placed = [sequences[t] for o in view.kept if (t := view.partition.placed.get(o)) is not None]
    if any(a > b for a, b in pairwise(placed)):
        yield f"{view.name} got what is placed in the order {placed}"


# ---- 5 ------------------------------------------------------------------------------------------


def exactly_once(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 5: every accepted record once, no other, and exactly what the producer wrote."""
    for view in views(history, reading):
        twice = [o for o, n in Counter(view.kept).items() if n > 1]
        if twice:
            yield f"{view.name} got {twice} more than once"
        items = view.expected()
        wanted = {offset for _, offset in items}
        strangers = sorted(o for o in set(view.kept) - wanted if not view.is_late(o))
        if strangers:
            yield f"{view.name} got {strangers}, which nobody may get"
        if view.rests:
            rest, got = view.rests[-1]
            upto = rest.next_offset
            settled = history.settled_ms is not None and not history.unfinished
            if settled and not view.consumed.failure:
                upto, got = 2**63, frozenset(view.kept)
            is_over = upto == 2**63
            due = {o for place, o in items if place < upto and (is_over or not view.is_late(o))}
            unaware = lost_unaware(history, view.name, view.consumed, view.partition)
            lost = sorted(due - got - unaware)
            if lost:
                yield f"{view.name} rests at {rest.next_offset} without {lost}"
        why = view.consumed.failure
        if why and not nobody_knew(history, reading, view.partition.key, why):
            yield f"{view.name} stopped: {why}"
    for journal in reading.journals:
        for found in journal.transactions.values():
            if found.decision is not None and found.decision.committed:
                yield from _written(history, reading, found.txid)


def _written(history: History, reading: Reading, txid: TxId) -> Iterator[str]:
    found, work = reading.transaction(txid), history.works.get(txid)
    if work is None or found is None or found.decision is None:
        return
    wrote = Counter(work.own)
    for branch in work.accepted:
        wrote.update(work.branches[branch])
    counts = 0
    got: Counter[bytes] = Counter()
    lost: set[bytes | None] = set()
    for key, ranges in found.decision.writes.items():
        counts += sum(r.count for r in ranges)
        partition, former = reading.partitions.get(key), reading.former.get(key)
        if former is not None and txid in former.txids.values():
            # With the topic all that it wrote there is gone, or is torn.
            lost.update(r.value() for r in history.former[key] + history.data.get(key, []))
        elif partition is not None and _was_taken_for_former(history, reading, txid, partition):
            lost.update(r.value() for r in history.data[key])
        elif partition is not None:
            # Strays of the TxId are not among what is expected.
            got.update(
                partition.records[offset].value() or b""
                for _, offset in partition.expected
                if partition.txids.get(offset) == txid and not is_delivered_from_sidecar(offset)
            )
    if counts != wrote.total():
        yield f"{txid} was committed with {counts} records; its producer wrote {wrote.total()}"
        return
    due = Counter({value: number for value, number in wrote.items() if value not in lost})
    if history.settled_ms is not None and not history.unfinished and got != due:
        yield f"{txid} holds {sorted(got)}; its producer wrote {sorted(due)}"


def _was_taken_for_former(
    history: History, reading: Reading, txid: TxId, partition: Partition
) -> bool:
    """Whether a transaction was placed in the former topic of the name, as a broker that was behind
    told its owner behind its records that this was the one (decision 24)."""
    found = reading.transaction(txid)
    assert found is not None
    assert found.decision is not None
    elsewhere = (
        at
        for p, at in found.places.items()
        if p.key == partition.key and p.topic_id != partition.topic_id
    )
    if all(at == GONE for at in elsewhere):
        return False
    decided_ms = reading.journals[txid.partition].records[found.decision.sequence].time_ms
    return any(at_ms >= decided_ms for _, at_ms in history.misled)


# ---- 6 ------------------------------------------------------------------------------------------


def fenced(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 6: nothing of an older generation or an older epoch takes effect."""
    yield from named(reading, "fenced")
    yield from _unfounded(history, reading, "fenced")
    for told in history.told:
        session = getattr(told.command, "session", None)
        if session is None or not isinstance(told.reply, commands.Began):
            continue
        now = reading.journals[told.partition].generation(session.producer_id, told.asked_at)
        late = now is not None and (now.voided or now.generation > session.generation)
        found = reading.transaction(told.reply.txid)
        if late and found is not None and found.at > told.asked_at:
            yield f"{told.coordinator} let {session} begin {told.reply.txid} under {now}"


# ---- 7 ------------------------------------------------------------------------------------------


def no_blocking(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 7: what is open or hangs delays no other transaction and no plain record."""
    for view in views(history, reading):
        if view.consumed.failure:
            continue
        items = view.expected()
        for rest, got in view.rests:
            due = (o for place, o in items if place < rest.next_offset and not view.is_late(o))
            held = [offset for offset in due if offset not in got]
            if held:
                yield f"{view.name} rests at {rest.next_offset} and holds back {held}"
                break
    if history.settled_ms is None:
        return
    for txid, work in history.works.items():
        if work.asked_ms is None or work.asked_ms < history.settled_ms:
            continue
        found = reading.journals[txid.partition].transactions.get(txid.offset)
        if found is not None and found.decision is not None and found.decision.fenced:
            continue
        if work.known_ms is None or work.known_ms > work.asked_ms + ANSWER_MAX_MS:
            yield f"the commit of {txid}, asked for at {work.asked_ms}, is known {work.known_ms}"


# ---- 8 ------------------------------------------------------------------------------------------


def offsets(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 8: input offsets move by commits alone, without gap or overlap; none is stale."""
    yield from named(reading, "offsets")
    for told in history.told:
        journal, command, reply = reading.journals[told.partition], told.command, told.reply
        if isinstance(reply, commands.GroupOffsets) and isinstance(command, commands.FetchOffsets):
            yield from _fetched(told, journal, command, reply)
        elif isinstance(reply, commands.Claimed) and isinstance(command, commands.ClaimOffsets):
            yield from _fetched(told, journal, command, reply.offsets)
        elif isinstance(reply, commands.Binding) and isinstance(command, commands.BindGroup):
            bound = journal.bindings.get(command.group)
            known = bound is not None and bound[1] < told.at
            if reply.transaction_group != (bound[0] if known and bound else None):
                late = reply.transaction_group is None and bound and bound[1] > told.asked_at
                if not late:
                    yield f"{told.coordinator} told {reply} of {command.group}: bound to {bound}"
    if history.settled_ms is not None and not history.unfinished and history.crash is None:
        yield from _published(history, reading)


def _fetched(
    told: Told,
    journal: Journal,
    command: commands.FetchOffsets | commands.ClaimOffsets,
    reply: commands.GroupOffsets,
) -> Iterator[str]:
    commits = journal.commits.get(command.group, [])
    floor = journal.commit_at(command.group, told.asked_at)
    sequence = -1 if reply.commit_sequence is None else reply.commit_sequence
    if floor is not None and sequence < floor.sequence:
        yield f"{told.coordinator} told the IOV of {sequence}; {floor.sequence} was committed"
    places = next((k.places for k in commits if k.sequence == sequence and k.at < told.at), {})
    if command.partitions is not None:
        places = {k: p for k, p in places.items() if k in command.partitions}
    if {k: position.place for k, position in reply.offsets.items()} != places:
        yield f"{told.coordinator} told an IOV of {command.group} that no commit made: {reply}"


def _published(history: History, reading: Reading) -> Iterator[str]:
    latest = {record.key: record.value for record in history.offsets_log}
    for journal in reading.journals:
        for group, commits in journal.commits.items():
            values = [
                v
                for k, v in latest.items()
                if v is not None and (k.group, k.partition) == (group, journal.partition)
            ]
            best = max(values, key=lambda v: v.commit_sequence or 0, default=None)
            places = {k: p.place for k, p in best.offsets.items()} if best else None
            if places != commits[-1].places:
                yield f"__transaction_offsets has {places} of {group}, not {commits[-1]}"


# ---- 9, and the high watermark ------------------------------------------------------------------


def retained(history: History, reading: Reading) -> Iterator[str]:
    """Invariant 9: nothing of an unfinished transaction is trimmed, nor what a loader needs."""
    for journal, trims in zip(reading.journals, history.trims, strict=True):
        for trim in trims:
            if trim.before > journal.hw(trim.at):
                yield (
                    f"journal {journal.partition} was trimmed to {trim.before}, its oldest"
                    f" unfinished transaction began at {journal.hw(trim.at)}"
                )
            if not any(at < trim.at and first >= trim.before for at, first in journal.snapshots):
                yield f"journal {journal.partition} was trimmed to {trim.before}, no snapshot"


def high_watermark(history: History, reading: Reading) -> Iterator[str]:
    """No marker's HW is above an unfinished BEGIN or the journal's end, and none goes back."""
    del history
    for key, partition in reading.partitions.items():
        stated: dict[tuple[tuple[int, int], int], int] = {}
        for marked in partition.markers:
            marker, record = marked.marker, marked.record
            allowed = reading.journals[marked.txid.partition].hw(record.handed_at)
            if marker.hw > allowed:
                yield f"{key} {record.offset()}: HW {marker.hw} is above {allowed}"
            writer = marked.txid.journal, marker.epoch
            if marker.hw < stated.get(writer, 0):
                yield f"{key} {record.offset()}: HW went back to {marker.hw}"
            stated[writer] = marker.hw


# ---- all ----------------------------------------------------------------------------------------


def finished(history: History, reading: Reading) -> Iterator[str]:
    """When the faults stop, everything comes to its end."""
    if history.crash is not None:
        yield f"the history broke off: {history.crash!r}"
        return
    yield from history.unfinished
    for journal in reading.journals:
        for found in journal.transactions.values():
            if found.finished_at is None and not history.unfinished:
                yield f"{found.txid} was never finished"


CHECKERS: Final[dict[str, Checker]] = {
    "atomic": atomic,
    "decided-once": decided_once,
    "durable": durable,
    "commit-order": commit_order,
    "placed-order": placed_order,
    "serial-order": serial_order,
    "exactly-once": exactly_once,
    "fenced": fenced,
    "no-blocking": no_blocking,
    "claims": claims,
    "offsets": offsets,
    "processed": processed,
    "retained": retained,
    "sidecars": sidecars,
    "shown": shown,
    "worked-off": worked_off,
    "given-out": given_out,
    "acknowledged": acknowledged,
    "results": results,
    "high-watermark": high_watermark,
    "sessions": sessions,
    "refused": refused,
    "timely": timely,
    "finished": finished,
}


def violations(history: History) -> dict[str, str]:
    """Returns the name of each checker that objects → the first thing that it found."""
    reading = Reading(history)
    found = ((name, next(check(history, reading), None)) for name, check in CHECKERS.items())
    return {name: what for name, what in found if what is not None}
