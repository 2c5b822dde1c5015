"""The benchmark of queues: its counts, its rows, its sides on a log in memory and on a broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import logtx
from logtx.benchmarks.document import headlines
from logtx.benchmarks.model import Context
from logtx.benchmarks.queue import __main__ as command
from logtx.benchmarks.queue import acks, block_worker, blocks, crew
from logtx.benchmarks.queue.backlog import PARTITIONS, SIZE, fill_transactions
from logtx.benchmarks.queue.crew import Worked, rate_of
from logtx.benchmarks.queue.million import Kills, Outcome, Plan
from logtx.benchmarks.queue.parts import COMPARED
from logtx.benchmarks.queue.queues import open_queue
from logtx.benchmarks.queue.redelivery import Redelivered
from logtx.benchmarks.queue.tally import Tally
from logtx.benchmarks.spill.payload import Payload, number_of
from logtx.coordinator.client.admin import AdminQueries
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig
from logtx.journal.logs.memory.log import MemoryLog

TIMEOUT_S = 20.0
COUNT = 1_000


# ---- counts and rows ----------------------------------------------------------------------------


def test_outputs_are_counted_by_message() -> None:
    tally = Tally(4)
    for number in (0, 2, 2, 2, 4, -1, 3):
        tally.add(number)
    assert (tally.worked_off, tally.lost, tally.doubled, tally.strange) == (3, 1, 2, 2)


@pytest.mark.parametrize("step", [1, 7, 100])
def test_kills_are_spread_over_the_messages(step: int) -> None:
    plan = Plan(messages=1_000, workers=3, kills=4)
    kills, at = Kills(plan), []
    for worked_off in range(0, 1_001, step):
        while (worker := kills.due(worked_off)) is not None:
            assert 0 <= worker < plan.workers
            at.append(worked_off)
    assert kills.done == len(at) == plan.kills
    assert all(200 * n <= each < 200 * n + step for n, each in enumerate(at, 1))


def test_a_rate_is_of_all_workers_from_the_first_begin_to_the_last_end() -> None:
    found = [Worked(300, 10**9, 3 * 10**9), Worked(100, 2 * 10**9, 5 * 10**9)]
    assert rate_of(found) == 100.0


@pytest.mark.parametrize(
    ("times_ms", "goal_ms", "cells"),
    [
        ([1_000, 1_500, 1_100], 1_500, ["3", "1,100", "1,500", "≤ 1,500, met"]),
        ([1_000, 1_501, 1_100], 1_500, ["3", "1,100", "1,501", "≤ 1,500, **missed**"]),
        ([30_000], None, ["1", "30k", "30k", ""]),
    ],
)
def test_the_longest_redelivery_has_a_goal(
    times_ms: list[float], goal_ms: float | None, cells: list[str]
) -> None:
    row = command.redelivery_row(Redelivered("polled", goal_ms, times_ms))
    assert row == ["polled", *cells]


def outcome(**changed: Any) -> Outcome:
    found = {"kills": 20, "seconds": 50.0, "lost": 0, "doubled": 0, **changed}
    return Outcome(plan=Plan(messages=1_000_000), **found)


@pytest.mark.parametrize(
    ("changed", "missed"),
    [({}, []), ({"lost": 1}, ["lost"]), ({"doubled": 2}, ["doubled"])],
)
def test_nothing_may_be_lost_or_doubled(changed: dict[str, int], missed: list[str]) -> None:
    found = outcome(**changed)
    shown = [row[0] for row in command.million_rows(found) if "missed" in row[-1]]
    assert [row.partition(":")[0] for row in shown] == missed
    assert found.holds is (not missed)


def test_goals_join_the_table() -> None:
    spread = {"median": 2.0, "least": 1.0, "most": 3.0}
    line = {
        "title": "plain acknowledgements",
        "unit": "messages/s",
        "better": "higher",
        "kafka": spread,
        "logtx": spread,
        "ratio": spread,
        "target": 0.6,
        "met": True,
    }
    killed = [Redelivered("polled", 1_500, [1_000.0])]
    tables = command._tables(command.Found([{"lines": [line]}], killed, outcome()))
    assert all(len(row) == len(table["columns"]) for table in tables for row in table["rows"])
    assert tables[-1]["columns"][0] == "1,000,000 messages, 4 workers, 20 kills"
    lines = {row[0]: row[1:] for row in headlines({"title": "Queues", "tables": tables})}
    assert lines == {
        "Queues: plain acknowledgements": (
            *("messages/s", "", "2.00 (1.00 to 3.00)"),
            *("≥ 0.6", "met"),
        ),
        "Queues: polled": ("worst ms", "1,000", "", "≤ 1,500", "met"),
        "Queues: lost: messages without an output": ("", "0", "", "0", "met"),
        "Queues: doubled: outputs too many": ("", "0", "", "0", "met"),
    }


def test_a_part_compares_what_it_measures() -> None:
    for scenario in (each for part in COMPARED.values() for each in part()):
        for each in scenario.comparisons:
            assert {each.kafka, each.logtx} <= scenario.sides.keys()
            assert (each.note is None) == (each.unit is None), "a unit is of a note"


def test_a_part_run_writes_no_document() -> None:
    app = typer.Typer()
    app.command()(command.queue)
    for arguments in (["--part", "acks"], ["--scale", "0.1"], ["--messages", "1000"]):
        result = CliRunner().invoke(app, [*arguments, "--write-docs"])
        assert result.exit_code == 2
    assert CliRunner().invoke(app, ["--part", "nothing"]).exit_code == 2


def test_the_method_names_what_is_measured() -> None:
    method = command._method(5, Plan(kills=7))
    assert "while 7 times one" in method
    assert "{" not in method


# ---- sides on a log in memory -------------------------------------------------------------------


@pytest.fixture
def context(memory_log: MemoryLog) -> Iterator[Context]:
    """A log with a coordinator."""
    config = CoordinatorConfig(
        bootstrap_servers=memory_log.bootstrap_servers, listen="127.0.0.1:0", journal_partitions=1
    )
    with EmbeddedCoordinator(config):
        yield Context(bootstrap_servers=memory_log.bootstrap_servers)


def fill(memory_log: MemoryLog, topic: str, count: int) -> None:
    """Writes plain messages: `fill_plain` needs a broker."""
    memory_log.create_topic(topic, partitions=PARTITIONS)
    payload, producer = Payload(SIZE, count), memory_log.producer({})
    for number in range(count):
        producer.produce(topic, payload.value(number), None, number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def depth_of(memory_log: MemoryLog, group: str) -> int:
    """The offsets that a subscription has not acknowledged."""
    queries = AdminQueries(memory_log, timeout_s=TIMEOUT_S)
    try:
        partitions = queries.subscription(group)[1].partitions
    finally:
        queries.close()
    assert len(partitions) == PARTITIONS
    return sum(p.depth(memory_log.end_offset(*p.partition.key)) for p in partitions)


@pytest.mark.parametrize("content", acks.CONTENTS)
def test_a_round_acknowledges_all_that_it_counts(
    context: Context, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    monkeypatch.setattr(acks, "total_of", lambda _: COUNT)
    monkeypatch.setattr(acks, "SECONDS", TIMEOUT_S)
    topic = acks.topic_of(content)
    if content == acks.PLAIN:
        fill(memory_log, topic, COUNT)
    else:
        memory_log.create_topic(topic, partitions=PARTITIONS)
        fill_transactions(context.bootstrap_servers, topic, range(COUNT))
    for side in (acks.Committing(context, content), acks.Acknowledging(context, content)):
        side.open()
        sample = side.measure()
        assert 0 < sample.notes["messages"] < COUNT, "the first batch does not count"
        assert sample.value > 0
    assert depth_of(memory_log, f"{side._name}-0") == 0
    # A further round is another subscription, which has everything.
    assert side.measure().notes["messages"] > 0


def test_a_round_ends_with_its_time(
    context: Context, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks, "total_of", lambda _: COUNT)
    monkeypatch.setattr(acks, "SECONDS", 0.0)
    monkeypatch.setattr(acks.Context, "sized", lambda *_: 0.0)
    topic = acks.topic_of(acks.PLAIN)
    fill(memory_log, topic, COUNT)
    side = acks.Acknowledging(context, acks.PLAIN, records=50)
    side.open()
    assert side.measure().notes["messages"] == 0
    assert depth_of(memory_log, f"{side._name}-0") == COUNT - 50


def test_a_backlog_that_is_too_small_is_no_figure(
    context: Context, memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acks, "total_of", lambda _: COUNT + 1)
    monkeypatch.setattr(acks, "SECONDS", TIMEOUT_S)
    monkeypatch.setattr(acks, "CONNECT_TIMEOUT_S", 2.0)
    fill(memory_log, acks.topic_of(acks.PLAIN), COUNT)
    side = acks.Acknowledging(context, acks.PLAIN)
    side.open()
    with pytest.raises(TimeoutError, match="1 of 1001 messages did not come"):
        side.measure()


def read(context: Context, topic: str, count: int) -> list[int]:
    """The numbers of all committed messages of a topic, which are `count` at least."""
    settings = {"group.id": "audit", "bootstrap.servers": context.bootstrap_servers}
    found: list[Any] = []
    with logtx.Consumer({**settings, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(found) < count and time.monotonic() < deadline_s:
            found += consumer.consume(500, 0.2)
        found += consumer.consume(500, 0.3)
    return [number_of(message) for message in found]


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("make", [blocks.OverConsumer, blocks.OverQueue])
def test_a_round_of_blocks_counts_what_it_wrote(
    context: Context,
    memory_log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
    make: Any,
    in_flight: int,
) -> None:
    monkeypatch.setattr(blocks, "total_of", lambda _: COUNT)
    fill(memory_log, blocks.INPUT, COUNT)
    memory_log.create_topic(blocks.OUTPUT, partitions=PARTITIONS)
    side = make(context, in_flight)
    side.open()
    sample = side.measure()
    side.close()
    found = read(context, blocks.OUTPUT, int(sample.notes["messages"]))
    assert len(found) == len(set(found))
    # The first block is written and not counted.
    assert 0 < len(found) - sample.notes["messages"] <= blocks.RECORDS


def test_a_worker_counts_what_is_answered(context: Context, memory_log: MemoryLog) -> None:
    fill(memory_log, crew.topic_of(1), COUNT)
    messages, deadline_s = 0, time.monotonic() + TIMEOUT_S
    with open_queue(context.bootstrap_servers, "crew", crew.topic_of(1)) as queue:
        while messages < COUNT and time.monotonic() < deadline_s:
            worked = crew.work(queue, 0.3)
            messages += worked.messages
            assert worked.ended_ns - worked.began_ns >= 300_000_000
    assert messages == COUNT
    assert depth_of(memory_log, "crew") == 0


def test_a_worker_of_blocks_writes_one_output_for_each_message(
    context: Context, memory_log: MemoryLog
) -> None:
    fill(memory_log, "source", COUNT)
    memory_log.create_topic("output", partitions=PARTITIONS)
    stop = threading.Event()
    servers = context.bootstrap_servers
    worker = threading.Thread(
        target=block_worker.work, args=(servers, "0", "source", "output", stop)
    )
    worker.start()
    try:
        assert sorted(read(context, "output", COUNT)) == list(range(COUNT))
    finally:
        stop.set()
        worker.join(TIMEOUT_S)
    assert not worker.is_alive()


# ---- on a broker --------------------------------------------------------------------------------


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_part_runs() -> None:
    app = typer.Typer()
    app.command()(command.queue)
    small = ["--rounds", "1", "--scale", "0.1", "--times", "1"]
    few = ["--messages", "3000", "--workers", "2", "--kills", "2"]
    result = CliRunner().invoke(app, [*small, *few])
    assert result.exit_code == 0, result.output
    for wanted in (
        "plain acknowledgements",  # The rest may stand in the next line of its cell.
        "blocks of 100",
        "16 workers",
        "Kafka's share",
        "3,000 messages, 2 workers, 2 kills",
    ):
        assert wanted in result.output
