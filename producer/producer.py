"""The producer: transactions as objects, or by the calls of `confluent_kafka.Producer`."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from confluent_kafka import KafkaError

from ..coordinator.protocol.commands import Outcome
from ..journal.control import TopicPartition
from ..journal.dropped import close_later
from ..journal.errors import RetriableError, TransactionCommittedError, TransactionStateError
from ..journal.fork import keep_from_children, refuse
from ..journal.settings import merged
from ..journal.txid import TxId
from .batch import produce_batch
from .config import ProducerConfig
from .engine import Engine
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

_LOG = logging.getLogger(__name__)

_FOREVER_S: Final = 24 * 3600.0
"""Time-out in place of confluent-kafka's "no time-out" (-1): every wait has a bound."""


class Producer:
    """Writes records to a Kafka-compatible log, in transactions or plainly; safe from any thread.

        producer = Producer({"bootstrap.servers": "localhost:9092", "transactional.id": "worker-1"})
        with producer.begin_transaction() as txn:
            txn.produce("delays", key=b"AA", value=b"...")

    Any number of its transactions may be open at once; all share one idempotent librdkafka
    producer, so a broker's passing trouble aborts none of them. Producers of this process with the
    same settings share it, too (``producer.shared``), and disturb each other in nothing: each
    counts its own records, and ends by itself. `ProducerConfig` lists logtx's own
    settings; all others are librdkafka's.

    With ``transaction.key`` instead of ``transactional.id`` it has one connection and one open
    transaction at a time, whichever process runs it: a newer producer closes the former one and
    aborts what that has open, and the former raises ExpiredTransactionError (Transaction keys).

    Calls of `confluent_kafka.Producer` work as there. `produce` writes into the transaction begun
    last until `commit_transaction` or `abort_transaction` succeeded, and raises if that one takes
    no records any more. After `init_transactions` it writes nothing else; on a producer that did
    not call it, `produce` writes plain records between two transactions.

    A producer that is dropped without `close` closes itself in the background. An open transaction
    keeps it until then, or until its timeout has passed.

    Source: Transactional Messaging in Kafka, "Implementation overview", "Pipelining" and "Fencing".
    """

    # A subclass that does not call `__init__` has a closed producer.
    _engine = Engine.closed_one()
    _current: TransactionShell | None = None

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        log: Log | None = None,
        coordinators: Coordinators | None = None,
        logger: logging.Logger | None = None,
        **more: Any,
    ) -> None:
        """Makes a producer, and does not ask the coordinator yet.

        Args:
            config: dotted names, as confluent-kafka's.
            log: the log to use instead of opening that of ``bootstrap.servers``.
            coordinators: how to reach coordinators, instead of by a connection to each.
            logger: takes librdkafka's log.
            more: further settings: ``Producer(**config)``.

        Raises:
            ConfigError: a setting is missing, out of range, or breaks a guarantee.
        """
        config = merged(config, more, logger)
        settings = ProducerConfig.parse(config)
        opened = resources(config, settings, log, coordinators)
        self._config = settings
        self._transactions = OpenTransactions(settings, *opened)
        self._engine = self._transactions.engine
        self._current = None
        """The transaction begun last, until `commit_transaction` or `abort_transaction` succeeded.
        """
        self._ending = False
        """Whether one of these was called for it."""
        self._transactional = False
        """Whether `init_transactions` was called: then nothing is written plainly."""
        self._init_failed = False
        """Whether its last call failed."""
        # None of these may refer to this object: it would never be dropped.
        self._plain_offsets = PlainOffsets(self._engine.fetch_offsets)
        dropped = weakref.finalize(self, _on_dropped, self._transactions, settings)
        # When the interpreter exits, nobody could wait for the brokers.
        dropped.atexit = False
        keep_from_children(self)

    # ---- transactions as objects ----------------------------------------------------------------

    def begin_transaction(
        self,
        timeout: float | None = None,
        partitions: Iterable[TopicPartition] | None = None,
        *,
        sidecar: bool | None = None,
        current: bool = True,
    ) -> Transaction:
        """Opens a transaction.

        Returns at once, before its TxId is known. Calls that need the TxId wait for it; `produce`
        and `commit_async` do not, so one thread can have hundreds of transactions under way. This
        call waits only while ``transactions.in.flight.max`` of them are undecided.

        Args:
            timeout: seconds until the coordinator aborts it; None: ``transaction.timeout.ms``.
            partitions: (topic, partition)s that will be written to, if known: they are sure to get
                a marker, even if this process dies at once.
            sidecar: whether its records go to the sidecars of their topics, all of them or none:
                for large ones, and for those that may be aborted and must leave no trace. None: as
                ``transaction.sidecar.min.bytes`` says.
            current: whether the producer's own calls, such as `produce` and `commit_transaction`,
                mean it from now on. Otherwise they go on to mean the one that they meant.

        Raises:
            CoordinatorNotAvailableError, RequestTimedOutError: no coordinator was reached in time.
            ProducerFencedError, DoubleStartError: another producer has this name.
            RetriableError: the last `init_transactions` failed.
            ConcurrentTransactionsError: the ``transaction.key`` has an open transaction already. If
                its end was asked for, this call waits for it instead.
        """
        self._check_initiated()
        timeout_ms = (
            self._config.transaction_timeout_ms if timeout is None else round(timeout * 1000)
        )
        given: list[TransactionShell] = []
        try:
            transaction = self._transactions.begin(timeout_ms, partitions or (), self, given)
            min_bytes = self._config.sidecar_from(sidecar)
            if min_bytes is not None:
                transaction.use_sidecars(self._engine.sidecars, min_bytes)
            if current:
                self._current, self._ending = transaction, False
            return transaction
        except BaseException:
            # A signal handler's, or a refusal: the application does not get it.
            for unknown in given:
                unknown.forget()
            raise

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

    def init_transactions(self, timeout: float | None = None) -> None:
        """Begins the session and fences the predecessor. From now on nothing is written plainly.

        Args:
            timeout: seconds; None: ``coordinator.timeout.ms``.

        Raises:
            CoordinatorNotAvailableError, RequestTimedOutError: no coordinator answered in time.
                Call it again: until it succeeds, no transaction can begin.
            ProducerFencedError, DoubleStartError: another producer has this name.
        """
        self._engine.check()
        self._transactional = True
        try:
            self._engine.connect(_seconds(timeout))
        except RetriableError:
            self._init_failed = True
            raise
        self._init_failed = False

    def produce(
        self,
        topic: str,
        value: Content = None,
        key: Content = None,
        partition: int = -1,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: UserHeaders = None,
        *,
        callback: DeliveryCallback | None = None,
    ) -> None:
        """Sends a record: in the transaction begun last, or as a plain record (see the class).

        Waits while the local queue is full, up to ``delivery.timeout.ms``. Arguments and errors are
        those of `Transaction.produce`; `callback` is another name of `on_delivery`. A plain record
        that librdkafka refuses raises `confluent_kafka.KafkaException`.

        librdkafka also reports success of plain records of which it is not known where they are:
        their message has no offset. Mostly they are written; that is not certain.

        Raises:
            TransactionStateError: after `init_transactions`, without a transaction.
            ClosedError: the producer was closed.
        """
        on_delivery = on_delivery or callback
        current = self._current
        if current is not None and self._goes_into(current):
            # A transaction that is not open any more refuses the record. Written plainly, it would
            # be delivered whatever becomes of the transaction.
            current.produce(topic, value, key, partition, on_delivery, timestamp, headers)
            return
        self._engine.check()
        if self._transactional:
            raise TransactionStateError("no transaction is open: call begin_transaction first")
        pairs: Any = list(check_headers(headers)) or None
        sender = self._engine.sender
        sender.produce_plainly(topic, value, key, partition, on_delivery, timestamp, pairs)

    def _goes_into(self, current: TransactionShell) -> bool:
        unended = current.is_open or current.was_ended_unasked
        return self._transactional or self._ending or unended

    def produce_batch(
        self,
        topic: str,
        messages: list[dict[str, Any]],
        partition: int = -1,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> int:
        """Sends several records, each as `produce` does.

        Args:
            topic: name of the topic.
            messages: dicts with ``value``, ``key``, ``partition``, ``timestamp``, ``headers`` and
                ``callback``, each of which may be missing.
            partition: of messages that name none.
            callback: of messages that have none; `on_delivery` is another name.
            on_delivery: see `callback`.

        Returns:
            How many were taken. Each other one has the key ``_error``: a `KafkaError`.

        Raises:
            TypeError: an argument can't be used; nothing was sent.
            ClosedError: the producer was closed.
        """
        return produce_batch(self.produce, topic, messages, partition, callback or on_delivery)

    def commit_transaction(
        self, timeout: float | None = None, *, finished: bool = False
    ) -> Outcome:
        """Commits the transaction begun last; see `Transaction.commit`."""
        current = self._require_current()
        self._ending = True
        outcome = current.commit(_seconds(timeout), finished=finished)
        self._drop(current)
        return outcome

    def abort_transaction(self, timeout: float | None = None) -> Outcome:
        """Aborts the transaction begun last; see `Transaction.abort`.

        Succeeds for one that is known to be aborted already.
        """
        current = self._require_current()
        self._ending = True
        try:
            outcome = current.abort(_seconds(timeout))
        except TransactionCommittedError:
            self._drop(current)
            raise
        self._drop(current)
        return outcome

    def send_offsets_to_transaction(
        self,
        positions: Sequence[KafkaPartition],
        group_metadata: str | GroupMetadata,
        timeout: float | None = None,
    ) -> None:
        """Makes input offsets part of the transaction begun last.

        Args:
            positions: what `Consumer.position` returned; or, for some partitions, the offset of a
                message that was delivered, plus 1. Those below 0 don't count.
            group_metadata: the `logtx.Consumer`, its `consumer_group_metadata`, or the name of a
                consumer group of another client. An offset then is the next one to read.
            timeout: not used: this waits for the coordinator only when a group is first named, up
                to ``coordinator.timeout.ms``.

        Raises:
            ConfigError: the consumer never was at one of `positions`; nothing is sent.
            GroupBoundError: the group commits its offsets in another transaction group.
            OffsetsPendingError: another transaction holds the group's offsets; retry later.
            TransactionAbortOnlyError, TransactionStateError, …: as `Transaction.send_offsets`.
        """
        del timeout  # confluent-kafka has this parameter
        current = self._require_current()
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
        """Waits up to `timeout` seconds for delivery reports.

        Their callbacks are called on a thread of the producer, also without `poll`.

        Returns:
            How many came since the last call.

        Raises:
            Exception: what a callback raised since the last call.
            ClosedError: the producer was closed.
        """
        self._engine.check_not_closed()
        served = self._engine.sender.poll(_bounded(timeout))
        self._engine.sender.raise_kept()
        return served

    def flush(self, timeout: float = -1) -> int:
        """Waits up to `timeout` seconds for every record's report. Returns how many are left.

        Raises:
            Exception: what a callback raised since the last call.
            ClosedError: the producer was closed.
        """
        self._engine.check_not_closed()
        left = self._transactions.flush(_bounded(timeout))
        self._engine.sender.raise_kept()
        return left

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Fails records that are not acknowledged; transactions that lose one become abort-only.

        Raises:
            ConfigError: other producers share librdkafka's, and their records would fail, too.
        """
        self._engine.check_not_closed()
        self._engine.sender.purge(in_queue, in_flight, blocking)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Returns cluster metadata, as confluent-kafka does."""
        return self._librdkafka.list_topics(topic, _bounded(timeout))

    def cluster_id(self, timeout: float = -1) -> str | None:
        """Returns the id of the cluster; None if it has none, or if `timeout` seconds passed."""
        found: str | None = self._librdkafka.cluster_id(_bounded(timeout))
        return found

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replaces the SASL credentials with which records are written from now on.

        The coordinators' addresses are read with those that the producer was made with.

        Raises:
            ConfigError: it is another user, and other producers share librdkafka's.
        """
        self._engine.check_not_closed()
        self._engine.sender.set_sasl_credentials(username, password)

    def __bool__(self) -> bool:
        """Returns True: a producer with nothing queued is a producer."""
        return True

    def __len__(self) -> int:
        """Returns the number of records whose reports were not served yet."""
        return 0 if self._engine.closed else self._transactions.queued

    def close(self, timeout: float | None = None) -> bool:
        """Aborts open transactions, waits for those being committed, sends plain records, stops.

        Args:
            timeout: seconds; None: ``coordinator.timeout.ms``. What is not done by then is given
                up: the coordinator aborts open transactions by itself. Where other producers share
                librdkafka's, records that were not sent by then still are.

        Returns:
            True, as confluent-kafka's does.
        """
        if self._engine.closed:
            return True
        seconds = _seconds(timeout)
        self._transactions.close(self._config.coordinator_timeout_s if seconds is None else seconds)
        return True

    def after_fork(self) -> None:
        """Makes every call raise ForkedError, in a child of the process that made the producer."""
        self._transactions.after_fork()
        refuse(self)

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

    @property
    def _librdkafka(self) -> Any:
        self._engine.check_not_closed()
        return self._engine.sender.producer

    def _check_initiated(self) -> None:
        self._engine.check()
        if self._init_failed:
            raise RetriableError(
                "init_transactions did not succeed: call it again", kafka_code=KafkaError._CONFLICT
            )

    def _require_current(self) -> TransactionShell:
        self._check_initiated()
        if self._current is None:
            raise TransactionStateError("no transaction is open: call begin_transaction first")
        return self._current

    def _drop(self, transaction: TransactionShell) -> None:
        if self._current is transaction:
            self._current, self._ending = None, False


def _on_dropped(transactions: OpenTransactions, config: ProducerConfig) -> None:
    """Closes what a producer leaves that is garbage."""
    if not transactions.engine.closed:
        _LOG.info("producer_dropped producer_id=%s", config.producer_id)
        close = partial(transactions.close, config.coordinator_timeout_s)
        close_later("producer", f"producer_id={config.producer_id}", close)


class _UpTo:
    """A consumer's steps, up to the positions that the application named."""

    def __init__(self, source: GroupMetadata, positions: Sequence[KafkaPartition]) -> None:
        self.group_id = source.group_id
        self._source = source
        self.lose_steps = source.lose_steps
        self._positions = positions

    def offset_steps(self) -> Sequence[OffsetStep]:
        """Returns the steps."""
        return self._source.offset_steps(self._positions)


def _bounded(timeout: float | None) -> float:
    return _FOREVER_S if timeout is None or timeout < 0 else timeout


def _seconds(timeout: float | None) -> float | None:
    return None if timeout is None or timeout < 0 else timeout
