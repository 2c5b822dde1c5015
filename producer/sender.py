"""The librdkafka producer that a Producer's transactions share, and the thread that serves it.

One thread at a time serves delivery reports (`_serving`), so that tallies need no lock. The thread
that produces serves every `SERVE_EVERY` records, which costs a bulk load no thread switches. The
sender's own thread serves when a transaction waits for its reports (it flushes, so that a small
commit does not wait for librdkafka's linger), and now and then while a transaction is open.

Locks: `_serving` is taken first, a transaction's lock inside of it, never the other way round.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Final

from confluent_kafka import KafkaException

from ..journal.errors import RequestTimedOutError
from ..journal.logs.interface import LogProducer

_LOG = logging.getLogger(__name__)

SERVE_EVERY: Final = 256
"""Number of records between two polls by the producing thread; a power of two.

Fewer cost more calls per record, more let reports wait and fill the local queue.
"""
_FLUSH_SLICE_S: Final = 0.01
"""Longest time that a thread keeps `_serving`, so that others that wait for it get their turn.

Less costs more calls while reports are awaited.
"""
_SETTLE_S: Final = 0.001
"""Pause after a flush that left nothing, until the waiter has called `done`; 0 would spin."""
_ROOM_SLICE_S: Final = 0.02
"""Longest single wait for room in the local queue, after which the record is tried again."""
_IDLE_S: Final = 1.0
"""Longest sleep without an open transaction, and longest wait for `_serving`.

Every request wakes the thread, so a longer sleep delays nothing.
"""


Send = Callable[[str, Any, Any, int, Any, None, int, Any], None]
"""(topic, value, key, partition, delivery callback, None, timestamp, headers) → queued.

The None stands in the place of `on_delivery`, which in confluent-kafka's C function is a second
name of `callback`.
"""


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
        self, producer: LogProducer, *, tick_s: float, on_tick: Callable[[], bool]
    ) -> None:
        """Starts the thread.

        Args:
            producer: idempotent; nothing else may use it.
            tick_s: interval of the calls of `on_tick` while it returns True, seconds.
            on_tick: called on the thread; returns whether transactions are open. Must not block.
        """
        self.producer: Final = producer
        self.send: Final = positional(producer)
        """Queues a record; the hot path's way to `producer.produce`."""
        self.floors: Final[dict[tuple[str, int], int]] = {}
        """Highest offsets reported so far: see `tally.Floors`."""
        self._tick_s = tick_s
        self._on_tick = on_tick
        self._serving = threading.Lock()
        self._server: int | None = None
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
        """Makes the thread tick: transactions are open."""
        self._wake.set()

    def serve(self) -> None:
        """Serves the delivery reports that are there, unless another thread is doing so."""
        if self._serving.acquire(blocking=False):
            self._served(self.producer.poll, 0)

    def make_room(self, deadline_s: float) -> None:
        """Waits a moment, at most, for records to be acknowledged.

        Args:
            deadline_s: monotonic clock.

        Raises:
            RequestTimedOutError: the deadline passed and the local queue is still full; or this is
                called in a delivery callback, which can't wait for other reports.
        """
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or self._closed:
            raise RequestTimedOutError(
                "the local queue is full and the broker acknowledges nothing: check the brokers"
            )
        if self.in_callback():
            raise RequestTimedOutError(
                "the local queue is full, and a delivery callback can't wait for room: produce "
                "from elsewhere, or raise queue.buffering.max.messages"
            )
        self.poll(min(_ROOM_SLICE_S, left_s))

    def poll(self, timeout_s: float) -> int:
        """Serves delivery reports for up to `timeout_s`. Returns how many were served here.

        Works in slices: a long poll must not keep the thread from its work, nor make commits wait
        for librdkafka's linger.
        """
        deadline_s = time.monotonic() + timeout_s
        while not self.in_callback():
            slice_s = max(min(deadline_s - time.monotonic(), _FLUSH_SLICE_S), 0)
            if self._serving.acquire(timeout=slice_s):
                queued = len(self.producer) if self._hurried else 0
                serve = self.producer.flush if queued else self.producer.poll
                result = self._served(serve, slice_s)
                served = queued - result if queued else result
                if served > 0:
                    return served
            if time.monotonic() >= deadline_s or self._closed:
                break
        return 0

    def flush(self, timeout_s: float) -> int:
        """Waits up to `timeout_s` until nothing is queued. Returns the number of records left."""
        deadline_s = time.monotonic() + timeout_s
        while len(self.producer) and not self._closed and not self.in_callback():
            left_s = min(_FLUSH_SLICE_S * 10, deadline_s - time.monotonic())
            if left_s <= 0:
                break
            if self._serving.acquire(timeout=left_s):
                self._served(self.producer.flush, left_s)
        return len(self.producer)

    def in_callback(self) -> bool:
        """Returns whether the caller is a delivery callback, which must wait for nothing."""
        # A poll within a poll would serve later reports before earlier ones.
        return self._server == threading.get_ident()

    def _served(self, serve: Callable[[float], int], timeout_s: float) -> int:
        """Calls librdkafka's poll or flush with `_serving` held, and releases it."""
        self._server = threading.get_ident()
        try:
            return serve(timeout_s)
        finally:
            self._server = None
            self._serving.release()

    def close(self, timeout_s: float) -> None:
        """Stops the thread; what is still queued then fails."""
        self._closed = True
        self._wake.set()
        self._thread.join(max(timeout_s, 1.0))
        if self._serving.acquire(timeout=_FLUSH_SLICE_S * 100):
            # Without the purge, librdkafka would go on sending until its handle is
            # garbage-collected.
            self.producer.purge()
            self._served(self.producer.flush, 1.0)
            if not len(self.producer):
                self.producer.close()

    def _run(self) -> None:
        open_transactions, next_tick_s = False, 0.0
        while not self._closed:
            if not self._hurried and not self._stalled:
                self._wake.wait(self._tick_s if open_transactions else _IDLE_S)
            # Cleared before it looks for work: what comes after that is seen in the next round.
            self._wake.clear()
            try:
                self._attempt_stalled()
                if self._hurried or self._stalled:
                    self._flush_slice()
                if time.monotonic() >= next_tick_s:
                    if open_transactions:
                        self.serve()
                    open_transactions = self._on_tick()
                    next_tick_s = time.monotonic() + self._tick_s
            except Exception:  # noqa: BLE001 - every open transaction depends on this thread
                _LOG.exception("sender_round_failed")
                self._wake.wait(self._tick_s)

    def _flush_slice(self) -> None:
        if not self._serving.acquire(timeout=_IDLE_S):
            return  # The thread that serves now does it.
        left = self._served(self.producer.flush, _FLUSH_SLICE_S)
        if not left and self._hurried:
            # Everything is reported, and the waiter is about to say so: this avoids spinning
            # meanwhile.
            self._wake.wait(_SETTLE_S)

    def _attempt_stalled(self) -> None:
        with self._guard:
            attempts, self._stalled = self._stalled, []
        for attempt in attempts:
            if not attempt():
                with self._guard:
                    self._stalled.append(attempt)
