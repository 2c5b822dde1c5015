"""A Kafka cluster on this machine: brokers in KRaft mode, each a child process.

Each node is broker and controller. With three of them any one may be lost: partitions have three
replicas of which two must have a record before it is acknowledged, and two controllers are a
majority of three.
"""

from __future__ import annotations

import base64
import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .class_data import ClassData
from .directory import ClusterDir, Ports, State
from .errors import BrokerNotRunningError, DataDirError, NotInSyncError
from .jars import cache_dir, ensure_jars
from .java import find_java
from .node import Broker, Setup, await_ready
from .ports import HOST, PORT_MAX, check_port, is_free, pick_ports
from .settings import broker_settings
from .topics import lagging_partitions

_LOG = logging.getLogger(__name__)

QUICK_TO_START: Final = ("-XX:TieredStopAtLevel=1",)
"""Java options with which a broker costs 40 % less CPU in its first minutes, and more under full
load later: the code is compiled once, lightly. For brokers that live for minutes, or are killed."""
_POLL_S: Final = 0.1
_STRAGGLER_S: Final = 5.0
"""For a broker that was allowed to go to close its log files, once the majority has ended."""


class LocalCluster:
    """Kafka brokers on 127.0.0.1, ids 1 to `brokers`, with their records in `data_dir`.

        with LocalCluster(Path("data")) as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
            kafka.broker(2).kill()
            ...
            kafka.broker(2).start()
            kafka.await_in_sync()

    Topics have min(3, brokers) replicas by default, Kafka's own too, and ``min.insync.replicas``
    one less. The brokers are killed when this process dies in any way. An object is used from one
    thread at a time; but each `broker` from any one.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        brokers: int = 3,
        port: int = 0,
        advertised_client_ports: Mapping[int, int] | None = None,
        heap_max_mib: int = 256,
        java_options: Sequence[str] = (),
        start_timeout_s: float = 120,
        stop_timeout_s: float = 20,
        settings: Mapping[str, str] | None = None,
        jars: Sequence[Path] | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            data_dir: of this cluster alone; made if it is not there.
            brokers: how many; a data directory keeps its number.
            port: of broker 1, for clients; the others' follow it. 0 picks free ones at the first
                start. The data directory remembers them, so that later starts have the same.
            advertised_client_ports: broker id to the port where clients are told to find it: that
                of a proxy before `Broker.client_port`. Brokers do not go through it, nor does
                anything here, so that it may be started later.
            heap_max_mib: of each broker's Java.
            java_options: added to its command line, such as `QUICK_TO_START`.
            start_timeout_s: for all to be ready.
            stop_timeout_s: for an orderly stop, before SIGKILL.
            settings: added to (and win over) every broker's configuration.
            jars: of another version of Kafka; by default those of `jars.lock`.

        Raises:
            ValueError: no brokers, no such ports, or an advertised port of no broker.
        """
        ids = range(1, brokers + 1)
        if not ids:
            raise ValueError("a cluster needs at least one broker")
        if not 0 <= port <= PORT_MAX - brokers + 1:
            raise ValueError(f"{brokers} ports from {port} on go beyond {PORT_MAX}")
        if strangers := set(advertised_client_ports or ()) - set(ids):
            raise ValueError(f"advertised ports of brokers {sorted(strangers)}, which there aren't")
        self._dir = ClusterDir(data_dir)
        self._port = port
        self._advertised = dict(advertised_client_ports or {})
        self._heap_max_mib = heap_max_mib
        self._java_options = tuple(java_options)
        self._start_timeout_s = start_timeout_s
        self._settings = dict(settings or {})
        self._stop_timeout_s = stop_timeout_s
        self._jars = jars
        self._state: State | None = None
        self.brokers: Final = tuple(
            Broker(
                broker_id,
                self._dir.broker_dir(broker_id, brokers),
                start_timeout_s=start_timeout_s,
                stop_timeout_s=stop_timeout_s,
            )
            for broker_id in ids
        )
        """In the order of their ids."""

    def broker(self, broker_id: int) -> Broker:
        """The broker of this id, from 1 on; to be killed, paused, started by itself."""
        if not 1 <= broker_id <= len(self.brokers):
            raise ValueError(f"no broker {broker_id}: ids go from 1 to {len(self.brokers)}")
        return self.brokers[broker_id - 1]

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,…` for clients, as advertised; known from the first start on."""
        ports = self._known().brokers
        return _servers(self._advertised.get(n, each.client) for n, each in enumerate(ports, 1))

    @property
    def direct_servers(self) -> str:
        """`host:port,…` of the brokers' own listeners, which no proxy cuts: for looking at the
        cluster from outside of an experiment."""
        return _servers(each.broker for each in self._known().brokers)

    @property
    def data_dir(self) -> Path:
        """The data directory, absolute."""
        return self._dir.path

    @property
    def is_running(self) -> bool:
        """Whether every broker's process is alive (also while paused)."""
        return all(broker.is_running for broker in self.brokers)

    @property
    def has_majority(self) -> bool:
        """Whether enough brokers' processes are alive to elect leaders (paused ones count)."""
        return sum(broker.is_running for broker in self.brokers) > len(self.brokers) // 2

    def start(self) -> None:
        """Start the brokers that don't run; wait until all know each other and topics can be made.

        About 3 s for one, 10 s for three; 10 s more for the first download. Raises a
        LocalKafkaError; then nothing is running that wasn't before.
        """
        stopped = [broker for broker in self.brokers if not broker.is_running]
        if not stopped:
            return
        try:
            if len(stopped) == len(self.brokers):
                self._prepare()
            for broker in stopped:
                broker.start(wait=False)
            ids = frozenset(broker.id for broker in self.brokers)
            await_ready(self.brokers, ids, self._start_timeout_s)
        except BaseException:
            for broker in stopped:
                broker.kill()
            if len(stopped) == len(self.brokers):
                self._give_back()
            raise
        pids = ",".join(str(broker.pid) for broker in self.brokers)
        _LOG.info("kafka_started pid=%s bootstrap=%s", pids, self.bootstrap_servers)

    def stop(self) -> None:
        """Orderly stop of all: SIGTERM, a bounded wait, then SIGKILL. Nothing to do if stopped.

        A broker asks the controllers' majority whether it may go, and waits for minutes if there
        is none: so those that haven't asked when the majority ends are killed soon after, and
        without one from the outset it is SIGKILL at once.
        """
        if self.has_majority:
            for broker in self.brokers:
                broker.ask_to_stop()
            deadline = time.monotonic() + self._stop_timeout_s
            while self.has_majority and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            deadline = min(deadline, time.monotonic() + _STRAGGLER_S)
            for broker in self.brokers:
                if not broker.await_end(deadline):
                    _LOG.warning("kafka_killed_at_stop broker=%d", broker.id)
        self.kill()

    def kill(self) -> None:
        """SIGKILL for all, as a power cut would be. Nothing to do if they are stopped."""
        for broker in self.brokers:
            broker.kill()
        self._give_back()

    def restart(self) -> None:
        """Orderly stop and start of all; addresses and records stay. Raises a LocalKafkaError."""
        self.stop()
        self.start()

    def await_in_sync(self, timeout_s: float = 60) -> None:
        """Wait until every partition has a leader and all of its replicas in sync.

        Every broker is asked: one that was cut off knows only how it was before. So all must run.

        Raises:
            BrokerNotRunningError: a broker is not running.
            NotInSyncError: not within `timeout_s`; with the partitions that lag.
        """
        deadline = time.monotonic() + timeout_s
        while lagging := self._lagging():
            if time.monotonic() > deadline:
                raise NotInSyncError(
                    f"{len(lagging)} partitions are not in sync after {timeout_s:g} s.", lagging
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _known(self) -> State:
        if self._state is None:
            raise BrokerNotRunningError("The local Kafka was not started yet: call start().")
        return self._state

    def _prepare(self) -> None:
        """Take the data directory, settle the ports, write files, format storage."""
        java, jars = find_java(), self._jars or ensure_jars()
        class_data = ClassData.of(java, jars, cache=cache_dir().with_name("class-data"))
        self._dir.acquire()
        self._state = state = self._settle()
        self._dir.write(state)
        setups = [
            Setup(
                java=java,
                jars=jars,
                class_data=class_data,
                heap_max_mib=self._heap_max_mib,
                java_options=self._java_options,
                cluster_id=state.cluster_id,
                ports=ports,
                properties=self._properties(broker_id, state),
            )
            for broker_id, ports in enumerate(state.brokers, start=1)
        ]
        with ThreadPoolExecutor(len(setups)) as pool:  # a second of Java each
            list(pool.map(Broker.configure, self.brokers, setups))

    def _properties(self, broker_id: int, state: State) -> dict[str, str]:
        own = state.brokers[broker_id - 1]
        configured = broker_settings(
            broker_id,
            state.brokers,
            advertised_port=self._advertised.get(broker_id, own.client),
            kafka_data=self._dir.broker_dir(broker_id, len(state.brokers)).kafka_data,
        )
        return {**configured, **self._settings}

    def _settle(self) -> State:
        known, count = self._dir.read_state(), len(self.brokers)
        if known is None:
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            none = Ports(client=0, broker=0, controller=0)
            known = State(cluster_id=cluster_id, brokers=(none,) * count)
        if len(known.brokers) != count:
            raise DataDirError(
                f"{self._dir.path} has the records of {_brokers(len(known.brokers))}, not of "
                f"{count}: start {len(known.brokers)}, or choose another data directory."
            )
        ports = settle_ports(known.brokers, self._port, besides=self._advertised.values())
        return State(cluster_id=known.cluster_id, brokers=ports)

    def _lagging(self) -> list[str]:
        found: set[str] = set()
        for broker in self.brokers:
            if not broker.is_running:
                raise BrokerNotRunningError(
                    f"Broker {broker.id} is not running, and so can't be in sync: start it first."
                )
            found.update(lagging_partitions(broker.direct_server, brokers=len(self.brokers)))
        return sorted(found)

    def _give_back(self) -> None:
        for broker in self.brokers:
            broker.withdraw()
        self._dir.release()


class LocalKafka(LocalCluster):
    """A cluster of one broker.

        with LocalKafka(Path("data")) as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    It starts in 3 s; arguments as `LocalCluster`. An object is used from one thread at a time.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        heap_max_mib: int = 256,
        java_options: Sequence[str] = (),
        start_timeout_s: float = 120,
        stop_timeout_s: float = 20,
        settings: Mapping[str, str] | None = None,
        jars: Sequence[Path] | None = None,
    ) -> None:
        super().__init__(
            data_dir,
            brokers=1,
            port=port,
            heap_max_mib=heap_max_mib,
            java_options=java_options,
            start_timeout_s=start_timeout_s,
            stop_timeout_s=stop_timeout_s,
            settings=settings,
            jars=jars,
        )

    @property
    def log_path(self) -> Path:
        """The broker's own log."""
        return self.broker(1).log_path

    @property
    def pid(self) -> int:
        """Process id of the running broker. Raises BrokerNotRunningError."""
        return self.broker(1).pid

    def log_tail(self) -> list[str]:
        """The last lines of the broker's log, for a message that says why it died."""
        return self.broker(1).log_tail()

    def pause(self) -> None:
        """SIGSTOP: alive, silent, its connections open. Raises BrokerNotRunningError."""
        self.broker(1).pause()

    def resume(self) -> None:
        """SIGCONT after `pause()`. Raises BrokerNotRunningError."""
        self.broker(1).resume()


def settle_ports(
    known: Sequence[Ports], first_port: int, *, besides: Iterable[int] = ()
) -> tuple[Ports, ...]:
    """Each broker's ports for the coming start.

    Args:
        known: those of the last start; 0 where there is none yet.
        first_port: for broker 1's clients, the others' follow; 0: as known, or else free ones.
        besides: never picked.

    Raises:
        PortInUseError: a port that clients know is taken. One that only brokers know is replaced.
    """
    clients = [
        first_port + number if first_port else each.client for number, each in enumerate(known)
    ]
    for port in filter(None, clients):
        check_port(port)
    taken = {*clients, *besides} - {0}
    remembered = {port for each in known for port in (each.broker, each.controller)}

    def settled(port: int) -> int:
        if not port or port in taken or not is_free(port):
            (port,) = pick_ports(1, besides=taken | remembered)
        taken.add(port)
        return port

    return tuple(
        Ports(
            client=client or settled(0),
            broker=settled(each.broker),
            controller=settled(each.controller),
        )
        for client, each in zip(clients, known, strict=True)
    )


def _servers(ports: Iterable[int]) -> str:
    return ",".join(f"{HOST}:{port}" for port in ports)


def _brokers(count: int) -> str:
    return "one broker" if count == 1 else f"{count} brokers"
