"""Restarts brokers that died, as an operator would.

A broker is up → down → starting → up. A dead one stays down for a moment, so that the user who
killed it can see what follows. One that dies while starting is left alone: it would die again.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from .cluster import LocalCluster
from .errors import BrokerStartError, LocalKafkaError
from .node import Broker

RESTART_AFTER_S: Final = 10.0
"""How long a dead broker stays dead. Others lead in its place after about 4 s; a value below that
would bring it back before they do."""


class _Condition(Enum):
    UP = auto()
    DOWN = auto()
    STARTING = auto()
    LEFT = auto()


class Restarter:
    """Looks after a running cluster. It never waits: call `look` several times a second."""

    def __init__(
        self,
        cluster: LocalCluster,
        tell: Callable[[str], None],
        *,
        restart_after_s: float = RESTART_AFTER_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins with all brokers taken for ready.

        Args:
            cluster: the cluster, which is started.
            tell: gets a sentence for people at each change.
            restart_after_s: seconds from a broker's death to its start.
            clock: returns seconds that never go back.
        """
        self._cluster = cluster
        self._tell = tell
        self._restart_after_s = restart_after_s
        self._clock = clock
        self._conditions = dict.fromkeys((b.id for b in cluster.brokers), _Condition.UP)
        self._restart_at_s: dict[int, float] = {}

    def look(self) -> None:
        """Finds brokers that died or are ready again, and starts those whose time has come.

        Raises:
            BrokerStartError: too many brokers are left alone for a majority, or the only one died.
        """
        for broker in self._cluster.brokers:
            match self._conditions[broker.id]:
                case _Condition.UP if not broker.is_running:
                    self._died(broker)
                case _Condition.DOWN if self._clock() >= self._restart_at_s[broker.id]:
                    self._start(broker)
                case _Condition.STARTING if not broker.is_running:
                    self._leave(broker, f"{_cause(broker)} while starting", broker.log_tail())
                case _Condition.STARTING if broker.id in broker.known_brokers():
                    self._conditions[broker.id] = _Condition.UP
                    self._tell(f"Broker {broker.id} is back, as process {broker.pid}.")

    def _died(self, broker: Broker) -> None:
        if len(self._cluster.brokers) == 1:
            raise BrokerStartError(
                f"Kafka ended by itself; its log is {broker.log_path}.", broker.log_tail()
            )
        self._conditions[broker.id] = _Condition.DOWN
        self._restart_at_s[broker.id] = self._clock() + self._restart_after_s
        self._tell(
            f"Broker {broker.id} {_cause(broker)}; it is started again in "
            f"{self._restart_after_s:g} s. Its log is {broker.log_path}."
        )

    def _start(self, broker: Broker) -> None:
        try:
            broker.start(wait=False)
        except LocalKafkaError as error:
            self._leave(broker, f"can't be started. {error.sentence}", error.details)
        else:
            self._conditions[broker.id] = _Condition.STARTING

    def _leave(self, broker: Broker, why: str, details: tuple[str, ...] | list[str]) -> None:
        self._conditions[broker.id] = _Condition.LEFT
        left = sum(each is _Condition.LEFT for each in self._conditions.values())
        if len(self._conditions) - left <= len(self._conditions) // 2:
            raise BrokerStartError(
                f"Too few of Kafka's brokers are left: broker {broker.id} {why}; "
                f"its log is {broker.log_path}.",
                details,
            )
        lines = "".join(f"\n    {line}" for line in details)
        self._tell(f"Broker {broker.id} {why}; the others go on without it.{lines}")


def _cause(broker: Broker) -> str:
    status = broker.exit_status or 0
    if status < 0:
        return f"was killed ({signal.Signals(-status).name})"
    return f"ended by itself (exit status {status})"
