"""Metadata stores are asked at the end of a run; what they say is kept for the checker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import logtx
from logtx.chaos.checker.errors import BrokenLogError
from logtx.chaos.checker.load import LOGS, STORES, _stores
from logtx.chaos.errors import ChaosError
from logtx.chaos.recorder import Recorder
from logtx.chaos.settings import HISTORY
from logtx.chaos.stores import check_stores
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.coordinator.store.opening import MetadataConfig
from logtx.integration.inspect.metadata import _evenly
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Mode
from logtx.tests.integration.cli.test_metadata import falsify

COUNT = 5


@pytest.fixture
def coordinator(memory_log: MemoryLog, tmp_path: Path) -> Iterator[EmbeddedCoordinator]:
    memory_log.create_topic("chaos", partitions=2)
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers,
        listen="127.0.0.1:0",
        journal_partitions=2,
        metadata=MetadataConfig(store=f"rocksdb:{tmp_path / 'store'}"),
    )
    with EmbeddedCoordinator(config) as running:
        yield running


@pytest.fixture
def txids(memory_log: MemoryLog, coordinator: EmbeddedCoordinator, tmp_path: Path) -> list[object]:
    """Transactions over two partitions that are placed, as a history tells of them."""
    assert coordinator.address
    with closing(AdminQueries(memory_log, timeout_s=20)) as queries:
        queries.set_topic_mode("chaos", Mode.METADATA, transaction_group="default")
    (tmp_path / HISTORY).mkdir()
    producer = logtx.Producer({"bootstrap.servers": memory_log.bootstrap_servers})
    made: list[object] = []
    with Recorder(tmp_path / HISTORY, "producer-0.0") as recorder:
        for number in range(COUNT):
            txn = producer.begin_transaction()
            for partition in range(2):
                txn.produce("chaos", b"x", partition=partition)
            outcome = txn.commit_async().result(20)
            made.append(outcome.txid)
            txid = outcome.txid.to_bytes().hex()
            recorder.write("end", op=f"{number}", outcome="committed", txid=txid)
    producer.close()
    return made


def ask(memory_log: MemoryLog, coordinator: EmbeddedCoordinator, directory: Path) -> None:
    check_stores(memory_log, {"coordinator-0": coordinator.address}, directory, seed=3)


def test_what_a_store_says_is_kept(
    memory_log: MemoryLog, coordinator: EmbeddedCoordinator, txids: list[object], tmp_path: Path
) -> None:
    ask(memory_log, coordinator, tmp_path)
    path = tmp_path / LOGS / STORES
    rows = list(_stores(path))
    assert [str(row.txid) for row in rows] == [str(txid) for txid in txids]
    for number, row in enumerate(rows):
        assert row.header is not None
        assert row.header["state"] == "committed"
        assert sorted((w["partition"], w["count"]) for w in row.writes) == [(0, 1), (1, 1)]
        # Behind the mode record and its own record; behind others', if they were quicker.
        assert all(number + 2 <= w["place"] <= COUNT + 1 for w in row.writes)
    path.write_text(json.dumps({"store": "coordinator-0"}) + "\n")
    with pytest.raises(BrokenLogError, match=r"stores\.jsonl:1 is broken"):
        list(_stores(path))


def test_a_store_that_is_wrong_is_found(
    memory_log: MemoryLog, coordinator: EmbeddedCoordinator, txids: list[object], tmp_path: Path
) -> None:
    falsify(coordinator, txids[2])
    with pytest.raises(ChaosError, match=f"coordinator-0 is not what the journal says. {txids[2]}"):
        ask(memory_log, coordinator, tmp_path)


def test_a_store_that_does_not_answer_is_found(
    memory_log: MemoryLog,
    coordinator: EmbeddedCoordinator,
    txids: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert txids
    monkeypatch.setattr("logtx.chaos.stores._TIMEOUT_S", 0.5)
    assert coordinator.address
    with pytest.raises(ChaosError, match="The metadata store of coordinator-9"):
        check_stores(memory_log, {"coordinator-9": "127.0.0.1:1"}, tmp_path, seed=1)


def test_a_sample_is_taken_evenly() -> None:
    numbers: list[Any] = list(range(10))
    assert list(_evenly(numbers, 4)) == [0, 3, 6, 9]
    assert list(_evenly(numbers, 10)) == list(_evenly(numbers, None)) == numbers
