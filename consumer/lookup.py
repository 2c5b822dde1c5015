"""Look-ups: finds out what became of pending transactions whose marker does not come.

A look-up asks for a transaction's fate in the journal, and *then* for the end offset of its data
partition. If the transaction has a marker there, the marker was acknowledged before the journal
said "finished", so it lies below an end that is asked for afterwards. The buffer reads up to that
end and obeys the marker (`PartitionBuffer.resolve`). The other order breaks: the end is asked for,
the marker is written, the journal says "finished", and the commit is dropped. A look-up never
delivers. It runs on a thread of its own, for the journal can be long.

What would go wrong otherwise: traps 16, 17 and 19.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaException

from ..journal.control import TopicPartition
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from ..journal.reader import find_fates
from ..journal.state import State
from ..journal.txid import TxId
from .core.pending import RawTxId

_LOG = logging.getLogger(__name__)
LOOK_UP_TIMEOUT_S: Final = 30.0
"""Time-out of reading the journal for a batch, and of each request for an end after it. A shorter
one fails on a long journal; with a longer one the thread may outlive `LookUps.close` for longer."""
BATCH_MAX: Final = 1_000
"""Transactions looked up in one pass over the journal. More make a pass longer, fewer need more
passes; what is over waits for the next round."""

Question = tuple[TopicPartition, RawTxId]


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The result of a look-up."""

    partition: TopicPartition
    txid: RawTxId
    end_offset: int
    """End of the data partition, asked for after the fate."""
    state: State
    """The transaction's state; `State.UNKNOWN` if the journal does not have it any more."""

    @property
    def ended(self) -> bool:
        """Whether the transaction is finished, or not in the journal any more."""
        return self.state.finished or self.state is State.UNKNOWN


def answer(log: Log, questions: Sequence[Question], *, timeout_s: float) -> list[LookedUp]:
    """Looks up pending transactions, and returns one result per question.

    Raises:
        LogtxError: the journal or a data partition can't be read; no question is answered then.
    """
    txids = {raw: TxId.from_bytes(raw) for _, raw in questions}
    fates = find_fates(log, txids.values(), timeout_s=timeout_s)
    # Only now that the fates are known, ask for the ends.
    ends = {
        (topic, partition): log.end_offset(topic, partition, timeout_s=timeout_s)
        for topic, partition in {key for key, _ in questions}
    }
    answers = []
    for key, raw in questions:
        answers.append(LookedUp(key, raw, ends[key], fates[txids[raw]].state))
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
