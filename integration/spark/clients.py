"""Clients of Kafka that a Python worker keeps for its next tasks.

A new client connects, and asks for metadata, before its first record: longer than a small task
takes. So a task borrows what it needs, and gives it back at its end. What a task failed with is
closed.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar, cast

from confluent_kafka import Consumer

from ...consumer.fetching import open_quickest, pays
from ...journal.fetcher import Fetcher, PollingFetcher
from ...journal.logs.interface import Log, LogConsumer
from ...journal.logs.kafka import KafkaLog
from ...journal.logs.open import open_log
from ...journal.native.loading import is_for_extension
from ...journal.settings import plain

_LOG = logging.getLogger(__name__)
IDLE_MAX: Final = 8
"""Clients kept while no task uses them. With fewer a worker of several jobs connects more often,
more take memory and connections."""
IDLE_S: Final = 60.0
"""How long a client is kept that no task uses. Spark ends a worker without a task after the same
time."""
AGE_MAX_S: Final = 600.0
"""How long a client is lent after it was made. An older one may hold on to what has changed, such
as addresses; a smaller value connects more often."""


class _Closable(Protocol):
    def close(self) -> None: ...


_C = TypeVar("_C", bound=_Closable)


@dataclass(frozen=True, slots=True)
class _Idle:
    key: str
    client: Any
    made_s: float
    since_s: float


class Clients:
    """Lends clients, each to one borrower at a time; safe from any thread.

    Those made before a fork stay with the parent: their threads do not run in the child.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Has none yet. `clock` returns seconds."""
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: list[_Idle] = []
        """The most recently used last."""
        self._lent: dict[int, Any] = {}
        self._sweeper: threading.Timer | None = None

    @contextmanager
    def lend(self, kind: str, settings: Mapping[str, Any], make: Callable[[], _C]) -> Iterator[_C]:
        """Lends a client of these settings until the block ends; closes it if the block raises.

        Args:
            kind: what sort of client it is.
            settings: all that makes clients differ. Other credentials are other settings.
            make: makes one, if none is idle.
        """
        key = json.dumps([kind, settings], sort_keys=True)
        found = self._take(key)
        client, made_s = found or (make(), self._clock())
        with self._lock:
            self._lent[id(client)] = client
        keep = False
        try:
            yield client
            keep = True
        except GeneratorExit:  # the reader needs no more of it, as with a limit
            keep = True
            raise
        finally:
            with self._lock:
                # It is not there any more in a child that was forked meanwhile.
                is_mine = self._lent.pop(id(client), None) is not None
                if is_mine and keep:
                    self._idle.append(_Idle(key, client, made_s, self._clock()))
            if is_mine and not keep:
                _close(client)
            self._sweep()

    def close(self) -> None:
        """Closes what is idle."""
        with self._lock:
            idle, self._idle = self._idle, []
        for each in idle:
            _close(each.client)

    def _take(self, key: str) -> tuple[Any, float] | None:
        self._sweep()
        with self._lock:
            found = next((i for i in reversed(self._idle) if i.key == key), None)
            if found is None:
                return None
            self._idle.remove(found)
            return found.client, found.made_s

    def _sweep(self) -> None:
        """Closes what is old, long idle, or too much. Runs again while something is idle."""
        with self._lock:
            now_s = self._clock()
            kept = [
                i
                for i in self._idle[-IDLE_MAX:]
                if now_s - i.made_s < AGE_MAX_S and now_s - i.since_s < IDLE_S
            ]
            surplus = [i for i in self._idle if i not in kept]
            self._idle = kept
            if kept and self._sweeper is None:
                self._sweeper = threading.Timer(IDLE_S, self._sweep_late)
                self._sweeper.daemon = True
                self._sweeper.start()
        for each in surplus:
            _close(each.client)

    def _sweep_late(self) -> None:
        with self._lock:
            self._sweeper = None
        self._sweep()

    def abandon(self) -> None:
        """In a child: forgets the parent's clients, and lets nothing destroy them."""
        clients = [each.client for each in self._idle] + list(self._lent.values())
        for client in clients:
            # Its destruction would look for threads that only the parent has, and crash.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        self._lock = threading.Lock()
        self._idle, self._lent, self._sweeper = [], {}, None


class _KeptConsumer(Consumer):
    """A consumer that its log lends again when it is closed."""

    is_lent = True

    def close(self) -> None:
        self.unassign()
        self.is_lent = False

    def end(self) -> None:
        """Closes it for good."""
        super().close()


class _KeptLog(KafkaLog):
    """A log whose consumers are used again; for one borrower at a time.

    But for those that the C extension reads: what it has read once, nobody else can (trap 298).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__(config)
        self._consumers: list[tuple[dict[str, Any], _KeptConsumer]] = []
        """All of them, with their settings."""

    def consumer(self, config: Mapping[str, Any]) -> LogConsumer:
        if is_for_extension(config):
            return super().consumer(config)
        for settings, consumer in self._consumers:
            if settings == config and not consumer.is_lent:
                consumer.is_lent = True
                return cast(LogConsumer, consumer)
        new = _KeptConsumer(self._settings(config))
        self._consumers.append((dict(config), new))
        return cast(LogConsumer, new)

    def close(self) -> None:
        while self._consumers:
            self._consumers.pop()[1].end()
        super().close()


def _close(client: _Closable) -> None:
    try:
        client.close()
    except Exception:  # noqa: BLE001 - what it was used for has ended, well or not
        _LOG.exception("client_not_closed")


CLIENTS: Final = Clients()
"""Those of this process."""
os.register_at_fork(after_in_child=CLIENTS.abandon)
atexit.register(CLIENTS.close)


def lend_log(kafka: Mapping[str, Any]) -> AbstractContextManager[Log]:
    """Lends the log of these settings of librdkafka, whose consumers are kept, too.

    Raises:
        ConfigError: ``bootstrap.servers`` is missing.
    """
    return CLIENTS.lend("log", kafka, lambda: _open(kafka))


@contextmanager
def lend_fetcher(
    log: Log, kafka: Mapping[str, Any], settings: Mapping[str, Any], *, records: int
) -> Iterator[Fetcher]:
    """Lends what reads ranges of a log.

    Args:
        log: the log, which was lent.
        kafka: the settings by which it was.
        settings: a consumer's.
        records: about how many are to be read.

    Raises:
        KafkaException: librdkafka refuses the settings.
    """
    if not pays(records):
        with closing(PollingFetcher(log.consumer(settings))) as polling:
            yield polling
        return
    named = {"log": kafka, "consumer": settings}
    make = open_log(kafka).consumer
    with CLIENTS.lend("fetcher", named, lambda: open_quickest(make, settings)) as kept:
        try:
            yield kept
        finally:
            kept.unassign()


def _open(kafka: Mapping[str, Any]) -> Log:
    log = open_log(kafka)  # connects with its first request
    return _KeptLog(plain(kafka)) if isinstance(log, KafkaLog) else log
