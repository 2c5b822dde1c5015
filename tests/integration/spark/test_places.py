"""Topics in metadata mode: the planner follows homes, and each range carries what is placed in it.

What is read is compared with a naive merge of the partition's log and the home's journal.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from logtx.consumer.range_reader import places as places_module
from logtx.consumer.range_reader import reading
from logtx.consumer.range_reader.due import PlacedDue, Reach, settled
from logtx.consumer.range_reader.errors import DataLossError, SwitchedError
from logtx.consumer.range_reader.reading import RangeReader
from logtx.consumer.range_reader.spot import Spot
from logtx.integration.spark import source
from logtx.integration.spark.planning import Planner, SourceOptions
from logtx.integration.spark.source import BatchSource, Part
from logtx.integration.spark.vector import from_offsets, steps_between
from logtx.journal.control import BranchRange
from logtx.journal.errors import RequestTimedOutError
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.modes import Phase
from logtx.journal.position import Passed, Place
from logtx.journal.reader import JOURNAL_TOPIC
from logtx.journal.txid import TxId

from ...consumer.logs import Transactions
from ...consumer.places import HOME, Places, expected
from .test_data_loss import Query

Values = list[bytes | None]


class OneLog:
    """A log in memory, where a cluster is asked for."""

    def __init__(self, log: MemoryLog) -> None:
        self.log = log
        self.bootstrap_servers = log.bootstrap_servers


class Reading(Query):
    """A streaming query that keeps its records in the order of its tasks."""

    def __init__(self, log: MemoryLog, topic: str | None = "t", **options: str) -> None:
        self.values: Values = []
        self.batches: list[Values] = []
        super().__init__(OneLog(log), topic, **options)  # type: ignore[arg-type]

    def _read(self, start: str, end: str) -> Any:
        parts = self.source.partitions(json.loads(start), json.loads(end))
        self.batches.append(read(self.log, parts))
        self.values += self.batches[-1]
        return self.batches[-1]

    def on(self) -> Values:
        """Runs micro-batches until there is nothing more. Returns all that was read so far."""
        planned = -1
        while len(self.ends) > planned:
            planned = len(self.ends)
            self.trigger()
        return self.values

    def stands(self) -> Spot:
        return from_offsets(json.loads(self.ends[-1])).places["t", 0]


def read(log: Any, parts: Any) -> Values:
    found: Values = []
    for part in parts:
        assert isinstance(part, Part)
        reader = RangeReader(part.read, part.range, log)
        found += [r.value() for share in reader.shares() for r in share.records]
        reader.close()
    return found


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    memory_log.create_topic("t", partitions=1)
    return memory_log


@pytest.fixture
def written(log: MemoryLog) -> Transactions:
    transactions = Transactions(log)
    transactions.with_journal()
    return transactions


@pytest.fixture
def places(written: Transactions) -> Places:
    return Places(written, "t")


def batch(log: MemoryLog, **options: str) -> Values:
    named = {"kafka.bootstrap.servers": log.bootstrap_servers, "subscribe": "t", **options}
    return read(log, BatchSource(SourceOptions.parse(named)).partitions())


def plain(places: Places, *values: bytes) -> None:
    places.written.append("t", values)


def some_of_everything(places: Places) -> Iterator[None]:
    """Writes plain records, transactions by markers and by places, late data, one aborted, two at
    one place, and one that stays open. Stops in between."""
    written = places.written
    written.transaction("t", [b"m1", b"m2"])
    plain(places, b"p1")
    hanging = written.begin()
    written.write(hanging, "t", [b"never"])
    yield
    places.switch(Phase.METADATA)
    yield
    plain(places, b"p2")
    first, second, third = written.begin(), written.begin(), written.begin()
    written.write(first, "t", [b"a1", b"a2"])
    written.write(second, "t", [b"b1"])
    written.write(third, "t", [b"c1", b"c2", b"c3"])
    yield
    plain(places, b"p3")
    places.decide(second)
    places.decide(third)
    places.place()
    yield
    plain(places, b"p4")
    written.write(second, "t", [b"late"], accepted=False)
    written.decide(first, commit=False)
    places.transaction([b"d1", b"d2"])
    yield
    plain(places, b"p5")
    places.transaction([b"e1"])
    yield
    places.switch(Phase.MARKERS)
    written.transaction("t", [b"m3"])
    yield
    plain(places, b"p6")
    places.switch(Phase.METADATA)
    places.transaction([b"f1"])


def all_of(steps: Iterator[None]) -> None:
    for _ in steps:
        pass


# ---- batches ------------------------------------------------------------------------------------


def test_a_batch_over_all_modes(places: Places, log: MemoryLog) -> None:
    all_of(some_of_everything(places))
    wanted = expected(log, "t")
    assert b"f1" in wanted
    assert b"m3" in wanted
    assert batch(log) == wanted


@pytest.mark.parametrize("tasks", [2, 3, 7, 50])
def test_tasks_share_a_range(places: Places, log: MemoryLog, tasks: int) -> None:
    all_of(some_of_everything(places))
    assert batch(log, minPartitions=str(tasks)) == expected(log, "t")


def test_batches_at_offsets_that_options_name_join(places: Places, log: MemoryLog) -> None:
    all_of(some_of_everything(places))
    end = log.end_offset("t", 0)
    for cut in range(end + 1):
        at = json.dumps({"t": {"0": cut}})
        first = batch(log, endingOffsets=at)
        assert first + batch(log, startingOffsets=at) == expected(log, "t"), cut


def test_a_batch_of_commits(places: Places, log: MemoryLog) -> None:
    all_of(some_of_everything(places))
    sequences = sorted(places.written.sequences.values())
    named = {"startingCommitSequence": str(sequences[2]), "transaction.group": "g"}
    found = batch(log, **named, endingCommitSequence=str(sequences[4]))
    assert found == [b"c1", b"c2", b"c3", b"d1", b"d2"]


def test_a_batch_waits_for_what_is_decided(
    places: Places, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logtx.integration.spark.planning.PLACE_S", 0.2)
    places.switch(Phase.METADATA)
    txid = places.written.begin()
    places.written.write(txid, "t", [b"a"])
    sequence = places.decide(txid)
    with pytest.raises(RequestTimedOutError, match=rf"commit {sequence}\): is a coordinator"):
        batch(log)
    places.place()
    assert batch(log) == [b"a"]


# ---- streams ------------------------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("limit", [None, 1, 3])
def test_a_query_that_runs_while_all_of_it_happens(
    places: Places, log: MemoryLog, restarts: bool, limit: int | None
) -> None:
    limits = {} if limit is None else {"maxRecordsPerTrigger": str(limit)}
    query = Reading(log, startingOffsets="earliest", **limits)
    for _ in some_of_everything(places):
        query.on()
        assert query.values == expected(log, "t")
        if restarts:
            query.restart()
    assert query.on() == expected(log, "t")


def test_a_query_whose_first_offset_is_the_end(places: Places, log: MemoryLog) -> None:
    steps = some_of_everything(places)
    for _ in range(3):
        next(steps)
    start = log.end_offset("t", 0)
    query = Reading(log)
    for _ in steps:
        query.on()
        query.restart()
    assert query.on() == expected(log, "t", start=start)
    assert query.values[0] == b"p3"


def test_each_micro_batch_is_repeated_with_the_same(places: Places, log: MemoryLog) -> None:
    query = Reading(log, startingOffsets="earliest", maxRecordsPerTrigger="2")
    for _ in some_of_everything(places):
        if query.ends:
            before = query.batches[-1]
            query.restart()
            assert query.repeat() == before
        planned = -1
        while len(query.ends) > planned:
            planned = len(query.ends)
            query.trigger()
            # Another driver knows the checkpoint alone; more has been written since, or not.
            again = query.batches[-1]
            query.restart()
            assert query.repeat() == again
    assert len(query.ends) > 10


def sealed(places: Places) -> list[Any]:
    """Transactions in a partition that then takes no more writes."""
    places.switch(Phase.METADATA)
    txids = [places.written.begin() for _ in range(3)]
    for number, txid in enumerate(txids):
        places.written.write(txid, "t", [b"%d" % number] * 2)
    return txids


@pytest.mark.parametrize(
    "options", [{}, {"maxRecordsPerTrigger": "1"}, {"minOffsetsPerTrigger": "1"}]
)
def test_commits_in_a_sealed_partition_are_micro_batches(
    places: Places, log: MemoryLog, options: dict[str, str]
) -> None:
    txids = sealed(places)
    query = Reading(log, startingOffsets="earliest", **options)
    query.on()
    assert query.values == []
    end = log.end_offset("t", 0)
    for number, txid in enumerate(txids):
        places.decide(txid)
        places.place()
        assert query.trigger() == [b"%d" % number] * 2
        assert query.stands().o2 == end
        assert query.trigger() == [], "nothing comes twice"
        query.restart()
    assert log.end_offset("t", 0) == end


def test_the_smallest_number_of_offsets_counts_places_like_markers(
    places: Places, log: MemoryLog
) -> None:
    txids = sealed(places)
    query = Reading(log, startingOffsets="earliest")
    query.on()
    query.options = SourceOptions.parse(
        {
            "kafka.bootstrap.servers": log.bootstrap_servers,
            "subscribe": "t",
            "minOffsetsPerTrigger": "2",
        }
    )
    query.restart()
    query.source._planned_s = query.source._clock()
    places.decide(txids[0])
    places.place()
    assert query.trigger() == []
    places.decide(txids[1])
    places.place()
    assert query.trigger() == [b"0", b"0", b"1", b"1"]


def test_what_is_not_placed_holds_its_own_partition_back(
    log: MemoryLog, written: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.create_topic("two", partitions=2)
    mine = Places(written, "two", partitions=2)
    monkeypatch.setattr(source, "WAIT_S", 0.2)
    mine.switch(Phase.METADATA)
    query = Reading(log, "two", startingOffsets="earliest")
    waits, goes = written.begin(), written.begin()
    written.write(waits, "two", [b"waits"], 0)
    written.append("two", [b"behind"])
    written.write(goes, "two", [b"goes"], 1)
    mine.decide(waits)
    mine.decide(goes)
    mine.place(1)
    assert query.trigger() == [b"goes"]
    assert query.trigger() == []
    mine.place(0)
    assert query.trigger() == [b"behind", b"waits"]


def test_a_group_of_a_sealed_partition_goes_on_by_sequence(places: Places, log: MemoryLog) -> None:
    txids = sealed(places)
    start, known = {("t", 0): Spot(0)}, Spot(log.end_offset("t", 0))
    named = {"kafka.bootstrap.servers": log.bootstrap_servers, "subscribe": "t"}
    planner = Planner(log, SourceOptions.parse(named))
    places.decide(txids[0])
    places.place()
    first = planner.settled_end(start)
    sequence = places.written.sequences[txids[0]]
    assert first == {("t", 0): Spot(known.o2, passed=Passed(HOME, sequence))}
    places.decide(txids[1])
    places.place()
    second = planner.settled_end(first)
    (step,) = steps_between(first, second)
    assert step.from_place == Place(known.o2, 0, Passed(HOME, sequence))
    assert step.to.passed == Passed(HOME, places.written.sequences[txids[1]])
    assert steps_between(second, planner.settled_end(second)) == []
    planner.close()


def test_it_begins_within_a_placed_transaction(places: Places, log: MemoryLog) -> None:
    txids = sealed(places)
    for txid in txids[:2]:
        places.decide(txid)
    places.place()
    named = {"kafka.bootstrap.servers": log.bootstrap_servers, "subscribe": "t"}
    options = SourceOptions.parse(named)
    planner = Planner(log, options)
    before = places.written.sequences[txids[0]] - 1
    end = log.end_offset("t", 0)
    start = {("t", 0): Spot(end, passed=Passed(HOME, before, 1))}
    stop = planner.settled_end(start)
    ranges = planner.ranges(start, {("t", 0): end}, planner.placed(start, stop))
    planner.close()
    parts = [Part(each, options.read, False) for each in ranges]
    assert read(log, parts) == [b"0", b"1", b"1"]


# ---- switches that are not published yet -------------------------------------------------------


def unpublished(places: Places) -> dict[int, int]:
    plain(places, b"p1")
    since = places.switch(Phase.METADATA, publish=False)
    txid = places.written.begin()
    places.written.write(txid, "t", [b"a"])
    places.decide(txid)
    places.place()
    plain(places, b"p2")
    return since


def test_a_task_that_comes_to_a_mode_record_waits_until_it_is_published(
    places: Places, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = unpublished(places)
    query = Reading(log, startingOffsets="earliest")
    waits = []

    def sleep(_: float) -> None:
        if not waits:
            places.publish(Phase.METADATA, since)
        waits.append(1)

    monkeypatch.setattr(reading.time, "sleep", sleep)
    assert query.trigger() == [b"p1", b"a", b"p2"]
    assert waits
    monkeypatch.undo()
    places.transaction([b"b"])
    plain(places, b"p3")
    assert query.on() == expected(log, "t")


def test_it_waits_for_a_bounded_time(
    places: Places, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    since = unpublished(places)
    monkeypatch.setattr(reading, "PLACE_S", 0.2)
    query = Reading(log, startingOffsets="earliest")
    with pytest.raises(SwitchedError, match="t is being switched, and its home has not published"):
        query.trigger()
    places.publish(Phase.METADATA, since)
    query.restart()
    query.restart()
    assert query.repeat() == [b"p1", b"a", b"p2"]


def test_tasks_that_do_not_meet_the_mode_record_are_run_again(
    places: Places, log: MemoryLog
) -> None:
    since = unpublished(places)
    query = Reading(log, startingOffsets="earliest", minPartitions="2")
    start, end = json.loads(query.initial), query.source.latestOffset()
    parts = query.source.partitions(start, end)
    places.publish(Phase.METADATA, since)
    with pytest.raises(SwitchedError, match="was switched while this was planned: run the job"):
        read(log, parts)
    query.ends.append(json.dumps(end))
    query.restart()
    assert query.repeat() == [b"p1", b"a", b"p2"]


# ---- large transactions, other readers, what is gone -------------------------------------------


def test_tasks_share_a_large_placed_transaction(
    places: Places, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("planning", "parts"):
        monkeypatch.setattr(f"logtx.integration.spark.{module}.PART_RECORDS", 10)
    places.switch(Phase.METADATA)
    plain(places, b"p1")
    large, small = places.written.begin(), places.written.begin()
    places.written.write(small, "t", [b"s"])
    places.written.write(large, "t", [b"%d" % n for n in range(100)])
    places.decide(large)
    places.decide(small)
    plain(places, b"p2")
    places.place()
    plain(places, b"p3")
    named = {"kafka.bootstrap.servers": log.bootstrap_servers, "subscribe": "t"}
    options = SourceOptions.parse({**named, "minPartitions": "5"})
    found = BatchSource(options).partitions()
    ranges = [part.range for part in found if isinstance(part, Part)]
    shared = [r for r in ranges if r.large is not None]
    assert len(shared) == 5
    wanted = expected(log, "t")
    assert sorted(read(log, found), key=str) == sorted(wanted, key=str)
    # Its records may lie below where reading begins.
    behind = log.end_offset("t", 0) - 2
    at = json.dumps({"t": {"0": behind}})
    later = {**named, "minPartitions": "1", "startingOffsets": at}
    part = BatchSource(SourceOptions.parse({**later, "maxRecordsPerPartition": "30"})).partitions()
    assert len([p for p in part if isinstance(p, Part) and p.range.large is not None]) == 4
    wanted = expected(log, "t", start=behind)
    assert sorted(read(log, part), key=str) == sorted(wanted, key=str)


def test_nothing_is_asked_of_homes_without_commits(
    places: Places, log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_of(some_of_everything(places))
    monkeypatch.setattr(places_module.PlacesAhead, "reach", lambda *_, **__: pytest.fail("asked"))
    found = batch(log, **{"isolation.level": "read_uncommitted"})
    assert b"never" in found
    assert b"late" in found


def test_a_journal_that_was_trimmed_too_far(places: Places, log: MemoryLog) -> None:
    places.switch(Phase.METADATA)
    places.transaction([b"a"])
    query = Reading(log, startingOffsets="earliest")
    log.delete_records(JOURNAL_TOPIC, 0, log.end_offset(JOURNAL_TOPIC, 0))

    def trigger_for_a_while() -> None:
        # A first look might be at a journal of the past.
        until_s = time.monotonic() + 30
        while time.monotonic() < until_s:
            query.trigger()

    with pytest.raises(DataLossError, match="was trimmed"):
        trigger_for_a_while()


def test_an_end_moves_no_further_than_what_is_known() -> None:
    key, home = ("t", 0), (0, 1)

    def due(place: int, sequence: int) -> PlacedDue:
        from logtx.consumer.core.home_view import Due

        return PlacedDue(place, Due(sequence - 1, sequence, (BranchRange(0, 1, 1, 1),)))

    start, end = {key: Spot(5)}, {key: Spot(9)}
    reach = Reach(home, 7, 3, (due(5, 10), due(7, 12), due(8, 14)))
    assert settled({key: reach}, start, end) == {key: Spot(7, passed=Passed(home, 12))}
    assert settled({key: reach}, start, {key: Spot(5)}) == {key: Spot(5, passed=Passed(home, 10))}
    assert settled({key: Reach(home, 7, 3, ())}, start, {key: Spot(5)}) == start
    dues = reach.until(Spot(8)).dues
    assert [each.due.sequence for each in dues] == [10, 12]
    assert reach.until(Spot(8, passed=Passed(home, 14))).dues == reach.dues


def test_each_part_carries_what_is_placed_in_it(places: Places, log: MemoryLog) -> None:
    places.switch(Phase.METADATA)
    for number in range(4):
        places.transaction([b"%d" % number] * 3)
    named = {"kafka.bootstrap.servers": log.bootstrap_servers, "subscribe": "t"}
    options = SourceOptions.parse({**named, "maxRecordsPerPartition": "5"})
    ranges = [p.range for p in BatchSource(options).partitions() if isinstance(p, Part)]
    # A mode record, and transactions of three records that are placed behind themselves.
    assert [(r.start.o2, r.end) for r in ranges] == [(0, 5), (5, 10), (10, 13)]
    assert [[d.place for d in r.places.dues] for r in ranges if r.places] == [[4], [7, 10], [13]]


# ---- random histories ---------------------------------------------------------------------------


class Story:
    """Does one random thing after another, and knows when something is decided and not placed."""

    def __init__(self, places: Places, seed: int, topics: Sequence[str] = ("t",)) -> None:
        """Transactions write to the topics: "t", and its sidecar."""
        self.places, self.chance, self.topics = places, random.Random(seed), topics
        self.open: list[TxId] = []
        self.waiting = 0
        self.in_metadata = False
        self.numbers = itertools.count()

    def value(self) -> bytes:
        return b"%d" % next(self.numbers)

    def step(self) -> None:
        places, written, chance = self.places, self.places.written, self.chance
        kind = chance.choice(["plain", "begin", "write", "write", "end", "end", "place", "switch"])
        if kind == "plain":
            plain(places, self.value())
        elif kind == "begin":
            self.open.append(written.begin())
        elif kind == "write" and self.open:
            topic = chance.choice(self.topics) if len(self.topics) > 1 else "t"
            written.write(chance.choice(self.open), topic, [self.value(), self.value()])
        elif kind == "end" and self.open:
            txid = self.open.pop(chance.randrange(len(self.open)))
            if chance.random() < 0.25:
                written.decide(txid, commit=False)
                if not self.in_metadata:
                    written.mark(txid, "t", commit=False)
            elif self.in_metadata:
                places.decide(txid)
                self.waiting += 1
            elif any(written.ranges(txid, topic, 0) for topic in self.topics):
                written.decide(txid)
                written.mark(txid, "t")
        elif kind == "place" and self.waiting:
            self.place()
        elif kind == "switch" and chance.random() < 0.3:
            self.place()
            self.in_metadata = not self.in_metadata
            places.switch(Phase.METADATA if self.in_metadata else Phase.MARKERS)

    def place(self) -> None:
        if self.waiting:
            self.places.place()
            self.waiting = 0


def follow(story: Story, log: MemoryLog, chance: random.Random) -> None:
    """Lets a query read along with a story, and a batch at its end: each must get all of it."""
    limit = chance.choice([{}, {"maxRecordsPerTrigger": str(chance.randint(1, 9))}])
    query = Reading(log, startingOffsets="earliest", **limit)
    for _ in range(80):
        story.step()
        if chance.random() < 0.2 and not story.waiting:
            query.on()
            assert query.values == expected(log, "t")
        if chance.random() < 0.1:
            query.restart()
    story.place()
    wanted = expected(log, "t")
    assert query.on() == wanted
    assert batch(log, minPartitions=str(chance.randint(1, 9))) == wanted


@pytest.mark.parametrize("seed", range(40))
def test_random_histories(places: Places, log: MemoryLog, seed: int) -> None:
    follow(Story(places, seed), log, random.Random(-seed))
