"""What was done to a process, and whether the journal says in the end that it was a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, TypeAlias

from ...journal.records.types import AbortReason
from ...journal.state import State
from .journal_view import JournalView, Key
from .plan import Fault
from .reports import FENCED_STATUS

PAUSE_S: Final = 3.0
"""How long a coordinator sleeps at least: the others find out after about half a second."""
PAUSE_LIMIT_S: Final = 20.0
"""Whoever sleeps is woken after this time, whatever did not happen meanwhile."""


class Zombie(Protocol):
    """A paused process that others have replaced; `processes.Child` is one."""

    name: str

    def resume(self) -> None:
        """SIGCONT."""

    @property
    def exit_status(self) -> int | None:
        """Of the ended process; None while it runs."""


@dataclass(frozen=True, slots=True)
class WorkerKill:
    """A worker was killed while this transaction of its was OPEN in the journal."""

    fault: ClassVar = Fault.WORKER_KILL
    worker: str
    key: Key

    def counts(self, view: JournalView) -> bool:
        """Whether the kill left the transaction open: somebody else had to abort it."""
        return _left_to_others(view, self.key)

    def is_spoilt(self, view: JournalView) -> bool:
        """Whether it will never count."""
        return _ended_by_itself(view, self.key)


@dataclass(frozen=True, slots=True)
class CoordinatorKill:
    """A coordinator was killed while these transactions were COMMITTING in the journal."""

    fault: ClassVar = Fault.COORDINATOR_KILL
    keys: tuple[Key, ...]
    successor: str
    """Address of the process that was started for it."""

    def counts(self, view: JournalView) -> bool:
        """Whether one of them was left to another owner, which then committed it."""
        return any(_finished_by_another(view, key) for key in self.keys)

    def is_spoilt(self, view: JournalView) -> bool:
        """Whether it will never count."""
        return all(_finished_by_itself(view, key) for key in self.keys)

    def served_again(self, view: JournalView) -> bool:
        """Whether its successor was given a partition."""
        return any(taken.address == self.successor for taken in view.takeovers)


@dataclass(slots=True, kw_only=True)
class WorkerPause:
    """A worker was paused with an OPEN transaction, and its successor started; then it woke."""

    fault: ClassVar = Fault.WORKER_PAUSE
    zombie: Zombie
    key: Key
    since_s: float
    is_over: bool = False

    def may_end(self, view: JournalView, now_s: float) -> bool:
        """Whether its transaction is aborted, or the time is up."""
        return view[self.key].state is State.ABORTED or now_s - self.since_s > PAUSE_LIMIT_S

    def end(self, _view: JournalView) -> None:
        """Wake the zombie."""
        self.is_over = True
        self.zombie.resume()

    def counts(self, view: JournalView) -> bool:
        """Whether its transaction was aborted by others, and it ended for being fenced."""
        return _left_to_others(view, self.key) and self.zombie.exit_status == FENCED_STATUS

    def is_spoilt(self, view: JournalView) -> bool:
        """Whether it will never count."""
        return _ended_by_itself(view, self.key)


@dataclass(slots=True, kw_only=True)
class CoordinatorPause:
    """A coordinator was paused with transactions COMMITTING; then it woke as a former owner."""

    fault: ClassVar = Fault.COORDINATOR_PAUSE
    zombie: Zombie
    address: str
    owned: Mapping[int, int]
    """Journal partitions that were its own, and its epochs in them."""
    keys: tuple[Key, ...]
    since_s: float
    is_over: bool = False
    was_replaced: bool = False
    """All its partitions had other owners when it woke."""
    takeovers_before: int = 0
    """Of the whole journal, until it woke."""

    def may_end(self, view: JournalView, now_s: float) -> bool:
        """Whether it slept long enough and was replaced, or the time is up."""
        slept_s = now_s - self.since_s
        return slept_s > PAUSE_LIMIT_S or (slept_s > PAUSE_S and self._is_replaced(view))

    def _is_replaced(self, view: JournalView) -> bool:
        return all(view.owners[partition].epoch > epoch for partition, epoch in self.owned.items())

    def end(self, view: JournalView) -> None:
        """Wake it."""
        self.is_over = True
        self.was_replaced = self._is_replaced(view)
        self.takeovers_before = len(view.takeovers)
        self.zombie.resume()

    def counts(self, view: JournalView) -> bool:
        """Whether others took its partitions over and finished its work while it slept."""
        return self.was_replaced and any(_finished_by_another(view, key) for key in self.keys)

    def is_spoilt(self, view: JournalView) -> bool:
        """Whether it will never count."""
        return all(_finished_by_itself(view, key) for key in self.keys)

    def served_again(self, view: JournalView) -> bool:
        """Whether it was given a partition after it woke."""
        later = view.takeovers[self.takeovers_before :]
        return self.is_over and any(taken.address == self.address for taken in later)


Deed: TypeAlias = WorkerKill | CoordinatorKill | WorkerPause | CoordinatorPause


def _left_to_others(view: JournalView, key: Key) -> bool:
    seen = view[key]
    return seen.state.aborts and seen.reason is not AbortReason.REQUESTED


def _ended_by_itself(view: JournalView, key: Key) -> bool:
    seen = view[key]
    return seen.state.commits or (seen.state.aborts and seen.reason is AbortReason.REQUESTED)


def _finished_by_itself(view: JournalView, key: Key) -> bool:
    return view[key].finished_in is not None and not view[key].outlived_coordinator


def _finished_by_another(view: JournalView, key: Key) -> bool:
    return view[key].state is State.COMMITTED and view[key].outlived_coordinator
