"""A producer: appends values to keys, plainly and in transactions, some of which it aborts.

    python -m logtx.chaos.workload.producer DIRECTORY NUMBER LIFE

The first producers have a `transactional.id` each, which a successor takes over, and up to
`IN_FLIGHT` transactions under way. The last ones hold a transaction key for a while, one
transaction at a time, and then go for another key: the producer that held it is thrown out.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Final

from ..settings import TRANSACTION_KEYS
from .clients import (
    BrokenError,
    Ended,
    FailedError,
    FencedError,
    WriterClient,
    WriterTransaction,
)
from .pacer import Pacer
from .plain import PlainWriter, reporter
from .process import Process, TakenOverError, run
from .record import Value
from .writers import open_writer

_LOG = logging.getLogger(__name__)
IN_FLIGHT: Final = 256
"""Most transactions under way. A smaller value stops the load during stalls, a larger one piles up
more work for their end."""
KEYS_MAX: Final = 4
"""Most keys in one transaction."""
FLEETING_SHARE: Final = 0.15
"""Share of transactions that write to the topic that is deleted and made anew, too."""
KEYS_EVERY: Final = 20
"""After so many appends a producer looks whether there are more partitions, and so more keys."""
SIDECAR_SHARE: Final = 0.25
"""Share of transactions that write to the topic's sidecar alone, if any may. They leave the topic
alone that is made anew: its sidecar would outlive it."""
GROWING_SHARE: Final = 0.25
"""Share of those that begin in the topic, and go over to its sidecar."""
PLAIN_SHARE: Final = 0.08
"""Share of appends that are plain records instead of a transaction."""
ABORT_SHARE: Final = 0.06
"""Share of transactions that are aborted on purpose."""
SLOW_SHARE: Final = 0.01
"""Share of transactions that are left open for a while, so that others pass them by."""
SLOW_S: Final = (0.5, 5.0)
"""Seconds that these stay open, at least and at most."""
SLOW_MAX: Final = 3
"""Most of these at once: what is pending behind them costs the readers memory."""
HOLD_TRANSACTIONS: Final = (10, 60)
"""Transactions, at least and at most, after which a key is let go."""
_SLICE_S: Final = 0.05
"""Longest wait at once for the pacer or for an end; bounds how late slow transactions end."""
_END_S: Final = 45.0
"""Bounds the wait for the ends of what is under way when a client is let go."""
_RETRY_S: Final = 0.2
"""Pause after a client could not be opened."""


@dataclass(slots=True)
class _Slow:
    """A transaction that is left open until a time."""

    until_s: float
    operation: str
    transaction: WriterTransaction


class Producer:
    """The producer of one process."""

    def __init__(self, process: Process) -> None:
        """Prepares the producer; `run` starts the load."""
        self._process = process
        self._settings = process.settings
        self._recorder = process.recorder
        self._random = process.random
        own_names = self._settings.producers - self._settings.keyed_producers
        self._keyed = process.number >= own_names
        self._plain = PlainWriter(self._settings, process.recorder)
        self._slow: deque[_Slow] = deque()
        self._under_way = 0
        self._ended: deque[str] = deque()
        """Operations that ended, added by any thread."""
        self._something_ended = Event()
        self._pacer = Pacer(self._settings.rate, time.monotonic())
        self._keys = process.keys
        self._looked_ago = 0

    def run(self) -> None:
        """Appends until SIGTERM.

        Raises:
            TakenOverError: a successor has our transactional.id.
        """
        while not self._process.stopping.is_set():
            key = self._random.choice(TRANSACTION_KEYS) if self._keyed else None
            hold = self._random.randint(*HOLD_TRANSACTIONS) if self._keyed else None
            try:
                client = open_writer(
                    self._settings,
                    name=f"chaos-producer-{self._process.number}",
                    key=key,
                    in_flight=IN_FLIGHT,
                )
            except FencedError as error:
                self._fenced(error)
                continue
            except FailedError as error:
                self._recorder.write("error", error=str(error))
                self._process.stopping.wait(_RETRY_S)
                continue
            try:
                self._hold(client, key, hold)
            except FencedError as error:
                self._fenced(error)
            except BrokenError as error:
                self._recorder.write("error", error=f"broken: {error}")
            finally:
                self._let_go(client)
        self._plain.close()

    def _fenced(self, error: FencedError) -> None:
        if not self._keyed:
            raise TakenOverError(str(error)) from error
        self._recorder.write("error", error=f"fenced: {error}")

    def _hold(self, client: WriterClient, key: str | None, hold: int | None) -> None:
        """Runs transactions with one client, at most `hold` of them."""
        in_flight = 1 if self._keyed else min(IN_FLIGHT, client.in_flight)
        begun = 0
        while not self._process.stopping.is_set() and (hold is None or begun < hold):
            self._reap()
            self._end_slow()
            if self._under_way >= in_flight:
                self._something_ended.wait(_SLICE_S)
                continue
            wait_s = self._pacer.wait_s(time.monotonic())
            if wait_s > 0:
                self._process.stopping.wait(min(wait_s, _SLICE_S))
                continue
            if self._random.random() < PLAIN_SHARE:
                self._append_plain()
            else:
                self._transact(client, key)
                begun += 1

    def _append_plain(self) -> None:
        key = self._random.choice(self._known_keys())
        self._plain.append(
            self._settings.data_topic, Value(key, self._process.value(), operation=None)
        )

    def _transact(self, client: WriterClient, key: str | None) -> None:
        operation = self._process.operation()
        self._recorder.write("begin", op=operation, **({"key": key} if key else {}))
        self._under_way += 1
        sidecar = self._draw_sidecar()
        try:
            transaction = client.begin(sidecar=sidecar)
        except (FencedError, BrokenError, FailedError) as error:
            self._on_ended(operation, Ended(outcome="aborted", error=str(error)))
            if not isinstance(error, FailedError):
                raise
            return
        try:
            self._append_some(transaction, operation, only_input=sidecar is not False)
        except FencedError as error:
            # Its abort tells what became of it; no commit was requested.
            self._end(operation, transaction.abort)
            raise error from None
        except FailedError:
            self._end(operation, transaction.abort)
            return
        slow = not self._keyed and len(self._slow) < SLOW_MAX
        if slow and self._random.random() < SLOW_SHARE:
            until_s = time.monotonic() + self._random.uniform(*SLOW_S)
            self._slow.append(_Slow(until_s, operation, transaction))
        else:
            self._commit_or_abort(operation, transaction)

    def _draw_sidecar(self) -> bool | None:
        """Returns whether the next transaction writes to sidecars alone; None: it grows."""
        drawn = self._random.random() if self._settings.sidecar else 1.0
        if drawn < SIDECAR_SHARE:
            return True
        return None if drawn < SIDECAR_SHARE + GROWING_SHARE else False

    def _append_some(
        self, transaction: WriterTransaction, operation: str, *, only_input: bool
    ) -> None:
        settings = self._settings
        chosen = self._random.sample(self._known_keys(), self._random.randint(1, KEYS_MAX))
        places = [(key, settings.data_topic, settings.partition_of(key)) for key in chosen]
        fleeting_topic = None if only_input else settings.fleeting_topic
        if fleeting_topic is not None and self._random.random() < FLEETING_SHARE:
            fleeting = settings.fleeting_partition_of(chosen[0])
            places.insert(
                self._random.randint(0, len(places)),
                (chosen[0], fleeting_topic, fleeting),
            )
        for key, topic, partition in places:
            value = Value(key, self._process.value(), operation)
            self._recorder.write(
                "append", op=operation, topic=topic, partition=partition, k=key, v=value.value
            )
            told = reporter(self._recorder, value.value)
            transaction.produce(topic, partition, str(key).encode(), value.encode(), told)

    def _known_keys(self) -> range:
        self._looked_ago += 1
        if self._looked_ago >= KEYS_EVERY:
            self._looked_ago, self._keys = 0, self._process.keys
        return range(self._keys)

    def _commit_or_abort(self, operation: str, transaction: WriterTransaction) -> None:
        if self._random.random() < ABORT_SHARE:
            self._recorder.write("note", note="abort", op=operation)
            self._end(operation, transaction.abort)
        else:
            self._recorder.write("commit", op=operation)
            self._end(operation, transaction.commit)

    def _end(self, operation: str, end: Callable[[Callable[[Ended], None]], None]) -> None:
        end(partial(self._on_ended, operation))

    def _on_ended(self, operation: str, ended: Ended) -> None:
        """Notes the end of a transaction; called on any thread."""
        fields = {
            "txid": ended.txid,
            "commit_sequence": ended.commit_sequence,
            "error": ended.error,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        self._recorder.write("end", op=operation, outcome=ended.outcome, **known)
        self._ended.append(operation)
        self._something_ended.set()

    def _reap(self) -> None:
        self._something_ended.clear()
        while self._ended:
            self._ended.popleft()
            self._under_way -= 1

    def _end_slow(self, *, all_of_them: bool = False) -> None:
        now_s = time.monotonic()
        for slow in [s for s in self._slow if all_of_them or s.until_s <= now_s]:
            self._slow.remove(slow)
            self._commit_or_abort(slow.operation, slow.transaction)

    def _let_go(self, client: WriterClient) -> None:
        """Ends what is under way; what does not end in time keeps no outcome in the history."""
        self._end_slow(all_of_them=True)
        until_s = time.monotonic() + _END_S
        self._reap()
        while self._under_way > 0 and time.monotonic() < until_s:
            self._something_ended.wait(_SLICE_S)
            self._reap()
        if self._under_way:
            _LOG.warning("left_under_way operations=%d", self._under_way)
        client.close()
        self._under_way = 0
        self._ended.clear()


if __name__ == "__main__":
    run("producer", lambda process: Producer(process).run())
