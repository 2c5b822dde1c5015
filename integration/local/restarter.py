"""Restarts brokers, coordinators and an etcd that died, as an operator would.

Each is up → down → starting → up. A dead one stays down for a moment, so that the user who killed
it can see what follows. A broker that dies while starting is left alone: it would die again. A
coordinator is started again then too, but only so often: its start may fail because brokers are
down. An etcd is treated as a coordinator.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final, TypeAlias

from .cluster import LocalCluster
from .errors import BrokerStartError, DataDirError, LocalKafkaError, ProcessDiedError
from .etcd import LocalEtcd
from .node import Broker
from .processes import LOG_LINES, CoordinatorChild

RESTART_AFTER_S: Final = 10.0
"""How long a dead broker stays dead. Others lead in its place after about 4 s; a value below that
would bring it back before they do."""
CHILD_RESTART_AFTER_S: Final = 2.0
"""How long a dead coordinator or etcd stays dead. Other coordinators take over in less than a
second; a larger value only keeps the clients of a single one waiting."""
CHILD_RESTARTS_MAX: Final = 5
"""Restarts of one of them within `CHILD_RESTARTS_WITHIN_S`. Its next death is the end: it dies of
something that a restart does not mend."""
CHILD_RESTARTS_WITHIN_S: Final = 60.0
"""Longer than one that dies at its start needs for that many starts."""

Watched: TypeAlias = CoordinatorChild | LocalEtcd


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


class ChildRestarter:
    """Looks after running coordinators and an etcd.

    It never waits: call `look` several times a second.
    """

    def __init__(
        self,
        children: Sequence[Watched],
        tell: Callable[[str], None],
        *,
        restart_after_s: float = CHILD_RESTART_AFTER_S,
        restarts_max: int = CHILD_RESTARTS_MAX,
        restarts_within_s: float = CHILD_RESTARTS_WITHIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begins with all of them taken for ready.

        Args:
            children: the processes, which are started.
            tell: gets a sentence for people at each change.
            restart_after_s: seconds from a death to the start.
            restarts_max: restarts of one of them within `restarts_within_s` seconds.
            restarts_within_s: see there.
            clock: returns seconds that never go back.
        """
        self._children = children
        self._tell = tell
        self._restart_after_s = restart_after_s
        self._restarts_max = restarts_max
        self._restarts_within_s = restarts_within_s
        self._clock = clock
        self._conditions = dict.fromkeys((child.name for child in children), _Condition.UP)
        self._deaths: dict[str, deque[float]] = {child.name: deque() for child in children}
        """When each died, by the clock: its latest deaths."""

    def look(self) -> None:
        """Finds those that died or are ready again; starts those whose time has come.

        Raises:
            ProcessDiedError: one died too often, or was not ready in time.
            DataDirError: its log can't be written.
        """
        for child in self._children:
            match self._conditions[child.name]:
                case _Condition.UP | _Condition.STARTING if not child.is_running:
                    self._died(child)
                case _Condition.DOWN if self._clock() >= self._restart_at_s(child):
                    start_child(child)
                    self._conditions[child.name] = _Condition.STARTING
                case _Condition.STARTING if _is_ready(child):
                    self._conditions[child.name] = _Condition.UP
                    self._tell(f"The {child.name} is back, as process {child.pid}.")

    def _restart_at_s(self, child: Watched) -> float:
        return self._deaths[child.name][-1] + self._restart_after_s

    def _died(self, child: Watched) -> None:
        now_s, deaths = self._clock(), self._deaths[child.name]
        deaths.append(now_s)
        while deaths[0] < now_s - self._restarts_within_s:
            deaths.popleft()
        if len(deaths) > self._restarts_max:
            raise ProcessDiedError(
                f"The {child.name} {_cause(child)}, and did so {len(deaths)} times within "
                f"{self._restarts_within_s:g} s: see why in its log, {child.log}.",
                child.last_lines(LOG_LINES),
            )
        self._conditions[child.name] = _Condition.DOWN
        self._tell(
            f"The {child.name} {_cause(child)}; it is started again in "
            f"{self._restart_after_s:g} s. Its log is {child.log}."
        )


def start_child(child: Watched) -> None:
    """Starts one. Raises DataDirError if its log can't be written."""
    try:
        child.start()
    except OSError as error:
        raise DataDirError(
            f"Cannot write {child.log} ({error.strerror}): make it writable, or choose another "
            "data directory."
        ) from error


def _is_ready(child: Watched) -> bool:
    try:
        return child.is_ready
    except ProcessDiedError:
        if child.is_running:
            raise
        return False  # it died just now, and the next look finds that


def _cause(process: Broker | Watched) -> str:
    status = process.exit_status or 0
    if status < 0:
        return f"was killed ({signal.Signals(-status).name})"
    return f"ended by itself (exit status {status})"
