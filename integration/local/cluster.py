"""Runs a Kafka cluster on this machine: brokers in KRaft mode, each a child process.

Each node is broker and controller. With three of them any one may be lost: partitions have three
replicas, two of which must have a record before it is acknowledged, and two controllers are a
majority of three.
"""

from __future__ import annotations

import logging
import time
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
from .security import Security
from .settings import broker_settings
from .storage import Features, new_id
from .topics import lagging_partitions

_LOG = logging.getLogger(__name__)

QUICK_TO_START: Final = ("-XX:TieredStopAtLevel=1",)
"""Java options for brokers that live for minutes, or are killed: a broker costs 40 % less CPU in
its first minutes, and more under full load later, because its code is compiled once, lightly."""
_POLL_S: Final = 0.1
"""Pause between two looks at the brokers; a smaller value takes CPU from them."""
_STRAGGLER_S: Final = 5.0
"""Time for the last brokers to end, once the majority has ended. With less, a broker that was
allowed to go could be killed while it closes its log files; with more, `stop` waits longer for
those that were not."""


class LocalCluster:
    """Runs Kafka brokers on 127.0.0.1, ids 1 to `brokers`, with their records in `data_dir`.

        with LocalCluster(Path("data")) as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
            kafka.broker(2).kill()
            ...
            kafka.broker(2).start()
            kafka.await_in_sync()

    Topics, also Kafka's own, have min(3, brokers) replicas by default. ``min.insync.replicas`` is
    one less, but at least 1. The brokers are killed when this process dies in any way. Use an
    object from one thread at a time; different brokers may be used from different threads.
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
        security: Security | None = None,
        jars: Sequence[Path] | None = None,
    ) -> None:
        """Prepares the cluster; `start` runs it.

        Args:
            data_dir: directory of this cluster alone; `start` makes it if it is not there.
            brokers: number of brokers; it can't change for a data directory.
            port: client port of broker 1; the other brokers have the ports that follow. 0 picks
                free ones at the first start, and the data directory remembers them, so that later
                starts have the same.
            advertised_client_ports: broker id → the port where clients are told to find it, that
                of a proxy before `Broker.client_port`. Neither the brokers nor anything here go
                through the proxy, so it may be started later.
            heap_max_mib: largest heap of each broker's Java, in MiB.
            java_options: options added to its command line, such as `QUICK_TO_START`.
            start_timeout_s: longest wait in seconds until all are ready.
            stop_timeout_s: longest orderly stop in seconds, before SIGKILL.
            settings: properties added to every broker's configuration; they win over its own.
            security: who may connect as a client; None for everybody.
            jars: jars of another version of Kafka; by default those of `jars.lock`.

        Raises:
            ValueError: there are no brokers, the ports go beyond 65535, or an advertised port
                belongs to no broker.
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
        self._security = security
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
        """The brokers, in the order of their ids."""

    def broker(self, broker_id: int) -> Broker:
        """Returns the broker of this id (from 1 on), to kill, pause or start it by itself.

        Raises ValueError if there is no such broker.
        """
        if not 1 <= broker_id <= len(self.brokers):
            raise ValueError(f"no broker {broker_id}: ids go from 1 to {len(self.brokers)}")
        return self.brokers[broker_id - 1]

    @property
    def bootstrap_servers(self) -> str:
        """`host:port,…` for clients, as advertised. Raises BrokerNotRunningError before `start`."""
        ports = self._known().brokers
        return _servers(self._advertised.get(n, each.client) for n, each in enumerate(ports, 1))

    @property
    def direct_servers(self) -> str:
        """`host:port,…` of the brokers' own listeners, to look at the cluster from outside of an
        experiment: no proxy cuts them. Raises BrokerNotRunningError before `start`."""
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
        """Starts the brokers that don't run, and waits until topics can be created on all.

        Takes about 3 s for one broker, 10 s for three, and 10 s more for the first download. Raises
        a LocalKafkaError; the brokers that it started are then killed.
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
        """Stops all brokers in order: sends SIGTERM, waits, then sends SIGKILL.

        Does nothing if they are stopped. A broker asks the controllers' majority whether it may go,
        and waits for minutes if there is none. So the brokers that haven't asked when the majority
        ends are killed soon after. Without a majority from the outset all get SIGKILL at once.
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
        """Kills all brokers (SIGKILL), like a power cut. Does nothing if they are stopped."""
        for broker in self.brokers:
            broker.kill()
        self._give_back()

    def restart(self) -> None:
        """Stops all in order, starts them; keeps addresses and records. Raises LocalKafkaError."""
        self.stop()
        self.start()

    def await_in_sync(self, timeout_s: float = 60) -> None:
        """Waits until every partition has a leader and all of its replicas in sync.

        Asks every broker, because one that was cut off knows only how it was before. So all must
        run.

        Raises:
            BrokerNotRunningError: a broker is not running.
            NotInSyncError: partitions still lag after `timeout_s` seconds; it names them.
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
        """Takes the data directory, settles the ports, writes the files, formats the storage."""
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
                features=Features(class_data.archive.with_suffix(".checkpoint")),
                heap_max_mib=self._heap_max_mib,
                java_options=self._java_options,
                cluster_id=state.cluster_id,
                ports=ports,
                properties=self._properties(broker_id, state),
            )
            for broker_id, ports in enumerate(state.brokers, start=1)
        ]
        with ThreadPoolExecutor(len(setups)) as pool:  # at first a second of Java each
            list(pool.map(Broker.configure, self.brokers, setups))

    def _properties(self, broker_id: int, state: State) -> dict[str, str]:
        own = state.brokers[broker_id - 1]
        configured = broker_settings(
            broker_id,
            state.brokers,
            advertised_port=self._advertised.get(broker_id, own.client),
            kafka_data=self._dir.broker_dir(broker_id, len(state.brokers)).kafka_data,
            security=self._security,
        )
        return {**configured, **self._settings}

    def _settle(self) -> State:
        known, count = self._dir.read_state(), len(self.brokers)
        if known is None:
            cluster_id = new_id()
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
    """Runs a cluster of one broker.

        with LocalKafka(Path("data")) as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    It starts in 3 s. The arguments are those of `LocalCluster`. Use an object from one thread at a
    time.
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
        security: Security | None = None,
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
            security=security,
            jars=jars,
        )

    @property
    def log_path(self) -> Path:
        """Path of the broker's own log."""
        return self.broker(1).log_path

    @property
    def pid(self) -> int:
        """Process id of the running broker. Raises BrokerNotRunningError."""
        return self.broker(1).pid

    def log_tail(self) -> list[str]:
        """Returns the last lines of the broker's log, for a message that says why it died."""
        return self.broker(1).log_tail()

    def pause(self) -> None:
        """Sends SIGSTOP and waits: the broker is alive but silent, and its connections stay open.

        Raises BrokerNotRunningError.
        """
        self.broker(1).pause()

    def resume(self) -> None:
        """Sends SIGCONT, to end a pause. Raises BrokerNotRunningError."""
        self.broker(1).resume()


def settle_ports(
    known: Sequence[Ports], first_port: int, *, besides: Iterable[int] = ()
) -> tuple[Ports, ...]:
    """Returns each broker's ports for the coming start, in the order of `known`.

    Args:
        known: ports of the last start; 0 where there is none yet.
        first_port: client port of broker 1; the other brokers have the ports that follow. 0 keeps
            the known ones, and picks free ones where there are none.
        besides: ports that are never picked.

    Raises:
        PortInUseError: a port that clients know is taken. One that only brokers know is replaced.
            Also raised if too few ports are free.
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
