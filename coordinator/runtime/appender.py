"""Appends of the coordinator: one log producer whose acknowledgements reach the event loop.

Both ways go in bursts. What is appended in one turn of the loop is given to librdkafka together at
its end: one by one, each would wake librdkafka's thread and be sent in a batch of its own.
Acknowledgements wake the loop once for as many as have come, because a wake-up each was the limit:
60k to 169k appends per second against 2k.
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
from ..tasks import raise_on

_LOG = logging.getLogger(__name__)

Acknowledge = Callable[[int | None, KafkaError | None], None]
"""Called on the event loop with the record's offset, or None and the error."""

APPENDER_CONFIG: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    # With flush() running while anything is queued, linger never delays a record; it keeps the
    # records of one burst in one batch. linger.ms=0 split half of all five-record groups.
    "linger.ms": 5,
    "message.timeout.ms": 30_000,
    "queue.buffering.max.messages": 1_000_000,
}
WARM_S: Final = 1.0
"""After so long a producer has what it needs of the brokers; before, its first append takes half a
second."""
_IDLE_POLL_S: Final = 0.2
_FLUSH_S: Final = 0.1
_RETIRE_S: Final = 2.0


class _Append(NamedTuple):
    producer: LogProducer
    """The current one when it was appended: a newer one is not for it."""
    topic: str
    partition: int
    acknowledge: Acknowledge
    value: bytes | None
    key: bytes | None
    headers: Headers | None


class Appender:
    """A log producer with its polling thread; made and used on one event loop."""

    def __init__(self, log: Log, config: Mapping[str, Any], name: str) -> None:
        """Start the producer and its thread.

        Args:
            log: where to append.
            config: librdkafka's, over `APPENDER_CONFIG`.
            name: of the thread, for people who look at stacks.
        """
        self._make: Callable[[], LogProducer] = partial(log.producer, {**APPENDER_CONFIG, **config})
        self._producer = self._make()
        self._broken: LogProducer | None = None
        """A producer that met a fatal error; the current one, or one that was renewed since."""
        self._made_s = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._burst: list[_Append] = []
        """Appended in this turn of the loop."""
        self._acknowledged: deque[tuple[Acknowledge, int | None, KafkaError | None]] = deque()
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
    ) -> None:
        """Queue a record; what the producer refuses is acknowledged as an error, later too.

        After a fatal error, which an idempotent producer can't survive, everything is refused
        until `renew_if_broken`: only the caller knows when a new producer may overtake the old.
        """
        if not self._burst:
            self._loop.call_soon(self._send)
        self._burst.append(
            _Append(self._producer, topic, partition, acknowledge, value, key, headers)
        )

    def _send(self) -> None:
        burst, self._burst = self._burst, []
        for each in burst:
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
        self._loop.call_soon(each.acknowledge, None, error)

    def _delivered(self, each: _Append, error: KafkaError | None, message: Message) -> None:
        """On the producer's thread."""
        if error is not None and error.fatal():
            self._broken = each.producer
        self._acknowledged.append((each.acknowledge, message.offset(), error))
        if not self._drain_scheduled:
            self._drain_scheduled = True
            self._call_loop(self._drain)

    @property
    def is_warm(self) -> bool:
        """Whether an append takes milliseconds."""
        return time.monotonic() - self._made_s >= WARM_S

    def renew_if_broken(self) -> None:
        """After a fatal error, go on with a new producer; what the old one had is failed."""
        # By identity: what a former producer has to say comes late, and of itself alone.
        if self._broken is self._producer:
            broken, self._producer = self._producer, self._make()
            self._made_s = time.monotonic()
            threading.Thread(target=_retire, args=(broken,), daemon=True).start()

    def _call_loop(self, callback: Callable[[], None]) -> None:
        # The loop may have closed while librdkafka still had acknowledgements to give.
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
                # Checked again: a record queued between len() and clear() has set it in vain.
                if not len(self._producer) and not self._stopped:
                    self._work.wait(_IDLE_POLL_S)
                    self._flush(0)

    def _flush(self, timeout_s: float) -> None:
        producer = self._producer  # It may be renewed meanwhile.
        if _flush(producer, timeout_s):
            self._broken = producer

    async def close(self, timeout_s: float = 5) -> None:
        """Flush for up to `timeout_s`, then drop the rest and stop the thread. Idempotent."""
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
    """Flush, for `timeout_s` at most; whether the producer met a fatal error."""
    try:
        producer.flush(timeout_s)
    except KafkaException as error:
        # Raised out of flush() once; what is left is served by the next.
        _LOG.warning("producer_stopped error=%s", error)
        return True
    return False


def _retire(producer: LogProducer) -> None:
    """Fail what a producer still has, so that every callback is served once, and let it go."""
    producer.purge()
    _flush(producer, _RETIRE_S)
    _flush(producer, _RETIRE_S)
    if not len(producer):
        producer.close()
