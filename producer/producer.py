"""The producer: transactions as objects, or by the calls of `confluent_kafka.Producer`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ..coordinator.protocol.commands import GroupOffsets, Outcome
from ..journal.control import TopicPartition
from ..journal.errors import TransactionStateError
from ..journal.txid import TxId
from .config import ProducerConfig
from .open_transactions import OpenTransactions
from .opening import resources
from .plain_offsets import PlainOffsets
from .transaction import Transaction
from .transaction_shell import TransactionShell
from .writer import Content, UserHeaders, check_headers

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition as KafkaPartition

    from ..journal.logs.interface import DeliveryCallback, Log
    from ..journal.offset_source import GroupMetadata
    from ..journal.records.types import OffsetStep
    from .coordinators import Coordinators

_FOREVER_S: Final = 24 * 3600.0
"""Time-out in place of confluent-kafka's "no time-out" (-1): every wait has a bound."""


class Producer:
    """Writes records to a Kafka-compatible log, in transactions or plainly; safe from any thread.

        producer = Producer({"bootstrap.servers": "localhost:9092", "transactional.id": "worker-1"})
        with producer.begin_transaction() as txn:
            txn.produce("delays", key=b"AA", value=b"...")

    Any number of its transactions may be open at once; all share one idempotent librdkafka
    producer, so a broker's passing trouble aborts none of them. `ProducerConfig` lists logtx's own
    settings; all others are librdkafka's.

    With ``transaction.key`` instead of ``transactional.id`` it has one connection and one open
    transaction at a time, whichever process runs it: a newer producer closes the former one and
    aborts what that has open, and the former raises ExpiredTransactionError (Transaction keys).

    Calls of `confluent_kafka.Producer` work as there. After `begin_transaction` `produce` writes
    into the transaction begun last, until its end was asked for, and with `commit_transaction` or
    `abort_transaction` until it has ended; otherwise it writes a plain record. If that transaction
    was aborted meanwhile, `produce` raises.

    Source: Transactional Messaging in Kafka, "Implementation overview", "Pipelining" and "Fencing".
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        log: Log | None = None,
        coordinators: Coordinators | None = None,
    ) -> None:
        """Makes a producer, and does not ask the coordinator yet.

        Args:
            config: dotted names, as confluent-kafka's.
            log: the log to use instead of opening that of ``bootstrap.servers``.
            coordinators: how to reach coordinators, instead of over gRPC.

        Raises:
            ConfigError: a setting is missing, out of range, or breaks a guarantee.
        """
        settings = ProducerConfig.parse(config)
        log, coordinators, close_log = resources(config, log, coordinators)
        self._config = settings
        self._transactions = OpenTransactions(settings, log, coordinators, close_log)
        self._engine = self._transactions.engine
        self._send = self._engine.sender.send
        self._current: TransactionShell | None = None
        self._ending: TransactionShell | None = None
        """The transaction that `commit_transaction` or `abort_transaction` ends."""
        self._plain_offsets = PlainOffsets(self._fetch_offsets)

    # ---- transactions as objects ----------------------------------------------------------------

    def begin_transaction(
        self,
        timeout: float | None = None,
        partitions: Iterable[TopicPartition] | None = None,
    ) -> Transaction:
        """Opens a transaction.

        Returns at once, before its TxId is known. Calls that need the TxId wait for it; `produce`
        and `commit_async` do not, so one thread can have hundreds of transactions under way. This
        call waits only while ``transactions.in.flight.max`` of them are undecided.

        Args:
            timeout: seconds until the coordinator aborts it; None: ``transaction.timeout.ms``.
            partitions: (topic, partition)s that will be written to, if known: they are sure to get
                a marker, even if this process dies at once.

        Raises:
            CoordinatorNotAvailableError, RequestTimedOutError: no coordinator was reached in time.
            ProducerFencedError, DoubleStartError: another producer has this name.
            ConcurrentTransactionsError: the ``transaction.key`` has an open transaction already. If
                its end was asked for, this call waits for it instead.
        """
        timeout_ms = (
            self._config.transaction_timeout_ms if timeout is None else round(timeout * 1000)
        )
        self._current = transaction = self._transactions.begin(timeout_ms, partitions or ())
        return transaction

    def bind_group(self, group: str) -> None:
        """Makes this producer's transaction group commit a consumer group's offsets, from now on.

        `Transaction.send_offsets` does it too. It is decided once for each consumer group.

        Raises:
            GroupBoundError: another transaction group commits them.
            CoordinatorNotAvailableError, RequestTimedOutError: no coordinator answered in time.
        """
        self._engine.check()
        self._engine.bind_group(group)

    def outcome(self, txid: TxId | str) -> Outcome:
        """Asks what became of a transaction, of this producer or any other.

        Raises:
            CoordinatorNotAvailableError, RequestTimedOutError: no coordinator answered in time.
        """
        self._engine.check_not_closed()
        return self._engine.queries.outcome(TxId.parse(txid) if isinstance(txid, str) else txid)

    # ---- confluent-kafka's calls ----------------------------------------------------------------

    def init_transactions(self, timeout: float | None = None) -> None:  # noqa: ARG002
        """Begins the session and fences the predecessor; the first transaction does it too.

        Args:
            timeout: accepted for compatibility; ``coordinator.timeout.ms`` is the time-out.

        Raises:
            CoordinatorNotAvailableError, RequestTimedOutError: no coordinator answered in time.
            ProducerFencedError, DoubleStartError: another producer has this name.
        """
        self._engine.connect()

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
        """Sends a record: in the transaction begun last if that is open, else as a plain record.

        Waits while the local queue is full, up to ``delivery.timeout.ms``. Arguments and errors are
        those of `Transaction.produce`; a plain record that librdkafka refuses raises
        `confluent_kafka.KafkaException`.
        """
        current = self._current
        if current is not None and (
            current.is_open or current.was_ended_unasked or self._ending is current
        ):
            # A transaction that is not open any more refuses the record. Written plainly, it would
            # be delivered whatever becomes of the transaction.
            current.produce(topic, value, key, partition, on_delivery, timestamp, headers)
            return
        self._engine.check()
        pairs: Any = list(check_headers(headers)) or None
        deadline_s = time.monotonic() + self._config.delivery_timeout_s
        while True:
            try:
                self._send(topic, value, key, partition, on_delivery, None, timestamp, pairs)
            except BufferError:
                self._engine.sender.make_room(deadline_s)
            else:
                return

    def commit_transaction(self, timeout: float | None = None) -> Outcome:
        """Commits the transaction begun last; see `Transaction.commit`."""
        current = self._ending = self._require_current()
        try:
            return current.commit(_seconds(timeout))
        finally:
            self._drop_ended(current)

    def abort_transaction(self, timeout: float | None = None) -> Outcome:
        """Aborts the transaction begun last; see `Transaction.abort`."""
        current = self._ending = self._require_current()
        try:
            return current.abort(_seconds(timeout))
        finally:
            self._drop_ended(current)

    def send_offsets_to_transaction(
        self,
        positions: Sequence[KafkaPartition],
        group_metadata: str | GroupMetadata,
        timeout: float | None = None,  # noqa: ARG002
    ) -> None:
        """Makes input offsets part of the transaction begun last.

        Args:
            positions: what `Consumer.position` returned; or, for some partitions, the offset of a
                message that was delivered, plus 1. Those below 0 don't count.
            group_metadata: the `logtx.Consumer`, its `consumer_group_metadata`, or the name of a
                consumer group of another client. An offset then is the next one to read.
            timeout: accepted for compatibility; ``coordinator.timeout.ms`` is the time-out.

        Raises:
            ConfigError: the consumer never was at one of `positions`; nothing is sent.
            GroupBoundError: the group commits its offsets in another transaction group.
            OffsetsPendingError: another transaction holds the group's offsets; retry later.
            TransactionAbortOnlyError, TransactionStateError, …: as `Transaction.send_offsets`.
        """
        current = self._require_current()
        self._engine.check()
        if not isinstance(group_metadata, str):
            if not hasattr(group_metadata, "offset_steps"):
                raise TypeError(
                    "group_metadata must be a logtx.Consumer, its consumer_group_metadata(), or the"
                    f" name of a consumer group, not {group_metadata!r}"
                )
            current.send_offsets(_UpTo(group_metadata, positions))
            return
        group = group_metadata
        self._engine.bind_group(group)
        steps = self._plain_offsets.steps(group, positions)
        current.send_offsets(group, steps)
        self._plain_offsets.sent(group, steps)
        current.on_not_committed(partial(self._plain_offsets.forget, group))

    def poll(self, timeout: float = -1) -> int:
        """Serves delivery callbacks for up to `timeout` seconds. Returns how many it served."""
        return self._engine.sender.poll(_bounded(timeout))

    def flush(self, timeout: float = -1) -> int:
        """Waits up to `timeout` seconds for every record's report. Returns how many are left."""
        return self._transactions.flush(_bounded(timeout))

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fails records that are not acknowledged; transactions that lose one become abort-only."""
        self._engine.sender.producer.purge(in_queue, in_flight, blocking)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Returns cluster metadata, as confluent-kafka does."""
        producer: Any = self._engine.sender.producer
        return producer.list_topics(topic, _bounded(timeout))

    def __bool__(self) -> bool:
        """Returns True: a producer with nothing queued is a producer."""
        return True

    def __len__(self) -> int:
        """Returns the number of records whose reports were not served yet."""
        return self._transactions.queued

    def close(self, timeout: float | None = None) -> None:
        """Aborts open transactions, waits for those being committed, sends plain records, stops.

        Args:
            timeout: seconds; None: ``coordinator.timeout.ms``. What is not done by then is given
                up: the coordinator aborts open transactions by itself.
        """
        self._transactions.close(self._config.coordinator_timeout_s if timeout is None else timeout)

    def __enter__(self) -> Self:
        """Begins a block that closes the producer at its end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Closes the producer."""
        self.close()

    def _fetch_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> GroupOffsets:
        return self._engine.queries.fetch_offsets(group, partitions)

    def _require_current(self) -> TransactionShell:
        self._engine.check()
        if self._current is None:
            raise TransactionStateError("no transaction is open: call begin_transaction first")
        return self._current

    def _drop_ended(self, transaction: TransactionShell) -> None:
        if self._current is transaction and transaction.is_decided:
            self._current = self._ending = None


class _UpTo:
    """A consumer's steps, up to the positions that the application named."""

    def __init__(self, source: GroupMetadata, positions: Sequence[KafkaPartition]) -> None:
        self.group_id = source.group_id
        self._source = source
        self._positions = positions

    def offset_steps(self) -> Sequence[OffsetStep]:
        """Returns the steps."""
        return self._source.offset_steps(self._positions)


def _bounded(timeout: float | None) -> float:
    return _FOREVER_S if timeout is None or timeout < 0 else timeout


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else timeout
