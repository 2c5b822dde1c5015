"""The export: every committed record once, in commit order, over runs that are killed or not."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import logtx
from logtx.integration.spark import exporting
from logtx.integration.testing import Cluster
from logtx.journal.producer_ids import DEFAULT_TRANSACTION_GROUP
from logtx.journal.reader import JOURNAL_TOPIC

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]


def test_a_former_leader_of_the_journal_hides_no_decision(
    logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its marker would lie below where the next run begins, which takes only what comes after.
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    log, end_offset = cluster.log, cluster.log.end_offset
    with cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"v")
    sequence = txn.commit().commit_sequence
    looks = []

    def told(topic: str, partition: int, **more: Any) -> int:
        looks.append(topic)
        end = end_offset(topic, partition, **more)
        return min(end, sequence or 0) if len(looks) <= log.partition_count(topic) else end

    info = replace(log.topic_info(JOURNAL_TOPIC), replication_factor=3)
    monkeypatch.setattr(log, "topic_info", lambda *_, **__: info)
    monkeypatch.setattr(log, "end_offset", told)
    monkeypatch.setattr(exporting, "LOOKS_APART_S", 0.01)
    assert exporting._decided(log, DEFAULT_TRANSACTION_GROUP) == sequence


@pytest.mark.slow
def test_runs_go_on_from_each_other(
    spark: Any, logtx_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, topic = logtx_cluster, logtx_cluster.topic(2)
    producer = cluster.producer()
    sequences: dict[str, int] = {}

    def write(numbers: range) -> None:
        txns = [producer.begin_transaction() for _ in range(4)]
        for n in numbers:
            txns[n % 4].produce(topic, b"%d" % n, partition=n % 2)
        # The last begun is committed first, and one of them not at all.
        for txn in txns[3:0:-1]:
            sequences[str(txn.txid)] = txn.commit().commit_sequence or -1
        txns[0].abort()

    def run() -> Any:
        return logtx.spark.export(
            spark,
            subscribe=topic,
            bootstrap_servers=cluster.bootstrap_servers,
            path=str(tmp_path / "export"),
        )

    write(range(40))
    first = run()
    assert (first.run, first.records) == (0, 30)
    assert run() == type(first)(0, first.path, 0, first.to_sequence, first.to_sequence)
    write(range(40, 80))
    with monkeypatch.context() as broken:
        # It dies with all files written, and before the rename.
        broken.setattr("logtx.integration.spark.exporting._STATE", "no/such/../\0name")
        with pytest.raises(Exception, match=r".+"):
            run()
    again = run()
    assert (again.run, again.records, again.from_sequence) == (1, 30, first.to_sequence)
    assert [p.name for p in sorted((tmp_path / "export").iterdir())] == [
        "export=00000000",
        "export=00000001",
    ]
    rows = spark.read.parquet(str(tmp_path / "export")).collect()
    kept = {b"%d" % n: 1 for n in range(80) if n % 4}
    assert Counter(bytes(r.value) for r in rows) == kept
    assert {r.txid: r.commit_sequence for r in rows} == sequences
    for number in (0, 1):
        files = sorted(Path(tmp_path / "export" / f"export={number:08d}").glob("part-*"))
        ordered = [
            (r.commit_sequence, r.topic, r.partition, r.offset)
            for file in files
            for r in spark.read.parquet(str(file)).collect()
        ]
        assert ordered == sorted(ordered)
    with pytest.raises(logtx.ConfigError, match="holds an export of"):
        logtx.spark.export(
            spark,
            subscribe=f"{topic},{cluster.topic(1)}",
            bootstrap_servers=cluster.bootstrap_servers,
            path=str(tmp_path / "export"),
        )


class _Together:
    """A file system whose renames wait for each other, so that both find the way free."""

    def __init__(self, fs: Any, meet: Barrier) -> None:
        self._fs, self._meet = fs, meet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def rename(self, *paths: Any) -> bool:
        self._meet.wait(60)
        return bool(self._fs.rename(*paths))


@pytest.mark.slow
def test_s20_two_exporters_of_one_directory(
    spark: Any, logtx_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = logtx_cluster.topic(1)
    with logtx_cluster.producer().begin_transaction() as txn:
        for n in range(10):
            txn.produce(topic, b"%d" % n)
    path, meet, begun = tmp_path / "export", Barrier(2), exporting._Files.__init__

    def begin(self: Any, *arguments: Any) -> None:
        begun(self, *arguments)
        self._fs = _Together(self._fs, meet)

    monkeypatch.setattr(exporting._Files, "__init__", begin)

    def run(_: int) -> Any:
        servers = logtx_cluster.bootstrap_servers
        try:
            return logtx.spark.export(
                spark, subscribe=topic, bootstrap_servers=servers, path=str(path)
            )
        except logtx.LogtxError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(run, range(2)))
    done = [r for r in results if isinstance(r, exporting.Exported)]
    failed = [r for r in results if isinstance(r, logtx.LogtxError)]
    assert [(d.run, d.records) for d in done] == [(0, 10)]
    assert [str(f) for f in failed] == [
        f"another export made {path}/export=00000000 first: run again to go on"
    ]
    (only,) = path.iterdir()
    assert not [p for p in only.iterdir() if p.is_dir()], "the second is not inside the first"
    assert spark.read.parquet(str(path)).count() == 10
