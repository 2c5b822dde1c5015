"""Look-ups: finds out what became of pending transactions whose marker does not come.

A look-up asks for a transaction's fate in the journal, and *then* for the end offset of its data
partition. If the transaction has a marker there, the marker was acknowledged before the journal
said "finished", so it lies below an end that is asked for afterwards. The buffer reads up to that
end and obeys the marker (`PartitionBuffer.resolve`). The other order breaks: the end is asked for,
the marker is written, the journal says "finished", and the commit is dropped. A look-up never
delivers. It runs on a thread of its own, for the journal can be long.

That an end may be of the past, and what is done about it, stands in `core.looks`.

What would go wrong otherwise: traps 16, 17, 19 and 63.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException

from ..journal.control import TopicPartition
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from ..journal.position import Journal
from ..journal.reader import find_fates
from ..journal.records.fate import Fate
from ..journal.state import State
from ..journal.txid import TxId
from .core.buffer import PartitionBuffer
from .core.looks import CONTRADICTED_APART_S, LOOKS_APART_S
from .core.pending import RawTxId

_LOG = logging.getLogger(__name__)
LOOK_UP_TIMEOUT_S: Final = 30.0
"""Time-out of reading the journal for a batch, and of each request for an end after it. A shorter
one fails on a long journal; with a longer one the thread may outlive `LookUps.close` for longer."""
BATCH_MAX: Final = 1_000
"""Transactions looked up in one pass over the journal. More make a pass longer, fewer need more
passes; what is over waits for the next round."""

RETRY_S: Final = 1.0
"""Pause before what a broker's error kept from being settled is looked up again, doubled each time,
up to ``pending.lookup.age.ms``. A longer one holds the transaction for longer, with a shorter one
consumers press a broker that is in trouble."""

Question = tuple[TopicPartition, RawTxId]


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The result of a look-up."""

    partition: TopicPartition
    txid: RawTxId
    end_offset: int
    """End of the data partition, asked for after the fate."""
    fate: Fate
    """What the journal says; `State.UNKNOWN` if it does not have the transaction any more."""
    asked_s: float
    """When the look-up began, on the caller's clock in seconds."""

    @property
    def ended(self) -> bool:
        """Whether the transaction is finished, or not in the journal any more."""
        return self.fate.state.finished or self.fate.state is State.UNKNOWN

    @property
    def is_placed(self) -> bool:
        """Whether the transaction is committed, and a home places it in the partition, rather than
        that it is marked. A home of another journal may have refused."""
        fate = self.fate
        handed = fate.handed if fate.state.commits else ()
        return self.partition in fate.placed or self.partition in handed

    def is_within(self, delivered: Mapping[Journal, int]) -> bool:
        """Returns whether it was decided up to the commit sequence that its journal has there."""
        sequence = self.fate.commit_sequence
        last = delivered.get(TxId.from_bytes(self.txid).journal, -1)
        return sequence is not None and sequence <= last

    def tell(self, buffer: PartitionBuffer, now_s: float) -> None:
        """Answers the buffer, if the answer may be believed yet. Else it is looked up again."""
        pending = buffer.find(self.txid)
        if pending is None:
            return
        pending.state, pending.pause_s = self.fate.state, 0.0
        if self.ended:
            if pending.ended_s is None or (pending.ahead and not self.fate.ahead):
                # A journal that ended before its BEGIN was one of the past. It may have been open
                # then, so an end that was told with that answer proves nothing.
                pending.ended_s, pending.end_offset, pending.ahead = now_s, 0, self.fate.ahead
            # One of two looks is true, whichever it is, and none tells more than the true end.
            pending.end_offset = max(pending.end_offset, self.end_offset)
            if self.asked_s - pending.ended_s < self._apart_s(buffer):
                pending.since = None  # look again later
                return
        else:
            pending.ended_s, pending.end_offset = None, self.end_offset
        buffer.resolve(self.txid, end_offset=pending.end_offset, ended=self.ended)

    def put_off(self, buffer: PartitionBuffer) -> None:
        """Leaves the transaction pending: it is looked up again later, if it is then."""
        pending = buffer.find(self.txid)
        if pending is not None:
            pending.since, pending.pause_s = None, 0.0

    def ask_again(self, buffer: PartitionBuffer, now_s: float, age_s: float) -> None:
        """Lets the transaction be looked up again after a pause: a broker's error came between.

        Args:
            buffer: holds it.
            now_s: the present time, on the clock of `asked_s`.
            age_s: the longest pause.
        """
        pending = buffer.find(self.txid)
        if pending is not None:
            pending.pause_s = min(max(RETRY_S, 2 * pending.pause_s), age_s)
            pending.not_before_s = now_s + pending.pause_s

    def _apart_s(self, buffer: PartitionBuffer) -> float:
        # Negative: it may be believed at once.
        fate, txid = self.fate, TxId.from_bytes(self.txid)
        marked = self.partition not in fate.gone and any(
            p.key == self.partition for p in fate.partitions
        )
        if fate.state is State.ABORTED or (fate.state is State.COMMITTED and not marked):
            return -1
        met = buffer.last_met(txid.journal)
        if fate.ahead:
            return CONTRADICTED_APART_S
        if fate.commit_sequence is None or met is None:
            return LOOKS_APART_S
        if fate.commit_sequence > met:
            return CONTRADICTED_APART_S
        # A home that places it writes no marker that could have been met. What it publishes of the
        # topic may be told of the past at the first look (trap 188).
        return LOOKS_APART_S if self.partition in fate.handed else -1


def answer(
    log: Log,
    questions: Sequence[Question],
    *,
    timeout_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> list[LookedUp]:
    """Looks up pending transactions, and returns one result per question.

    Raises:
        LogtxError: the journal or a data partition can't be read; no question is answered then.
    """
    asked_s = clock()
    txids = {raw: TxId.from_bytes(raw) for _, raw in questions}
    fates = find_fates(log, txids.values(), timeout_s=timeout_s)
    # Only now that the fates are known, ask for the ends.
    ends = {
        (topic, partition): log.end_offset(topic, partition, timeout_s=timeout_s)
        for topic, partition in {key for key, _ in questions}
    }
    answers = []
    for key, raw in questions:
        answers.append(LookedUp(key, raw, ends[key], fates[txids[raw]], asked_s))
    return answers


class LookUps:
    """Looks transactions up on a background thread, which starts with the first question."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._questions: queue.SimpleQueue[list[Question] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[list[Question], list[LookedUp]]] = (
            queue.SimpleQueue()
        )
        self._asked: set[Question] = set()
        self._thread: threading.Thread | None = None

    def ask(self, questions: Sequence[Question]) -> int:
        """Asks for these look-ups, at most `BATCH_MAX` of those that are not under way already.

        Returns:
            How many were asked for.
        """
        new = [q for q in questions if q not in self._asked][:BATCH_MAX]
        if not new:
            return 0
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="logtx-look-up", daemon=True)
            self._thread.start()
        self._asked.update(new)
        self._questions.put(new)
        return len(new)

    def answers(self) -> list[LookedUp]:
        """Returns what was found since the last call. What was not found may be asked for again."""
        found: list[LookedUp] = []
        while not self._answers.empty():
            questions, answers = self._answers.get()
            self._asked.difference_update(questions)
            found += answers
        return found

    def _run(self) -> None:
        while True:
            questions = self._questions.get()
            if questions is None:
                return
            try:
                answers = answer(self._log, questions, timeout_s=LOOK_UP_TIMEOUT_S)
            except (LogtxError, KafkaException) as error:
                _LOG.warning("look_up_failed transactions=%d error=%s", len(questions), error)
                answers = []
            self._answers.put((questions, answers))

    def close(self) -> None:
        """Tells the thread to end after the batches that were asked for. Does not wait for it."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread = None
