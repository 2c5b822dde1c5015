"""How long a transaction takes until nothing of it is left to do, and what many of them cost."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from logtx.journal.follower import JournalFollower
from logtx.journal.logs.interface import Log
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.modes import Mode
from logtx.journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from logtx.journal.reader import JOURNAL_TOPIC, READER_SETTINGS, journal_partition_of
from logtx.journal.records.types import Committed, PrepareCommit

from ..clients import CONNECT_TIMEOUT_S, logtx_producer
from ..cpu import CpuTimes
from ..model import Context, Sample
from ..scenarios.fleet import VALUE, pipelined
from ..stats import percentile
from .disk import Disk
from .topics import WIDE, topic_of

FINISHED_S: Final = 1.0
"""Length of a round of `Finished`."""
MANY_S: Final = 1.0
"""Length of a round of `Many`."""
EVERY_S: Final = 0.01
"""Least time from one commit to the next in `Finished`: less would measure a queue."""
IN_FLIGHT: Final = 64
_FOLLOWER: Final = {**READER_SETTINGS, "fetch.wait.max.ms": 20, "fetch.queue.backoff.ms": 5}


class Finishes:
    """Follows the journal in a thread: notes when transactions were decided and finished."""

    def __init__(self, log: Log) -> None:
        """Begins at the journal's end."""
        count = log.partition_count(JOURNAL_TOPIC)
        self._partition = journal_partition_of(DEFAULT_TRANSACTION_GROUP, count)
        end = log.end_offset(JOURNAL_TOPIC, self._partition)
        self._follower = JournalFollower(log, {self._partition: end}, _FOLLOWER)
        self._stopping = threading.Event()
        self.decided_ns: dict[int, int] = {}
        """Offset of a BEGIN → when its decision was read."""
        self.finished_ns: dict[int, int] = {}
        """The same for the last record."""
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            for _, _, entry in self._follower.poll(0.1):
                record, now_ns = entry.record, time.monotonic_ns()
                if isinstance(record, Committed):
                    self.finished_ns.setdefault(record.begin, now_ns)
                elif isinstance(record, PrepareCommit):
                    self.decided_ns.setdefault(record.begin, now_ns)

    def await_all(self) -> None:
        """Waits until all that was decided is finished. Raises TimeoutError."""
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        while len(self.finished_ns) < len(self.decided_ns):
            if time.monotonic() > deadline_s:
                raise TimeoutError("transactions are not finished")
            time.sleep(0.002)

    def await_finished(self, begin: int) -> int:
        """Returns when this transaction was finished. Raises TimeoutError."""
        deadline_s = time.monotonic() + CONNECT_TIMEOUT_S
        while (found := self.finished_ns.get(begin)) is None:
            if time.monotonic() > deadline_s:
                raise TimeoutError("a transaction is not finished")
            time.sleep(0.0005)
        return found

    def forget(self) -> None:
        """Forgets what was read."""
        self.decided_ns.clear()
        self.finished_ns.clear()

    def close(self) -> None:
        """Ends the thread."""
        self._stopping.set()
        self._thread.join(CONNECT_TIMEOUT_S)
        self._follower.close()


class _Wide:
    """A producer whose transactions have a record in each of some partitions."""

    def __init__(self, context: Context, mode: Mode, width: int) -> None:
        """Keeps the parameters; `open` connects."""
        self.context, self.width = context, width
        self.topic = topic_of(f"{WIDE}{width}", mode)

    def open(self) -> None:
        """Connects the producer and the journal's reader."""
        servers = self.context.bootstrap_servers
        self.producer = logtx_producer(servers, f"{type(self).__name__}-{self.topic}")
        self.log = KafkaLog({"bootstrap.servers": servers})
        self.finishes = Finishes(self.log)

    def close(self) -> None:
        """Disconnects."""
        self.finishes.close()
        self.producer.close()
        self.log.close()


class Finished(_Wide):
    """Commits one after another, and waits for each until it is finished."""

    def measure(self) -> Sample:
        """Runs one round: p50 in ms from the answered commit on; the note, from its call on."""
        from_decision_ms: list[float] = []
        from_call_ms: list[float] = []
        until_s = time.monotonic() + self.context.sized(FINISHED_S, 0.1)
        while (began_s := time.monotonic()) < until_s:
            transaction = self.producer.begin_transaction()
            for partition in range(self.width):
                transaction.produce(self.topic, VALUE, partition=partition)
            if self.producer.flush(CONNECT_TIMEOUT_S):
                raise TimeoutError("records were not acknowledged")
            called_ns = time.monotonic_ns()
            transaction.commit(CONNECT_TIMEOUT_S)
            decided_ns = time.monotonic_ns()
            finished_ns = self.finishes.await_finished(transaction.txid.offset)
            # Finished sooner than the answer was read here: a reading of the clock apart.
            from_decision_ms.append(max(finished_ns - decided_ns, 1) / 1e6)
            from_call_ms.append((finished_ns - called_ns) / 1e6)
            time.sleep(max(0.0, began_s + EVERY_S - time.monotonic()))
        self.finishes.forget()
        notes = {
            "transactions": float(len(from_call_ms)),
            "call to finished ms": percentile(from_call_ms, 50),
        }
        return Sample(percentile(from_decision_ms, 50), notes)


class Many(_Wide):
    """Keeps many transactions in flight, and waits until all are finished."""

    def __init__(self, context: Context, mode: Mode, width: int, data_dir: Path) -> None:
        """Keeps the parameters; `open` connects.

        Args:
            context: of the run.
            mode: of the topic.
            width: partitions of a transaction.
            data_dir: the broker's.
        """
        super().__init__(context, mode, width)
        self._disk = Disk(data_dir)

    def open(self) -> None:
        """Connects."""
        super().open()
        self._cpu = CpuTimes(self.context.pids)

    def measure(self) -> Sample:
        """Runs one round: transactions a second; notes on CPU and bytes until all are finished."""
        # What other sides left to do would count here.
        self.finishes.await_all()
        self.finishes.forget()
        sizes, cpu = self._disk.sizes(), self._cpu.now()
        seconds = self.context.sized(MANY_S, 0.1)
        began_s = time.monotonic()
        latencies_s = pipelined(self.producer, self.topic, seconds, IN_FLIGHT, self.width)
        took_s = time.monotonic() - began_s
        self.finishes.await_all()
        count = len(latencies_s)
        notes = {
            "transactions": float(count),
            **self._cpu.since(cpu, count),
            "bytes beside": self._disk.overhead(sizes, self.topic, VALUE) / count,
        }
        return Sample(count / took_s, notes)
