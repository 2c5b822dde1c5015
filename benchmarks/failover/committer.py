"""A client that commits all the time, and notes when each commit was acknowledged."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import logtx
from logtx.journal.errors import LogtxError, RequestTimedOutError
from logtx.journal.txid import TxId

PARTITIONS: Final = 2
"""Partitions of its topic; each transaction has a record in each."""
COMMIT_TIMEOUT_S: Final = 60.0
"""Bounds the wait for a commit; longer than any stall that is measured."""
_TOLD_S: Final = 10.0
"""Bounds the wait of the end for what is told of commits: the thread for callbacks is behind on a
busy machine."""


@dataclass(frozen=True, slots=True)
class Told:
    """One acknowledged commit."""

    at_s: float
    """When it was acknowledged, on the monotonic clock."""
    number: int
    txid: TxId
    commit_sequence: int


def longest_gap_s(times_s: Sequence[float], since_s: float, until_s: float) -> float:
    """Returns the longest gap in `times_s` (ordered), of those that reach into [since, until]."""
    before = [t for t in times_s if t < since_s][-1:] or [since_s]
    within = [t for t in times_s if since_s <= t <= until_s]
    return max(b - a for a, b in pairwise([*before, *within, until_s]))


def _await(is_done: Callable[[], bool], timeout_s: float) -> bool:
    """Returns whether something came true in time."""
    deadline_s = time.monotonic() + timeout_s
    while not is_done():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.005)
    return True


class Committer:
    """Commits transactions of 2 records in 2 partitions, on its own thread. A context manager.

    Every record's value is the transaction's number.
    """

    def __init__(
        self, servers: str, topic: str, *, group: str = "default", in_flight: int = 1
    ) -> None:
        self.topic = topic
        self.group = group
        """Its transaction group."""
        self._told: list[tuple[float, int, bytes, int]] = []
        # Tuples of numbers and bytes only: the garbage collector leaves them alone. With hundreds
        # of thousands of other objects it would cause pauses, which grow while the case runs.
        self.failed: list[tuple[int, LogtxError]] = []
        """Number and error of each transaction whose begin or commit raised."""
        self.begun = 0
        self.in_flight = in_flight
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._producer = logtx.Producer(
            {
                "bootstrap.servers": servers,
                "transactional.id": topic,
                "transaction.group": group,
                # Tests count the BEGINs: one for each transaction of this client, and no more.
                "transaction.begin.ahead": False,
            }
        )
        self._thread = threading.Thread(target=self._run, name=f"committer-{topic}")

    def __enter__(self) -> Committer:
        """Connects, and begins to commit."""
        self._producer.init_transactions()
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        """Commits what is under way, and stops."""
        self._stop.set()
        self._thread.join(COMMIT_TIMEOUT_S)
        # A future is done before the thread for callbacks has told of it.
        _await(lambda: len(self._told) + len(self.failed) >= self.begun, _TOLD_S)
        self._producer.close()

    @property
    def told(self) -> list[Told]:
        """Commits in the order of their acknowledgements."""
        with self._lock:
            return [Told(at, n, TxId.from_bytes(t), sequence) for at, n, t, sequence in self._told]

    def longest_gap_s(self, since_s: float, until_s: float) -> float:
        """Returns the longest gap between acknowledged commits, of those in [since_s, until_s]."""
        with self._lock:
            times = [told[0] for told in self._told]
        return longest_gap_s(times, since_s, until_s)

    def await_told(self, more: int, timeout_s: float) -> bool:
        """Waits for `more` further commits; returns False if they did not come in time."""
        wanted = len(self._told) + more
        return _await(lambda: len(self._told) >= wanted, timeout_s)

    def _run(self) -> None:
        flying: deque[tuple[int, Future[Any]]] = deque()
        while not self._stop.is_set():
            try:
                flying.append(self._begin())
            except LogtxError as error:
                self._fail(self.begun, error)
            if len(flying) >= self.in_flight:
                self._land(flying)
        while flying:
            self._land(flying)

    def _begin(self) -> tuple[int, Future[Any]]:
        number, self.begun = self.begun, self.begun + 1
        transaction = self._producer.begin_transaction()
        value = b"%d" % number
        for partition in range(PARTITIONS):
            transaction.produce(self.topic, value, partition=partition)
        future = transaction.commit_async()
        future.add_done_callback(lambda done: self._ended(number, done))
        return number, future

    def _ended(self, number: int, done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            outcome = done.result()
            txid, sequence = outcome.txid.to_bytes(), outcome.commit_sequence or -1
            with self._lock:
                self._told.append((time.monotonic(), number, txid, sequence))
        else:
            assert isinstance(error, LogtxError), error
            self._fail(number, error)

    def _fail(self, number: int, error: LogtxError) -> None:
        with self._lock:
            self.failed.append((number, error))

    def _land(self, flying: deque[tuple[int, Future[Any]]]) -> None:
        number, future = flying.popleft()
        try:
            future.exception(COMMIT_TIMEOUT_S)  # it is in `failed`
        except TimeoutError:
            # The thread must not end: each stall to come would last as long as it is waited for.
            self._fail(number, RequestTimedOutError(f"no answer within {COMMIT_TIMEOUT_S:g} s"))
