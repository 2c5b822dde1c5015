"""A member of a consumer group, as a process of its own.

It reads, and writes what it read, each block in a transaction with its input offsets: by
`logtx.process` if the options say how many may be in flight, else by a loop of its own. It prints
what happens to it.

    python -m logtx.tests.group_worker '{"consumer": {…}, "producer": {…}, "source": …, …}'
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from typing import Any

import logtx

BLOCK = 10


def say(*words: object) -> None:
    """Prints a line for the test."""
    print(*words, flush=True)


class Worker:
    """Reads, writes, commits; may stop or kill itself between delivery and commit."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.sink = options["sink"]
        self.signals = {int(n): name for n, name in options.get("signals", {}).items()}
        """Transaction number → signal that it sends itself just before that commit."""
        self.consumer = logtx.Consumer(options["consumer"])
        self.producer = logtx.Producer(options["producer"])
        self.consumer.subscribe(
            [options["source"]],
            on_assign=lambda _, partitions: say("assigned", len(partitions)),
            on_revoke=lambda _, partitions: say("revoked", len(partitions)),
            on_lost=lambda _, partitions: say("lost", len(partitions)),
        )
        self.in_flight = options.get("in_flight")
        self.leaving = threading.Event()
        self.rewinds = False
        self.count = 0
        signal.signal(signal.SIGTERM, self._leave)

    def _leave(self, *_: object) -> None:
        self.leaving.set()

    def run(self) -> None:
        """Works until SIGTERM."""
        if self.in_flight is not None:
            self.process()
        while not self.leaving.is_set():
            try:
                self.step()
            except logtx.LogtxError as error:
                say("failed", type(error).__name__)
                self.rewinds = True
        self.consumer.close()
        self.producer.close()
        say("left")

    def process(self) -> None:
        """Works by `logtx.process`, as applications do."""
        for block in logtx.process(
            self.consumer,
            self.producer,
            max_records=BLOCK,
            in_flight=self.in_flight,
            stop=self.leaving,
        ):
            self.count += 1
            if block.redone:
                say("redone", block.redone)
            for message in block:
                block.produce(self.sink, message.value(), partition=0)
            self.raise_signal(block.txn)
            say("worked", len(block))

    def step(self) -> None:
        """Processes one block in one transaction."""
        if self.rewinds:
            self.consumer.rewind()
            self.rewinds = False
        block = self.consumer.consume(BLOCK, 0.2)
        if not block:
            return
        self.count += 1
        # The block commits at its end; on an error it aborts, and raises.
        with self.producer.begin_transaction() as transaction:
            for message in block:
                assert message.error() is None, message.error()
                transaction.produce(self.sink, message.value(), partition=0)
            transaction.send_offsets(self.consumer)
            self.raise_signal(transaction)
        say("committed", len(block))

    def raise_signal(self, transaction: logtx.Transaction) -> None:
        """Sends itself the signal that is due in this transaction, if any."""
        if self.count in self.signals:
            self.producer.flush(10)
            say("stands", transaction.txid)
            os.kill(os.getpid(), getattr(signal, self.signals[self.count]))
            say("woke")


if __name__ == "__main__":
    Worker(json.loads(sys.argv[1])).run()
