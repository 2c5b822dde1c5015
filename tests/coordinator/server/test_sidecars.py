"""What a sidecar takes over from its topic when it is created."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import pytest

from logtx.coordinator.runtime.internal_topics import MESSAGE_DEFAULT_BYTES
from logtx.coordinator.server.sidecars import REQUIRED, Sidecars
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.sidecar import sidecar_of


@pytest.fixture
def sidecars(memory_log: MemoryLog) -> Iterator[Sidecars]:
    with closing(Sidecars(memory_log, cast(Any, None))) as made:
        yield made


def opened(log: MemoryLog, sidecars: Sidecars, settings: dict[str, str]) -> dict[str, str]:
    """Returns the settings of the sidecar of a new topic with these settings."""
    log.create_topic("t", partitions=3, settings=settings)
    sidecars._open("t", sidecar_of("t"))
    found = log.topic_info(sidecar_of("t"), timeout_s=5.0)
    assert found.partition_count == 3
    return dict(found.settings or {})


def test_it_has_the_limits_of_its_topic_and_no_retention(
    memory_log: MemoryLog, sidecars: Sidecars
) -> None:
    given = {"max.message.bytes": "5000000", "retention.ms": "1000"}
    found = opened(memory_log, sidecars, given)
    assert found["max.message.bytes"] == "5000000"
    assert {name: found[name] for name in REQUIRED} == REQUIRED


@pytest.mark.parametrize("limit", ["1", f"{MESSAGE_DEFAULT_BYTES - 1}"])
def test_trap_292_a_topic_that_is_sealed_does_not_seal_its_sidecar(
    memory_log: MemoryLog, sidecars: Sidecars, limit: str
) -> None:
    found = opened(memory_log, sidecars, {"max.message.bytes": limit})
    assert found["max.message.bytes"] == f"{MESSAGE_DEFAULT_BYTES}"
