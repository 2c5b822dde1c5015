"""Coordinators and clients refuse those of before, which speak gRPC: real gRPC at the other end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import grpc
import pytest

from logtx.coordinator.client.metadata import MetadataClient
from logtx.coordinator.client.queries import CoordinatorQueries
from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.membership.links import Link
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.errors import CoordinatorNotAvailableError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.txid import TxId

from ..scripted import publish

TIMEOUT_S: Final = 30.0
OF_BEFORE: Final = (
    # As clients of before connected.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)
UPGRADE_IT: Final = "older versions of logtx do: upgrade it"


@pytest.mark.parametrize("method", ["Coordinator/Session", "Coordinator/Call", "Peers/Watch"])
def test_one_of_before_is_refused_at_once_and_both_are_told(
    memory_log: MemoryLog, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=1
    )
    with (
        EmbeddedCoordinator(config) as running,
        grpc.insecure_channel(running.address, options=OF_BEFORE) as channel,
    ):
        began_s = time.monotonic()
        call = channel.stream_stream(f"/logtx.{method}")
        with pytest.raises(grpc.RpcError) as broken:
            list(call(iter([b""]), timeout=TIMEOUT_S))
        assert time.monotonic() - began_s < TIMEOUT_S / 2
    assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "HTTP status 426" in broken.value.details()
    refused = [each.message for each in caplog.records if each.message.startswith("stranger")]
    assert 1 <= len(refused) < 10, "gRPC connects again in its own time"
    for each in refused:
        assert "install the coordinator's version of logtx at the client" in each


@pytest.fixture
def of_before(memory_log: MemoryLog) -> Iterator[str]:
    """The address of a coordinator of before, which the log names."""
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    publish(memory_log, address)
    yield address
    server.stop(0).wait(TIMEOUT_S)


def connect(log: MemoryLog) -> None:
    CoordinatorClient(log, SessionOptions(producer_id="p", timeout_s=2.0)).connect()


def ask(log: MemoryLog) -> None:
    CoordinatorQueries(log, timeout_s=2.0).outcome(TxId(0, 1, 1))


def ask_the_store(log: MemoryLog) -> None:
    MetadataClient(log, timeout_s=2.0).status()


@pytest.mark.usefixtures("of_before")
@pytest.mark.parametrize("reach", [connect, ask, ask_the_store])
def test_a_client_says_that_its_coordinator_is_of_before(
    memory_log: MemoryLog, reach: Callable[[MemoryLog], None]
) -> None:
    with pytest.raises(CoordinatorNotAvailableError, match=UPGRADE_IT):
        reach(memory_log)


def test_a_coordinator_says_that_another_one_is_of_before(of_before: str) -> None:
    async def read() -> None:
        link = Link(of_before)
        try:
            await link.read()
        finally:
            await link.close()

    with pytest.raises(CoordinatorNotAvailableError, match=UPGRADE_IT):
        asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))
