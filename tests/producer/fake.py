"""Coordinators that decide in memory, with faults on demand: what a producer's tests talk to.

Replies come from one thread per session, in the order of the requests, as with the real client.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from logtx.coordinator.client.session import SessionOptions
from logtx.coordinator.protocol.commands import (
    Action,
    Began,
    Binding,
    Connected,
    Decided,
    Done,
    GroupOffsets,
    Outcome,
)
from logtx.journal.acks import Acks
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.errors import (
    CoordinatorNotAvailableError,
    LogtxError,
    OffsetsConflictError,
    ProducerFencedError,
    RequestTimedOutError,
    SessionClosedError,
    TransactionAbortedError,
    TransactionCommittedError,
)
from logtx.journal.position import Position
from logtx.journal.records.types import AbortReason, OffsetStep
from logtx.journal.state import State
from logtx.journal.txid import TxId

Writes = Mapping[TopicPartition, tuple[BranchRange, ...]]


@dataclass
class FakeTransaction:
    """What the coordinator knows of one transaction."""

    txid: TxId
    producer_id: str
    timeout_ms: int
    state: State = State.OPEN
    commit_sequence: int | None = None
    reason: AbortReason | None = None
    partitions: set[TopicPartition] = field(default_factory=set)
    first_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    offsets: list[tuple[str, tuple[OffsetStep, ...]]] = field(default_factory=list)
    acks: list[tuple[str, tuple[Acks, ...], int, int]] = field(default_factory=list)
    """(subscription, messages, delay in ms, era)."""
    parts: list[Writes] = field(default_factory=list)
    extended: int = 0
    writes: Writes = field(default_factory=dict)


@dataclass
class Fault:
    """What happens to a request instead of being answered."""

    applied: bool
    """Whether the coordinator acts on it before the answer is lost."""
    error: LogtxError


class FakeCoordinators:
    """One coordinator for all journal partitions; safe from any thread."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.transactions: dict[TxId, FakeTransaction] = {}
        self.requests: list[tuple[str, TxId | None]] = []
        """(kind, TxId) in the order of arrival."""
        self.bindings: dict[str, str | None] = {}
        self.committed: dict[str, dict[TopicPartition, Position]] = {}
        self.sessions: list[FakeSession] = []
        self.reachable = True
        self._faults: dict[str, deque[Fault]] = {}
        self._held: dict[str, threading.Event] = {}
        self._next = 100
        self.finishes = True
        """Whether transactions are finished as soon as they are committed."""

    # Faults.

    def lose_reply(self, kind: str, count: int = 1, error: LogtxError | None = None) -> None:
        """Act on the next requests of this kind, and answer with an error."""
        fault = Fault(True, error or RequestTimedOutError("the reply was lost"))
        self._faults.setdefault(kind, deque()).extend([fault] * count)

    def lose_request(self, kind: str, count: int = 1, error: LogtxError | None = None) -> None:
        """Answer the next requests of this kind with an error, and do nothing."""
        fault = Fault(False, error or RequestTimedOutError("the request was lost"))
        self._faults.setdefault(kind, deque()).extend([fault] * count)

    def hold(self, kind: str) -> threading.Event:
        """Keep requests of this kind back until the event is set."""
        return self._held.setdefault(kind, threading.Event())

    def fence(self, producer_id: str) -> None:
        """A newer producer of this name took over."""
        with self.lock:
            for transaction in self.transactions.values():
                if transaction.producer_id == producer_id and transaction.state is State.OPEN:
                    transaction.state = State.ABORTED
            sessions = [s for s in self.sessions if s.producer_id == producer_id]
        for session in sessions:
            session.end_for_good(ProducerFencedError("a newer generation took over"))

    def expire(self, txid: TxId) -> None:
        """The transaction's timeout passed, and what told its producer was lost."""
        with self.lock:
            known = self.transactions[txid]
            known.state, known.reason = State.ABORTED, AbortReason.EXPIRED

    def decide(self, txid: TxId, state: State, reason: AbortReason | None = None) -> None:
        """It is decided without its producer, whose session is told of it."""
        with self.lock:
            known = self.transactions[txid]
            known.state = state
            sessions = [s for s in self.sessions if s.producer_id == known.producer_id]
        for session in sessions:
            session.tell(Decided(txid, state, reason))

    # What clients ask.

    def answer(self, kind: str, txid: TxId | None, act: Callable[[], Any]) -> Any:
        """Answer one request, with the faults that were asked for."""
        if kind in self._held:
            assert self._held[kind].wait(20)
        with self.lock:
            self.requests.append((kind, txid))
            if not self.reachable:
                return CoordinatorNotAvailableError("no coordinator")
            faults = self._faults.get(kind)
            fault = faults.popleft() if faults else None
            if fault is not None and not fault.applied:
                return fault.error
            try:
                reply = act()
            except LogtxError as error:
                reply = error
            return fault.error if fault is not None else reply

    def count(self, kind: str) -> int:
        """Requests of a kind that arrived."""
        with self.lock:
            return sum(k == kind for k, _ in self.requests)

    def begin(
        self, producer_id: str, timeout_ms: int, partitions: tuple[TopicPartition, ...]
    ) -> Began:
        self._next += 1
        txid = TxId(0, 0xABC, self._next)
        known = FakeTransaction(txid, producer_id, timeout_ms, partitions=set(partitions))
        self.transactions[txid] = known
        return Began(txid)

    def require_open(self, txid: TxId) -> FakeTransaction:
        known = self.transactions[txid]
        if known.state.aborts:
            raise TransactionAbortedError("aborted")
        if known.state.commits:
            raise TransactionCommittedError("committed")
        return known

    def add_partitions(self, txid: TxId, first_offsets: Mapping[TopicPartition, int]) -> Done:
        transaction = self.require_open(txid)
        transaction.partitions.update(first_offsets)
        transaction.first_offsets.update(first_offsets)
        return Done()

    def add_offsets(self, txid: TxId, group: str, steps: Sequence[OffsetStep]) -> Done:
        self.require_open(txid).offsets.append((group, tuple(steps)))
        return Done()

    def add_acks(
        self, txid: TxId, group: str, acks: Sequence[Acks], delay_ms: int, era: int
    ) -> Done:
        self.require_open(txid).acks.append((group, tuple(acks), delay_ms, era))
        return Done()

    def add_writes(self, txid: TxId, part: int, writes: Writes) -> Done:
        known = self.require_open(txid)
        assert part <= len(known.parts), "each when the one before was answered"
        if part == len(known.parts):
            known.parts.append(writes)
        return Done()

    def extend(self, txid: TxId) -> Done:
        self.require_open(txid).extended += 1
        return Done()

    def end(self, txid: TxId, action: Action, writes: Writes, parts: int = 0) -> Outcome:
        known = self.transactions[txid]
        if action is Action.COMMIT and known.state is State.OPEN:
            assert parts == len(known.parts)
            for part in known.parts:
                writes = {k: (*writes.get(k, ()), *part.get(k, ())) for k in (*writes, *part)}
        if action is Action.COMMIT and known.state.aborts:
            raise TransactionAbortedError("aborted before")
        if action is Action.ABORT and known.state.commits:
            raise TransactionCommittedError("committed before")
        if known.state is State.OPEN:
            if action is Action.COMMIT:
                self._commit_offsets(known)
            self._next += 1
            known.writes, known.commit_sequence = writes, self._next
            committed = State.COMMITTED if self.finishes else State.COMMITTING
            known.state = committed if action is Action.COMMIT else State.ABORTED
        return self.outcome(txid)

    def _commit_offsets(self, known: FakeTransaction) -> None:
        for group, steps in known.offsets:
            committed = self.committed.setdefault(group, {})
            for step in steps:
                now = committed.get((step.topic, step.partition))
                if (now.place if now else None) != step.from_place:
                    raise OffsetsConflictError(f"committed is {now}")
            for step in steps:
                committed[step.topic, step.partition] = step.to

    def outcome(self, txid: TxId) -> Outcome:
        known = self.transactions.get(txid)
        if known is None:
            return Outcome(txid, State.UNKNOWN)
        return Outcome(txid, known.state, known.commit_sequence, known.reason)

    # Coordinators.

    def session(
        self,
        options: SessionOptions,
        on_closed: Callable[[LogtxError], None],
        on_decided: Callable[[Decided], None],
    ) -> FakeSession:
        session = FakeSession(self, options, on_closed, on_decided)
        self.sessions.append(session)
        return session

    def queries(self, *, timeout_s: float) -> FakeQueries:
        return FakeQueries(self, timeout_s)


class FakeSession:
    """A session whose thread answers one request after the other."""

    def __init__(
        self,
        coordinators: FakeCoordinators,
        options: SessionOptions,
        on_closed: Callable[[LogtxError], None],
        on_decided: Callable[[Decided], None],
    ) -> None:
        self.producer_id = options.producer_id
        self.transaction_group = options.transaction_group
        self.generation = options.generation
        self.failure: LogtxError | None = None
        self.closed = False
        self._coordinators = coordinators
        self._timeout_s = options.timeout_s
        self._on_closed = on_closed
        self._on_decided = on_decided
        self._requests: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def connect(self, timeout_s: float | None = None) -> Connected:
        if not self._coordinators.reachable:
            time.sleep(min(self._timeout_s, 0.2 if timeout_s is None else timeout_s))
            raise CoordinatorNotAvailableError("no coordinator within the time allowed")
        self._thread.start()
        return Connected(generation=self.generation or 0, partition=0, incarnation=0xABC, epoch=7)

    def end_for_good(self, error: LogtxError) -> None:
        self.failure = error
        self._on_closed(error)

    def tell(self, decided: Decided) -> None:
        """Tells the producer on the session's thread, and waits until that is done."""
        told = threading.Event()

        def serve() -> None:
            self._on_decided(decided)
            told.set()

        self._requests.put(serve)
        assert told.wait(20)

    def begin(
        self, on_reply: Any, *, timeout_ms: int, partitions: Iterable[TopicPartition] = ()
    ) -> None:
        named = tuple(partitions)
        self._ask(
            "begin",
            None,
            lambda: self._coordinators.begin(self.producer_id, timeout_ms, named),
            on_reply,
        )

    def add_partitions(
        self, txid: TxId, first_offsets: Mapping[TopicPartition, int], on_reply: Any
    ) -> None:
        named = dict(first_offsets)
        act = lambda: self._coordinators.add_partitions(txid, named)  # noqa: E731
        self._ask("add_partitions", txid, act, on_reply)

    def add_offsets(
        self, txid: TxId, group: str, steps: Sequence[OffsetStep], on_reply: Any
    ) -> None:
        act = lambda: self._coordinators.add_offsets(txid, group, steps)  # noqa: E731
        self._ask("add_offsets", txid, act, on_reply)

    def add_acks(
        self,
        txid: TxId,
        group: str,
        acks: Sequence[Acks],
        on_reply: Any,
        *,
        delay_ms: int = 0,
        era: int = 0,
    ) -> None:
        act = lambda: self._coordinators.add_acks(txid, group, acks, delay_ms, era)  # noqa: E731
        self._ask("add_acks", txid, act, on_reply)

    def extend(self, txid: TxId, on_reply: Any) -> None:
        self._ask("extend", txid, lambda: self._coordinators.extend(txid), on_reply)

    def add_writes(self, txid: TxId, part: int, writes: Writes, on_reply: Any) -> None:
        act = lambda: self._coordinators.add_writes(txid, part, writes)  # noqa: E731
        self._ask("add_writes", txid, act, on_reply)

    def end(
        self, txid: TxId, action: Action, writes: Writes, on_reply: Any, *, parts: int = 0
    ) -> None:
        act = lambda: self._coordinators.end(txid, action, writes, parts)  # noqa: E731
        self._ask(action.value, txid, act, on_reply)

    def outcome(self, txid: TxId, on_reply: Any, *, until_finished: bool = False) -> None:
        kind = "outcome_until_finished" if until_finished else "outcome"
        self._ask(kind, txid, lambda: self._coordinators.outcome(txid), on_reply)

    def close(self) -> None:
        self.closed = True
        self._requests.put(None)

    def _ask(self, kind: str, txid: TxId | None, act: Callable[[], Any], on_reply: Any) -> None:
        if self.closed:
            on_reply(SessionClosedError("the client was closed"))
            return

        def serve() -> None:
            if self.failure is not None:
                on_reply(self.failure)
            else:
                on_reply(self._coordinators.answer(kind, txid, act))

        self._requests.put(serve)

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            request()
            del request  # While the thread waits, it keeps no transaction alive.


class FakeQueries:
    """Questions without a session; an unreachable coordinator costs a moment."""

    def __init__(self, coordinators: FakeCoordinators, timeout_s: float) -> None:
        self._coordinators = coordinators
        self._timeout_s = timeout_s

    def _ask(self, kind: str, txid: TxId | None, act: Callable[[], Any]) -> Any:
        reply = self._coordinators.answer(kind, txid, act)
        if isinstance(reply, LogtxError):
            time.sleep(min(self._timeout_s, 0.02))
            raise reply
        return reply

    def open_sidecars(self, topics: Iterable[str]) -> None:
        # The log that it is used with has them, or creates topics by itself.
        self._ask("open_sidecars", None, lambda: tuple(topics))

    def bind_group(self, group: str, transaction_group: str | None) -> Binding:
        bindings = self._coordinators.bindings

        def act() -> Binding:
            if transaction_group is not None:
                bindings.setdefault(group, transaction_group)
            return Binding(bindings.get(group))

        reply: Binding = self._ask("bind_group", None, act)
        return reply

    def fetch_offsets(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> GroupOffsets:
        wanted = None if partitions is None else set(partitions)

        def act() -> GroupOffsets:
            committed = self._coordinators.committed.get(group, {})
            return GroupOffsets({k: v for k, v in committed.items() if not wanted or k in wanted})

        reply: GroupOffsets = self._ask("fetch_offsets", None, act)
        return reply

    def outcome(self, txid: TxId) -> Outcome:
        reply: Outcome = self._ask("outcome", txid, lambda: self._coordinators.outcome(txid))
        return reply

    def add_partitions(self, txid: TxId, first_offsets: Mapping[TopicPartition, int]) -> None:
        named = dict(first_offsets)
        act = lambda: self._coordinators.add_partitions(txid, named)  # noqa: E731
        self._ask("add_partitions", txid, act)

    def close(self) -> None:
        """Nothing is held."""
