"""The end of the load: producers stop, everything is decided, workers finish their input.

When nothing of the producers is unfinished any more, a last record is written to each partition.
The workers are done when their committed offsets are behind it. Every wait is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Final

from .errors import ChaosError
from .fleet import Fleet, Member
from .inspector import Inspector
from .plan import Role
from .recorder import Recorder
from .settings import (
    HISTORY,
    KEYS_PER_PARTITION,
    STACKS_SIGNAL,
    Settings,
    partitions_now,
)
from .workload.plain import PlainWriter
from .workload.record import Value

PRODUCERS_S: Final = 75.0
"""Bounds the wait for the producers' ends. Like the bounds below: a smaller value fails slow
machines, a larger one delays the report of a real failure."""
DECIDED_S: Final = 240.0
"""Bounds the wait until what the producers left unfinished is finished. Where a topic took no
markers for a while, thousands wait, and go out one at a time, some 20 a second on a busy machine.
"""
WORKED_OFF_S: Final = 120.0
"""Bounds the wait until the workers have committed more of their input."""
WORKED_OFF_MAX_S: Final = 900.0
"""Bounds the wait until they have committed all of it. Where their output was sealed for a third of
the time, and the machine is slow, they are thousands of transactions behind."""
SPARK_S: Final = 480.0
"""What a Spark query takes longer than others: its driver may be starting again. Beside three
brokers, on two cores with a load average of 37, its first commit took more than 300 s."""
FINALS_S: Final = 950.0
"""Bounds the wait for the last readers; longer than their own limit (`final.LIMIT_S`)."""
CONSUMERS_S: Final = 20.0
"""Bounds the wait for the ends of workers and consumers."""
_STACKS_S: Final = 1.0
"""How long a process that does not end has to say where it stands."""
_POLL_S: Final = 0.25
"""Pause between two looks at what is waited for."""

Tick = Callable[[], None]


def stop_members(members: Iterable[Member], limit_s: float, tick: Tick) -> list[str]:
    """Asks all members to end, and waits. Returns the names of those that did not end well.

    Those that still run then write to their logs what each of their threads is at.
    """
    asked = list(members)
    for member in asked:
        member.ask_to_stop()
    if not await_until(lambda: not any(m.child.is_running for m in asked), limit_s, tick):
        for member in asked:
            if member.child.is_running and member.role is not Role.SPARK:
                member.child.signal(STACKS_SIGNAL)
        time.sleep(_STACKS_S)
    return [member.name for member in asked if not member.child.await_end(0.1)]


def await_until(done: Callable[[], bool], limit_s: float, tick: Tick) -> bool:
    """Waits until `done` returns True, and calls `tick` meanwhile. Returns False if not in time."""
    deadline_s = time.monotonic() + limit_s
    while not done():
        tick()
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def write_last(directory: Path, settings: Settings) -> dict[int, int]:
    """Writes a plain record to the end of each partition of the data topic.

    Returns:
        Partition → offset of its record.

    Raises:
        ChaosError: a record was not acknowledged.
    """
    offsets: dict[int, int] = {}
    # In the history it is a producer of its own.
    process = f"producer-{settings.producers}.0"
    with Recorder(directory / HISTORY, process) as recorder:
        writer = PlainWriter(settings, recorder)
        count = partitions_now(directory, settings)
        keys = {settings.partition_of(key): key for key in range(KEYS_PER_PARTITION * count)}
        for number in range(count):
            value = Value(keys[number], f"{process}:{number}", operation=None)
            writer.append(settings.data_topic, value, partial(offsets.__setitem__, number))
        if not writer.close() or len(offsets) < count:
            raise ChaosError("The cluster takes no records although everything is healed.")
    return offsets


def await_decided(inspector: Inspector, tick: Tick) -> None:
    """Waits until what is unfinished now is finished. Raises ChaosError.

    Workers go on meanwhile, so there may be no moment at which nothing is unfinished.
    """
    waited_for: frozenset[str] | None = None

    def decided() -> bool:
        nonlocal waited_for
        now = inspector.unfinished()
        if now is not None:
            waited_for = now if waited_for is None else waited_for & now
        return waited_for is not None and not waited_for

    if not await_until(decided, DECIDED_S, tick):
        found = "what is unfinished is not known" if waited_for is None else _some(waited_for)
        raise ChaosError(
            f"{DECIDED_S:.0f} s after everything was healed and the producers ended: {found}."
        )


def _some(unfinished: frozenset[str]) -> str:
    return f"{len(unfinished)} transactions are unfinished, such as {min(unfinished)}"


def await_worked_off(
    inspector: Inspector, last: dict[int, int], tick: Tick, more_s: float = 0.0
) -> None:
    """Waits until workers have committed everything up to these offsets. Raises ChaosError.

    Args:
        inspector: of the run.
        last: partition → last offset that is to be committed.
        tick: called now and then.
        more_s: what they may take beyond `WORKED_OFF_S` for some of it.
    """
    limit_s = WORKED_OFF_S + more_s
    seen: dict[int, int] = {}
    stuck_s = time.monotonic() + limit_s

    def behind() -> dict[int, int]:
        nonlocal seen, stuck_s
        found = inspector.worked_off() or {}
        if any(offset > seen.get(partition, -1) for partition, offset in found.items()):
            seen, stuck_s = found, time.monotonic() + limit_s
        return {p: found.get(p, -1) for p, offset in last.items() if found.get(p, -1) <= offset}

    def is_over() -> bool:
        return not behind() or time.monotonic() > stuck_s

    await_until(is_over, WORKED_OFF_MAX_S + more_s, tick)
    if left := behind():
        raise ChaosError(
            f"Workers did not work off their input: of {last} they are behind in {left}, after "
            f"{limit_s:.0f} s without progress, or {WORKED_OFF_MAX_S + more_s:.0f} s in all."
        )


def read_to_the_end(fleet: Fleet, count: int, tick: Tick) -> None:
    """Runs the last readers. Raises ChaosError if one does not reach the end."""
    fleet.add_finals(count)
    for member in fleet.finals:
        member.start()
    await_until(lambda: not any(m.child.is_running for m in fleet.finals), FINALS_S, tick)
    bad = [member for member in fleet.finals if not member.child.await_end(0.1)]
    if bad:
        said = " / ".join(bad[0].child.last_lines(3))
        names = ", ".join(member.name for member in bad)
        raise ChaosError(f"Not read to the end: {names}. {said}")
