"""Publishes flights.csv to topic `flights`: plain Avro records, one per row, in the file's order.

A thread of the supervisor, which lets flights through slice by slice (`allow`), so that the faults
spread over the whole run.
"""

from __future__ import annotations

import threading
from typing import Final

from confluent_kafka import KafkaError, Message

from ...journal.errors import BrokerError, LogtxError
from ...journal.logs.interface import Log
from .flights import Flight, encode_flight, read_flights
from .ledger import entries_of

_CONFIG: Final = {"enable.idempotence": True, "acks": "all", "linger.ms": 5}
_POLL_EVERY: Final = 200
"""Records between two looks at acknowledgements. A smaller value costs time, a larger one shows
progress later."""
_FLUSH_TIMEOUT_S: Final = 30.0
"""Bounds the wait for the last acknowledgements, and for the thread's end."""
_WAIT_S: Final = 0.1
"""Bounds each wait for room in the producer's queue or for permission, so that `stop` is noticed
after this time at the latest."""


class Publisher(threading.Thread):
    """Publishes the first `flights` rows of the file, as far as `allow` lets it."""

    def __init__(self, log: Log, topic: str, flights: int) -> None:
        """Prepares the thread; publishing begins with `start`."""
        super().__init__(name="publisher", daemon=True)
        self._producer = log.producer(_CONFIG)
        self._topic = topic
        self._flights = flights
        self._allowed = 0
        self._change = threading.Condition()
        self._stopping = False
        self.failure: LogtxError | None = None
        self.published = 0
        """Records that the broker has acknowledged."""
        self.cancelled = 0
        """Flights without departure time that were sent."""
        self.without_tail_number = 0

    @property
    def allowed(self) -> int:
        """Flights that may be published so far."""
        return self._allowed

    def allow(self, flights: int) -> None:
        """Allows publishing the first `flights` flights; never lowers the number."""
        with self._change:
            self._allowed = min(max(flights, self._allowed), self._flights)
            self._change.notify()

    def stop(self) -> None:
        """Stops publishing, and waits for the thread."""
        with self._change:
            self._stopping = True
            self._change.notify()
        if self.is_alive():
            self.join(_FLUSH_TIMEOUT_S)

    def run(self) -> None:
        """Publishes the flights; the body of the thread."""
        try:
            for sent, flight in enumerate(read_flights(self._flights)):
                if sent >= self._allowed and not self._await_allowed(sent):
                    return
                self._send(flight)
                if sent % _POLL_EVERY == 0:
                    self._producer.poll(0)
            if self._producer.flush(_FLUSH_TIMEOUT_S):
                self.failure = self.failure or BrokerError(
                    f"flights were not acknowledged within {_FLUSH_TIMEOUT_S:.0f} s"
                )
        except LogtxError as error:
            self.failure = error

    def _await_allowed(self, sent: int) -> bool:
        while not self._stopping:
            self._producer.poll(0)
            with self._change:
                if sent < self._allowed:
                    return True
                self._change.wait(_WAIT_S)
        return False

    def _send(self, flight: Flight) -> None:
        self.cancelled += flight["dep_time"] is None
        self.without_tail_number += flight["tailnum"] is None
        key = " ".join(map(str, entries_of(flight)[0].flight_id))
        value = encode_flight(flight)
        while not self._stopping:
            try:
                self._producer.produce(
                    self._topic, value, key.encode(), on_delivery=self._delivered
                )
            except BufferError:
                self._producer.poll(_WAIT_S)
            else:
                return

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is None:
            self.published += 1
        else:
            self.failure = BrokerError(f"a flight was not published: {error.str()}")
