"""The librdkafka producer that a Producer's transactions share, and the thread that serves it.

A producer of librdkafka can stop for good: an idempotent one does when a broker's answer leaves it
unsure which records are written. Then another one takes its place. Each transaction writes all of
its own records through one of them, for the offsets of one alone rise in the order of `produce`.

Only this thread serves delivery reports. So tallies need no lock; and no signal handler, which runs
on the main thread, can break off in the middle of a report and lose it: its transaction would wait
for it. The thread serves when it is woken after every `SERVE_EVERY` records; when a transaction
waits for its reports (it flushes, so that a small commit does not wait for librdkafka's linger);
and now and then. The application's `poll` and `flush` wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final
from weakref import ref

from confluent_kafka import KafkaError, KafkaException

from ..journal.errors import LogtxError, QueueFullError, TransactionStateError
from ..journal.logs.interface import DeliveryCallback, Headers, LogProducer
from ..journal.native.interface import Count, Handle
from .core.tally import BranchTally, Floors

_LOG = logging.getLogger(__name__)

SERVE_EVERY: Final = 256
"""Number of records after which the thread is woken; a power of two.

Fewer cost more wake-ups, more let reports wait and fill the local queue.
"""
_FLUSH_SLICE_S: Final = 0.01
"""Length of one flush: how late the thread notices other work. Less costs more calls."""
_COUNTED_SLICE_S: Final = 0.002
"""The same while records are counted in C, whose last report breaks off no flush."""
_SETTLE_S: Final = 0.001
"""Pause after a flush that left nothing, until the waiter has called `done`; 0 would spin."""
_ROOM_SLICE_S: Final = 0.02
"""Longest single wait for room in the local queue, after which the record is tried again."""
_IDLE_S: Final = 1.0
"""Longest sleep without an open transaction: how late ``error_cb`` and ``stats_cb`` may be called.

Every request wakes the thread, so a longer sleep delays nothing else.
"""
_REPLACE_EVERY_S: Final = 10.0
"""Shortest time between two replacements of a producer that stopped.

A cause that lasts, such as a missing right to write, stops the next one within milliseconds: it is
told then. A longer time lets transactions fail for longer after two causes that passed.
"""
_CLOSE_FLUSH_S: Final = 1.0
"""Longest wait of `close` for the reports of what it gave up."""


Send = Callable[[str, Any, Any, int, Any, None, int, Any], None]
"""(topic, value, key, partition, delivery callback, None, timestamp, headers) → queued.

The None stands in the place of `on_delivery`, which in confluent-kafka's C function is a second
name of `callback`.
"""

Keep = Callable[[Exception], None]
"""Takes what a callback of the application raised."""


def positional(producer: LogProducer) -> Send:
    """Returns `producer.produce`, to be called without keywords.

    Measured per record of 100 B with header and callback: 730 ns with three keywords, 450 ns with
    none; that is a third of logtx's cost per record. The order of the arguments is not documented,
    so it is tried first, with a header that must be refused. If that fails, the function returned
    uses keywords.
    """
    call: Any = producer.produce
    try:
        # An empty topic name is refused too, so nothing is queued, whatever the order is.
        call("", None, None, -1, None, None, 0, [("probe", object())])
    except TypeError as error:
        if "header value" in str(error):
            return call  # type: ignore[no-any-return]
    except (KafkaException, ValueError):
        _LOG.warning("produce_order_unknown")

    def send(
        topic: str,
        value: Any,
        key: Any,
        partition: int,
        on_delivery: Any,
        _unused: None,
        timestamp: int,
        headers: Any,
    ) -> None:
        producer.produce(
            topic,
            value,
            key,
            partition,
            on_delivery=on_delivery,
            timestamp=timestamp,
            headers=headers,
        )

    return send


class Sender:
    """One librdkafka producer and its thread; safe from any thread."""

    def __init__(
        self,
        make: Callable[[Keep], tuple[LogProducer, Handle | None]],
        *,
        tick_s: float,
        on_tick: Callable[[], bool],
        on_stopped: Callable[[Send], None],
        on_delivery: DeliveryCallback | None = None,
    ) -> None:
        """Starts the thread.

        Args:
            make: makes an idempotent producer, which nothing else may use, and its handle if it
                counts in C. Gets a function that takes what callbacks of the application raise.
            tick_s: interval of the calls of `on_tick` while it returns True, seconds.
            on_tick: called on the thread; returns whether transactions are open. Must not block.
            on_stopped: called on the thread with the `send` of a producer that stopped for good,
                after its last reports. Some of them may be lost.
            on_delivery: the application's callback for records that have none of their own.
        """
        self.on_delivery: Final = on_delivery
        self._make = make
        self._raised: Exception | None = None
        """What a callback of the application raised, until `raise_kept` raises it."""
        self.producer, self._handle = make(self._keep)
        """The one that new transactions write through."""
        self.send = positional(self.producer)
        """Queues a record; the hot path's way to `producer.produce`."""
        self._stopped: list[tuple[LogProducer, Send, Handle | None]] = []
        """Former producers, whose last reports are still to be served."""
        self._next_replacement_s = 0.0
        self._credentials: tuple[str, str] | None = None
        self.floors: Final = Floors()
        """What its producers' reports have said."""
        self._on_stopped = on_stopped
        self._tick_s = tick_s
        self._on_tick = on_tick
        self._served = threading.Condition()
        """Notified whenever reports were served."""
        self._served_count = 0
        self._told_count = 0
        """How many of these `poll` has told of."""
        self._pollers = 0
        """How many calls of the application wait for reports."""
        self._guard = threading.Lock()
        self._hurried: set[Hashable] = set()
        self._stalled: list[Callable[[], bool]] = []
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="logtx-sender", daemon=True)
        self._thread.start()

    def hurry(self, waiter: Hashable) -> None:
        """Flushes until `done`: the waiter needs the reports of records that librdkafka has."""
        with self._guard:
            self._hurried.add(waiter)
        self._wake.set()

    def done(self, waiter: Hashable) -> None:
        """Stops flushing for this waiter, which has its reports."""
        with self._guard:
            self._hurried.discard(waiter)

    def retry(self, attempt: Callable[[], bool]) -> None:
        """Calls `attempt` on the thread until it returns True, because the local queue was full."""
        with self._guard:
            self._stalled.append(attempt)
        self._wake.set()

    def wake(self) -> None:
        """Makes the thread serve the reports that are there, and tick: transactions are open."""
        self._wake.set()

    def replaced(self, send: Send, error: KafkaException) -> bool:
        """Replaces the producer that refused a record, if it stopped for good.

        Args:
            send: the `send` that was called.
            error: what it raised.

        Returns:
            Whether `send` is another function now.
        """
        if error.args[0].code() != KafkaError._FATAL and not error.args[0].fatal():
            return False
        with self._guard:
            # Other threads get the same refusal, and one of them is enough.
            now_s = time.monotonic()
            if send is self.send and not self._closed and now_s >= self._next_replacement_s:
                try:
                    another, handle = self._make(self._keep)
                except LogtxError:
                    _LOG.exception("producer_not_replaced")
                    return False
                _LOG.error("producer_replaced error=%s", error)
                self._next_replacement_s = now_s + _REPLACE_EVERY_S
                if self._credentials is not None:
                    another.set_sasl_credentials(*self._credentials)
                self._stopped.append((self.producer, send, self._handle))
                self._handle, another_send = handle, positional(another)
                self.producer, self.send = another, another_send
        self._wake.set()
        return send is not self.send

    def watch(self, send: Send, headers: Headers, tally: BranchTally) -> Count | None:
        """Lets the producer with this `send` watch a branch's reports in C; it may count some, too.

        Args:
            send: the branch's, through which it has sent nothing yet.
            headers: the branch's, in front of which no others come.
            tally: the branch's.

        Returns:
            What watches it; None: the producer does not count.
        """
        # Another thread may be replacing the producer: a `send` must not meet another's handle.
        with self._guard:
            made = ((self.producer, self.send, self._handle), *self._stopped)
        handle = next((handle for _, its_send, handle in made if its_send is send), None)
        if handle is None or self.on_delivery is not None:
            return None
        txid, control = (*(value for _, value in headers), b"")[:2]
        assert txid is not None
        try:
            count = handle.count(txid, control or b"", tally.topics, ref(tally))
        except RuntimeError:
            return None  # The producer is closed.
        tally.watch_by(count)
        return count

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replaces the SASL credentials of this producer, and of those that replace it."""
        with self._guard:
            self._credentials = username, password
            self.producer.set_sasl_credentials(username, password)

    @property
    def queued(self) -> int:
        """Number of records whose reports were not served yet."""
        return len(self.producer) + sum(len(stopped) for stopped, *_ in self._stopped)

    def make_room(self, deadline_s: float) -> None:
        """Waits a moment, at most, for records to be acknowledged.

        Args:
            deadline_s: monotonic clock.

        Raises:
            QueueFullError: the deadline passed and the local queue is still full; or this is
                called in a delivery callback, which can't wait for other reports.
        """
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or self._closed:
            raise QueueFullError(
                "the local queue is full and the broker acknowledges nothing: check the brokers"
            )
        if self.in_callback():
            raise QueueFullError(
                "the local queue is full, and a delivery callback can't wait for room: produce "
                "from elsewhere, or raise queue.buffering.max.messages"
            )
        self._await_served(min(_ROOM_SLICE_S, left_s))

    def poll(self, timeout_s: float) -> int:
        """Waits up to `timeout_s` until reports are served.

        Returns:
            How many were served since the last `poll` or `flush`.
        """
        if self.in_callback():
            return 0
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._served:
                served = self._served_count - self._told_count
                self._told_count = self._served_count
            left_s = deadline_s - time.monotonic()
            if served or left_s <= 0 or self._closed:
                return served
            self._await_served(min(left_s, _IDLE_S))

    def flush(self, timeout_s: float) -> int:
        """Waits up to `timeout_s` until nothing is queued. Returns the number of records left."""
        deadline_s = time.monotonic() + timeout_s
        waiter = object()
        try:
            self.hurry(waiter)
            while self.queued and not self._closed and not self.in_callback():
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    break
                self._await_served(min(left_s, _IDLE_S))
        finally:
            self.done(waiter)
        with self._served:
            self._told_count = self._served_count
        return self.queued

    def _await_served(self, timeout_s: float) -> None:
        with self._served:
            before = self._served_count
            self._pollers += 1
            self._wake.set()
            try:
                self._served.wait_for(
                    lambda: self._served_count != before or self._closed, timeout_s
                )
            finally:
                self._pollers -= 1

    def tell(self, on_delivery: DeliveryCallback, error: Any, message: Any) -> None:
        """Calls a callback of the application, and keeps what it raises for `raise_kept`."""
        try:
            on_delivery(error, message)
        except Exception as raised:  # noqa: BLE001 - the application's, whatever it is
            self._keep(raised)

    def _keep(self, error: Exception) -> None:
        # Logged too: an application that never polls would not hear of it.
        _LOG.error("callback_raised", exc_info=error)
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
        return threading.current_thread() is self._thread

    def close(self, timeout_s: float) -> None:
        """Stops the thread; what is still queued then fails."""
        self._closed = True
        self._wake.set()
        self._thread.join(max(timeout_s, 1.0))
        if self._thread.is_alive():
            _LOG.warning("sender_not_stopped: a callback of the application does not return")
            return
        stopped = ((producer, handle) for producer, _, handle in self._stopped)
        for producer, handle in (*stopped, (self.producer, self._handle)):
            if self._give_up(producer, handle, _CLOSE_FLUSH_S):
                if handle is not None:
                    handle.detach()
                producer.close()

    def _run(self) -> None:
        open_transactions, next_tick_s = False, 0.0
        while not self._closed:
            if not self._hurried and not self._stalled and not self._pollers:
                self._wake.wait(self._tick_s if open_transactions else _IDLE_S)
            # Cleared before it looks for work: what comes after that is seen in the next round.
            self._wake.clear()
            try:
                self._attempt_stalled()
                if self._stopped:
                    self._serve_stopped()
                if self._hurried or self._stalled:
                    self._flush_slice()
                else:
                    slice_s = _FLUSH_SLICE_S if self._pollers else 0
                    self._serve(self.producer, self._handle, slice_s)
                if time.monotonic() >= next_tick_s:
                    open_transactions = self._on_tick()
                    next_tick_s = time.monotonic() + self._tick_s
            except Exception:  # noqa: BLE001 - every open transaction depends on this thread
                _LOG.exception("sender_round_failed")
                self._wake.wait(self._tick_s)

    def _serve_stopped(self) -> None:
        with self._guard:
            stopped = list(self._stopped)
        for producer, send, handle in stopped:
            if self._give_up(producer, handle, _FLUSH_SLICE_S):
                with self._guard:
                    self._stopped.remove((producer, send, handle))
                # It is left to the garbage collector: once closed, it would refuse records with
                # another error.
                self._on_stopped(send)
            else:
                self._wake.set()

    def _give_up(self, producer: LogProducer, handle: Handle | None, timeout_s: float) -> bool:
        """Fails what a producer still has. Returns whether all is told."""
        # Without the purge, librdkafka would go on sending until its handle is garbage-collected.
        producer.purge()
        self._serve(producer, handle, timeout_s, flush=True)
        return not len(producer)

    def _flush_slice(self) -> None:
        handle = self._handle
        slice_s = _COUNTED_SLICE_S if handle is not None and handle.busy else _FLUSH_SLICE_S
        self._serve(self.producer, handle, slice_s, flush=True)
        if not len(self.producer) and self._hurried:
            # Everything is reported, and the waiter is about to say so: this avoids spinning
            # meanwhile.
            self._wake.wait(_SETTLE_S)

    def _serve(
        self,
        producer: LogProducer,
        handle: Handle | None,
        timeout_s: float,
        *,
        flush: bool = False,
    ) -> None:
        """Calls librdkafka's poll or flush, and takes what was counted in C."""
        try:
            if flush:
                before = len(producer)
                left = producer.flush(timeout_s)
                # More may have been queued meanwhile.
                served = before - left if left else max(before, 1)
            else:
                served = producer.poll(timeout_s)
        except KafkaException as error:
            # confluent-kafka raises what is fatal. A report that it passes to us at the same time
            # may break: see `on_stopped`.
            served = 1
            if not self._told_fatal(producer, error):
                self._keep(error)
        except Exception as error:  # noqa: BLE001 - of a callback that `make` did not wrap
            served = 1
            self._keep(error)
        if handle is not None:
            self._take(handle.changed())
        if served > 0:
            with self._served:
                self._served_count += served
                self._served.notify_all()

    def _take(self, changed: Iterable[Count]) -> None:
        """Tells tallies what has changed in the counts that watch them."""
        for count in changed:
            tally: BranchTally | None = count.owner()
            if tally is None:
                continue
            try:
                tally.counted(KafkaError)
            except Exception as error:  # noqa: BLE001 - the others' transactions wait for theirs
                self._keep(error)

    def _told_fatal(self, producer: LogProducer, error: KafkaException) -> bool:
        """Returns whether the error only says that a producer stopped that is replaced by now."""
        if producer is self.producer:
            return self.replaced(self.send, error)
        fatal: bool = error.args[0].fatal()
        return fatal

    def _attempt_stalled(self) -> None:
        with self._guard:
            attempts, self._stalled = self._stalled, []
        for attempt in attempts:
            if not attempt():
                with self._guard:
                    self._stalled.append(attempt)
