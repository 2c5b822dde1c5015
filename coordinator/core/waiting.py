"""Commits that wait: their input offsets continue those of an earlier, undecided transaction.

Pure and volatile: lost with the process, and the clients ask again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ..protocol.commands import End
from .decision import Ref
from .transactions import TransactionMetadata, TransactionMetadataStore

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
        self._waiting: dict[int, Waiting] = {}
        self._sizes: Counter[str] = Counter()
        """Producer → bytes of its commits that wait."""
        self._wake: set[str] = set()

    def join(self, begin: int, command: End, refs: tuple[Ref, ...], bytes_max: int) -> bool:
        """Let a commit wait; a repeat of one that waits joins it, and its command replaces that.

        Args:
            begin: of its transaction.
            command: the commit.
            refs: whoever asks for it now.
            bytes_max: for all commits of its producer that wait. Alone a commit always may.

        Returns:
            False if there is no room, and nothing changed.
        """
        already = self._waiting.get(begin)
        waiting = Waiting(command, (*(already.refs if already else ()), *refs))
        others = self._sizes[command.session.producer_id] - (already.size if already else 0)
        if refs and others and others + waiting.size > bytes_max:
            return False
        self._put(begin, waiting)
        return True

    def _put(self, begin: int, waiting: Waiting) -> None:
        self._drop(begin)
        self._waiting[begin] = waiting
        self._sizes[waiting.command.session.producer_id] += waiting.size

    def _drop(self, begin: int) -> Waiting | None:
        waiting = self._waiting.pop(begin, None)
        if waiting is not None:
            name = waiting.command.session.producer_id
            self._sizes[name] -= waiting.size
            if not self._sizes[name]:
                del self._sizes[name]
        return waiting

    def pop(self, begin: int) -> tuple[Ref, ...]:
        """The transaction is decided, or its commit refused: who waited for it."""
        waiting = self._drop(begin)
        return waiting.refs if waiting is not None else ()

    def wake(self, producer_id: str) -> None:
        """A transaction of this producer was decided: look at its commits again."""
        self._wake.add(producer_id)

    def woken(
        self, store: TransactionMetadataStore
    ) -> Iterator[tuple[TransactionMetadata, Waiting]]:
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
                self._put(begin, Waiting(waiting.command, left))

    def clear(self) -> None:
        """Nobody waits any more."""
        self._waiting.clear()
        self._sizes.clear()
        self._wake.clear()
