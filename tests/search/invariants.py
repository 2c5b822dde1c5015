"""What must hold in every state, with the numbers of the design's invariants. Knows no search.

Each function returns a text that says what is broken, or None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from logtx.coordinator.protocol import commands
from logtx.journal.control import TopicPartition
from logtx.journal.errors import (
    ClaimFencedError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from logtx.journal.state import State

from ..coordinator.core.test_shard_checkers import identity
from .tenures import JournalFacts, Markers, TenureFacts


def told(  # noqa: PLR0912
    facts: JournalFacts, command: commands.Command, floor: Any, reply: commands.Reply
) -> str | None:
    """Checks what a client is told: the journal must say the same, for ever.

    Args:
        facts: what the journal says at this moment.
        command: the question.
        floor: what the journal already said when the question was asked, see `floor_of`.
        reply: the answer.
    """
    match reply:
        case commands.Began(txid):
            assert isinstance(command, commands.Begin)
            session = command.session
            asked = session.producer_id, session.generation, session.nonce, command.request_id
            if facts.requests.get(txid.offset) != asked:
                return f"told T{txid.offset} began, and the journal has none of this request (2)"
        case commands.Connected(generation=generation):
            assert isinstance(command, commands.Connect)
            known = facts.reference.generations.get(command.producer_id)
            if known is None or known[0] < generation:
                return f"told generation {generation}, and the journal says {known} (3, 6)"
        case commands.Outcome(txid, state, sequence) if state.commits or state.aborts:
            return _decided(facts, txid.offset, state.commits, sequence)
        case TransactionCommittedError():
            return _decided(facts, command.txid.offset, True, None)  # type: ignore[union-attr]
        case TransactionAbortedError():
            return _decided(facts, command.txid.offset, False, None)  # type: ignore[union-attr]
        case commands.Outcome(txid, State.OPEN) if floor is not None:
            return f"told T{txid.offset} open, decided at {floor} before it was asked (2)"
        case commands.GroupOffsets():
            assert isinstance(command, commands.FetchOffsets)
            return _iov(facts, command, floor, reply)
        case _ if isinstance(command, commands.ClaimOffsets):
            return _told_claim(facts, command, floor, reply)
        case commands.Done() if isinstance(command, commands.AddOffsets):
            return _taken(facts, command)
        case commands.Done() if isinstance(command, commands.AddWrites):
            return _has_part(facts, command)
        case _:
            pass
    return None


def floor_of(facts: JournalFacts, command: commands.Command) -> Any:
    """Returns what an answer must take into account: what the journal says at the question."""
    if isinstance(command, commands.FetchOffsets | commands.ClaimOffsets):
        return max((s for s, _ in facts.reference.iovs.get(command.group, [])), default=-1)
    if isinstance(command, commands.GetOutcome):
        return facts.decided.get(command.txid.offset, (False, None))[1]
    return None


def _iov(
    facts: JournalFacts,
    command: commands.FetchOffsets | commands.ClaimOffsets,
    floor: int,
    offsets: commands.GroupOffsets,
) -> str | None:
    sequence = -1 if offsets.commit_sequence is None else offsets.commit_sequence
    if sequence < floor:
        return f"told the IOV of commit {sequence}, asked after commit {floor} (8)"
    return published_iov(facts, command.group, offsets)


def _told_claim(
    facts: JournalFacts, command: commands.ClaimOffsets, floor: int, reply: commands.Reply
) -> str | None:
    latest = facts.reference.claims.get(command.group, {})
    if isinstance(reply, commands.Claimed):
        return _claimed(facts, command, reply.number) or _iov(facts, command, floor, reply.offsets)
    if isinstance(reply, ClaimFencedError) and _is_expected(command, latest):
        return f"a claim is refused, and the latest are {latest} (6)"
    return None


def _is_expected(command: commands.ClaimOffsets, claims: Mapping[TopicPartition, int]) -> bool:
    expected = command.expected
    return expected is None or all(claims.get(p) == expected.get(p) for p in command.partitions)


def _claimed(facts: JournalFacts, command: commands.ClaimOffsets, number: int) -> str | None:
    if number not in facts.reference.claimed:
        return f"told claim {number}, and the journal has none there (6)"
    record, former = facts.reference.claimed[number]
    if record.claimant != command.claimant:
        return f"told claim {number}, which is another's (6)"
    if not _is_expected(command, former):
        return f"claim {number} holds though {former} came before it (6)"
    return None


def _taken(facts: JournalFacts, command: commands.AddOffsets) -> str | None:
    transaction = facts.reference.transactions.get(command.txid.offset)
    for step in command.steps:
        key = command.group, identity(step)
        if transaction is None or key not in transaction.claims:
            return f"told that {step} is taken, and the journal has it not (3)"
        latest = transaction.claims[key]
        if step.claim is not None and latest is not None and step.claim < latest:
            return f"input of claim {step.claim} is taken behind claim {latest} (6)"
    return None


def _has_part(facts: JournalFacts, command: commands.AddWrites) -> str | None:
    transaction = facts.reference.transactions.get(command.txid.offset)
    if transaction is None or transaction.parts <= command.part:
        return f"told that part {command.part} is taken, and the journal has it not (3)"
    return None


def _decided(facts: JournalFacts, begin: int, commits: bool, sequence: int | None) -> str | None:
    known = facts.decided.get(begin)
    word = "committed" if commits else "aborted"
    if known is None:
        return f"told T{begin} {word}, and the journal has no decision (2, 3)"
    if known[0] != commits or sequence not in (None, known[1]):
        return f"told T{begin} {word} at {sequence}, and the journal says otherwise (2, 3)"
    return None


def emitted(facts: JournalFacts, markers: Markers, tenure: TenureFacts) -> str | None:
    """Checks that markers may be written: the decision is in the journal."""
    if facts.decided.get(markers.begin) != (markers.committed, markers.sequence):
        return f"markers of T{markers.begin} before its decision is in the journal (1)"
    told = facts.reference.transactions[markers.begin]
    stated = {key: sorted(ranges, key=repr) for key, ranges in markers.branches if ranges}
    wrote = {k: sorted(r, key=repr) for k, r in told.writes.items() if r and markers.committed}
    if stated != wrote or not set(told.writes) <= set(markers.partitions):
        return f"markers of T{markers.begin} state not what its parts and decision do (5)"
    return high_watermark(facts, tenure)


def published_iov(
    facts: JournalFacts, group: str, offsets: commands.GroupOffsets, *, whole: bool = True
) -> str | None:
    """Checks an IOV that is told or published: it must be what the journal's commits made of it.

    `whole` is False for what is published of one commit: only the partitions that it moved.
    """
    places = {key: position.place for key, position in offsets.offsets.items()}
    sequence = offsets.commit_sequence
    iov = facts.reference.iov(group, sequence) if sequence is not None else {}
    if not whole:
        iov = {key: place for key, place in iov.items() if key in places}
    if places != iov:
        return f"an IOV that no commit left behind: {places} (8)"
    return None


def high_watermark(facts: JournalFacts, tenure: TenureFacts) -> str | None:
    """Checks the HW that a marker would state now: nothing below it may still commit."""
    if tenure.hw > facts.hw:
        return f"HW {tenure.hw} is above the unfinished BEGIN or the end at {facts.hw} (1, 4)"
    return None


def quiet(facts: JournalFacts, tenure: TenureFacts) -> str | None:
    """Checks an owner with nothing under way: all decisions are finished, and no reply waits."""
    ends = {tenure.next_offset, tenure.acknowledged_end, facts.end}
    if tenure.epoch != facts.epoch or len(ends) > 1:
        return None
    left = sorted(set(facts.decided) - facts.ended)
    if left:
        return f"T{left[0]} is decided, and nobody writes its markers (3)"
    reference = facts.reference
    doomed = [b for b, t in reference.transactions.items() if t.doomed and b not in facts.decided]
    if doomed:
        return f"the input of T{doomed[0]} was claimed, and nobody aborts it (6)"
    if tenure.parked:
        return "a reply is parked behind nothing"
    return None
