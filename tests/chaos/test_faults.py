"""The effect of each fault that is more than a signal or a connection."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from logtx.chaos import bounded, fleet, previous
from logtx.chaos import brokers as chaos_brokers
from logtx.chaos.bounded import GAVE_UP_STATUS, ends_within
from logtx.chaos.brokers import fill_disk
from logtx.chaos.drain import stop_members
from logtx.chaos.errors import ChaosError
from logtx.chaos.fleet import ChaosCoordinator, Death, Member
from logtx.chaos.options import Metadata, System
from logtx.chaos.plan import Role
from logtx.chaos.previous import launcher_of, unpack
from logtx.chaos.proxy import Proxies
from logtx.chaos.run import _Run
from logtx.chaos.settings import (
    FENCED_STATUS,
    FLEETING_PARTITIONS,
    FLEETING_TOPIC,
    INTERRUPTED_STATUS,
    KEYS_PER_PARTITION,
    partitions_now,
    tell_partitions,
)
from logtx.chaos.topics import PARTITIONS_MAX, Topics
from logtx.chaos.workload import final
from logtx.chaos.workload.logtx_worker import _open_clients, by_hand, by_process
from logtx.chaos.workload.output import BLOCK
from logtx.integration.local.cluster import QUICK_TO_START, LocalKafka
from logtx.integration.local.processes import Child
from logtx.integration.testing import Cluster
from logtx.journal.logs.memory.log import MemoryLog

from ..waiting import eventually
from .test_run_parts import settings

# ---- topics, and a full disk --------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """A broker of this file's own: it is ended by a full disk."""
    directory = tmp_path_factory.mktemp("kafka")
    with LocalKafka(directory, java_options=QUICK_TO_START) as running:
        yield running


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("run")


@pytest.fixture(scope="module")
def topics(kafka: LocalKafka, directory: Path) -> Topics:
    made = Topics(
        kafka.bootstrap_servers,
        directory,
        settings(fleeting_topic=FLEETING_TOPIC, partitions=2),
    )
    made.create()
    return made


def wrote(kafka: LocalKafka, topic: str, partition: int = 0) -> int:
    """The offset of a record that is written now. Raises KafkaException if it is refused."""
    offsets: list[int | None] = []
    errors: list[KafkaError] = []

    def told(error: KafkaError | None, message: Message) -> None:
        offsets.append(message.offset())
        errors.extend([] if error is None else [error])

    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce(topic, b"x", partition=partition, on_delivery=told)
    assert producer.flush(20) == 0
    if errors:
        raise KafkaException(errors[0])
    (offset,) = offsets
    assert offset is not None
    return offset


def partition_count(kafka: LocalKafka, topic: str) -> int:
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    return len(admin.list_topics(topic, timeout=10).topics[topic].partitions)


@pytest.mark.kafka
def test_a_topic_is_deleted_and_made_anew(kafka: LocalKafka, topics: Topics) -> None:
    assert [wrote(kafka, FLEETING_TOPIC) for _ in range(3)] == [0, 1, 2]
    topics.delete()
    topics.make_anew()
    assert wrote(kafka, FLEETING_TOPIC) == 0
    assert partition_count(kafka, FLEETING_TOPIC) == FLEETING_PARTITIONS
    for change in (topics.delete, topics.delete, topics.make_anew, topics.make_anew):
        change()  # an answer may be lost
    assert wrote(kafka, FLEETING_TOPIC) == 0


@pytest.mark.kafka
def test_a_sealed_topic_takes_nothing_and_can_be_read(kafka: LocalKafka, topics: Topics) -> None:
    topic = settings().out_topic
    before = wrote(kafka, topic)
    topics.seal(topic)
    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        wrote(kafka, topic)
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "seal"})
    consumer.assign([TopicPartition(topic, 0, before)])
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"x"
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10)[1] == before + 1
    consumer.close()
    topics.unseal(topic)
    assert wrote(kafka, topic) == before + 1


@pytest.mark.kafka
def test_topics_grow_up_to_a_limit(kafka: LocalKafka, topics: Topics, directory: Path) -> None:
    told = settings(partitions=2)
    assert topics.grow() == 3
    assert partition_count(kafka, told.data_topic) == partition_count(kafka, told.out_topic) == 3
    assert partitions_now(directory, told) == 3
    assert wrote(kafka, told.data_topic, partition=2) == 0
    tell_partitions(directory, PARTITIONS_MAX)
    assert topics.grow() is None
    assert partition_count(kafka, told.data_topic) == 3


@pytest.mark.slow
@pytest.mark.kafka
def test_a_broker_whose_disk_is_full_ends_and_comes_back(kafka: LocalKafka, topics: Topics) -> None:
    del topics
    told = settings()
    broker = kafka.broker(1)
    before, pid = wrote(kafka, told.data_topic), broker.pid
    for _ in range(100):  # so that its files are longer than a full disk allows
        wrote_last = wrote(kafka, told.data_topic)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    producer.produce(told.data_topic, b"one that does not fit")
    assert fill_disk(broker, 30)
    assert not broker.is_running
    broker.start()
    assert broker.pid != pid
    assert producer.flush(30) == 0
    assert wrote(kafka, told.data_topic) > wrote_last > before


def test_a_broker_that_does_not_write_ends_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle:
        def __init__(self) -> None:
            self._process = subprocess.Popen(["/bin/sleep", "60"])
            self.pid = self._process.pid

        @property
        def is_running(self) -> bool:
            return self._process.poll() is None

        def kill(self) -> None:
            self._process.kill()
            self._process.wait()

    monkeypatch.setattr(chaos_brokers, "_POLL_S", 0.01)
    idle: Any = Idle()
    started_s = time.monotonic()
    assert not fill_disk(idle, 0.2)
    assert not idle.is_running
    assert time.monotonic() - started_s < 10


# ---- more partitions ----------------------------------------------------------------------------


def test_keys_stay_where_they_are_when_topics_grow(tmp_path: Path) -> None:
    told = settings()
    assert partitions_now(tmp_path, told) == told.partitions
    before = [told.partition_of(key) for key in range(KEYS_PER_PARTITION * told.partitions)]
    assert sorted(set(before)) == list(range(told.partitions))
    tell_partitions(tmp_path, told.partitions + 2)
    now = partitions_now(tmp_path, told)
    after = [told.partition_of(key) for key in range(KEYS_PER_PARTITION * now)]
    assert after[: len(before)] == before
    assert [after.count(partition) for partition in range(now)] == [KEYS_PER_PARTITION] * now


# ---- Ctrl-C -------------------------------------------------------------------------------------

POLITE = f"""
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit({INTERRUPTED_STATUS}))
print("up", flush=True)
time.sleep(60)
"""
STUBBORN = """
import signal, time
signal.signal(signal.SIGINT, lambda *_: print("no", flush=True))
print("up", flush=True)
time.sleep(60)
"""
HURT = """
import time
print("up", flush=True)
time.sleep(60)
"""


def member(tmp_path: Path, program: str) -> Member:
    (tmp_path / "interrupted_program.py").write_text(program)

    class Runs(Child):
        def _command(self) -> list[str]:
            return ["interrupted_program"]

    made = Member(Role.WORKER, 0, Runs("worker-0", tmp_path / "log", ()))
    made.start()
    until_s = time.monotonic() + 30
    while made.child.last_lines(1) != ["up"] and time.monotonic() < until_s:
        time.sleep(0.02)
    return made


@pytest.mark.parametrize(
    ("program", "status"), [(POLITE, None), (STUBBORN, -1), (HURT, -signal.SIGINT)]
)
def test_who_is_interrupted_ends_cleanly_or_is_found_and_has_a_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, status: int | None
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    interrupted = member(tmp_path, program)
    pid = interrupted.child.pid
    try:
        death = interrupted.interrupt(1.0 if status == -1 else 20.0)
        assert (None if death is None else death.status) == status
        assert death is None or "after SIGINT" in str(death)
        assert interrupted.child.is_running
        assert interrupted.child.pid != pid
        assert interrupted.process_name == "worker-0.1"
        assert interrupted.revive() is None, "its end was asked for"
    finally:
        interrupted.kill()


def test_who_is_fenced_by_the_process_that_it_had_replaced_has_done_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    place = member(tmp_path, HURT)
    run: Any = SimpleNamespace(_options=SimpleNamespace(system=System.LOGTX))

    def died() -> Death:
        found: list[Death] = []

        def is_found() -> bool:
            found.extend(filter(None, [place.revive()]))
            return len(found) > 0

        place.child.signal(signal.SIGTERM)
        eventually(is_found)
        return found[0]

    try:
        zombie = place.replace()
        assert died().has_rival
        zombie.kill()
        assert not died().has_rival
    finally:
        place.kill()
        for each in place.zombies:
            each.kill()
    fenced = Death("worker-0.1", FENCED_STATUS, "")
    assert not _Run._expected(run, fenced)
    assert _Run._expected(run, replace(fenced, has_rival=True))
    assert not _Run._expected(run, replace(fenced, has_rival=True, status=1))


DEAF = """
import faulthandler, signal, time
from logtx.chaos.settings import STACKS_SIGNAL
faulthandler.register(STACKS_SIGNAL)
signal.signal(signal.SIGTERM, lambda *_: None)
def holds_on():
    while True:
        time.sleep(1)
print("up", flush=True)
holds_on()
"""


def test_who_does_not_end_says_where_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    deaf = member(tmp_path, DEAF)
    try:
        assert stop_members([deaf], 0.3, lambda: None) == ["worker-0"]
        assert "in holds_on" in (tmp_path / "log").read_text()
    finally:
        deaf.kill()


class Interrupts:
    """A worker's process that Ctrl-C hits when it writes a certain event for the third time."""

    def __init__(self, cluster: Cluster, event: str) -> None:
        self.settings = settings(bootstrap_servers=cluster.bootstrap_servers)
        self.number = 0
        self.stopping = SimpleNamespace(is_set=lambda: False, wait=lambda _s: None)
        self.recorder = self
        self.random = SimpleNamespace(random=lambda: 1.0)
        self.events: list[str] = []
        self._event = event
        self._count = 0

    def write(self, event: str, **_fields: object) -> None:
        self.events.append(event)
        if event == self._event and self.events.count(event) == 3:
            raise KeyboardInterrupt

    def operation(self) -> str:
        self._count += 1
        return f"o{self._count}"

    def value(self) -> str:
        self._count += 1
        return f"v{self._count}"


@pytest.mark.parametrize("loop", [by_process, by_hand])
@pytest.mark.parametrize("event", ["begin", "append", "commit", "poll"])
def test_an_interrupted_worker_closes_its_clients_and_another_goes_on(
    logtx_memory_cluster: Cluster, loop: Any, event: str
) -> None:
    cluster = logtx_memory_cluster
    told = settings()
    for topic in (told.data_topic, told.out_topic):
        cluster.log.create_topic(topic, partitions=told.partitions)
    total = 12 * BLOCK  # two are hit in their third block, and one has the rest
    with cluster.producer().begin_transaction() as txn:
        for number in range(total):
            body = b'{"k":%d,"v":"p:%d","t":"o"}' % (number % 4, number)
            txn.produce(told.data_topic, body, partition=number % 4)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            loop(Interrupts(cluster, event))
    with pytest.raises(KeyboardInterrupt):
        loop(Idles(cluster))
    out = cluster.consumer(**{"auto.offset.reset": "earliest", "group.id": "out"})
    out.subscribe([told.out_topic])
    until_s, sources = time.monotonic() + 30, []
    while len(sources) < total and time.monotonic() < until_s:
        sources += [bytes(m.value() or b"").partition(b'"i":')[2] for m in out.consume(100, 0.2)]
    assert len(sources) == len(set(sources)) == total


def test_a_worker_goes_back_though_it_is_closed(logtx_memory_cluster: Cluster) -> None:
    # What is left of an interrupted loop is collected behind the end of its clients.
    worker: Any = Interrupts(logtx_memory_cluster, "")
    logtx_memory_cluster.log.create_topic(worker.settings.data_topic, partitions=1)
    consumer, producer = _open_clients(worker)
    consumer.close()
    producer.close()
    consumer.rewind(wait=False)
    assert worker.events == []


IDLE_S = 1.5
"""Time without an event after which nothing more comes."""


class Idles(Interrupts):
    """One that Ctrl-C hits when it is given nothing more."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, "")
        self._until_s = time.monotonic() + IDLE_S
        self.stopping = SimpleNamespace(is_set=self._look, wait=lambda _s: None)

    def write(self, event: str, **fields: object) -> None:
        super().write(event, **fields)
        self._until_s = time.monotonic() + IDLE_S

    def _look(self) -> bool:
        if time.monotonic() > self._until_s:
            raise KeyboardInterrupt
        return False


# ---- addresses ----------------------------------------------------------------------------------


def test_a_coordinator_of_an_older_commit_becomes_one_of_todays(tmp_path: Path) -> None:
    with Proxies() as proxies:
        child = ChaosCoordinator(0, tmp_path, "k:1", proxies, ("broken",), tmp_path / "old")
        old = child._command()
        child.be_todays()
        todays = child._command()
    assert old[:3] == [*launcher_of(tmp_path / "old"), "logtx"]
    assert todays[:2] == ["broken", "logtx"]
    assert old[3:] == todays[2:]


# ---- upgrades -----------------------------------------------------------------------------------


def test_the_files_of_a_commit_are_what_is_run(tmp_path: Path) -> None:
    directory = unpack("HEAD", tmp_path / "previous")
    (directory / "planted.py").write_text("print(__file__)\n")
    command = [sys.executable, "-m", *launcher_of(directory), "logtx.planted"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()).resolve() == (directory / "planted.py").resolve()


def test_a_commit_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ChaosError, match=r"There is no 'v0\.0\.0-never' to upgrade from .*HEAD~10"):
        unpack("v0.0.0-never", tmp_path)


@pytest.mark.parametrize(
    ("file", "why"),
    [
        (previous._OF_GRPC, r"'HEAD' speak gRPC.* Name a later commit"),
        ("README.md", r"'HEAD' know no streams.* Name a later commit"),
    ],
)
def test_a_commit_whose_coordinators_todays_clients_cant_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, why: str
) -> None:
    checkout = tmp_path / "checkout"
    (checkout / file).parent.mkdir(parents=True)
    (checkout / file).touch()
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    for command in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "of before"]):
        subprocess.run(["git", "-C", str(checkout), *command], check=True)
    monkeypatch.setattr(previous, "_CHECKOUT", checkout)
    with pytest.raises(ChaosError, match=why):
        unpack("HEAD", tmp_path / "previous")


# ---- the end ------------------------------------------------------------------------------------


def test_what_hangs_is_ended() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ChaosError, match="did not end within"), ends_within(0.2, 60):
        time.sleep(20)
    assert signal.getsignal(signal.SIGALRM) is before
    with ends_within(0.2, 60):
        pass
    time.sleep(0.4)  # no alarm comes any more


def test_what_hangs_even_while_it_ends_is_ended() -> None:
    program = f"""
import time
from {bounded.__name__} import ends_within
with ends_within(0.2, 0.2):
    try:
        time.sleep(60)
    finally:
        time.sleep(60)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    assert done.returncode == GAVE_UP_STATUS
    assert b"did not end its processes in time" in done.stderr


def test_one_process_that_can_not_be_ended_does_not_keep_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def kill(self: Member) -> None:
        ended.append(self.name)
        if self.name == "producer-1":
            raise subprocess.TimeoutExpired("kill", 1)

    monkeypatch.setattr(Member, "kill", kill)
    options: Any = SimpleNamespace(
        launcher=(),
        metadata=Metadata.NONE,
        counts=lambda: {Role.COORDINATOR: 1, Role.PRODUCER: 3, Role.WORKER: 1, Role.CONSUMER: 1},
    )
    with Proxies() as proxies:
        running = fleet.Fleet(options, tmp_path, "k:1", proxies)
        with pytest.raises(subprocess.TimeoutExpired):
            running.close()
    assert len(ended) == 6


class Last:
    """A last reader's process."""

    def __init__(self, log: MemoryLog, *, stops: bool) -> None:
        self.settings = replace(settings(), bootstrap_servers=log.bootstrap_servers)
        self.name, self.number, self.partitions = "final-0.0", 0, self.settings.partitions
        self.notes: list[object] = []
        self.recorder = self
        self.stopping = SimpleNamespace(is_set=lambda: stops, wait=lambda _s: None)

    def write(self, event: str, **fields: object) -> None:
        if event == "note":
            self.notes.append(fields["note"])


@pytest.mark.parametrize(("stops", "notes"), [(False, ["read to end"]), (True, [])])
def test_a_last_reader_that_is_stopped_has_not_read_to_the_end(
    memory_log: MemoryLog, monkeypatch: pytest.MonkeyPatch, *, stops: bool, notes: list[str]
) -> None:
    monkeypatch.setattr(final, "FIRST_S", 0.5)
    for topic in settings().topics:
        memory_log.create_topic(topic, partitions=settings().partitions)
    last: Any = Last(memory_log, stops=stops)
    final.read_all(last)
    assert last.notes == notes
