"""Reaches a Kafka cluster: its clients, and how it is asked.

Requests go through one `AdminClient`, which needs no lock and no consumer group.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from ..errors import BrokerError, LogtxError
from ..rights import grant
from ..settings import refused
from ..tls import OWN as COORDINATORS
from .asking import METADATA_S, NO_TIME_S, Asking, Promise, Trouble
from .group_clients import NEVER_POLLED
from .interface import LogConsumer, LogProducer
from .offsets_client import OffsetsClient

_T = TypeVar("_T")
_LIBRDKAFKA: Final = logging.getLogger("logtx.librdkafka")
"""Takes librdkafka's log, off standard error, unless the user sets another ``logger``."""
_SHARED_PREFIXES: Final = (
    "api.version.",
    "broker.address.",
    "enable.sasl.",
    "enable.ssl.",
    "https.",
    "metadata.",
    "reconnect.backoff.",
    "retry.backoff.",
    "sasl.",
    "security.",
    "socket.",
    "ssl.",
    "ssl_",
)
_SHARED_NAMES: Final = frozenset(
    {
        "client.dns.lookup",
        "client.id",
        "client.rack",
        "connections.max.idle.ms",
        "debug",
        "log_level",
        "logger",
        "oauth_cb",
        "plugin.library.paths",
        "receive.message.max.bytes",
    }
)
_CONTROLLER_S: Final = 1.0
"""First wait for the controller, before the metadata is renewed; doubled each time.

A longer wait loses more time on a dead controller, a shorter one gives up a slow one too early.
"""
_MOCK_CLUSTER: Final = "mockCluster"
"""Prefix of the cluster id of librdkafka's mock."""


def shared_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings that say how to reach and enter the cluster."""
    return {
        name: value
        for name, value in config.items()
        if name in _SHARED_NAMES or name.startswith(_SHARED_PREFIXES)
    }


class KafkaCluster:
    """A Kafka-compatible cluster; safe from any thread.

    Args:
        config: the user's whole configuration; ``bootstrap.servers`` and the settings that
            `shared_settings` picks are merged into the configuration of every client.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.bootstrap_servers = str(config["bootstrap.servers"])
        self.principal = str(config.get("sasl.username") or "")
        self._shared = shared_settings(config)
        self._lock = threading.Lock()
        self._admin_client: OffsetsClient | None = None
        self._is_mock: bool | None = None
        self._trouble = Trouble(self.bootstrap_servers)

    def producer(self, config: Mapping[str, Any]) -> LogProducer:
        """Returns a new `confluent_kafka.Producer`."""
        return cast(LogProducer, Producer(self._settings(config)))

    def consumer(self, config: Mapping[str, Any]) -> LogConsumer:
        """Returns a new `confluent_kafka.Consumer`; it insists on a ``group.id``, used or not."""
        return cast(LogConsumer, Consumer(self._settings(config)))

    def _settings(self, config: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "logger": _LIBRDKAFKA,
            **self._shared,
            **{name: value for name, value in config.items() if name not in COORDINATORS},
            "bootstrap.servers": self.bootstrap_servers,
        }

    def _admin(self) -> OffsetsClient:
        with self._lock:
            if self._admin_client is None:
                self._admin_client = self._new_admin()
            return self._admin_client

    def _new_admin(self) -> OffsetsClient:
        try:
            return OffsetsClient(self._settings({**NEVER_POLLED, "error_cb": self._trouble.note}))
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            if error.code() != KafkaError._INVALID_ARG:
                raise
            raise refused(exception.args[0].str()) from exception

    def _asking(
        self, asked: str, timeout_s: float, operation: str = "", *, topic: str = "", group: str = ""
    ) -> Asking:
        """Begins a question that needs the right to an operation on a topic or a group."""
        words = self.bootstrap_servers, self.principal, (operation,)
        remedy = partial(grant, *words, topic=topic, group=group) if operation else str
        return Asking(asked, timeout_s, remedy=remedy, trouble=self._why_unreachable)

    def _ask_controller(
        self, left_s: float, asking: Asking, ask: Callable[[float], Promise[_T]]
    ) -> _T:
        """Returns the answer of the current controller to `ask(seconds)`.

        KRaft brokers name any broker that they believe to be alive as the controller. If that one
        is dead, librdkafka waits for it to come back; a missing answer does not make it look for
        the controller again.
        """
        until_s, wait_s = time.monotonic() + left_s, _CONTROLLER_S
        while True:
            now_s = time.monotonic()
            try:
                return asking.result(ask(max(min(until_s - now_s, wait_s), NO_TIME_S)))
            except LogtxError:
                raise
            except KafkaException as exception:
                is_late = exception.args[0].code() == KafkaError._TIMED_OUT
                if not is_late or now_s + wait_s >= until_s:
                    raise
            asking.repeated = True
            wait_s *= 2
            self._renew_metadata(asking.left_s)

    def _why_unreachable(self) -> str:
        with suppress(LogtxError):
            self._admin().poll(0)  # hands on what was told
        return self._trouble.take()

    def _renew_metadata(self, left_s: float) -> None:
        """Makes librdkafka learn who leads what; its failure does no harm."""
        with suppress(KafkaException):
            self._admin().list_topics(timeout=min(left_s, METADATA_S))

    def _mock(self, asking: Asking) -> bool:
        if self._is_mock is None:
            cluster = asking.answer(lambda left: self._admin().list_topics(timeout=left))
            self._is_mock = str(cluster.cluster_id).startswith(_MOCK_CLUSTER)
        return self._is_mock

    def _refuse_mock(self, asking: Asking) -> None:
        if self._mock(asking):
            raise BrokerError(f"{asking.asked}: librdkafka's mock cluster can't")
