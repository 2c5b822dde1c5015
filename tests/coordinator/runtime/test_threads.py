"""What belongs to a coordinator's event loop is touched by no other thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from inspect import isfunction
from typing import Any

import pytest

from logtx.coordinator.core.lanes import MarkerLanes
from logtx.coordinator.core.offsets_lanes import OffsetsLanes
from logtx.coordinator.core.tenure import Tenure
from logtx.coordinator.core.topics import TopicKnowledge
from logtx.coordinator.membership.members import Members
from logtx.coordinator.runtime import appender
from logtx.journal.logs.memory.log import MemoryLog

from ..clusters import Committer, cluster_of

OF_THE_LOOP = (Members, TopicKnowledge, Tenure, MarkerLanes, OffsetsLanes)


def _watched(monkeypatch: pytest.MonkeyPatch, watched: type, seen: dict[Any, set[int]]) -> None:
    def watch(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            # By the object itself, which stays: the id of one that is gone is used again.
            seen.setdefault((watched.__name__, self), set()).add(threading.get_ident())
            return method(self, *args, **kwargs)

        return call

    methods = {n: m for c in reversed(watched.__mro__[:-1]) for n, m in vars(c).items()}
    for name, method in methods.items():
        if isfunction(method) and not name.startswith("__"):
            monkeypatch.setattr(watched, name, watch(method))


def test_the_cores_of_a_coordinator_are_touched_by_one_thread(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appender, "WARM_S", 0.0)
    seen: dict[Any, set[int]] = {}
    for watched in OF_THE_LOOP:
        _watched(monkeypatch, watched, seen)
    memory_log.create_topic("data", partitions=1)
    with cluster_of(memory_log) as cluster:
        cluster.joined(2)
        committer = Committer(memory_log, "data")
        committer.progress()
        cluster.owner(0).kill()
        cluster.join()
        cluster.settled()
        committer.progress()
        committer.stop()
    assert {name for name, _ in seen} == {watched.__name__ for watched in OF_THE_LOOP}
    assert {name for (name, _), threads in seen.items() if len(threads) > 1} == set()
