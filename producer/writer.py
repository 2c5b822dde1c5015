"""The hot path: passes one branch's records to librdkafka.

The cost of a record here decides the throughput of a producer. A record without headers and
callback of its own goes through `produce` alone, which makes no object: the list of headers is made
once per transaction, the delivery callback once per topic. `_produce_slowly` does everything else.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import length_hint
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, Message

from ..journal.control import TXCTL_HEADER, TXID_HEADER
from ..journal.errors import BrokerError, ConfigError, LogtxError
from ..journal.logs.interface import DeliveryCallback, Headers
from ..journal.native.interface import Count
from ..journal.sidecar import check_named_by_user
from .core.bookkeeping import abort_only
from .core.growing import Growing, size_of
from .core.tally import BranchTally
from .sender import Sender
from .sender_thread import SERVE_EVERY
from .sidecars import SidecarNames
from .succession import Send

_MASK: Final = SERVE_EVERY - 1
"""Bits that are all set in every `SERVE_EVERY`th number."""

_FEW: Final = 63
"""Bits of the number of the first record after which further ones may be counted in C.

A transaction of fewer would pay more for its count than it saves.
"""

_NOT_TAKEN: Final = (LogtxError, TypeError, ValueError, OverflowError, NotImplementedError)
"""What is raised before librdkafka takes a record: our errors, and confluent-kafka's for arguments
that it can't use. `LogtxError` is a KafkaException too, so these are caught before that."""

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
        sender.look_for_unseen()
        # Comes before the floors: where the producer is replaced in between, these are the new
        # one's, and so will `send` be once it is told.
        self._send = sender.send
        self._tally = BranchTally(
            branch,
            sender.floors,
            on_settled=self._on_settled,
            on_failure=self._on_failure,
            on_partition=on_partition,
        )
        sender.count(self._tally)
        self._admit = self._tally.admit
        self._own_receivers = self._tally.receivers()
        self._receivers: Mapping[str, Any] = self._own_receivers
        if sender.on_delivery is not None:
            self._receivers = _Told(self._own_receivers, self._tally, sender)
        self._headers: Headers = []
        self._sidecars: SidecarNames | None = None
        """Names the topics that records go to; None: those that the application names."""
        self._growing: Growing | None = None
        """Says which records their topics still take; None: none, if there are `_sidecars`."""
        # Whether records may go straight to librdkafka. Set to False before anything closes the
        # tally.
        self._direct = False
        self._watch: Count | None = None
        """Judges the reports' offsets, and may take records; None: the tally alone does."""
        self._count: Count | None = None
        """The same, once it takes records that need nothing of their own; None: none, for now."""

    def use_sidecars(self, names: SidecarNames, min_bytes: int = 0) -> None:
        """Sends records to the sidecars of the topics that the application names.

        Call it before the first record.

        Args:
            names: names the sidecars.
            min_bytes: how much goes to each topic itself before; 0: nothing.
        """
        self._sidecars = names.fresh()
        self._growing = Growing(min_bytes) if min_bytes else None
        self._tally.writes_to_sidecars = True

    def use_sidecars_as(self, other: Writer) -> None:
        """Does as another writer does, and counts for itself. Call it before the first record."""
        if other._sidecars is not None:
            min_bytes = 0 if other._growing is None else other._growing.min_bytes
            self.use_sidecars(other._sidecars, min_bytes)

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
        if self._sidecars is not None and (
            self._growing is None or self._is_beyond(self._growing, topic, value, key)
        ):
            topic = self._sidecars[topic]
        try:
            count = self._count
            if count is not None and self._direct and headers is None and on_delivery is None:
                taken = count.produce(topic, value, key, partition, timestamp)
                if taken:
                    if taken & _MASK == 0:
                        self._sender.wake()
                    return
            # Admits the record first, then looks whether records are taken: a commit that comes
            # between the two waits for this record, and one that came before is noticed below.
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
                except _NOT_TAKEN:
                    self._withdraw(number)
                    raise
                except KafkaException as error:
                    raise self._refused(number, topic, error) from error
                else:
                    if number & _FEW == _FEW:
                        self._sent_more(number)
                    return
            self._produce_slowly(
                number, topic, value, key, partition, on_delivery, timestamp, headers
            )
        except _NOT_TAKEN:
            raise
        except BaseException as error:
            self._interrupted(error)
            raise

    def produce_columns(
        self,
        topic: str,
        values: Sequence[Content],
        keys: Sequence[Content],
        partitions: Sequence[int],
        timestamps: Sequence[int],
    ) -> None:
        """Sends records of one topic, without headers: as `produce` does, in less time.

        Args:
            topic: where they go.
            values: one of each record, as the other columns.
            keys: as of `produce`.
            partitions: as of `produce`.
            timestamps: as of `produce`.

        Raises:
            LogtxError, TypeError: as `produce` for the first record that is not taken. Those before
                it are sent.
        """
        try:
            for start in range(0, len(values), SERVE_EVERY):
                columns = (values, keys, partitions, timestamps)
                run = [column[start : start + SERVE_EVERY] for column in columns]
                for target, part in self._parts(topic, run):
                    rest = self._not_counted(target, part)
                    self._produce_run(target, self._tally.admit_many(len(rest[0])), rest)
                self._sent_more(_MASK)
        except _NOT_TAKEN:
            raise
        except BaseException as error:
            self._interrupted(error)
            raise

    def _sent_more(self, number: int) -> None:
        """Does what is due once in a while, here behind the record that has this number."""
        if number & _MASK == _MASK:
            self._sender.wake()
        if self._count is None and self._watch is not None:
            with self._lock:
                # Under the lock, which closes the tally.
                if self._count is None and self._direct:
                    self._tally.count_by_watcher()
                    self._count = self._watch

    def _begin_to_watch(self) -> None:
        """Lets C judge the reports, if it can; the headers are known, and no record is sent yet."""
        self._watch = self._sender.watch(self._send, self._headers, self._tally)

    def _not_counted(self, topic: str, columns: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
        """Sends what may be counted in C. Returns the records from the first one that may not."""
        size = len(columns[0])
        if self._count is None or not self._direct or not size:
            return columns
        values, *others = map(iter, columns)
        # All in C, as in `_send_all`.
        left = 0
        if 0 in map(self._count.produce, repeat(topic), values, *others):
            left = length_hint(values) + 1
        return [column[size - left :] for column in columns]

    def _parts(
        self, topic: str, run: Sequence[Sequence[Any]]
    ) -> Iterator[tuple[str, Sequence[Sequence[Any]]]]:
        """Yields what goes to the topic, and what goes to its sidecar, each with the name of it."""
        check_named_by_user(topic)
        values, keys, *_ = run
        here = len(values)
        if self._sidecars is not None:
            growing = self._growing
            here = 0 if growing is None else self._take(growing, topic, map(size_of, values, keys))
        if here:
            yield topic, [column[:here] for column in run]
        if here < len(values):
            assert self._sidecars is not None
            yield self._sidecars[topic], [column[here:] for column in run]

    def _is_beyond(self, growing: Growing, topic: str, value: Content, key: Content) -> bool:
        """Counts a record. Returns whether it goes to the sidecar."""
        if growing.is_grown(topic):
            return True
        check_named_by_user(topic)
        return not self._take(growing, topic, (size_of(value, key),))

    def _take(self, growing: Growing, topic: str, sizes: Iterable[int]) -> int:
        with self._lock:
            return growing.take(topic, sizes)

    def _produce_run(
        self, topic: str, numbers: list[int], columns: Sequence[Sequence[Any]]
    ) -> None:
        size, at = len(numbers), 0
        receiver = self._receivers[topic]
        while at < size:
            values, *others = (iter(column[at:]) for column in columns)
            try:
                if self._direct:
                    self._send_all(topic, receiver, values, *others)
                    return
            except BufferError:
                at = size - length_hint(values) - 1  # as in `produce`
            except _NOT_TAKEN:
                self._withdraw_all(numbers[size - length_hint(values) - 1 :])
                raise
            except KafkaException as error:
                at = size - length_hint(values) - 1
                self._withdraw_all(numbers[at + 1 :])
                raise self._refused(numbers[at], topic, error) from error
            value, key, partition, timestamp = (column[at] for column in columns)
            try:
                self._produce_slowly(
                    numbers[at], topic, value, key, partition, None, timestamp, None
                )
            except _NOT_TAKEN:
                self._withdraw_all(numbers[at + 1 :])
                raise
            at += 1

    def _send_all(
        self,
        topic: str,
        receiver: Any,
        values: Iterator[Any],
        keys: Iterator[Any],
        partitions: Iterator[int],
        timestamps: Iterator[int],
    ) -> None:
        # All in C: a loop in Python would take as long as librdkafka itself.
        calls = map(
            self._send,
            repeat(topic),
            values,
            keys,
            partitions,
            repeat(receiver),
            repeat(None),
            timestamps,
            repeat(self._headers),
        )
        deque(calls, 0)

    def _withdraw_all(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._withdraw(number)

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
            if self._sidecars is None:
                check_named_by_user(topic)  # A record that is kept would be refused later.
            pairs = check_headers(headers)
            record = Record(number, topic, value, key, partition, timestamp, pairs, on_delivery)
            self._route(record)
        except _NOT_TAKEN:
            self._withdraw(number)
            raise
        except KafkaException as error:
            raise self._refused(number, topic, error) from error

    def stopped(self, send: Send) -> None:
        """Notes that the librdkafka producer with this `send` stopped for good.

        It takes no more records, and some of its last reports may be lost.
        """
        if send is not self._send:
            return
        with self._lock:
            is_unused = self._tally.is_unused
            if is_unused:
                self._send = self._sender.send
                # Another thread's, if the former one is broken.
                self._tally.begin_above(self._sender.floors)
                self._tally.watch_by(None)
                if self._headers:
                    self._begin_to_watch()
        if not is_unused:
            self._give_up_after(BrokerError("librdkafka's producer stopped for good"))

    def _interrupted(self, error: BaseException) -> None:
        """Makes the transaction abort-only: an exception came in the middle of `produce`.

        A signal handler's, such as KeyboardInterrupt, may come after librdkafka took the record,
        or before it was admitted. So it is not known which records the transaction has.
        """
        self._give_up_after(BrokerError(f"produce was interrupted by {error!r}"))

    def _give_up_after(self, cause: LogtxError) -> None:
        if not self._tally.settled:
            self._on_failure(cause)
        with self._lock:
            self._tally.give_up()
        self._on_settled()

    def _refused(self, number: int, topic: str, error: KafkaException) -> LogtxError:
        """Handles a record that librdkafka did not take. Returns the error to raise.

        The application may swallow that error; the transaction must not commit without the record.
        If librdkafka's producer stopped for good, transactions that begin from now on have another.
        """
        self._sender.replaced(self._send, error)
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
        if record.on_delivery is None:
            receiver: Any = self._receivers[record.topic]
        else:
            own = self._own_receivers[record.topic]
            receiver = self._sender.receiver(own, record.on_delivery, self._tally)
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

    def _on_dropped(self, records: Sequence[Record], why: KafkaError | None = None) -> None:
        """Tells the application of records that were taken and will not be sent.

        Args:
            records: which.
            why: what they were refused with; None: their transaction ended.
        """
        error = why or KafkaError(
            KafkaError._PURGE_QUEUE, "the transaction ended before it was sent"
        )
        for record in records:
            on_delivery = record.on_delivery or self._sender.on_delivery
            if on_delivery is None:
                continue
            headers: Any = list(record.headers) or None
            key, value = _as_bytes(record.key), _as_bytes(record.value)
            message = Message(
                topic=record.topic,
                partition=record.partition,
                key=key,
                value=value,
                headers=headers,
                error=error,
            )
            self._sender.tell_dropped(on_delivery, error, message)

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
        TypeError: they are no pairs of a name and bytes, str or None.
        ConfigError: one has the name of one of logtx's own.
    """
    if not headers:
        return ()
    pairs = tuple(headers.items() if isinstance(headers, Mapping) else headers)
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"headers must be (name, value) pairs, not {pair!r}")
        name, value = pair
        if not isinstance(name, str) or not isinstance(value, bytes | str | None):
            # A record that is kept for its TxId would be refused only once it is sent.
            raise TypeError(f"a header must have a str and bytes, str or None, not {pair!r}")
        if name in (TXID_HEADER, TXCTL_HEADER):
            raise ConfigError(f"a header can't be named {name}: logtx uses it; choose another name")
    return pairs


class _Told(dict[str, Any]):
    """Topic → delivery callback that calls the application's too."""

    def __init__(self, receivers: Mapping[str, Any], tally: BranchTally, sender: Sender) -> None:
        self._receivers = receivers
        self._tally = tally
        self._sender = sender

    def __missing__(self, topic: str) -> Any:
        assert self._sender.on_delivery is not None
        own, on_delivery = self._receivers[topic], self._sender.on_delivery
        return self.setdefault(topic, self._sender.receiver(own, on_delivery, self._tally))


def _as_bytes(content: Content) -> bytes | None:
    return content.encode() if isinstance(content, str) else content
