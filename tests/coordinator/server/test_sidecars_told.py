"""What a coordinator makes of what brokers tell of a sidecar."""

from __future__ import annotations

from typing import Any, cast

import pytest

from logtx.coordinator.runtime.topics import TopicLookUps
from logtx.coordinator.server.sidecars import Sidecars
from logtx.journal.errors import CoordinatorBusyError
from logtx.journal.logs.interface import TopicInfo
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.sidecar import sidecar_of


def test_an_answer_from_before_a_sidecar_grew_refuses_nothing(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_log.create_topic("t", partitions=1)
    sidecars = Sidecars(memory_log, cast(TopicLookUps, None))
    sidecars._open("t", sidecar_of("t"))
    memory_log.raise_partitions("t", 3)
    before, real = memory_log.topic_info(sidecar_of("t")), memory_log.topic_info

    def told(topic: str, **options: Any) -> TopicInfo:
        return before if topic == sidecar_of("t") else real(topic, **options)

    monkeypatch.setattr(memory_log, "topic_info", told)
    with pytest.raises(CoordinatorBusyError, match="lack the partitions it just got"):
        sidecars._open("t", sidecar_of("t"))
    monkeypatch.undo()
    sidecars._open("t", sidecar_of("t"))
    assert memory_log.partition_count(sidecar_of("t")) == 3
    sidecars.close()
