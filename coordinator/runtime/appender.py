"""Appends records for the coordinator: one log producer with acknowledgements on the event loop.

Both directions work in bursts. The records appended in one turn of the loop are given to librdkafka
together, at the end of the turn: one by one, each would wake librdkafka's thread and be sent in a
batch of its own. Acknowledgements wake the loop once for all that have come, because a wake-up for
each was the limit: 2,000 appends per second, where bursts allow 60,000 to 169,000.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message

from ...journal.logs.interface import Headers, Log, LogProducer
from ..core.lane import Flow
from ..tasks import raise_on

_LOG = logging.getLogger(__name__)

Acknowledge = Callable[[int | None, KafkaError | None], None]
"""Called on the event loop with the record's offset, or None and the error. Without either, the
broker called the record a duplicate: it may be written, or not (trap 291)."""

APPENDER_CONFIG: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    # As flush() runs while anything is queued, linger never delays a record. It keeps the records
    # of one burst in one batch: linger.ms=0 split half of all five-record groups.
    "linger.ms": 5,
    "message.timeout.ms": 30_000,
    "queue.buffering.max.messages": 1_000_000,
}
WARM_S: Final = 1.0
"""Age from which a producer counts as warm: it has learned what it needs from the brokers. Before,
its first append takes half a second."""
_PROBE: Final = partial(int)
"""A call that CPython always checks for an exception that was left behind, and then clears.

It does not check calls that it meets often and has made quick: those of a method, for example.
"""
_IDLE_POLL_S: Final = 0.2
"""Pause between two polls of an idle producer; a longer one lets its errors be noticed later."""
_FLUSH_S: Final = 0.1
"""Length of one `flush` while records are queued: bounds how late a renewed producer is seen."""
_RETIRE_S: Final = 2.0
"""Longest wait, twice, for the last callbacks of a producer that is let go."""


class _Append(NamedTuple):
    producer: LogProducer
    """The producer that was current when the record was appended; a newer one must not send it."""
    topic: str
    partition: int
    acknowledge: Acknowledge
    value: bytes | None
    key: bytes | None
    headers: Headers | None
    flow: Flow | None
    number: int
    """How many records were appended before."""


class _MadeUp(NamedTuple):
    """The record that may come next in a batch whose offsets librdkafka makes up."""

    producer: LogProducer
    topic: str
    partition: int
    offset: int
    before: int
    """Number of records that were appended by the time of its report: later ones are not of it."""

    def is_next(self, each: _Append, offset: int) -> bool:
        """Returns whether this is that record."""
        place = each.producer, each.topic, each.partition, offset
        return place == self[:4] and each.number < self.before


class Appender:
    """A log producer with its polling thread; created and used on one event loop."""

    def __init__(self, log: Log, config: Mapping[str, Any], name: str) -> None:
        """Starts the producer and its thread.

        Args:
            log: the log to append to.
            config: librdkafka settings that override `APPENDER_CONFIG`.
            name: name of the thread, for people who look at stacks.
        """
        self._make: Callable[[], LogProducer] = partial(log.producer, {**APPENDER_CONFIG, **config})
        self._producer = self._make()
        self._broken: LogProducer | None = None
        """The last producer that had a fatal error: the current one, or one already replaced."""
        self._made_s = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._burst: list[_Append] = []
        """Records appended in this turn of the loop."""
        self._acknowledged: deque[tuple[Acknowledge, int | None, KafkaError | None]] = deque()
        self._appended = 0
        """Number of records so far."""
        self._made_up: _MadeUp | None = None
        """What may be reported next; None: nothing of a batch without offsets."""
        self._drain_scheduled = False
        self._work = threading.Event()
        self._closing = False
        self._stopped = False
        self._thread = threading.Thread(target=self._poll, name=name, daemon=True)
        self._thread.start()

    def append(
        self,
        topic: str,
        partition: int,
        acknowledge: Acknowledge,
        *,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Headers | None = None,
        flow: Flow | None = None,
    ) -> None:
        """Queues a record. If the producer refuses it, `acknowledge` gets the error, also later.

        If `flow` is given, every later record of the same flow is refused too: none overtakes it.

        An idempotent producer can't survive a fatal error. After one, everything is refused until
        `renew_if_broken` is called: only the caller knows when a new producer may overtake the old.
        """
        if not self._burst:
            self._loop.call_soon(self._send)
        self._burst.append(
            _Append(
                *(self._producer, topic, partition, acknowledge, value, key, headers, flow),
                self._appended,
            )
        )
        self._appended += 1

    def _send(self) -> None:
        burst, self._burst = self._burst, []
        for each in burst:
            if each.flow is not None and each.flow.cut:
                self._refused(each, KafkaError(KafkaError._QUEUE_FULL))
                continue
            try:
                each.producer.produce(
                    each.topic,
                    each.value,
                    each.key,
                    each.partition,
                    headers=each.headers,
                    on_delivery=partial(self._delivered, each),
                )
            except KafkaException as error:
                self._refused(each, error.args[0])
            except BufferError:
                self._refused(each, KafkaError(KafkaError._QUEUE_FULL))
        if not self._work.is_set():
            self._work.set()

    def _refused(self, each: _Append, error: KafkaError) -> None:
        if error.fatal():
            self._broken = each.producer
        if each.flow is not None:
            each.flow.cut = True
        self._loop.call_soon(each.acknowledge, None, error)

    def _delivered(self, each: _Append, error: KafkaError | None, message: Message) -> None:
        """Takes an acknowledgement; runs in the producer's thread."""
        try:
            _PROBE()
        except SystemError:
            # A fatal error came just before, within the same flush(): confluent-kafka has set its
            # exception and goes on to call back, so that some call of C code fails. The report
            # would be lost, or nobody be told of it, and what waits for it would wait for ever.
            self._broken = each.producer
        offset = message.offset()
        if offset is None or self._made_up is not None:
            offset = self._told(each, offset, error)
        if error is not None and error.fatal():
            self._broken = each.producer
        self._acknowledged.append((each.acknowledge, offset, error))
        if not self._drain_scheduled:
            self._drain_scheduled = True
            self._call_loop(self._drain)

    def _told(self, each: _Append, offset: int | None, error: KafkaError | None) -> int | None:
        """Returns an offset if a broker told it. Runs in the producer's thread.

        Of a batch that a broker calls a duplicate, librdkafka numbers the records from -1 on. It
        reports them one after another.
        """
        made_up, self._made_up = self._made_up, None
        if error is not None:
            return None
        if offset is None:
            following, before = 0, self._appended
        elif made_up is not None and made_up.is_next(each, offset):
            following, before = offset + 1, made_up.before
        else:
            return offset
        self._made_up = _MadeUp(each.producer, each.topic, each.partition, following, before)
        return None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or unanswered."""
        return not self._burst and not self._acknowledged and not len(self._producer)

    @property
    def is_warm(self) -> bool:
        """Whether the next append takes milliseconds and not half a second."""
        return time.monotonic() - self._made_s >= WARM_S

    def renew_if_broken(self) -> None:
        """Takes a new producer after a fatal error, and fails what the old one still has."""
        # Compared by identity: a former producer may report late, and only about itself.
        if self._broken is self._producer:
            broken, self._producer = self._producer, self._make()
            self._made_s = time.monotonic()
            threading.Thread(target=_retire, args=(broken,), daemon=True).start()

    def _call_loop(self, callback: Callable[[], None]) -> None:
        # The loop may have been closed while librdkafka still had acknowledgements to give.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback)

    def _drain(self) -> None:
        self._drain_scheduled = False
        while self._acknowledged:
            acknowledge, offset, error = self._acknowledged.popleft()
            acknowledge(None if error else offset, error)

    def _poll(self) -> None:
        try:
            self._serve()
        except Exception as error:  # noqa: BLE001 - whatever it is, nothing is acknowledged now
            raise_on(self._loop, error)

    def _serve(self) -> None:
        while not self._stopped:
            if len(self._producer):
                self._flush(_FLUSH_S)
            else:
                self._work.clear()
                # Checked again: a record queued between len() and clear() set the event in vain.
                if not len(self._producer) and not self._stopped:
                    self._work.wait(_IDLE_POLL_S)
                    self._flush(0)

    def _flush(self, timeout_s: float) -> None:
        producer = self._producer  # It may be renewed meanwhile.
        if _flush(producer, timeout_s):
            self._broken = producer

    async def close(self, timeout_s: float = 5) -> None:
        """Flushes for up to `timeout_s` seconds, drops the rest, stops the thread. Idempotent."""
        if self._closing:
            return
        self._closing = True
        self._send()

        def finish() -> None:
            self._flush(timeout_s)
            self._stopped = True
            self._work.set()
            self._thread.join(timeout_s)
            _retire(self._producer)

        await asyncio.to_thread(finish)


def _flush(producer: LogProducer, timeout_s: float) -> bool:
    """Flushes for at most `timeout_s` seconds. Returns whether the producer had a fatal error."""
    try:
        producer.flush(timeout_s)
    except (KafkaException, SystemError) as error:
        # flush() raises it once; the next flush() serves what is left.
        _LOG.warning("producer_stopped error=%s", error)
        return True
    return False


def _retire(producer: LogProducer) -> None:
    """Fails what a producer still has, so that each callback is called once, and closes it."""
    producer.purge()
    _flush(producer, _RETIRE_S)
    _flush(producer, _RETIRE_S)
    if not len(producer):
        producer.close()
