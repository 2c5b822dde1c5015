"""A worker of a queue: works off what producers wrote beside the others, by `logtx.process`.

    python -m logtx.chaos.workload.queue DIRECTORY NUMBER LIFE

The subscription is to the workers' input. One record is written for each message, in the
transaction that acknowledges it. SIGTERM ends a worker after the current block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from ...consumer.share_consumer import ShareConsumer
from ...integration.blocks import process
from ...integration.queue_blocks import QueueBlock
from ...producer.producer import Producer
from ..settings import METADATA_MS, QUEUE
from .block_loop import RETRIES, begin, then_enter, work_off, work_until_stopped
from .clients import Ended
from .logtx_writer import producer_settings, workers_sidecars
from .output import ABORT_SHARE, BLOCK, enter_end
from .process import Process, run
from .readers import TRANSIENT

IN_FLIGHT: Final = 3
"""Blocks under way at once."""
RELEASE_SHARE: Final = 0.02
"""Share of blocks that are given back, for a moment. A larger share means less output."""
RELEASE_S: Final = 0.5
"""How long nobody gets these."""
_AGAIN_S: Final = 0.5
"""Pause before it subscribes again, when a broker was away."""
ACK_TIMEOUT_MS: Final = 5_000
"""How long a message is a worker's that is stopped before it begins a transaction. A longer one
delays what it had."""


@contextmanager
def _clients(worker: Process) -> Iterator[tuple[ShareConsumer, Producer]]:
    """Provides a worker's clients, and closes them."""
    settings = worker.settings
    producer = Producer(
        {
            **producer_settings(settings),
            **workers_sidecars(settings, worker.random),
            "transactional.id": f"chaos-queue-{worker.number}",
            "transaction.group": settings.workers_group,
        }
    )
    try:
        queue = ShareConsumer(
            {
                "bootstrap.servers": settings.bootstrap_servers,
                "group.id": QUEUE,
                "transaction.group": settings.workers_group,
                "auto.offset.reset": "earliest",
                "share.acknowledgement.mode": "explicit",
                # Workers die all the time: a limit would give messages up that nobody is to blame
                # for.
                "share.delivery.count.limit": 0,
                "ack.timeout.ms": ACK_TIMEOUT_MS,
                "redelivery.delay.ms": 100,
                "max.poll.records": BLOCK,
                "reconnect.backoff.ms": 50,
                "reconnect.backoff.max.ms": 500,
                "topic.metadata.refresh.interval.ms": METADATA_MS,
                "log_level": 2,
            }
        )
        try:
            yield queue, producer
        finally:
            queue.close()
    finally:
        producer.close()


def work(worker: Process) -> None:
    """Works until SIGTERM.

    Raises:
        TakenOverError: a successor has our transactional.id.
    """
    work_until_stopped(worker, _process)


def _process(worker: Process) -> bool:
    with _clients(worker) as (queue, producer):
        if not _subscribe(worker, queue):
            return True
        blocks = process(
            queue,
            producer,
            max_records=BLOCK,
            in_flight=IN_FLIGHT,
            retries=RETRIES,
            stop=worker.stopping,
        )
        return work_off(worker, blocks, partial(_work_on, worker))


def _subscribe(worker: Process, queue: ShareConsumer) -> bool:
    """Subscribes, which asks brokers where the topic begins. Returns False at SIGTERM."""
    while not worker.stopping.is_set():
        try:
            queue.subscribe([worker.settings.data_topic])
        except TRANSIENT as error:
            worker.recorder.write("error", error=repr(error))
            worker.stopping.wait(_AGAIN_S)
        else:
            return True
    return False


def _work_on(worker: Process, block: QueueBlock) -> None:
    operation = begin(worker, block)
    drawn = worker.random.random()
    if block.failure is not None:
        enter_end(worker, operation, Ended(outcome="aborted", error=repr(block.failure)))
    elif drawn < RELEASE_SHARE:
        worker.recorder.write("note", note="release", op=operation)
        block.release(RELEASE_S)
        enter_end(worker, operation, Ended(outcome="aborted"))
    elif drawn < RELEASE_SHARE + ABORT_SHARE:
        worker.recorder.write("note", note="abort", op=operation)
        then_enter(worker, operation, block.txn.abort_async())
    else:
        worker.recorder.write("commit", op=operation, iov=[])
        # `process` would commit by itself, but would not tell the outcome.
        then_enter(worker, operation, block.txn.commit_async())


if __name__ == "__main__":
    run("queue", work)
