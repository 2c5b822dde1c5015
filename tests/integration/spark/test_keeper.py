"""The keeper, asked as Spark's processes ask it, without Spark: what each answer means."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

import logtx
from logtx.integration.spark import keeper as keeper_module
from logtx.integration.spark.application import Application
from logtx.integration.spark.errors import BatchGapError, KeeperError, ReplayDiffersError
from logtx.integration.spark.keeper import Keeper
from logtx.integration.spark.keeper_client import make_error
from logtx.integration.spark.options import SinkOptions
from logtx.integration.spark.steps import steps_to_json
from logtx.integration.testing import Cluster
from logtx.journal.control import BranchRange
from logtx.journal.errors import (
    ConfigError,
    CoordinatorNotAvailableError,
    LogtxError,
    OffsetsConflictError,
    ProducerFencedError,
    TransactionError,
    UnknownTopicError,
    UnknownTransactionError,
    UnsupportedTopicError,
)
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Place, Position
from logtx.journal.reader import JOURNAL_TOPIC, read_entries
from logtx.journal.records.types import AddWrites, OffsetStep
from logtx.journal.txid import TxId
from logtx.producer.core.summary import BranchSummary

from ...waiting import eventually

QUERY = "0b1e5c9e-0000-4000-8000-000000000001"


class Driver:
    """A driver's keeper, and what Spark's processes do with it."""

    def __init__(self, cluster: Cluster, topic: str, checkpoint: str | None, **options: str):
        self.keeper = Keeper()
        self.spark = self.keeper.application = FakeApplication()
        self.keeper.start()
        named = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "topic": topic, **options}
        if checkpoint is not None:
            named["checkpointLocation"] = checkpoint
        self.options = SinkOptions.parse(named)

    def ask(self, what: str, **fields: Any) -> Any:
        """As another process does."""
        return self.keeper.address.ask(what, **fields)

    def begin(self, *, stream: bool = True) -> dict[str, Any]:
        """As the planner does."""
        found: dict[str, Any] = self.ask("begin", options=self.options.to_json(), stream=stream)
        found["txid"] = found["token"].rpartition(":")[2]
        return found

    def write(self, begun: dict[str, Any], *values: bytes) -> list[str]:
        """As a task does."""
        with logtx.Branch.join(self.options.branch(), begun["token"]) as branch:
            for value in values:
                branch.produce(self.options.topic or "", value)
            return [branch.finish().to_bytes().decode()]

    def commit(self, begun: dict[str, Any], batch_id: int, summaries: list[str]) -> Any:
        """As the committer of a micro-batch does."""
        return self.ask(
            "commit",
            txid=begun["txid"],
            summaries=summaries,
            query_id=QUERY,
            batch_id=batch_id,
        )

    def run(self, batch_id: int, *values: bytes) -> Any:
        """A micro-batch."""
        begun = self.begin()
        return self.commit(begun, batch_id, self.write(begun, *values))["state"]


class FakeApplication(Application):
    """What tests say of Spark."""

    checkpoint: str | None = None
    """That of the query `QUERY`, which is named "q"."""
    runs_of_query: Iterator[str | None] = repeat(None)
    stopped = False

    def read_checkpoint(self, path: str) -> str | None:
        """Reads a local file."""
        return Path(path).read_text() if Path(path).is_file() else None

    def checkpoint_of(self, name: str | None, query_id: str | None) -> str | None:
        """Knows one query."""
        return self.checkpoint if name == "q" or query_id == QUERY else None

    def run_of(self, query_id: str) -> str | None:
        """Returns the next."""
        del query_id
        return next(self.runs_of_query)

    def runs(self) -> bool:
        """Returns whether it was not stopped."""
        return not self.stopped


Start = Callable[..., Driver]


@pytest.fixture
def topic(logtx_memory_cluster: Cluster) -> str:
    """Where the drivers write."""
    return logtx_memory_cluster.topic(1)


@pytest.fixture
def start(logtx_memory_cluster: Cluster, topic: str, tmp_path: Path) -> Iterator[Start]:
    """`start(checkpoint=True, **options)`: a driver of the query."""
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY}))
    made: list[Driver] = []

    def make(*, checkpoint: bool = True, **options: str) -> Driver:
        place = str(tmp_path) if checkpoint else None
        made.append(Driver(logtx_memory_cluster, options.pop("topic", topic), place, **options))
        return made[-1]

    yield make
    for driver in made:
        driver.keeper.close()


def seen(cluster: Cluster, topic: str) -> Counter[Any]:
    consumer = cluster.consumer(topic)
    found: Counter[Any] = Counter()
    while batch := consumer.consume(100, 0.3):
        found.update(m.value() for m in batch)
    return found


def test_a_replayed_batch_is_reported_done(
    start: Start, logtx_memory_cluster: Cluster, topic: str
) -> None:
    first = start()
    assert first.run(0, b"a") == "committed"
    assert first.run(1, b"b") == "committed"
    second = start()
    begun = second.begin()
    assert (begun["query_id"], begun["committed"]) == (QUERY, 1)
    assert second.commit(begun, 1, second.write(begun, b"b"))["state"] == "replayed"
    assert second.run(2, b"c") == "committed"
    assert seen(logtx_memory_cluster, topic) == {b"a": 1, b"b": 1, b"c": 1}


def test_a_driver_that_was_replaced_is_fenced_though_the_newer_one_went_further(
    start: Start, logtx_memory_cluster: Cluster, topic: str
) -> None:
    older = start()
    begun = older.begin()
    summaries = older.write(begun, b"older")
    newer = start()
    assert [newer.run(0, b"newer"), newer.run(1, b"further")] == ["committed", "committed"]
    with pytest.raises(ProducerFencedError):
        older.commit(begun, 0, summaries)
    assert seen(logtx_memory_cluster, topic) == {b"newer": 1, b"further": 1}


def test_the_older_of_two_drivers_is_fenced(
    start: Start, logtx_memory_cluster: Cluster, topic: str
) -> None:
    older = start()
    begun = older.begin()
    summaries = older.write(begun, b"older")
    newer = start()
    assert newer.run(0, b"newer") == "committed"
    with pytest.raises(ProducerFencedError):
        older.commit(begun, 0, summaries)
    with pytest.raises(ProducerFencedError):
        older.begin()
    assert older.ask("abort", txid=begun["txid"])["state"] == "aborted"
    assert seen(logtx_memory_cluster, topic) == {b"newer": 1}
    # Who starts the query in the older driver anew, means to take it over.
    assert older.run(1, b"again") == "committed"


def test_the_journal_itself_refuses_the_second_of_two(
    start: Start, logtx_memory_cluster: Cluster, topic: str
) -> None:
    """Nothing but the compare-and-set is between them: both looked before either had committed."""
    drivers = [start(), start()]
    drivers[1].options = replace(drivers[1].options, transactional_id="another")
    begun = [driver.begin() for driver in drivers]
    assert [b["committed"] for b in begun] == [None, None]
    states = [
        driver.commit(b, 0, driver.write(b, b"x"))["state"]
        for driver, b in zip(drivers, begun, strict=True)
    ]
    assert states == ["committed", "replayed"]
    assert seen(logtx_memory_cluster, topic) == {b"x": 1}


def test_a_query_without_a_checkpoint_that_is_known(start: Start) -> None:
    driver = start(checkpoint=False)
    assert driver.begin()["query_id"] is None
    assert driver.run(0, b"a") == "committed"
    assert driver.run(0, b"a") == "replayed"


def test_batches_that_were_written_elsewhere(start: Start) -> None:
    driver = start()
    assert driver.run(3, b"a") == "committed"
    begun = driver.begin()
    with pytest.raises(BatchGapError, match=r"micro-batch 5 .* follows 3"):
        driver.commit(begun, 5, [])


def test_s2_a_micro_batch_that_is_repeated_with_other_input(
    start: Start, logtx_memory_cluster: Cluster, topic: str, tmp_path: Path
) -> None:
    # The checkpoint was restored from a backup of before micro-batch 1. Spark plans that anew, and
    # it has other input now.
    (tmp_path / "offsets").mkdir()

    def plan(batch_id: int, source: str, clock: int) -> None:
        head = f'v1\n{{"batchTimestampMs":{clock}}}\n'
        (tmp_path / "offsets" / str(batch_id)).write_text(head + source)

    plan(0, "{a}", 1)
    plan(1, "{b}", 2)
    first = start()
    assert [first.run(0, b"a"), first.run(1, b"b")] == ["committed", "committed"]
    plan(1, "{b}", 99)
    assert start().run(1, b"b") == "replayed", "the same input, at another time"
    plan(1, "{b, c}", 3)
    restored = start()
    with pytest.raises(ReplayDiffersError, match=r"micro-batch 1 of query .* offsets/1"):
        restored.run(1, b"b", b"c")
    plan(0, "{a}", 4)
    with pytest.raises(ReplayDiffersError, match=r"micro-batch 0 .* and 1 is committed"):
        restored.run(0, b"a")
    assert seen(logtx_memory_cluster, topic) == {b"a": 1, b"b": 1}


def job(driver: Driver, *values: bytes, batch_id: int | None = None) -> str:
    """A batch job; with `batch_id` in the ``foreachBatch`` of a query."""
    begun = driver.begin(stream=False)
    summaries = [] if begun["is_done"] else driver.write(begun, *values)
    query_id = None if batch_id is None else QUERY
    fields = {"txid": begun["txid"], "summaries": summaries}
    state = driver.ask("commit", **fields, query_id=query_id, batch_id=batch_id)["state"]
    assert not begun["is_done"] or state == "replayed"
    return str(state)


def test_s3_a_job_that_is_run_again_writes_nothing(
    start: Start, logtx_memory_cluster: Cluster, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    for version in (7, 20):
        named = {"txnAppId": "nightly", "txnVersion": str(version)}
        assert job(start(**named), b"%d" % version) == "committed"
        assert job(start(**named), b"%d" % version) == "replayed"
        assert f"group=spark-app-nightly version={version}: nothing was written" in caplog.text
    assert job(start(txnAppId="nightly", txnVersion="19"), b"19") == "replayed"
    assert job(start(txnAppId="weekly", txnVersion="7"), b"w") == "committed"
    assert seen(logtx_memory_cluster, topic) == {b"7": 1, b"20": 1, b"w": 1}


def test_s3_two_runs_at_a_time(start: Start, logtx_memory_cluster: Cluster, topic: str) -> None:
    """Both looked before either had committed: only the compare-and-set is between them."""
    drivers = [start(txnAppId="a", txnVersion="1") for _ in range(2)]
    begun = [driver.begin(stream=False) for driver in drivers]
    assert [b["is_done"] for b in begun] == [False, False]
    states = [
        driver.ask("commit", txid=b["txid"], summaries=driver.write(b, b"x"))["state"]
        for driver, b in zip(drivers, begun, strict=True)
    ]
    assert states == ["committed", "replayed"]
    assert seen(logtx_memory_cluster, topic) == {b"x": 1}


def test_s3_writes_in_foreach_batch_are_known_by_themselves(
    start: Start, logtx_memory_cluster: Cluster, topic: str
) -> None:
    other = logtx_memory_cluster.topic(1)

    def for_each_batch(batch_id: int, *, die_behind: int = 9) -> list[str]:
        """A driver that writes twice to one topic, and once to another."""
        here, there = start(checkpoint=False), start(checkpoint=False, topic=other)
        writes = [(here, b"first"), (here, b"second"), (there, b"third")][:die_behind]
        # One driver has one keeper.
        there.keeper.close()
        there.keeper = here.keeper
        return [
            job(driver, b"%d-" % batch_id + value, batch_id=batch_id) for driver, value in writes
        ]

    assert for_each_batch(0) == ["committed"] * 3
    assert for_each_batch(1, die_behind=1) == ["committed"]
    assert for_each_batch(1) == ["replayed", "committed", "committed"]
    assert for_each_batch(1) == ["replayed"] * 3
    assert for_each_batch(4) == ["committed"] * 3, "it need not write in each"
    found = seen(logtx_memory_cluster, topic) + seen(logtx_memory_cluster, other)
    assert set(found.values()) == {1}
    assert len(found) == 9


def test_s3_an_application_id_counts_by_micro_batches_or_by_a_version(start: Start) -> None:
    driver = start(checkpoint=False, txnAppId="a")
    assert [job(driver, b"x", batch_id=n) for n in (0, 0, 1)] == [
        *("committed", "replayed", "committed")
    ]
    with pytest.raises(ConfigError, match="txnVersion"):
        job(driver, b"x")
    with pytest.raises(ConfigError, match="remove the option txnAppId"):
        driver.begin(stream=True)
    with pytest.raises(ConfigError, match="txnAppId"):
        start(txnVersion="3")


def test_s6_a_durable_job_is_not_told_as_failed(
    start: Start, logtx_memory_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = start(checkpoint=False)
    begun = driver.begin(stream=False)
    summaries = driver.write(begun, b"once")

    def gone(_txid: object) -> None:
        raise CoordinatorNotAvailableError("the coordinator is being replaced")

    queries = driver.keeper.jobs._cluster(driver.options).queries
    monkeypatch.setattr(queries, "outcome", gone)
    told = driver.ask("commit", txid=begun["txid"], summaries=summaries)
    assert told["state"] == "committed"
    assert seen(logtx_memory_cluster, topic) == {b"once": 1}


@pytest.mark.parametrize("named", [True, False], ids=["a name", "no name"])
def test_s8_a_checkpoint_by_the_sessions_settings(
    start: Start, logtx_memory_cluster: Cluster, topic: str, tmp_path: Path, *, named: bool
) -> None:
    def driver() -> Driver:
        made = start(checkpoint=False, **({"queryName": "q"} if named else {}))
        made.spark.checkpoint = str(tmp_path)
        return made

    first = driver()
    assert first.run(0, b"a") == "committed"
    begun = first.begin()
    assert begun["query_id"] == (QUERY if named else None)
    first.write(begun, b"b")
    # Spark's committer of a failed micro-batch has the options, and no token.
    assert first.ask("abort_stream", options=first.options.to_json())["state"] == "aborted"
    eventually(lambda: not first.keeper.jobs._jobs[begun["txid"]].transaction.is_open)
    second = driver()
    assert second.run(0, b"a") == "replayed"
    assert second.run(1, b"b") == "committed"
    assert seen(logtx_memory_cluster, topic) == {b"a": 1, b"b": 1}


def test_s13_a_stranger_that_says_nothing_holds_up_nobody(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper_module, "HANDSHAKE_S", 1)
    driver = start(checkpoint=False)
    address = driver.keeper.address
    strangers = [socket.create_connection((address.host, address.port)) for _ in range(5)]
    assert driver.ask("to_the_end", source={}) is False
    eventually(lambda: caplog.text.count("keeper_asker_gone") == len(strangers))
    for stranger in strangers:
        stranger.close()
    assert driver.ask("to_the_end", source={}) is False


def test_a_checkpoint_of_another_query(start: Start, tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text(json.dumps({"id": "another"}))
    driver = start()
    begun = driver.begin()
    with pytest.raises(ConfigError, match="names query another"):
        driver.commit(begun, 0, [])


def test_what_was_committed_is_told(start: Start, topic: str) -> None:
    driver = start(commitName="mine")
    jobs = driver.keeper.jobs
    assert jobs.last_commit("mine") is None
    begun = driver.begin()
    told = driver.commit(begun, 0, driver.write(begun, b"a", b"b") + driver.write(begun, b"c"))
    commit = jobs.last_commit("mine")
    assert commit is not None
    assert (commit.txid, commit.commit_sequence) == (begun["txid"], told["commit_sequence"])
    assert (commit.query_id, commit.batch_id, commit.records) == (QUERY, 0, {topic: 3})
    driver.run(0, b"a")
    replay = jobs.last_commit("mine")
    assert replay is not None
    assert (replay.is_replay, replay.txid, replay.records) == (True, None, {})
    other = replace(driver.options, commit_name=None, checkpoint=None)
    begun = driver.ask("begin", options=other.to_json(), stream=False)
    txid = begun["token"].rpartition(":")[2]
    driver.ask("commit", txid=txid, summaries=[])
    last = jobs.last_commit()
    assert last is not None
    assert (last.txid, last.query_id) == (txid, None)
    assert jobs.last_commit("mine") == jobs.last_commit(query_id=QUERY) == replay


@pytest.mark.parametrize(
    "differs",
    [{"sidecar": True}, {"sidecar_min_bytes": 1_000}, {"transaction_timeout_ms": 123_456}],
)
def test_writes_with_other_settings_do_not_fence_each_other(
    start: Start, differs: dict[str, Any]
) -> None:
    driver = start(checkpoint=False)
    other = replace(driver.options, **differs)
    for options in (driver.options, other, driver.options, other):
        begun = driver.ask("begin", options=options.to_json(), stream=False)
        txid = begun["token"].rpartition(":")[2]
        assert driver.ask("commit", txid=txid, summaries=[])["state"] != "ABORTED"


def test_an_abort_and_what_follows(start: Start, logtx_memory_cluster: Cluster, topic: str) -> None:
    driver = start()
    begun = driver.begin()
    summaries = driver.write(begun, b"x")
    assert driver.ask("abort", txid=begun["txid"])["state"] == "aborted"
    with pytest.raises(TransactionError, match="aborted"):
        driver.commit(begun, 0, summaries)
    left = driver.begin()
    assert driver.ask("abort_stream", options=driver.options.to_json())["state"] == "aborted"
    with pytest.raises(TransactionError, match="abort"):
        driver.commit(left, 0, [])
    begun = driver.begin()
    done = driver.commit(begun, 0, driver.write(begun, b"y"))
    assert driver.ask("abort", txid=begun["txid"])["state"] == "committed"
    assert driver.commit(begun, 0, []) == done
    assert seen(logtx_memory_cluster, topic) == {b"y": 1}


def steps(begin: int | None, end: int) -> list[OffsetStep]:
    place = None if begin is None else Place(begin)
    return [OffsetStep("input", 0, place, Position.at(end))]


def test_the_offsets_of_a_group_go_with_the_output(start: Start) -> None:
    driver = start(group="readers")

    def commit() -> Any:
        begun = driver.begin(stream=False)
        return driver.ask("commit", txid=begun["txid"], summaries=[])["state"]

    with pytest.raises(ConfigError, match="none was: read it with"):
        commit()
    driver.keeper.plans.plan("readers", steps(None, 5))
    assert commit() == "committed"
    with pytest.raises(OffsetsConflictError):
        commit()
    driver.keeper.plans.plan("readers", steps(5, 7))
    assert commit() == "committed"


def test_what_was_read_and_not_written_is_not_mistaken_for_another(start: Start) -> None:
    driver = start(group="readers")
    driver.keeper.plans.plan("readers", steps(None, 5))
    driver.keeper.plans.plan("readers", steps(None, 5))
    # Written now, the first of the two would commit input that only the second one has.
    with pytest.raises(ConfigError, match="pass replace=True"):
        driver.keeper.plans.plan("readers", steps(None, 6))
    driver.keeper.plans.plan("readers", steps(None, 6), replace=True)
    # Nor is a stream's output the output of a batch.
    begun = driver.begin()
    with pytest.raises(ConfigError, match="none was"):
        driver.commit(begun, 0, [])


def test_two_queries_of_one_group(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("logtx.integration.spark.plans.READER_ENDS_S", 0.2)
    driver = start(group="readers")
    ended = subprocess.Popen([sys.executable, "-c", ""])
    driver.ask("plan", group="readers", steps=steps_to_json(steps(None, 5)), reader=os.getpid())
    assert driver.run(0, b"a") == "committed"
    # A micro-batch without input.
    assert driver.run(1, b"b") == "committed"
    with pytest.raises(ConfigError, match="read by another query"):
        driver.ask("plan", group="readers", steps=[], reader=ended.pid)
    assert ended.wait(20) == 0
    driver.ask("plan", group="readers", steps=steps_to_json(steps(5, 8)), reader=os.getpid())
    driver.keeper.plans._plans["readers"].reader = ended.pid
    # The reader of a query that has ended gives way.
    driver.ask("plan", group="readers", steps=steps_to_json(steps(5, 9)), reader=os.getpid())
    assert driver.run(2, b"c") == "committed"


def plan(driver: Driver, begin: int | None, end: int) -> None:
    """As the reader of a query does for its next micro-batch."""
    told = steps_to_json(steps(begin, end))
    driver.ask("plan", group="readers", steps=told, reader=os.getpid())


def place_of(driver: Driver) -> int:
    found = driver.keeper.jobs._cluster(driver.options).queries.fetch_offsets("readers").offsets
    return found["input", 0].o2


def test_a_foreach_batch_that_wrote_nothing_leaves_its_input_to_the_next(start: Start) -> None:
    driver = start(checkpoint=False, group="readers")
    plan(driver, None, 5)
    assert job(driver, b"x", batch_id=0) == "committed"
    plan(driver, 5, 6)
    plan(driver, 6, 9)
    plan(driver, 6, 9)  # a source that is used twice
    plan(driver, 9, 12)
    assert job(driver, b"y", batch_id=3) == "committed"
    assert place_of(driver) == 12
    plan(driver, 12, 13)
    assert job(driver, b"z", batch_id=4) == "committed"
    # Without input, and behind one that wrote nothing.
    plan(driver, 13, 14)
    assert job(driver, b"z", batch_id=6) == "committed"
    assert place_of(driver) == 14


def test_a_write_that_failed_is_not_taken_for_nothing(start: Start) -> None:
    driver = start(checkpoint=False, group="readers")
    plan(driver, None, 5)
    assert job(driver, b"x", batch_id=0) == "committed"
    plan(driver, 5, 6)
    driver.ask("abort", txid=driver.begin(stream=False)["txid"])  # foreachBatch ignores the error
    plan(driver, 6, 9)
    sentence = r"group readers stands at 5 in input\[0\], and .* begins at 6: .*checkpointLocation"
    with pytest.raises(OffsetsConflictError, match=sentence):
        job(driver, b"y", batch_id=2)
    assert place_of(driver) == 5


def test_a_foreach_batch_that_wrote_nothing_before_a_restart_is_not_guessed(start: Start) -> None:
    # Its write may as well have failed, and the function have caught the error: taken for one that
    # had nothing to write, its input would be in no output.
    first = start(checkpoint=False, group="readers")
    plan(first, None, 5)
    assert job(first, b"x", batch_id=0) == "committed"
    plan(first, 5, 6)
    second = start(checkpoint=False, group="readers")
    plan(second, 6, 9)
    sentence = r"stands at 5 in input\[0\], .*new checkpointLocation, .*logtx\.spark\.transaction"
    with pytest.raises(OffsetsConflictError, match=sentence):
        job(second, b"y", batch_id=2)
    # As the error says: a query with a new checkpoint begins where the group stands.
    third = start(checkpoint=False, group="readers")
    plan(third, 5, 9)
    begun = third.begin(stream=False)
    fields = {"txid": begun["txid"], "summaries": third.write(begun, b"y")}
    told = third.ask("commit", **fields, query_id="the id in the new checkpoint", batch_id=0)
    assert told["state"] == "committed"
    assert place_of(third) == 9


def test_a_write_outside_of_the_micro_batch_whose_input_it_commits(start: Start) -> None:
    driver = start(checkpoint=False, group="readers")
    plan(driver, None, 5)
    with pytest.raises(ConfigError, match=r"pyspark\.InheritableThread"):
        job(driver, b"of a thread that foreachBatch started")


def test_a_shared_transaction_without_a_write_commits_its_input(start: Start) -> None:
    def nothing(driver: Driver, *micro_batch: Any) -> Any:
        begun = driver.keeper.jobs.begin(driver.options.to_json(), stream=False, shared=True)
        return driver.keeper.jobs.commit(begun["token"].rpartition(":")[2], [], *micro_batch)

    drivers = [start(checkpoint=False, group="readers") for _ in range(2)]
    drivers[0].keeper.plans.plan("readers", steps(None, 3))
    assert nothing(drivers[0])["state"] == "committed", "of resume"
    states = []
    for driver in drivers:
        plan(driver, 3, 5)
        states.append(nothing(driver, QUERY, 0)["state"])
    assert states == ["committed", "replayed"]
    assert place_of(drivers[1]) == 5


def test_topics_that_can_not_be_written(start: Start, logtx_memory_cluster: Cluster) -> None:
    with pytest.raises(UnknownTopicError):
        start(topic="nowhere").begin()
    compacted = logtx_memory_cluster.topic(1, config={"cleanup.policy": "compact"})
    with pytest.raises(UnsupportedTopicError, match="takes no markers"):
        start(topic=compacted).begin()


def test_a_topic_that_may_not_be_written(
    start: Start, logtx_memory_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = replace(logtx_memory_cluster.log.topic_info(topic), operations=frozenset({"READ"}))
    monkeypatch.setattr(MemoryLog, "topic_info", lambda *_, **__: info)
    with pytest.raises(UnsupportedTopicError, match=r"may not WRITE to .* kafka-acls\.sh .*Write"):
        start().begin()


def test_strangers_are_not_answered(start: Start) -> None:
    driver = start()
    address = replace(driver.keeper.address, secret=b"guessed")
    with pytest.raises(KeeperError, match="can't be reached"):
        address.ask("to_the_end", source={})
    assert driver.ask("to_the_end", source={}) is False
    with pytest.raises(UnknownTransactionError):
        driver.ask("commit", txid="0-000000000001-1", summaries=[])
    with pytest.raises(LogtxError, match="does not know"):
        driver.ask("make_coffee")


def test_a_driver_that_has_ended(start: Start) -> None:
    driver = start()
    driver.keeper.close()
    with pytest.raises(KeeperError, match="run the job again"):
        driver.ask("to_the_end", source={})


def test_errors_keep_their_class() -> None:
    assert type(make_error("BatchGapError", "x")) is BatchGapError
    assert type(make_error("OffsetsConflictError", "x")) is OffsetsConflictError
    assert str(make_error("ValueError", "x")) == "ValueError: x"


def test_s3_a_restart_in_the_same_driver_counts_anew_and_nothing_else_does(start: Start) -> None:
    driver = start(checkpoint=False)
    runs = iter(["one", None, "one", "one", "one", "one", "two", None, "two", "two", None, None])
    driver.spark.runs_of_query = runs
    assert [job(driver, b"x", batch_id=0) for _ in range(3)] == ["committed"] * 3
    assert [job(driver, b"x", batch_id=0) for _ in range(3)] == ["replayed"] * 3


def test_s4_a_job_may_take_longer_than_its_timeout(
    start: Start, logtx_memory_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_module, "EXTEND_LOOK_S", 0.05)
    driver = start(checkpoint=False, **{"transaction.timeout.ms": "1500"})
    begun = driver.begin(stream=False)
    summaries = driver.write(begun, b"late")
    time.sleep(4)
    assert driver.ask("commit", txid=begun["txid"], summaries=summaries)["state"] == "committed"
    # No application, no job: nobody would commit it.
    begun = driver.begin(stream=False)
    driver.spark.stopped = True
    summaries = driver.write(begun, b"too late")
    time.sleep(3)
    with pytest.raises(TransactionError, match=r"longer than its transaction\.timeout\.ms"):
        driver.ask("commit", txid=begun["txid"], summaries=summaries)
    assert seen(logtx_memory_cluster, topic) == {b"late": 1}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_s12_a_commit_of_2000_tasks_in_500_partitions(
    start: Start, logtx_memory_cluster: Cluster
) -> None:
    log, topic = logtx_memory_cluster.log, logtx_memory_cluster.topic(500)
    driver = start(checkpoint=False, topic=topic)
    begun = driver.begin(stream=False)
    txid = TxId.parse(begun["txid"])
    writes = {(topic, partition): BranchRange(0, 5, 9, 5) for partition in range(500)}
    summaries = [
        BranchSummary(txid, nonce, writes).to_bytes().decode() for nonce in range(1, 2_001)
    ]
    began_s = time.monotonic()
    told = driver.ask("commit", txid=begun["txid"], summaries=summaries)
    print(f"{time.monotonic() - began_s:.1f} s")
    assert told["state"] == "committed"
    # A marker for each partition, which names all tasks.
    keys = [(topic, partition) for partition in range(500)]
    eventually(lambda: log.end_offsets(keys) == dict.fromkeys(keys, 1), 120)
    entries = read_entries(log, 0, 0, log.end_offset(JOURNAL_TOPIC, 0), timeout_s=60)
    named = [e.record.writes for _, e in entries if isinstance(e.record, AddWrites)]
    assert len(named) > 1
    assert sum(len(w.branches) for part in named for w in part) > 900_000


def joined(driver: Driver, token: str, topic: str) -> dict[str, Any]:
    """What the planner of a write gets that joins a transaction."""
    options = replace(driver.options, transaction=token, topic=topic)
    found: dict[str, Any] = driver.ask("begin", options=options.to_json(), stream=False)
    return found


def write_to(driver: Driver, token: str, topic: str, value: bytes) -> list[str]:
    with logtx.Branch.join(driver.options.branch(), token) as branch:
        branch.produce(topic, value)
        return [branch.finish().to_bytes().decode()]


def test_several_writes_are_one_transaction(
    start: Start, logtx_memory_cluster: Cluster, topic: str
) -> None:
    driver, other = start(checkpoint=False), logtx_memory_cluster.topic(1)
    begun = driver.keeper.jobs.begin(driver.options.to_json(), stream=False, shared=True)
    token = begun["token"]
    txid = token.rpartition(":")[2]
    for where, value in ((topic, b"a"), (other, b"b")):
        assert joined(driver, token, where)["token"] == token
        summaries = write_to(driver, token, where, value)
        for _ in range(2):  # The first answer was lost.
            driver.ask("accept", txid=txid, summaries=summaries)
    write_to(driver, token, topic, b"of a write that failed")
    assert driver.keeper.jobs.commit(txid, [])["state"] == "committed"
    assert seen(logtx_memory_cluster, topic) == {b"a": 1}
    assert seen(logtx_memory_cluster, other) == {b"b": 1}
    with pytest.raises(ConfigError, match="it has ended"):
        joined(driver, token, topic)


def test_what_can_not_join(start: Start, topic: str) -> None:
    driver = start(checkpoint=False)
    begun = driver.begin(stream=False)
    alone = replace(driver.options, transaction=begun["token"])
    with pytest.raises(ConfigError, match="can't be joined"):
        driver.ask("begin", options=alone.to_json(), stream=False)
    with pytest.raises(ConfigError, match="begins its own"):
        driver.ask("begin", options=alone.to_json(), stream=True)
    for given in ({"group": "g"}, {"txn_app_id": "a"}, {"commit_name": "a"}):
        with pytest.raises(ConfigError, match="belong to the transaction"):
            driver.ask("begin", options=replace(alone, **given).to_json(), stream=False)
    kafka = {**alone.kafka, "bootstrap.servers": "memory://another"}
    with pytest.raises(ConfigError, match="one Kafka cluster"):
        driver.ask("begin", options=replace(alone, kafka=kafka, topic=None).to_json(), stream=False)
    with pytest.raises(UnknownTransactionError):
        joined(driver, "x:0-1-2", topic)


def test_shared_transactions_of_a_foreach_batch_are_known_by_themselves(
    start: Start, logtx_memory_cluster: Cluster, topic: str
) -> None:
    def run(driver: Driver, value: bytes) -> str:
        begun = driver.keeper.jobs.begin(driver.options.to_json(), stream=False, shared=True)
        token = begun["token"]
        txid = token.rpartition(":")[2]
        summaries = write_to(driver, token, topic, value)
        driver.ask("accept", txid=txid, summaries=summaries, query_id=QUERY, batch_id=0)
        return str(driver.keeper.jobs.commit(txid, [])["state"])

    first = start(checkpoint=False)
    assert [run(first, b"a"), run(first, b"b")] == ["committed"] * 2
    second = start(checkpoint=False)
    assert [run(second, b"a"), run(second, b"b"), run(second, b"c")] == [
        *("replayed", "replayed", "committed")
    ]
    assert seen(logtx_memory_cluster, topic) == {b"a": 1, b"b": 1, b"c": 1}


def test_writes_of_one_foreach_batch_at_the_same_time_are_refused(start: Start) -> None:
    # Which of them is the first differs from run to run: repeated, one passed for the other.
    driver = start(checkpoint=False)
    one, two = driver.begin(stream=False), driver.begin(stream=False)
    orders, payments = driver.write(one, b"orders"), driver.write(two, b"payments")

    def commit(begun: Any, summaries: Any) -> Any:
        txid = begun["txid"]
        return driver.ask("commit", txid=txid, summaries=summaries, query_id=QUERY, batch_id=0)

    assert commit(one, orders)["state"] == "committed"
    with pytest.raises(ConfigError, match="one after the other"):
        commit(two, payments)


def test_an_application_id_in_foreach_batch_and_a_checkpoint_that_was_lost(start: Start) -> None:
    former = start(checkpoint=False, txnAppId="booking")
    for number in range(4):
        assert job(former, b"old", batch_id=number) == "committed"
    sentence = "micro-batch 0 of txnAppId booking .* new checkpointLocation and a new txnAppId"
    with pytest.raises(ReplayDiffersError, match=sentence):
        job(start(checkpoint=False, txnAppId="booking"), b"new", batch_id=0)
    other = start(checkpoint=False, txnAppId="booking-2")
    assert job(other, b"new", batch_id=0) == "committed"


@pytest.mark.parametrize("part", ["offsets", "sources"])
def test_a_checkpoint_that_could_not_be_read_for_a_moment(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "sources" / "0").mkdir(parents=True)

    def plan(number: int) -> None:
        """Of a source of files, whose log is beside the offsets."""
        text = f'v1\n{{}}\n{{"logOffset":{number}}}'
        (tmp_path / "offsets" / str(number)).write_text(text)
        (tmp_path / "sources" / "0" / str(number)).write_text(f"file-{number}")

    driver = start()
    plan(0)
    driver.run(0, b"a")
    plan(1)
    read = driver.spark.read_checkpoint
    with pytest.MonkeyPatch.context() as patched:
        unread = lambda path: None if part in path else read(path)  # noqa: E731
        patched.setattr(driver.spark, "read_checkpoint", unread)
        driver.run(1, b"b")
    assert f"input_not_known query={QUERY} micro_batch=1" in caplog.text
    assert start().run(1, b"b") == "replayed"
    plan(2)
    assert start().run(2, b"c") == "committed"
    (tmp_path / "sources" / "0" / "2").write_text("another file")
    with pytest.raises(ReplayDiffersError, match="committed 0 to 2, now 0 to 2"):
        start().run(2, b"c")
