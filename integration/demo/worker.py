"""A worker process: consumes flights, and books each block of them in one transaction.

    python -m logtx.integration.demo.worker --config … --transactional-id ledger-0 …

The transaction holds two ledger entries per flight and the input offsets of the block. So a worker
that is killed at any instant loses nothing and repeats nothing: its successor, with the same
`transactional.id`, fences it, has its open transaction aborted, and resumes from the offsets of the
last committed transaction. A worker that was only paused, and wakes after its successor has fenced
it, ends with `FENCED_STATUS`. SIGTERM ends a worker after the current block.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from confluent_kafka import TopicPartition

from ...consumer.consumer import Consumer
from ...journal.errors import BrokerError
from ...producer.producer import Producer
from ..block import Block
from ..blocks import process
from .cluster import kafka_settings
from .cut_over import Signs
from .flights import decode_flight, encode_entry
from .ledger import entries_of
from .worker_process import CommitReport, run_worker

_FLUSH_TIMEOUT_S: Final = 30.0
"""Bounds the wait for records of a block that spans two topics."""
BLOCK_FLIGHTS: Final = 100
"""Most flights in one transaction. A larger value makes fewer and longer transactions."""


class Worker:
    """Books the flights of its assigned partitions."""

    def __init__(
        self, options: argparse.Namespace, report: CommitReport, stopping: threading.Event
    ) -> None:
        """Fences the predecessor, and resumes from what it committed.

        Args:
            options: see `parse`.
            report: asks for commits, and tells how long they took.
            stopping: set it to end after the current block.
        """
        self._options = options
        self._report = report
        self._stopping = stopping
        self._signs = Signs(options.report.parent)
        self._producer = Producer(
            {
                **options.kafka,
                "transactional.id": options.transactional_id,
                "transaction.group": options.transaction_group,
            }
        )
        # Done before the partitions are claimed: so the predecessor learns that it was fenced.
        self._producer.init_transactions()
        self._consumer = Consumer(
            {
                **options.kafka,
                "group.id": options.group,
                "offsets.storage": "transactions",
                "auto.offset.reset": "earliest",
            }
        )
        self._consumer.assign(
            [TopicPartition(options.flights_topic, number) for number in options.partitions]
        )

    def run(self) -> None:
        """Books blocks until told to stop."""
        for block in process(
            self._consumer, self._producer, max_records=BLOCK_FLIGHTS, stop=self._stopping
        ):
            self._book(block)
            self._report.commit(block)

    def _book(self, block: Block) -> None:
        old, new = self._options.ledger_topic, self._options.successor_topic
        topic = old if new is None or not self._signs.is_sealed else new
        if new is not None and topic == old and self._signs.is_wanted:
            half = len(block) // 2
            self._write(block, slice(half), old)
            if self._producer.flush(_FLUSH_TIMEOUT_S):
                raise BrokerError("records of the ledger were not acknowledged")
            self._signs.say_written(self._options.transactional_id)
            sealed = self._signs.await_sealed(self._stopping.is_set)
            self._write(block, slice(half, None), new if sealed else old)
        else:
            self._write(block, slice(None), topic)

    @staticmethod
    def _write(block: Block, part: slice, topic: str) -> None:
        for message in list(block)[part]:
            value = message.value()
            assert isinstance(value, bytes)
            for entry in entries_of(decode_flight(value)):
                block.produce(topic, encode_entry(entry._asdict()), entry.airport.encode())

    def close(self) -> None:
        """Closes both clients."""
        self._consumer.close()
        self._producer.close()


def _partitions(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line that the supervisor wrote."""
    parser = argparse.ArgumentParser(prog="logtx-demo-worker")
    parser.add_argument("--config", type=kafka_settings, required=True, dest="kafka")
    parser.add_argument("--transactional-id", required=True)
    parser.add_argument("--transaction-group", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--flights-topic", required=True)
    parser.add_argument("--ledger-topic", required=True)
    parser.add_argument("--successor-topic", help="where the ledger goes on when it is sealed")
    parser.add_argument("--partitions", type=_partitions, required=True, help="such as 0,3")
    parser.add_argument("--report", type=Path, required=True, help="file of commit latencies")
    return parser.parse_args(arguments)


def main() -> None:
    """Runs until SIGTERM."""
    options = parse(sys.argv[1:])
    run_worker(options.report, partial(Worker, options))


if __name__ == "__main__":
    main()
