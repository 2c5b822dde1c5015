"""Which topics a source reads, how much at a time, and what it says of options that make no sense.

`AdmittedQuery` asks a source as Spark does from 4.2 on, without Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from logtx.consumer.range_reader.errors import DataLossError
from logtx.consumer.range_reader.spot import Spot
from logtx.integration.spark import source as source_module
from logtx.integration.spark.planning import Planner, SourceOptions
from logtx.integration.spark.source import BatchSource, Part
from logtx.integration.spark.vector import SourceOffset, from_offsets, to_offsets
from logtx.integration.testing import Cluster
from logtx.journal.errors import ConfigError, LogtxError, UnknownTopicError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.position import Position
from logtx.journal.records.types import OffsetStep

from ...waiting import eventually
from .test_data_loss import Query, make_anew


def put(cluster: Cluster, topic: str, numbers: range, partition: int = 0) -> None:
    end = cluster.log.end_offset(topic, partition) + len(numbers) + 1
    with cluster.producer() as producer, producer.begin_transaction() as txn:
        for number in numbers:
            txn.produce(topic, b"%d" % number, partition=partition)
    eventually(lambda: cluster.log.end_offset(topic, partition) == end)


def options(**given: str) -> SourceOptions:
    return SourceOptions.parse({"kafka.bootstrap.servers": "memory://a", **given})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "give one of the options subscribe, subscribePattern, assign, not none"),
        ({"subscribe": "a", "assign": '{"a": [0]}'}, "not subscribe and assign"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribePattern": "flights-("}, "no regular expression of Python"),
        ({"assign": "a"}, "option assign must be like"),
        ({"assign": '{"a": 0}'}, "option assign must be like"),
        ({"assign": '{"a": []}'}, "option assign must be like"),
        ({"assign": '{"a": [-1]}'}, "option assign must be like"),
        ({"assign": '{"a": [true]}'}, "option assign must be like"),
        ({"assign": "{}"}, "option assign must be like"),
        (
            {"subscribe": "a", "maxRecordsPerTrigger": "5", "maxOffsetsPerTrigger": "6"},
            "two names of one limit",
        ),
        (
            {"subscribe": "a", "minOffsetsPerTrigger": "7", "maxOffsetsPerTrigger": "6"},
            "minOffsetsPerTrigger=7 is above maxOffsetsPerTrigger=6: lower it",
        ),
        ({"subscribe": "a", "maxTriggerDelay": "soon"}, "maxTriggerDelay must be a time such as"),
        ({"subscribe": "a", "maxTriggerDelay": "3 weeks"}, "must be a time such as"),
        (
            {"subscribe": "a", "isolation.level": "read_uncommitted", "endingCommitSequence": "7"},
            "what is not committed has no commit sequence",
        ),
    ],
)
def test_options_that_make_no_sense(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        options(**given)


class Asked:
    """A log that counts what it is asked, by name of the question."""

    def __init__(self, log: MemoryLog, counts: Counter[str]) -> None:
        self._log, self._counts = log, counts

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(*arguments: Any, **named: Any) -> Any:
            self._counts[name] += 1
            return getattr(self._log, name)(*arguments, **named)

        return ask


def test_s15_planning_asks_as_often_for_200_partitions_as_for_2(
    logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logtx_memory_cluster.log
    assert isinstance(log, MemoryLog)

    def questions(partitions: int) -> Counter[str]:
        counts, topic = Counter[str](), logtx_memory_cluster.topic(partitions)
        monkeypatch.setattr(source_module, "open_log", lambda _: Asked(log, counts))
        query = Query(logtx_memory_cluster, topic, startingOffsets="earliest")
        query.log = Asked(log, Counter())  # type: ignore[assignment]
        for number in range(2):
            put(logtx_memory_cluster, topic, range(number, number + 1), partition=1)
            assert query.trigger() == [number]
        return counts

    assert questions(200) == questions(2)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500", 0.5), ("500ms", 0.5), ("30s", 30), ("15 min", 900), ("2H", 7200)]
)
def test_times_in_sparks_words(text: str, seconds: float) -> None:
    assert options(subscribe="a", maxTriggerDelay=text).limits.delay_max_s == seconds


def test_a_pattern_matches_whole_names_of_users_topics(logtx_memory_cluster: Cluster) -> None:
    log = logtx_memory_cluster.log
    for topic in ("flights-1", "flights-2", "my-flights-1"):
        log.create_topic(topic, partitions=2)
    found = Planner(log, options(subscribePattern="flights-.*")).latest()
    assert set(found) == {(t, p) for t in ("flights-1", "flights-2") for p in (0, 1)}
    everything = Planner(log, options(subscribePattern=".*")).latest()
    assert not [topic for topic, _ in everything if topic.startswith("__")]
    assert Planner(log, options(subscribePattern="nothing")).latest() == {}


def test_assigned_partitions(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    one, two = cluster.topic(3), cluster.topic(1)
    for partition in range(3):
        put(cluster, one, range(partition * 10, partition * 10 + 3), partition)
    assigned = json.dumps({one: [2, 0], two: [0]})
    query = Query(cluster, None, assign=assigned, startingOffsets="earliest")
    assert query.trigger() == [0, 1, 2, 20, 21, 22]
    for topic, partitions, kind, sentence in (
        (one, [3], ConfigError, "names partition 3 of topic .*, which has 3: name those from 0"),
        ("nowhere", [0], UnknownTopicError, "nowhere"),
    ):
        with pytest.raises(kind, match=sentence):
            Planner(cluster.log, options(assign=json.dumps({topic: partitions}))).latest()


def test_a_topic_that_comes_later_is_read_from_its_start(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    query = Query(cluster, None, subscribePattern="later-.*", group="g")
    assert query.trigger() == [], "a stream may begin before its first topic"
    cluster.log.create_topic("later-1", partitions=1)
    put(cluster, "later-1", range(5))
    assert query.trigger() == [0, 1, 2, 3, 4]
    cluster.log.create_topic("later-2", partitions=1)
    put(cluster, "later-2", range(10, 15))
    query.restart()
    assert query.trigger() == list(range(10, 15))
    told = from_offsets(json.loads(query.ends[-1]))
    assert set(told.topic_ids) == {"later-1", "later-2"}
    steps = query.keeper.steps  # type: ignore[attr-defined]
    assert [[(s.topic, s.from_place) for s in one] for one in steps] == [
        [("later-1", None)],
        [("later-2", None)],
    ]
    make_anew(cluster, "later-2")
    with pytest.raises(DataLossError, match="later-2 was deleted and created again"):
        query.trigger()


@pytest.mark.parametrize("strict", [True, False])
def test_a_topic_of_a_pattern_that_was_deleted(
    logtx_memory_cluster: Cluster, strict: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, loss = logtx_memory_cluster, str(strict).lower()
    for topic in ("gone-1", "gone-2"):
        cluster.log.create_topic(topic, partitions=1)
    first = {"subscribePattern": "gone-.*", "startingOffsets": "earliest", "failOnDataLoss": loss}
    query = Query(cluster, None, **first)
    put(cluster, "gone-1", range(3))
    assert query.trigger() == [0, 1, 2]
    cluster.log.delete_topic("gone-1")
    put(cluster, "gone-2", range(10, 13))
    if strict:
        with pytest.raises(DataLossError, match="topic gone-1 was deleted"):
            query.trigger()
        return
    assert query.trigger() == [10, 11, 12]
    assert "data_loss topic gone-1 was deleted" in caplog.text
    cluster.log.create_topic("gone-1", partitions=1)
    put(cluster, "gone-1", range(20, 23))
    assert query.trigger() == [20, 21, 22]
    assert "data_loss topic gone-1 was deleted and created again" in caplog.text


def test_a_list_that_is_behind_loses_no_topic(
    logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = logtx_memory_cluster
    cluster.log.create_topic("listed-1", partitions=1)
    query = Query(cluster, None, subscribePattern="listed-.*", startingOffsets="earliest")
    put(cluster, "listed-1", range(3))
    assert query.trigger() == [0, 1, 2]
    monkeypatch.setattr(MemoryLog, "topics", lambda *_, **__: set())
    put(cluster, "listed-1", range(3, 6))
    assert query.trigger() == [3, 4, 5]


@pytest.mark.parametrize("group", [None, "g"])
def test_a_topic_that_a_broker_does_not_know_for_a_moment_goes_on_where_it_was(
    logtx_memory_cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    group: str | None,
) -> None:
    cluster = logtx_memory_cluster
    for topic in ("behind-1", "behind-2"):
        cluster.log.create_topic(topic, partitions=1)
    begin = {"startingOffsets": "earliest"} if group is None else {"group": group}
    options = {"subscribePattern": "behind-.*", "failOnDataLoss": "false", **begin}
    query = Query(cluster, None, **options)
    known = MemoryLog.topic_infos

    def forget(self: MemoryLog, topics: list[str], **more: Any) -> Any:
        return {**known(self, topics, **more), "behind-1": UnknownTopicError("it is behind")}

    def commit() -> None:
        if group is not None:
            with cluster.producer() as producer, producer.begin_transaction() as txn:
                txn.send_offsets(group, query.keeper.steps[-1])  # type: ignore[attr-defined]

    put(cluster, "behind-1", range(5))
    put(cluster, "behind-2", range(10, 12))
    assert query.trigger() == [*range(5), 10, 11]
    commit()
    with monkeypatch.context() as patched:
        patched.setattr(MemoryLog, "topic_infos", forget)
        # Once a micro-batch says that the topic is gone.
        assert [query.trigger() for _ in range(3)] == [[]] * 3
        assert len(query.ends) == 2
        assert caplog.text.count("data_loss topic behind-1 was deleted, or the broker") == 1
        put(cluster, "behind-2", range(12, 14))
        query.restart()
        assert query.trigger() == [12, 13]
        commit()
        if group is not None:
            query = Query(cluster, None, **options)  # with a new checkpoint
            put(cluster, "behind-2", range(14, 15))
            assert query.trigger() == [14]
            commit()
    put(cluster, "behind-1", range(5, 8))
    assert query.trigger() == [5, 6, 7]
    commit()
    assert from_offsets(json.loads(query.ends[-1])).gone == frozenset()
    assert query.trigger() == []
    assert caplog.text.count("data_loss") == 1


def test_a_topic_that_goes_when_it_is_planned_is_waited_for(
    logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = logtx_memory_cluster
    cluster.log.create_topic("flaps-1", partitions=1)
    loose = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    query = Query(cluster, None, subscribePattern="flaps-.*", **loose)
    put(cluster, "flaps-1", range(5))
    query.ends.append(json.dumps(query.source.latestOffset()))
    known, asked = MemoryLog.topic_infos, iter(range(9))

    def forget(self: MemoryLog, topics: list[str], **more: Any) -> Any:
        found = known(self, topics, **more)
        return found if next(asked) > 1 else {t: UnknownTopicError("it is behind") for t in found}

    monkeypatch.setattr(source_module, "UNKNOWN_S", 1.0)
    monkeypatch.setattr(MemoryLog, "topic_infos", forget)
    assert query.repeat() == [0, 1, 2, 3, 4]


def test_a_checkpoint_of_another_query(logtx_memory_cluster: Cluster) -> None:
    cluster = logtx_memory_cluster
    mine, others, more = (cluster.topic(1) for _ in range(3))
    query = Query(cluster, others, startingOffsets="earliest")
    put(cluster, others, range(3))
    query.trigger()
    kafka = {"kafka.bootstrap.servers": cluster.bootstrap_servers}
    query.options = SourceOptions.parse({**kafka, "subscribe": f"{others},{more}"})
    query.restart()
    assert query.trigger() == []
    query.options = SourceOptions.parse({**kafka, "subscribe": mine})
    query.restart()
    with pytest.raises(ConfigError, match="is of another query, give this one a checkpointLocat"):
        query.trigger()


def test_a_topic_that_may_not_be_read(
    logtx_memory_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logtx_memory_cluster.log
    info = replace(
        log.topic_info(logtx_memory_cluster.topic(1)), operations=frozenset({"DESCRIBE"})
    )
    monkeypatch.setattr(log, "topic_infos", lambda *_: {info.topic: info})
    with pytest.raises(LogtxError, match=r"may not READ topic .* kafka-acls\.sh .*Read"):
        Planner(log, options(subscribe=info.topic)).latest()


def test_a_partition_that_came_after_the_start_is_read(logtx_memory_cluster: Cluster) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(2)
    with cluster.producer() as producer:
        for partition in (0, 1):
            producer.produce(topic, b"x", partition=partition)
    places = json.dumps(to_offsets(SourceOffset({(topic, 0): Spot(0)})))
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    reader = BatchSource(SourceOptions.parse({**given, "startingPlaces": places}))
    found = [part.range for part in reader.partitions() if isinstance(part, Part)]
    assert [(each.partition, each.start.o2, each.end) for each in found] == [(0, 0, 1), (1, 0, 1)]


# ---- how much at a time -------------------------------------------------------------------------


@dataclass
class ReadMaxRows:
    """As PySpark's own."""

    max_rows: int


@dataclass
class ReadAllAvailable:
    """As PySpark's own."""


class AdmittedQuery(Query):
    """A query whose engine says where reading stands and what the limit is."""

    def trigger(self) -> list[int]:
        """Runs the next micro-batch. Returns what it reads."""
        start = self.ends[-1] if self.ends else self.initial
        limit = self.source.getDefaultReadLimit()
        end = json.dumps(self.source.latestOffset(json.loads(start), limit))
        if end == start:
            return []
        self.ends.append(end)
        return self._read(start, end)

    def resume(self) -> None:
        """Goes on behind the last micro-batch. Spark does not ask for partitions then."""
        self.restart()


@pytest.fixture(params=[Query, AdmittedQuery], ids=["before 4.2", "from 4.2 on"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """How the engine asks."""
    limits = {"ReadMaxRows": ReadMaxRows, "ReadAllAvailable": ReadAllAvailable}
    monkeypatch.setattr(source_module, "find", lambda _home, name: limits[name])
    return request.param


@pytest.mark.parametrize("option", ["maxRecordsPerTrigger", "maxOffsetsPerTrigger"])
def test_a_limit(logtx_memory_cluster: Cluster, kind: Any, option: str) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    query = kind(cluster, topic, startingOffsets="earliest", **{option: "4"})
    for number in range(6):
        put(cluster, topic, range(number, number + 1))
    assert query.trigger() == [0, 1]
    assert query.trigger() == [2, 3]
    query.restart()
    assert query.trigger() == [4, 5]
    assert query.trigger() == []


def test_a_first_micro_batch_is_repeated_as_it_was(
    logtx_memory_cluster: Cluster, kind: Any
) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    query = kind(cluster, topic)
    assert query.trigger() == []
    put(cluster, topic, range(5))
    assert query.trigger() == [0, 1, 2, 3, 4]
    put(cluster, topic, range(5, 10))
    query.restart()
    assert query.repeat() == [0, 1, 2, 3, 4]
    assert query.trigger() == [5, 6, 7, 8, 9]


def test_small_micro_batches_wait(logtx_memory_cluster: Cluster, kind: Any) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    limits = {"minOffsetsPerTrigger": "6", "maxTriggerDelay": "30s"}
    query = kind(cluster, topic, startingOffsets="earliest", **limits)
    now_s = 1_000.0
    query.source._clock = lambda: now_s
    put(cluster, topic, range(1))
    assert query.trigger() == [0], "the first does not wait"
    put(cluster, topic, range(1, 3))
    assert query.trigger() == []
    put(cluster, topic, range(3, 5))
    assert query.trigger() == [1, 2, 3, 4]
    put(cluster, topic, range(5, 6))
    assert query.trigger() == []
    now_s += 30
    assert query.trigger() == [5]


@pytest.mark.parametrize("kind", [AdmittedQuery], indirect=True)
def test_everything_that_was_there(logtx_memory_cluster: Cluster, kind: Any) -> None:
    """Trigger.AvailableNow, as Spark has it from 4.2 on: a limit, and an end."""
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    limits = {"maxOffsetsPerTrigger": "4", "minOffsetsPerTrigger": "4"}
    query = kind(cluster, topic, startingOffsets="earliest", **limits)
    for number in range(5):
        put(cluster, topic, range(number, number + 1))
    query.source.prepareForTriggerAvailableNow()
    put(cluster, topic, range(5, 9))
    assert [query.trigger() for _ in range(4)] == [[0, 1], [2, 3], [4], []]
    latest = from_offsets(query.source.reportLatestOffset()).places
    assert latest[topic, 0].o2 == cluster.log.end_offset(topic, 0)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"endingOffsets": '{"T": {"0": 999}}'}, "endingOffsets names offset 999 of T.0., which"),
        ({"startingOffsets": '{"T": {"0": 7}}'}, "startingOffsets names offset 7 of T.0., which"),
        ({"startingOffsets": '{"T": {"0": -7}}'}, "startingOffsets names offset -7 of T.0., which"),
        ({"endingIov": "ahead"}, "endingIov names offset 7 of T.0., which"),
    ],
)
def test_offsets_outside_of_the_log_are_refused_at_planning(
    logtx_memory_cluster: Cluster, given: dict[str, str], sentence: str
) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    put(cluster, topic, range(5))
    with cluster.producer() as producer, producer.begin_transaction() as txn:
        txn.send_offsets("ahead", [OffsetStep(topic, 0, None, Position.at(7))])
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    named = {name: text.replace("T", topic) for name, text in given.items()}
    source = BatchSource(SourceOptions.parse({**servers, **named}))
    with pytest.raises(ConfigError, match=sentence.replace("T", topic) + " ends at 6: .*give"):
        source.partitions()


def test_offsets_up_to_the_end_are_read(logtx_memory_cluster: Cluster) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    put(cluster, topic, range(5))
    servers = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    for end in (6, -1):
        named = {**servers, "endingOffsets": json.dumps({topic: {"0": end}})}
        [part] = BatchSource(SourceOptions.parse(named)).partitions()
        assert isinstance(part, Part)
        assert (part.range.start.o2, part.range.end) == (0, 6)


def test_limits_of_micro_batches_are_ignored_in_a_batch_as_kafkas_source_does(
    logtx_memory_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster, topic = logtx_memory_cluster, logtx_memory_cluster.topic(1)
    put(cluster, topic, range(5))
    given = {"kafka.bootstrap.servers": cluster.bootstrap_servers, "subscribe": topic}
    BatchSource(SourceOptions.parse(given))
    assert "option_ignored" not in caplog.text
    limits = {"maxOffsetsPerTrigger": "3", "minOffsetsPerTrigger": "2", "maxTriggerDelay": "1s"}
    [part] = BatchSource(SourceOptions.parse({**given, **limits})).partitions()
    assert isinstance(part, Part)
    assert part.range.end == 6
    told = [r.getMessage() for r in caplog.records if "option_ignored" in r.getMessage()]
    assert len(told) == len(limits)
    for name, text in zip(limits, told, strict=True):
        assert name in text
