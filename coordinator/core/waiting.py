"""Commits that wait: their input offsets continue those of an earlier, undecided transaction.

Pure and volatile: lost with the process, and the clients ask again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from .commands import End
from .decision import Ref
from .metadata import Transaction, TransactionMetadataStore

_REQUEST_BYTES: Final = 512
_PARTITION_BYTES: Final = 32
_CHAR_BYTES: Final = 4
_BRANCH_BYTES: Final = 48


@dataclass(frozen=True, slots=True)
class Waiting:
    """One commit that waits."""

    command: End
    refs: tuple[Ref, ...]
    """Of the request and its repeats: a client that lost its patience gets every answer."""

    @property
    def size(self) -> int:
        """Upper bound in bytes of its requests, as a stream's window counts them."""
        request = _REQUEST_BYTES + sum(
            _PARTITION_BYTES + _CHAR_BYTES * len(topic) + _BRANCH_BYTES * len(branches)
            for (topic, _), branches in self.command.writes.items()
        )
        return request * len(self.refs)


class WaitingCommits:
    """The commits of one shard that wait, by the BEGIN of their transaction."""

    def __init__(self) -> None:
        """None waits."""
        self._waiting: dict[int, Waiting] = {}
        self._sizes: Counter[str] = Counter()
        """Producer → bytes of its commits that wait."""
        self._wake: set[str] = set()

    def add(self, begin: int, command: End, refs: tuple[Ref, ...]) -> None:
        """A commit waits; `refs` has those that wait for it already."""
        self._drop(begin)
        waiting = self._waiting[begin] = Waiting(command, refs)
        self._sizes[command.session.producer_id] += waiting.size

    def has_room(self, begin: int, command: End, refs: tuple[Ref, ...], bytes_max: int) -> bool:
        """Whether a commit may wait with the others of its producer; alone it always may."""
        already = self._waiting.get(begin)
        others = self._sizes[command.session.producer_id] - (already.size if already else 0)
        return not others or others + Waiting(command, refs).size <= bytes_max

    def _drop(self, begin: int) -> Waiting | None:
        waiting = self._waiting.pop(begin, None)
        if waiting is not None:
            name = waiting.command.session.producer_id
            self._sizes[name] -= waiting.size
            if not self._sizes[name]:
                del self._sizes[name]
        return waiting

    def refs(self, begin: int) -> tuple[Ref, ...]:
        """Who waits for the commit of a transaction."""
        waiting = self._waiting.get(begin)
        return waiting.refs if waiting is not None else ()

    def pop(self, begin: int) -> tuple[Ref, ...]:
        """The transaction is decided, or its commit refused: who waited for it."""
        waiting = self._drop(begin)
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
            if len(left) < len(waiting.refs):
                self._drop(begin)
            if left:
                self.add(begin, waiting.command, left)

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
        self._sizes.clear()
        self._wake.clear()
