"""Consumer: confluent-kafka's habits, transactions delivered when they commit.

This is the thin shell. What may be delivered is decided by `PartitionBuffer`; `Reading` moves
batches into the buffers and out; here are the application's calls, rebalances and positions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ..journal.control import TopicPartition
from ..journal.errors import ConfigError, LogtxError, NotSupportedError
from ..journal.logs.interface import Log, LogConsumer
from ..journal.logs.open import open_log
from ..journal.records.types import OffsetStep
from .config import ConsumerConfig, IsolationLevel
from .core.buffer import PartitionBuffer
from .core.counters import ConsumerCounters
from .lag import HeldBack, Lag, held_back, lag
from .positions import Positions, key_of, place_of
from .reading import OFFSET_TIMEOUT_S, Assigned, Reading
from .serial_reader import CommittedTransaction, SerialReader

_LOG = logging.getLogger(__name__)
POLL_SLICE_S: Final = 0.5
"""A wait without end is made of these, so that upkeep goes on and signals are seen."""

RebalanceCallback = Callable[["Consumer", list[KafkaPartition]], Any]


class Consumer:
    """Reads topics; committed transactions come whole and in commit order.

    One thread at a time, like `confluent_kafka.Consumer`. Settings: `ConsumerConfig`, and
    librdkafka's own. The group's committed offset of a partition is (o1, o2, o3): o1 is Kafka's
    offset, the rest its metadata, so that everyday tools show a lag.

    Source: Transactional Messaging in Kafka, "Transactional consumer".
    """

    def __init__(self, config: Mapping[str, Any], *, log: Log | None = None) -> None:
        """Check the settings; nothing is read yet.

        Args:
            config: names and values, as for `confluent_kafka.Consumer`.
            log: the log to read; None opens the one that ``bootstrap.servers`` names.

        Raises:
            ConfigError: a setting is missing, unknown or out of range.
            SpillError: ``pending.dir`` can't be written.
        """
        self._config = ConsumerConfig.parse(config)
        self.group_id = self._config.group_id
        self.offsets_storage = self._config.offsets_storage
        self._own_log = log is None
        self._log: Log = log if log is not None else open_log(config)
        try:
            self._inner: LogConsumer = self._log.consumer(self._config.librdkafka)
        except KafkaException as error:
            reason: KafkaError = error.args[0]
            raise ConfigError(f"librdkafka refuses the settings: {reason.str()}") from error
        self._counters = ConsumerCounters()
        try:
            self._reading = Reading(
                self._log,
                self._inner,
                self._config,
                self._counters,
                make_buffer=self._serial_buffer if self._is_serializable else None,
            )
        except LogtxError:
            self._inner.close()
            raise
        self._positions = Positions(self._log, self._inner, self._config, self._reading)
        self._callbacks: dict[str, RebalanceCallback | None] = {}
        self._subscribed = False
        self._before_revocation: Callable[[], None] | None = None
        self._unrestored: list[KafkaPartition] = []
        """Given to us by the group, and their positions could not be learnt yet."""
        self._closing = self._closed = False
        self._mode: str | None = None
        self._serial: SerialReader | None = None
        """For serializable delivery and `transactions`, from the first call on."""

    # ---- subscription and assignment ------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the consumer group for these topics; replaces an earlier subscription.

        Callbacks are called from `poll` and `consume` with this consumer and a list of
        partitions: `on_assign` when their positions are restored, `on_revoke` before they are
        committed (``enable.auto.commit``) and given back, `on_lost` when they are gone already.
        """
        self._check_open()
        self._callbacks = {"assign": on_assign, "revoke": on_revoke, "lost": on_lost}
        self._subscribed = True
        self._inner.subscribe(topics, self._assigned, self._revoked, self._lost)

    def unsubscribe(self) -> None:
        """Leave the group; positions are committed (``enable.auto.commit``) first."""
        self._check_open()
        # librdkafka tells of the revocation at a later poll, when nothing is left to commit.
        self._commit_before_leaving(list(self._reading.assigned))
        self._inner.unsubscribe()
        self._subscribed = False
        self._positions.drop()

    def assign(self, partitions: list[KafkaPartition]) -> None:
        """Read these, without the group's help.

        An offset goes on from there, with the metadata of `position` or `committed` exactly;
        `OFFSET_INVALID` (the default) and `OFFSET_STORED` from the committed position.

        Raises:
            RetriableError, KafkaException: the committed positions could not be learnt.
        """
        self._check_open()
        self._positions.drop()
        self._unrestored = []
        self._positions.restore(partitions)
        self._inner.assign([a.kafka() for a in self._reading.assigned.values()])

    def unassign(self) -> None:
        """Read nothing any more."""
        self._check_open()
        self._positions.drop()
        self._inner.unassign()

    def incremental_assign(self, partitions: list[KafkaPartition]) -> None:
        """Read these too, from where `assign` would; those assigned already go on from there."""
        self._check_open()
        moved = [p for p in partitions if key_of(p) in self._reading.assigned]
        self._positions.restore(partitions)
        if self._config.cooperative:
            self._take_over([p for p in partitions if p not in moved])
        self._reading.reassign([key_of(p) for p in moved])

    def incremental_unassign(self, partitions: list[KafkaPartition]) -> None:
        """Read these no more; what is pending in them is dropped.

        Raises:
            KafkaException: one is not assigned.
        """
        self._check_open()
        for partition in partitions:
            self._reading.require(key_of(partition))
        if self._config.cooperative:
            self._inner.incremental_unassign(partitions)
        self._reading.remove([key_of(p) for p in partitions])
        if not self._config.cooperative:
            self._reading.reassign([])

    def assignment(self) -> list[KafkaPartition]:
        """What is assigned."""
        self._check_open()
        return [KafkaPartition(topic, number) for topic, number in self._reading.assigned]

    def _assigned(self, _: LogConsumer, partitions: list[KafkaPartition]) -> None:
        if self._closing:
            # A rebalance that was on its way: its positions can't be asked for any more.
            self._take_over([])
            return
        if not self._config.cooperative:
            self._positions.give_up(list(self._reading.assigned))
            self._unrestored = []
        try:
            self._positions.restore(partitions)
        except (LogtxError, KafkaException):
            # Nothing may be read without its position; the next poll tries again.
            self._unrestored += partitions
            self._take_over([])
            raise
        self._take_over(partitions)
        _LOG.info("assigned group=%s partitions=%d", self.group_id, len(partitions))
        self._call("assign", partitions)

    def _take_over(self, partitions: list[KafkaPartition]) -> None:
        places = [self._reading.assigned[key_of(p)].kafka() for p in partitions]
        if self._config.cooperative:
            self._inner.incremental_assign(places)
        else:
            self._inner.assign(places)

    def _restore_again(self) -> None:
        partitions = self._unrestored
        self._positions.restore(partitions)
        self._unrestored = []
        self._take_over(partitions)
        self._call("assign", partitions)

    def _revoked(self, _: LogConsumer, partitions: list[KafkaPartition]) -> None:
        try:
            if self._before_revocation is not None:
                self._before_revocation()
            self._call("revoke", partitions)
            self._commit_before_leaving([key_of(p) for p in partitions])
        finally:
            self._forget(partitions)
        _LOG.info("revoked group=%s partitions=%d", self.group_id, len(partitions))

    def _commit_before_leaving(self, keys: Sequence[TopicPartition]) -> None:
        try:
            if self._config.enable_auto_commit:
                self._positions.commit_moved(keys, wait=True)
        except KafkaException as error:
            # The next owner starts from what was committed before: repeats, but loses nothing.
            _LOG.warning("commit_at_revocation_failed group=%s error=%s", self.group_id, error)

    def _lost(self, _: LogConsumer, partitions: list[KafkaPartition]) -> None:
        # Another member may own them already: nothing of ours is committed any more.
        self._forget(partitions)
        _LOG.warning("lost group=%s partitions=%d", self.group_id, len(partitions))
        self._call("lost" if self._callbacks.get("lost") else "revoke", partitions)

    def _forget(self, partitions: list[KafkaPartition]) -> None:
        gone = {key_of(p) for p in partitions}
        self._positions.give_up(gone)
        self._unrestored = [p for p in self._unrestored if key_of(p) not in gone]

    def _call(self, kind: str, partitions: list[KafkaPartition]) -> None:
        callback = self._callbacks.get(kind)
        if callback is not None:
            callback(self, [KafkaPartition(p.topic, p.partition) for p in partitions])

    # ---- positions ------------------------------------------------------------------------------

    def position(self, partitions: Iterable[KafkaPartition]) -> list[KafkaPartition]:
        """Where delivery goes on: offset o2, and (o2, o3, met) as metadata for `assign`.

        `OFFSET_INVALID` for a partition that is not assigned.
        """
        self._check_open()
        keys = [key_of(p) for p in partitions]
        return [place_of(key, self._positions.present(key)) for key in keys]

    def committed(
        self, partitions: Iterable[KafkaPartition], timeout: float = OFFSET_TIMEOUT_S
    ) -> list[KafkaPartition]:
        """What the group has committed, as `position` tells it; `OFFSET_INVALID` where nothing.

        Raises:
            OffsetsPendingError: a pending transaction holds a partition's offset
                (``offsets.storage=transactions``), and did for ``coordinator.timeout.ms``.
            KafkaException: the broker did not answer.
        """
        del timeout  # confluent-kafka's parameter; the stores have bounds of their own
        self._check_open()
        return self._positions.committed([key_of(p) for p in partitions])

    def commit(
        self,
        message: Message | None = None,
        offsets: list[KafkaPartition] | None = None,
        asynchronous: bool = True,
    ) -> list[KafkaPartition] | None:
        """Commit positions: of all that was delivered, or up to a message, or these.

        Args:
            message: one of the last `poll` or `consume`: as if it had been the last delivered.
            offsets: places to commit, with the metadata of `position` if they have any.
            asynchronous: don't wait for the answer.

        With neither, and ``enable.auto.offset.store=false``, what `store_offsets` chose.

        Returns:
            What was committed, None if asynchronous.

        Raises:
            NotSupportedError: ``offsets.storage=transactions``.
            ConsumerError: the message is of an earlier `poll` or `consume`.
            KafkaException: refused, such as after a rebalance.
        """
        self._check_open()
        return self._positions.commit(message, offsets, wait=not asynchronous)

    def store_offsets(
        self, message: Message | None = None, offsets: list[KafkaPartition] | None = None
    ) -> None:
        """Choose what is committed next, by ``enable.auto.commit``, `commit` or at revocation.

        Args:
            message: one of the last `poll` or `consume`: up to and with it.
            offsets: or places, with the metadata of `position` if they have any.

        Raises:
            ConfigError: not without ``enable.auto.offset.store=false``.
            ConsumerError: the message is of an earlier `poll` or `consume`.
            KafkaException: a partition is not assigned.
        """
        self._check_open()
        self._positions.mark(message, offsets)

    # ---- input offsets of transactions ----------------------------------------------------------

    def offset_steps(self) -> list[OffsetStep]:
        """What was delivered since the last call, for `Transaction.send_offsets`.

        One step per assigned partition that moved: from the committed place, or the one handed
        out before, to the present position. Steps build on each other even while the
        transactions that carry them are undecided. When one of those aborts, call `rewind`: what
        was handed out after it will be refused, and its input must be read again.

        Raises:
            ClaimFencedError: the group took partitions away whose input was delivered and not
                handed out yet: abort, `rewind`, redo.
            ConfigError: not with ``offsets.storage=kafka``, whose positions no transaction holds.
        """
        self._check_open()
        return self._positions.steps()

    def rewind(self, *, wait: bool = True) -> None:
        """Go back to the committed positions: deliver again what no transaction committed.

        A partition without a committed position goes back to where reading started_at. With
        ``offsets.storage=transactions`` this aborts what is pending of what was handed out: the
        transactions of later steps can't commit any more. Where another consumer took partitions
        over, nothing is delivered until the group was heard of it (a few seconds at most).

        Args:
            wait: False returns at once; the next `poll` or `consume` goes back before it delivers.

        Raises:
            ClaimFencedError: another consumer took over what `assign` named: `assign` it again to
                have it, or stop.
            RetriableError, KafkaException: the committed positions could not be learnt. Nothing is
                delivered before they are: by another call, or by `poll` and `consume`.
        """
        if wait:
            self._check_open()
            self._positions.rewind(subscribed=self._subscribed)
        else:
            self._positions.rewind_later()

    def before_revocation(self, call: Callable[[], None] | None) -> None:
        """Have something done before the group takes partitions away, such as to wait for commits.

        For `logtx.process`; the callbacks of `subscribe` are the application's.
        """
        self._before_revocation = call

    # ---- reading --------------------------------------------------------------------------------

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message or event, or None after `timeout` seconds (None: never).

        An event is a message whose `error()` is set: Kafka's own, or for a record whose TxId or
        TxCtl header does not decode, in that record's place.

        Raises:
            IntegrityError: a transaction is not what its marker states; its partition stops there.
            TornTransactionError: retention took a part of one; its partition stops there.
            SpillError: pending transactions can't be spilled; start again, nothing was lost.
        """
        found = self._deliver(1, -1 if timeout is None else timeout)
        return found[0] if found else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """As `poll`, up to so many messages; returns as soon as there is one."""
        return self._deliver(num_messages, timeout)

    def _enter(self, mode: str, until_s: float | None) -> bool:
        # Whether something may be delivered; False when that time comes first.
        self._check_open()
        if self._mode not in (None, mode):
            raise NotSupportedError(
                "transactions() and poll() or consume() don't mix on one consumer: open another"
            )
        self._mode = mode
        if self._serial is None and mode == "transactions":
            # A read_committed one sorts whole transactions from its first call on.
            self._reading.rebuild(self._serial_reader().make_buffer)
        elif self._is_serializable:
            self._serial_reader()
        if self._unrestored:
            self._restore_again()
        while (pause_s := self._positions.prepare(subscribed=self._subscribed)) > 0:
            left_s = pause_s if until_s is None else until_s - time.monotonic()
            if left_s < 0:
                return False
            self._reading.fetch(min(pause_s, left_s, POLL_SLICE_S))
        return True

    @property
    def _is_serializable(self) -> bool:
        return self._config.isolation_level is IsolationLevel.SERIALIZABLE

    def _serial_reader(self) -> SerialReader:
        # Made when it is first needed: it asks the log where the transaction group's journal is.
        if self._serial is None:
            self._serial = SerialReader(self._log, self._config, self._reading, self._counters)
        return self._serial

    def _serial_buffer(self, assigned: Assigned) -> PartitionBuffer:
        return self._serial_reader().make_buffer(assigned)

    def _deliver(self, limit: int, timeout: float) -> list[Message]:
        until = None if timeout < 0 else time.monotonic() + timeout
        if not self._enter("records", until):
            return []
        reading = self._serial or self._reading
        self._positions.auto_commit()
        # Before anything is taken: what is taken counts as delivered, and must not be lost to an
        # error.
        reading.raise_failure(again=False)
        reading.tend()
        found = reading.take(limit)
        if found:
            return found
        while True:
            reading.raise_failure(again=False)
            waiting = reading.work()
            left = POLL_SLICE_S if until is None else until - time.monotonic()
            # While a side read goes on, its slices are the pause between two polls.
            pause = 0 if waiting else max(0.0, min(left, POLL_SLICE_S))
            reading.fetch(pause)
            found = reading.take(limit)
            if found:
                return found
            if until is not None and time.monotonic() >= until:
                reading.raise_failure(again=True)
                return []

    def transactions(self, timeout: float | None = None) -> Iterator[CommittedTransaction]:
        """Whole committed transactions of ``transaction.group``, in commit-sequence order.

        Each comes when its markers in all of this consumer's partitions of it were read, and
        counts as delivered from then on: `commit` within the loop's body commits it too. Plain
        records and other groups' transactions don't come here. Without a committed position
        ``auto.offset.reset=latest`` begins with what is decided from now on.

        Args:
            timeout: end the iteration after so many seconds without a transaction; None: never.

        Raises:
            NotSupportedError: `poll` or `consume` was called on this consumer, or it reads
                uncommitted records.
            UnknownTopicError: the cluster has no journal.
            MalformedHeaderError: once for each record whose TxId or TxCtl does not decode;
                iterating again goes on behind it.
            IntegrityError, TornTransactionError: the next one can't be delivered whole.
            SpillError: as in `poll`.
        """
        if self._config.isolation_level is IsolationLevel.READ_UNCOMMITTED:
            raise NotSupportedError(
                "transactions() needs isolation.level=serializable or read_committed"
            )
        self._enter("transactions", time.monotonic())
        return self._iterate(timeout)

    def _iterate(self, timeout: float | None) -> Iterator[CommittedTransaction]:
        while True:
            until = None if timeout is None else time.monotonic() + timeout
            if not self._enter("transactions", until):
                return
            assert self._serial is not None
            self._positions.auto_commit()
            found = self._serial.next(timeout)
            if found is None:
                return
            yield found

    def pause(self, partitions: list[KafkaPartition]) -> None:
        """Deliver nothing of these for now."""
        self._check_open()
        self._inner.pause(partitions)
        for partition in partitions:
            self._reading.require(key_of(partition)).paused = True

    def resume(self, partitions: list[KafkaPartition]) -> None:
        """Deliver these again."""
        self._check_open()
        for partition in partitions:
            self._reading.require(key_of(partition)).paused = False
        free = [p for p in partitions if not self._reading.require(key_of(p)).throttled]
        if free:
            self._inner.resume(free)

    def seek(self, partition: KafkaPartition) -> None:
        """Go on from another offset: from there on, what ends there or later is delivered."""
        self._check_open()
        key = key_of(partition)
        assigned = self._reading.require(key)
        start, started_at = self._positions.start_at(partition)
        self._reading.add(key, start, assigned.stored, started_at)
        try:
            self._inner.seek(KafkaPartition(key[0], key[1], start.o1))
        except KafkaException:
            # Before the first poll, and after an error, librdkafka can't seek.
            self._reading.reassign([key])

    # ---- the rest -------------------------------------------------------------------------------

    def get_watermark_offsets(
        self, partition: KafkaPartition, timeout: float = OFFSET_TIMEOUT_S, cached: bool = False
    ) -> tuple[int, int]:
        """First offset of a partition and the one after its last."""
        self._check_open()
        return self._inner.get_watermark_offsets(partition, timeout, cached)

    def offsets_for_times(
        self, partitions: list[KafkaPartition], timeout: float = OFFSET_TIMEOUT_S
    ) -> list[KafkaPartition]:
        """Per partition, the first offset at or after a time in ms."""
        self._check_open()
        return self._inner.offsets_for_times(partitions, timeout)

    def list_topics(self, topic: str | None = None, timeout: float = OFFSET_TIMEOUT_S) -> Any:
        """Metadata of the cluster, or of one topic."""
        self._check_open()
        return self._inner.list_topics(topic, timeout)

    def memberid(self) -> str | None:
        """This consumer's id in its group."""
        self._check_open()
        return self._inner.memberid()

    def lag(self) -> list[Lag]:
        """How far each assigned partition is behind its end, in offsets, and how much is pending.

        Asks the broker for the ends.

        Raises:
            BrokerError: no answer.
        """
        self._check_open()
        return [lag(assigned, self._log) for assigned in self._reading.assigned.values()]

    def held_back(self) -> list[HeldBack]:
        """Per partition whose o1 stands still: which transaction, how old, how large, and why.

        Raises:
            SpillError: what was spilled can't be read back.
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
        """What was counted since the consumer was made."""
        if not self._closed:
            self._counters.spilled_bytes = self._reading.spilled_bytes()
        return self._counters

    def stats(self) -> dict[str, Any]:
        """The counters by name, what is pending now, and what holds o1, as `held_back` tells it.

        Plain values, fit for JSON.
        """
        pending = [p for a in self._reading.assigned.values() for p in a.buffer.pending()]
        return {
            **self.counters.as_dict(),
            "pending_transactions": len(pending),
            "pending_records": sum(p.count for p in pending),
            "pending_memory_bytes": self._reading.pending_map.memory_bytes,
            "held_back": [] if self._closed else [held.as_dict() for held in self.held_back()],
        }

    def close(self) -> None:
        """Commit (``enable.auto.commit``), leave the group and drop all state. May be repeated."""
        if self._closed:
            return
        self._closing = True
        try:
            if self._config.enable_auto_commit:
                self._positions.commit_moved(list(self._reading.assigned), wait=True)
        except KafkaException as error:
            _LOG.warning("commit_at_close_failed group=%s error=%s", self.group_id, error)
        try:
            # Gives partitions back, for which the application's callbacks are called once more.
            self._inner.close()
        finally:
            self._counters.spilled_bytes = self._reading.spilled_bytes()
            self._closed = True
            if self._serial is not None:
                self._serial.close()
            self._reading.close()
            self._positions.close()
            if self._own_log:
                self._log.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("Consumer closed")

    def __enter__(self) -> Self:
        """The consumer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def __iter__(self) -> Iterator[Message]:
        """Messages without end, as `poll` gives them: check `error()`."""
        while True:
            message = self.poll()
            if message is not None:
                yield message
