"""`make leaks`: many records go through the C extension, and it keeps no memory of them.

They are sent to a mock cluster in the same process, and read from it again and again, some into
columns. A table shows the resident memory on the way. Fails if it grows behind a warm-up.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import psutil
from confluent_kafka import Consumer, Producer, TopicPartition
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from logtx.journal.native import loading

from .conftest import Mock

TOPIC: Final = "t"
PARTITIONS: Final = 4
TRANSACTION: Final = 10_000
"""Records of one, and of one `Reader.read`."""
LOG: Final = 4 * TRANSACTION
"""Records of the log that is read again and again: the mock cluster keeps it in memory."""
COLUMNS: Final = 500
"""Messages that become columns, of the 10,000 that are read."""
WARM: Final = 400_000
"""The mock cluster keeps so many records of 100 B, and what behaves may grow until then."""
BOUND_MB: Final = 20.0
"""How much memory may grow behind that. Less would take for a leak what malloc keeps in pieces;
with this, 10^6 records show a leak of 35 bytes each, and 10^8 one of a fifth of a byte."""
SHOWN: Final = (0.01, 0.1, 0.5, 1.0)
_MEGABYTE: Final = 1e6
_WAIT_S: Final = 60.0


class Size(NamedTuple):
    """Resident memory after some records."""

    records: int
    megabytes: float


class Growth:
    """How resident memory grows with the number of records."""

    def __init__(self, records: int) -> None:
        """Has seen nothing.

        Args:
            records: how many there will be.
        """
        self.records = records
        self.sizes: list[Size] = []

    def note(self, size: Size) -> None:
        """Notes a size, of more records than the last one."""
        self.sizes.append(size)

    def at(self, share: float) -> Size:
        """Returns the first size behind a share of the records."""
        return next(size for size in self.sizes if size.records >= share * self.records)

    @property
    def grown(self) -> float:
        """Megabytes that were added since the warm-up, which is a tenth of all records or more."""
        warm = max(WARM, self.records // 10)
        first = next((size for size in self.sizes if size.records >= warm), self.sizes[-1])
        return self.sizes[-1].megabytes - first.megabytes


def sent(mock: Mock) -> Iterator[int]:
    """Sends transactions. Yields the number of records of each."""
    settings = {"linger.ms": 5, "queue.buffering.max.messages": 10**6, "enable.idempotence": True}
    producer, handle = loading.opened(Producer, _settings(mock, settings))
    assert handle is not None
    number = 0
    while True:
        number += 1
        # Every other one is a branch that has a TxCtl.
        count = handle.count(number.to_bytes(16, "big"), b"x" * (number % 2), {TOPIC: None}, number)
        _send(producer, count, TRANSACTION, b"k" if number % 3 else None)
        assert count.is_settled
        assert count.failure() is None
        assert sum(span[4] for span in count.spans()) == TRANSACTION
        assert count in handle.changed()
        # What is dropped retires by itself.
        if number % 5:
            count.retire()
        yield TRANSACTION


def received(mock: Mock) -> Iterator[int]:
    """Reads a log again and again. Yields the number of records of each time."""
    producer, handle = loading.opened(Producer, _settings(mock, {"linger.ms": 5}))
    assert handle is not None
    for number in range(4):
        count = handle.count(number.to_bytes(16, "big"), b"", {TOPIC: None}, None)
        _send(producer, count, LOG // 4, b"k")
    settings = {"group.id": "g", "enable.auto.commit": False, "fetch.wait.max.ms": 5}
    consumer, reader = loading.opened_consumer(Consumer, _settings(mock, settings))
    assert reader is not None
    begins = [TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)]
    for each in begins:
        reader.take_over(each.topic, each.partition)
    consumer.assign(begins)
    while True:
        left, until_s = LOG, time.monotonic() + _WAIT_S
        while left:
            assert time.monotonic() < until_s, f"{left} records did not come"
            parts, events = reader.read(TRANSACTION)
            assert not events, events
            for _, _, messages, _, _ in parts:
                left -= len(messages)
                _look_at(messages)
            if not parts:
                reader.wait(100)
                consumer.poll(0)
        yield LOG
        for each in begins:
            consumer.seek(each)


WAYS: Final = {"send": sent, "read": received}


def measure(way: str, records: int, progress: Progress) -> Growth:
    """Lets records go one way. Returns how memory grew."""
    growth, process, done = Growth(records), psutil.Process(), 0
    task = progress.add_task(way, total=records)
    for number in WAYS[way](Mock()):
        done += number
        growth.note(Size(done, process.memory_info().rss / _MEGABYTE))
        progress.update(task, completed=min(done, records))
        if done >= records:
            return growth
    raise AssertionError  # They never end.


def main(arguments: list[str]) -> int:
    """Measures; returns 1 if memory grew too much, else 0."""
    parser = argparse.ArgumentParser(prog="make leaks ARGS=", description=__doc__)
    parser.add_argument("--records", type=float, default=1e6, help="each way, such as 1e8")
    parser.add_argument("--only", choices=WAYS, help="one way")
    parser.add_argument("--bound", type=float, default=BOUND_MB, help="megabytes of growth")
    options = parser.parse_args(arguments)
    os.environ[loading.VARIABLE] = "1"
    console = Console()
    if loading.find_reader().extension is None:
        console.print(f"there is nothing to measure: {loading.described()}")
        return 1
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console) as progress:
        found = {
            way: measure(way, round(options.records), progress)
            for way in WAYS
            if options.only in (None, way)
        }
    console.print(_table(found))
    leaks = [way for way, growth in found.items() if growth.grown > options.bound]
    if leaks:
        console.print(f"memory grew by more than {options.bound:g} MB: {', '.join(leaks)}")
    return int(bool(leaks))


def _settings(mock: Mock, more: dict[str, Any]) -> dict[str, Any]:
    return {"bootstrap.servers": mock.address, "log_level": 0, **more}


def _send(producer: Any, count: Any, records: int, key: bytes | None) -> None:
    value = b"v" * 100
    for number in range(records):
        while not count.produce(TOPIC, value, key, number % PARTITIONS, 0):
            producer.poll(0.001)
    count.close()
    assert producer.flush(_WAIT_S) == 0


def _look_at(messages: list[Any]) -> None:
    # As applications do: headers become lists, and some messages columns.
    for message in messages[::100]:
        assert message.headers()
        assert len(message.value()) == 100
        message.set_value(message.key())
        message.set_headers(None)
    assert messages[0].columns(messages[:COLUMNS], 2**31 - 1) is not None


def _table(found: dict[str, Growth]) -> Table:
    table = Table(box=SIMPLE_HEAD)
    for title in ("way", "records", *(f"MB at {share:.0%}" for share in SHOWN), "grown since"):
        table.add_column(title, justify="left" if title == "way" else "right")
    for way, growth in found.items():
        sizes = [f"{growth.at(share).megabytes:.1f}" for share in SHOWN]
        table.add_row(way, f"{growth.sizes[-1].records:,}", *sizes, f"{growth.grown:.1f}")
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
