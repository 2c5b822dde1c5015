"""Every way to read a log: the consumers' half of the search.

A consumer changes nothing for coordinators and producers. It reads what lies below the log's end,
which never changes, and, by a look-up, the journal at one moment. So the steps of consumers may be
put behind those of the writers without losing an interleaving, and two consumers need not be
interleaved with each other: for each log that the writers can make, and each look-up that could
have been made on the way, `Readers` visits every state of a consumer of it.

A consumer begins at any offset. It reads a record, takes a delivery, does a side read or asks for
what the look-up found, in any order. It stops once, at any moment, and goes on elsewhere from its
exact position. From where it began on it must deliver what the naive reading of the log says: no
less, no more, in that order.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from .buffers import LiveBuffer, Logs
from .machines import Machine
from .tenures import CORE_ERRORS

Reader = tuple[int, int, int, bool]
"""State of the buffer, start, number of records delivered, whether it has stopped once."""
LookUp = tuple[tuple[int, ...], int]
"""BEGINs that had ended in the journal, and the data partition's end, asked for afterwards."""
Key = tuple[int, LookUp | None]
Came = tuple[Reader, str] | None
"""The state before, and the step in words; None for the state in which a consumer begins."""


class Readers:
    """All consumers of all logs of a data partition."""

    def __init__(self, logs: Logs) -> None:
        """Begins without any log read."""
        self.logs = logs
        self.buffers = Machine(partial(LiveBuffer, logs))
        self._new: dict[Key, dict[Reader, Came] | str] = {}
        """By log and look-up: the states that need all of the log, and the look-up."""
        self._counts: dict[Key, int] = {}
        self._ways: dict[Key, list[str]] = {}
        self.states = 0
        """Number of distinct states of (log, look-up, consumer) visited."""

    def count(self, log: int, found: LookUp | None) -> int:
        """Returns how many states a consumer of this log has; must be called after `problem`."""
        key = log, found
        if key not in self._counts:
            new = self._new[key]
            count = 0 if isinstance(new, str) else len(new)
            if found is None:
                count += self.count(self.logs.parents[log], None) if log else 0
            elif self.logs.lengths[log] > found[1]:
                above = self.logs.parents[log]
                count += self.count(above, found) - self.count(above, None)
                count += self.count(log, None)
            else:
                count += self.count(log, None)
            self._counts[key] = count
        return self._counts[key]

    def problem(self, log: int, found: LookUp | None) -> str | None:
        """Returns what a consumer of this log does wrong, if one does."""
        new = self._reach(log, found)
        return new if isinstance(new, str) else None

    def way(self, log: int, found: LookUp | None) -> list[str]:
        """Returns the steps of the consumer that does wrong, in words."""
        return self._ways.get((log, found), [])

    def _reach(self, log: int, found: LookUp | None) -> dict[Reader, Came] | str:
        key = log, found
        new = self._new.get(key)
        if new is None:
            new = self._new[key] = self._search(log, found)
            self.states += 0 if isinstance(new, str) else len(new)
        return new

    def _search(self, log: int, found: LookUp | None) -> dict[Reader, Came] | str:  # noqa: PLR0912
        # Something new can happen only behind states in which a consumer has read all of the
        # shorter log; and it can learn what a look-up found at any place below the end asked for.
        length, above = self.logs.lengths[log], self.logs.parents[log]
        new: dict[Reader, Came] = {}
        begins: list[tuple[Reader, str, Any]] = []
        if found is not None and found[1] == length:
            plain = self._reach(log, None)
            if isinstance(plain, str):
                return plain
            for reader in self._all(log):
                begins += ((reader, *s) for s in self._learns(found, reader))
        elif log:
            before = self._reach(above, found)
            if isinstance(before, str):
                return before
            facts = self.buffers.facts
            ends = [r for r in before if facts[r[0]].next_offset == length - 1]
            begins = [(r, *s) for r in ends for s in self._reads(log, r)]
        if found is None:
            state, _ = self.buffers.start((length, length, 0, ()))
            new[state, length, 0, False] = None
        for reader, what, after in begins:
            if isinstance(after, str):
                self._ways[log, found] = [*self._way(log, found, new, reader), what]
                return after
            new.setdefault(after, (reader, what))
        todo = list(new)
        for reader in todo:
            problem = self._at_rest(log, reader)
            if problem is not None:
                self._ways[log, found] = self._way(log, found, new, reader)
                return problem
            for what, after in self._steps(log, found, reader):
                if isinstance(after, str):
                    self._ways[log, found] = [*self._way(log, found, new, reader), what]
                    return after
                if after not in new:
                    new[after] = reader, what
                    todo.append(after)
        return new

    def _all(self, log: int) -> Iterator[Reader]:
        while True:
            new = self._reach(log, None)
            assert not isinstance(new, str)
            yield from new
            if not log:
                return
            log = self.logs.parents[log]

    def _way(
        self, log: int, found: LookUp | None, new: dict[Reader, Came], reader: Reader
    ) -> list[str]:
        steps: list[str] = []
        while True:
            came = new.get(reader)
            if came is None and reader in new:
                return steps[::-1]
            if came is not None:
                reader = came[0]
                steps.append(came[1])
                continue
            # The state is one of a shorter log, or of the time before the look-up.
            if found is not None and self.logs.lengths[log] == found[1]:
                found = None
            elif log:
                log = self.logs.parents[log]
            else:
                return steps[::-1]
            shorter = self._new[log, found]
            assert not isinstance(shorter, str)
            new = shorter

    def _reads(self, log: int, reader: Reader) -> list[tuple[str, Any]]:
        at = self.buffers.facts[reader[0]].next_offset
        if at >= self.logs.lengths[log]:
            return []
        number = self.logs.numbers(log)[at]
        return [self._step(log, reader, f"reads offset {at}", ("read", at, number))]

    def _learns(self, found: LookUp, reader: Reader) -> list[tuple[str, Any]]:
        return [
            self._step(
                0,
                reader,
                f"learns that T{begin} ended, and the end {found[1]}",
                ("resolve", begin, found[1]),
            )
            for begin in self.buffers.facts[reader[0]].pending
            if begin in found[0]
        ]

    def _step(self, log: int, reader: Reader, what: str, key: tuple[Any, ...]) -> tuple[str, Any]:
        try:
            after, given = self.buffers.step(reader[0], key)
            return what, self._given(log, reader, after, given)
        except CORE_ERRORS as error:
            return what, f"the buffer broke: {error!r}"

    def _steps(self, log: int, found: LookUp | None, reader: Reader) -> list[tuple[str, Any]]:
        facts = self.buffers.facts[reader[0]]
        steps = self._reads(log, reader)
        if facts.ready:
            steps.append(self._step(log, reader, "takes a record", ("take",)))
        if facts.side_read_below >= 0:
            below = self.logs.prefix(log, facts.side_read_below)
            steps.append(self._step(log, reader, "does a side read", ("side read", below)))
        if found is not None and facts.next_offset <= found[1]:
            steps += self._learns(found, reader)
        if not reader[3]:
            how = "stops, and goes on from its position"
            steps.append(self._step(log, reader, how, ("stop",)))
        return steps

    def _given(self, log: int, reader: Reader, after: int, given: tuple[Any, ...]) -> Any:
        _, start, count, stopped = reader
        for what in given:
            match what:
                case ("record", offset):
                    must = self.logs.expected(log, start)
                    if count >= len(must) or must[count] != offset:
                        wanted = f"offset {must[count]}" if count < len(must) else "nothing"
                        return (
                            f"a consumer from {start} delivers offset {offset}, and {wanted}"
                            f" is due (1, 4, 5)"
                        )
                    count += 1
                case ("position", *origin):
                    after, _ = self.buffers.start(tuple(origin))
                    stopped = True
        return after, start, count, stopped

    def _at_rest(self, log: int, reader: Reader) -> str | None:
        state, start, count, _ = reader
        facts = self.buffers.facts[state]
        if facts.failure is not None:
            return f"a consumer from {start} stops with {facts.failure} (5)"
        if facts.next_offset < self.logs.lengths[log] or facts.ready or facts.blocked:
            return None
        must = self.logs.expected(log, start)
        if count < len(must):
            return f"a consumer from {start} never delivers offset {must[count]} (1, 5)"
        return None
