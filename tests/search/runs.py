"""Runs searches in processes of their own, and reports their progress and what they found."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import pytest

from .explore import Report, World, explore
from .fences_world import FencesWorld
from .journal_world import JournalWorld
from .marker_world import MarkerWorld
from .mutations import MUTATIONS
from .mutations import search as search_mutation
from .places_world import PlacesWorld
from .queue_world import QueueWorld
from .scenarios import SEARCHES, world_of
from .sidecar_scenarios import SIDECAR_SEARCHES
from .sidecar_world import SidecarWorld

ALL: Final = (*SEARCHES, *SIDECAR_SEARCHES)
GIB: Final = 2**30
MEMORY_MAX_BYTES: Final = 6 * GIB
"""Limit of all processes together; a search that reaches its part of it stops, incomplete."""
ALIVE_S: Final = 5.0
"""Time between two looks whether a silent process still runs."""

Told = Callable[[Report], None]
Task = Callable[[Told], Report]


def searches(*, reduced: bool, seconds: float, jobs: int) -> dict[str, Task]:
    """Returns every scenario, by name."""
    bytes_max = MEMORY_MAX_BYTES / jobs
    names = [search.full.name for search in ALL]
    return {name: partial(_search, name, reduced, seconds, bytes_max) for name in names}


def mutations() -> dict[str, Task]:
    """Returns every mutation, by name."""
    return {mutation.name: partial(_search_mutation, mutation.name) for mutation in MUTATIONS}


@contextmanager
def world(name: str, *, mutated: bool, reduced: bool) -> Iterator[World]:
    """Yields the world of a scenario, or of a mutation while its rule is dropped."""
    if not mutated:
        yield next(s for s in ALL if s.full.name == name).world(reduced=reduced)
        return
    mutation = next(m for m in MUTATIONS if m.name == name)
    with pytest.MonkeyPatch.context() as patch:
        mutation.apply(patch.setattr)
        yield world_of(mutation.scenario)


def _search(name: str, reduced: bool, seconds: float, bytes_max: float, told: Told) -> Report:
    with world(name, mutated=False, reduced=reduced) as searched:
        report = explore(searched, seconds_max=seconds, memory_max_bytes=bytes_max, progress=told)
        report.notes = _notes(searched)
    return report


def _search_mutation(name: str, told: Told) -> Report:
    del told
    return search_mutation(next(m for m in MUTATIONS if m.name == name))


def _notes(searched: World) -> dict[str, float]:
    if isinstance(searched, PlacesWorld | FencesWorld):
        return {"steps of cores": searched.steps_of_cores}
    if isinstance(searched, SidecarWorld):
        return {"logs": searched.logs}
    assert isinstance(searched, JournalWorld | MarkerWorld | QueueWorld)
    notes: dict[str, float] = {"steps of cores": searched.tenures.steps_taken}
    if isinstance(searched, MarkerWorld):
        notes["steps of cores"] += searched.readers.buffers.steps_taken
        notes["consumer states"] = searched.readers.states
        notes["with consumers"] = searched.with_consumers
    return notes


def _work(name: str, task: Task, out: Any) -> None:
    try:
        out.put((name, task(lambda report: out.put((name, report, False))), True))
    except BaseException as error:
        out.put((name, repr(error), True))
        raise


def run(
    tasks: dict[str, Task], jobs: int, told: Callable[[str, Report, bool], None]
) -> dict[str, Report]:
    """Runs tasks, `jobs` at a time.

    Args:
        tasks: the tasks by name.
        jobs: number of processes.
        told: called with a name, its progress, and whether that is final.

    Raises:
        RuntimeError: a search failed, other than by what it found.
    """
    context = multiprocessing.get_context("spawn")
    out: Any = context.Queue()
    waiting, running = list(tasks), {}
    reports: dict[str, Report] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            name = waiting.pop(0)
            running[name] = context.Process(target=_work, args=(name, tasks[name], out))
            running[name].start()
        try:
            name, found, last = out.get(timeout=ALIVE_S)
        except queue.Empty:
            gone = [name for name, process in running.items() if not process.is_alive()]
            if gone:
                raise RuntimeError(f"the processes of {gone} are gone") from None
            continue
        if not isinstance(found, Report):
            raise RuntimeError(f"{name}: {found}")  # noqa: TRY004
        told(name, found, last)
        if last:
            reports[name] = found
            running.pop(name).join()
    return {name: reports[name] for name in tasks}
