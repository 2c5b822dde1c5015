"""Holds commits until the earlier transaction whose input offsets they continue is decided.

Pure and volatile: they are lost with the process, and the clients ask again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ..protocol.commands import End
from .decision import Ref

# Upper bounds of the parts of a commit's request. Too low, and commits that wait could fill their
# stream's window; too high refuses commits (BUSY) that have room.
_REQUEST_BYTES: Final = 512
_PARTITION_BYTES: Final = 32
_CHAR_BYTES: Final = 4
_BRANCH_BYTES: Final = 48


@dataclass(frozen=True, slots=True)
class Waiting:
    """One commit that waits."""

    command: End
    refs: tuple[Ref, ...]
    """Tokens of the request and its repeats. A client that repeated it gets every answer."""

    @property
    def size(self) -> int:
        """Upper bound of its requests in bytes, as a stream's window counts them."""
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
        """Producer → bytes of its waiting commits."""
        self._blocked: dict[int, dict[int, None]] = {}
        """BEGIN of an undecided transaction → BEGINs of commits that wait for it."""
        self._woken: deque[int] = deque()
        """BEGINs of commits to look at again."""

    def join(
        self,
        begin: int,
        command: End,
        refs: tuple[Ref, ...],
        blockers: Iterable[int],
        bytes_max: int,
    ) -> bool:
        """Lets a commit wait. A repeat joins the commit that waits, and replaces its command.

        Args:
            begin: BEGIN of its transaction.
            command: the commit.
            refs: tokens of the requests that ask for it now.
            blockers: BEGINs of the transactions that it waits for.
            bytes_max: limit for all waiting commits of its producer. A single one always has room.

        Returns:
            False if there is no room; then nothing has changed.
        """
        already = self._waiting.get(begin)
        waiting = Waiting(command, (*(already.refs if already else ()), *refs))
        others = self._sizes[command.session.producer_id] - (already.size if already else 0)
        if refs and others and others + waiting.size > bytes_max:
            return False
        self._put(begin, waiting)
        for blocker in blockers:
            self._blocked.setdefault(blocker, {})[begin] = None
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
        """Ends the waiting of a commit, which is decided or refused. Returns its tokens."""
        waiting = self._drop(begin)
        return waiting.refs if waiting is not None else ()

    def wake(self, decided: int) -> None:
        """Marks the commits that wait for a transaction: it is decided. `decided` is its BEGIN."""
        self._woken.extend(sorted(self._blocked.pop(decided, ())))

    def next_woken(self) -> tuple[int, Waiting] | None:
        """Returns the next commit to look at again, with its BEGIN. Each wake gives it once."""
        while self._woken:
            begin = self._woken.popleft()
            waiting = self._waiting.get(begin)
            if waiting is not None:
                return begin, waiting
        return None

    def forget(self, refs: Iterable[Ref]) -> None:
        """Drops the requests of clients that went away. Their transactions stay open."""
        gone = set(map(id, refs))
        for begin, waiting in list(self._waiting.items()):
            left = tuple(ref for ref in waiting.refs if id(ref) not in gone)
            if len(left) < len(waiting.refs):
                self._drop(begin)
            if left:
                self._put(begin, Waiting(waiting.command, left))

    def clear(self) -> None:
        """Drops all waiting commits."""
        self._waiting.clear()
        self._sizes.clear()
        self._blocked.clear()
        self._woken.clear()
