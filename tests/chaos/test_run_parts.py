"""The parts of a run that need no cluster: pacing, records, settings, Kafka's writers, the end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from logtx.chaos import drain, options
from logtx.chaos.checker.core.avro import Entry, Kind
from logtx.chaos.checker.core.journal import read_journal
from logtx.chaos.errors import ChaosError
from logtx.chaos.inspector import QueueNeeds
from logtx.chaos.options import ChaosOptions, Metadata, System
from logtx.chaos.run import _directory_of
from logtx.chaos.settings import HISTORY, Settings
from logtx.chaos.trimmer import LEAST_RECORDS, Trim, Trimmer
from logtx.chaos.workload import final, kafka_writer, process
from logtx.chaos.workload.clients import BrokenError, Ended, FencedError
from logtx.chaos.workload.kafka_writer import KafkaWriter
from logtx.chaos.workload.pacer import CATCH_UP, Pacer
from logtx.chaos.workload.process import Process
from logtx.chaos.workload.readers import (
    consumer_readers,
    final_readers,
    reader_settings,
)
from logtx.chaos.workload.record import Value
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.native.loading import VARIABLE, Found
from logtx.journal.position import Position


def settings(**changes: object) -> Settings:
    plain = {
        "system": System.LOGTX,
        "seed": 1,
        "seconds": 10.0,
        "rate": 30.0,
        "bootstrap_servers": "127.0.0.1:1",
        "rebalance": "eager",
        "producers": 4,
        "keyed_producers": 2,
    }
    return Settings(**{**plain, **changes})  # type: ignore[arg-type]


# ---- pacing -------------------------------------------------------------------------------------


def begun(pacer: Pacer, from_s: float, to_s: float, step_s: float = 0.001) -> int:
    """How many may begin between two moments, if nothing else holds them up."""
    count, now_s = 0, from_s
    while now_s < to_s:
        count += pacer.wait_s(now_s) == 0
        now_s += step_s
    return count


def test_the_pace_is_the_rate() -> None:
    assert begun(Pacer(50, 0.0), 0.0, 10.0) == pytest.approx(500, abs=2)


def test_what_was_missed_is_made_up_for_but_not_at_once() -> None:
    pacer = Pacer(50, 0.0)
    begun(pacer, 0.0, 1.0)
    # Nothing for 10 seconds; then three times as many, until it is made up for.
    assert begun(pacer, 11.0, 12.0) == pytest.approx(50 * CATCH_UP, rel=0.1)
    assert begun(pacer, 12.0, 21.0) == pytest.approx(21 * 50 - 50 - 150, rel=0.05)
    assert begun(pacer, 21.0, 22.0) == pytest.approx(50, abs=3)


def test_a_wait_says_how_long() -> None:
    pacer = Pacer(10, 5.0)
    assert pacer.wait_s(5.0) == 0
    assert pacer.wait_s(5.0) == pytest.approx(0.1)
    assert pacer.wait_s(5.1) == 0


# ---- records, settings --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        Value(3, "producer-0.0:17", "producer-0.0/5"),
        Value(3, "v", None),
        Value(0, "v", "o", (1, 2)),
    ],
)
def test_a_value_comes_back(value: Value) -> None:
    assert Value.decode(value.encode()) == value


def test_settings_come_back(tmp_path: Path) -> None:
    settings().save(tmp_path)
    assert Settings.load(tmp_path) == settings()


def test_metadata_mode_is_for_logtx_with_coordinators_of_one_build() -> None:
    metadata = Metadata.HALF
    ChaosOptions(metadata=metadata).check()
    with pytest.raises(ChaosError, match="--metadata"):
        ChaosOptions(metadata=metadata, system=System.KAFKA).check()
    with pytest.raises(ChaosError, match="--upgrade-from"):
        ChaosOptions(metadata=metadata, upgrade_from="HEAD~1").check()


def test_the_extension_is_for_logtx_and_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ChaosError, match="--native is for logtx"):
        ChaosOptions(native=True, system=System.KAFKA).check()
    monkeypatch.setattr(options, "EXTENSION", "logtx.journal.native._missing")
    with pytest.raises(ChaosError, match="needs the C extension"):
        ChaosOptions(native=True).check()


def test_every_second_life_of_a_client_takes_the_extension(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "as it was")
    monkeypatch.setattr(process, "find_reader", lambda: Found(object(), ""))
    (tmp_path / HISTORY).mkdir()
    settings().save(tmp_path)
    Process("producer", tmp_path, 1, 0).take_path()
    assert os.environ[VARIABLE] == "as it was"
    settings(native=True).save(tmp_path)
    chosen = {}
    for number, life in ((0, 0), (0, 1), (1, 1), (1, 2)):
        Process("worker", tmp_path, number, life).take_path()
        chosen[number, life] = os.environ[VARIABLE]
    assert chosen == {(0, 0): "0", (0, 1): "1", (1, 1): "0", (1, 2): "1"}
    monkeypatch.setattr(process, "find_reader", lambda: Found(None, "it is broken"))
    with pytest.raises(ChaosError, match="does not work"):
        Process("worker", tmp_path, 0, 3).take_path()


def test_topics_that_are_switched(tmp_path: Path) -> None:
    assert settings().switched_topics == {}
    assert settings().first_in_metadata == []
    every = settings(metadata=Metadata.ALL, fleeting_topic="chaos-fleeting")
    assert every.first_in_metadata == ["chaos", "chaos-out", "chaos-fleeting"]
    every.save(tmp_path)
    assert Settings.load(tmp_path) == every


def test_readers_of_each_system() -> None:
    logtx, kafka = settings(), settings(system=System.KAFKA)
    assert len(consumer_readers(logtx)) == ChaosOptions().consumers
    assert "serializable" in {reader.isolation for reader in final_readers(logtx)}
    for reader in (*consumer_readers(kafka), *final_readers(kafka)):
        assert reader.isolation != "serializable"
        assert "pending.lookup.age.ms" not in reader_settings(kafka, reader)


def test_a_queue_needs_what_was_pending_where_its_messages_begin() -> None:
    needs = QueueNeeds()
    assert needs.needed_from(0, 100) is None
    needs.note(0, Position(o1=40, o2=60))
    needs.note(0, Position(o1=50, o2=90))
    needs.note(1, Position(o1=7, o2=7))
    assert needs.needed_from(0, 59) is None
    assert needs.needed_from(0, 60) == 40
    assert needs.needed_from(0, 89) == 40
    assert needs.needed_from(0, 200) == 50
    assert needs.needed_from(1, 200) == 7


def test_a_run_directory_is_for_one_run(tmp_path: Path) -> None:
    options = ChaosOptions(data_dir=tmp_path / "run")
    directory = _directory_of(options)
    (directory / "history" / "producer-0.0.jsonl").touch()
    with pytest.raises(ChaosError, match="another run"):
        _directory_of(options)


# ---- Kafka's own transactions -------------------------------------------------------------------

FATAL = KafkaError(KafkaError.INVALID_TXN_STATE, "in no state for it", True)
FENCED = KafkaError(KafkaError._FENCED, "by a newer one", True)
REFUSED = KafkaError(KafkaError.INVALID_TXN_STATE, "a record failed", False, False, True)
AGAIN = KafkaError(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, "not yet", False, True)


class ProducerThatFails:
    """In place of confluent_kafka's: each call raises what it was told to, once."""

    def __init__(self, _config: object) -> None:
        self.errors: dict[str, list[KafkaError]] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> object:
        def call(*_: object) -> None:
            self.calls.append(name)
            if errors := self.errors.get(name):
                raise KafkaException(errors.pop(0))

        return call


def kafka_writer_with(
    monkeypatch: pytest.MonkeyPatch, **errors: list[KafkaError]
) -> tuple[KafkaWriter, ProducerThatFails]:
    monkeypatch.setattr(kafka_writer, "Producer", ProducerThatFails)
    monkeypatch.setattr(kafka_writer, "_PAUSE_S", 0.0)
    writer = KafkaWriter(settings(system=System.KAFKA), "name")
    producer = writer.producer
    assert isinstance(producer, ProducerThatFails)
    producer.errors.update(errors)
    return writer, producer


def ended_by(writer: KafkaWriter, how: str) -> Ended:
    told: list[Ended] = []
    getattr(writer.begin(), how)(told.append)
    (ended,) = told
    return ended


@pytest.mark.parametrize(
    ("how", "errors", "outcome", "then"),
    [
        ("commit", {}, "committed", None),
        ("commit", {"commit_transaction": [AGAIN, AGAIN]}, "committed", None),
        # It may have arrived: only a refusal says that it is not committed.
        ("commit", {"commit_transaction": [FATAL]}, "unknown", BrokenError),
        ("commit", {"commit_transaction": [FENCED]}, "unknown", FencedError),
        ("commit", {"commit_transaction": [REFUSED]}, "aborted", None),
        (
            "commit",
            {"commit_transaction": [REFUSED], "abort_transaction": [FATAL]},
            "unknown",
            BrokenError,
        ),
        # Who was never asked to commit it must not.
        ("abort", {}, "aborted", None),
        ("abort", {"abort_transaction": [FATAL]}, "aborted", BrokenError),
        ("abort", {"abort_transaction": [FENCED]}, "aborted", FencedError),
    ],
)
def test_what_an_end_by_kafka_tells(
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    errors: dict[str, list[KafkaError]],
    outcome: str,
    then: type[Exception] | None,
) -> None:
    writer, _ = kafka_writer_with(monkeypatch, **{name: [*each] for name, each in errors.items()})
    assert ended_by(writer, how).outcome == outcome
    if then is None:
        writer.begin()
    else:
        with pytest.raises(then):
            writer.begin()


def test_a_writer_of_kafkas_that_failed_for_good_can_be_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer, producer = kafka_writer_with(monkeypatch, flush=[FATAL])
    writer.close()
    # Each record is told that it failed, from within `poll`.
    assert producer.calls[-2:] == ["purge", "poll"]


# ---- trimming, draining -------------------------------------------------------------------------


class Asked:
    """An inspector that says what it was told to."""

    def __init__(self) -> None:
        self.needed: int | None = None
        self.open: list[str | None] = [""]
        """A letter for each transaction."""
        self.places: list[dict[int, int] | None] = [{}]

    def unfinished(self, topic: str = "") -> frozenset[str] | None:
        """One after the other, then the last."""
        del topic
        found = self.open.pop(0) if len(self.open) > 1 else self.open[0]
        return None if found is None else frozenset(found)

    def worked_off(self) -> dict[int, int] | None:
        """The same."""
        return self.places.pop(0) if len(self.places) > 1 else self.places[0]

    def needed_from(self, topic: str, partition: int) -> int | None:
        """Of every partition."""
        del topic, partition
        return self.needed

    def close(self) -> None:
        """Nothing."""


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits are short."""
    monkeypatch.setattr(drain, "_POLL_S", 0.01)
    monkeypatch.setattr(drain, "DECIDED_S", 0.2)
    monkeypatch.setattr(drain, "WORKED_OFF_S", 0.2)


def test_only_what_nobody_needs_is_trimmed(memory_log: MemoryLog) -> None:
    inspector, told = Asked(), settings(seed=2)
    for topic in (told.data_topic, told.out_topic):
        memory_log.create_topic(topic, partitions=told.partitions)
    producer = memory_log.producer({})
    for _ in range(4 * LEAST_RECORDS):
        producer.produce(told.data_topic, b"x", partition=2)
    producer.flush(5)
    trimmer = Trimmer(memory_log, inspector, told)
    assert trimmer.choose(0) is None  # somebody has committed nothing yet
    inspector.needed = LEAST_RECORDS
    assert trimmer.choose(0) is None  # not worth it
    inspector.needed = 3 * LEAST_RECORDS
    trim = trimmer.choose(0)
    assert trim == Trim(told.data_topic, 2, 3 * LEAST_RECORDS // 2)
    trimmer.trim(trim)
    assert memory_log.start_offset(told.data_topic, 2) == trim.before
    again = trimmer.choose(0)
    assert again is None or trim.before < again.before <= inspector.needed
    other = trimmer.choose(1)
    assert other is not None
    assert other.topic == told.out_topic


@pytest.mark.usefixtures("quick")
def test_the_end_waits_until_all_is_decided() -> None:
    inspector, ticks = Asked(), []
    # Of a worker, which goes on, is what began later.
    inspector.open = ["abc", None, "cd", "de"]
    drain.await_decided(inspector, lambda: ticks.append(1))
    assert len(ticks) == 3
    inspector.open = ["abc", "bcd"]
    with pytest.raises(ChaosError, match="2 transactions are unfinished, such as b"):
        drain.await_decided(inspector, lambda: None)
    inspector.open = [None]
    with pytest.raises(ChaosError, match="not known"):
        drain.await_decided(inspector, lambda: None)


@pytest.mark.usefixtures("quick")
def test_the_end_waits_until_workers_are_behind_the_last_records() -> None:
    inspector = Asked()
    inspector.places = [None, {0: 10}, {0: 11, 1: 20}, {0: 11, 1: 21}]
    drain.await_worked_off(inspector, {0: 10, 1: 20}, lambda: None)
    assert len(inspector.places) == 1
    inspector.places = [{0: 11, 1: 20}]
    with pytest.raises(ChaosError, match=r"behind in \{1: 20\}"):
        drain.await_worked_off(inspector, {0: 10, 1: 20}, lambda: None)


@pytest.mark.usefixtures("quick")
def test_workers_that_get_on_are_waited_for_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inspector = Asked()
    # Half a second, in which each look finds more.
    inspector.places = [{0: offset} for offset in range(50)]
    drain.await_worked_off(inspector, {0: 48}, lambda: None)
    monkeypatch.setattr(drain, "WORKED_OFF_MAX_S", 0.3)
    inspector.places = [{0: offset} for offset in range(500)]
    with pytest.raises(ChaosError, match="0 s in all"):
        drain.await_worked_off(inspector, {0: 498}, lambda: None)


# ---- seen in runs, and fixed in the checker -----------------------------------------------------


def test_a_trimmed_journal_may_begin_with_an_owner() -> None:
    producer = {
        "producer_id": "p",
        "generation": 0,
        "session_nonce": 1,
        "owner": "default",
        "voided": False,
        "connected_ms": 0,
    }
    entries = [
        (2, Entry(Kind.OWNER, 1, 77, -1, {"replaces": 1})),
        (3, Entry(Kind.PRODUCER, 2, 77, 3, producer)),
        (4, Entry(Kind.PRODUCER, 2, 77, 3, producer)),  # predicted elsewhere: a zombie's
    ]
    journal = read_journal(7, 2, 5, entries)
    assert journal.incarnation == 77
    assert [g.offset for g in journal.generations["p"]] == [3]


# ---- the last readers ----------------------------------------------------------------------------


class RefusedReader:
    """Kafka's consumer of partitions whose leaders change: the first answers are refusals."""

    def __init__(self, error: KafkaException) -> None:
        self.refusals = [error] * 3
        self.closed = False

    def _refuse(self) -> None:
        if self.refusals:
            raise self.refusals.pop()

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Assigns, once it is not refused any more."""
        if len(self.refusals) == 3:
            self._refuse()
        self.partitions = list(partitions)

    def get_watermark_offsets(self, _: TopicPartition, timeout: float) -> tuple[int, int]:
        """Returns that there is nothing, once it is not refused any more."""
        assert timeout > 0
        self._refuse()
        return 0, 0

    def consume(self, *_: object) -> list[Message]:
        """Returns the ends."""
        end = KafkaError(KafkaError._PARTITION_EOF)
        places, self.partitions = self.partitions, []
        return [Message(topic=p.topic, partition=p.partition, error=end) for p in places]

    def close(self) -> None:
        """Notes it."""
        self.closed = True


@pytest.fixture
def last_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """A last reader's process."""
    monkeypatch.setattr(final, "_RETRY_S", 0.01)
    (tmp_path / HISTORY).mkdir()
    settings(system=System.KAFKA).save(tmp_path)
    return Process("final", tmp_path, 0, 0)


def test_a_last_reader_outlives_refusals_that_pass(
    last_reader: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION))
    reader = RefusedReader(error)
    monkeypatch.setattr(final, "open_reader", lambda *_, **__: reader)
    with last_reader.recorder:
        final.read_all(last_reader)
    assert reader.closed
    assert not reader.refusals


def test_a_last_reader_does_not_wait_for_ever(
    last_reader: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(final, "LIMIT_S", 0.01)
    reader = RefusedReader(KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)))
    reader.refusals *= 1_000
    monkeypatch.setattr(final, "open_reader", lambda *_, **__: reader)
    with last_reader.recorder, pytest.raises(KafkaException, match="NOT_LEADER"):
        final.read_all(last_reader)
