"""What one client may have open, and what becomes of requests that it repeats without end."""

from __future__ import annotations

from logtx.coordinator import commands as c
from logtx.coordinator.decision import ShardConfig
from logtx.journal.errors import TooManyTransactionsError, TransactionAbortedError
from logtx.journal.state import State
from logtx.journal.txid import TxId

from .harness import Coordinator, Journal, step


class Stage:
    """A coordinator that answers at once."""

    def __init__(self, **limits: int) -> None:
        self.journal = Journal()
        self.coordinator = Coordinator(self.journal, config=ShardConfig(**limits))
        self.coordinator.take_over()
        self.refs = 0

    def ask(self, command: c.Command) -> int:
        """Ask; the number under which the coordinator answers."""
        self.refs += 1
        self.coordinator.submit(command, self.refs)
        self.coordinator.ack()
        return self.refs

    def reply(self, ref: int) -> c.Reply | None:
        """The answer, if there is one."""
        return self.coordinator.replies.get(ref)

    def connect(self, producer_id: str) -> c.Session:
        """A producer's session."""
        self.ask(c.Connect(producer_id=producer_id, nonce=1))
        return c.Session(producer_id, 0, 1)

    def begin(self, session: c.Session, request_id: int) -> c.Reply | None:
        """The answer to a BEGIN."""
        begin = c.Begin(session=session, request_id=request_id, answered_below=0, timeout_ms=9)
        return self.reply(self.ask(begin))

    def begun(self, session: c.Session, request_id: int) -> TxId:
        """An open transaction."""
        reply = self.begin(session, request_id)
        assert isinstance(reply, c.Began), reply
        return reply.txid

    def end(self, session: c.Session, txid: TxId, action: c.Action) -> int:
        """Ask for its end."""
        return self.ask(c.End(session=session, txid=txid, action=action, writes={}))


def test_a_producer_has_so_many_open_and_no_more() -> None:
    stage = Stage(max_open_per_producer=2)
    p, q = stage.connect("p"), stage.connect("q")
    first = stage.begun(p, 1)
    second = stage.begun(p, 2)
    refusal = stage.begin(p, 3)
    assert isinstance(refusal, TooManyTransactionsError)
    assert "max.open.transactions.per.producer" in str(refusal)
    stage.begun(q, 1)
    assert stage.begin(p, 2) == c.Began(second), "a repeat opens nothing"
    stage.end(p, first, c.Action.COMMIT)
    stage.begun(p, 3)


def test_a_journal_partition_has_so_many_open_whoever_began_them() -> None:
    stage = Stage(max_open=2)
    p, q = stage.connect("p"), stage.connect("q")
    first = stage.begun(p, 1)
    stage.begun(q, 1)
    refusal = stage.begin(q, 2)
    assert isinstance(refusal, TooManyTransactionsError)
    assert "(max.open.transactions)" in str(refusal)
    # Decided is room enough, though a partition may be long in taking the marker.
    stage.end(p, first, c.Action.ABORT)
    stage.begun(q, 2)


def test_a_new_owner_counts_what_the_journal_has_open() -> None:
    stage = Stage(max_open=2)
    p = stage.connect("p")
    first = stage.begun(p, 1)
    stage.begun(p, 2)
    stage.end(p, first, c.Action.COMMIT)
    successor = stage.journal.load(stage.coordinator.config)
    assert successor.transactions.open_count == 1


def test_every_repeat_of_a_commit_that_waits_is_answered() -> None:
    stage = Stage()
    p = stage.connect("p")
    first, second = stage.begun(p, 1), stage.begun(p, 2)
    for txid, start, to in ((first, None, 1), (second, 1, 2)):
        steps = (step(("a", 0), start, to),)
        stage.ask(c.AddOffsets(session=p, txid=txid, group="g", steps=steps))
    waiting = [stage.end(p, second, c.Action.COMMIT) for _ in range(3)]
    assert [stage.reply(ref) for ref in waiting] == [None] * 3
    stage.coordinator.shard.forget_waiting([waiting[0]])
    stage.end(p, first, c.Action.COMMIT)
    assert stage.reply(waiting[0]) is None, "its client went away"
    for ref in waiting[1:]:
        reply = stage.reply(ref)
        assert isinstance(reply, c.Outcome)
        assert reply.state is State.COMMITTING


def test_every_repeat_of_a_commit_that_waits_learns_of_an_abort() -> None:
    stage = Stage()
    p = stage.connect("p")
    first, second = stage.begun(p, 1), stage.begun(p, 2)
    for txid, start, to in ((first, None, 1), (second, 1, 2)):
        steps = (step(("a", 0), start, to),)
        stage.ask(c.AddOffsets(session=p, txid=txid, group="g", steps=steps))
    waiting = [stage.end(p, second, c.Action.COMMIT) for _ in range(2)]
    stage.end(p, second, c.Action.ABORT)
    for ref in waiting:
        assert isinstance(stage.reply(ref), TransactionAbortedError)
