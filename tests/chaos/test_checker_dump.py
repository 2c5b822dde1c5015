"""The dump, and with it the whole checker, on a real broker: both systems."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import AdminClient

import logtx
from logtx.chaos.checker import DumpError, check, dump, store
from logtx.chaos.recorder import Recorder
from logtx.integration.testing import Cluster

pytestmark = pytest.mark.kafka
PARTITIONS = 2
WAIT_S = 20.0


class Run:
    """A small run, written down as the workload would."""

    def __init__(self, directory: Path, system: str, servers: str, topics: Sequence[str]) -> None:
        self.directory = directory
        self.servers = servers
        self.topic = topics[0]
        settings = {
            "system": system,
            "data_topic": topics[0],
            "out_topic": topics[1],
            "bootstrap_servers": servers,
        }
        (directory / "chaos.json").write_text(json.dumps(settings))
        (directory / "history").mkdir()
        self.recorder = Recorder(directory / "history", "producer-0.0")
        self._values = 0

    def append(
        self, produce: Callable[..., None], partition: int, op: str | None, **more: Any
    ) -> None:
        """A record, and its event."""
        self._values += 1
        value = f"producer-0.0:{self._values}"
        self.recorder.write(
            "append", op=op, topic=self.topic, partition=partition, k=partition, v=value
        )
        body = json.dumps({"k": partition, "v": value, "t": op}).encode()
        produce(self.topic, body, partition=partition, **more)

    def read(self, consumer: Any, expected: int) -> None:
        """The last reader: so many records, from the beginning."""
        partitions = [TopicPartition(self.topic, number, 0) for number in range(PARTITIONS)]
        with Recorder(self.directory / "history", "final-0.0") as recorder:
            consumer.assign(partitions)
            rows = [[p.topic, p.partition, p.offset] for p in partitions]
            recorder.write("assigned", isolation="read_committed", partitions=rows)
            left, until_s = expected, time.monotonic() + WAIT_S
            while left and time.monotonic() < until_s:
                messages = consumer.consume(100, 0.5)
                records = [row(m) for m in messages if m.error() is None]
                left -= len(records)
                recorder.write("poll", isolation="read_committed", records=records)
            assert left == 0
        consumer.close()


def row(message: Message) -> list[Any]:
    """A record as the history has it."""
    body = json.loads(message.value() or b"")
    txid = dict(message.headers() or ()).get("TxId")
    place = [message.topic(), message.partition(), message.offset()]
    return [*place, body["k"], body["v"], body["t"], txid.hex() if txid else None, None]


def logtx_run(run: Run) -> None:
    """One committed transaction, one aborted, a plain record."""
    with logtx.Producer({"bootstrap.servers": run.servers}) as producer:
        for op, commits in (("producer-0.0/1", True), ("producer-0.0/2", False)):
            run.recorder.write("begin", op=op)
            txn = producer.begin_transaction()
            for number in range(PARTITIONS):
                run.append(txn.produce, number, op)
            if commits:
                run.recorder.write("commit", op=op)
                outcome = txn.commit()
                run.recorder.write(
                    "end",
                    op=op,
                    outcome="committed",
                    txid=outcome.txid.to_bytes().hex(),
                    commit_sequence=outcome.commit_sequence,
                )
            else:
                txn.abort()
                run.recorder.write("end", op=op, outcome="aborted")
    plain = confluent_kafka.Producer({"bootstrap.servers": run.servers})
    run.append(plain.produce, 0, None)
    assert plain.flush(WAIT_S) == 0


def kafka_run(run: Run, name: str) -> None:
    """The same with Kafka's own transactions."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": run.servers, "transactional.id": name}
    )
    producer.init_transactions(WAIT_S)
    for op, commits in (("producer-0.0/1", True), ("producer-0.0/2", False)):
        run.recorder.write("begin", op=op)
        producer.begin_transaction()
        for number in range(PARTITIONS):
            run.append(producer.produce, number, op)
        assert producer.flush(WAIT_S) == 0
        if commits:
            run.recorder.write("commit", op=op)
            producer.commit_transaction(WAIT_S)
        else:
            producer.abort_transaction(WAIT_S)
        run.recorder.write("end", op=op, outcome="committed" if commits else "aborted")


@pytest.fixture
def topics(logtx_cluster: Cluster) -> list[str]:
    """Of data and of output."""
    return [logtx_cluster.topic(PARTITIONS, name="chaos"), logtx_cluster.topic(name="chaos-out")]


def test_a_run_of_logtx(tmp_path: Path, logtx_cluster: Cluster, topics: list[str]) -> None:
    run = Run(tmp_path, "logtx", logtx_cluster.bootstrap_servers, topics)
    logtx_run(run)
    settings = {"bootstrap.servers": run.servers, "group.id": topics[0]}
    run.read(logtx.Consumer({**settings, "auto.offset.reset": "earliest"}), 3)
    until_s = time.monotonic() + WAIT_S
    while True:
        dump(tmp_path)
        verdict = check(tmp_path)
        assert verdict.ok, verdict.anomalies
        assert verdict.stats["committed by the log"] == 1
        assert verdict.stats["aborted by the log"] == 1
        if verdict.stats["markers"] == 2 * PARTITIONS or time.monotonic() > until_s:
            break  # those of the abort may be on their way
    assert verdict.stats["markers"] == 2 * PARTITIONS
    heads = [head for head, _ in store.read_logs(tmp_path / "logs", store.JOURNAL)]
    assert {head.start for head in heads} == {0}
    assert sum(head.end_before_data for head in heads) >= 6


def test_a_run_of_kafka(tmp_path: Path, logtx_cluster: Cluster, topics: list[str]) -> None:
    run = Run(tmp_path, "kafka", logtx_cluster.bootstrap_servers, topics)
    kafka_run(run, topics[0])
    settings = {"bootstrap.servers": run.servers, "group.id": topics[0]}
    committed = {"isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    run.read(confluent_kafka.Consumer({**settings, **committed}), 2)
    dump(tmp_path)
    verdict = check(tmp_path)
    assert verdict.ok, verdict.anomalies
    assert verdict.stats["committed by the log"] == 1
    assert verdict.stats["aborted by the log"] == 1


def test_a_trimmed_log_is_dumped_from_its_start(
    tmp_path: Path, logtx_cluster: Cluster, topics: list[str]
) -> None:
    run = Run(tmp_path, "kafka", logtx_cluster.bootstrap_servers, topics)
    plain = confluent_kafka.Producer({"bootstrap.servers": run.servers})
    for _ in range(5):
        run.append(plain.produce, 0, None)
    assert plain.flush(WAIT_S) == 0
    admin = AdminClient({"bootstrap.servers": run.servers})
    trimmed = admin.delete_records([TopicPartition(run.topic, 0, 3)])
    for future in trimmed.values():
        future.result(WAIT_S)
    dump(tmp_path)
    logs = {
        head.partition: (head, list(rows))
        for head, rows in store.read_logs(tmp_path / "logs", store.DATA)
        if head.topic == run.topic
    }
    head, rows = logs[0]
    assert (head.start, head.end) == (3, 5)
    assert [record.offset for record in rows] == [3, 4]


def test_a_topic_that_is_not_there(
    tmp_path: Path, logtx_cluster: Cluster, topics: list[str]
) -> None:
    Run(tmp_path, "kafka", logtx_cluster.bootstrap_servers, ["no-such-topic", *topics])
    with pytest.raises(DumpError, match="no-such-topic"):
        dump(tmp_path, timeout_s=5)


def test_a_cluster_that_does_not_answer(tmp_path: Path) -> None:
    Run(tmp_path, "kafka", "127.0.0.1:1", ["a", "b"])
    with pytest.raises(DumpError):
        dump(tmp_path, timeout_s=1)
