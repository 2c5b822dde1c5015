"""Serves `/metrics` of one coordinator, in Prometheus form.

A separate thread serves one scrape at a time. It asks the event loop for a copy of the numbers, so
that nothing that changes is read from two threads, and builds the text from the copy. Between
scrapes only `CoordinatorCounters` cost anything.

Cardinality: series carry a journal partition, a reason of aborts, a sidecar, a subscription, or a
transaction key. At most `SUBSCRIPTIONS_MAX` subscriptions have series of their own.
At most `SHOWN_MAX` sidecars have series of their own: those with most offsets. At most `KEYS_MAX`
keys have: half of them are those connected last, which show epoch conflicts, the others those
connected longest ago, which show unused keys. All keys are counted.

Source: Transaction keys, "Metrics"; PIP-471, "Metrics".
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from itertools import accumulate
from typing import Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import (
    CounterMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ...journal.errors import BrokerError, ConfigError
from ...journal.keys import TransactionKey
from ...journal.logs.interface import Log
from ...journal.reader import JOURNAL_TOPIC
from ...journal.state import State
from ..core.admin import live_keys
from ..core.decision import Instant
from ..core.queue_listing import subscription_info
from ..protocol.queues import SubscriptionInfo
from ..runtime.alarm import monotonic_ms
from ..runtime.counters import LATENCY_BOUNDS_S, CoordinatorCounters
from ..runtime.markers import MarkerWriter
from ..runtime.partition import PartitionRuntime, Role
from ..store.counters import QUERY_BOUNDS_S
from ..store.runtime import MetadataRuntime
from ..transport.address import split
from ..transport.listening import Listening
from .families import PARTITION, counter, gauge
from .queue_metrics import SUBSCRIPTIONS_MAX, QueueSeries
from .streams import Streams
from .trimming import SHOWN_MAX, TrimCounters

_LOG = logging.getLogger(__name__)

KEYS_MAX: Final = 200
"""Transaction keys with series of their own; each adds two series to every scrape."""
READ_TIMEOUT_S: Final = 5.0
"""How long a scrape waits for the event loop; past it the scrape has no series."""
ASK_TIMEOUT_S: Final = 2.0
"""How long a scrape waits for one answer of Kafka; it asks up to two questions for each journal
partition, and two for all subscriptions. Past it the rest of the series that need Kafka is left
out."""
CLIENT_TIMEOUT_S: Final = 5.0
"""How long one scraper may hold up the others."""
STOP_TIMEOUT_S: Final = 2.0
"""Longest wait of `close` for the thread."""

# ---- read on the event loop ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSample:
    """One journal partition at one moment."""

    partition: int
    role: Role
    next_offset: int
    snapshot: int | None
    serving: ServingSample | None
    """What only the owner knows; None where this coordinator does not serve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSample:
    """One journal partition at one moment, as only its owner knows it."""

    open: int
    unfinished: int
    oldest_open_s: float
    hw: int
    acknowledged_end: int
    in_flight: int
    parked: int
    sessions: int
    producers: int
    markers_queued: int
    markers_longest: int
    places_waiting: int
    places_longest_s: float
    topics_in_metadata: int
    fence: int | None
    """Offset of the snapshot that waits until the data's logs have passed it."""


@dataclass(frozen=True, slots=True)
class KeySample:
    """One transaction key at one moment."""

    name: str
    epoch: int
    connected_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A copy of everything that the event loop knows."""

    now: Instant
    partitions: tuple[PartitionSample, ...]
    key_count: int
    keys: tuple[KeySample, ...]
    totals: Mapping[str, tuple[tuple[tuple[str, ...], float], ...]]
    latency_counts: tuple[int, ...]
    latency_sum_s: float
    place_counts: tuple[int, ...]
    place_sum_s: float
    store: StoreSample | None
    """None if there is no metadata store."""
    sidecar_offsets: tuple[tuple[str, int], ...]
    """(sidecar, its offsets), of those that have series: those with most."""
    sidecar_held_s: float
    sidecar_unaging_s: float
    subscription_count: int
    subscriptions: tuple[SubscriptionInfo, ...]
    """Those that have series."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSample:
    """The metadata store at one moment."""

    op_writes: int
    operations: int
    lags: tuple[tuple[tuple[str, ...], float], ...]
    queries: Mapping[str, tuple[tuple[int, ...], float]]
    """Index → how many queries took how long, by bucket, and how long together, in seconds."""


class Reader:
    """Copies a coordinator's numbers; called on its event loop."""

    def __init__(
        self,
        runtimes: Mapping[int, PartitionRuntime],
        streams: Streams,
        markers: MarkerWriter,
        counters: CoordinatorCounters,
        metadata: MetadataRuntime | None = None,
        sidecars: TrimCounters | None = None,
    ) -> None:
        self._metadata = metadata
        self._sidecars = sidecars or TrimCounters()
        self._runtimes = runtimes
        self._streams = streams
        self._markers = markers
        self._counters = counters

    def read(self, now: Instant) -> Reading:
        """Returns a copy of all numbers as they are."""
        backlogs = self._markers.lanes.backlogs()
        sessions = self._streams.sessions()
        samples = tuple(
            self._partition(runtime, now, backlogs.get(p, (0, 0)), sessions.get(p, 0))
            for p, runtime in sorted(self._runtimes.items())
        )
        key_count, keys = self._keys()
        subscription_count, subscriptions = self._subscriptions()
        counters = self._counters
        return Reading(
            now=now,
            partitions=samples,
            key_count=key_count,
            keys=keys,
            totals={
                "committed": _by_partition(counters.committed),
                "aborted": tuple(((str(p), r.value), n) for (p, r), n in counters.aborted.items()),
                "header_cas": tuple(((r,), n) for r, n in counters.header_cas.items()),
                "places": _by_partition(counters.places),
                "appends": _by_partition(counters.appends),
                "append_bytes": _by_partition(counters.append_bytes),
                "surprises": _by_partition(counters.surprises),
                "loads": _by_partition(counters.loads),
                "load_seconds": _by_partition(counters.load_seconds),
                "connections": tuple(((y,), n) for y, n in counters.connections_refused.items()),
                "requests": tuple(((str(c),), n) for c, n in counters.requests_refused.items()),
                "sidecar_trimmed": (((), self._sidecars.trimmed),),
                "sidecar_failed": (((), self._sidecars.failed),),
            },
            latency_counts=tuple(counters.commit_latency.counts),
            latency_sum_s=counters.commit_latency.sum_s,
            place_counts=tuple(counters.place_seconds.counts),
            place_sum_s=counters.place_seconds.sum_s,
            store=self._store(),
            sidecar_offsets=tuple(
                heapq.nlargest(SHOWN_MAX, self._sidecars.offsets.items(), key=lambda each: each[1])
            ),
            sidecar_held_s=self._sidecars.held_ms / 1_000,
            sidecar_unaging_s=self._sidecars.unaging_ms / 1_000,
            subscription_count=subscription_count,
            subscriptions=subscriptions,
        )

    def _store(self) -> StoreSample | None:
        metadata = self._metadata
        if metadata is None or metadata.projector is None:
            return None
        counters = metadata.counters
        ends = {p: r.known_end for p, r in self._runtimes.items()}
        return StoreSample(
            op_writes=counters.op_writes,
            operations=counters.operations,
            lags=tuple(
                ((str(p.partition),), float(p.lag_records))
                for p in metadata.projector.describe(ends)
                if p.lag_records is not None
            ),
            queries={
                index.value: (tuple(times.counts), times.sum_s)
                for index, times in counters.queries.items()
            },
        )

    @staticmethod
    def _partition(
        runtime: PartitionRuntime, now: Instant, backlog: tuple[int, int], sessions: int
    ) -> PartitionSample:
        shard, tenure = runtime.shard, runtime.tenure
        serving = None
        if tenure is not None:
            store = shard.transactions
            began_ms = (t.started_ms for t in store if t.state is State.OPEN)
            serving = ServingSample(
                open=store.open_count,
                unfinished=len(store),
                oldest_open_s=max(0, now.wall_ms - next(began_ms, now.wall_ms)) / 1000,
                hw=shard.hw,
                acknowledged_end=tenure.acknowledged_end,
                in_flight=tenure.in_flight,
                parked=tenure.parked,
                sessions=sessions,
                producers=len(shard.producers),
                markers_queued=backlog[0],
                markers_longest=backlog[1],
                places_waiting=len(tenure.placer),
                places_longest_s=runtime.places_waited_s(now.monotonic_ms / 1000),
                topics_in_metadata=len(shard.modes.in_metadata),
                fence=None if shard.fences.waiting is None else shard.fences.waiting.offset,
            )
        return PartitionSample(
            partition=runtime.partition,
            role=runtime.role,
            next_offset=shard.next_offset,
            snapshot=shard.snapshot_offset if tenure is None else tenure.snapshot_offset,
            serving=serving,
        )

    def _keys(self) -> tuple[int, tuple[KeySample, ...]]:
        """Returns the number of keys whose home is served here, and the keys that get series."""
        found: list[tuple[int, str, int]] = []
        for runtime in self._runtimes.values():
            if runtime.tenure is not None:
                producers = runtime.shard.producers
                found += (
                    (producers[name].connected_ms, name, producers[name].generation)
                    for name in live_keys(producers)
                )
        shown = found
        if len(found) > KEYS_MAX:
            last = heapq.nlargest(KEYS_MAX // 2, found)
            shown = [*last, *heapq.nsmallest(KEYS_MAX - len(last), found)]
        return len(found), tuple(KeySample(name, epoch, ms) for ms, name, epoch in shown)

    def _subscriptions(self) -> tuple[int, tuple[SubscriptionInfo, ...]]:
        """Returns the number of subscriptions that are served here, and those that get series."""
        found = [
            (group, runtime.shard)
            for runtime in self._runtimes.values()
            if runtime.tenure is not None
            for group in runtime.shard.queues.subscriptions.names()
        ]
        shown = heapq.nsmallest(SUBSCRIPTIONS_MAX, found, key=lambda each: each[0])
        return len(found), tuple(
            subscription_info(shard.queues, group, (shard.partition, shard.incarnation))
            for group, shard in shown
        )


def _by_partition(
    counts: Mapping[int, int] | Mapping[int, float],
) -> tuple[tuple[tuple[str, ...], float], ...]:
    return tuple(((str(partition),), count) for partition, count in counts.items())


# ---- shown by the thread ------------------------------------------------------------------------


class CoordinatorCollector(Collector):
    """Turns what the event loop knows into metric families, on the scraper's thread."""

    def __init__(self, reader: Reader, log: Log, loop: asyncio.AbstractEventLoop) -> None:
        """Reads on `loop`, and asks `log` for what no coordinator remembers."""
        self._reader = reader
        self._log = log
        self._loop = loop
        self._queues = QueueSeries(log, ASK_TIMEOUT_S)

    def describe(self) -> list[Metric]:
        """Returns no metrics beforehand: all are read at a scrape."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yields every metric; none if the event loop does not answer in time."""
        try:
            asking = asyncio.run_coroutine_threadsafe(self._read(), self._loop)
            reading = asking.result(READ_TIMEOUT_S)
        except (TimeoutError, CancelledError, RuntimeError) as error:
            # RuntimeError: the loop is closed. A scrape without series shows as down.
            _LOG.warning("metrics_not_read error=%r", error)
            return
        yield from _states(reading)
        yield from _totals(reading)
        yield from _key_series(reading)
        infos, now_ms = reading.subscriptions, reading.now.monotonic_ms
        yield from self._queues.collect(infos, reading.subscription_count, now_ms)
        if reading.store is not None:
            yield from _store_series(reading.store)
        yield from self._ends(reading)

    async def _read(self) -> Reading:
        wall_ms = time.time_ns() // 1_000_000
        return self._reader.read(Instant(monotonic_ms(), wall_ms))

    def _ends(self, reading: Reading) -> Iterator[Metric]:
        """Yields what Kafka must be asked for. Series that it does not answer for are left out."""
        lags: list[tuple[Sequence[str], float]] = []
        starts: list[tuple[Sequence[str], float]] = []
        try:
            for sample in reading.partitions:
                where = JOURNAL_TOPIC, sample.partition
                labels = [str(sample.partition)]
                starts.append((labels, self._log.start_offset(*where, timeout_s=ASK_TIMEOUT_S)))
                if sample.role is Role.STANDBY:
                    end = self._log.end_offset(*where, timeout_s=ASK_TIMEOUT_S)
                    lags.append((labels, max(0, end - sample.next_offset)))
        except BrokerError as error:
            _LOG.warning("metrics_incomplete error=%s", error)
        yield gauge("journal_start_offset", "First offset that is not trimmed.", starts)
        yield gauge("standby_lag_records", "Journal records a standby has not replayed.", lags)


_SERVING_GAUGES: Final = (
    ("open", "transactions_open", "Transactions that are open."),
    ("unfinished", "transactions_unfinished", "Transactions open, or decided without all markers."),
    ("oldest_open_s", "transactions_oldest_open_seconds", "Age of the oldest open transaction."),
    ("hw", "transactions_high_watermark", "Oldest unfinished BEGIN, or the journal's end."),
    ("acknowledged_end", "journal_end_offset", "Everything below is durable."),
    ("in_flight", "journal_in_flight", "Appends that are not acknowledged."),
    ("parked", "replies_parked", "Replies that wait for an append or for the journal's end."),
    ("sessions", "sessions", "Producers' streams that are connected."),
    ("producers", "producers", "Producer ids that are known, keys and fenced ones among them."),
    ("markers_queued", "markers_queued", "Markers that data partitions have not taken."),
    (
        "markers_longest",
        "markers_queued_longest",
        "Markers that wait for the data partition with most.",
    ),
    ("places_waiting", "places_waiting", "Places of decided transactions that are not durable."),
    (
        "places_longest_s",
        "places_waiting_longest_seconds",
        "Time that the first decision without all its places has waited.",
    ),
)


def _states(reading: Reading) -> Iterator[Metric]:
    partitions = reading.partitions
    roles = (
        ((str(p.partition), role.name.lower()), float(p.role is role))
        for p in partitions
        for role in Role
    )
    yield gauge(
        "partition_role",
        "1 for what this coordinator is to a journal partition.",
        roles,
        ("partition", "role"),
    )
    offsets = [([str(p.partition)], p.next_offset) for p in partitions]
    yield gauge("journal_next_offset", "Next journal record to replay or append.", offsets)
    snapshots = [([str(p.partition)], p.snapshot) for p in partitions if p.snapshot is not None]
    yield gauge("snapshot_offset", "First chunk of the latest complete snapshot.", snapshots)
    served = [(str(p.partition), p.serving) for p in partitions if p.serving is not None]
    for field, name, text in _SERVING_GAUGES:
        values = [([partition], float(getattr(sample, field))) for partition, sample in served]
        yield gauge(name, text, values)
    fences = [([p], s.fence) for p, s in served if s.fence is not None]
    text = "Snapshot that the journal is trimmed to next, once the data's logs have passed it."
    yield gauge("journal_fence_offset", text, fences)
    topics = sum(sample.topics_in_metadata for _, sample in served)
    text = "Topics in metadata mode that have their home here."
    yield gauge("topics_metadata_mode", text, [((), topics)], ())
    offsets = [([sidecar], n) for sidecar, n in reading.sidecar_offsets]
    text = "Offsets of a sidecar that is trimmed here, from its start to its end."
    yield gauge("sidecar_offsets", text, offsets, ("topic",))
    text = "Time that unfinished transactions have held up the trimming of sidecars."
    yield gauge("sidecar_held_seconds", text, [((), reading.sidecar_held_s)], ())
    text = "Time that what is placed at the end of a topic has needed its sidecar."
    yield gauge("sidecar_unaging_seconds", text, [((), reading.sidecar_unaging_s)], ())


_TOTALS: Final = (
    ("committed", "transactions_committed", "Commits decided.", PARTITION),
    ("aborted", "transactions_aborted", "Aborts decided.", ("partition", "reason")),
    (
        "header_cas",
        "metadata_header_cas",
        "Requests to end a transaction: decided, decided otherwise before, refused for good.",
        ("result",),
    ),
    (
        "places",
        "places",
        "Places that became durable: one of each partition of a transaction.",
        PARTITION,
    ),
    ("appends", "journal_appends", "Records handed to the journal.", PARTITION),
    (
        "append_bytes",
        "journal_append_bytes",
        "Bytes of the records handed to the journal.",
        PARTITION,
    ),
    ("surprises", "surprises", "Tenures that ended by an unexpected answer.", PARTITION),
    ("loads", "loads", "Times that a journal partition was loaded.", PARTITION),
    ("load_seconds", "load_seconds", "Time spent loading it.", PARTITION),
    ("connections", "connections_refused", "Streams that did not become a session.", ("why",)),
    ("requests", "requests_refused", "Requests answered by an error.", ("code",)),
    ("sidecar_trimmed", "sidecar_trimmed_offsets", "Offsets of sidecars that were trimmed.", ()),
    ("sidecar_failed", "sidecar_trims_failed", "Partitions that could not be trimmed.", ()),
)


def _totals(reading: Reading) -> Iterator[Metric]:
    for field, name, text, labels in _TOTALS:
        yield counter(name, text, reading.totals[field], labels)
    bounds = [*map(str, LATENCY_BOUNDS_S), "+Inf"]
    yield HistogramMetricFamily(
        "logtx_commit_latency_seconds",
        "From a commit's arrival to the answer that it is decided.",
        buckets=list(zip(bounds, accumulate(reading.latency_counts), strict=True)),
        sum_value=reading.latency_sum_s,
    )
    yield HistogramMetricFamily(
        "logtx_place_seconds",
        "From a durable decision to the last of its places.",
        buckets=list(zip(bounds, accumulate(reading.place_counts), strict=True)),
        sum_value=reading.place_sum_s,
    )


def _key_series(reading: Reading) -> Iterator[Metric]:
    yield gauge("transaction_keys", "Transaction keys.", [((), reading.key_count)], ())
    left_out = reading.key_count - len(reading.keys)
    text = "Keys without series of their own, because there are very many."
    yield gauge("transaction_keys_left_out", text, [((), left_out)], ())
    labelled: list[tuple[Sequence[str], KeySample]] = []
    for sample in reading.keys:
        key = TransactionKey.parse(sample.name)
        labelled.append(((key.owner, key.key), sample))
    labels = ("owner", "key")
    epochs = [(names, sample.epoch) for names, sample in labelled]
    yield gauge("transaction_key_epoch", "Epoch of the key's connection.", epochs, labels)
    ages = [
        (names, max(0, reading.now.wall_ms - sample.connected_ms) / 1000)
        for names, sample in labelled
        if sample.connected_ms
    ]
    yield gauge("transaction_key_age_seconds", "Since its connection was made.", ages, labels)


def _store_series(store: StoreSample) -> Iterator[Metric]:
    yield CounterMetricFamily(
        "logtx_metadata_op_writes_total", "Operations written to the store.", value=store.op_writes
    )
    text = "Operations in the store."
    yield gauge("metadata_outstanding_op_records", text, [((), store.operations)], ())
    text = "Journal records that the store has not."
    yield gauge("metadata_projection_lag_records", text, store.lags)
    times = HistogramMetricFamily(
        "logtx_metadata_index_query_seconds",
        "Time that the store took for a query of an index.",
        labels=("index",),
    )
    bounds = [*map(str, QUERY_BOUNDS_S), "+Inf"]
    for index, (counts, sum_s) in store.queries.items():
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        times.add_metric([index], buckets, sum_s)
    yield times


# ---- the server ---------------------------------------------------------------------------------


class MetricsServer:
    """Serves a collector over HTTP from a thread."""

    def __init__(self, listen: str, collector: Collector) -> None:
        """Listens, and starts the thread.

        Args:
            listen: host:port to listen at; port 0 takes a free one.
            collector: yields the metrics to show.

        Raises:
            ConfigError: `listen` is not HOST:PORT, or the address can't be listened at.
        """
        try:
            host, port = split(listen)
        except ConfigError as error:
            raise ConfigError(f"metrics-listen: {error}") from error
        registry = CollectorRegistry()
        registry.register(collector)
        try:
            self._server = make_server(
                host,
                port,
                make_wsgi_app(registry),
                server_class=_Server6 if ":" in host else WSGIServer,
                handler_class=_Handler,
            )
        except OSError as error:
            raise ConfigError(f"can't serve metrics at {listen}: {error}") from error
        self._listening = Listening(self._server.socket)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stops the server. Blocks until a scrape that is under way has ended."""
        self._server.shutdown()
        self._listening.give_back()
        self._server.server_close()
        self._thread.join(STOP_TIMEOUT_S)


class _Server6(WSGIServer):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = CLIENT_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: scrapes are no news."""
