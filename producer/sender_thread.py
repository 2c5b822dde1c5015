"""A librdkafka producer, and the thread that serves it; producers with the same settings share it.

Which producer that is may change: see `succession`.

Only this thread serves delivery reports. So tallies need no lock; and no signal handler, which runs
on the main thread, can break off in the middle of a report and lose it: its transaction would wait
for it. The thread serves when it is woken after every `SERVE_EVERY` records; when a transaction
waits for its reports (it flushes, so that a small commit does not wait for librdkafka's linger);
and now and then. The application's `poll` and `flush` wait for it.

What an application's thread calls here holds no lock over anything but calls of C, changes no count
that a later line would change back, and waits for no `Condition`: Ctrl-C may end it at any line,
and the other producers go on. Those locks are taken only by who joins, leaves, or replaces.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextlib import suppress
from typing import Final, Protocol
from weakref import WeakSet, ref

from confluent_kafka import KafkaError, KafkaException

from ..journal.errors import LogtxError
from ..journal.logs.interface import Headers, LogProducer
from ..journal.native.interface import Count
from .core.tally import BranchTally, Failures, Refusals
from .succession import Made, Make, Retired, Send, Succession

_LOG = logging.getLogger(__name__)

SERVE_EVERY: Final = 256
"""Number of records after which the thread is woken; a power of two.

Fewer cost more wake-ups, more let reports wait and fill the local queue.
"""
_FLUSH_SLICE_S: Final = 0.01
"""Length of one flush: how late the thread notices other work. Less costs more calls."""
_SHORT_SLICE_S: Final = 0.002
"""The same while something may settle a transaction that breaks off no flush: the last report of
records that are counted in C, or the end of an application's callback on a thread of its own."""
_SETTLE_S: Final = 0.001
"""Pause after a flush that left nothing, until the waiter has called `done`, or callbacks have
returned; 0 would spin."""
_IDLE_S: Final = 1.0
"""Longest sleep without an open transaction: how late ``error_cb`` and ``stats_cb`` may be called.

Every request wakes the thread, so a longer sleep delays nothing else.
"""
_CLOSE_FLUSH_S: Final = 1.0
"""Longest wait of `close` for the reports of what it gave up."""


class Member(Protocol):
    """One producer of the application, or of one of its Spark tasks."""

    tick_s: float
    """How often it wants `tick` to be called while that returns True, seconds."""

    @property
    def retry_backoff_ms(self) -> int:
        """``retry.backoff.ms`` of the settings that all members have."""

    def tick(self) -> bool:
        """Does what is due. Returns whether transactions are open. Does not block."""

    def stopped(self, send: Send) -> None:
        """Notes that the producer with this `send` stopped for good; some last reports may be lost.

        Called after its last reports.
        """

    def keep(self, error: BaseException) -> None:
        """Takes what librdkafka or a callback raised, for the application to be told."""


class SenderThread:
    """One librdkafka producer and its thread; safe from any thread."""

    def __init__(
        self, make: Make, member: Member, on_unused: Callable[[], None] | None = None
    ) -> None:
        """Starts the thread.

        Args:
            make: makes the producer, and another one in its place when it stopped.
            member: the first one that uses it.
            on_unused: called once, without a lock, when nobody uses it any more. None: no other
                may use it.

        Raises:
            ConfigError: librdkafka refuses a setting.
        """
        self._on_unused = on_unused or _nothing
        self._guard = threading.Lock()
        """Held by who joins, leaves, or replaces the producer."""
        self._members: WeakSet[Member] = WeakSet((member,))
        """A member that is garbage, for Ctrl-C came before anything could close it, keeps nothing
        alive."""
        self.is_alone = True
        """Whether one member alone uses it."""
        self.was_shared = False
        """Whether there ever was another one, of which records may be left behind in the queue."""
        self.is_claimed = on_unused is None
        """Whether that member keeps others off, for good."""
        self._left: WeakSet[Member] = WeakSet()
        """Who has left it because it is broken, and may still wait for last reports."""
        self._calls_application = False
        """Whether the thread is in a callback of the application, or about to call one."""
        self.is_broken = False
        """Whether its members leave it, each for one of its own: see `replaced`."""
        failures = Failures(member.retry_backoff_ms, time.monotonic)
        self.refusals: Final = Refusals(failures)
        """Of its producers: records of all members may lie in one batch."""
        self._producers = Succession(make, self._keep, failures)
        self._tick_s = member.tick_s
        self._waiting: deque[queue.SimpleQueue[None]] = deque()
        """Of those who wait until reports were served: each gets an item."""
        self._polled_until_s = 0.0
        """Until when the application may wait for reports. No count of those who do: a signal
        handler's exception could come before one is taken back."""
        self.served = 0
        """How many reports were served so far, and other events."""
        self._hurried: dict[Hashable, float] = {}
        """Who needs reports → until when at most, monotonic clock."""
        self._stalled: deque[Callable[[], bool]] = deque()
        self._posted: deque[Callable[[], None]] = deque()
        self.postponed = 0
        """How many callbacks of the application run, or wait, on threads of their own."""
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="logtx-sender", daemon=True)
        self._thread.start()

    # ---- members --------------------------------------------------------------------------------

    def takes(self, member: Member) -> bool:
        """Lets another member use it. Returns False if it can't, and is to be forgotten."""
        with self._guard:
            if self._closed or self.is_broken or self.is_claimed:
                return False
            self.is_alone = False
            # Seen by `may_call` before that calls the application, or seen here: whoever waits in
            # a callback for another producer must not hold up that one's reports.
            taken = not self._calls_application
            if taken:
                self.was_shared = True
                self._members.add(member)
                self._tick_s = min(self._tick_s, member.tick_s)
            self.is_alone = len(self._members) == 1
        return taken

    def leave(self, member: Member, timeout_s: float) -> None:
        """Lets a member use it no more; the last one stops the thread, and what is queued fails.

        Args:
            member: which.
            timeout_s: longest wait for the thread.
        """
        with self._guard:
            self._members.discard(member)
            self.is_alone = len(self._members) == 1
            if self.is_broken:
                # The thread ends when the last reports are told.
                self._left.add(member)
                return
            unused = not self._members and not self._closed
            self._closed = self._closed or unused
        if unused:
            self._on_unused()
            self.wake()
            self._close(timeout_s)

    def claim(self) -> bool:
        """Keeps others off, from now on. Returns False if others use it already."""
        with self._guard:
            self.is_claimed = self.is_claimed or self.is_alone
            return self.is_claimed

    def may_call(self) -> bool:
        """Returns whether the thread may call the application now. Call `has_called` in any case.

        Not if others would have to wait for its callback.
        """
        self._calls_application = True
        return self.is_alone

    def has_called(self) -> None:
        """Notes that the application's callback has returned, or is not called here."""
        self._calls_application = False

    # ---- what any thread calls ------------------------------------------------------------------

    @property
    def producer(self) -> LogProducer:
        """The one that new transactions write through."""
        return self._producers.present.producer

    @property
    def send(self) -> Send:
        """Queues a record; the hot path's way to `producer.produce`."""
        return self._producers.present.send

    @property
    def send_plainly(self) -> Send:
        """Queues a record of no transaction, behind those that the caller has queued so."""
        return self._producers.send_plainly

    @property
    def is_closed(self) -> bool:
        """Whether nothing is served any more."""
        return self._closed

    @property
    def queued(self) -> int:
        """Number of records of all members whose reports were not served yet."""
        return self._producers.queued

    @property
    def credentials(self) -> tuple[str, str] | None:
        """Those that were set last; None: those its producers were made with."""
        return self._producers.credentials

    @property
    def sees_all(self) -> bool:
        """Whether it notices the report of each record, also of those without a callback."""
        return self._producers.present.handle is not None

    def is_current(self) -> bool:
        """Returns whether the caller runs on the thread."""
        return threading.current_thread() is self._thread

    def hurry(self, waiter: Hashable, until_s: float) -> None:
        """Flushes until `done`: the waiter needs the reports of records that librdkafka has.

        Args:
            waiter: who.
            until_s: when to stop at the latest, monotonic clock: a signal handler's exception may
                keep the waiter from its `done`.
        """
        self._hurried[waiter] = until_s
        self.wake()

    def done(self, waiter: Hashable) -> None:
        """Stops flushing for this waiter, which has its reports."""
        self._hurried.pop(waiter, None)

    def retry(self, attempt: Callable[[], bool]) -> None:
        """Calls `attempt` on the thread until it returns True, because there was no room."""
        self._stalled.append(attempt)
        self.wake()

    def post(self, call: Callable[[], None]) -> None:
        """Calls `call` on the thread, soon."""
        self._posted.append(call)
        self.wake()

    def wake(self) -> None:
        """Makes the thread serve the reports that are there, and tick: transactions are open."""
        if self._wake.empty():
            self._wake.put(None)

    def await_served(self, until: Callable[[], bool], deadline_s: float) -> None:
        """Waits until `until` returns True; it is asked whenever reports were served.

        Args:
            until: what is waited for.
            deadline_s: when to give up, monotonic clock.
        """
        while True:
            served: queue.SimpleQueue[None] = queue.SimpleQueue()
            # Comes first: what is served from now on is told.
            self._waiting.append(served)
            now_s = time.monotonic()
            left_s = min(deadline_s - now_s, _IDLE_S)
            if until() or left_s <= 0 or self._closed:
                with suppress(ValueError):  # It was told.
                    self._waiting.remove(served)
                return
            self._polled_until_s = max(self._polled_until_s, now_s + left_s)
            self.wake()
            with suppress(queue.Empty):
                served.get(timeout=left_s)

    def replaced(self, send: Send, error: KafkaException) -> bool:
        """Replaces the producer that refused a record, if it stopped for good.

        If that happens again too soon, the cause may be one of its members. Then no other takes its
        place: each member leaves for a thread of its own, and the cause goes with its member.

        Args:
            send: the `send` that was called.
            error: what it raised.

        Returns:
            Whether `send` is not to be called any more.
        """
        if error.args[0].code() != KafkaError._FATAL and not error.args[0].fatal():
            return False
        producers = self._producers
        with self._guard:
            if producers.retired_stops(send):
                self.wake()
            # Other threads get the same refusal, and one of them is enough.
            if send is self.send and not self._closed and not self.is_broken:
                now_s = time.monotonic()
                if producers.may_replace(now_s):
                    try:
                        producers.replace(now_s)
                    except LogtxError:
                        _LOG.exception("producer_not_replaced")
                        return False
                    _LOG.error("producer_replaced error=%s", error)
                    self.wake()
                elif not self.is_alone:
                    _LOG.error("producer_not_shared_any_more error=%s", error)
                    producers.stop()
                    self.is_broken = True
                    self.wake()
        return self.is_broken or send is not self.send

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
            handle = self._producers.handle_of(send)
        if handle is None:
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
            self._producers.set_sasl_credentials(username, password)

    def purge(self, in_queue: bool, in_flight: bool, blocking: bool) -> None:
        """Fails records that are not acknowledged: see `LogProducer.purge`."""
        with self._guard:
            producers = self._producers.in_use()
        for producer in producers:
            producer.purge(in_queue, in_flight, blocking)

    # ---- the thread -----------------------------------------------------------------------------

    def _keep(self, error: BaseException) -> None:
        """Tells all members of what concerns the producer itself."""
        # Logged too: an application that never polls would not hear of it.
        _LOG.error("callback_raised", exc_info=error)
        for member in self._present():
            member.keep(error)

    def _present(self) -> list[Member]:
        with self._guard:
            # One that Ctrl-C came to while it was made has left without a word.
            self.is_alone = len(self._members) == 1
            return list(self._members)

    def _close(self, timeout_s: float) -> None:
        """Waits for the thread, and fails what is still queued."""
        self._thread.join(max(timeout_s, 1.0))
        if self._thread.is_alive():
            _LOG.warning("sender_not_stopped: a callback of the application does not return")
            return
        self._end()

    def _end(self) -> None:
        for made in dict.fromkeys(self._producers.all_of_them()):
            if self._give_up(made, _CLOSE_FLUSH_S):
                if made.handle is not None:
                    made.handle.detach()
                made.producer.close()

    def _run(self) -> None:
        is_open, next_tick_s = False, 0.0
        while not self._closed:
            if not self._is_busy():
                is_served = is_open or self._producers.retired
                self._sleep(self._tick_s if is_served else _IDLE_S)
            try:
                self._run_posted()
                self._attempt_stalled()
                if self._producers.stopped:
                    self._serve_stopped()
                if self.refusals.failures.leaves_gaps or self._producers.retired:
                    self._retire()
                if self._hurried or self._stalled:
                    self._flush_slice()
                else:
                    self._serve(
                        self._producers.present, self._slice_s() if self._is_waited_for() else 0
                    )
                if (now_s := time.monotonic()) >= next_tick_s:
                    is_open = self._tick(now_s)
                    next_tick_s = time.monotonic() + self._tick_s
            except Exception:  # noqa: BLE001 - every open transaction depends on this thread
                _LOG.exception("sender_round_failed")
                self._sleep(self._tick_s)

    def _is_busy(self) -> bool:
        return bool(self._hurried or self._stalled or self._posted) or self._is_waited_for()

    def _is_waited_for(self) -> bool:
        return bool(self._waiting) and time.monotonic() < self._polled_until_s

    def _sleep(self, timeout_s: float) -> None:
        """Waits until `wake`. Whoever calls that has said before what it wants."""
        with suppress(queue.Empty):
            self._wake.get(timeout=timeout_s)

    def _tick(self, now_s: float) -> bool:
        # Copied in one step: a list of its items may run Python meanwhile, to collect garbage, and
        # let another thread add one.
        for waiter, until_s in self._hurried.copy().items():
            if until_s <= now_s:
                self.done(waiter)
        members = self._present()
        is_open = False
        for member in members:
            try:
                is_open = member.tick() or is_open
            except Exception:  # noqa: BLE001 - the others' transactions wait for theirs
                _LOG.exception("tick_failed")
        # Who left it waits for this thread until the callbacks have ended that it handed over, and
        # until what was kept is sent.
        if not members and not (self._producers.stopped or self.postponed or self._stalled):
            self._end_if_unused()
        return is_open

    def _end_if_unused(self) -> None:
        """Ends the thread if its members are garbage."""
        with self._guard:
            unused = not self._members and not self._closed
            self._closed = self._closed or unused
        if unused:
            self._on_unused()
            self._end()

    def _serve_stopped(self) -> None:
        with self._guard:
            stopped = list(self._producers.stopped)
        for made in stopped:
            if self._give_up(made, _FLUSH_SLICE_S):
                with self._guard:
                    self._producers.stopped.remove(made)
                    told = {*self._members, *self._left}
                # It is left to the garbage collector: once closed, it would refuse records with
                # another error.
                for member in told:
                    self._tell_stopped(member, made.send)
            else:
                self.wake()

    def _tell_stopped(self, member: Member, send: Send) -> None:
        try:
            member.stopped(send)
        except Exception:  # noqa: BLE001 - the others' transactions wait for the same
            _LOG.exception("stopped_not_told")

    def _retire(self) -> None:
        """Retires a producer that may have left gaps, and serves those that are retired."""
        producers, now_s = self._producers, time.monotonic()
        with self._guard:
            if producers.may_retire(now_s) and not (self._closed or self.is_broken):
                try:
                    producers.retire(now_s)
                except LogtxError:
                    _LOG.exception("producer_not_replaced")
            retired = list(producers.retired)
        for each in retired:
            self._serve(each, 0)
            # In this order: who has let go of it sends nothing more.
            if each.send() is None and not len(each.producer):
                with self._guard:
                    producers.drop(each)

    def _give_up(self, made: Made, timeout_s: float) -> bool:
        """Fails what a producer still has. Returns whether all is told."""
        # Without the purge, librdkafka would go on sending until its handle is garbage-collected.
        made.producer.purge()
        self._serve(made, timeout_s, flush=True)
        return not len(made.producer)

    def _slice_s(self) -> float:
        handle = self._producers.present.handle
        is_short = self.postponed or (handle is not None and handle.busy)
        return _SHORT_SLICE_S if is_short else _FLUSH_SLICE_S

    def _flush_slice(self) -> None:
        made = self._producers.present
        self._serve(made, self._slice_s(), flush=True)
        if not len(made.producer) and (self._hurried or self._stalled):
            # Everything is reported. The waiter is about to say so, or what is stalled waits for
            # callbacks: this avoids spinning meanwhile.
            self._sleep(_SETTLE_S)

    def _serve(self, made: Made | Retired, timeout_s: float, *, flush: bool = False) -> None:
        """Calls librdkafka's poll or flush, and takes what was counted in C."""
        producer, failures = made.producer, self.refusals.failures
        failures.are_of_former = made is not self._producers.present
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
            # may break: see `Member.stopped`.
            served = 1
            if not self._told_fatal(made, error):
                self._keep(error)
        except Exception as error:  # noqa: BLE001 - of a callback that `make` did not wrap
            served = 1
            self._keep(error)
        if made.handle is not None:
            self._take(made.handle.changed())
            if made.handle.leaves_gaps and not failures.are_of_former:
                failures.leaves_gaps = True
        failures.are_of_former = False
        if served > 0:
            self._tell_served(served)

    def _tell_served(self, served: int) -> None:
        self.served += served
        with suppress(IndexError):  # Who waits no more has taken its own away meanwhile.
            for _ in range(len(self._waiting)):
                self._waiting.popleft().put(None)

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

    def _told_fatal(self, made: Made | Retired, error: KafkaException) -> bool:
        """Returns whether the error only says that a producer stopped that is replaced by now."""
        send = made.send() if isinstance(made, Retired) else made.send
        if send is not None and (made is self._producers.present or isinstance(made, Retired)):
            return self.replaced(send, error)
        fatal: bool = error.args[0].fatal()
        return fatal

    def _run_posted(self) -> None:
        if not self._posted:
            return
        for _ in range(len(self._posted)):
            self._posted.popleft()()
        # Who waits for reports may wait for no more than this: the end of a callback.
        self._tell_served(0)

    def _attempt_stalled(self) -> None:
        for _ in range(len(self._stalled)):
            attempt = self._stalled.popleft()
            try:
                is_over = attempt()
            except Exception:  # noqa: BLE001 - the others' records wait for theirs
                _LOG.exception("attempt_failed")
                is_over = False
            if not is_over:
                self._stalled.append(attempt)


def _nothing() -> None:
    """Is what nobody waits for."""
