"""Which input of a consumer group was read, to be committed with the output made of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ...journal.errors import ConfigError
from ...journal.records.types import OffsetStep
from ...producer.transaction import Transaction
from .cluster import PAUSE_S

READER_ENDS_S: Final = 10.0
"""How long a stopped query's reader process may take to end before another query of its group is
refused."""


@dataclass(slots=True)
class _Plan:
    """The steps of a group's input that was read, to be committed with the output made of it.

    Nothing ties a DataFrame that is written to the one that was read. So a group has one plan at a
    time: with two, a write could commit the offsets of input that is in no output.
    """

    steps: list[OffsetStep]
    reader: int | None
    """Process id of the streaming query's reader; None for a batch."""
    used: bool = False
    """Whether the steps are committed."""


class Plans:
    """The plans of an application, by consumer group."""

    def __init__(self) -> None:
        """Begins without any."""
        self._guard = threading.Lock()
        self._plans: dict[str, _Plan] = {}

    def plan(
        self,
        group: str,
        steps: Iterable[OffsetStep],
        *,
        reader: int | None = None,
        replace: bool = False,
    ) -> None:
        """Remembers which input of a group is read; the next commit with this group commits it.

        Args:
            group: the consumer group.
            steps: the steps of the input.
            reader: process id of a streaming query's reader; None for a batch.
            replace: accept that an earlier batch, read and not written, is dropped.

        Raises:
            ConfigError: another batch that is not written yet, or another running query, has read
                for this group.
        """
        planned = list(steps)
        deadline_s = time.monotonic() + READER_ENDS_S
        while True:
            with self._guard:
                before = self._plans.get(group)
                if before is None or before.reader in (None, reader) or not _runs(before.reader):
                    if before is not None and before.reader is None and reader is None:
                        _check_written(group, before, planned, replace=replace)
                    self._plans[group] = _Plan(planned, reader)
                    return
            # The reader process of a query that has just ended takes a moment to end, too.
            if time.monotonic() > deadline_s:
                raise ConfigError(
                    f"group {group} is read by another query of this application: give each query "
                    "a group of its own, or read all topics of a group by one resume"
                )
            time.sleep(PAUSE_S)

    def send(self, transaction: Transaction, group: str, *, of_stream: bool | None) -> None:
        """Makes the planned steps part of a transaction.

        Args:
            transaction: it commits the output.
            group: the consumer group.
            of_stream: whether a query's sink writes; None for a write in its ``foreachBatch``,
                which may be of the query's own input or of a batch that was read there.

        Raises:
            ConfigError: no input was read for the group.
        """
        with self._guard:
            plan = self._plans.get(group)
        if plan is None or of_stream not in (None, plan.reader is not None):
            raise ConfigError(
                f"option group={group} commits the offsets of input that was read for that group, "
                "and none was: read it with logtx.spark.resume, or remove the option"
            )
        # A micro-batch without input has no plan of its own, so it must not use the former one. A
        # batch that is written twice sends the same steps twice: the compare-and-set refuses that.
        if plan.steps and not (plan.used and plan.reader is not None):
            transaction.send_offsets(group, plan.steps)

    def use(self, group: str | None) -> None:
        """Notes that the planned steps are committed."""
        with self._guard:
            plan = self._plans.get(group or "")
            if plan is not None:
                plan.used = True


def _check_written(group: str, before: _Plan, planned: list[OffsetStep], *, replace: bool) -> None:
    if before.used or replace or before.steps == planned:
        return
    raise ConfigError(
        f"group {group} was resumed before, and what was read then is not written: write it "
        "first, or pass replace=True if that DataFrame will not be used any more"
    )


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
