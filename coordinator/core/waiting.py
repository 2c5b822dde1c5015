"""Holds requests back: commits until the earlier transaction whose input offsets they continue is
decided, and questions until a transaction is finished.

Pure and volatile: they are lost with the process, and the clients ask again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..protocol.commands import End
from .decision import Instant, Ref

FINISH_WAIT_MS: Final = 5_000
"""Longest wait of a question until a transaction is finished; then it is answered as it is. A
longer one holds room in its client's window for longer, a shorter one makes clients ask more often.
"""

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


class _Asked(NamedTuple):
    until_ms: int
    begin: int
    ref: Ref


class WaitingQuestions:
    """Who waits until a decided transaction is finished, for `FINISH_WAIT_MS` at most."""

    def __init__(self) -> None:
        self._asked: dict[int, list[Ref]] = {}
        """BEGIN → who asked."""
        self._due: deque[_Asked] = deque()
        """In the order in which they asked, so by time. Some are answered."""

    def join(self, begin: int, ref: Ref, now: Instant) -> None:
        """Lets a question wait."""
        self._asked.setdefault(begin, []).append(ref)
        self._due.append(_Asked(now.monotonic_ms + FINISH_WAIT_MS, begin, ref))

    def pop(self, begin: int) -> tuple[Ref, ...]:
        """Ends the waiting for a transaction. Returns who asked."""
        return tuple(self._asked.pop(begin, ()))

    def overdue(self, now: Instant) -> tuple[int, Ref] | None:
        """Returns the next question that has waited for long enough, with the BEGIN; None: none."""
        while self._due and self._due[0].until_ms <= now.monotonic_ms:
            _, begin, ref = self._due.popleft()
            if self._remove(begin, ref):
                return begin, ref
        return None

    def _remove(self, begin: int, ref: Ref) -> bool:
        asked = self._asked.get(begin, [])
        left = [each for each in asked if each is not ref]
        if left:
            self._asked[begin] = left
        else:
            self._asked.pop(begin, None)
        return len(left) < len(asked)

    def forget(self, refs: Iterable[Ref]) -> None:
        """Drops the questions of clients that went away."""
        gone = set(map(id, refs))
        for begin, asked in list(self._asked.items()):
            for ref in asked:
                if id(ref) in gone:
                    self._remove(begin, ref)

    def clear(self) -> None:
        """Drops all questions."""
        self._asked.clear()
        self._due.clear()
