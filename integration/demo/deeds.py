"""Faults: which process each hit, and whether the journal shows that it interrupted work."""

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
"""Shortest sleep of a coordinator. The others presume it dead after about half a second; a value
below that would test nothing."""
PAUSE_LIMIT_S: Final = 20.0
"""Longest sleep: a process is woken after this time even if what it waited for did not happen."""


class Zombie(Protocol):
    """A paused process that others have replaced; `processes.Child` is one."""

    name: str

    def resume(self) -> None:
        """Wakes the process (SIGCONT)."""

    @property
    def exit_status(self) -> int | None:
        """Exit status of the ended process; None while it runs."""


@dataclass(frozen=True, slots=True)
class WorkerKill:
    """A worker was killed while this transaction of its own was OPEN in the journal."""

    fault: ClassVar = Fault.WORKER_KILL
    worker: str
    key: Key

    def counts(self, view: JournalView) -> bool:
        """Returns whether the kill left the transaction open, so that others aborted it."""
        return _left_to_others(view, self.key)

    def is_spoilt(self, view: JournalView) -> bool:
        """Returns whether it can never count."""
        return _ended_by_itself(view, self.key)


@dataclass(frozen=True, slots=True)
class CoordinatorKill:
    """A coordinator was killed while these transactions were COMMITTING in the journal."""

    fault: ClassVar = Fault.COORDINATOR_KILL
    keys: tuple[Key, ...]
    successor: str
    """Address of the process that was started in its place."""

    def counts(self, view: JournalView) -> bool:
        """Returns whether another owner committed one of these transactions."""
        return any(_finished_by_another(view, key) for key in self.keys)

    def is_spoilt(self, view: JournalView) -> bool:
        """Returns whether it can never count."""
        return all(_finished_by_itself(view, key) for key in self.keys)

    def served_again(self, view: JournalView) -> bool:
        """Returns whether its successor was given a partition."""
        return any(taken.address == self.successor for taken in view.takeovers)


@dataclass(slots=True, kw_only=True)
class WorkerPause:
    """A worker was paused with an OPEN transaction, replaced by a successor, and then woken."""

    fault: ClassVar = Fault.WORKER_PAUSE
    zombie: Zombie
    key: Key
    since_s: float
    is_over: bool = False

    def may_end(self, view: JournalView, now_s: float) -> bool:
        """Returns whether its transaction is aborted or `PAUSE_LIMIT_S` is over."""
        return view[self.key].state is State.ABORTED or now_s - self.since_s > PAUSE_LIMIT_S

    def end(self, _view: JournalView) -> None:
        """Wakes the worker."""
        self.is_over = True
        self.zombie.resume()

    def counts(self, view: JournalView) -> bool:
        """Returns whether others aborted its transaction and it ended because it was fenced."""
        return _left_to_others(view, self.key) and self.zombie.exit_status == FENCED_STATUS

    def is_spoilt(self, view: JournalView) -> bool:
        """Returns whether it can never count."""
        return _ended_by_itself(view, self.key)


@dataclass(slots=True, kw_only=True)
class CoordinatorPause:
    """A coordinator was paused with COMMITTING transactions, and woke as a former owner."""

    fault: ClassVar = Fault.COORDINATOR_PAUSE
    zombie: Zombie
    address: str
    owned: Mapping[int, int]
    """Journal partition → epoch, of the partitions that it owned."""
    keys: tuple[Key, ...]
    since_s: float
    is_over: bool = False
    was_replaced: bool = False
    """Whether all its partitions had other owners when it woke."""
    takeovers_before: int = 0
    """Takeovers in the whole journal before it woke."""

    def may_end(self, view: JournalView, now_s: float) -> bool:
        """Returns whether it slept long enough and was replaced, or `PAUSE_LIMIT_S` is over."""
        slept_s = now_s - self.since_s
        return slept_s > PAUSE_LIMIT_S or (slept_s > PAUSE_S and self._is_replaced(view))

    def _is_replaced(self, view: JournalView) -> bool:
        return all(view.owners[partition].epoch > epoch for partition, epoch in self.owned.items())

    def end(self, view: JournalView) -> None:
        """Wakes the coordinator."""
        self.is_over = True
        self.was_replaced = self._is_replaced(view)
        self.takeovers_before = len(view.takeovers)
        self.zombie.resume()

    def counts(self, view: JournalView) -> bool:
        """Returns whether others took all its partitions and finished its work while it slept."""
        return self.was_replaced and any(_finished_by_another(view, key) for key in self.keys)

    def is_spoilt(self, view: JournalView) -> bool:
        """Returns whether it can never count."""
        return all(_finished_by_itself(view, key) for key in self.keys)

    def served_again(self, view: JournalView) -> bool:
        """Returns whether it was given a partition after it woke."""
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
