"""Input that is gone, and micro-batches that are repeated: nothing is passed over without a word.

`Query` asks a source as Spark's micro-batch engine does, without Spark.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from logtx.consumer.range_reader.errors import DataLossError
from logtx.consumer.range_reader.reading import RangeReader
from logtx.consumer.range_reader.spot import Spot
from logtx.integration.spark import planning
from logtx.integration.spark.keeper_client import KeeperAddress
from logtx.integration.spark.planning import Planner, SourceOptions
from logtx.integration.spark.source import Part, StreamSource
from logtx.integration.spark.steps import steps_from_json
from logtx.integration.spark.vector import from_offsets, steps_between
from logtx.integration.testing import Cluster
from logtx.journal.errors import ConfigError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.records.types import OffsetStep

from ...waiting import eventually


class Plans(KeeperAddress):
    """Takes the steps that a source plans."""

    def __init__(self) -> None:
        super().__init__("", 0, b"")
        object.__setattr__(self, "steps", [])

    def ask(self, what: str, **fields: Any) -> Any:
        """As the keeper does."""
        if what == "plan":
            self.steps.append(steps_from_json(fields["steps"]))  # type: ignore[attr-defined]
        return False


class Query:
    """A streaming query: its checkpoint, and the source of its current run."""

    def __init__(self, cluster: Cluster, topic: str | None, **options: str) -> None:
        named = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
        if topic is not None:
            named["subscribe"] = topic
        self.options = SourceOptions.parse({**named, **options})
        self.log = cluster.log
        self.ends: list[str] = []
        """Spark's `offsets` directory: the end of each planned micro-batch."""
        self.keeper = Plans()
        self.restart()

    def restart(self) -> None:
        """Another driver goes on from the checkpoint.

        First of all Spark tells the end of the last micro-batch, committed or not, as (o, o).
        """
        self.source = StreamSource(self.options, self.keeper)
        if self.ends:
            last = json.loads(self.ends[-1])
            assert self.source.partitions(last, last) == []
        else:
            self.initial = json.dumps(self.source.initialOffset())

    def repeat(self) -> list[int]:
        """Runs the last micro-batch again, as a restarted query does. Returns what it reads."""
        if len(self.ends) == 1:
            self.initial = json.dumps(self.source.initialOffset())
        start = self.ends[-2] if len(self.ends) > 1 else self.initial
        return self._read(start, self.ends[-1])

    def trigger(self) -> list[int]:
        """Runs the next micro-batch. Returns what it reads."""
        end = json.dumps(self.source.latestOffset())
        start = self.ends[-1] if self.ends else self.initial
        if end == start:
            return []
        self.ends.append(end)
        return self._read(start, end)

    def _read(self, start: str, end: str) -> list[int]:
        found = []
        for part in self.source.partitions(json.loads(start), json.loads(end)):
            assert isinstance(part, Part)
            reader = RangeReader(part.read, part.range, self.log)
            found += [int(r.value() or b"") for share in reader.shares() for r in share.records]
            reader.close()
        return sorted(found)


@pytest.fixture
def topic(logtx_memory_cluster: Cluster) -> str:
    return logtx_memory_cluster.topic(1)


def put(cluster: Cluster, topic: str, numbers: range) -> None:
    """Commits numbers; returns when their marker is there."""
    end = cluster.log.end_offset(topic, 0) + len(numbers) + 1
    with cluster.producer() as producer, producer.begin_transaction() as txn:
        for number in numbers:
            txn.produce(topic, b"%d" % number, partition=0)
    eventually(lambda: cluster.log.end_offset(topic, 0) == end)


def make_anew(cluster: Cluster, topic: str) -> None:
    assert isinstance(cluster.log, MemoryLog)
    cluster.log.delete_topic(topic)
    cluster.log.create_topic(topic, partitions=1)


@pytest.mark.parametrize("count", [3, 30], ids=["shorter", "longer than the former one was"])
def test_s1_a_topic_that_was_created_again_is_no_continuation(
    logtx_memory_cluster: Cluster, topic: str, count: int
) -> None:
    cluster = logtx_memory_cluster
    query = Query(cluster, topic, startingOffsets="earliest")
    put(cluster, topic, range(10))
    assert query.trigger() == list(range(10))
    make_anew(cluster, topic)
    put(cluster, topic, range(100, 100 + count))
    with pytest.raises(DataLossError, match="deleted and created again"):
        query.trigger()
    query.restart()
    with pytest.raises(DataLossError, match="set failOnDataLoss=false"):
        query.trigger()


@pytest.mark.parametrize("count", [3, 30])
def test_s1_without_failing_it_is_read_from_its_start(
    logtx_memory_cluster: Cluster, topic: str, count: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = logtx_memory_cluster
    query = Query(cluster, topic, startingOffsets="earliest", failOnDataLoss="false")
    put(cluster, topic, range(10))
    assert query.trigger() == list(range(10))
    make_anew(cluster, topic)
    put(cluster, topic, range(100, 100 + count))
    assert query.trigger() == list(range(100, 100 + count))
    assert "data_loss" in caplog.text
    put(cluster, topic, range(500, 510))
    query.restart()
    assert query.trigger() == list(range(500, 510))
    assert query.trigger() == []


def test_s1_a_topic_that_goes_between_planning_and_reading(
    logtx_memory_cluster: Cluster, topic: str
) -> None:
    cluster = logtx_memory_cluster
    strict = Query(cluster, topic, startingOffsets="earliest")
    loose = Query(cluster, topic, startingOffsets="earliest", failOnDataLoss="false")
    put(cluster, topic, range(10))
    for query in (strict, loose):
        query.ends.append(json.dumps(query.source.latestOffset()))
    make_anew(cluster, topic)
    put(cluster, topic, range(100, 103))
    with pytest.raises(DataLossError):
        strict.repeat()
    assert loose.repeat() == []
    assert loose.trigger() == [100, 101, 102]


def test_s1_a_checkpoint_of_before_there_were_ids(
    logtx_memory_cluster: Cluster, topic: str
) -> None:
    cluster = logtx_memory_cluster
    query = Query(cluster, topic)
    query.ends.append(json.dumps({"version": 1, "places": {topic: {"0": 11}}}))
    put(cluster, topic, range(3))
    query.restart()
    with pytest.raises(DataLossError, match="ends at 4 now, and reading stood at 11"):
        query.trigger()
    put(cluster, topic, range(3, 20))
    query.restart()
    assert query.trigger() == list(range(3, 20)), "it may be the same topic"


@pytest.mark.parametrize("strict", ["true", "false"])
def test_s1_the_offsets_of_a_group_in_a_topic_that_was_created_again(
    logtx_memory_cluster: Cluster, topic: str, strict: str
) -> None:
    cluster = logtx_memory_cluster
    with cluster.producer() as producer, producer.begin_transaction() as txn:
        txn.send_offsets("g", [OffsetStep(topic, 0, None, Position.at(50))])
    put(cluster, topic, range(3))
    if strict == "true":
        with pytest.raises(DataLossError):
            Query(cluster, topic, group="g")
        return
    query = Query(cluster, topic, group="g", failOnDataLoss=strict)
    assert query.trigger() == [0, 1, 2]
    with cluster.producer() as producer, producer.begin_transaction() as txn:
        [steps] = query.keeper.steps  # type: ignore[attr-defined]
        txn.send_offsets("g", steps)


@pytest.mark.parametrize("option", ["startingOffsets", "startingIov"])
def test_s14_the_first_micro_batch_begins_where_the_query_began(
    logtx_memory_cluster: Cluster, topic: str, option: str
) -> None:
    cluster = logtx_memory_cluster
    put(cluster, topic, range(5))
    begin = "latest" if option == "startingOffsets" else "g"
    query = Query(cluster, topic, **{option: begin})
    put(cluster, topic, range(5, 10))
    first = list(range(5, 10) if option == "startingOffsets" else range(10))
    assert query.trigger() == first
    with cluster.producer() as producer, producer.begin_transaction() as txn:
        txn.send_offsets("g", [OffsetStep(topic, 0, None, Position.at(9))])
    put(cluster, topic, range(10, 15))
    query.restart()
    assert query.repeat() == first
    assert query.trigger() == list(range(10, 15))
    assert query.trigger() == []
    query.restart()
    assert query.trigger() == []


def test_a_first_micro_batch_that_was_not_committed_has_its_input_and_its_steps(
    logtx_memory_cluster: Cluster, topic: str
) -> None:
    put(logtx_memory_cluster, topic, range(5))
    query = Query(logtx_memory_cluster, topic, group="g")
    assert query.trigger() == list(range(5))
    put(logtx_memory_cluster, topic, range(5, 10))
    for _ in range(2):
        query.restart()
        assert query.repeat() == list(range(5))
    # An earlier version did not say in the end where the query began.
    told = json.loads(query.ends[0])
    del told["began"]
    query.ends = [json.dumps(told)]
    query.restart()
    assert query.repeat() == list(range(5))
    first, *again = query.keeper.steps  # type: ignore[attr-defined]
    assert again == [first] * 3
    assert query.trigger() == list(range(5, 10))


def test_what_did_not_move_is_told_in_the_same_words(
    logtx_memory_cluster: Cluster, topic: str
) -> None:
    query = Query(logtx_memory_cluster, topic, startingOffsets="earliest")
    assert query.trigger() == []
    put(logtx_memory_cluster, topic, range(5))
    assert query.trigger() == list(range(5))
    for _ in range(3):
        assert query.trigger() == []
    query.restart()
    assert query.trigger() == []
    assert len(query.ends) == 1


def test_the_form_in_a_checkpoint(golden: dict[str, Any]) -> None:
    for text, places in golden["read"]:
        offset = from_offsets(json.loads(text))
        assert {f"{t}[{p}]": s.o2 for (t, p), s in offset.places.items()} == places


@pytest.fixture
def golden() -> dict[str, Any]:
    """Offsets as versions 1 and 2 wrote them."""
    path = Path(__file__).with_name("offsets.json")
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_the_steps_of_a_group_whose_records_are_gone_begin_where_it_stood() -> None:
    begin = {("a", 0): Spot(3, stood=Position.at(50).place)}
    [step] = steps_between(begin, {("a", 0): Spot(9)})
    assert step.from_place == Position.at(50).place


def test_a_group_without_offsets_may_be_misspelt(logtx_memory_cluster: Cluster, topic: str) -> None:
    with logtx_memory_cluster.producer() as producer, producer.begin_transaction() as txn:
        txn.send_offsets("ledger", [OffsetStep(topic, 0, None, Position.at(0))])
    given = {"kafka.bootstrap.servers": logtx_memory_cluster.bootstrap_servers, "subscribe": topic}
    for group in ("ledger", "leger"):
        planner = Planner(logtx_memory_cluster.log, SourceOptions.parse({**given, "group": group}))
        if group == "ledger":
            planner.require_group()
        else:
            with pytest.raises(ConfigError, match="'leger' has no committed offsets"):
                planner.require_group()


def test_a_topic_that_was_created_again_and_ends_where_the_former_did(
    logtx_memory_cluster: Cluster, topic: str
) -> None:
    cluster = logtx_memory_cluster
    query = Query(cluster, topic, startingOffsets="earliest", failOnDataLoss="false")
    put(cluster, topic, range(10))
    assert query.trigger() == list(range(10))
    make_anew(cluster, topic)
    put(cluster, topic, range(100, 110))
    assert query.trigger() == list(range(100, 110))
    assert query.trigger() == []


def test_the_group_is_told_of_such_a_topic(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    first, second = cluster.topic(1), cluster.topic(1)
    options = {"group": "g", "failOnDataLoss": "false"}

    def commit(query: Query) -> None:
        with cluster.producer() as producer, producer.begin_transaction() as txn:
            txn.send_offsets("g", query.keeper.steps[-1])

    query = Query(cluster, f"{first},{second}", **options)
    put(cluster, first, range(10))
    put(cluster, second, range(20, 22))
    query.trigger()
    commit(query)
    make_anew(cluster, first)
    put(cluster, first, range(100, 110))
    put(cluster, second, range(30, 33))
    assert len(query.trigger()) == 13
    commit(query)
    assert Query(cluster, f"{first},{second}", **options).trigger() == []


def tells_before(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a former leader answer the next question for ends, of partitions with replicas."""
    ends, infos = cluster.log.end_offsets, cluster.log.topic_infos
    looks = []

    def end_offsets(partitions: Any, **more: Any) -> Any:
        looks.append(1)
        return {k: end - (len(looks) == 1) * 5 for k, end in ends(partitions, **more).items()}

    def topic_infos(topics: Any, **more: Any) -> Any:
        return {t: replace(i, replication_factor=3) for t, i in infos(topics, **more).items()}

    monkeypatch.setattr(cluster.log, "end_offsets", end_offsets)
    monkeypatch.setattr(cluster.log, "topic_infos", topic_infos)
    monkeypatch.setattr(planning, "LOOKS_APART_S", 0.01)


def test_an_end_that_a_former_leader_tells_is_no_loss(
    logtx_memory_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With failOnDataLoss=false all would be read again; without, the error says to start anew.
    cluster = logtx_memory_cluster
    query = Query(cluster, topic, startingOffsets="earliest")
    put(cluster, topic, range(10))
    assert query.trigger() == list(range(10))
    tells_before(cluster, monkeypatch)
    assert query.trigger() == []
    put(cluster, topic, range(10, 12))
    assert query.trigger() == [10, 11]


def test_all_that_is_there_lies_below_the_ends_that_are_sure(
    logtx_memory_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = logtx_memory_cluster
    put(cluster, topic, range(10))
    tells_before(cluster, monkeypatch)
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    assert Planner(cluster.log, SourceOptions.parse(options)).latest_surely() == {(topic, 0): 11}


def test_an_offset_beyond_an_end_of_the_past_is_taken(
    logtx_memory_cluster: Cluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = logtx_memory_cluster
    put(cluster, topic, range(10))
    options = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    tells_before(cluster, monkeypatch)
    ending = {**options, "endingOffsets": json.dumps({topic: {"0": 11}})}
    assert Planner(cluster.log, SourceOptions.parse(ending)).end() == {(topic, 0): 11}
    beyond = {**options, "endingOffsets": json.dumps({topic: {"0": 12}})}
    with pytest.raises(ConfigError, match="ends at 11"):
        Planner(cluster.log, SourceOptions.parse(beyond)).end()


def test_a_query_that_began_at_the_end_reads_the_new_topic_from_its_start(
    logtx_memory_cluster: Cluster, topic: str
) -> None:
    cluster = logtx_memory_cluster
    put(cluster, topic, range(10))
    query = Query(cluster, topic, startingOffsets="latest", failOnDataLoss="false")
    assert query.trigger() == []
    make_anew(cluster, topic)
    for first in range(100, 125, 5):
        put(cluster, topic, range(first, first + 5))
    assert query.trigger() == list(range(100, 125))


def test_the_end_of_a_group_in_a_topic_that_was_created_again_is_none(
    logtx_memory_cluster: Cluster, topic: str
) -> None:
    cluster = logtx_memory_cluster
    put(cluster, topic, range(5))
    topic_id = cluster.log.topic_info(topic).topic_id
    with cluster.producer() as producer, producer.begin_transaction() as txn:
        to = Position(o1=6, o2=6, topic_id=topic_id)
        txn.send_offsets("g", [OffsetStep(topic, 0, None, to)])
    make_anew(cluster, topic)
    named = {"subscribe": topic, "endingIov": "g"}
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    planner = Planner(cluster.log, SourceOptions.parse({**servers, **named}))
    with pytest.raises(ConfigError, match="created again since"):
        planner.end()
