"""What a coordinator remembers of bindings: enough not to ask each time, and never for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from logtx.coordinator.server.bindings import GroupBindings
from logtx.journal.errors import CoordinatorBusyError, GroupBoundError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import journal_partition_of

COUNT = 2
HOMES = {journal_partition_of(name, COUNT): name for name in ("default", "elsewhere", "g", "t")}


class Asked(GroupBindings):
    """Counts its questions; `now` is what they are answered."""

    now: str | None = None
    questions = 0

    async def _ask(self, group: str) -> str | None:
        self.questions += 1
        if self.now is not None:
            self._known[group] = self.now
        return self.now


@pytest.fixture
def bindings(memory_log: MemoryLog) -> Iterator[Asked]:
    """Those of one coordinator."""
    assert HOMES.keys() == {0, 1}
    with closing(Asked(memory_log, {})) as made:
        yield made


def check(bindings: Asked, partition: int, *, has_offsets: bool = True) -> None:
    asyncio.run(bindings.check("q", partition, COUNT, has_offsets=has_offsets))


def test_it_asks_once_while_offsets_keep_the_binding(bindings: Asked) -> None:
    bindings.now = HOMES[0]
    for _ in range(3):
        check(bindings, 0)
    assert bindings.questions == 1
    check(bindings, 0, has_offsets=False)
    assert bindings.questions == 2, "nothing keeps it"


def test_a_binding_that_has_ended_refuses_nobody(bindings: Asked) -> None:
    """It served the first home; the subscription was deleted, bound elsewhere, and it took over
    there, where others have made the subscription (trap 148)."""
    bindings.now = HOMES[0]
    check(bindings, 0)
    bindings.now = HOMES[1]
    check(bindings, 1)
    check(bindings, 1)
    assert bindings.questions == 2


def test_who_is_bound_elsewhere_is_refused_by_what_is_so_now(bindings: Asked) -> None:
    bindings.now = HOMES[1]
    for _ in range(2):
        with pytest.raises(GroupBoundError, match=HOMES[1]):
            check(bindings, 0)
    bindings.now = None
    with pytest.raises(GroupBoundError, match="bind it first"):
        check(bindings, 0)


def test_who_asks_a_coordinator_that_ends_is_told_to_ask_again(memory_log: MemoryLog) -> None:
    bindings = GroupBindings(memory_log, {})
    bindings.close()
    with pytest.raises(CoordinatorBusyError, match="ends"):
        asyncio.run(bindings.bound("g"))
