"""A worker process of a queue: takes flights, and books each block of them in one transaction.

    python -m logtx.integration.demo.queue_worker --config … --transactional-id ledger-0 …

The transaction holds two ledger entries per flight, the acknowledgements that delete the flights
from the queue, and dead letters of those that have no tail number. So a worker that is killed at
any instant loses nothing and repeats nothing: its transaction is aborted, and its flights are given
to others. No partition is assigned to it. SIGTERM ends a worker after the current block.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from ...consumer.share_consumer import ShareConsumer
from ...producer.producer import Producer
from ..blocks import process
from ..queue_blocks import QueueBlock
from .cluster import kafka_settings
from .flights import decode_flight, encode_entry
from .ledger import entries_of
from .letters import REASON, is_booked
from .worker_process import CommitReport, run_worker

BLOCK_FLIGHTS: Final = 100
"""Most flights in one transaction. A larger value makes fewer and longer transactions."""
_DELIVERIES: Final = 50
"""Most deliveries of a flight. The demo kills workers more often than anybody's would die: with
fewer, a flight might be given up that nothing is wrong with."""


class QueueWorker:
    """Books flights of the queue, beside others."""

    def __init__(
        self, options: argparse.Namespace, report: CommitReport, stopping: threading.Event
    ) -> None:
        """Fences the predecessor, whose flights come again, and joins.

        Args:
            options: see `parse`.
            report: asks for commits, and tells how long they took.
            stopping: set it to end after the current block.
        """
        self._options, self._report, self._stopping = options, report, stopping
        self._producer = Producer({**options.kafka, "transactional.id": options.transactional_id})
        self._producer.init_transactions()
        self._queue = ShareConsumer(
            {
                **options.kafka,
                "group.id": options.group,
                "auto.offset.reset": "earliest",
                "share.acknowledgement.mode": "explicit",
                "share.delivery.count.limit": _DELIVERIES,
                "errors.deadletterqueue.topic.name": options.dead_letter_topic,
            },
            producer=self._producer,
        )
        self._queue.subscribe([options.flights_topic])

    def run(self) -> None:
        """Books blocks until told to stop."""
        for block in process(
            self._queue, self._producer, max_records=BLOCK_FLIGHTS, stop=self._stopping
        ):
            self._book(block)
            self._report.commit(block)

    def _book(self, block: QueueBlock) -> None:
        for message in block:
            value = message.value()
            assert isinstance(value, bytes)
            flight = decode_flight(value)
            if not is_booked(flight):
                block.reject(message, REASON)
                continue
            for entry in entries_of(flight):
                key = entry.airport.encode()
                block.produce(self._options.ledger_topic, encode_entry(entry._asdict()), key)

    def close(self) -> None:
        """Closes both clients."""
        self._queue.close()
        self._producer.close()


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line that the supervisor wrote."""
    parser = argparse.ArgumentParser(prog="logtx-demo-queue-worker")
    parser.add_argument("--config", type=kafka_settings, required=True, dest="kafka")
    parser.add_argument("--transactional-id", required=True)
    parser.add_argument("--group", required=True, help="the subscription")
    parser.add_argument("--flights-topic", required=True)
    parser.add_argument("--ledger-topic", required=True)
    parser.add_argument("--dead-letter-topic", required=True)
    parser.add_argument("--report", type=Path, required=True, help="file of commit latencies")
    return parser.parse_args(arguments)


def main() -> None:
    """Runs until SIGTERM."""
    options = parse(sys.argv[1:])
    run_worker(options.report, partial(QueueWorker, options))


if __name__ == "__main__":
    main()
