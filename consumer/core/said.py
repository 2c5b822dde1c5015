"""What a queue's consumer says of messages: shares of a request's size, and what answers tell.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ...coordinator.protocol.queues import AcknowledgeType, AckResult, AckResults
from ...journal.acks import Acks
from ...journal.control import TopicPartition
from ...journal.errors import LogtxError, NotHeldError
from ...journal.places import PartitionId
from ...journal.spans import Span
from .runs import Given

SPANS_MAX: Final = 5_000
"""Most spans of one request. With more, the journal may refuse its record, and a coordinator the
message; fewer make more requests."""


def shares(acks: Iterable[Acks]) -> Iterator[tuple[Acks, ...]]:
    """Yields the same spans in shares of requests, each partition once in a share."""
    spans: dict[PartitionId, list[Span]] = {}
    size = 0
    for each in acks:
        for span in each.spans:
            spans.setdefault(each.partition, []).append(span)
            size += 1
            if size >= SPANS_MAX:
                yield tuple(Acks(p, tuple(found)) for p, found in spans.items())
                spans, size = {}, 0
    if spans:
        yield tuple(Acks(p, tuple(found)) for p, found in spans.items())


def errors(
    type_: AcknowledgeType, given: Iterable[Given], results: AckResults
) -> dict[TopicPartition, LogtxError]:
    """Returns partition → the first error that the application is to be told.

    It is told of messages. What lies between them may have been acknowledged by another consumer,
    and that is nothing to tell.

    Args:
        type_: what the request said.
        given: the messages of which the application said it.
        results: the answer.
    """
    found: dict[TopicPartition, LogtxError] = {}
    for each in given if results.refused else ():
        result = results.of(each.partition, each.own_span)
        error = _error(type_, each.partition, each.span, result)
        if error is not None:
            found.setdefault(each.partition.key, error)
    return found


def _error(
    type_: AcknowledgeType, partition: PartitionId, span: Span, result: AckResult
) -> LogtxError | None:
    where = f"{partition.topic}[{partition.partition}] at {span.hi.offset}"
    if result is AckResult.DELETED:
        return NotHeldError(
            f"the message of {where} was acknowledged before: by another consumer, or here, if the"
            " answer was lost"
        )
    if result is AckResult.PENDING:
        return NotHeldError(
            f"the message of {where} is acknowledged by a transaction that has not ended, and is"
            " left to it"
        )
    if result is AckResult.LOST and type_ is AcknowledgeType.RENEW:
        return NotHeldError(
            f"the message of {where} was not renewed: its time was over, and another consumer may"
            " have it"
        )
    return None  # To release what is another's by now changes nothing.
