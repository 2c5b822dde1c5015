"""The transaction as applications see it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self, overload

from ..journal.errors import LogtxError

if TYPE_CHECKING:
    from ..coordinator.protocol.commands import Outcome
    from ..journal.acks import Acks
    from ..journal.logs.interface import DeliveryCallback
    from ..journal.offset_source import OffsetSource
    from ..journal.records.types import OffsetStep
    from ..journal.txid import TxId
    from .branch import Branch
    from .core.summary import BranchSummary
    from .writer import Content, UserHeaders


class Transaction(ABC):
    """A transaction; `Producer.begin_transaction` returns it.

    As a context manager it commits at the end, and aborts if an exception leaves the block. Several
    threads may produce records.
    """

    @property
    @abstractmethod
    def txid(self) -> TxId:
        """The transaction's id; waits for the coordinator's answer to its BEGIN.

        Raises:
            CoordinatorNotAvailableError, RequestTimedOutError: there was no answer in time.
            ProducerFencedError: a newer producer took over.
        """

    @property
    @abstractmethod
    def transaction_group(self) -> str:
        """The transaction group whose coordinator decides it."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether neither commit nor abort was asked for yet (it may be abort-only)."""

    @property
    @abstractmethod
    def is_decided(self) -> bool:
        """Whether it is known to be committed or aborted."""

    @property
    @abstractmethod
    def is_committed(self) -> bool:
        """Whether it is known to be committed."""

    @abstractmethod
    def produce(
        self,
        topic: str,
        value: Content = None,
        key: Content = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: UserHeaders = None,
    ) -> None:
        """Sends a record. Like `confluent_kafka.Producer.produce`, it returns before it is written.

        Waits while the local queue is full, up to ``delivery.timeout.ms``.

        Args:
            topic: name of the topic.
            value: the record's value.
            key: the record's key, by which the partitioner chooses the partition by default.
            partition: number of the partition; -1 lets the partitioner choose.
            on_delivery: called with (error, message) on the producer's own thread. It may produce
                and ask for a commit; calls that wait for reports raise TransactionStateError there.
            timestamp: milliseconds since 1970; 0 = now.
            headers: the user's, in any form that confluent-kafka takes.

        Raises:
            TransactionAbortOnlyError: this record was refused, or an earlier one failed.
            TransactionAbortedError: the coordinator aborted it, by a time-out or an operator: redo
                the work. It tells so unasked, so this is raised soon after the decision. Branches
                in other processes are not told; what they write then is dropped by every reader.
            TransactionStateError: the end of the transaction was asked for.
            ProducerFencedError: a newer producer took over.
            ConfigError: a header has the name of one of logtx's own.
            QueueFullError: the local queue stayed full; the record was not taken.
            TypeError: an argument can't be used.
        """

    @overload
    def send_offsets(self, source: OffsetSource, /) -> None: ...
    @overload
    def send_offsets(self, group: str, steps: Sequence[OffsetStep], /) -> None: ...
    @abstractmethod
    def send_offsets(
        self, source: OffsetSource | str, steps: Sequence[OffsetStep] | None = None, /
    ) -> None:
        """Makes input offsets part of the transaction: they count if and when it commits.

        Args:
            source: a `Consumer`, for everything it delivered so far; or a consumer group's name,
                with `steps`.
            steps: per partition, from where to where.

        Raises:
            GroupBoundError: the group commits its offsets in another transaction group.
            OffsetsConflictError, TransactionStateError, …: as `produce`. A conflict is raised by
                the commit at the latest.
        """

    @abstractmethod
    def send_acks(
        self,
        group: str,
        acks: Sequence[Acks],
        /,
        *,
        delay: float = 0.0,
        on_reply: Callable[[LogtxError | None], None] | None = None,
        era: int = 0,
    ) -> None:
        """Makes acknowledgements part of the transaction: they count if and when it commits.

        `ShareConsumer.acknowledge` calls it. Until the transaction ends, the messages are given to
        nobody; if it aborts, they are given out again.

        Args:
            group: the subscription.
            acks: messages of partitions.
            delay: how long nobody gets them if the transaction aborts, in seconds.
            on_reply: called on one of the producer's threads, when the request is answered: with
                None, or with why it is refused. None of the messages is pending then. It must not
                wait.
            era: the era of the subscription in which they were given out.

        Raises:
            AckConflictError, UnknownSubscriptionError, TransactionStateError, …: as `produce`. A
                conflict is raised by the commit at the latest.
            SubscriptionResetError: the same; an operator has reset or deleted the subscription.
        """

    @abstractmethod
    def extend(self) -> None:
        """Begins ``transaction.timeout.ms`` anew, because the work for the transaction goes on.

        Does not wait. If the coordinator does not hear of it, the transaction is aborted when the
        timeout passes; so call it several times within that. Does nothing once the transaction
        is being ended.
        """

    @abstractmethod
    def commit(self, timeout: float | None = None, *, finished: bool = False) -> Outcome:
        """Commits, and waits until the decision is durable.

        Args:
            timeout: seconds to wait; None: as long as the producer's settings allow records and
                requests to take.
            finished: whether to wait on until the transaction is finished: its markers, places and
                input offsets are durable, so whoever begins to read now finds its records.

        Returns:
            The decision; its commit sequence orders the transaction group.

        Raises:
            TransactionAbortOnlyError: a record failed; `abort`, and redo the work.
            OffsetsConflictError: another consumer committed the input; `abort`, rewind and redo.
            TransactionAbortedError: it was aborted, by a time-out or earlier; redo the work.
            ProducerFencedError: a newer producer took over and this transaction was aborted.
            UnknownOutcomeError: the decision could not be learnt; commit again to ask again.
            RequestTimedOutError: `timeout` passed; the commit goes on, call again to wait on.
            NotFinishedError: with `finished` alone: it is committed, and `timeout`, or
                ``coordinator.timeout.ms`` since the decision, passed; call again to wait on.
        """

    @abstractmethod
    def commit_async(self, *, finished: bool = False) -> Future[Outcome]:
        """Commits in the background; the future ends as `commit` does. It can't be cancelled.

        Its callbacks are called one after the other on a thread for callbacks alone, so they may
        use the producer and wait.
        """

    @abstractmethod
    def abort(self, timeout: float | None = None) -> Outcome:
        """Aborts, and waits until that is decided; first waits for the reports of its own records.

        Raises:
            TransactionCommittedError: it is committed.
            TransactionStateError: its commit is being decided.
            UnknownOutcomeError: its commit was sent, and the outcome is not known.
            CoordinatorNotAvailableError, RequestTimedOutError: not confirmed; the coordinator will
                abort it when its timeout passes.
        """

    @abstractmethod
    def abort_async(self) -> Future[Outcome]:
        """Aborts in the background; the future ends as `abort` does. It can't be cancelled."""

    @abstractmethod
    def branch(self) -> Branch:
        """Returns a branch that writes through this producer; its records count once accepted."""

    @abstractmethod
    def branch_token(self) -> str:
        """Returns a text with which other processes write into this transaction: `Branch.join`.

        One token serves any number of branches: each draws its own nonce when it joins.
        """

    @abstractmethod
    def accept(self, summary: BranchSummary) -> None:
        """Makes the records of a finished branch count; those of branches not accepted do not.

        Raises:
            TransactionStateError: not a branch of this transaction, or not open any more.
        """

    @abstractmethod
    def _give_up_reports(self, error: BaseException) -> None:
        """Lets an abort wait for no record's report, because `error` interrupted a call."""

    @property
    @abstractmethod
    def _was_ended(self) -> bool:
        """Whether the application asked for its end. The coordinator may also abort it unasked."""

    def __enter__(self) -> Self:
        """Begins a block that commits at its end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Commits, or aborts if an exception leaves the block; does not swallow it.

        Raises as `commit` does, also if the transaction was aborted while the block ran. After
        KeyboardInterrupt and SystemExit it waits for the coordinator only, and for no broker.
        """
        if error is None:
            if self._was_ended:
                return  # By the block: who asked for the end has its outcome.
            try:
                self.commit()
            except BaseException as failure:
                self._abort_after(failure, interrupted=not isinstance(failure, LogtxError))
                raise
        else:
            self._abort_after(error, interrupted=not isinstance(error, Exception))

    def _abort_after(self, error: BaseException, *, interrupted: bool) -> None:
        if self.is_decided or not (self.is_open or interrupted):
            return
        try:
            if interrupted:
                self._give_up_reports(error)
            self.abort()
        except LogtxError as failure:
            error.add_note(f"the abort was not confirmed either: {failure}")
