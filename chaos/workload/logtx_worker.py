"""Workers of logtx: one uses `logtx.process`, the other a loop by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from ...consumer.consumer import Consumer
from ...integration.block import Block
from ...integration.blocks import process
from ...journal.errors import ConsumerError, LogtxError
from ...journal.position import Place
from ...journal.records.types import OffsetStep
from ...producer.producer import Producer
from ...producer.transaction import Transaction
from .block_loop import RETRIES, TAKEN_OVER, begin, then_enter, work_off, work_until_stopped
from .clients import Ended
from .logtx_writer import producer_settings, workers_sidecars
from .output import ABORT_SHARE, BLOCK, enter_end, outputs, workers_reader
from .process import Process, TakenOverError
from .readers import Notes, reader_settings

IN_FLIGHT: Final = 4
"""Blocks under way at once, by `logtx.process`."""
_PAUSE_S: Final = 0.1
"""Pause after an error, in the loop by hand."""


class WatchedConsumer(Consumer):
    """A consumer that writes to the history what it delivers and where it goes back."""

    def __init__(self, config: dict[str, Any], notes: Notes) -> None:
        super().__init__(config)
        self._notes = notes
        self.steps: list[OffsetStep] = []
        """The steps that `offset_steps` returned last."""

    def watch(self, topic: str) -> None:
        """Subscribes to a topic."""
        self.subscribe(
            [topic],
            on_assign=lambda _, partitions: self._notes.assigned(_anywhere(partitions)),
            on_revoke=lambda _, partitions: self._notes.revoked(partitions),
        )

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Consumes as `Consumer.consume` does, without Kafka's events."""
        return self._notes.delivered(super().consume(num_messages, timeout))

    def offset_steps(self, positions: Sequence[KafkaPartition] | None = None) -> list[OffsetStep]:
        """Returns what `Consumer.offset_steps` does, and keeps it."""
        self.steps = super().offset_steps(positions)
        return self.steps

    def rewind(self, *, wait: bool = True) -> None:
        """Rewinds as `Consumer.rewind` does."""
        super().rewind(wait=wait)
        if self._closed:
            return  # A loop of `process` that was interrupted ends when it is collected.
        self._notes.assigned(_anywhere(self.assignment()))


def _anywhere(partitions: Sequence[KafkaPartition]) -> list[KafkaPartition]:
    return [KafkaPartition(p.topic, p.partition) for p in partitions]


@contextmanager
def _clients(worker: Process) -> Iterator[tuple[WatchedConsumer, Producer]]:
    """Provides a worker's clients. Closes them after the block, and after Ctrl-C in it."""
    consumer, producer = _open_clients(worker)
    try:
        yield consumer, producer
    except KeyboardInterrupt:
        consumer.close()
        producer.close()
        raise
    consumer.close()
    producer.close()


def _open_clients(worker: Process) -> tuple[WatchedConsumer, Producer]:
    settings, reader = worker.settings, workers_reader(worker)
    producer = Producer(
        {
            **producer_settings(settings),
            **workers_sidecars(settings, worker.random),
            "transactional.id": f"chaos-worker-{worker.number}",
            "transaction.group": settings.workers_group,
        }
    )
    consumer = WatchedConsumer(
        {
            **reader_settings(settings, reader),
            "offsets.storage": "transactions",
            "transaction.group": settings.workers_group,
        },
        Notes(worker.recorder, reader),
    )
    consumer.watch(settings.data_topic)
    return consumer, producer


def _steps(worker: Process, steps: Sequence[OffsetStep]) -> list[list[object]]:
    """Returns what a commit claims to consume, in rows: group, topic, partition, from, to.

    There is one row per partition. Places are (o2, o3): if a block ends within a transaction, o2
    stands at its marker, and o3 of its records are consumed. Of a topic that is placed in they also
    say what was passed: journal partition, commit sequence, records of the next one.
    """
    group = worker.settings.workers_group
    return [
        [group, step.topic, step.partition, _place(step.from_place), _place(step.to.place)]
        for step in steps
    ]


def _place(place: Place | None) -> tuple[object, ...] | None:
    if place is None:
        return None
    passed = place.passed
    more = () if passed is None else ((passed.home[0], passed.sequence, passed.taken),)
    return place.o2, place.o3, *more


def _enter_commit(worker: Process, operation: str, steps: Sequence[OffsetStep]) -> None:
    worker.recorder.write("commit", op=operation, iov=_steps(worker, steps))


def by_process(worker: Process) -> None:
    """Works until SIGTERM, by `logtx.process`.

    Raises:
        TakenOverError: a successor has our transactional.id.
    """
    work_until_stopped(worker, _process)


def _process(worker: Process) -> bool:
    with _clients(worker) as (consumer, producer):
        blocks = process(
            consumer,
            producer,
            max_records=BLOCK,
            in_flight=IN_FLIGHT,
            retries=RETRIES,
            stop=worker.stopping,
        )
        return work_off(worker, blocks, lambda block: _work_on(worker, block, consumer.steps))


def _work_on(worker: Process, block: Block, steps: Sequence[OffsetStep]) -> None:
    operation = begin(worker, block)
    if block.failure is not None:
        enter_end(worker, operation, Ended(outcome="aborted", error=repr(block.failure)))
    elif worker.random.random() < ABORT_SHARE:
        worker.recorder.write("note", note="abort", op=operation)
        then_enter(worker, operation, block.txn.abort_async())
    else:
        _enter_commit(worker, operation, steps)
        # `process` would commit by itself, but would not tell the outcome.
        then_enter(worker, operation, block.txn.commit_async())


def by_hand(worker: Process) -> None:
    """Works until SIGTERM, by a loop of its own, one transaction at a time.

    Raises:
        TakenOverError: a successor has our transactional.id.
    """
    with _clients(worker) as (consumer, producer):
        _loop(worker, consumer, producer)


def _loop(worker: Process, consumer: WatchedConsumer, producer: Producer) -> None:
    rewinds = False
    while not worker.stopping.is_set():
        try:
            if rewinds:
                consumer.rewind()
                rewinds = False
            messages = consumer.consume(BLOCK, 0.2)
            if messages:
                _transact(worker, consumer, producer, messages)
        except TAKEN_OVER as error:
            raise TakenOverError(str(error)) from error
        except ConsumerError:
            raise
        except (LogtxError, KafkaException) as error:
            if not isinstance(error, LogtxError) and error.args[0].fatal():
                raise
            worker.recorder.write("error", error=repr(error))
            rewinds = True
            worker.stopping.wait(_PAUSE_S)


def _transact(
    worker: Process, consumer: WatchedConsumer, producer: Producer, messages: Sequence[Message]
) -> None:
    operation = worker.operation()
    worker.recorder.write("begin", op=operation)
    try:
        transaction = producer.begin_transaction()
    except LogtxError as error:
        enter_end(worker, operation, Ended(outcome="aborted", error=repr(error)))
        raise
    try:
        for output in outputs(worker, operation, messages):
            transaction.produce(
                worker.settings.out_topic,
                output.value,
                output.key,
                partition=output.partition,
                on_delivery=output.told,
            )
        transaction.send_offsets(consumer)
    except LogtxError as error:
        _abort(worker, operation, transaction, repr(error))
        raise
    _enter_commit(worker, operation, consumer.steps)
    future = transaction.commit_async()
    then_enter(worker, operation, future)
    try:
        transaction.commit()
    except LogtxError:
        if transaction.is_open:
            transaction.abort_async()
        raise


def _abort(worker: Process, operation: str, transaction: Transaction, why: str) -> None:
    enter_end(worker, operation, Ended(outcome="aborted", error=why))
    if transaction.is_open:
        transaction.abort_async()
