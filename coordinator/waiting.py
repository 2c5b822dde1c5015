"""Commits that wait: their input offsets continue those of an earlier, undecided transaction.

Pure and volatile: lost with the process, and the clients ask again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .commands import End
from .decision import Ref
from .metadata import Transaction, TransactionMetadataStore


@dataclass(frozen=True, slots=True)
class Waiting:
    """One commit that waits."""

    command: End
    refs: tuple[Ref, ...]
    """Of the request and its repeats: a client that lost its patience gets every answer."""


class WaitingCommits:
    """The commits of one shard that wait, by the BEGIN of their transaction."""

    def __init__(self) -> None:
        """None waits."""
        self._waiting: dict[int, Waiting] = {}
        self._wake: set[str] = set()

    def add(self, begin: int, command: End, refs: tuple[Ref, ...]) -> None:
        """A commit waits; `refs` has those that wait for it already."""
        self._waiting[begin] = Waiting(command, refs)

    def refs(self, begin: int) -> tuple[Ref, ...]:
        """Who waits for the commit of a transaction."""
        waiting = self._waiting.get(begin)
        return waiting.refs if waiting is not None else ()

    def pop(self, begin: int) -> tuple[Ref, ...]:
        """The transaction is decided, or its commit refused: who waited for it."""
        waiting = self._waiting.pop(begin, None)
        return waiting.refs if waiting is not None else ()

    def wake(self, producer_id: str) -> None:
        """A transaction of this producer was decided: look at its commits again."""
        self._wake.add(producer_id)

    def woken(self, store: TransactionMetadataStore) -> Iterator[tuple[Transaction, Waiting]]:
        """Commits to look at again, in the order of their TxIds; until it ends, ask anew."""
        for begin in sorted(self._waiting) if self._wake else ():
            transaction = store.get(begin)
            if transaction is not None and transaction.producer_id in self._wake:
                yield transaction, self._waiting[begin]
        self._wake.clear()

    def forget(self, refs: Iterable[Ref]) -> None:
        """Those whose client went away stop waiting; their transactions stay open."""
        gone = set(map(id, refs))
        for begin, waiting in list(self._waiting.items()):
            left = tuple(ref for ref in waiting.refs if id(ref) not in gone)
            if left:
                self._waiting[begin] = Waiting(waiting.command, left)
            else:
                del self._waiting[begin]

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
        self._wake.clear()
