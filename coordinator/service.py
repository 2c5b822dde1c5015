"""Runs the coordinator as a process: what clients ask for, on one runtime per journal partition."""

from __future__ import annotations

import asyncio
import faulthandler
import ipaddress
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, TextIO

from ..journal.collector import collect_seldom
from ..journal.errors import BrokerError, ConfigError, LogtxError
from ..journal.logs.asking import PAUSE_S, UNANSWERED
from ..journal.logs.interface import Log, TopicInfo
from ..journal.logs.open import open_log
from ..journal.records.codec import FORMAT_VERSION
from ..journal.tls import TlsConfig
from .core.decision import ShardConfig
from .core.handing import Known
from .core.shard import Shard
from .core.tenure import RECORD_MAX_BYTES
from .membership.members import Members
from .ownership import Ownership
from .protocol import commands
from .protocol.strangers import Role as End
from .ready import READY
from .runtime.appender import Appender
from .runtime.counters import CoordinatorCounters
from .runtime.housekeeping import HousekeepingConfig
from .runtime.internal_topics import prepare_topics
from .runtime.markers import MarkerWriter
from .runtime.modes_topic import ModesWriter
from .runtime.offsets_topic import OffsetsWriter
from .runtime.partition import TICK_S, PartitionRuntime, Role
from .runtime.services import Services
from .runtime.topics import TopicLookUps
from .server.bindings import GroupBindings
from .server.consumers import Consumers
from .server.metrics import CoordinatorCollector, MetricsServer, Reader
from .server.opened import Opened
from .server.retention import RetentionConfig, RetentionGuard
from .server.rules import TopicRules
from .server.sidecars import Sidecars
from .server.stream import StreamLimits
from .server.streams import Streams
from .server.switching import Switching
from .server.trimming import SidecarConfig, SidecarTrimmer
from .store.opening import MetadataConfig
from .store.runtime import MetadataRuntime
from .tasks import Failures, essential_task
from .transport.address import joined, split
from .transport.on_loop import Listener
from .transport.tls import Tls

try:
    import resource
except ImportError:  # There is none for Windows.
    resource = None  # type: ignore[assignment]

_LOG = logging.getLogger(__name__)

SWITCH_S: Final = 0.0005
"""Python's thread switch interval: how long a librdkafka thread with an acknowledgement waits while
the event loop holds the interpreter. Python's default of 5 ms costs a tenth of the transactions
per second with hundreds in flight."""
JOURNAL_CONFIG: Final = {"batch.size": RECORD_MAX_BYTES}
"""The journal's ``max.message.bytes`` is checked for its largest record, and no batch is larger."""
ENDS_S: Final = 30.0
"""How long a process may take to end when it is told to: what Kubernetes gives it before SIGKILL.
Then it ends anyway, and prints what each thread waited for. Nothing is lost: the others see its end
as that of a process that was killed."""
START_S: Final = 60.0
"""How long a coordinator that starts asks again while no broker answers. A smaller value ends
coordinators that start together with Kafka, a larger one tells a wrong address's supervisor later;
people read of it in the log at once."""
READERS: Final = 2
"""Journal partitions read at one time, for loading and again for look-ups. More take processor time
from the clients that are served meanwhile; with one, a long read holds up all others."""
DESCRIPTORS_MIN: Final = 4_096
"""File descriptors below which a coordinator warns at its start: each client takes one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorConfig:
    """Settings of a coordinator process."""

    bootstrap_servers: str
    listen: str = "127.0.0.1:9095"
    """host:port to listen at; port 0 takes a free one."""
    advertised: str | None = None
    """host:port that clients connect to; None: the address that it listens at."""
    journal_partitions: int = 8
    """Partition count of the journal topic, if it must be created; fixed from then on."""
    replication_factor: int = -1
    """Replicas of logtx's internal topics; -1 is the broker's default."""
    limits: ShardConfig = field(default_factory=ShardConfig)
    """Limits of transactions and sessions in each journal partition."""
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    """When a transaction is reported or aborted because the broker is about to delete its data."""
    housekeeping: HousekeepingConfig = field(default_factory=HousekeepingConfig)
    """When snapshots of the journal are taken and the journal is trimmed."""
    metrics_listen: str | None = None
    """host:port to serve `/metrics` at; port 0 takes a free one; None: no metrics."""
    sidecars: SidecarConfig = field(default_factory=SidecarConfig)
    """When records of sidecars that nobody needs are deleted."""
    metadata: MetadataConfig = field(default_factory=MetadataConfig)
    """Where headers and operations of transactions are kept, to be asked for."""
    tls: TlsConfig | None = None
    """How connections of clients and other coordinators are protected; None: not at all."""
    client: Mapping[str, Any] = field(default_factory=dict)
    """More librdkafka settings, such as ``security.protocol``."""


def _check_callable(config: CoordinatorConfig) -> None:
    for option, told in (("--listen", config.listen), ("--advertise", config.advertised)):
        try:
            if told is not None and not told.startswith(":"):
                split(told)
        except ConfigError as error:
            raise ConfigError(f"{option}: {error}") from error
    # The wildcard is the same on all hosts: each coordinator would take the others for itself.
    address = config.advertised or config.listen
    host = _host(address)
    try:
        is_wildcard = host in ("", "*") or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_wildcard = False
    if is_wildcard:
        raise ConfigError(
            f"nobody can connect to {address}: --advertise the host:port that clients and other"
            f" coordinators reach this one at"
        )
    if config.advertised is not None and split(config.advertised)[1] == 0:
        raise ConfigError(
            f"nobody can connect to {config.advertised}: --advertise the port that clients and"
            " other coordinators reach this one at. Without --advertise they are told the free one"
            " that --listen takes for port 0"
        )


def _warn_of_loopback(config: CoordinatorConfig) -> None:
    """Warns of an address that clients on other machines take for their own."""
    address = config.advertised or config.listen
    hosts = (server.rpartition("://")[2] for server in config.bootstrap_servers.split(","))
    if _is_of_this_machine(address) and not all(map(_is_of_this_machine, hosts)):
        _LOG.warning(
            "advertises_loopback address=%s: clients and coordinators on other machines can't"
            " connect to it; --listen and --advertise a host:port that they reach this one at",
            address,
        )


def _is_of_this_machine(address: str) -> bool:
    host = _host(address.strip())
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host in ("localhost", "")


def _host(address: str) -> str:
    """Returns the host of an address, or "" if it names none."""
    try:
        return split(address)[0]
    except ConfigError:
        return ""


class Coordinator:
    """A coordinator: serves producers and consumers from the journal partitions that it owns."""

    def __init__(self, config: CoordinatorConfig, log: Log | None = None) -> None:
        """Opens the log if none is given; `start` does the rest.

        Raises:
            ConfigError: a file of TLS can't be used.
        """
        self._config = config
        self._tls = None if config.tls is None else Tls(End.COORDINATOR, config.tls)
        """Of those who connect to this coordinator."""
        self._peers_tls = None if config.tls is None else Tls(End.CLIENT, config.tls)
        """Of connections to other coordinators."""
        self._log = log or open_log(
            {"bootstrap.servers": config.bootstrap_servers, **config.client}
        )
        self._runtimes: dict[int, PartitionRuntime] = {}
        self._topics = TopicLookUps(self._log)
        self._bindings = GroupBindings(self._log, self._runtimes, self._peers_tls)
        self._switching = Switching(self._topics, self._bindings)
        self._rules = TopicRules(self._log, self._topics.known, self._peers_tls)
        self._topics.listen(self._rules.looked_up)
        self._sidecars = Sidecars(self._log, self._topics)
        self._consumers = Consumers()
        self._counters = CoordinatorCounters()
        self._metrics: MetricsServer | None = None
        self._streams = Streams(
            self._runtimes,
            self._topics,
            self._bindings,
            self._switching,
            self._rules,
            self._sidecars,
            self._consumers,
            StreamLimits.for_open_transactions(config.limits.max_open_transactions_per_producer),
            self._counters,
        )
        self._internal: tuple[TopicInfo, TopicInfo] | None = None
        """What the log says of logtx's internal topics; None before `prepare`."""
        self._listener: Listener | None = None
        self._services: Services | None = None
        self._ownership: Ownership | None = None
        self._metadata: MetadataRuntime | None = None
        # As many threads as there are cores to decode with: a long read in one leaves the other.
        self._reading = ThreadPoolExecutor(READERS, thread_name_prefix="reading")
        self._loading = ThreadPoolExecutor(READERS, thread_name_prefix="loading")
        self._ticker: asyncio.Task[None] | None = None
        self._guard = RetentionGuard(self._log, self._served, self._abort, config.retention)
        self._guarding: asyncio.Task[None] | None = None
        self._trimmer: SidecarTrimmer | None = None
        self._trimming: asyncio.Task[None] | None = None
        self.address = ""
        """host:port that clients connect to."""

    async def prepare(self) -> None:
        """Creates logtx's internal topics if missing, and checks them. May be repeated.

        Raises:
            ConfigError: the address can't be connected to.
            JournalTopicError: an internal topic has settings that could lose decisions.
            BrokerError: Kafka does not answer.
        """
        _check_callable(self._config)
        self._internal = await asyncio.to_thread(
            prepare_topics,
            self._log,
            partitions=self._config.journal_partitions,
            replication_factor=self._config.replication_factor,
        )

    async def start(self) -> None:
        """Prepares if that is not done, listens, and joins the other coordinators.

        Raises:
            ConfigError: the address is taken, can't be listened at, or can't be connected to.
            JournalTopicError: an internal topic has settings that could lose decisions.
            BrokerError: Kafka does not answer.
        """
        if self._internal is None:
            await self.prepare()
        assert self._internal is not None
        journal, offsets = self._internal
        listener = self._listener = Listener(tls=self._tls)
        port = listener.bind(self._config.listen)
        self.address = self._config.advertised or joined(_host(self._config.listen), port)
        nonce = random.getrandbits(63)
        ownership = self._ownership = Ownership(
            self._log,
            self._runtimes,
            address=self.address,
            nonce=nonce,
            journal_id=journal.topic_id,
            topics=self._topics.known,
            alive=listener.alive,
            tls=self._peers_tls,
        )
        for each in (self._switching, self._sidecars, self._consumers):
            each.members = ownership.members
        metadata = self._metadata = MetadataRuntime(
            self._log,
            self._config.metadata,
            partition_count=journal.partition_count,
            served=self._served_partitions,
        )
        # Before the listener starts: a client that is told that the journal has 0 partitions would
        # not come back. No partition is served or followed before `ownership` starts.
        services = self._services = self._services_of(ownership, nonce, journal, offsets)
        self._switching.modes = self._rules.modes = services.modes
        self._make_runtimes(services)
        await listener.start(Opened(self._streams, metadata.service, ownership.peers).serve)
        if self._config.advertised is not None:
            await ownership.peers.check_own_address(self.address)
        ownership.start()
        metadata.start()
        self._ticker = essential_task(self._tick(), "ticks")
        self._guarding = essential_task(self._guard.run(), "retention")
        trimmer = self._trimmer = SidecarTrimmer(
            self._log,
            known=self._known,
            served=self._served_partitions,
            journal=journal,
            config=self._config.sidecars,
        )
        self._trimming = essential_task(trimmer.run(), "trimming")
        if self._config.metrics_listen is not None:
            self._metrics = self._serve_metrics(self._config.metrics_listen, services)

    def _services_of(
        self, ownership: Ownership, nonce: int, journal: TopicInfo, offsets: TopicInfo
    ) -> Services:
        return Services(
            log=self._log,
            journal=Appender(self._log, JOURNAL_CONFIG, "journal"),
            markers=MarkerWriter(self._log, self._topics),
            offsets=OffsetsWriter(self._log, offsets.partition_count),
            modes=ModesWriter(self._log, self._config.replication_factor),
            tail=ownership.tail,
            members=ownership.members,
            reading=self._reading,
            loading=self._loading,
            address=self.address,
            process_nonce=nonce,
            partition_count=journal.partition_count,
            housekeeping=self._config.housekeeping,
            look_ups=self._topics,
            counters=self._counters,
            who_answers=ownership.peers.who_answers,
            is_free=self._bindings.is_free,
            membership_changed=ownership.changed,
            decided=self._streams.decided,
            close_session=self._streams.close_session,
            close_sessions=self._streams.close_sessions,
        )

    def _make_runtimes(self, services: Services) -> None:
        for partition in range(services.partition_count):
            runtime = PartitionRuntime(partition, services, self._config.limits)
            self._runtimes[partition] = runtime
        services.handing.known = self._known
        self._sidecars.homes = services.handing.homes
        services.handing.all_read = partial(_all_read, services.members)

    def _known(self) -> list[Known]:
        found = (runtime.known for runtime in self._runtimes.values())
        return [known for known in found if known is not None]

    async def wait_serving(self, timeout_s: float = 60) -> Mapping[int, LogtxError]:
        """Waits until each partition is served, here or by another coordinator.

        Partitions that can't be served are not waited for, and don't affect the others.

        Returns:
            Journal partition that can't be served → why not.

        Raises:
            CoordinatorLoadingError: a partition was not served within `timeout_s` seconds.
            JournalTopicError: the journal's partition count was changed.
            JournalError: no partition can be served.
        """
        assert self._ownership is not None, "start() first"
        return await self._ownership.wait_served(timeout_s)

    async def stop(self, *, give: bool = True) -> None:
        """Gives the partitions served here to other coordinators, if there are any, and closes.

        Open transactions live on in the journal. The time is bounded: the others take over what
        could not be given away when this process is gone.

        Args:
            give: False gives nothing away, as if the process had just ended.
        """
        if self._ownership is not None and give:
            await self._ownership.leave()
        for task in (self._ticker, self._guarding, self._trimming):
            if task is not None:
                task.cancel()
        if self._metrics is not None:
            await asyncio.to_thread(self._metrics.close)
        self._guard.close()
        self._bindings.close()
        self._rules.close()
        self._sidecars.close()
        if self._trimmer is not None:
            self._trimmer.close()
        if self._ownership is not None:
            await self._ownership.stop()
        if self._metadata is not None:
            await self._metadata.stop()
        if self._listener is not None:
            await self._listener.stop()
        if self._services is not None:
            services = self._services
            await asyncio.gather(
                services.journal.close(),
                services.markers.close(),
                services.offsets.close(),
                services.modes.close(),
            )
        self._topics.close()
        if self._services is not None:
            self._services.questions.close()
        self._reading.shutdown(wait=False, cancel_futures=True)
        self._loading.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._log.close)

    def _serve_metrics(self, listen: str, services: Services) -> MetricsServer:
        assert self._metadata is not None, "it is started before"
        reader = Reader(
            self._runtimes,
            self._streams,
            services.markers,
            self._counters,
            self._metadata,
            None if self._trimmer is None else self._trimmer.counters,
        )
        loop = asyncio.get_running_loop()
        return MetricsServer(listen, CoordinatorCollector(reader, self._log, loop))

    def _served(self) -> list[Shard]:
        return [r.shard for r in self._runtimes.values() if r.role is Role.SERVING]

    def _served_partitions(self) -> set[int]:
        return {p for p, r in self._runtimes.items() if r.role is Role.SERVING}

    def _abort(self, command: commands.AbortTransaction) -> None:
        self._runtimes[command.txid.partition].submit(command, _nobody_waits)

    async def _tick(self) -> None:
        due_s = time.monotonic() + TICK_S
        while True:
            await asyncio.sleep(TICK_S)
            now_s = time.monotonic()
            late_s, due_s = now_s - due_s, now_s + TICK_S
            for runtime in self._runtimes.values():
                runtime.tick()
            if self._services is not None:
                self._services.members.patience.woke(late_s, now_s)
                self._services.markers.tick()
                self._services.handing.tick()


def _all_read(members: Members) -> bool:
    """Returns whether the other coordinators that answer read this version's journal."""
    others = members.reached(time.monotonic())
    return all(other.journal_format >= FORMAT_VERSION for other in others)


def _nobody_waits(_reply: commands.Reply) -> None:
    """Ignores a reply: the guard repeats its command until the command has taken effect."""


async def serve(
    config: CoordinatorConfig,
    stop: asyncio.Event,
    ready: Callable[[Coordinator, Mapping[int, LogtxError]], None],
    log: Log | None = None,
) -> None:
    """Runs a coordinator until `stop` is set. While no broker answers, it waits for `START_S`.

    Args:
        config: settings of the coordinator.
        stop: ends the coordinator when set.
        ready: called once it serves, with the partitions that can't be served, and why.
        log: the log to use instead of opening ``bootstrap_servers``.

    Raises:
        LogtxError: the coordinator can't start.
        Exception: a bug. The coordinator ended at once, so that the others take over.
    """
    failures = Failures(asyncio.get_running_loop())
    coordinator = Coordinator(config, log)
    stopping = asyncio.ensure_future(stop.wait())
    ended: set[asyncio.Future[Any]] = {stopping, failures.first}
    started: asyncio.Future[None] | None = None
    try:
        _warn_of_loopback(config)
        if not await _prepared(coordinator, config.bootstrap_servers, stop):
            return
        started = asyncio.ensure_future(_started(coordinator, ready))
        # The start waits for brokers; whoever ends it meanwhile, or loses a task, is heard at once.
        await asyncio.wait({started, *ended}, return_when=asyncio.FIRST_COMPLETED)
        if await _has_started(started):
            await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
        if failures.first.done():
            failures.first.result()
    finally:
        stopping.cancel()
        if started is not None:
            started.cancel()
        await coordinator.stop(give=not failures.first.done())


async def _started(
    coordinator: Coordinator, ready: Callable[[Coordinator, Mapping[int, LogtxError]], None]
) -> None:
    await coordinator.start()
    ready(coordinator, await coordinator.wait_serving())


async def _has_started(started: asyncio.Future[None]) -> bool:
    """Returns whether the start is done; gives it up if it is not. Raises what made it fail."""
    started.cancel()
    await asyncio.wait({started})
    if started.cancelled():
        return False
    started.result()
    return True


async def _prepared(coordinator: Coordinator, servers: str, stop: asyncio.Event) -> bool:
    """Prepares it; asks again while no broker answers. Returns False if it is to stop instead.

    Raises:
        BrokerError: none answered for `START_S`, or one refused.
        LogtxError: as `Coordinator.prepare`.
    """
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + START_S
    while not stop.is_set():
        try:
            await coordinator.prepare()
        except BrokerError as error:
            left_s = deadline_s - loop.time()
            if error.args[0].code() not in UNANSWERED or left_s <= 0:
                raise
            _LOG.warning(
                "kafka_unanswered servers=%s left_s=%.0f error=%s: asking again",
                *(servers, left_s, error),
            )
            await asyncio.sleep(PAUSE_S)
        else:
            return True
    return False


def _announce(coordinator: Coordinator, unserved: Mapping[int, LogtxError]) -> None:
    for error in unserved.values():
        print(f"error: {error}", file=sys.stderr, flush=True)
    print(f"{READY}{coordinator.address}", flush=True)


def run(config: CoordinatorConfig) -> None:
    """Runs a coordinator until SIGTERM or SIGINT; the process ends within `ENDS_S` then.

    Raises:
        ConfigError, JournalTopicError, BrokerError: the coordinator can't start; the message says
            why.
    """

    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger(__package__).setLevel(logging.INFO)
    collect_seldom()
    allow_descriptors()
    sys.setswitchinterval(SWITCH_S)

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def end() -> None:
            if not stop.is_set():
                stop.set()
                _end_at_last()

        for signum in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signum, end)
        await serve(config, stop, _announce)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main())


def _end_at_last() -> None:
    try:
        faulthandler.dump_traceback_later(ENDS_S, exit=True)
    except (RuntimeError, ValueError, OSError):  # Standard error is closed, or is no file.
        faulthandler.dump_traceback_later(ENDS_S, exit=True, file=_nowhere())


@cache
def _nowhere() -> TextIO:
    return Path(os.devnull).open("w")  # For as long as the process lives.


def allow_descriptors() -> None:
    """Raises this process's limit of open files to what the system allows it; warns if that is low.

    A shell's own limit is often 1,024, and beyond it no more clients are taken.
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError) as error:
            # macOS allows less than the hard limit that it tells.
            _LOG.warning("descriptors_not_raised soft=%d error=%s", soft, error)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_MIN:
        _LOG.warning("few_descriptors limit=%d fix=ulimit -n %d", soft, DESCRIPTORS_MIN)


def _loop_factory() -> Any:
    try:
        import uvloop
    except ImportError:  # uvloop does not exist for Windows.
        return None
    return uvloop.new_event_loop
