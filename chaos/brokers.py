"""The run's Kafka: three brokers, each behind a link of the proxies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ..integration.local.cluster import QUICK_TO_START, LocalCluster
from ..integration.local.ports import HOST
from ..integration.local.topics import create_topic
from .proxy import Proxies
from .settings import DATA_TOPIC, OUT_TOPIC, PARTITIONS

HEAP_MAX_MIB: Final = 256
"""Heap of each broker. A smaller one may fail under the load; three larger ones take the machine's
memory."""
START_TIMEOUT_S: Final = 240.0
"""10 s are usual, but a busy machine takes much longer."""
_TOPIC_SETTINGS: Final = {
    # Small, so that trimming deletes whole files.
    "segment.bytes": str(1024 * 1024),
    "retention.ms": "-1",
}


def link_of(broker_id: int) -> str:
    """Returns the name of the link in front of a broker."""
    return f"broker-{broker_id}"


@contextmanager
def brokers(directory: Path, proxies: Proxies, count: int) -> Iterator[LocalCluster]:
    """Starts the brokers and creates the two topics; ends the brokers with the block.

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
        settings={"group.min.session.timeout.ms": "6000"},
    )
    try:
        cluster.start()
        for broker in cluster.brokers:
            proxies.lead(link_of(broker.id), (HOST, broker.client_port))
        for topic in (DATA_TOPIC, OUT_TOPIC):
            create_topic(
                cluster.direct_servers, topic, partitions=PARTITIONS, config=_TOPIC_SETTINGS
            )
        yield cluster
    finally:
        cluster.kill()  # all that is needed was dumped, and an orderly stop takes seconds
