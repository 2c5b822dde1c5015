"""An auditor process: reads the ledger while it is written, and reports what it found.

    python -m logtx.integration.demo.auditor --isolation-level read_committed …

The read_committed auditor takes the whole transactions of each transaction group and compares them
with the file (`LedgerAudit`). The read_uncommitted one counts all entries, also those of aborted
transactions. No process tells them what the others did. After SIGTERM an auditor reads up to the
current ends of the partitions, makes its last report, and ends.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Message, TopicPartition

from ...consumer.consumer import Consumer
from ...journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from .cluster import kafka_settings
from .flights import decode_entry, read_flights
from .ledger import Entry, LedgerAudit
from .letters import is_booked
from .reports import write_status

_LOG = logging.getLogger(__name__)

_REPORT_EVERY_S: Final = 0.25
"""How often the status file is written; a larger value makes the progress shown older."""
_WAIT_S: Final = 0.1
"""Longest wait for records in one round. A larger value delays reports and the end."""
_BATCH: Final = 2_000
"""Messages of one `consume`, which bounds memory."""
_STALL_S: Final = 20.0
"""After SIGTERM an auditor without an entry for this long gives up, and its report is not final."""


class Auditor(ABC):
    """Reads the ledger to its end; subclasses decide what is counted."""

    def __init__(
        self,
        options: argparse.Namespace,
        finishing: threading.Event,
        settings: Iterable[dict[str, str]] = ({},),
    ) -> None:
        """Begins at the ledger's start.

        Args:
            options: see `parse`.
            finishing: set it to read up to the current ends of the partitions, and stop.
            settings: of each consumer, the settings it has beside the common ones.
        """
        self._options = options
        self._finishing = finishing
        self._partitions = [
            TopicPartition(topic, number)
            for topic in options.ledger_topics
            for number in range(options.partitions)
        ]
        self._consumers = [self._consumer(given) for given in settings]

    def _consumer(self, settings: dict[str, str]) -> Consumer:
        consumer = Consumer(
            {
                **self._options.kafka,
                "group.id": self._options.group,
                "isolation.level": self._options.isolation_level,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                **settings,
            }
        )
        consumer.assign(self._partitions)
        return consumer

    @abstractmethod
    def read(self) -> int:
        """Takes the entries that are there, after a short wait for them. Returns their number."""

    @abstractmethod
    def status(self) -> dict[str, Any]:
        """Returns what was found so far."""

    def run(self) -> None:
        """Reads until told to finish, and reports now and then."""
        report_at_s = 0.0
        ends: dict[tuple[str, int], int] | None = None
        progress_s = time.monotonic()
        complete = False
        while not complete:
            if self._finishing.is_set() and ends is None:
                ends = self._ends()
                progress_s = time.monotonic()
            now_s = time.monotonic()
            if self.read():
                progress_s = now_s
            if now_s >= report_at_s:
                report_at_s = now_s + _REPORT_EVERY_S
                write_status(self._options.report, {**self.status(), "final": False})
            complete = ends is not None and self._reached(ends)
            if ends is not None and now_s - progress_s > _STALL_S:
                _LOG.error("end_not_reached ends=%s", ends)
                break
        write_status(self._options.report, {**self.status(), "final": complete})

    def _ends(self) -> dict[tuple[str, int], int]:
        consumer = self._consumers[0]
        return {
            (p.topic, p.partition): consumer.get_watermark_offsets(p)[1] for p in self._partitions
        }

    def _reached(self, ends: dict[tuple[str, int], int]) -> bool:
        return all(
            place.offset >= ends[place.topic, place.partition]
            for consumer in self._consumers
            for place in consumer.position(self._partitions)
        )

    def close(self) -> None:
        """Closes the consumers."""
        for consumer in self._consumers:
            consumer.close()


class CommittedAuditor(Auditor):
    """Compares whole transactions with the file."""

    def __init__(self, options: argparse.Namespace, finishing: threading.Event) -> None:
        groups = options.transaction_groups
        super().__init__(options, finishing, [{"transaction.group": group} for group in groups])
        flights = read_flights(options.flights)
        self._audit = LedgerAudit(filter(is_booked, flights) if options.of_queue else flights)
        self._wait_s = _WAIT_S / len(self._consumers)

    def read(self) -> int:
        """Takes whole transactions until the next report is due."""
        before = self._audit.entries
        for consumer in self._consumers:
            until_s = time.monotonic() + _REPORT_EVERY_S / len(self._consumers)
            for transaction in consumer.transactions(timeout=self._wait_s):
                entries = (_entry(message) for message in transaction.records)
                # A queue's also wrote dead letters, to a topic that is not read here.
                complete = transaction.complete or self._options.of_queue
                self._audit.feed(entries, complete=complete)
                if time.monotonic() > until_s:
                    break
        return self._audit.entries - before

    def status(self) -> dict[str, Any]:
        """Returns the findings."""
        findings = asdict(self._audit.findings())
        return {"transactions": self._audit.transactions, "findings": findings}


class UncommittedAuditor(Auditor):
    """Counts everything that was written, committed or not."""

    def __init__(self, options: argparse.Namespace, finishing: threading.Event) -> None:
        super().__init__(options, finishing)
        self._entries = 0

    def read(self) -> int:
        """Counts entries."""
        messages = self._consumers[0].consume(_BATCH, _WAIT_S)
        found = sum(message.error() is None for message in messages)
        self._entries += found
        return found

    def status(self) -> dict[str, Any]:
        """Returns the count."""
        return {"entries": self._entries}


def _entry(message: Message) -> Entry:
    value = message.value()
    assert isinstance(value, bytes)
    return Entry(**decode_entry(value))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the command line that the supervisor wrote."""
    parser = argparse.ArgumentParser(prog="logtx-demo-auditor")
    parser.add_argument("--config", type=kafka_settings, required=True, dest="kafka")
    parser.add_argument(
        "--isolation-level", choices=["read_committed", "read_uncommitted"], required=True
    )
    parser.add_argument("--group", required=True)
    parser.add_argument("--transaction-groups", nargs="+", default=[DEFAULT_TRANSACTION_GROUP])
    parser.add_argument("--ledger-topics", nargs="+", required=True)
    parser.add_argument("--partitions", type=int, required=True, help="of each of them")
    parser.add_argument("--flights", type=int, required=True, help="rows of the file to expect")
    parser.add_argument(
        "--of-queue", action="store_true", help="whether flights without a tail number are given up"
    )
    parser.add_argument("--report", type=Path, required=True, help="status file")
    return parser.parse_args(arguments)


def main() -> None:
    """Runs until SIGTERM, and then to the end of the ledger."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s %(message)s")
    options = parse(sys.argv[1:])
    committed = options.isolation_level == "read_committed"
    finishing = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: finishing.set())
    kind = CommittedAuditor if committed else UncommittedAuditor
    auditor: Auditor = kind(options, finishing)
    try:
        auditor.run()
    finally:
        auditor.close()


if __name__ == "__main__":
    main()
