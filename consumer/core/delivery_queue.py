"""Gives out what one partition may deliver, in order.

What stands at the queue's head is delivered next: a run of plain records, or a committed
transaction. A transaction that waits for a side read, or failed, stops the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from ...journal.control import TopicPartition
from ...journal.errors import ConsumerError, SpillError
from ...journal.position import Journal
from ...journal.txid import TxId
from .entries import EndedTransaction, EntryState, PlainRun, Share, advance
from .past import Past
from .pending import PendingTransactionMap, Record
from .pointers import PointedTransaction


class DeliveryQueue:
    """What was read of a partition and is not pending, on its way to the application.

    `PartitionBuffer` puts entries in.
    """

    def __init__(
        self,
        partition: TopicPartition,
        pending_map: PendingTransactionMap,
        met: dict[Journal, int],
    ) -> None:
        """Begins empty.

        Args:
            partition: topic and number.
            pending_map: what holds the records of transactions; delivered ones are dropped there.
            met: the last commit sequence of each journal that was delivered before.
        """
        self.partition = partition
        self._pending_map = pending_map
        self._queue: deque[PlainRun | EndedTransaction] = deque()
        self._met_taken = met
        """The last commit sequence taken of each journal."""
        self._met_before: dict[Journal, int] = {}
        """`_met_taken` before the last `take`."""
        self.last_take: list[Share] = []
        """What the last `take` returned; each makes a new list."""
        self._past = Past()

    # ---- in -------------------------------------------------------------------------------------

    def _run(self) -> PlainRun:
        # Returns the run of plain records at the queue's end; begins one if there is none.
        queue = self._queue
        if queue:
            tail = queue[-1]
            if isinstance(tail, PlainRun):
                return tail
        run = PlainRun()
        queue.append(run)
        return run

    def _push(self, entry: EndedTransaction) -> None:
        self._queue.append(entry)

    # ---- out ------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether `take` would return something."""
        self._pass_finished()
        queue = self._queue
        if not queue:
            return False
        head = queue[0]
        return isinstance(head, PlainRun) or head.state is EntryState.READY

    @property
    def queued_records(self) -> int:
        """Number of records that are read, not pending, and waiting to be taken.

        A pointer counts as one more: without records that are read it takes memory, too.
        """
        return sum(map(_weight, self._queue))

    @property
    def failure(self) -> ConsumerError | None:
        """The error that stopped delivery from this partition, if any."""
        self._pass_finished()
        head = self._queue[0] if self._queue else None
        return head.error if isinstance(head, EndedTransaction) else None

    def take(self, limit: int, *, more: bool = False) -> list[Record]:
        """Returns the next records to deliver, which count as delivered from now on.

        Returns [] if everything that was read is delivered or pending, or if the first transaction
        in the queue waits for a side read or failed.

        Args:
            limit: most records to return.
            more: whether they go to the application together with those of the last call. Then
                `shares` yields both.
        """
        if not more:
            self.last_take = []
            self._met_before = dict(self._met_taken)
        return self._take(limit)

    def shares(self) -> Iterator[tuple[EndedTransaction | None, Sequence[Record]]]:
        """Yields what the last `take` returned, by transaction; None stands for plain records."""
        for entry, _, records in self.last_take:
            yield (None if isinstance(entry, PlainRun) else entry), records

    def _take(self, limit: int) -> list[Record]:
        # Returns a new list, which the application may change; each copy costs 20 ns per record.
        taken: list[Record] = []
        while True:
            self._pass_finished()
            room = limit - len(taken)
            if not self._queue or room <= 0:
                return taken
            entry = self._queue[0]
            if isinstance(entry, PlainRun):
                start = entry.index
                records: Sequence[Record] = entry.records[start : start + room]
                self.last_take.append(Share(entry, start, records))
                entry.index = start + len(records)
            elif entry.state is EntryState.READY:
                start = entry.taken
                stop = min(start + room, entry.available)
                try:
                    records = entry.part(start, stop)
                except SpillError as error:
                    self._fail(entry, error)
                    return taken
                if len(records) != stop - start:
                    text = "spilled records are missing: start the consumer again"
                    self._fail(entry, SpillError(self._text(entry, text)))
                    return taken
                self.last_take.append(Share(entry, start, records))
                entry.taken = stop
                if stop == entry.available < entry.total:
                    entry.state = EntryState.STREAMING
            else:
                return taken
            taken += records
            self._past.add(entry, start, records, self._met_taken)

    def _pass_finished(self) -> None:
        # Removes delivered entries from the head of the queue, and entries without records.
        queue = self._queue
        while queue:
            entry = queue[0]
            if isinstance(entry, PlainRun):
                if entry.index < len(entry.records):
                    return
            else:
                if entry.state is not EntryState.READY or entry.taken < entry.total:
                    return
                self._finish(entry)
            queue.popleft()

    def _finish(self, entry: EndedTransaction) -> None:
        advance(self._met_taken, entry)
        if entry.pending is not None:
            self._pending_map.discard(entry.pending)
            entry.pending = None
        entry.stream = ()

    @property
    def blocked(self) -> bool:
        """Whether a transaction stops delivery that waits for a side read or for records in a
        sidecar, or failed."""
        self._pass_finished()
        head = self._queue[0] if self._queue else None
        return isinstance(head, EndedTransaction) and head.state is not EntryState.READY

    def _fail(self, entry: EndedTransaction, error: ConsumerError) -> None:
        entry.state = EntryState.FAILED
        entry.error = error

    def _text(self, entry: EndedTransaction, what: str) -> str:
        topic, partition = self.partition
        txid = TxId.from_bytes(entry.txid)
        return f"transaction {txid} in {topic}[{partition}], marker {entry.marker_offset}: {what}"


def _weight(entry: PlainRun | EndedTransaction) -> int:
    if isinstance(entry, PlainRun):
        return len(entry.records)
    if isinstance(entry, PointedTransaction):
        # What was taken of it is not held any more.
        return max(0, entry.available - entry.taken) + 1
    return entry.available
