"""Which input of a consumer group was read, to be committed with the output made of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ...journal.control import TopicPartition
from ...journal.errors import ConfigError
from ...journal.position import Position
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
    """What is to be committed: `planned`, behind what the micro-batches before left unwritten."""
    planned: list[OffsetStep]
    """The steps of the input that was read last."""
    reader: int | None
    """Process id of the streaming query's reader; None for a batch."""
    used: bool = False
    """Whether the steps are committed."""
    failed: bool = False
    """Whether a write failed that was to commit them."""


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
                        _check_written(group, before, planned, drop=replace)
                    together = _together(before, planned, reader)
                    self._plans[group] = _Plan(together, planned, reader)
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
        if plan is not None and plan.reader is not None and of_stream is False:
            raise ConfigError(
                f"the input of group {group} is read by a streaming query, and this write is in no"
                " micro-batch of it: write in its foreachBatch, and there in no thread but its own"
                " or a pyspark.InheritableThread"
            )
        if plan is None or of_stream not in (None, plan.reader is not None):
            raise ConfigError(
                f"option group={group} commits the offsets of input that was read for that group, "
                "and none was: read it with logtx.spark.resume, or remove the option"
            )
        # A micro-batch without input has no plan of its own, so it must not use the former one. A
        # batch that is written twice sends the same steps twice: the compare-and-set refuses that.
        if plan.steps and not (plan.used and plan.reader is not None):
            transaction.send_offsets(group, plan.steps)

    def conflict(self, group: str, iov: Mapping[TopicPartition, Position]) -> str:
        """Returns what to say of planned steps that do not continue a group's committed IOV."""
        with self._guard:
            plan = self._plans.get(group)
        stands = _stands(plan.steps if plan is not None else (), iov)
        said = f"group {group} stands {stands}: another job has committed it"
        if plan is None or plan.reader is None:
            return f"{said}; read again by logtx.spark.resume"
        return (
            f"{said}, the group was reset, or foreachBatch wrote nothing before a restart; start"
            " the query with a new checkpointLocation, and it goes on where the group stands; if"
            " foreachBatch does not always write, put its writes into a logtx.spark.transaction,"
            " which commits the input in any case"
        )

    def use(self, group: str | None) -> None:
        """Notes that the planned steps are committed."""
        self._note(group, used=True)

    def fail(self, group: str | None) -> None:
        """Notes that output failed: its input must not be taken for input without output."""
        self._note(group, used=False)

    def _note(self, group: str | None, *, used: bool) -> None:
        with self._guard:
            plan = self._plans.get(group or "")
            if plan is not None:
                plan.used = plan.used or used
                plan.failed = not plan.used


def _stands(steps: Iterable[OffsetStep], iov: Mapping[TopicPartition, Position]) -> str:
    """Returns where a group stands that is not where its planned steps begin."""
    for step in steps:
        at = iov.get((step.topic, step.partition))
        if (at and at.place) != step.from_place:
            stands = "nowhere" if at is None else f"at {at.o2}"
            begins = 0 if step.from_place is None else step.from_place.o2
            partition = f"{step.topic}[{step.partition}]"
            return f"{stands} in {partition}, and the input that was read begins at {begins}"
    return "elsewhere"


def _together(
    before: _Plan | None, planned: list[OffsetStep], reader: int | None
) -> list[OffsetStep]:
    """Returns the steps of a plan, behind those of a micro-batch that wrote nothing.

    The reader of a query plans a micro-batch when the one before is done. If the ``foreachBatch``
    of that wrote nothing, its input has no output.
    """
    if before is None or reader is None or before.reader != reader or before.used or before.failed:
        return planned
    if before.planned == planned:
        return before.steps  # planned twice
    left = {(step.topic, step.partition): step for step in before.steps}
    for step in planned:
        key = step.topic, step.partition
        former = left.get(key)
        if former is None or step.from_place != former.to.place:
            left[key] = step
        else:
            left[key] = replace(step, from_place=former.from_place)
    return list(left.values())


def _check_written(group: str, before: _Plan, planned: list[OffsetStep], *, drop: bool) -> None:
    if before.used or drop or before.planned == planned:
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
