"""The run's Kafka: three brokers, each behind a link of the proxies."""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..integration.local.cluster import QUICK_TO_START, LocalCluster
from ..integration.local.node import Broker
from ..integration.local.ports import HOST
from .proxy import Proxies

HEAP_MAX_MIB: Final = 256
"""Heap of each broker. A smaller one may fail under the load; three larger ones take the machine's
memory."""
START_TIMEOUT_S: Final = 240.0
"""10 s are usual, but a busy machine takes much longer."""
FULL_BYTES: Final = 512
"""No file of a broker whose disk is full grows beyond this; those that are longer not at all."""
GROUP_SETTINGS: Final = {
    "group.min.session.timeout.ms": "6000",
    # librdkafka waits for the answer to a heartbeat as long as this. If the answer comes later, as
    # when a broker is paused, it never learns what the group has given to another member.
    "group.consumer.heartbeat.interval.ms": "5000",
    "group.consumer.session.timeout.ms": "15000",
}
_POLL_S: Final = 0.05
"""Pause between two looks whether a broker has ended."""


def link_of(broker_id: int) -> str:
    """Returns the name of the link in front of a broker."""
    return f"broker-{broker_id}"


@contextmanager
def brokers(directory: Path, proxies: Proxies, count: int) -> Iterator[LocalCluster]:
    """Starts the brokers; ends them with the block.

    Raises a LocalKafkaError if a broker does not start.
    """
    ids = range(1, count + 1)
    ports = {broker_id: proxies.add(link_of(broker_id)) for broker_id in ids}
    cluster = LocalCluster(
        directory,
        brokers=count,
        advertised_client_ports=ports,
        heap_max_mib=HEAP_MAX_MIB,
        java_options=QUICK_TO_START,
        start_timeout_s=START_TIMEOUT_S,
        settings=GROUP_SETTINGS,
    )
    try:
        cluster.start()
        for broker in cluster.brokers:
            proxies.lead(link_of(broker.id), (HOST, broker.client_port))
        yield cluster
    finally:
        cluster.kill()  # all that is needed was dumped, and an orderly stop takes seconds


def fill_disk(broker: Broker, limit_s: float) -> bool:
    """Lets a running broker write no more, as if its disk were full, until it ends or a time is up.

    The kernel refuses its writes behind `FULL_BYTES` of any file (RLIMIT_FSIZE). Kafka ends itself
    when it can't write its only log directory. The broker can be started again at once: a new
    process has no such limit. One that did not end by itself gets SIGKILL.

    Returns:
        Whether it ended by itself.
    """
    pid = broker.pid
    _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_BYTES, hard))
    until_s = time.monotonic() + limit_s
    while broker.is_running and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    ended = not broker.is_running
    broker.kill()
    return ended
