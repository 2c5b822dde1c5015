"""What workers write: one record for each input record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Message

from .clients import DeliveryCallback, Ended
from .plain import reporter
from .process import Process
from .readers import Reader
from .record import Value

BLOCK: Final = 100
"""Most messages in one transaction. A larger value makes fewer and longer transactions; with a
smaller one a slow machine drains for minutes."""
ABORT_SHARE: Final = 0.02
"""Share of blocks that are aborted on purpose, and read again. A larger share means less output."""


def workers_reader(process: Process) -> Reader:
    """Returns how workers read."""
    return Reader(group=process.settings.workers_group, isolation="read_committed", member=True)


@dataclass(frozen=True, slots=True)
class Output:
    """A record that a worker is to write."""

    partition: int
    key: bytes
    value: bytes
    told: DeliveryCallback


def outputs(process: Process, operation: str, messages: Iterable[Message]) -> Iterator[Output]:
    """Yields one output for each input message; writes each to the history when it is taken."""
    settings = process.settings
    for message in messages:
        raw, partition, offset = message.value(), message.partition(), message.offset()
        assert isinstance(raw, bytes)
        assert partition is not None
        assert offset is not None
        key = Value.decode(raw).key
        value = Value(key, process.value(), operation, (partition, offset))
        process.recorder.write(
            "append",
            op=operation,
            topic=settings.out_topic,
            partition=settings.partition_of(key),
            k=key,
            v=value.value,
            i=value.source,
        )
        yield Output(
            settings.partition_of(key),
            str(key).encode(),
            value.encode(),
            reporter(process.recorder, value.value),
        )


def enter_end(process: Process, operation: str, ended: Ended) -> None:
    """Writes to the history what became of a block."""
    fields = {"txid": ended.txid, "commit_sequence": ended.commit_sequence, "error": ended.error}
    known = {name: value for name, value in fields.items() if value is not None}
    process.recorder.write("end", op=operation, outcome=ended.outcome, **known)
