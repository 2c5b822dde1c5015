"""Records that can't be delivered as they are: their headers don't decode, or can't be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, cast

from confluent_kafka import KafkaError, Message

from ..journal.control import TXID_HEADER
from ..journal.errors import MalformedHeaderError
from .core.pending import Record


class UnreadableHeadersError(Exception):
    """Signals that confluent-kafka can't read a record's headers, and all must be read again."""


UNREADABLE: Final[Any] = [(TXID_HEADER, None)]
"""The headers of a record whose own can't be read: it is taken for one with a malformed TxId."""


def readable_runs(batch: Sequence[Message]) -> Iterator[Sequence[Record]]:
    """Yields records in order, those whose headers can't be read by themselves."""
    answers: list[object] = []
    # In C, and each message once: see `headers_of`. It keeps what it returns, so the next call for
    # its headers costs little.
    asked = map(type(batch[0]).headers, batch)
    start = 0
    while not _are_readable(asked, answers):
        at = len(answers)
        if start < at:
            yield cast(Sequence[Record], batch[start:at])
        batch[at].set_headers(UNREADABLE)
        answers.append(None)
        start = at + 1
        yield [cast(Record, batch[at])]
    if start < len(batch):
        yield cast(Sequence[Record], batch[start:] if start else batch)


def make_readable(batch: Sequence[Message]) -> None:
    """Gives records whose headers can't be read those of `UNREADABLE`: they may be asked again."""
    for _ in readable_runs(batch) if batch else ():
        pass


def _are_readable(asked: Iterable[object], answers: list[object]) -> bool:
    """Takes all answers that are left, or those in front of the first one that is an error."""
    try:
        answers.extend(asked)
    except SystemError:
        return False
    return True


def malformed_event(record: Record, error: MalformedHeaderError) -> Record:
    """Returns the event that takes a record's place: a message with an error and its payload."""
    message = cast(Message, record)
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    text = f"record at {topic}[{partition}] offset {offset} is not delivered: {error}"
    event = Message(
        topic=cast(str, topic),
        partition=cast(int, partition),
        offset=cast(int, offset),
        key=cast(bytes, message.key()),
        value=cast(bytes, message.value()),
        headers=None if message.headers() is UNREADABLE else cast(Any, message.headers()),
        error=KafkaError(KafkaError._BAD_MSG, text),
        timestamp=message.timestamp(),
    )
    return cast(Record, event)
