"""What of a shard's records is durable: what may be done for it now, and the high watermark.

Both look at acknowledged records alone. A marker written for a decision whose append is lost, or a
HW computed from a BEGIN in flight, would be believed by consumers for ever (TRAPS 4). Pure.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from .decision import Effect


class Watermark:
    """Effects that wait for their records, and transactions whose end is not durable."""

    def __init__(self) -> None:
        """Nothing was replayed, and all that will be is acknowledged."""
        self.serving = False
        """Whether an owner acts from the shard; else all that is replayed is acknowledged."""
        self.end = 0
        """Everything below is acknowledged."""
        self.effects: deque[tuple[int, int, bool, Effect | None]] = deque()
        """(offset of the record, BEGIN, whether it is finished, effect), in journal order."""
        self._unfinished: OrderedDict[int, None] = OrderedDict()
        """BEGINs that are acknowledged, in order, and whose end is not."""

    @property
    def hw(self) -> int:
        """Transaction high watermark: the oldest unfinished BEGIN, else the acknowledged end.

        From acknowledged records only: a HW that counted a COMMITTED still in flight would be
        above a BEGIN if that append were lost, and consumers would drop its data.
        """
        return next(iter(self._unfinished), self.end)

    def begun(self, offset: int) -> None:
        """A BEGIN was replayed, or is unfinished in a snapshot."""
        if self.serving:
            self.effects.append((offset, offset, False, None))
        else:
            self._unfinished[offset] = None

    def finished(self, offset: int, begin: int) -> None:
        """The last record of a transaction was replayed."""
        if self.serving:
            self.effects.append((offset, begin, True, None))
        else:
            del self._unfinished[begin]

    def emit(self, offset: int, effect: Effect) -> None:
        """Do this when the record is durable, if anybody acts from the shard."""
        if self.serving:
            self.effects.append((offset, offset, False, effect))

    def acknowledge(self, offset: int) -> list[Effect]:
        """Every record up to `offset` is durable: what may be done now, in journal order."""
        self.end = offset + 1
        ready: list[Effect] = []
        while self.effects and self.effects[0][0] <= offset:
            _, begin, finished, effect = self.effects.popleft()
            if effect is not None:
                ready.append(effect)
            elif finished:
                del self._unfinished[begin]
            else:
                self._unfinished[begin] = None
        return ready
