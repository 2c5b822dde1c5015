"""The state of one transaction as its producer sees it.

Pure: no I/O, clock, thread or randomness. The caller (`producer/transaction_shell.py`) reports what
happened and does what follows; calls of one book must not overlap, except those of its tallies.

The phases of a transaction (`Phase`, `VALID_PREVIOUS`):

1. OPEN: records and offsets are taken; a failed record makes it abort-only, for good.
2. ENDING: commit or abort was asked for; waits for the reports of its own records and, before a
   commit, for the answers about its offsets. A failure here takes a commit back to OPEN.
3. SENT: the request to end it is on its way; from here only the coordinator's decision counts.
4. COMMITTED, ABORTED: that decision; or UNRESOLVED while it could not be learnt.

Source: Transactional Messaging in Kafka, "Transaction flow" and "Failure cases"; PIP-471,
"Late-write race".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import copy
from enum import StrEnum
from typing import Final

from ...coordinator.protocol.commands import Action, Decided
from ...coordinator.protocol.reasons import because
from ...journal.control import BranchRange, TopicPartition
from ...journal.errors import (
    BrokerError,
    ClaimFencedError,
    ConfigError,
    CoordinatorBusyError,
    GroupBoundError,
    LogtxError,
    NotSupportedError,
    OffsetsConflictError,
    RequestTooLargeError,
    RetriableError,
    TopicError,
    TransactionAbortedError,
    TransactionAbortOnlyError,
    TransactionCommittedError,
    TransactionConflictError,
    TransactionStateError,
    UnknownOutcomeError,
)
from ...journal.state import State
from ...journal.txid import TxId
from .accepted import AcceptedWrites
from .summary import BranchSummary
from .tally import BranchTally


class Phase(StrEnum):
    """The phase of a transaction, as its producer sees it."""

    OPEN = "open"
    ENDING = "ending"
    SENT = "sent"
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNRESOLVED = "unresolved"


VALID_PREVIOUS: Final[Mapping[Phase, frozenset[Phase]]] = {
    # Back to OPEN, abort-only: a commit that failed before it was sent, or was refused after that.
    Phase.OPEN: frozenset({Phase.ENDING, Phase.SENT}),
    Phase.ENDING: frozenset({Phase.OPEN}),
    Phase.SENT: frozenset({Phase.ENDING, Phase.UNRESOLVED}),
    Phase.UNRESOLVED: frozenset({Phase.SENT}),
    # From anywhere: the answer to any request can tell that it is decided.
    Phase.COMMITTED: frozenset({Phase.OPEN, Phase.ENDING, Phase.SENT, Phase.UNRESOLVED}),
    Phase.ABORTED: frozenset({Phase.OPEN, Phase.ENDING, Phase.SENT, Phase.UNRESOLVED}),
}
"""Phase → phases that may precede it; a transaction starts OPEN. Tests derive from it."""


class EndResult(StrEnum):
    """What the answer to a request to end a transaction says about the transaction."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    REFUSED = "refused"
    """The request was not done and never will be; the transaction is still open."""
    UNDECIDED = "undecided"
    """It was open when the answer was given."""
    UNKNOWN = "unknown"
    """The answer says nothing about the decision."""


# Errors with which a coordinator that served the request refused it before the decision. Any other
# error may hide a decision that was made, for example by an earlier copy of the request, before a
# fencing.
_REFUSALS: Final = (
    ClaimFencedError,
    ConfigError,
    CoordinatorBusyError,
    GroupBoundError,
    NotSupportedError,
    OffsetsConflictError,
    RequestTooLargeError,
    TopicError,
    TransactionStateError,
)


def end_result(reply: State | LogtxError) -> EndResult:
    """Returns what an answer says: the state of an `Outcome`, or an error."""
    if isinstance(reply, State):
        if reply.commits:
            return EndResult.COMMITTED
        if reply.aborts:
            return EndResult.ABORTED
        return EndResult.UNDECIDED if reply is State.OPEN else EndResult.UNKNOWN
    if isinstance(reply, TransactionCommittedError):
        return EndResult.COMMITTED
    if isinstance(reply, TransactionAbortedError):
        return EndResult.ABORTED
    return EndResult.REFUSED if isinstance(reply, _REFUSALS) else EndResult.UNKNOWN


def conflict(decided: Decided) -> TransactionConflictError | None:
    """Returns the error of calls that would still change a transaction which the coordinator has
    decided unasked; None if it is not decided, as far as this version knows."""
    result = end_result(decided.state)
    if result is EndResult.COMMITTED:
        return TransactionCommittedError(f"transaction {decided.txid} is committed already")
    if result is EndResult.ABORTED:
        return TransactionAbortedError(
            f"transaction {decided.txid} was aborted{because(decided.reason)}"
        )
    return None


def copy_of(error: LogtxError) -> LogtxError:
    """Returns a copy to raise: threads that raise one instance would mix their tracebacks."""
    return copy(error)


def abort_only(cause: LogtxError) -> LogtxError:
    """Returns the error with which an abort-only transaction answers everything else.

    It is the cause itself if its class says what to do, as `OffsetsConflictError` does.
    """
    if isinstance(cause, BrokerError | RetriableError):
        error: LogtxError = TransactionAbortOnlyError(
            f"abort this transaction and redo its work: {cause}"
        )
    else:
        error = copy_of(cause)
    error.__cause__ = cause
    return error


class TransactionBook:
    """Keeps what the producer knows of one transaction, and checks which calls fit."""

    def __init__(
        self,
        own: BranchTally,
        partitions: Iterable[TopicPartition] = (),
        accepted: AcceptedWrites | None = None,
    ) -> None:
        """Starts OPEN.

        Args:
            own: the tally of the owner's own records.
            partitions: data partitions that BEGIN names.
            accepted: collects what accepted branches wrote; None: with the usual bounds.
        """
        self.own: Final = own
        self.phase = Phase.OPEN
        self.end: Action | None = None
        """The end that was asked for last: commit or abort."""
        self.cause: LogtxError | None = None
        """Why the transaction is abort-only; None if it is not."""
        self.conflict: TransactionConflictError | None = None
        """What the coordinator decided before the application asked for an end."""
        self.requests = 0
        """Number of requests about input, and of parts of writes, without an answer."""
        self._registered: set[TopicPartition] = set(partitions)
        """Partitions known to the coordinator, or to be named by the commit."""
        self._named: set[TopicPartition] = set()
        """Partitions of which parts have spoken: the commit need not name them."""
        self._told: set[TopicPartition] = set()
        """Partitions whose first offset the coordinator was told."""
        self._branches: dict[int, BranchTally] = {}
        self._accepted = accepted or AcceptedWrites()
        self._part_under_way = False
        self._own_asked = False
        self._own_in_parts = False
        """Whether what the owner wrote itself is among what `_accepted` has."""

    # ---- what may be done now -------------------------------------------------------------------

    @property
    def takes_records(self) -> bool:
        """Whether it is open and not abort-only."""
        return self.phase is Phase.OPEN and self.cause is None

    def check_open(self) -> None:
        """Refuses records and offsets that the transaction can't take any more.

        Raises:
            TransactionAbortOnlyError: something failed; abort it (or its cause, see `abort_only`).
            TransactionAbortedError, TransactionCommittedError: the coordinator decided it unasked.
            TransactionStateError: its end was asked for.
        """
        if self.conflict is not None:
            raise copy_of(self.conflict)
        if self.phase is not Phase.OPEN:
            raise TransactionStateError(
                f"the transaction is {self._described()}: begin another one for further work"
            )
        self._check_not_abort_only()

    def _check_not_abort_only(self) -> None:
        if self.cause is not None:
            raise abort_only(self.cause)

    def _described(self) -> str:
        if self.phase in (Phase.ENDING, Phase.SENT):
            return "committing" if self.end is Action.COMMIT else "aborting"
        return self.phase.value

    # ---- what happens ---------------------------------------------------------------------------

    def fail(self, cause: LogtxError) -> bool:
        """Makes the transaction abort-only; the first cause stays.

        Returns:
            Whether a commit that was waiting fails because of it: then the transaction is open
            again, to be aborted.
        """
        if self.phase in (Phase.OPEN, Phase.ENDING) and self.cause is None:
            self.cause = cause
        if self.phase is Phase.ENDING and self.end is Action.COMMIT:
            self._move(Phase.OPEN)
            return True
        return False

    def ask(self, end: Action) -> bool:
        """Starts to commit or abort, if that fits.

        Returns:
            True if this starts it (`ready` says when to send it); False for a repeat, whose result
            is that of the first.

        Raises:
            TransactionAbortOnlyError: a commit of a transaction that can only be aborted.
            TransactionAbortedError: a commit after an abort.
            TransactionCommittedError: an abort after a commit.
            TransactionStateError: an abort while the decision to commit is under way.
            UnknownOutcomeError: an abort of a commit whose outcome is not known.
        """
        if self.phase is Phase.OPEN:
            if end is Action.COMMIT:
                self._check_not_abort_only()
            self.own.close()
            self.end = end
            self._move(Phase.ENDING)
            return True
        if self.phase is Phase.COMMITTED:
            if end is Action.ABORT:
                raise TransactionCommittedError("the transaction is committed: too late to abort")
            return False
        if self.phase is Phase.ABORTED or (self.end is Action.ABORT and end is Action.COMMIT):
            if end is Action.COMMIT:
                if self.conflict is not None:
                    raise copy_of(self.conflict)
                raise TransactionAbortedError("the transaction was aborted: redo its work")
            return False
        if end is not self.end:
            return self._abort_instead()
        return False

    def break_off(self, cause: LogtxError) -> None:
        """Makes it abort-only, whatever is half done: an exception came within a call."""
        if self.phase in (Phase.OPEN, Phase.ENDING):
            self.cause = self.cause or cause
            self.end, self.phase = None, Phase.OPEN

    def _abort_instead(self) -> bool:
        """Turns a commit that is not decided yet into an abort, or refuses that."""
        if self.phase is Phase.ENDING:
            # The coordinator was not told of the commit yet: it can still be given up.
            self.end = Action.ABORT
            return True
        if self.phase is Phase.UNRESOLVED:
            raise UnknownOutcomeError(
                "the commit was sent and may be decided: ask for the outcome, or commit again"
            )
        raise TransactionStateError("the commit is being decided: wait for its outcome")

    @property
    def ready(self) -> bool:
        """Whether its end was asked for and nothing that it waits for is under way any more."""
        if self.phase is not Phase.ENDING or not self.own.settled:
            return False
        if self.end is Action.ABORT:
            return True
        # Own records may settle behind the last `next_part`: only the next one knows whether
        # the commit has room for them.
        return self._own_asked and self.requests == 0 and not self._accepted.parts_left

    def sent(self) -> Action:
        """Notes that the request to end it is sent, maybe again. Returns how it ends."""
        assert self.end is not None, "its end was asked for"
        self._move(Phase.SENT)
        self.own.raise_floors()
        return self.end

    def refused(self, cause: LogtxError) -> None:
        """Makes it abort-only: the request was refused before a decision."""
        self.cause = self.cause or cause
        self._move(Phase.OPEN)

    def unresolved(self) -> None:
        """Notes that no decision could be learnt in the time allowed."""
        self._move(Phase.UNRESOLVED)

    def decided(self, *, committed: bool, conflict: TransactionConflictError | None = None) -> None:
        """Takes over the coordinator's decision.

        Args:
            committed: whether it is committed.
            conflict: how the coordinator told it, if it decided unasked.
        """
        if self.end is None:
            # Else the answer to that says it, and what comes behind comes too late.
            self.conflict = conflict
        self.own.close()
        self._move(Phase.COMMITTED if committed else Phase.ABORTED)

    def _move(self, phase: Phase) -> None:
        assert self.phase in VALID_PREVIOUS[phase], (self.phase, phase)
        self.phase = phase

    # ---- branches -------------------------------------------------------------------------------

    def add_branch(self, tally: BranchTally) -> None:
        """Adds a branch that writes through the same producer."""
        self.check_open()
        self._branches[tally.branch] = tally

    def accept(self, txid: TxId, summary: BranchSummary) -> None:
        """Makes a branch's records count; the same summary again changes nothing.

        Raises:
            TransactionStateError: the branch is another transaction's, or was accepted with other
                records; also as `check_open`.
        """
        self.check_open()
        if summary.txid != txid:
            raise TransactionStateError(
                f"the branch belongs to transaction {summary.txid}, this one is {txid}"
            )
        self._accepted.accept(summary)

    @property
    def parts(self) -> int:
        """Number of parts that the commit must speak of."""
        return self._accepted.parts

    @property
    def parts_left(self) -> int:
        """Number of parts that are to be sent before the commit, about."""
        return self._accepted.parts_left

    def next_part(self) -> tuple[int, dict[TopicPartition, tuple[BranchRange, ...]]] | None:
        """Returns the part of what branches wrote that is to be sent now, with its number.

        The caller calls `part_answered` when it is answered. Returns None if none is due: one is
        under way, or the commit has room for the rest.
        """
        wanted = self.phase is Phase.OPEN or (
            self.phase is Phase.ENDING and self.end is Action.COMMIT
        )
        if self.phase is Phase.ENDING and wanted and self.own.settled and not self._own_asked:
            self._own_asked = True
            self._own_in_parts = self._accepted.add_own(self.own.ranges())
        due = wanted and self.cause is None and self._accepted.parts_left
        if not due or self._part_under_way:
            return None
        number = self._accepted.parts
        part = self._accepted.next_part()
        self._registered |= part.keys()
        self._named |= part.keys()
        self._part_under_way = True
        self.requests += 1
        return number, part

    def part_answered(self) -> None:
        """Notes that the coordinator has answered the part that was under way."""
        self._part_under_way = False
        self.requests -= 1

    # ---- partitions -----------------------------------------------------------------------------

    def to_register(self) -> dict[TopicPartition, int]:
        """Returns first offsets that the coordinator was not told; they count as told from now on.

        The records of one idempotent producer, its branches' included, are acknowledged in order:
        so the first offset told for a partition is the lowest.
        """
        first_offsets: dict[TopicPartition, int] = {}
        for tally in (self.own, *self._branches.values()):
            for key, offset in tally.first_offsets():
                if key not in self._told:
                    first_offsets[key] = min(offset, first_offsets.get(key, offset))
        self._told |= first_offsets.keys()
        self._registered |= first_offsets.keys()
        return dict(sorted(first_offsets.items()))

    def not_registered(self, partitions: Iterable[TopicPartition]) -> None:
        """Notes that the coordinator could not be told: they are to be told again later."""
        self._told.difference_update(partitions)

    def writes(self) -> dict[TopicPartition, tuple[BranchRange, ...]]:
        """Returns every partition that gets a marker, with what each accepted branch wrote there.

        What parts have said is left out. For an abort the ranges are empty, and for a partition
        without accepted records they always are.
        """
        own = {} if self._own_in_parts else self.own.ranges()
        branches = self._branches.values()
        of_branches = (key for tally in branches for key, _ in tally.first_offsets())
        touched = self._registered.union(own, of_branches)
        ranges: dict[TopicPartition, list[BranchRange]] = {key: [] for key in sorted(touched)}
        for key, accepted in self._accepted.rest().items():
            ranges.setdefault(key, []).extend(accepted)
        for key, written in own.items():
            ranges[key].append(written)
        if self.end is Action.ABORT:
            return dict.fromkeys(ranges, ())
        return {
            k: tuple(sorted(r, key=lambda w: w.branch))
            for k, r in ranges.items()
            if r or k not in self._named
        }
