"""A topic that is created later gets its mode by a rule, on a real broker."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

import logtx
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.integration.cli import main as cli
from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.journal.control import TXCTL_HEADER
from logtx.journal.logs.kafka import KafkaLog
from logtx.journal.reader import read_records

pytestmark = [pytest.mark.kafka, pytest.mark.slow]
"""In memory, `tests/coordinator/server/test_rules.py` shows the same; `tests/test_places_kafka.py`
switches topics on a broker."""

WAIT_S: Final = 60.0


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[LocalKafka]:
    """A broker of its own, for its coordinator takes the whole journal."""
    with LocalKafka(tmp_path, java_options=QUICK_TO_START) as started:
        yield started


@pytest.fixture
def log(kafka: LocalKafka) -> KafkaLog:
    return KafkaLog({"bootstrap.servers": kafka.bootstrap_servers})


def command(kafka: LocalKafka, *arguments: str) -> Any:
    """Runs `logtx topics`; returns what it printed as JSON."""
    servers = ("--bootstrap-servers", kafka.bootstrap_servers)
    result = CliRunner().invoke(cli.app, ["topics", *arguments, *servers])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_topic_that_is_created_while_all_runs(kafka: LocalKafka, log: KafkaLog) -> None:
    servers = {"bootstrap.servers": kafka.bootstrap_servers}
    config = CoordinatorConfig(
        bootstrap_servers=kafka.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=2
    )
    with EmbeddedCoordinator(config):
        kept = command(
            *(kafka, "set-mode", "later.*", "--mode", "metadata"),
            *("--transaction-group", "billing", "--json"),
        )
        assert kept == {"topics": []}, "none begins so yet"
        log.create_topic("later.a", partitions=2)
        with logtx.Producer({**servers, "transaction.group": "billing"}) as producer:
            sent = write_until_placed(kafka, producer)
            with producer.begin_transaction() as txn:
                txn.produce("later.a", b"placed", partition=0)
        described = command(kafka, "describe", "later.a", "--json")
        assert (described["transaction_group"], described["rule"]) == ("billing", "later.*")
        assert set(described["since"]) == {"0", "1"}
        end = log.end_offset("later.a", 0)
        found = list(read_records(log, "later.a", 0, 0, end, timeout_s=WAIT_S))
        last = [value for value, _ in map(shown, found)].index(b"placed")
        assert [value for value, _ in map(shown, found[last:])] == [b"placed"], "no marker"
        consumer = logtx.Consumer({**servers, "group.id": "r", "auto.offset.reset": "earliest"})
        consumer.subscribe(["later.a"])
        got: list[bytes | None] = []
        until_s = time.monotonic() + WAIT_S
        while len(got) < sent + 1 and time.monotonic() < until_s:
            got += [m.value() for m in consumer.consume(100, 0.2)]
        consumer.close()
        assert got == [*(b"%d" % n for n in range(sent)), b"placed"]
    log.close()


def shown(message: Any) -> tuple[bytes | None, bool]:
    """Returns a record's value, and whether it controls readers."""
    return message.value(), any(name == TXCTL_HEADER for name, _ in message.headers() or ())


def write_until_placed(kafka: LocalKafka, producer: logtx.Producer) -> int:
    """Writes transactions until the rule has been applied. Returns how many."""
    until_s = time.monotonic() + WAIT_S
    sent = 0
    while True:
        with producer.begin_transaction() as txn:
            txn.produce("later.a", b"%d" % sent, partition=0)
        sent += 1
        told = command(kafka, "describe", "later.a", "--json")
        if told["mode"] == "metadata" and told["published"]:
            return sent
        assert time.monotonic() < until_s, told
        time.sleep(0.2)
