"""A worker process of a queue: writes an output for each message, in the block's transaction.

    python -m logtx.benchmarks.queue.block_worker SERVERS NUMBER INPUT OUTPUT

SIGTERM ends it after the block at hand.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import Final

import logtx

from ..clients import logtx_producer
from .queues import open_queue

GROUP: Final = "bench-queue-million"
RECORDS: Final = 100
"""Most messages of a block."""
IN_FLIGHT: Final = 4


def work(servers: str, number: str, source: str, output: str, stop: threading.Event) -> None:
    """Works blocks off until told to stop.

    Args:
        servers: the broker.
        number: the worker's. A successor of the same number fences it.
        source: topic of the messages.
        output: topic of the outputs.
        stop: ends it.
    """
    name = f"{GROUP}-{number}"
    with (
        logtx_producer(servers, name) as producer,
        # Workers die all the time: a limit would give messages up that nobody is to blame for.
        open_queue(servers, GROUP, source, {"share.delivery.count.limit": 0}) as queue,
    ):
        blocks = logtx.process(queue, producer, max_records=RECORDS, in_flight=IN_FLIGHT, stop=stop)
        for block in blocks:
            for message in block:
                block.produce(output, message.value(), message.key())


def main() -> None:
    """Runs until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    servers, number, source, output = sys.argv[1:]
    work(servers, number, source, output, stop)


if __name__ == "__main__":
    main()
