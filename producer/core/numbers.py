"""Numbers for records, drawn by any thread without a lock. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final


class Numbers:
    """The numbers from 0 on, each drawn once.

    To draw one is one C call: atomic, half the cost of a lock, and no signal handler's exception
    can come into the middle of it.
    """

    __slots__ = ("all", "draw")

    def __init__(self) -> None:
        """Begins at 0."""
        self.all: Final[Iterator[int]] = count()
        """Draws them, as an iterator."""
        self.draw: Final[Callable[[], int]] = self.all.__next__
        """Returns the next one."""

    @property
    def drawn(self) -> int:
        """How many were drawn."""
        # Nothing else tells without drawing one; and who draws one to know it would have to give it
        # back, where an exception of a signal handler may come between.
        return int(repr(self.all)[len("count(") : -1])


class PlainCount:
    """Counts records that belong to no transaction, from `produce` to their reports.

    Any thread admits and withdraws. One thread at a time serves reports.
    """

    __slots__ = (
        *("_admitted", "_on_failure", "_on_placeless", "_withdrawn", "admit", "reports"),
        "withdraw",
    )

    def __init__(
        self, on_failure: Callable[[object], None], on_placeless: Callable[[Any], None]
    ) -> None:
        """Has no record.

        Args:
            on_failure: called with the error of each report of one.
            on_placeless: called with the message of each report of a success without an offset:
                those of the records beside it may be made up (trap 233).
        """
        self._on_failure = on_failure
        self._on_placeless = on_placeless
        self._admitted, self._withdrawn = Numbers(), Numbers()
        self.admit: Final = self._admitted.draw
        """Counts a record that is about to be given to librdkafka."""
        self.withdraw: Final = self._withdrawn.draw
        """Takes back one that librdkafka did not take."""
        self.reports = 0
        """Number of records whose reports were served."""

    @property
    def unreported(self) -> int:
        """Number of records whose reports were not served."""
        # In this order: another thread may send records meanwhile, and their reports must not hide
        # one that is missing.
        over = self.reports + self._withdrawn.drawn
        # Below 0 if a signal handler raised librdkafka's error behind a record that was taken.
        return max(self._admitted.drawn - over, 0)

    def delivered(self, error: object, message: Any) -> None:
        """Counts a report: a delivery callback."""
        if error is not None:
            self._on_failure(error)
        elif message.offset() is None:
            self._on_placeless(message)
        self.reports += 1

    def postpone(self) -> None:
        """Counts the report that is served next only once `told` is called; see `BranchTally`."""
        self.reports -= 1

    def told(self) -> None:
        """Counts a report that was postponed."""
        self.reports += 1
