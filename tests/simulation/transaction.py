"""One transaction of a simulated producer: `TransactionBook` and `BranchTally` as they are.

They are joined to a session and to the log as `producer/transaction.py` does it with threads and
librdkafka.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from logtx.coordinator.protocol import commands
from logtx.coordinator.protocol.commands import Action
from logtx.journal.acks import Acks
from logtx.journal.control import (
    OWN_BRANCH,
    TXCTL_HEADER,
    TXID_HEADER,
    BranchRange,
    DataControl,
    TopicPartition,
    encode_data_control,
)
from logtx.journal.errors import (
    CoordinatorBusyError,
    LogtxError,
    RetriableError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from logtx.journal.records.types import OffsetStep
from logtx.journal.txid import TxId
from logtx.producer.core import bookkeeping
from logtx.producer.core.accepted import AcceptedWrites
from logtx.producer.core.bookkeeping import EndResult, Phase, TransactionBook
from logtx.producer.core.growing import Growing
from logtx.producer.core.summary import BranchSummary
from logtx.producer.core.tally import BranchTally, Floors

from . import sidecars
from .history import Work
from .logs import Pipe
from .network import Network, Session, query
from .schedule import Party
from .setting import Setting
from .sidecars import GROWS_SHARE, ROOM_BYTES, Uses
from .topology import OUTPUT, SIDECAR

Headers = list[tuple[str, bytes | None]]
REGISTER_MS: Final = 30
"""Time after which partitions are registered in histories whose topics go away: the decision must
not be the first to name them."""


BUSY_MS: Final = 10
"""Pause before a request is repeated that could not be decided yet."""
EXTENSIONS: Final = 3
"""How often a transaction's timeout is begun anew."""


class Report:
    """A delivery report."""

    __slots__ = ("_offset", "_partition")

    def __init__(self, partition: int, offset: int | None) -> None:
        """Keeps where a record went, and its offset."""
        self._partition, self._offset = partition, offset

    def partition(self) -> int:
        """The partition that the record was sent to."""
        return self._partition

    def offset(self) -> int | None:
        """The record's offset; None unless it was acknowledged."""
        return self._offset

    def latency(self) -> float:
        """Seconds. No record is sent again here, and one that fails fails its own branch."""
        return 0.0


class Host(Party):
    """What a transaction needs of the producer that runs it."""

    setting: Setting
    network: Network
    session: Session
    floors: Floors
    feeds_output = True
    """Whether its transactions may write to the topic that readers and workers read."""

    @abstractmethod
    def next_value(self) -> int:
        """Returns a number for the next record."""

    @abstractmethod
    def pipe(self, partition: TopicPartition, branch: int) -> Pipe:
        """Returns the way to a data partition; each branch has a librdkafka producer of its own."""

    @abstractmethod
    def move_offsets(self, transaction: Transaction) -> None:
        """Consumes some input in a transaction."""

    @abstractmethod
    def not_committed(self, transaction: Transaction) -> None:
        """Consumes its input again."""


class OfBranches(AcceptedWrites):
    """Names in parts what branches wrote. What the owner wrote itself goes with the commit."""

    def add_own(self, writes: Mapping[TopicPartition, BranchRange]) -> bool:  # noqa: ARG002
        """Takes nothing: the coordinator has parts and a rest of all kinds then."""
        return False


class Transaction:
    """One transaction of a producer."""

    def __init__(self, producer: Host, timeout_ms: int, named: tuple[TopicPartition, ...]) -> None:
        """Sends its BEGIN."""
        self.producer = producer
        self.txid: TxId | None = None
        self._timeout_ms = timeout_ms
        self.work = Work(producer.name)
        self.hangs_until_ms = 0
        """Virtual time until which the application forgets it."""
        self.over = False
        """Whether there is nothing more to do about it."""
        self.is_step = False
        """Part of a pipeline: it moves offsets and commits as soon as it has begun."""
        self.holds_input = False
        """It moves offsets as soon as it has begun, and is not committed at once."""
        self.groups: set[str] = set()
        self._setting = producer.setting
        own = BranchTally(
            OWN_BRANCH, producer.floors, on_settled=self.advance, on_failure=self._failed
        )
        self._in_parts = producer.feeds_output and self._setting.faults.writes_in_parts()
        self._writing = 0
        """Number of branches whose summaries its commit waits for."""
        self._commits_later = False
        # In parts of one range each, from the first on.
        accepted = OfBranches(0, 1) if self._in_parts else None
        self.book = TransactionBook(own, named, accepted)
        self._backlog: list[TopicPartition] = []
        self._resolving = False
        self._uses = sidecars.choose(self._setting)
        own.writes_to_sidecars = self._uses is not Uses.NONE
        self._growing: defaultdict[int, Growing] = defaultdict(lambda: Growing(ROOM_BYTES))
        """Branch → what its writer counts, if the transaction grows into its sidecar."""

        def begin(request_id: int, below: int) -> commands.Command:
            assert producer.session.connected is not None
            return commands.Begin(
                session=producer.session.connected,
                request_id=request_id,
                answered_below=below,
                timeout_ms=timeout_ms,
                partitions=named,
            )

        producer.session.submit(begin, self._began)

    def _began(self, reply: commands.Reply) -> None:
        if not isinstance(reply, commands.Began):
            assert isinstance(reply, LogtxError)
            self.book.fail(reply)
            self.over = True
            return
        self.txid = reply.txid
        self._setting.history.works[reply.txid] = self.work
        backlog, self._backlog = self._backlog, []
        for partition in backlog:
            self._send(partition, self.book.own, None)
        if self._in_parts:
            for numbers in self._setting.faults.branches(self._setting.partition_max):
                self.branch([(OUTPUT, number) for number in numbers], accept=True)
        if self.is_step or self.holds_input:
            self.producer.move_offsets(self)
        if self.is_step:
            self.end(Action.COMMIT)
        self.advance()
        if self._setting.extends:
            self._extend_later(EXTENSIONS)
        if self._setting.topology.has_temporary:
            self.producer.later(REGISTER_MS, self._register_in_time)

    def _extend_later(self, left: int) -> None:
        """Begins the timeout anew when a part of it is over, as often as `left`."""
        session, txid = self.producer.session, self.txid
        assert txid is not None

        def extend() -> None:
            if self.book.phase not in (Phase.OPEN, Phase.ENDING) or session.connected is None:
                return
            command = commands.ExtendTransaction(session=session.connected, txid=txid)
            session.submit(lambda _id, _below: command, lambda _: None)
            self._setting.history.counts["extensions"] += 1
            self._extend_later(left - 1)

        if left:
            self.producer.later(self._timeout_ms // 2, extend)

    def _register_in_time(self) -> None:
        """Registers what it wrote to, as all producers do after a while."""
        if self.book.phase is Phase.OPEN:
            self.register()
            self.producer.later(REGISTER_MS, self._register_in_time)

    # ---- the application's calls ----------------------------------------------------------------

    def produce(self, partition: TopicPartition) -> None:
        """Writes a record."""
        if not self.book.takes_records:
            return
        partition = self._where(partition, OWN_BRANCH)
        self.book.own.admit()
        if self.txid is None:
            self._backlog.append(partition)
        else:
            self._send(partition, self.book.own, None)

    def branch(self, partitions: list[TopicPartition], *, accept: bool) -> None:
        """Lets a branch write; accepts it, if `accept`, when its records are acknowledged."""
        if self.txid is None or not self.book.takes_records:
            return
        txid, nonce = self.txid, self._setting.chance.getrandbits(64) | 1
        self.work.branches[nonce] = []
        # The branch is as in another process: the owner waits for its summary if it will accept it.
        self.book.requests += accept
        self._writing += accept and self._in_parts

        def settled() -> None:
            self.book.requests -= accept
            if accept and tally.failure is None and self.book.takes_records:
                self.book.accept(txid, BranchSummary(txid, nonce, tally.ranges()))
                self.work.accepted.add(nonce)
                self._setting.history.counts["branches accepted"] += 1
                self._send_part()
            self._writing -= accept and self._in_parts
            if self._commits_later and not self._writing:
                self.end(Action.COMMIT)
            self.advance()

        floors = Floors()
        tally = BranchTally(nonce, floors, on_settled=settled, on_failure=lambda _: None)
        control = encode_data_control(DataControl(branch=nonce))
        tally.writes_to_sidecars = self._uses is not Uses.NONE
        for partition in partitions:
            tally.admit()
            self._send(self._where(partition, nonce), tally, control)
        tally.close()

    def _where(self, key: TopicPartition, branch: int) -> TopicPartition:
        """Returns where a record goes that is to be delivered in this partition."""
        draw = self._setting.sidecars
        if self._uses is Uses.NONE or draw is None or key[0] != OUTPUT:
            return key
        growing = self._growing[branch]
        if self._uses is Uses.GROWS and not growing.is_grown(key[0]):
            too_large = draw.random() < GROWS_SHARE
            if growing.take(key[0], (ROOM_BYTES + 1 if too_large else 0,)):
                return key
        return SIDECAR, key[1]

    def _send(self, key: TopicPartition, tally: BranchTally, control: bytes | None) -> None:
        producer, setting = self.producer, self._setting
        assert self.txid is not None
        value = b"%s/%d" % (producer.name.encode(), producer.next_value())
        values = self.work.own if control is None else self.work.branches[tally.branch]
        values.append(value)
        headers: Headers = [(TXID_HEADER, self.txid.to_bytes())]
        if control is not None:
            headers.append((TXCTL_HEADER, control))
        handed_at = setting.history.tick()
        receive = tally.receivers()[key[0]]
        name, what = producer.name, f"{self.txid} {value.decode()}"

        def land() -> int | None:
            offset = setting.broker.append_data(key, headers, value, name, handed_at)
            setting.note(name, f"{key} offset {offset}:", what)
            return offset

        def acknowledge(offset: int | None) -> None:
            receive(None if offset is not None else "timed out", Report(key[1], offset))

        producer.pipe(key, tally.branch).append(land, acknowledge)

    def send_offsets(self, group: str, steps: tuple[OffsetStep, ...]) -> None:
        """Moves input offsets with this transaction."""
        producer, txid = self.producer, self.txid
        assert txid is not None
        assert producer.session.connected is not None
        self.book.requests += 1
        self.groups.add(group)
        command = commands.AddOffsets(
            session=producer.session.connected, txid=txid, group=group, steps=steps
        )
        producer.session.submit(lambda _id, _below: command, self._offsets_answered)

    def send_acks(
        self,
        group: str,
        acks: Sequence[Acks],
        *,
        delay_ms: int = 0,
        on_reply: Callable[[LogtxError | None], None] = lambda _: None,
        era: int = 0,
    ) -> None:
        """Acknowledges messages of a queue in this transaction.

        Args:
            group: the subscription.
            acks: the messages.
            delay_ms: how long nobody gets them if it aborts.
            on_reply: called with why it was refused, or None.
            era: in which they were given out.
        """
        session, txid = self.producer.session, self.txid
        assert txid is not None
        assert session.connected is not None
        self.book.requests += 1
        command = commands.AddAcks(
            session=session.connected,
            txid=txid,
            group=group,
            acks=tuple(acks),
            delay_ms=delay_ms,
            era=era,
        )

        def ask() -> None:
            session.submit(lambda _id, _below: command, answered)

        def answered(reply: commands.Reply) -> None:
            if isinstance(reply, CoordinatorBusyError):
                self.producer.later(BUSY_MS, ask)  # As `client/session.py` repeats it.
            else:
                on_reply(reply if isinstance(reply, LogtxError) else None)
                self._offsets_answered(reply)

        ask()

    def register(self) -> None:
        """Tells the coordinator which partitions it writes to."""
        session = self.producer.session
        if self.txid is None or self.book.phase is not Phase.OPEN or session.connected is None:
            return
        new = self.book.to_register()
        if new:
            command = commands.AddPartitions(
                txid=self.txid, partitions=new, session=session.connected
            )
            session.submit(lambda _id, _below: command, partial(self._registered, new))

    def end(self, how: Action) -> None:
        """Commits or aborts."""
        if how is Action.COMMIT and self._writing:
            self._commits_later = True
            return
        try:
            starts = self.book.ask(how)
        except LogtxError:
            return
        if starts:
            if how is Action.COMMIT:
                self.work.asked_ms = self._setting.now_ms
            self.advance()

    # ---- what follows ---------------------------------------------------------------------------

    def advance(self) -> None:
        """Sends the request to end it, if that is due."""
        self._send_part()
        if self.txid is None or not self.book.ready:
            return
        self.book.sent()
        self._send_end()

    def _send_part(self) -> None:
        session, due = self.producer.session, self.book.next_part()
        if due is None:
            return
        assert self.txid is not None
        assert session.connected is not None
        command = commands.AddWrites(
            session=session.connected, txid=self.txid, part=due[0], writes=due[1]
        )
        self._setting.history.counts["parts of writes"] += 1
        session.submit(lambda _id, _below: command, self._part_answered)

    def _part_answered(self, reply: commands.Reply) -> None:
        self.book.part_answered()
        if isinstance(reply, LogtxError):
            self._request_failed(reply)
        else:
            self.advance()

    def _send_end(self) -> None:
        session, txid = self.producer.session, self.txid
        assert txid is not None
        assert session.connected is not None
        action = commands.Action.COMMIT if self.book.end is Action.COMMIT else commands.Action.ABORT
        command = commands.End(
            session=session.connected,
            txid=txid,
            action=action,
            writes=self.book.writes(),
            parts=self.book.parts,
        )
        session.submit(lambda _id, _below: command, self._ended)

    def _ended(self, reply: commands.Reply) -> None:
        if self.book.phase is not Phase.SENT:
            return
        told = _verdict(reply)
        if told is EndResult.REFUSED:
            assert isinstance(reply, LogtxError)
            self.book.refused(reply)
            self.producer.not_committed(self)
            self.end(Action.ABORT)
        elif told in (EndResult.COMMITTED, EndResult.ABORTED):
            self._decide(told)
        elif self.book.end is Action.ABORT and self.producer.session.failure is not None:
            self.book.unresolved()
            self.over = True
        else:
            self._resolve()

    def _resolve(self) -> None:
        if self._resolving:
            return
        self._resolving = True
        assert self.txid is not None
        self._setting.history.counts["outcomes asked for"] += 1
        command = commands.GetOutcome(txid=self.txid)
        query(self.producer.network, self.producer, self.txid.partition, command, self._resolved)

    def _resolved(self, reply: commands.Reply) -> None:
        self._resolving = False
        if self.book.phase is not Phase.SENT:
            return
        told = _verdict(reply)
        if told in (EndResult.COMMITTED, EndResult.ABORTED):
            self._decide(told)
        elif told is EndResult.UNDECIDED and self.producer.session.failure is None:
            self._send_end()
        elif told is EndResult.UNKNOWN and isinstance(reply, commands.Outcome):
            # Past the outcome retention: its fate can't be known any more.
            self.book.unresolved()
            self.work.known_ms = self._setting.now_ms
            self.over = True
        else:
            self.producer.later(50, self._resolve)

    def _decide(self, told: EndResult) -> None:
        committed = told is EndResult.COMMITTED
        self.book.decided(committed=committed)
        history, work = self._setting.history, self.work
        work.believes, work.believes_at = told.value, history.tick()
        work.known_ms = self._setting.now_ms
        self.over = True
        self._setting.note(self.producer.name, f"knows that {self.txid} is", told.value)
        if not committed:
            self.producer.not_committed(self)

    def _offsets_answered(self, reply: commands.Reply) -> None:
        self.book.requests -= 1
        if isinstance(reply, LogtxError):
            self._request_failed(reply)
        else:
            self.advance()

    def _registered(self, partitions: tuple[TopicPartition, ...], reply: commands.Reply) -> None:
        if isinstance(reply, RetriableError):
            self.book.not_registered(partitions)
        elif isinstance(reply, LogtxError):
            self._request_failed(reply)

    def _request_failed(self, error: LogtxError) -> None:
        if isinstance(error, TransactionAbortedError | TransactionCommittedError):
            if self.book.phase in (Phase.OPEN, Phase.ENDING):
                self._decide(_verdict(error))
        else:
            self._failed(error)

    def _failed(self, cause: LogtxError) -> None:
        self.book.fail(cause)
        # The application redoes its work.
        self.producer.later(1, self._give_up)

    def _give_up(self) -> None:
        self.producer.not_committed(self)
        self.end(Action.ABORT)

    def fatal(self, error: LogtxError) -> None:
        """Fails it: the session is closed for good."""
        self.book.fail(error)
        if self.book.phase is not Phase.SENT:
            self.over = True


def _verdict(reply: commands.Reply) -> EndResult:
    if isinstance(reply, commands.Outcome):
        return bookkeeping.end_result(reply.state)
    assert isinstance(reply, LogtxError), reply
    return bookkeeping.end_result(reply)
