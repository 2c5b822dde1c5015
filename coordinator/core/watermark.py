"""Tracks which of a shard's records are durable. Releases the effects that waited for them, and
computes the high watermark.

Both depend on acknowledged records alone. Consumers would for ever believe a marker that was
written for a decision whose append is lost, or a HW that was computed from a BEGIN in flight
(trap 4). Pure.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from ...journal.value import value
from .decision import Effect


@value(frozen=True, slots=True)
class Begun:
    """A BEGIN that is not durable yet."""

    offset: int


@value(frozen=True, slots=True)
class Finished:
    """The last record of a transaction, not durable yet."""

    offset: int
    begin: int


@value(frozen=True, slots=True)
class Deferred:
    """An effect that waits for its record."""

    offset: int
    effect: Effect


class Watermark:
    """Effects that wait for their records, and transactions whose end is not durable."""

    def __init__(self) -> None:
        """Start empty. Until `serving` is set, every replayed record counts as acknowledged."""
        self.serving = False
        """Whether an owner acts on the shard. If not, every replayed record is acknowledged."""
        self.end = 0
        """Every record below this offset is acknowledged."""
        self.in_flight: deque[Begun | Finished | Deferred] = deque()
        """What depends on records that are not acknowledged, in journal order."""
        self._unfinished: OrderedDict[int, None] = OrderedDict()
        """BEGINs, in order, that are acknowledged while the end of their transaction is not."""

    @property
    def hw(self) -> int:
        """Transaction high watermark: the oldest unfinished BEGIN, else the acknowledged end.

        Computed from acknowledged records only: a HW that counted a COMMITTED in flight would lie
        above an unfinished BEGIN if that append were lost, and consumers would drop its data.
        """
        return next(iter(self._unfinished), self.end)

    def begun(self, offset: int) -> None:
        """Notes that a BEGIN was replayed, or is unfinished in a snapshot."""
        if self.serving:
            self.in_flight.append(Begun(offset))
        else:
            self._unfinished[offset] = None

    def finished(self, offset: int, begin: int) -> None:
        """Notes that the last record of a transaction was replayed."""
        if self.serving:
            self.in_flight.append(Finished(offset, begin))
        else:
            del self._unfinished[begin]

    def emit(self, offset: int, effect: Effect) -> None:
        """Releases `effect` once the record is durable, if an owner acts on the shard."""
        if self.serving:
            self.in_flight.append(Deferred(offset, effect))

    def acknowledge(self, offset: int) -> list[Effect]:
        """Notes that every record up to `offset` is durable.

        Returns:
            The effects that may be carried out now, in journal order.
        """
        self.end = offset + 1
        ready: list[Effect] = []
        while self.in_flight and self.in_flight[0].offset <= offset:
            match self.in_flight.popleft():
                case Deferred(effect=effect):
                    ready.append(effect)
                case Finished(begin=begin):
                    del self._unfinished[begin]
                case Begun(offset=begin):
                    self._unfinished[begin] = None
        return ready
