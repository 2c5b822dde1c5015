"""The look-up rule: what becomes of pending transactions whose marker does not come.

For each: its fate from the journal, *then* the end offset of its data partition. A marker, if it
has one here, was acknowledged before the journal said "finished", so it lies below an end that is
asked for afterwards; the buffer reads up to there and obeys it (`PartitionBuffer.resolve`). The
other order breaks: end offset, then marker, then "finished", and the commit is dropped. A look-up
never delivers. It runs on a thread of its own, for the journal can be long.

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
"""Bound of one batch of look-ups."""
BATCH_MAX: Final = 1_000
"""Transactions looked up in one pass over the journal."""

Question = tuple[TopicPartition, RawTxId]


@dataclass(frozen=True, slots=True)
class LookedUp:
    """What a look-up found."""

    partition: TopicPartition
    txid: RawTxId
    end_offset: int
    """End of the data partition, asked for after the fate."""
    state: State
    """`State.UNKNOWN` where the journal does not have it any more."""

    @property
    def ended(self) -> bool:
        """Finished, or not in the journal any more."""
        return self.state.finished or self.state is State.UNKNOWN


def answer(log: Log, questions: Sequence[Question], *, timeout_s: float) -> list[LookedUp]:
    """Look pending transactions up.

    Raises:
        LogtxError: the journal or a data partition can't be read; nothing is known then.
    """
    txids = {raw: TxId.from_bytes(raw) for _, raw in questions}
    fates = find_fates(log, txids.values(), timeout_s=timeout_s)
    # The fates are known: only now the ends.
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
        """Nothing is started yet."""
        self._log = log
        self._questions: queue.SimpleQueue[list[Question] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[list[Question], list[LookedUp]]] = (
            queue.SimpleQueue()
        )
        self._asked: set[Question] = set()
        self._thread: threading.Thread | None = None

    def ask(self, questions: Sequence[Question]) -> int:
        """Look these up, without those that are being looked up; returns how many are new."""
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
        """Returns what was found since the last call; what was not may be asked again."""
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
        """Let the thread end after what it is doing, at most `LOOK_UP_TIMEOUT_S`; don't wait."""
        if self._thread is not None:
            self._questions.put(None)
            self._thread = None
