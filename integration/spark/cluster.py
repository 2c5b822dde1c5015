"""What all transactions on one Kafka cluster share."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError

from ...coordinator.client.queries import CoordinatorQueries
from ...coordinator.client.tls import tls_of
from ...journal.errors import OffsetsPendingError, UnsupportedTopicError
from ...journal.logs.interface import Log
from ...journal.logs.open import open_log
from ...journal.rights import grant, lacking
from .identity import DIGEST_AT, RANGE_AT, VERSION_AT, Committed
from .options import SinkOptions

PAUSE_S: Final = 0.05
"""Between two looks at what the keeper waits for. A larger value delays answers, a smaller one asks
coordinators more often."""


class Cluster:
    """The log, and questions to coordinators."""

    def __init__(self, options: SinkOptions) -> None:
        """Opens the log of these options."""
        tls = tls_of(options.kafka)
        self.log: Log = open_log(options.kafka)
        timeout_s = options.coordinator_timeout_ms / 1000
        self.queries = CoordinatorQueries(self.log, timeout_s=timeout_s, tls=tls)
        self.topics: set[str] = set()
        """Topics that were checked to take transactions."""

    def close(self) -> None:
        """Closes both."""
        self.queries.close()
        self.log.close()

    def check_topic(self, options: SinkOptions) -> None:
        """Checks once that the option ``topic`` names one that takes transactions.

        Raises:
            UnknownTopicError, UnsupportedTopicError: it names none, a compacted one, or one that
                this client may not write to.
        """
        topic = options.topic
        if topic is None or topic in self.topics:
            return
        info = self.log.topic_info(topic)
        if lack := lacking(info.operations, ["WRITE"]):
            command = grant(self.log.bootstrap_servers, self.log.principal, lack, topic=topic)
            raise UnsupportedTopicError(
                f"this client may not WRITE to topic {topic}: give it the right with: {command}",
                kafka_code=KafkaError.TOPIC_AUTHORIZATION_FAILED,
            )
        if info.compacted:
            raise UnsupportedTopicError(
                f"topic {topic} is compacted, which takes no markers: write to one with "
                "cleanup.policy=delete"
            )
        self.topics.add(topic)

    def committed(self, group: str) -> Committed:
        """Returns what is committed of an identity. Waits while a transaction may change it."""
        deadline_s = time.monotonic() + 30
        while True:
            try:
                asked = VERSION_AT, DIGEST_AT, RANGE_AT
                iov = self.queries.fetch_offsets(group, asked).offsets
            except OffsetsPendingError:
                # A former driver's transaction holds it, and is being aborted.
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(PAUSE_S)
            else:
                return Committed.of(iov)
