"""Works a backlog off in transactions: `logtx.process` over a queue, and over a consumer.

Each message makes one output. A block's transaction has its outputs, and the acknowledgements of
its messages or the input offsets behind them.
"""

from __future__ import annotations

import itertools
import threading
import time
from typing import Any, Final

import logtx

from ..clients import (
    CONNECT_TIMEOUT_S,
    consumer_config,
    delete_topics,
    from_start,
    logtx_producer,
    make_topic,
)
from ..cpu import CpuTimes
from ..model import Context, Sample
from .backlog import PARTITIONS, fill_plain
from .queues import open_queue

INPUT: Final = "bench-queue-blocks-in"
OUTPUT: Final = "bench-queue-blocks-out"
RECORDS: Final = 100
"""Most messages of a block."""
BLOCKS: Final = 2_000
"""Blocks of the backlog: more than a round gets through."""
SECONDS: Final = 1.5
"""Length of a round."""


def total_of(context: Context) -> int:
    """Returns the number of messages of the backlog."""
    return int(context.sized(BLOCKS, 100)) * RECORDS


class _Blocks:
    """Works the backlog off from its start, by a new group in each round."""

    def __init__(self, context: Context, in_flight: int) -> None:
        """Keeps the parameters; `open` connects.

        Args:
            context: of the run.
            in_flight: most undecided transactions.
        """
        self.context, self._in_flight = context, in_flight
        self._name, self._rounds = f"{type(self).__name__}-{in_flight}", itertools.count()

    def open(self) -> None:
        """Connects the producer; every round has a reader of its own."""
        self._producer = logtx_producer(self.context.bootstrap_servers, self._name)
        self._cpu = CpuTimes(self.context.pids)

    def close(self) -> None:
        """Disconnects."""
        self._producer.close()

    def connect(self, group: str) -> Any:
        raise NotImplementedError

    def measure(self) -> Sample:
        """Runs one round: messages a second of decided blocks."""
        reader = self.connect(f"{self._name}-{next(self._rounds)}")
        try:
            return self._run(reader)
        finally:
            reader.close()

    def _run(self, reader: Any) -> Sample:
        clock, stop = time.perf_counter, threading.Event()
        most = total_of(self.context) - PARTITIONS * RECORDS
        began_s, until_s, cpu = 0.0, float("inf"), self._cpu.now()
        done = blocks = at_hand = 0
        for block in logtx.process(
            reader,
            self._producer,
            max_records=RECORDS,
            in_flight=self._in_flight,
            timeout=CONNECT_TIMEOUT_S,
            stop=stop,
        ):
            if blocks == 1:
                # The first block is not measured: it makes connections.
                began_s, at_hand, cpu = clock(), 0, self._cpu.now()
                until_s = began_s + self.context.sized(SECONDS, 0.2)
            done += at_hand
            for message in block:
                block.produce(OUTPUT, message.value(), message.key())
            # What comes again was counted.
            at_hand = 0 if block.redone else len(block)
            blocks += 1
            if clock() >= until_s or done + at_hand >= most:
                stop.set()
        if not stop.is_set():
            raise TimeoutError("the backlog came to an end")
        done += at_hand
        seconds = clock() - began_s
        notes = {"blocks": float(blocks), "messages": float(done), **self._cpu.since(cpu, done)}
        return Sample(done / seconds, notes)


class OverConsumer(_Blocks):
    """`logtx.process` over a consumer: the transactions move its input offsets."""

    def connect(self, group: str) -> logtx.Consumer:
        """Returns a new consumer that has the whole input."""
        settings = consumer_config(self.context.bootstrap_servers, group)
        consumer = logtx.Consumer({**settings, "offsets.storage": "transactions"})
        consumer.assign(from_start(INPUT, PARTITIONS))
        return consumer


class OverQueue(_Blocks):
    """`logtx.process` over a queue: the transactions acknowledge its messages."""

    def connect(self, group: str) -> logtx.ShareConsumer:
        """Returns a new consumer of a new subscription."""
        return open_queue(self.context.bootstrap_servers, group, INPUT)


def prepare(context: Context) -> None:
    """Creates the topics, and writes the input."""
    servers = context.bootstrap_servers
    for topic in (INPUT, OUTPUT):
        make_topic(servers, topic, PARTITIONS)
    fill_plain(servers, INPUT, range(total_of(context)))


def finish(context: Context) -> None:
    """Deletes the topics."""
    delete_topics(context.bootstrap_servers, [INPUT, OUTPUT])
