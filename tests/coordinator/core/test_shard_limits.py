"""How much one client may have open, and what happens to requests that it repeats for ever."""

from __future__ import annotations

import pytest

from logtx.coordinator.core import committed_offsets
from logtx.coordinator.core.committed_offsets import SEQUENCES_MAX
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.protocol import commands
from logtx.coordinator.runtime.offsets_topic import encode_value
from logtx.journal.errors import (
    ProducerFencedError,
    RequestTooLargeError,
    TooManyTransactionsError,
    TransactionAbortedError,
)
from logtx.journal.position import Position
from logtx.journal.records.types import AbortReason, OffsetStep
from logtx.journal.state import State
from logtx.journal.txid import TxId

from ..harness import Coordinator, Journal, step


class Stage:
    """A coordinator that answers at once."""

    def __init__(self, **limits: int) -> None:
        self.journal = Journal()
        self.coordinator = Coordinator(self.journal, config=ShardConfig(**limits))
        self.coordinator.take_over()
        self.refs = 0

    def ask(self, command: commands.Command) -> int:
        """Asks; returns the number under which the coordinator answers."""
        self.refs += 1
        self.coordinator.submit(command, self.refs)
        self.coordinator.ack()
        return self.refs

    def reply(self, ref: int) -> commands.Reply | None:
        """Returns the answer, if there is one."""
        return self.coordinator.replies.get(ref)

    def connect(self, producer_id: str) -> commands.SessionId:
        """Connects a producer; returns its session."""
        self.ask(commands.Connect(producer_id=producer_id, nonce=1))
        return commands.SessionId(producer_id, 0, 1)

    def begin(self, session: commands.SessionId, request_id: int) -> commands.Reply | None:
        """Begins; returns the answer."""
        begin = commands.Begin(
            session=session, request_id=request_id, answered_below=0, timeout_ms=9
        )
        return self.reply(self.ask(begin))

    def begun(self, session: commands.SessionId, request_id: int) -> TxId:
        """Returns a new open transaction."""
        reply = self.begin(session, request_id)
        assert isinstance(reply, commands.Began), reply
        return reply.txid

    def end(self, session: commands.SessionId, txid: TxId, action: commands.Action) -> int:
        """Asks for a transaction's end; returns the number of the answer."""
        return self.ask(commands.End(session=session, txid=txid, action=action, writes={}))


def test_a_producer_has_so_many_open_and_no_more() -> None:
    stage = Stage(max_open_transactions_per_producer=2)
    p, q = stage.connect("p"), stage.connect("q")
    first = stage.begun(p, 1)
    second = stage.begun(p, 2)
    refusal = stage.begin(p, 3)
    assert isinstance(refusal, TooManyTransactionsError)
    assert "--max-open-transactions-per-producer" in str(refusal)
    stage.begun(q, 1)
    assert stage.begin(p, 2) == commands.Began(second), "a repeat opens nothing"
    stage.end(p, first, commands.Action.COMMIT)
    stage.begun(p, 3)


def test_a_journal_partition_has_so_many_open_whoever_began_them() -> None:
    stage = Stage(max_open_transactions=2)
    p, q = stage.connect("p"), stage.connect("q")
    first = stage.begun(p, 1)
    stage.begun(q, 1)
    refusal = stage.begin(q, 2)
    assert isinstance(refusal, TooManyTransactionsError)
    assert "(--max-open-transactions)" in str(refusal)
    # A decision makes room, even if a partition is long in taking the marker.
    stage.end(p, first, commands.Action.ABORT)
    stage.begun(q, 2)


def test_a_new_owner_counts_what_the_journal_has_open() -> None:
    stage = Stage(max_open_transactions=2)
    p = stage.connect("p")
    first = stage.begun(p, 1)
    stage.begun(p, 2)
    stage.end(p, first, commands.Action.COMMIT)
    successor = stage.journal.load(stage.coordinator.config)
    assert successor.transactions.open_count == 1


def test_every_repeat_of_a_commit_that_waits_is_answered() -> None:
    stage = Stage()
    p = stage.connect("p")
    first, second = stage.begun(p, 1), stage.begun(p, 2)
    for txid, start, to in ((first, None, 1), (second, 1, 2)):
        steps = (step(("a", 0), start, to),)
        stage.ask(commands.AddOffsets(session=p, txid=txid, group="g", steps=steps))
    waiting = [stage.end(p, second, commands.Action.COMMIT) for _ in range(3)]
    assert [stage.reply(ref) for ref in waiting] == [None] * 3
    stage.coordinator.shard.forget_waiting([waiting[0]])
    stage.end(p, first, commands.Action.COMMIT)
    assert stage.reply(waiting[0]) is None, "its client went away"
    for ref in waiting[1:]:
        reply = stage.reply(ref)
        assert isinstance(reply, commands.Outcome)
        assert reply.state is State.COMMITTING


def test_every_repeat_of_a_commit_that_waits_learns_of_an_abort() -> None:
    stage = Stage()
    p = stage.connect("p")
    first, second = stage.begun(p, 1), stage.begun(p, 2)
    for txid, start, to in ((first, None, 1), (second, 1, 2)):
        steps = (step(("a", 0), start, to),)
        stage.ask(commands.AddOffsets(session=p, txid=txid, group="g", steps=steps))
    waiting = [stage.end(p, second, commands.Action.COMMIT) for _ in range(2)]
    stage.end(p, second, commands.Action.ABORT)
    for ref in waiting:
        assert isinstance(stage.reply(ref), TransactionAbortedError)


LONG_TOPIC = "é" * 124
"""A name of 248 bytes."""


def consumed(
    stage: Stage, session: commands.SessionId, request_id: int, *steps: OffsetStep
) -> commands.Reply:
    """Commits a transaction with these steps; returns the answer, or the first refusal."""
    begun = stage.begun(session, request_id)
    sent = stage.ask(commands.AddOffsets(session=session, txid=begun, group="g", steps=steps))
    if (refusal := stage.reply(sent)) != commands.Done():
        assert refusal is not None
        return refusal
    reply = stage.reply(stage.end(session, begun, commands.Action.COMMIT))
    assert reply is not None
    return reply


def test_an_iov_that_fits_no_record_is_refused_before_its_commit_is_decided() -> None:
    """If it were decided, its write would be repeated for ever, and hold up the high watermark."""
    stage = Stage()
    p, q = stage.connect("p"), stage.connect("q")
    steps = [step((LONG_TOPIC, number), None, 5) for number in range(3_000)]
    assert isinstance(consumed(stage, p, 1, *steps[:2_500]), commands.Outcome)
    refusal = consumed(stage, p, 2, *steps[2_500:])
    assert isinstance(refusal, RequestTooLargeError)
    assert "3000 partitions" in str(refusal)
    assert "__transaction_offsets" in str(refusal)
    # Only that client is refused: others go on, with old partitions and with new ones that fit.
    moved = [step((LONG_TOPIC, number), 5, 6) for number in range(2_500)]
    assert isinstance(consumed(stage, q, 1, *moved), commands.Outcome)
    assert isinstance(consumed(stage, q, 2, *steps[2_500:2_750]), commands.Outcome)
    iov = stage.coordinator.shard.offsets.committed("g")
    assert len(iov.offsets) == 2_750
    assert len(encode_value(iov)) < 900_000
    # The refused transaction is open, and can be aborted.
    [refused] = [t for t in stage.coordinator.shard.transactions if t.state is State.OPEN]
    aborted = stage.reply(stage.end(p, refused.txid, commands.Action.ABORT))
    assert isinstance(aborted, commands.Outcome)


@pytest.mark.parametrize(
    "position",
    [
        Position(o1=1, o2=1, met={(n, 1): 1 for n in range(SEQUENCES_MAX + 1)}),
        Position(o1=1, o2=1, delivered={(n, 2**48 - 1): 2**62 for n in range(120)}),
    ],
    ids=["met", "delivered"],
)
def test_a_position_with_too_many_sequences_is_refused(position: Position) -> None:
    stage = Stage()
    p = stage.connect("p")
    refusal = consumed(stage, p, 1, OffsetStep("a", 0, None, position))
    assert isinstance(refusal, RequestTooLargeError)
    assert "a[0]" in str(refusal)
    few = dict.fromkeys(list({**position.met, **position.delivered})[:50], 1)
    fits = Position(o1=1, o2=1, met=few, delivered=few)
    assert isinstance(consumed(stage, p, 2, OffsetStep("a", 0, None, fits)), commands.Outcome)


def test_finding_22_a_transaction_has_room_for_so_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(committed_offsets, "STEPS_MAX", 3)
    stage = Stage()
    p = stage.connect("p")
    txid = stage.begun(p, 1)

    def add(group: str, *steps: OffsetStep) -> commands.Reply | None:
        command = commands.AddOffsets(session=p, txid=txid, group=group, steps=steps)
        return stage.reply(stage.ask(command))

    assert add("g", step(("a", 0), None, 1), step(("a", 0), 1, 2)) == commands.Done()
    assert isinstance(
        add("h", step(("a", 0), None, 1), step(("a", 1), None, 1)), RequestTooLargeError
    )
    assert add("h", step(("a", 0), None, 1)) == commands.Done()
    assert isinstance(stage.reply(stage.end(p, txid, commands.Action.COMMIT)), commands.Outcome)


def test_an_extension_is_the_owners_alone_and_in_no_record() -> None:
    stage = Stage()
    session, stranger = stage.connect("p"), stage.connect("q")
    txid, records = stage.begun(session, 1), len(stage.journal.entries)
    for _ in range(3):
        stage.coordinator.pass_time(8)
        extend = commands.ExtendTransaction(session=session, txid=txid)
        assert stage.reply(stage.ask(extend)) == commands.Done()
    theirs = commands.ExtendTransaction(session=stranger, txid=txid)
    assert isinstance(stage.reply(stage.ask(theirs)), ProducerFencedError)
    assert len(stage.journal.entries) == records
    stage.coordinator.pass_time(9)
    stage.coordinator.ack()
    extend = commands.ExtendTransaction(session=session, txid=txid)
    refusal = stage.reply(stage.ask(extend))
    assert isinstance(refusal, TransactionAbortedError)
    assert "longer than its transaction.timeout.ms" in str(refusal)


def test_who_asks_for_an_outcome_learns_why_it_was_aborted() -> None:
    stage = Stage()
    txid = stage.begun(stage.connect("p"), 1)
    stage.coordinator.pass_time(9)
    stage.coordinator.ack()
    for state in (State.ABORTING, State.ABORTED):
        told = stage.reply(stage.ask(commands.GetOutcome(txid=txid)))
        assert isinstance(told, commands.Outcome)
        assert (told.state, told.reason) == (state, AbortReason.EXPIRED)
        if state is State.ABORTING:
            stage.coordinator.finish(txid.offset)
            stage.coordinator.ack()
