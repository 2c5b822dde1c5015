"""The hot path: passes one branch's records to librdkafka.

The cost of a record here decides the throughput of a producer. A record without headers and
callback of its own goes through `produce` alone, which makes no object: the list of headers is made
once per transaction, the delivery callback once per topic. `_produce_slowly` does everything else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaException

from ..journal.control import TXCTL_HEADER, TXID_HEADER
from ..journal.errors import BrokerError, ConfigError, LogtxError
from ..journal.logs.interface import DeliveryCallback, Headers
from .core.bookkeeping import abort_only
from .core.tally import BranchTally
from .sender import SERVE_EVERY, Sender

_LOG = logging.getLogger(__name__)
_MASK: Final = SERVE_EVERY - 1
"""Bits that are all set in every `SERVE_EVERY`th number: after it, `produce` serves reports."""

UserHeaders: TypeAlias = (
    Sequence[tuple[str, bytes | str | None]] | Mapping[str, bytes | str | None] | None
)
Content: TypeAlias = bytes | str | None


@dataclass(frozen=True, slots=True)
class Record:
    """A record that could not be sent directly."""

    number: int
    topic: str
    value: Content
    key: Content
    partition: int
    timestamp: int
    headers: Sequence[tuple[str, bytes | str | None]]
    """The user's headers; the transaction's own precede them."""
    on_delivery: Any


class Writer:
    """Sends the records of one branch and counts what becomes of them.

    A subclass defines when records are taken (`_check`), where they go while they can't be sent
    (`_route`), and what follows from reports (`_on_settled`, `_on_failure`).
    """

    def __init__(
        self,
        sender: Sender,
        branch: int,
        delivery_timeout_s: float,
        *,
        on_partition: Callable[[], None] | None = None,
    ) -> None:
        """Sends nothing yet: a subclass defines when records are taken.

        Args:
            sender: the producer's.
            branch: nonce of the branch whose records these are; `OWN_BRANCH` for the owner's own.
            delivery_timeout_s: longest wait of a record for room in the local queue.
            on_partition: called when a partition is written to for the first time.
        """
        self._sender = sender
        self._delivery_timeout_s = delivery_timeout_s
        self._lock = threading.Lock()
        self._tally = BranchTally(
            branch,
            sender.floors,
            on_settled=self._on_settled,
            on_failure=self._on_failure,
            on_partition=on_partition,
        )
        self._admit = self._tally.admit
        self._receivers = self._tally.receivers()
        self._send = sender.send
        self._headers: Headers = []
        # Whether records may go straight to librdkafka. Set to False before anything closes the
        # tally.
        self._direct = False

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
        """Sends a record: see `Transaction.produce`."""
        # Admits the record first, then looks whether records are taken: a commit that comes between
        # the two waits for this record, and one that came before is noticed below.
        number = self._admit()
        if self._direct and headers is None and on_delivery is None:
            try:
                self._send(
                    topic,
                    value,
                    key,
                    partition,
                    self._receivers[topic],
                    None,
                    timestamp,
                    self._headers,
                )
            except BufferError:
                pass  # The queue is full: waits for room, below.
            except KafkaException as error:
                raise self._refused(number, topic, error) from error
            except BaseException:
                self._withdraw(number)
                raise
            else:
                if number & _MASK == _MASK:
                    self._sender.serve()
                return
        self._produce_slowly(number, topic, value, key, partition, on_delivery, timestamp, headers)

    def _produce_slowly(
        self,
        number: int,
        topic: str,
        value: Content,
        key: Content,
        partition: int,
        on_delivery: DeliveryCallback | None,
        timestamp: int,
        headers: UserHeaders,
    ) -> None:
        try:
            self._check()
            pairs = check_headers(headers)
            record = Record(number, topic, value, key, partition, timestamp, pairs, on_delivery)
            self._route(record)
        except LogtxError:
            self._withdraw(number)
            raise
        except KafkaException as error:
            raise self._refused(number, topic, error) from error
        except BaseException:
            self._withdraw(number)
            raise

    def _refused(self, number: int, topic: str, error: KafkaException) -> LogtxError:
        """Handles a record that librdkafka did not take. Returns the error to raise.

        The application may swallow that error; the transaction must not commit without the record.
        """
        cause = BrokerError(f"a record for {topic} was refused: {error}")
        self._on_failure(cause)
        self._withdraw(number)
        return abort_only(cause)

    def _withdraw(self, number: int) -> None:
        with self._lock:
            self._tally.withdraw(number)
            settled = self._tally.settled
        if settled:
            self._on_settled()

    def _send_record(self, record: Record) -> None:
        """Hands a record to librdkafka. Raises BufferError, KafkaException, TypeError."""
        receiver = self._receivers[record.topic]
        if record.on_delivery is not None:
            receiver = _both(receiver, record.on_delivery)
        headers: Any = [*self._headers, *record.headers] if record.headers else self._headers
        self._send(
            record.topic,
            record.value,
            record.key,
            record.partition,
            receiver,
            None,
            record.timestamp,
            headers,
        )

    def _send_waiting(self, record: Record) -> None:
        """Hands a record to librdkafka; waits for room as long as a delivery may take."""
        deadline_s = time.monotonic() + self._delivery_timeout_s
        while True:
            try:
                self._send_record(record)
            except BufferError:
                self._sender.make_room(deadline_s)
                self._check()
            else:
                return

    # ---- for the subclass -----------------------------------------------------------------------

    def _check(self) -> None:
        """Raises if records are not taken any more."""
        raise NotImplementedError

    def _route(self, record: Record) -> None:
        """Sends a record, or keeps it until it can be sent."""
        raise NotImplementedError

    def _on_settled(self) -> None:
        """Reacts to the last missing report; called while reports are served."""
        raise NotImplementedError

    def _on_failure(self, cause: LogtxError) -> None:
        """Reacts to a failed record; called while reports are served."""
        raise NotImplementedError


def check_headers(headers: UserHeaders) -> Sequence[tuple[str, bytes | str | None]]:
    """Returns the user's headers as pairs.

    Raises:
        ConfigError: one has the name of one of logtx's own.
    """
    if not headers:
        return ()
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for name, _ in pairs:
        if name in (TXID_HEADER, TXCTL_HEADER):
            raise ConfigError(f"a header can't be named {name}: logtx uses it; choose another name")
    return pairs


def _both(receiver: Any, on_delivery: DeliveryCallback) -> Any:
    """Joins the user's callback and ours; an error of the user's must not stop other reports."""

    def delivered(error: Any, message: Any) -> None:
        try:
            on_delivery(error, message)
        except Exception:  # noqa: BLE001 - the application's, whatever it is
            _LOG.exception("on_delivery_raised")
        finally:
            receiver(error, message)

    return delivered
