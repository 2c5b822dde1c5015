"""Asks coordinators single questions, without a session."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Final, TypeVar

from ...journal.control import TopicPartition
from ...journal.errors import (
    ConfigError,
    CoordinatorNotAvailableError,
    ForkedError,
    GroupBoundError,
    JournalError,
    LogtxError,
    NotCoordinatorError,
    NotSupportedError,
    OffsetsPendingError,
    RequestTimedOutError,
    RetriableError,
    SessionClosedError,
    TlsError,
)
from ...journal.logs.interface import Log
from ...journal.modes import is_topic_binding
from ...journal.txid import TxId
from ..protocol import coordinator_pb2 as pb
from ..protocol.commands import (
    AddPartitions,
    BindGroup,
    Binding,
    Claimed,
    ClaimOffsets,
    Command,
    Done,
    FetchOffsets,
    GetOutcome,
    GroupOffsets,
    OpenSidecars,
    Outcome,
    Reply,
)
from ..protocol.replies import decode_reply
from ..protocol.requests import encode_request
from ..transport.tls import Tls
from .connection import Calls
from .discovery import Discovery

PAUSE_MIN_S: Final = 0.02
"""First pause before a question is repeated."""
PAUSE_MAX_S: Final = 0.5
"""Longest pause: bounds how late a new owner is found, and how often a lost one is asked for."""

R = TypeVar("R")


class CoordinatorQueries:
    """Asks single questions of the coordinator that owns their subject. Thread-safe; blocks.

    Every call is repeated after a retriable error for up to `timeout_s` seconds, then it raises the
    last error. The owner is looked up in Kafka when it is not known or did not answer; when a
    coordinator names another one, that one is asked.

    Every call raises TlsError at once if `tls` is not what coordinators need, unless one has
    answered before: then another one may be in order.
    """

    def __init__(self, log: Log, *, timeout_s: float = 30.0, tls: Tls | None = None) -> None:
        """Connects when it is first used; `tls` protects the connections."""
        self._timeout_s = timeout_s
        self._tls = tls
        self._was_answered = False
        self._discovery = Discovery(log)
        self._owners: dict[int, str] = {}
        self._calls: dict[str, Calls] = {}
        self._closed = False
        self._lock = threading.Lock()

    def bind_group(
        self, group: str, transaction_group: str | None, *, timeout_s: float | None = None
    ) -> Binding:
        """Binds a consumer group to a transaction group; with None only asks for its binding.

        Args:
            group: the consumer group.
            transaction_group: the transaction group, or None.
            timeout_s: for this question, in seconds; None: that of all questions.

        Returns:
            The group's binding, which may be to another transaction group.

        Raises:
            ConfigError: the name would stand for a topic.
        """
        if is_topic_binding(group):
            raise ConfigError(
                f"no consumer group may be called {group!r}, for names of topics are kept that"
                " begin so: choose another group.id"
            )
        return self._bind(group, transaction_group, timeout_s)

    def bound(self, name: str) -> Binding:
        """Returns what a consumer group is bound to, or a topic by its `binding_of`."""
        return self._bind(name, None)

    def _bind(
        self, name: str, transaction_group: str | None, timeout_s: float | None = None
    ) -> Binding:
        command = BindGroup(group=name, transaction_group=transaction_group)
        return self._ask(name, command, Binding, timeout_s)

    def fetch_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> GroupOffsets:
        """Returns a consumer group's committed IOV; empty if the group never committed.

        Args:
            group: the consumer group.
            partitions: those whose offsets are wanted; None: all.
            timeout_s: for this question, in seconds; None: that of all questions.

        Raises:
            OffsetsPendingError: a pending transaction moves one of the offsets. Not retried here.
        """
        bound = self.bind_group(group, None, timeout_s=timeout_s).transaction_group
        if bound is None:
            return GroupOffsets({})
        named = None if partitions is None else tuple(partitions)
        command = FetchOffsets(group=group, partitions=named)
        return self._ask(bound, command, GroupOffsets, timeout_s)

    def open_sidecars(self, topics: Iterable[str]) -> None:
        """Makes sure that topics have their sidecars.

        Raises:
            UnsupportedTopicError: a topic can't have one, or its sidecar has a setting that could
                lose records.
            UnknownTopicError: there is no such topic.
            NotSupportedError: a coordinator of an older build answers: upgrade it.
        """
        names = tuple(topics)
        try:
            self._ask(names[0], OpenSidecars(topics=names), Done)
        except NotSupportedError as error:
            raise NotSupportedError(
                f"a coordinator of an older build answers, which knows no sidecars ({error}):"
                " upgrade all coordinators"
            ) from error

    def claim_offsets(
        self,
        group: str,
        transaction_group: str,
        partitions: Iterable[TopicPartition],
        claimant: int,
        expected: Mapping[TopicPartition, int] | None = None,
    ) -> Claimed:
        """Claims input partitions for a consumer, and learns which offsets are committed in them.

        Binds the group first if it is not bound. Retried like every question, as the same claimant.
        The caller may retry it in the same way after an error that leaves the outcome open.

        Args:
            group: the consumer group.
            transaction_group: where the group commits its offsets.
            partitions: at least one: those that were just assigned to the caller, or that it sets
                back to their committed offsets.
            claimant: 63 random bits of this attempt, the same in its retries.
            expected: partition → the number that its current claim must have; a partition that is
                missing here must have no claim (to go back to what is committed). None: this claim
                wins in any case (a group's assignment).

        Returns:
            The claim's number, for `OffsetStep.claim` and `expected`, and the committed IOV of
            these partitions. An open transaction that would move it can no longer be committed.

        Raises:
            ClaimFencedError: another consumer has claimed one of the partitions since.
            GroupBoundError: the group commits its offsets in another transaction group.
        """
        bound = self.bind_group(group, transaction_group).transaction_group
        if bound != transaction_group:
            raise GroupBoundError(
                f"consumer group {group!r} commits its offsets in transaction group {bound!r}, not"
                f" in {transaction_group!r}: set transaction.group to that one"
            )
        command = ClaimOffsets(
            group=group, partitions=tuple(partitions), claimant=claimant, expected=expected
        )
        return self._ask(bound, command, Claimed)

    def outcome(self, txid: TxId) -> Outcome:
        """Returns a transaction's state; UNKNOWN past the outcome retention."""
        return self._ask(txid.partition, GetOutcome(txid=txid), Outcome)

    def add_partitions(self, txid: TxId, first_offsets: Mapping[TopicPartition, int]) -> None:
        """Registers a branch's data partitions, with the first offset in each, by TxId alone."""
        command = AddPartitions(
            txid=txid, partitions=tuple(first_offsets), first_offsets=first_offsets
        )
        self._ask(txid.partition, command, Done)

    def close(self) -> None:
        """Closes the connections. Questions under way fail."""
        with self._lock:
            self._closed = True
            closing, self._calls = self._calls, {}
        for calls in closing.values():
            calls.close()

    def _ask(
        self, of: str | int, command: Command, kind: type[R], timeout_s: float | None = None
    ) -> R:
        deadline_s = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        partition = of if isinstance(of, int) else self._discovery.partition_of(of, deadline_s)
        pause_s = PAUSE_MIN_S
        asked: set[str] = set()
        """Addresses since the last pause: two coordinators that name each other lead nowhere."""
        while True:
            hint = ""
            try:
                address = self._owner(partition, deadline_s)
                asked.add(address)
                reply = self._call(address, partition, command, deadline_s)
                if isinstance(reply, kind):
                    return reply
                raise reply if isinstance(reply, LogtxError) else LogtxError(f"got {reply}")
            except OffsetsPendingError:
                raise
            except (RetriableError, JournalError) as error:
                hint = error.hint if isinstance(error, NotCoordinatorError) else ""
                with self._lock:
                    self._owners.pop(partition, None)
                    if hint and hint not in asked:
                        self._owners[partition] = hint
                        continue
                left_s = deadline_s - time.monotonic()
                if left_s <= pause_s or self._closed:
                    raise
            asked.clear()
            time.sleep(pause_s * (0.5 + random.random() / 2))
            pause_s = min(pause_s * 1.5, PAUSE_MAX_S)

    def _owner(self, partition: int, deadline_s: float) -> str:
        with self._lock:
            known = self._owners.get(partition)
        if known is not None:
            return known
        found = self._discovery.look_up(partition, deadline_s - time.monotonic()).address
        with self._lock:
            self._owners[partition] = found
        return found

    def _call(self, address: str, partition: int, command: Command, deadline_s: float) -> Reply:
        calls = self._calls_to(address)
        request = pb.CallRequest(
            partition=partition,
            request=encode_request(1, command),
            partition_count=self._discovery.partition_count(deadline_s),
        )
        try:
            left_s = max(0.01, deadline_s - time.monotonic())
            wire = calls.call(request, left_s)
        except RequestTimedOutError as error:
            raise RequestTimedOutError(
                f"the coordinator at {address} did not answer in time"
            ) from error
        except ForkedError:
            raise
        except LogtxError as error:
            self._drop(address, calls)
            is_settings = isinstance(error, TlsError) and not self._was_answered
            kind = TlsError if is_settings else CoordinatorNotAvailableError
            raise kind(f"the coordinator at {address} can't be reached ({error})") from error
        self._was_answered = True
        return decode_reply(wire)

    def _calls_to(self, address: str) -> Calls:
        with self._lock:
            calls = self._calls.get(address)
            if calls is None:
                if self._closed:
                    raise SessionClosedError("the client was closed")
                calls = self._calls[address] = Calls(address, tls=self._tls)
        return calls

    def _drop(self, address: str, calls: Calls) -> None:
        """Closes a broken connection; the next question makes another one."""
        with self._lock:
            if self._calls.get(address) is calls:
                del self._calls[address]
        calls.close()
