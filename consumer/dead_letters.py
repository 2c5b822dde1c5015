"""Gives up messages of a queue: a dead letter, and the acknowledgement that deletes the message.

Both are in one transaction. So there is a dead letter of each message that was given up, and no
second one, whoever dies when: a commit that was lost leaves the message in the queue, and one that
comes late is refused, because the first acknowledgement in the journal counts.

Each message has a transaction of its own. One that can't be written, for example because it is too
large with its headers, keeps no other one back, nor does one that somebody else acknowledged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final, Protocol

from ..journal.acks import Acks
from ..journal.errors import (
    AckConflictError,
    DeadLetterError,
    LogtxError,
    RequestTimedOutError,
    RetriableError,
    SubscriptionResetError,
    TransactionAbortOnlyError,
)
from .core.counters import ShareCounters
from .core.letters import Letter, headers_of

_LOG = logging.getLogger(__name__)
FLYING: Final = 100
"""Most dead letters whose transactions are under way at a time. More are faster, and leave fewer
transactions to others that use the producer."""
PAUSE_MS: Final = 1_000
"""Pause before a message is given out again whose dead letter can't be written. A longer one delays
it after a broker's trouble, a shorter one tries more often in vain."""


class Acknowledging(Protocol):
    """A transaction that messages can be acknowledged in."""

    @property
    def transaction_group(self) -> str:
        """The one whose coordinator decides it."""

    def produce(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        headers: Any = None,
    ) -> None:
        """Sends a record."""

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
        """Makes acknowledgements part of the transaction."""


class Deciding(Acknowledging, Protocol):
    """The same, and it can be ended."""

    def commit(self, timeout: float | None = None) -> Any:
        """Commits, and waits for the decision."""

    def commit_async(self) -> Future[Any]:
        """Commits in the background."""

    def abort_async(self) -> Future[Any]:
        """Aborts in the background."""


class Beginning(Protocol):
    """A producer, such as `logtx.Producer`."""

    def bind_group(self, group: str) -> None:
        """Makes sure that a subscription belongs to its transaction group."""

    def begin_transaction(self, *, current: bool = True) -> Deciding:
        """Opens a transaction."""


class DeadLetters:
    """Writes the dead letters of one consumer."""

    def __init__(
        self, topic: str, group: str, producer: Beginning, counters: ShareCounters
    ) -> None:
        """Begins without any.

        Args:
            topic: where they go.
            group: the subscription.
            producer: begins the transactions; the caller closes it.
            counters: counts what is committed.
        """
        self.topic: Final = topic
        self._group, self._producer, self._counters = group, producer, counters

    def bind(self) -> None:
        """Makes sure that the producer's transactions can acknowledge the subscription's messages.

        Raises:
            GroupBoundError: the subscription belongs to another transaction group.
            CoordinatorNotAvailableError, RequestTimedOutError: no coordinator answered in time.
        """
        self._producer.bind_group(self._group)

    def put(self, txn: Acknowledging, letter: Letter) -> None:
        """Writes a dead letter in a transaction, which is to acknowledge the message as well."""
        record = letter.given.record
        assert record is not None, "it was given out"
        headers = headers_of(
            record.headers(), self._group, letter.key, letter.delivery_count, letter.reason
        )
        txn.produce(self.topic, record.value(), record.key(), headers=headers)

    def write(
        self, letters: Sequence[Letter], timeout: float | None = None
    ) -> list[LogtxError | None]:
        """Gives messages up, and waits for the decisions.

        Args:
            letters: the messages.
            timeout: seconds to wait for all decisions together; None: for each as long as the
                producer's settings allow. Past it what is begun goes on, and nothing more is begun.
                To begin the first one may take longer, up to the producer's
                ``coordinator.timeout.ms``.

        Returns:
            What went wrong with each of them; None if it is given up, or acknowledged by somebody
            else. With any error it is as before, or its commit goes on.
        """
        results: list[LogtxError | None] = []
        until_s = float("inf") if timeout is None else time.monotonic() + timeout
        refusal: RetriableError | None = None
        for first in range(0, len(letters), FLYING):
            some = letters[first : first + FLYING]
            begun: list[Deciding | Exception] = []
            for letter in some:
                if time.monotonic() >= until_s:
                    refusal = RequestTimedOutError("the time for dead letters is over")
                begun.append(refusal or self._begin(letter))
                if isinstance(begun[-1], RetriableError):
                    # It was waited for as long as may be. Each further one would wait as long.
                    refusal = begun[-1]
            for letter, txn in zip(some, begun, strict=True):
                left_s = None if timeout is None else max(0.0, until_s - time.monotonic())
                cause = txn if isinstance(txn, Exception) else self._end(letter, txn, left_s)
                results.append(None if cause is None else self._failure(letter, cause))
        return results

    def _failure(self, letter: Letter, cause: Exception) -> DeadLetterError:
        topic, partition, offset = letter.key
        # The transaction's error says what to do with it, and nobody has it.
        is_told = isinstance(cause, TransactionAbortOnlyError) and cause.__cause__ is not None
        error = DeadLetterError(
            f"the dead letter of {topic}[{partition}] at {offset} can't be written to {self.topic},"
            f" so the message stays in the queue: {cause.__cause__ if is_told else cause}. Mend"
            " that, or let logtx subscription skip pass over the message"
        )
        error.__cause__ = cause
        return error

    def _begin(self, letter: Letter) -> Deciding | Exception:
        try:
            txn = self._producer.begin_transaction(current=False)
        except LogtxError as error:
            return error
        try:
            self.put(txn, letter)
            given = letter.given
            txn.send_acks(self._group, [given.acks], delay=PAUSE_MS / 1000, era=given.era)
            txn.commit_async()
        except Exception as error:  # noqa: BLE001 - the application gets it, by the next poll
            txn.abort_async()
            return error
        return txn

    def _end(self, letter: Letter, txn: Deciding, timeout: float | None) -> LogtxError | None:
        topic, partition, offset = letter.key
        try:
            txn.commit(timeout)
        except SubscriptionResetError as error:
            txn.abort_async()
            return error
        except AckConflictError:
            self._counters.conflicts += 1
            txn.abort_async()
            return None
        except LogtxError as error:
            txn.abort_async()
            return error
        self._counters.dead_letters += 1
        _LOG.warning(
            "dead_letter_written group=%s topic=%s partition=%d offset=%d delivery_count=%d to=%s",
            *(self._group, topic, partition, offset, letter.delivery_count, self.topic),
        )
        return None
