"""Consumer: works like confluent-kafka's, and delivers transactions when they commit.

This is the thin shell, which handles the application's calls. `Assignment` says which partitions
are read, `PartitionBuffer` what of them may be delivered. `Reading` moves batches into the buffers
and out of them, and `Delivery` hands them to the application.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import index
from threading import get_ident
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self, cast

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.error import ConsumeError

from ..journal.errors import ConcurrentUseError, ConfigError, LogtxError, NotSupportedError
from ..journal.fork import keep_from_children, refuse
from ..journal.logs.interface import Log
from ..journal.logs.lending import LOGS
from ..journal.records.types import OffsetStep
from ..journal.settings import merged, refused
from .assignment import Assignment
from .config import OWN, ConsumerConfig, IsolationLevel
from .core.counters import ConsumerCounters
from .core.looks import OFFSET_TIMEOUT_S
from .delivery import Delivery
from .inquiries import Inquiries, seconds
from .lag import HeldBack, Lag, held_back, lag
from .lifetime import Parts, weakly
from .positions import Positions, key_of, place_of
from .reading import Reading
from .serial_reader import CommittedTransaction
from .source import open_consumer

if TYPE_CHECKING:
    import pyarrow

_LOG = logging.getLogger(__name__)
_END_CALL_S: Final = 5.0
"""How long `close` waits for the end of another thread's call. That looks every half second whether
it is to end; after a shorter time, one that reads a sidecar or a journal would not have looked."""
_MESSAGES_MAX: Final = 1_000_000
"""Most messages of one `consume`, as in confluent-kafka."""
_EVENT_CALLBACKS: Final = ("error_cb", "stats_cb", "throttle_cb")
"""Settings that are functions, which librdkafka calls while the consumer polls or closes."""

RebalanceCallback = Callable[["Consumer", list[KafkaPartition]], Any]


def _check_number(num_messages: int) -> None:
    index(num_messages)  # Raises TypeError for a float, before anything is taken.
    if not 0 <= num_messages <= _MESSAGES_MAX:
        raise ValueError("num_messages must be between 0 and 1000000 (1M)")


def _columns() -> ModuleType:
    try:
        from . import columns
    except ImportError as error:
        raise ConfigError(
            "consume_arrow needs the package pyarrow: pip install 'logtx[arrow]'"
        ) from error
    return columns


class ConsumerGroupMetadata:
    """A consumer, for `Producer.send_offsets_to_transaction`."""

    def __init__(self, consumer: Consumer) -> None:
        self.group_id = consumer.group_id
        self._consumer = consumer

    def offset_steps(self, positions: Sequence[KafkaPartition] | None = None) -> list[OffsetStep]:
        """Returns steps, as `Consumer.offset_steps`."""
        return self._consumer.offset_steps(positions)

    def lose_steps(self) -> Callable[[], None]:
        """Returns what to call if they will not be committed, as `Consumer.lose_steps`."""
        return self._consumer.lose_steps()


class Consumer:
    """Reads topics, and delivers committed transactions whole and in commit order.

    One thread at a time may use it. While a call takes messages, another one that takes some or
    moves partitions raises ConcurrentUseError. Takes the settings of
    `ConsumerConfig` and librdkafka's own. The group's committed position in a partition is
    (o1, o2, o3): Kafka's offset is o1 and the rest is its metadata, so everyday tools show a lag.

    Source: Transactional Messaging in Kafka, "Transactional consumer".
    """

    _closed = True
    """A subclass that does not call our `__init__` has a consumer that refuses every call."""
    _in_call = 0
    """The thread whose call takes messages; 0: none does. A call that began meanwhile would lose or
    repeat some, and one that moved a partition would let records of its former place pass for those
    of the new one."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        /,
        *,
        log: Log | None = None,
        logger: logging.Logger | None = None,
        **more: Any,
    ) -> None:
        """Checks the settings. Reading begins with `subscribe` or `assign`.

        Args:
            config: settings by name, as for `confluent_kafka.Consumer`.
            log: the log to read; None opens the one that ``bootstrap.servers`` names.
            logger: takes librdkafka's log.
            more: further settings: ``Consumer(**config)``.

        Raises:
            ConfigError: a setting is missing, unknown or out of range.
            SpillError: ``pending.dir`` can't be written.
        """
        config = merged(config, more, logger)
        parsed = ConsumerConfig.parse(config)
        self._on_commit = parsed.librdkafka.get("on_commit")
        if self._on_commit is not None and not callable(self._on_commit):
            raise TypeError(f"on_commit must be callable, not {self._on_commit!r}")
        given = {name: parsed.librdkafka.get(name) for name in _EVENT_CALLBACKS}
        self._event_callbacks = {name: call for name, call in given.items() if callable(call)}
        own: dict[str, Any] = {"on_commit": weakly(self._commit_answered)}
        own |= {name: partial(weakly(self._told), name) for name in self._event_callbacks}
        self._config = replace(parsed, librdkafka={**parsed.librdkafka, **own})
        self.group_id = self._config.group_id
        self.offsets_storage = self._config.offsets_storage
        lease = LOGS.lend(config, log=log)
        self._log: Log = lease.log
        try:
            self._inner, reader = open_consumer(self._log.consumer, self._config.librdkafka)
        except KafkaException as error:
            raise refused(error.args[0].str(), OWN) from error
        self._counters = ConsumerCounters()
        try:
            self._reading = Reading(self._log, self._inner, self._config, self._counters, reader)
            self._positions = Positions(self._log, self._inner, self._config, self._reading)
        except LogtxError:
            self._inner.close()
            raise
        self._inquiries = Inquiries(self._inner)
        self._callbacks: dict[str, RebalanceCallback | None] = {}
        self._assignment = Assignment(
            self._inner, self._config, self._reading, self._positions, weakly(self._rebalanced)
        )
        self._parts = Parts(self.group_id, self._inner, self._reading, self._positions, lease)
        self._delivery = Delivery(
            self._log, self._config, self._counters, self._parts, self._assignment
        )
        self._dropped = weakref.finalize(self, self._parts.close_later)
        self._dropped.atexit = False
        self._events: list[Message] = []
        """What `consume_arrow` is still to raise: it came with records, which it has returned."""
        self._closed = False
        keep_from_children(self)

    # ---- subscription and assignment ------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Joins the consumer group for these topics. Replaces an earlier subscription.

        `poll`, `consume` and `transactions` call the callbacks, with this consumer and a list of
        partitions: `on_assign` after their positions are restored, `on_revoke` before positions are
        committed (``enable.auto.commit``) and the partitions given back, `on_lost` after another
        member may have taken them. Without `on_lost`, `on_revoke` is called in its place.

        A pattern may match sidecars. They are not read for themselves, and no callback names them.

        Raises:
            UnsupportedTopicError: one of the topics is a sidecar: name the topic it belongs to.
        """
        self._check_open()
        given = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        for kind, callback in given.items():
            if callback is not None and not callable(callback):
                raise TypeError(f"on_{kind} must be callable, not {callback!r}")
        self._callbacks = {**given, "lost": on_lost or on_revoke}
        self._assignment.subscribe(topics)

    def unsubscribe(self) -> None:
        """Commits positions (``enable.auto.commit``) and leaves the group."""
        self._check_open()
        self._assignment.unsubscribe()

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Reads these partitions and no others; the group does not assign any.

        What was delivered before is committed (``enable.auto.commit``). A partition with an offset
        is read from there, and exactly from a former place if it has the metadata that `position`
        or `committed` gave. One with `OFFSET_INVALID` (the default) or `OFFSET_STORED` is read from
        the committed position.

        Raises:
            RetriableError, KafkaException: the committed positions could not be fetched.
            UnsupportedTopicError: one is of a sidecar: name the topic it belongs to.
        """
        self._check_alone()
        self._assignment.assign(partitions)

    def unassign(self) -> None:
        """Commits positions (``enable.auto.commit``) without waiting, and stops reading."""
        self._check_open()
        self._assignment.unassign()

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        """Reads these partitions too, from where `assign` would read them.

        Partitions that are assigned already move there.
        """
        self._check_alone()
        self._assignment.add(partitions)

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None:
        """Stops reading these partitions and drops what is pending in them.

        Commits their positions (``enable.auto.commit``) without waiting for the answer.

        Raises:
            KafkaException: one of them is not assigned.
        """
        self._check_open()
        self._assignment.remove(partitions)

    def assignment(self) -> list[KafkaPartition]:
        """Returns the assigned partitions."""
        self._check_open()
        return [KafkaPartition(topic, number) for topic, number in self._reading.assigned]

    def _rebalanced(self, kind: str, partitions: list[KafkaPartition]) -> None:
        callback = self._callbacks.get(kind)
        if callback is not None:
            # It is a part of the call under way, and may move partitions itself.
            before, self._in_call = self._in_call, 0
            try:
                callback(self, [KafkaPartition(p.topic, p.partition) for p in partitions])
            finally:
                self._in_call = before

    def _commit_answered(self, error: KafkaError | None, places: list[KafkaPartition]) -> None:
        self._positions.on_commit(error, places)
        if self._on_commit is not None:
            self._on_commit(error, places)

    def _told(self, name: str, *arguments: object) -> None:
        try:
            self._event_callbacks[name](*arguments)
        except Exception:
            if not self._assignment.closing:
                raise
            # `close` has done its work, and nothing is left to do about it.
            _LOG.exception("callback_raised_at_close group=%s", self.group_id)

    # ---- positions ------------------------------------------------------------------------------

    def position(self, partitions: Iterable[KafkaPartition]) -> list[KafkaPartition]:
        """Returns where delivery goes on: o2 as the offset, and metadata that `assign` understands.

        The offset is `OFFSET_INVALID` for a partition that is not assigned.
        """
        self._check_open()
        keys = [key_of(p) for p in partitions]
        return [place_of(key, self._positions.present(key)) for key in keys]

    def committed(
        self, partitions: Iterable[KafkaPartition], timeout: float | None = None
    ) -> list[KafkaPartition]:
        """Returns the group's committed positions, in the form that `position` uses.

        The offset is `OFFSET_INVALID` where nothing is committed.

        Args:
            partitions: the partitions.
            timeout: longest wait in seconds; None: 10 s, or ``coordinator.timeout.ms`` with
                ``offsets.storage=transactions``.

        Raises:
            OffsetsPendingError: until the time-out a pending transaction held a partition's offset
                (``offsets.storage=transactions``).
            RetriableError: no coordinator answered in time (``offsets.storage=transactions``).
            KafkaException: the broker refused, or did not answer in time.
        """
        self._check_open()
        return self._positions.committed([key_of(p) for p in partitions], seconds(timeout))

    def commit(
        self,
        message: Message | None = None,
        offsets: list[KafkaPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[KafkaPartition] | None:
        """Commits positions.

        Without `message` and `offsets` it commits everything that was delivered, or, with
        ``enable.auto.offset.store=false``, what `store_offsets` chose.

        Args:
            message: a message that was delivered: commits the position after it. The latest 1,000
                transactions of each partition are remembered, since it was assigned or moved.
            offsets: positions to commit, with the metadata of `position` if they have any.
            asynchronous: don't wait for the answer.

        Returns:
            What was committed, None if asynchronous.

        Raises:
            NotSupportedError: ``offsets.storage=transactions``.
            ConsumerError: the message is not remembered.
            ValueError: both `message` and `offsets` are given.
            KafkaException: the broker refused, such as after a rebalance.
        """
        self._check_open()
        return self._positions.commit(message, offsets, wait=not asynchronous)

    def store_offsets(
        self, message: Message | None = None, offsets: list[KafkaPartition] | None = None
    ) -> None:
        """Chooses what the next commit stores: by ``enable.auto.commit``, `commit` or a revocation.

        Args:
            message: a message that was delivered, as for `commit`: chooses the position after it.
            offsets: positions instead, with the metadata of `position` if they have any.

        Raises:
            ConfigError: ``enable.auto.offset.store`` is not false.
            ConsumerError: the message is not remembered.
            ValueError: both `message` and `offsets` are given.
            KafkaException: a partition is not assigned.
        """
        self._check_open()
        self._positions.mark(message, offsets)

    # ---- input offsets of transactions ----------------------------------------------------------

    def offset_steps(self, positions: Sequence[KafkaPartition] | None = None) -> list[OffsetStep]:
        """Returns what was delivered since the last call, for `Transaction.send_offsets`.

        There is one step per assigned partition that moved. It leads from the committed position,
        or the end of the step handed out before, to the present position. Steps build on each other
        even while the transactions that carry them are undecided. When one of these aborts, call
        `rewind`: the coordinator will refuse the steps handed out after it, and their input must be
        read again.

        Args:
            positions: up to where, in some partitions: what `position` returned, or the offset of a
                delivered message plus 1. None: all that was delivered. Those below 0 don't count.

        Raises:
            ClaimFencedError: the group took partitions away whose input was delivered and not yet
                handed out as steps: abort, `rewind`, redo.
            ConfigError: ``offsets.storage=kafka``, whose positions transactions don't commit; or
                delivery was never at one of `positions`. Then nothing is handed out.
        """
        self._check_open()
        return self._positions.steps(positions)

    def lose_steps(self) -> Callable[[], None]:
        """Returns what a producer calls if the steps handed out last will not be committed.

        Afterwards `offset_steps` raises OffsetsConflictError until `rewind` or `assign`.
        """
        return self._positions.lose_steps()

    def consumer_group_metadata(self) -> ConsumerGroupMetadata:
        """Returns what `Producer.send_offsets_to_transaction` needs to know of this consumer."""
        self._check_open()
        return ConsumerGroupMetadata(self)

    def rewind(self, *, wait: bool = True) -> None:
        """Goes back to the committed positions, and delivers again what no transaction committed.

        A partition without a committed position goes back to where reading began. With
        ``offsets.storage=transactions`` this aborts the open transactions that carry steps handed
        out before; no later transaction can commit such steps either. If another consumer has taken
        partitions over, nothing is delivered while this one waits for its group to say whose they
        are (a few seconds at most).

        Args:
            wait: False returns at once; the next `poll` or `consume` goes back before it delivers.

        Raises:
            ClaimFencedError: another consumer took over partitions that `assign` named: `assign`
                them again to take them back, or stop.
            RetriableError, KafkaException: the committed positions could not be fetched. Nothing is
                delivered until they are; another `rewind`, `poll` or `consume` tries again.
        """
        if wait:
            self._check_alone()
            self._positions.rewind(subscribed=self._assignment.subscribed)
        else:
            self._positions.rewind_later()

    def before_revocation(self, call: Callable[[], None] | None) -> None:
        """Sets a function to call before the group takes partitions away; None removes it.

        `logtx.process` waits for its commits there; the callbacks of `subscribe` belong to the
        application.
        """
        self._assignment.before_revocation = call

    # ---- reading --------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """Returns the next message or event, or None if there is none within `timeout`.

        An event is a message whose `error()` is set. It comes from Kafka, or stands in the place of
        a record whose TxId or TxCtl header does not decode.

        Args:
            timeout: seconds to wait; None waits for ever.

        Raises:
            IntegrityError: a transaction's records don't match its marker; its partition stops
                there.
            TornTransactionError: retention deleted a part of a transaction; its partition stops
                there.
            SpillError: pending transactions can't be spilled. Nothing is lost: start the consumer
                again.
        """
        self._check_open()
        if self._in_call:
            self._refuse_second()
        self._reading.begin_taking()
        try:
            self._in_call = get_ident()
            found = self._delivery.records(1, -1 if timeout is None else timeout)
        except BaseException as error:
            self._delivery.put_back(error)
            raise
        finally:
            self._in_call = 0
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Returns up to `num_messages` messages as soon as there is one, else as `poll`.

        Returns [] after `timeout` seconds without any; a negative `timeout` waits for ever.

        Raises:
            TypeError: `num_messages` is no whole number.
            ValueError: it is not between 0 and 1,000,000.
        """
        _check_number(num_messages)
        self._check_open()
        if num_messages == 0:
            return []
        if self._in_call:
            self._refuse_second()
        self._reading.begin_taking()
        try:
            self._in_call = get_ident()
            found = self._delivery.records(num_messages, timeout)
        except BaseException as error:
            self._delivery.put_back(error)
            raise
        finally:
            self._in_call = 0
        return found

    def consume_arrow(self, num_messages: int = 10_000, timeout: float = -1) -> pyarrow.RecordBatch:
        """Returns the records that `consume` would return, as columns.

        These are key, value, topic, partition, offset, timestamp, timestamp_type, headers, txid and
        commit_sequence. Headers are without TxId and TxCtl; None, if there are no others. The batch
        has no rows after `timeout` seconds without any record; a negative `timeout` waits for ever.

        An event is no row. It is raised as ConsumeError, whose `kafka_message` is what `consume`
        would have returned: now if no record came with it, else by the next call of this.

        Raises:
            ConsumeError: see above. The next call goes on behind it.
            ConfigError: pyarrow is missing; or keys or values have more than 2 GiB. Nothing is
                lost.
            TypeError: `num_messages` is no whole number.
            ValueError: it is not between 0 and 1,000,000.
            LogtxError: as `poll`.
        """
        columns = _columns()
        _check_number(num_messages)
        self._check_open()
        if num_messages == 0:
            return columns.EMPTY
        if self._in_call:
            self._refuse_second()
        if not self._events:
            self._reading.begin_taking()
            try:
                self._in_call = get_ident()
                found = self._delivery.records(num_messages, timeout)
                sequences = self._reading.commit_sequences()
                batch, self._events = columns.batch_of(found, sequences)
            except BaseException as error:
                self._delivery.put_back(error)
                raise
            finally:
                self._in_call = 0
            if batch.num_rows or not self._events:
                return batch
        event = self._events.pop(0)
        raise ConsumeError(cast(KafkaError, event.error()), kafka_message=event)

    def transactions(self, timeout: float | None = None) -> Iterator[CommittedTransaction]:
        """Returns an iterator over the whole committed transactions of ``transaction.group``.

        They come in commit-sequence order. A transaction comes when its markers in all of this
        consumer's partitions were read. It counts as delivered from then on: a `commit` in the
        loop's body commits it too. Plain records and transactions of other groups are passed over.
        Without a committed position ``auto.offset.reset=latest`` begins with what is decided from
        now on.

        Args:
            timeout: ends the iteration after this many seconds without a transaction; None: never.

        Raises:
            NotSupportedError: `poll` or `consume` was called on this consumer, or it reads
                uncommitted records.
            UnknownTopicError: the cluster has no journal.
            MalformedHeaderError: once for each record whose TxId or TxCtl does not decode;
                iterating again goes on behind it.
            IntegrityError, TornTransactionError: the next transaction can't be delivered whole.
            SpillError: as in `poll`.
        """
        self._check_open()
        if self._config.isolation_level is IsolationLevel.READ_UNCOMMITTED:
            raise NotSupportedError(
                "transactions() needs isolation.level=serializable or read_committed"
            )
        self._delivery.received()
        try:
            self._delivery.begin_transactions()
        except BaseException as error:
            self._delivery.put_back(error)
            raise
        return self._iterate(timeout)

    def _iterate(self, timeout: float | None) -> Iterator[CommittedTransaction]:
        while True:
            self._check_open()
            if self._in_call:
                self._refuse_second()
            self._delivery.received()
            try:
                self._in_call = get_ident()
                found = self._delivery.transaction(timeout)
            except BaseException as error:
                self._delivery.put_back(error)
                raise
            finally:
                self._in_call = 0
            if found is None:
                return
            yield found

    def pause(self, partitions: list[KafkaPartition]) -> None:
        """Delivers nothing from these partitions until `resume`."""
        self._check_open()
        chosen = [self._reading.require(key_of(partition)) for partition in partitions]
        self._inner.pause(partitions)
        for assigned in chosen:
            assigned.paused = True

    def resume(self, partitions: list[KafkaPartition]) -> None:
        """Delivers from these partitions again, after `pause`."""
        self._check_open()
        chosen = [self._reading.require(key_of(partition)) for partition in partitions]
        for assigned in chosen:
            assigned.paused = False
        free = [assigned.kafka() for assigned in chosen if not assigned.throttled]
        if free:
            self._inner.resume(free)

    def seek(self, partition: KafkaPartition) -> None:
        """Goes on from another offset.

        Delivers plain records from there on, and transactions whose marker lies there or later. An
        offset with the metadata of `position` leads exactly to that position. `OFFSET_STORED` leads
        to the committed one, -2000 - n to the last n offsets.
        """
        self._check_alone()
        key = key_of(partition)
        assigned = self._reading.require(key)
        start, started_at = self._positions.start_at(partition)
        # Behind a mode record that reading has not met, nothing else would tell of the switch.
        self._reading.following.learn([key])
        with self._reading.moving():
            self._reading.add(key, start, assigned.stored, started_at)
            try:
                self._inner.seek(KafkaPartition(key[0], key[1], start.o1))
                self._reading.sync_pauses()
            except KafkaException:
                # librdkafka can't seek before the first poll and after an error.
                self._reading.reassign([key])

    # ---- the rest -------------------------------------------------------------------------------

    def get_watermark_offsets(
        self,
        partition: KafkaPartition,
        timeout: float | None = OFFSET_TIMEOUT_S,
        cached: bool = False,
    ) -> tuple[int, int]:
        """Returns a partition's first offset, and the offset after its last record.

        As the calls below it asks again while a new leader is elected, or a broker is away.

        Args:
            partition: the partition.
            timeout: longest wait in seconds; None: for ever.
            cached: don't ask, but tell what is known.

        Raises:
            KafkaException: the broker refused, or did not answer in time.
        """
        self._check_open()
        return self._inquiries.watermarks(partition, timeout, cached=cached)

    def offsets_for_times(
        self, partitions: list[KafkaPartition], timeout: float | None = OFFSET_TIMEOUT_S
    ) -> list[KafkaPartition]:
        """Returns each partition's first offset at or after a time (in its `offset` field, ms)."""
        self._check_open()
        return self._inquiries.for_times(partitions, timeout)

    def list_topics(
        self, topic: str | None = None, timeout: float | None = OFFSET_TIMEOUT_S
    ) -> Any:
        """Returns Kafka's metadata of the cluster, or of one topic."""
        self._check_open()
        return self._inquiries.metadata(topic, timeout)

    def cluster_id(self, timeout: float | None = OFFSET_TIMEOUT_S) -> str | None:
        """Returns the id of the Kafka cluster."""
        self._check_open()
        return self._inquiries.cluster_id(timeout)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Sets what the consumer logs in to Kafka with from its next connection on.

        That is its own reading. Its other requests use the credentials that it was made with.
        """
        self._check_open()
        self._inner.set_sasl_credentials(username, password)

    def memberid(self) -> str | None:
        """Returns this consumer's member id in its group."""
        self._check_open()
        return self._inner.memberid()

    def lag(self) -> list[Lag]:
        """Returns how many offsets each assigned partition is behind, and how many are held back.

        Asks the broker for the ends.

        Raises:
            BrokerError: the broker did not answer.
        """
        self._check_open()
        return [lag(assigned, self._log) for assigned in self._reading.assigned.values()]

    def held_back(self) -> list[HeldBack]:
        """Returns, for each partition whose o1 stands still, the transaction that holds it and why.

        Raises:
            SpillError: spilled records can't be read back.
        """
        self._check_open()
        now_s, wall_s, pending_map = time.monotonic(), time.time(), self._reading.pending_map
        found = [
            held_back(assigned, pending_map, now_s=now_s, wall_s=wall_s)
            for assigned in self._reading.assigned.values()
        ]
        return [each for each in found if each is not None]

    @property
    def counters(self) -> ConsumerCounters:
        """Counts since the consumer was made."""
        if not self._closed:
            self._counters.spilled_bytes = self._reading.spilled_bytes()
        return self._counters

    def stats(self) -> dict[str, Any]:
        """Returns the counters by name, what is pending now, and what `held_back` finds.

        All values are plain and can be written as JSON.

        Raises:
            SpillError: as in `held_back`.
        """
        pending = [p for a in self._reading.assigned.values() for p in a.buffer.pending()]
        return {
            **self.counters.as_dict(),
            "pending_transactions": len(pending),
            "pending_records": sum(p.count for p in pending),
            "pending_memory_bytes": self._reading.pending_map.memory_bytes,
            **self._reading.following.homes.stats(),
            "held_back": [] if self._closed else [held.as_dict() for held in self.held_back()],
        }

    def close(self) -> None:
        """Commits (``enable.auto.commit``), leaves the group, drops all state. May be repeated.

        A call of another thread that waits for messages meanwhile raises RuntimeError.
        """
        if self._closed:
            return
        self._assignment.closing = True
        if self._in_call not in (0, get_ident()):
            self._end_call()
        self._assignment.commit_before_leaving(list(self._reading.assigned))
        self._counters.spilled_bytes = self._reading.spilled_bytes()
        self._dropped.detach()
        try:
            # This gives the partitions back, and so calls the application's callbacks once more.
            self._parts.close()
        finally:
            self._closed = True

    def _end_call(self) -> None:
        # While a thread polls confluent-kafka's consumer in a loop, another one's commit there
        # finds no gap, and waits for ever.
        self._reading.is_ending = True
        until_s = time.monotonic() + _END_CALL_S
        while self._in_call and time.monotonic() < until_s:
            time.sleep(0.01)

    def after_fork(self) -> None:
        """Makes every call raise ForkedError, in a child of the process that made the consumer."""
        self._closed = True
        refuse(self, "_check_open")

    def _check_alone(self) -> None:
        self._check_open()
        if self._in_call:
            self._refuse_second()

    def _refuse_second(self) -> NoReturn:
        raise ConcurrentUseError(
            "another thread takes messages from this consumer now, or a signal handler interrupted"
            " the call that does: give each thread its own, and set a flag in the handler"
        )

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")

    def __enter__(self) -> Self:
        """Returns the consumer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Closes the consumer."""
        self.close()

    def __iter__(self) -> Iterator[Message]:
        """Yields what `poll` returns, without end: check each message's `error()`."""
        while True:
            message = self.poll()
            if message is not None:
                yield message
