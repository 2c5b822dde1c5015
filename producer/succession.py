"""The librdkafka producers of a sender thread: the present one, and those before it.

A producer of librdkafka can stop for good: an idempotent one does when a broker's answer leaves it
unsure which records are written. Then another one takes its place. Each transaction writes all of
its own records through one of them, for the offsets of one alone rise in the order of `produce`.

It may also look for a leader where none is, for ever, when a topic was created anew (trap 294): its
records time out. And one of which a record timed out, or was purged, may take a new epoch later,
and say nothing (trap 295). So when that has happened, the producer is *retired*: what is under way,
and transactions that write through it, go on; new transactions have another one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from weakref import ref

from confluent_kafka import KafkaException

from ..journal.logs.interface import LogProducer
from ..journal.native.interface import Handle
from .core.tally import Failures

_LOG = logging.getLogger(__name__)

_REPLACE_EVERY_S: Final = 10.0
"""Shortest time between two replacements of a producer that stopped.

A cause that lasts, such as a missing right to write, stops the next one within milliseconds: it is
told then. A longer time lets transactions fail for longer after two causes that passed.
"""
_RETIRE_EVERY_S: Final = 10.0
"""Shortest time between two retirements. A shorter one makes more producers in vain while a broker
is away; with a longer one a second topic that was created anew is missed for longer."""
_RETIRED_MAX: Final = 3
"""Most retired producers. With more, time-outs that have another cause would cost more memory; with
fewer, a transaction that stays open would keep others from a producer that knows a topic."""

Send = Callable[[str, Any, Any, int, Any, None, int, Any], None]
"""(topic, value, key, partition, delivery callback, None, timestamp, headers) → queued.

The None stands in the place of `on_delivery`, which in confluent-kafka's C function is a second
name of `callback`.
"""

Keep = Callable[[BaseException], None]
"""Takes what a callback of the application raised."""

Make = Callable[[Keep], tuple[LogProducer, Handle | None]]
"""Makes an idempotent producer, which nothing else may use, and its handle if it counts in C."""


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


class Made(NamedTuple):
    """A librdkafka producer."""

    producer: LogProducer
    send: Send
    handle: Handle | None


class Retired(NamedTuple):
    """One that no new transaction writes through."""

    producer: LogProducer
    send: ref[Send]
    """What its transactions hold: without it, none is left."""
    handle: Handle | None

    def given_up(self) -> Made:
        """Returns it as one that takes no more records."""
        return Made(self.producer, _taken_by_none, self.handle)


class Succession:
    """Says which producer is written through. Whoever changes it holds the lock of its thread."""

    def __init__(self, make: Make, keep: Keep, failures: Failures) -> None:
        """Makes the first one.

        Args:
            make: makes a producer.
            keep: takes what callbacks raise that concern a producer itself.
            failures: of all these producers.

        Raises:
            ConfigError: librdkafka refuses a setting.
        """
        self._make, self._keep, self._failures = make, keep, failures
        self.credentials: tuple[str, str] | None = None
        """Those that were set last; None: those it was made with."""
        self.present = self._another()
        """What new transactions write through."""
        self.stopped: list[Made] = []
        """Former ones, whose last reports are still to be served."""
        self.retired: list[Retired] = []
        """Former ones that transactions still write through, or that have records under way."""
        self._next_replacement_s = self._next_retirement_s = 0.0

    def _another(self) -> Made:
        producer, handle = self._make(self._keep)
        if self.credentials is not None:
            producer.set_sasl_credentials(*self.credentials)
        return Made(producer, positional(producer), handle)

    # ---- what any thread may ask for without the lock -------------------------------------------

    @property
    def send_plainly(self) -> Send:
        """Queues a record of no transaction, behind those that the caller has queued so."""
        for each in self.retired:
            # Else a later record could overtake one that is under way there.
            if len(each.producer) and (send := each.send()) is not None:
                return send
        return self.present.send

    @property
    def queued(self) -> int:
        """Number of records whose reports were not served yet."""
        # Each once: one that stopped is still the present one if nothing has taken its place.
        return sum(len(each) for each in dict.fromkeys(e.producer for e in self.all_of_them()))

    def all_of_them(self) -> list[Made]:
        """Returns all, those that are retired as ones that take no more records."""
        return [*self.stopped, self.present, *(each.given_up() for each in self.retired)]

    # ---- what needs the lock --------------------------------------------------------------------

    def in_use(self) -> list[LogProducer]:
        """Returns those that did not stop."""
        return [self.present.producer, *(each.producer for each in self.retired)]

    def handle_of(self, send: Send) -> Handle | None:
        """Returns the handle of the producer with this `send`; None: it does not count in C."""
        found = [(each.send, each.handle) for each in (self.present, *self.stopped)]
        found += [(its, each.handle) for each in self.retired if (its := each.send())]
        return next((handle for each, handle in found if each is send), None)

    def set_sasl_credentials(self, username: str, password: str) -> None:
        """Replaces the credentials of those in use, and of those that come."""
        self.credentials = username, password
        for producer in self.in_use():
            producer.set_sasl_credentials(username, password)

    def may_replace(self, now_s: float) -> bool:
        """Returns whether the present one may be replaced, or one was a short time ago."""
        return now_s >= self._next_replacement_s

    def replace(self, now_s: float) -> None:
        """Puts another one in the place of the present one, which stopped for good.

        Raises:
            ConfigError: librdkafka refuses a setting by now. Nothing has changed then.
        """
        another = self._another()
        self._next_replacement_s = now_s + _REPLACE_EVERY_S
        self.stop()
        self._go_on_with(another)

    def stop(self) -> None:
        """Notes that the present one stopped for good, and stays in its place."""
        self.stopped.append(self.present)

    def may_retire(self, now_s: float) -> bool:
        """Returns whether the present one is to be retired."""
        may_be = now_s >= self._next_retirement_s and len(self.retired) < _RETIRED_MAX
        return self._failures.leaves_gaps and may_be

    def retire(self, now_s: float) -> None:
        """Puts another one in the place of the present one, which goes on with what it has.

        Raises:
            ConfigError: librdkafka refuses a setting by now. Nothing has changed then.
        """
        self._next_retirement_s = now_s + _RETIRE_EVERY_S
        former, another = self.present, self._another()
        _LOG.warning("producer_retired: a record timed out or was purged")
        self.retired.append(Retired(former.producer, ref(former.send), former.handle))
        self._go_on_with(another)

    def _go_on_with(self, another: Made) -> None:
        self.present = another
        self._failures.leaves_gaps = False

    def drop(self, retired: Retired) -> None:
        """Drops a retired one that nothing writes through."""
        # Another list: others look at it without the lock.
        self.retired = [each for each in self.retired if each is not retired]

    def retired_stops(self, send: Send) -> bool:
        """Notes that the producer with this `send` stopped for good. Returns whether it was
        retired."""
        for each in self.retired:
            if each.send() is send:
                self.drop(each)
                self.stopped.append(Made(each.producer, send, each.handle))
                return True
        return False


def _taken_by_none(*_record: object) -> None:
    """Stands for the `send` of a producer that is given up."""
