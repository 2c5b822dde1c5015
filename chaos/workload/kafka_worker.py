"""A worker with Kafka's own transactions: consume, transform, produce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, KafkaException, Message
from confluent_kafka import TopicPartition as KafkaPartition

from .clients import BrokenError, Ended, FailedError, FencedError
from .kafka_writer import KafkaTransaction, KafkaWriter
from .output import ABORT_SHARE, BLOCK, enter_end, outputs, workers_reader
from .process import Process, TakenOverError
from .readers import Notes, open_reader

_COMMITTED_TIMEOUT_S: Final = 10.0
"""Bounds the question for committed offsets."""
_PAUSE_S: Final = 0.2
"""Pause after an error."""
_POLL_S: Final = 0.2
"""Longest wait of one `consume`; bounds how late SIGTERM is noticed."""


class _Group:
    """The worker's consumer, and where the next transaction continues."""

    def __init__(self, process: Process) -> None:
        self.process = process
        reader = workers_reader(process)
        self.notes = Notes(process.recorder, reader)
        self.consumer: Any = open_reader(process.settings, reader)
        self.consumer.subscribe(
            [process.settings.data_topic], on_assign=self._assigned, on_revoke=self._revoked
        )
        self.places: dict[int, int] = {}
        """Partition → offset up to which its input is known to be committed."""
        self.goes_back = False
        """Whether to go back to the committed offsets before anything else is read."""

    def _assigned(self, _: Any, partitions: list[KafkaPartition]) -> None:
        self.notes.assigned([KafkaPartition(p.topic, p.partition) for p in partitions])

    def _revoked(self, _: Any, partitions: list[KafkaPartition]) -> None:
        self.notes.revoked(partitions)
        for partition in partitions:
            self.places.pop(partition.partition, None)

    def go_back(self) -> None:
        """Goes back to the committed offsets, after an abort."""
        assignment = self.consumer.assignment()
        committed = self.consumer.committed(assignment, timeout=_COMMITTED_TIMEOUT_S)
        self.places.clear()
        for partition in committed:
            if partition.offset < 0:
                partition.offset = OFFSET_BEGINNING
            self.consumer.seek(partition)
        self.notes.assigned(committed)
        self.goes_back = False


def by_kafka(process: Process) -> None:
    """Works until SIGTERM. Raises TakenOverError."""
    group = _Group(process)
    try:
        while not process.stopping.is_set():
            try:
                writer = KafkaWriter(process.settings, f"chaos-worker-{process.number}")
                _work(group, writer)
            except (BrokenError, FailedError) as error:
                # A new writer finds the last transaction ended, or ends it.
                process.recorder.write("error", error=f"{type(error).__name__}: {error}")
                group.goes_back = True
                process.stopping.wait(_PAUSE_S)
    except FencedError as error:
        raise TakenOverError(str(error)) from error
    group.consumer.close()


def _work(group: _Group, writer: KafkaWriter) -> None:
    """Works with one writer, until SIGTERM. Raises FencedError, BrokenError, FailedError."""
    process = group.process
    try:
        while not process.stopping.is_set():
            try:
                if group.goes_back:
                    group.go_back()
                messages = group.notes.delivered(group.consumer.consume(BLOCK, _POLL_S))
                if messages:
                    group.goes_back = not _transact(group, writer, messages)
            except KafkaException as error:
                if error.args[0].fatal():
                    raise
                process.recorder.write("error", error=str(error))
                group.goes_back = True
                process.stopping.wait(_PAUSE_S)
    finally:
        writer.close()


def _transact(group: _Group, writer: KafkaWriter, messages: Sequence[Message]) -> bool:
    """Processes one block. Returns whether it is known to be committed.

    Raises:
        FencedError, BrokenError: the writer can do nothing more.
        FailedError: no transaction opens now.
    """
    process = group.process
    operation = process.operation()
    process.recorder.write("begin", op=operation)
    try:
        transaction = writer.begin()
    except (FencedError, BrokenError, FailedError) as error:
        enter_end(process, operation, Ended(outcome="aborted", error=str(error)))
        raise
    steps = _steps(group, messages)
    try:
        for output in outputs(process, operation, messages):
            transaction.produce(
                process.settings.out_topic, output.partition, output.key, output.value, output.told
            )
        _send_offsets(group, transaction, steps)
    except FailedError:
        transaction.abort(lambda ended: enter_end(process, operation, ended))
        return False
    except FencedError as error:
        enter_end(process, operation, Ended(outcome="aborted", error=str(error)))
        raise
    if process.random.random() < ABORT_SHARE:
        process.recorder.write("note", note="abort", op=operation)
        transaction.abort(lambda ended: enter_end(process, operation, ended))
        return False
    process.recorder.write("commit", op=operation, iov=steps)
    told: list[Ended] = []
    transaction.commit(told.append)
    enter_end(process, operation, told[0])
    if told[0].outcome != "committed":
        return False
    group.places.update({step[2]: step[4] for step in steps})
    return True


def _steps(group: _Group, messages: Sequence[Message]) -> list[list[Any]]:
    """Returns the offsets that a block consumes: group, topic, partition, from, to."""
    settings = group.process.settings
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for message in messages:
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        first.setdefault(partition, offset)
        last[partition] = offset
    return [
        [
            settings.workers_group,
            settings.data_topic,
            partition,
            group.places.get(partition, offset),
            last[partition] + 1,
        ]
        for partition, offset in first.items()
    ]


def _send_offsets(
    group: _Group, transaction: KafkaTransaction, steps: Sequence[Sequence[Any]]
) -> None:
    positions = [KafkaPartition(step[1], step[2], step[4]) for step in steps]
    transaction.send_offsets(positions, group.consumer.consumer_group_metadata())
