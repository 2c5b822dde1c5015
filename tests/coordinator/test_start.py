"""A coordinator that starts while no broker answers waits for one, and says so."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from confluent_kafka import KafkaError

from logtx.coordinator import service
from logtx.coordinator.service import CoordinatorConfig, serve
from logtx.journal.errors import BrokerError
from logtx.journal.logs.memory.log import MemoryLog

CONFIG = CoordinatorConfig(bootstrap_servers="k:9092", listen="127.0.0.1:0", journal_partitions=1)


@dataclass
class Start:
    """A coordinator on a log that fails the first questions, run until it serves."""

    log: MemoryLog
    monkeypatch: pytest.MonkeyPatch
    served: bool = False
    asked: list[float] = field(default_factory=list)

    def run(self, failures: int, code: int, then: Callable[[], object] = lambda: None) -> None:
        """Fails so many questions with librdkafka's `code`; calls `then` at each of them."""
        topic_info = self.log.topic_info

        def told(topic: str, **named: Any) -> Any:
            if len(self.asked) < failures:
                self.asked.append(time.monotonic())
                then()
                raise BrokerError("metadata: Local: Timed out", kafka_code=code)
            return topic_info(topic, **named)

        self.monkeypatch.setattr(self.log, "topic_info", told)

        async def main() -> None:
            self.stop, self.loop = asyncio.Event(), asyncio.get_running_loop()

            def ready(*_: object) -> None:
                self.served = True
                self.stop.set()

            async with asyncio.timeout(20):
                await serve(CONFIG, self.stop, ready, self.log)

        asyncio.run(main())


@pytest.fixture
def start(memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> Start:
    return Start(memory_log, monkeypatch)


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT])
def test_it_waits_for_a_broker_and_says_so(
    start: Start, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    with caplog.at_level(logging.WARNING):
        start.run(3, code)
    assert start.served
    said = [r.getMessage() for r in caplog.records if "kafka_unanswered" in r.getMessage()]
    assert len(said) == 3
    assert "servers=k:9092" in said[0]
    assert "Timed out" in said[0]


def test_it_does_not_wait_for_ever(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "START_S", 0.3)
    with pytest.raises(BrokerError, match="Timed out"):
        start.run(10_000, KafkaError._TIMED_OUT)
    assert 0.2 < start.asked[-1] - start.asked[0] < 5


def test_what_waiting_does_not_mend_is_told_at_once(start: Start) -> None:
    with pytest.raises(BrokerError):
        start.run(10_000, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
    assert len(start.asked) == 1


def test_who_stops_it_meanwhile_is_heard(start: Start) -> None:
    start.run(
        10_000, KafkaError._TIMED_OUT, lambda: start.loop.call_soon_threadsafe(start.stop.set)
    )
    assert not start.served
    assert len(start.asked) == 1


def test_who_stops_it_while_it_loads_is_heard(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait_serving(_coordinator: object) -> None:
        start.loop.call_later(0.05, start.stop.set)
        await asyncio.Event().wait()

    monkeypatch.setattr(service.Coordinator, "wait_serving", wait_serving)
    start.run(0, KafkaError._TIMED_OUT)
    assert not start.served


ENDLESS = f"""
import asyncio, threading
from {service.__name__} import CoordinatorConfig
from {service.__name__.rpartition(".")[0]} import service

async def serve(config, stop, ready):
    print("begun", flush=True)
    await stop.wait()
    await asyncio.to_thread(a_library_that_never_returns)

def a_library_that_never_returns():
    threading.Event().wait()

service.serve, service.ENDS_S = serve, 0.5
service.run(CoordinatorConfig(bootstrap_servers="k:9092"))
"""


def test_a_process_that_is_to_end_does_whatever_it_waits_for() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 1
    assert "a_library_that_never_returns" in said


def test_so_does_one_that_may_print_nothing() -> None:
    command = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, ENDLESS]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("servers", "named", "warned"),
    [
        ("kafka-1:9092,kafka-2:9092", {}, True),
        ("127.0.0.1:9092, SSL://10.0.0.7:9092", {}, True),
        ("kafka-1:9092", {"advertised": "localhost:9095"}, True),
        ("kafka-1:9092", {"advertised": "coordinator-1:9095"}, False),
        ("localhost:9092,[::1]:9092", {}, False),
        ("memory://a", {}, False),
    ],
)
def test_an_address_that_only_this_machine_has_is_told(
    caplog: pytest.LogCaptureFixture, servers: str, named: dict[str, str], *, warned: bool
) -> None:
    service._warn_of_loopback(CoordinatorConfig(bootstrap_servers=servers, **named))
    assert ("advertises_loopback" in caplog.text) is warned
