"""The demo's processes, their reports, the publisher, and the cluster it runs on."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from logtx.coordinator.protocol.checkpoint import Checkpoint
from logtx.integration.demo.cluster import Cluster, Names, StallWatch, create_topics, journal_ends
from logtx.integration.demo.errors import DemoError
from logtx.integration.demo.journal_view import JournalTail, JournalView
from logtx.integration.demo.publisher import Publisher
from logtx.integration.demo.reports import percentile, read_commit_ms, read_status, write_status
from logtx.integration.local.errors import ProcessDiedError
from logtx.integration.local.processes import Child
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.reader import (
    COORDINATORS_GROUP,
    JOURNAL_TOPIC,
    RecordsTrimmedError,
    journal_partition_of,
)

# ---- processes, reports, publishing -------------------------------------------------------------


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Child]:
    child = Child(
        "sleeper", tmp_path / "log", ["timeit", "-n1", "-r1", "import time; time.sleep(60)"]
    )
    yield child
    child.kill()


def test_a_child_is_paused_resumed_killed_and_started_again(sleeper: Child) -> None:
    sleeper.start()
    first = sleeper.pid
    sleeper.pause()
    sleeper.check()
    sleeper.resume()
    sleeper.kill()
    assert not sleeper.is_running
    sleeper.start()
    assert sleeper.pid != first
    assert sleeper.starts == 2
    sleeper.pause()
    sleeper.ask_to_stop()  # reaches a paused one too
    assert not sleeper.await_end(10)  # it ended, but not by itself with status 0
    assert not sleeper.is_running


BUSY = """
import threading
def spin():
    while True:
        pass
for _ in range(8):
    threading.Thread(target=spin).start()
"""


def test_a_paused_child_has_stopped_with_all_its_threads(tmp_path: Path) -> None:
    """A SIGSTOP is taken by one thread, later on a busy machine; the others work until then."""
    child = Child("busy child", tmp_path / "log", ["timeit", "-n1", "-r1", BUSY])
    child.start()
    try:
        threads = Path(f"/proc/{child.pid}/task")
        deadline_s = time.monotonic() + 30
        while len(list(threads.iterdir())) < 8 and time.monotonic() < deadline_s:
            time.sleep(0.02)
        for _ in range(30):
            child.pause()
            states = {each.joinpath("stat").read_text().split()[2] for each in threads.iterdir()}
            assert states == {"T"}
            child.resume()
    finally:
        child.kill()


def test_a_zombie_is_left_behind_beside_its_successor(sleeper: Child) -> None:
    sleeper.start()
    sleeper.pause()
    zombie = sleeper.leave_behind()
    try:
        sleeper.start()
        assert zombie.is_running
        assert zombie.pid != sleeper.pid
        assert zombie.exit_status is None
        assert zombie.name == "zombie 1 of sleeper"
        sleeper.kill()
        zombie.resume()
        assert zombie.is_running
    finally:
        zombie.kill()
    assert not zombie.is_running


def test_a_child_that_died_says_its_last_words(tmp_path: Path) -> None:
    child = Child("talker", tmp_path / "log", ["no_such_module_anywhere"])
    child.start()
    assert child._process is not None
    child._process.wait(10)
    with pytest.raises(ProcessDiedError, match=r"talker ended by itself \(exit status 1\)") as told:
        child.check()
    assert "no_such_module_anywhere" in told.value.details[-1]
    assert child.exit_status == 1


def test_a_report_line_cut_off_by_a_kill_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"commit_ms": 3.5}\n{"commit_ms": 4.5}\n{"comm')
    (tmp_path / "b").write_text('{"commit_ms": 1.0}\n')
    assert read_commit_ms([tmp_path / "a", tmp_path / "b"]) == [3.5, 4.5, 1.0]


def test_a_status_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert read_status(path) == {}
    write_status(path, {"entries": 1})
    write_status(path, {"entries": 2})
    assert read_status(path) == {"entries": 2}
    assert list(tmp_path.iterdir()) == [path]


def test_percentiles() -> None:
    values = [float(n) for n in range(100, 0, -1)]
    assert (percentile(values, 50), percentile(values, 99)) == (50.0, 99.0)
    assert percentile([7.0], 99) == 7.0
    assert math.isnan(percentile([], 50))


def test_the_publisher_publishes_what_it_is_allowed(memory_log: MemoryLog) -> None:
    memory_log.create_topic("flights", partitions=4)

    def count() -> int:
        return sum(memory_log.end_offset("flights", number) for number in range(4))

    publisher = Publisher(memory_log, "flights", 500)
    publisher.start()
    publisher.allow(120)
    publisher.allow(100)  # never back
    watch = StallWatch(10)
    while publisher.published < 120:
        assert not watch.stalled(publisher.published)
    publisher.join(0.3)
    assert count() == publisher.published == publisher.allowed == 120
    publisher.allow(10_000)
    publisher.join(10)
    assert count() == publisher.published == publisher.allowed == 500
    assert publisher.failure is None


def test_the_publisher_stops_in_the_middle(memory_log: MemoryLog) -> None:
    memory_log.create_topic("flights", partitions=4)
    publisher = Publisher(memory_log, "flights", 500)
    publisher.allow(10)
    publisher.start()
    publisher.stop()
    assert not publisher.is_alive()


# ---- the cluster --------------------------------------------------------------------------------


def test_a_second_run_has_names_of_its_own(memory_log: MemoryLog) -> None:
    first, second = create_topics(memory_log), create_topics(memory_log)
    assert (first.flights, first.ledger) == ("flights", "airport_ledger")
    assert second.flights == f"flights-{second.run}"
    assert second.ledger == f"airport_ledger-{second.run}"
    assert first.worker_group("default") != second.worker_group("default")
    assert not Names(run="1a").producer_prefix.startswith(Names(run="1").producer_prefix)


@pytest.mark.parametrize("partitions", [1, 2, 3, 8])
def test_workers_keep_as_many_journal_partitions_busy_as_there_are(partitions: int) -> None:
    groups = Names(run="1a").transaction_groups(3, partitions)
    assert len(groups) == 3
    homes = [journal_partition_of(group, partitions) for group in dict.fromkeys(groups)]
    assert len(homes) == len(set(homes)) == min(3, partitions)


def test_a_journal_without_coordinator_is_gone_on_with(memory_log: MemoryLog) -> None:
    assert journal_ends(memory_log) == dict.fromkeys(range(8), 0)
    memory_log.create_topic(JOURNAL_TOPIC, partitions=2)
    producer = memory_log.producer({})
    producer.produce(JOURNAL_TOPIC, b"", partition=1)
    producer.flush(10)
    assert journal_ends(memory_log) == {0: 0, 1: 1}


def test_a_coordinator_of_any_partition_that_listens_is_not_killed(memory_log: MemoryLog) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        owner = Checkpoint(offset=0, epoch=0, address=address).to_group_offset()
        memory_log.commit_group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, 1, owner)
        with pytest.raises(DemoError, match=f"already, at {address}"):
            journal_ends(memory_log)
    assert journal_ends(memory_log) == {0: 0, 1: 0}


def test_a_kafka_of_our_own_that_died_is_noticed() -> None:
    class Dead:
        is_running = False
        log_path = Path("server.log")

        def log_tail(self) -> list[str]:
            return ["the end"]

    dead: Any = Dead()
    with pytest.raises(ProcessDiedError, match="Kafka ended by itself"):
        Cluster({}, Path("f"), dead).check()
    Cluster({}, Path("f")).check()  # one that is not ours


def test_the_tail_says_that_the_journal_ends_early(memory_log: MemoryLog) -> None:
    memory_log.create_topic(JOURNAL_TOPIC, partitions=1)
    tail = JournalTail(memory_log, {0: 5}, JournalView())
    with pytest.raises(RecordsTrimmedError, match="-0 has no offset 5"):
        tail.read_until(lambda: False, timeout_s=5)
    tail.close()


def test_a_stall_is_what_does_not_move() -> None:
    watch = StallWatch(0.05)
    assert not watch.stalled(1)
    while not watch.stalled(1):
        pass
    assert not watch.stalled(2)
