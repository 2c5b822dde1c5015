"""A producer's part of the thread that sends and serves its records.

The thread may serve other producers of the process, too. Here is what each of them has for itself:
the count of its records, what its callbacks raised, and where these are called.

*Callbacks.* The thread calls a producer's callbacks itself as long as no other producer uses it.
Else it hands them to a thread of this producer, for a callback that waits would hold up the reports
of all others, and may even wait for one of them. A report whose callback was handed over counts
only when that has returned: so a commit comes behind the callbacks of its records in both cases.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from functools import partial
from itertools import islice
from typing import Any, Final, Protocol
from weakref import WeakSet

from confluent_kafka import KafkaException

from ..journal.errors import ConfigError, LogtxError, QueueFullError, TransactionStateError
from ..journal.logs.interface import DeliveryCallback, Headers, LogProducer
from ..journal.native.interface import Count
from .core.numbers import Numbers, PlainCount
from .core.tally import BranchTally, Floors
from .futures import Callbacks
from .sender_thread import SenderThread
from .sharing import SHARED
from .succession import Make, Send

_LOG = logging.getLogger(__name__)

_NOT_TAKEN: Final = (TypeError, ValueError, OverflowError, NotImplementedError)
"""What confluent-kafka raises for arguments that it can't use: librdkafka did not take the record.
"""
_SWEPT: Final = 16
"""How many branches that have ended are looked at when another one ends, whether all their records
are reported. More take longer; with fewer, some are kept for longer."""
_REPORTED_LATE_S: Final = 10.0
"""How much later than its time-out librdkafka reports a record, at most: it looks once a second,
and waits for the request that the record is in. Too short: a plain one's failure is overlooked."""
_ROOM_SLICE_S: Final = 0.02
"""Longest single wait for room in the local queue, after which the record is tried again."""


class Counts(Protocol):
    """Counts reports: a `BranchTally`, or a `PlainCount`."""

    @property
    def reports(self) -> int:
        """Number of reports that were served."""

    @property
    def unreported(self) -> int:
        """Number of reports that are missing."""

    def postpone(self) -> None:
        """Counts the report that is served next only once `told` is called."""

    def told(self) -> None:
        """Counts a report that was postponed."""


class Sender:
    """One producer's part of a sender thread; safe from any thread."""

    def __init__(
        self,
        make: Make,
        *,
        share: Hashable,
        tick_s: float,
        delivery_timeout_s: float,
        retry_backoff_ms: int,
        queue_max: int,
        on_tick: Callable[[], bool],
        on_stopped: Callable[[Send], None],
        on_delivery: DeliveryCallback | None = None,
        username: str | None = None,
    ) -> None:
        """Joins the thread, or starts one.

        Args:
            make: makes an idempotent producer. Gets a function that takes what callbacks raise.
            share: who has an equal one may use the same thread; None: nobody else uses it.
            tick_s: interval of the calls of `on_tick` while it returns True, seconds.
            delivery_timeout_s: after which librdkafka has reported each record.
            retry_backoff_ms: ``retry.backoff.ms`` of the producers that `make` makes.
            queue_max: longest queue, in records: so many callbacks may wait, too.
            on_tick: called on the thread; returns whether transactions are open. Must not block.
            on_stopped: called on the thread with the `send` of a producer that stopped for good,
                after its last reports. Some of them may be lost.
            on_delivery: the application's callback for records that have none of their own.
            username: ``sasl.username``.

        Raises:
            ConfigError: librdkafka refuses a setting.
        """
        self.on_delivery: Final = on_delivery
        self.tick_s = tick_s
        self.retry_backoff_ms: Final = retry_backoff_ms
        self._username = username
        self._make = make
        self._delivery_timeout_s = delivery_timeout_s
        self._queue_max = queue_max
        self._on_tick = on_tick
        self._on_stopped = on_stopped
        self._raised: BaseException | None = None
        """What a callback of the application raised, until `raise_kept` raises it."""
        self._callbacks = Callbacks("logtx-delivery")
        self._handed, self._returned = Numbers(), Numbers()
        """Of callbacks that were handed over, and that have returned since."""
        self._closed = False
        self._counts: WeakSet[BranchTally] = WeakSet()
        """Of the branches whose records may lack reports."""
        self._ended: dict[BranchTally, float] = {}
        """Those of them that write nothing any more → when to forget them, monotonic clock."""
        self._guard = threading.Lock()
        """Of the counts, and of who moves to another thread."""
        self._ended_reports = 0
        """How many reports branches had that are not in there any more."""
        self.plain = self._plain_count()
        """Counts records without a transaction."""
        self._plain_before: list[tuple[PlainCount, float]] = []
        """Those that are not certain, or of a thread that was left, and until when some of their
        records may be missing, monotonic clock."""
        self._told_count = 0
        """How many reports `poll` has told of."""
        self._left: SenderThread | None = None
        """The thread before, which may still serve reports."""
        self._is_transactional = False
        """Whether it has written records of a transaction."""
        self._unseen_until_s = 0.0
        """Until when plain records may be under way whose reports nobody takes, monotonic clock."""
        self._shift = 0
        """What its reports are more than what its thread has served, once it has claimed that."""
        self._thread = SHARED.join(share, make, self)
        self.floors = Floors(self._thread.refusals)
        """Those of what is sent through `send`, or a newer one."""

    # ---- records --------------------------------------------------------------------------------

    @property
    def thread(self) -> SenderThread:
        """The thread that serves what is sent from now on."""
        thread = self._thread
        if thread.is_broken:
            self._move(thread)
        return self._thread

    @property
    def producer(self) -> LogProducer:
        """The one that new transactions write through."""
        return self.thread.producer

    @property
    def send(self) -> Send:
        """Queues a record; the hot path's way to `producer.produce`."""
        return self.thread.send

    def _move(self, broken: SenderThread) -> None:
        """Goes on with a thread of its own, and leaves the broken one."""
        with self._guard:
            if self._thread is not broken:
                return
            try:
                own = SHARED.join(None, self._make, self)
                if broken.credentials is not None:
                    own.set_sasl_credentials(*broken.credentials)
            except LogtxError:
                _LOG.exception("producer_not_replaced")
                return
            # Not the same count: each is moved by one thread.
            self._set_plain_aside()
            # The floors first: who has asked for `send` finds its floors, or newer ones.
            self.floors = Floors(own.refusals)
            self._left, self._thread = broken, own
        self._shift = self._counted_reports
        broken.leave(self, 0)

    def produce_plainly(
        self,
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        on_delivery: DeliveryCallback | None,
        timestamp: int,
        headers: Any,
    ) -> None:
        """Sends a record that belongs to no transaction: see `Producer.produce`."""
        until_s = deadline_s = time.monotonic() + self._delivery_timeout_s
        told = on_delivery or self.on_delivery
        while True:
            # Asked each time: both may be others, if the producer was replaced.
            send, plain = self.thread.send_plainly, self.plain
            receiver: Any = None
            try:
                if told is not None:
                    receiver = self.receiver(plain.delivered, told, plain)
                elif not self._may_go_unseen(until_s):
                    receiver = plain.delivered
                if receiver is not None:
                    plain.admit()
                send(topic, value, key, partition, receiver, None, timestamp, headers)
                if receiver is None and self._is_transactional and not self._thread.sees_all:
                    # A transaction has begun meanwhile, and found nothing under way.
                    self.floors.refusals.failures.note_unseen()
                return
            except BufferError:
                self._withdraw(receiver, plain)
            except KafkaException as error:
                self._withdraw(receiver, plain)
                if not self.replaced(send, error):
                    raise
                continue
            except _NOT_TAKEN:
                self._withdraw(receiver, plain)
                raise
            except BaseException:
                self._doubt()
                raise
            self.make_room(deadline_s)
            until_s = time.monotonic() + self._delivery_timeout_s

    def look_for_unseen(self) -> None:
        """Notes that it writes transactions from now on. Call it before a branch is counted.

        Plain records may be under way of which nobody takes the reports. Until they are reported,
        a failure may be one of theirs.
        """
        self._is_transactional = True
        if not self._unseen_until_s:
            return
        thread = self._thread
        is_over = not thread.queued or time.monotonic() >= self._unseen_until_s
        self.floors.refusals.failures.is_blind = not (is_over or thread.sees_all)
        if is_over:
            self._unseen_until_s = 0.0

    def _may_go_unseen(self, until_s: float) -> bool:
        """Returns whether nobody has to take the report of a plain record that is sent now.

        A report in Python costs a third of a record. It is needed if records of others are queued,
        which could not be told from this one; or if it may tell a transaction of a failure.
        """
        thread = self._thread
        if self._is_transactional and not thread.sees_all:
            return False
        if not (thread.is_claimed or self._claim()):
            return False
        self._unseen_until_s = until_s + _REPORTED_LATE_S
        # Asked again: a transaction that begins now has found no sign of this record.
        return not self._is_transactional or thread.sees_all

    @staticmethod
    def _withdraw(receiver: object, plain: PlainCount) -> None:
        if receiver is not None:
            plain.withdraw()

    def _claim(self) -> bool:
        """Keeps others off the thread, if it has nothing of them. Returns whether it never will."""
        thread = self.thread
        was_claimed = thread.is_claimed
        if not was_claimed and (not thread.is_alone or self._others_left_records(thread)):
            return False
        if not thread.claim():
            return False
        if not was_claimed:
            self._shift = self._counted_reports - thread.served
        return True

    def _others_left_records(self, thread: SenderThread) -> bool:
        """Returns whether records are queued that producers which were closed have left behind."""
        if not thread.was_shared:
            return False
        own = self._unserved
        queued = thread.queued
        # Asked twice: it may write meanwhile, and reports may be served.
        return queued > max(own, self._unserved)

    def _claim_for(self, what: str) -> None:
        if not self._claim():
            raise ConfigError(
                f"{what} other producers of this process, which share one producer of librdkafka: "
                "set producer.shared=false for this one"
            )

    def count(self, tally: BranchTally) -> None:
        """Counts what a branch writes, from now on."""
        with self._guard:
            self._counts.add(tally)

    def ended(self, tally: BranchTally) -> None:
        """Notes that a branch writes no more. Forgets it when all its records are reported."""
        now_s = time.monotonic()
        with self._guard:
            if tally in self._counts:
                self._ended[tally] = now_s + self._delivery_timeout_s
            self._sweep(now_s)

    def _sweep(self, now_s: float) -> None:
        """Forgets branches that have ended, if all their records are reported, or must be by now.

        Call it under the lock.
        """
        # Not all: many may wait for a broker that is away, and each end would look at them.
        for each, until_s in list(islice(self._ended.items(), _SWEPT)):
            del self._ended[each]
            if each.unreported and until_s > now_s:
                # Behind the others, which would be kept for as long if it was looked at first.
                self._ended[each] = until_s
            else:
                self._counts.discard(each)
                self._ended_reports += each.reports

    def _doubt(self) -> None:
        """Notes that it is not known whether a plain record was taken that is counted."""
        with self._guard:
            self._set_plain_aside()

    def _set_plain_aside(self) -> None:
        now_s = time.monotonic()
        self._plain_before = [(c, s) for c, s in self._plain_before if c.unreported or s > now_s]
        self._plain_before.append((self.plain, now_s + self._delivery_timeout_s))
        self.plain = self._plain_count()

    def _plain_count(self) -> PlainCount:
        return PlainCount(self._note_failure, self._note_placeless)

    def _note_failure(self, error: object) -> None:
        """Takes the report of a plain record that failed."""
        self.floors.refusals.failures.note(error)

    def _note_placeless(self, message: Any) -> None:
        """Takes the report of a plain record that is told to be written, and not where."""
        self.floors.refusals.note((message.topic(), message.partition()))

    def replaced(self, send: Send, error: KafkaException) -> bool:
        """Replaces the producer that refused a record, if it stopped for good.

        Args:
            send: the `send` that was called.
            error: what it raised.

        Returns:
            Whether `send` is another function now.
        """
        return self._thread.replaced(send, error) and self.send is not send

    def watch(self, send: Send, headers: Headers, tally: BranchTally) -> Count | None:
        """Lets the producer with this `send` watch a branch in C: see `SenderThread.watch`."""
        return None if self.on_delivery is not None else self.thread.watch(send, headers, tally)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replaces the SASL credentials of the producer, and of those that replace it.

        Those who share it have the same user, so a new password is for all of them.

        Raises:
            ConfigError: another user's would be those of other producers, too.
        """
        if username != self._username:
            self._claim_for("another user's credentials would be those of")
        self.thread.set_sasl_credentials(username, password)

    def purge(self, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        """Fails records that are not acknowledged.

        Raises:
            ConfigError: others' records would fail, too.
        """
        self._claim_for("a purge would fail records of")
        self.thread.purge(in_queue, in_flight, blocking)

    # ---- waits ----------------------------------------------------------------------------------

    def hurry(self, waiter: Hashable) -> None:
        """Flushes until `done`: the waiter needs the reports of records that librdkafka has."""
        self._thread.hurry(waiter, time.monotonic() + self._delivery_timeout_s)

    def done(self, waiter: Hashable) -> None:
        """Stops flushing for this waiter, which has its reports."""
        self._thread.done(waiter)

    def retry(self, attempt: Callable[[], bool]) -> None:
        """Calls `attempt` on the thread until it returns True, because the local queue was full."""
        self.thread.retry(attempt)

    def wake(self) -> None:
        """Makes the thread serve the reports that are there, and tick: transactions are open."""
        self._thread.wake()

    @property
    def queued(self) -> int:
        """Number of records whose reports were not served yet, and of callbacks not returned."""
        thread, left = self._thread, self._left
        # Where nobody else has any, also records that are not counted.
        here = thread.queued + self._postponed
        if left is None and (thread.is_claimed or not thread.was_shared):
            return here
        # Of a call that was broken off nobody knows whether it has counted too many.
        counted = self._unreported
        return min(here, counted) if left is None else here + min(left.queued, counted)

    @property
    def _unreported(self) -> int:
        return sum(each.unreported for each in self._all_counts())

    @property
    def _unserved(self) -> int:
        """Number of its records in librdkafka's queue, those left out that are not counted."""
        return self._unreported - self._postponed

    @property
    def _reports(self) -> int:
        """Number of its records whose reports were served so far."""
        thread = self._thread
        return thread.served + self._shift if thread.is_claimed else self._counted_reports

    @property
    def _counted_reports(self) -> int:
        counts = self._all_counts()
        return self._ended_reports + sum(each.reports for each in counts)

    def _all_counts(self) -> list[Counts]:
        now_s = time.monotonic()
        with self._guard:
            self._sweep(now_s)
            plain = [count for count, until_s in self._plain_before if until_s > now_s]
            return [*self._counts, *plain, self.plain]

    def make_room(self, deadline_s: float) -> None:
        """Waits a moment, at most, for records to be acknowledged.

        Args:
            deadline_s: monotonic clock.

        Raises:
            QueueFullError: the deadline passed and the local queue is still full; or this is
                called in a delivery callback, which can't wait for other reports.
        """
        thread, now_s = self._thread, time.monotonic()
        are_behind = self._callbacks_are_behind
        if deadline_s <= now_s or self._closed:
            why = (
                "as many delivery callbacks wait: make them quicker"
                if are_behind
                else ("the broker acknowledges nothing: check the brokers")
            )
            raise QueueFullError(f"the local queue is full, and {why}")
        if self.in_callback():
            raise QueueFullError(
                "the local queue is full, and a delivery callback can't wait for room: produce "
                "from elsewhere, or raise queue.buffering.max.messages"
            )
        # Of any producer's: they share the queue.
        before = thread.served
        until_s = min(deadline_s, now_s + _ROOM_SLICE_S)
        thread.await_served(
            lambda: thread.served != before or (are_behind and not self._callbacks_are_behind),
            until_s,
        )

    def poll(self, timeout_s: float) -> int:
        """Waits up to `timeout_s` until reports are served.

        Returns:
            How many were served since the last `poll` or `flush`.
        """
        if self.in_callback():
            return 0
        # Those of a branch that is garbage are not counted any more.
        told = min(self._told_count, self._reports)
        deadline_s = time.monotonic() + timeout_s
        self._thread.await_served(lambda: self._reports > told or self._closed, deadline_s)
        self._told_count = self._reports
        return self._told_count - told

    def flush(self, timeout_s: float) -> int:
        """Waits up to `timeout_s` until nothing is queued. Returns the number of records left."""
        if not self.in_callback():
            waiter, deadline_s = object(), time.monotonic() + timeout_s
            thread = self._thread
            try:
                thread.hurry(waiter, deadline_s)
                thread.await_served(lambda: not self.queued or self._closed, deadline_s)
            finally:
                thread.done(waiter)
            self._told_count = self._reports
        return self.queued

    # ---- callbacks ------------------------------------------------------------------------------

    def receiver(self, own: Any, on_delivery: DeliveryCallback, counts: Counts) -> Any:
        """Returns a delivery callback that calls the application's, and ours.

        Args:
            own: ours.
            on_delivery: the application's. An error that it raises stops no other report.
            counts: what `own` counts in.

        Raises:
            BufferError: there is no room for further callbacks.
        """
        if self._callbacks_are_behind:
            raise BufferError("Local: Queue full")

        def delivered(error: Any, message: Any) -> None:
            if not self._may_call():
                counts.postpone()
                own(error, message)
                self._hand_over(on_delivery, error, message, counts)
                return
            try:
                self.tell(on_delivery, error, message)
            finally:
                self._thread.has_called()
                own(error, message)

        return delivered

    def _may_call(self) -> bool:
        """Returns whether a callback may be called here, where reports are served."""
        thread = self._thread
        # Those of one that has left come while others use the thread, maybe one alone.
        if self._closed or not thread.is_current():
            return False
        # Behind those that were handed over: callbacks are called in the order of the reports.
        if thread.may_call() and not self._postponed:
            return True
        thread.has_called()
        return False

    @property
    def _postponed(self) -> int:
        # In this order: read the other way round, it may be too small, for more return meanwhile.
        returned = self._returned.drawn
        return self._handed.drawn - returned

    @property
    def _callbacks_are_behind(self) -> bool:
        """Whether so many wait that no more may come.

        On the thread that serves reports they would hold up these, and so the queue would be full.
        """
        # The first costs next to nothing, and counts those of all who share the thread.
        return self._thread.postponed >= self._queue_max <= self._postponed

    def _hand_over(
        self, on_delivery: DeliveryCallback, error: Any, message: Any, counts: Counts
    ) -> None:
        thread, left = self._thread, self._left
        if left is not None and left.is_current():
            thread = left
        self._handed.draw()
        thread.postponed += 1
        self._callbacks.call(self._tell_there, thread, on_delivery, error, message, counts)

    def _tell_there(
        self,
        thread: SenderThread,
        on_delivery: DeliveryCallback,
        error: Any,
        message: Any,
        counts: Counts,
    ) -> None:
        try:
            self.tell(on_delivery, error, message)
        finally:
            thread.post(partial(self._has_told, thread, counts))

    def _has_told(self, thread: SenderThread, counts: Counts) -> None:
        thread.postponed -= 1
        self._returned.draw()
        counts.told()

    def tell(self, on_delivery: DeliveryCallback, error: Any, message: Any) -> None:
        """Calls a callback of the application, and keeps what it raises for `raise_kept`."""
        try:
            on_delivery(error, message)
        except BaseException as raised:
            if not isinstance(raised, Exception) and not self.in_callback():
                raise  # Ctrl-C, in a call of the application.
            # Logged too: an application that never polls would not hear of it.
            _LOG.error("callback_raised", exc_info=raised)
            self.keep(raised)

    def tell_dropped(self, on_delivery: DeliveryCallback, error: Any, message: Any) -> None:
        """Calls a callback of the application for a record that librdkafka never got."""
        if not self._is_serving():
            self.tell(on_delivery, error, message)
        elif self._may_call():
            try:
                self.tell(on_delivery, error, message)
            finally:
                self._thread.has_called()
        else:
            self._callbacks.call(self.tell, on_delivery, error, message)

    def keep(self, error: BaseException) -> None:
        """Keeps what was raised for `raise_kept`."""
        self._raised = self._raised or error

    def raise_kept(self) -> None:
        """Raises what a callback of the application raised since the last call."""
        if self._raised is not None and not self.in_callback():
            error, self._raised = self._raised, None
            raise error

    def check_may_wait(self, cure: str) -> None:
        """Refuses a wait for what this thread does.

        Raises:
            TransactionStateError: the caller is a delivery callback; `cure` says what it can do.
        """
        if self.in_callback():
            raise TransactionStateError(
                "a delivery callback can't wait here: the reports that it would wait for come on "
                f"its own thread; {cure}"
            )

    def in_callback(self) -> bool:
        """Returns whether the caller is a callback, which must wait for nothing."""
        # A poll within a poll would serve later reports before earlier ones.
        return self._is_serving() or self._callbacks.is_current()

    def _is_serving(self) -> bool:
        left = self._left
        return self._thread.is_current() or (left is not None and left.is_current())

    # ---- what the thread calls ------------------------------------------------------------------

    def tick(self) -> bool:
        """Does what is due. Returns whether transactions are open."""
        return self._on_tick()

    def stopped(self, send: Send) -> None:
        """Notes that the producer with this `send` stopped, after its last reports."""
        self._on_stopped(send)
        if self._left is not None and send is self._left.send:
            self._left = None
            # Whoever waits there may wait for nothing but these.
            self._thread.post(_nothing)

    def close(self, timeout_s: float) -> None:
        """Leaves the thread. If nobody else uses it, it stops, and what is still queued fails."""
        self._closed = True
        self._thread.leave(self, timeout_s)
        # One that is opened for each request would leave many threads that wait for nothing.
        self._callbacks.close()


def _nothing() -> None:
    """Wakes whoever waits."""
