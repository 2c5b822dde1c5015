"""Logs that former versions wrote: today's code loads them, and delivers the same.

A set that fails here can't be read any more as it was: users' logs hold the same bytes. Sets are
never edited; what is new gets a set of its own, and the old ones stay.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from logtx.consumer.core.pending import Record
from logtx.coordinator.core.decision import ShardConfig
from logtx.coordinator.core.replica import Replica
from logtx.coordinator.core.shard import Shard
from logtx.coordinator.core.tenure import RECORD_MAX_BYTES
from logtx.coordinator.runtime.loading import load as load_partition
from logtx.journal.control import (
    TXCTL_HEADER,
    TXID_HEADER,
    Marker,
    TopicPartition,
    decode_control,
    encode_data_control,
    encode_marker,
)
from logtx.journal.logs.interface import GroupOffset
from logtx.journal.position import Position
from logtx.journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC
from logtx.journal.record_type import RecordType
from logtx.journal.records.codec import encode_entry
from logtx.journal.records.types import AbortReason, PrepareCommit, Snapshot
from logtx.journal.sidecar import is_delivered_from_sidecar
from logtx.journal.state import State

from ..consumer.logs import nothing_more
from ..consumer.records import FakeRecord
from ..coordinator.harness import PARTITION, fates
from . import files, show
from .files import GoldenLogs
from .generate import generate

SETS = files.sets()
SIZE_MAX_BYTES = 200_000
"""Of one set."""


@pytest.fixture(params=SETS, ids=lambda path: path.name)
def directory(request: pytest.FixtureRequest) -> Path:
    """Of a set."""
    found: Path = request.param
    return found


@pytest.fixture
def logs(directory: Path) -> GoldenLogs:
    """Of a set."""
    return files.read(directory)


def expected(directory: Path) -> str:
    return (directory / files.EXPECTED).read_text()


def section(directory: Path, title: str) -> list[str]:
    """The lines under a heading of what is expected."""
    _, _, rest = expected(directory).partition(f"# {title}\n\n")
    assert rest, title
    return rest.partition("\n\n")[0].splitlines()


def test_what_is_kept_loads_and_delivers_the_same(directory: Path, logs: GoldenLogs) -> None:
    assert show.text(logs) == expected(directory)


def snapshots(logs: GoldenLogs) -> int:
    """First chunk of the latest snapshot that counts."""
    shard = Shard(PARTITION)
    for offset, entry in enumerate(show.entries_of(logs)):
        shard.replay(offset, entry)
    assert shard.snapshot_offset is not None
    return shard.snapshot_offset


def state(shard: Shard) -> list[str]:
    return list(show.state(shard))


@pytest.mark.parametrize("certain", [True, False])
def test_a_standby_that_begins_at_the_snapshot_knows_the_same(
    directory: Path, logs: GoldenLogs, certain: bool
) -> None:
    start = snapshots(logs)
    replica = Replica(PARTITION, ShardConfig(), start, certain=certain)
    for offset, entry in enumerate(show.entries_of(logs)[start:], start):
        replica.feed(offset, entry)
    assert state(replica.shard) == section(directory, "What a coordinator knows")


@pytest.mark.parametrize("kept", ["all", "all and a checkpoint", "what a trimmed one has"])
def test_a_coordinator_that_starts_knows_the_same(
    directory: Path, logs: GoldenLogs, kept: str
) -> None:
    start = snapshots(logs)
    with show.memory_log(logs) as log:
        if kept != "all":
            checkpoint = GroupOffset(start, "")
            log.commit_group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, 0, checkpoint)
        if kept == "what a trimmed one has":
            log.delete_records(JOURNAL_TOPIC, 0, start)
        replica = load_partition(log, PARTITION, ShardConfig(), timeout_s=show.WAIT_S)
    assert state(replica.shard) == section(directory, "What a coordinator knows")


def delivered(directory: Path, partition: TopicPartition) -> Iterator[tuple[int, Position | None]]:
    """Offsets in the order in which they are delivered, with the positions that are kept."""
    title = f"What a read_committed consumer of {show.name(partition)} gets"
    lines = iter(section(directory, title)[1:])
    for line in lines:
        if matched := re.fullmatch(r"(\d+) to (\d+): (\d+) records, .*", line):
            first, last, count = map(int, matched.groups())
            assert last - first >= count - 1
            next(lines)
            _, position = _delivery(next(lines))
            yield -count, position
        elif line[0].isdecimal():
            yield _delivery(line)


def _delivery(line: str) -> tuple[int, Position]:
    offset, _, _, position = line.split("  ")
    o1, metadata = position.split(" ", 1)
    return int(offset), Position.from_metadata(int(o1), metadata)


def test_a_consumer_goes_on_from_every_position_that_is_kept(
    directory: Path, logs: GoldenLogs
) -> None:
    """Positions lie in consumer groups' offsets, and are older than the program that reads them."""
    restarts = 0
    for partition, records in logs.partitions().items():
        aside = logs.aside(partition)
        found = show.deliveries(records, Position.at(0), 1_000, aside)
        whole = [r.offset() for r, _ in found]
        count = 0
        for offset, position in delivered(directory, partition):
            count += -offset if offset < 0 else 1
            if offset >= 0:
                assert whole[count - 1] == offset
            assert position is not None
            rest = show.deliveries(records, position, 1_000, aside)
            assert [r.offset() for r, _ in rest] == whole[count:], f"{partition} from {position}"
            restarts += 1
        assert count == len(whole), f"{partition}: something more was delivered"
    assert restarts > 20


@pytest.mark.parametrize("isolation", ["read_committed", "serializable"])
def test_a_consumer_delivers_what_is_kept(logs: GoldenLogs, isolation: str) -> None:
    """The whole consumer, from a log, with a memory that the large transaction does not fit."""
    entries = show.entries_of(logs)
    known = fates(entries, show.begun(entries))
    # Serial order waits for the markers of all partitions; read_committed for each one's own.
    finished = {t.to_bytes() for t, fate in known.items() if fate.state is State.COMMITTED}
    wanted: dict[TopicPartition, list[tuple[int, bytes | None]]] = {}
    for partition, records in logs.partitions().items():
        told = show.deliveries(records, Position.at(0), 1_000, logs.aside(partition))
        found = [r for r, _ in told]
        if isolation == "serializable":
            found = [r for r in found if not show.is_malformed(r) and owner_of(r) in finished]
        wanted[partition] = [(r.offset(), r.value()) for r in found]
    total = sum(map(len, wanted.values()))
    got: dict[TopicPartition, list[tuple[int, bytes | None]]] = {p: [] for p in logs.partitions()}
    with (
        show.memory_log(logs) as log,
        show.consumer(log, logs, isolation_level=isolation) as consumer,
    ):
        while total:
            messages = consumer.consume(total, show.WAIT_S)
            assert messages, "nothing came any more"
            for message in messages:
                if isolation == "serializable" and message.error() is not None:
                    continue  # of a malformed header, which belongs to no transaction
                total -= 1
                place = message.topic(), message.partition()
                got[place].append((message.offset(), message.value()))
        assert nothing_more(consumer)
        assert consumer.stats()["spilled_bytes"] > 0
    assert got == wanted


def owner_of(record: Record) -> bytes | None:
    return dict(record.headers() or ()).get(TXID_HEADER)


def test_what_is_kept_has_everything_that_may_lie_in_a_log(
    directory: Path, logs: GoldenLogs
) -> None:
    """Else the tests above could not fail."""
    entries = show.entries_of(logs)
    came_with = {
        RecordType.FORGET: 3,
        RecordType.ADD_WRITES: 4,
        RecordType.PLACED: 5,
        RecordType.MODE: 5,
        RecordType.ADOPT: 6,
        RecordType.SUBSCRIBE: 9,
        RecordType.ADD_ACKS: 9,
        RecordType.ACK: 9,
    }
    version = files.formats_of(directory)["journal"]
    newer = {kind for kind, since in came_with.items() if version < since}
    assert {entry.record.type for entry in entries} == set(RecordType) - newer
    found = fates(entries, show.begun(entries)).values()
    assert {fate.state for fate in found} == {
        State.OPEN,
        State.COMMITTING,
        State.COMMITTED,
        State.ABORTING,
        State.ABORTED,
    }
    shard = Shard(PARTITION)
    for offset, entry in enumerate(entries):
        shard.replay(offset, entry)
    doomed = {t.doomed for t in shard.transactions} - {None}
    assert {fate.reason for fate in found} | doomed == {None, *AbortReason}
    controls = [
        decode_control(raw)
        for records in logs.data.values()
        for record in records
        for header, raw in record.headers() or ()
        if header == TXCTL_HEADER
    ]
    markers = [control for control in controls if isinstance(control, Marker)]
    assert {marker.committed for marker in markers} == {True, False}
    assert max(len(marker.branches) for marker in markers) > 1
    assert {control.sequence for control in controls if not isinstance(control, Marker)} > {None, 0}


def test_todays_set_has_what_is_placed_and_a_snapshot_of_it() -> None:
    entries = show.entries_of(files.read(SETS[-1]))
    decisions = [e.record for e in entries if isinstance(e.record, PrepareCommit)]
    assert any(decision.placed for decision in decisions)
    chunks = [e.record for e in entries if isinstance(e.record, Snapshot)]
    places = [p for chunk in chunks for row in chunk.places for _, _, p in row.places]
    assert {place is None for place in places} == {True, False}
    assert any(chunk.modes for chunk in chunks)
    assert any(chunk.last_places for chunk in chunks)
    assert all(any(getattr(chunk, of) for chunk in chunks) for of in ("handed", "adopted"))
    assert any(chunk.unplaced for chunk in chunks)
    assert any(row.begun for chunk in chunks for row in chunk.adopted)


def test_todays_set_has_pointers_and_what_they_name() -> None:
    logs = files.read(SETS[-1])
    controls = [
        decode_control(raw)
        for records in logs.data.values()
        for record in records
        for header, raw in record.headers() or ()
        if header == TXCTL_HEADER
    ]
    pointers = [c for c in controls if isinstance(c, Marker) and c.is_pointer]
    assert {bool(p.branches) for p in pointers} == {True, False}
    assert {p.sidecar_id for p in pointers} == {"id-aside"}
    assert any(len(p.sidecar) > 1 for p in pointers)
    sequences = [p.commit_sequence for p in pointers]
    assert len(sequences) > len(set(sequences)), "a copy"
    ends = [c for c in controls if isinstance(c, Marker) and c.pointer is not None]
    assert len(ends) == len(pointers)
    assert any(is_delivered_from_sidecar(at) for at, _ in delivered(SETS[-1], ("b", 0)))


def test_a_set_is_small(directory: Path) -> None:
    """It stays in the repository for ever."""
    assert sum(path.stat().st_size for path in directory.iterdir()) < SIZE_MAX_BYTES
    assert all(len(value) < RECORD_MAX_BYTES for value in files.read(directory).journal)


def test_todays_code_writes_the_bytes_of_its_formats(directory: Path, logs: GoldenLogs) -> None:
    """Of a format that is still written: other bytes would be a format without a number."""
    formats, current = files.formats_of(directory), files.current_formats()
    assert all(formats[name] <= version for name, version in current.items())
    for raw, entry in zip(logs.journal, show.entries_of(logs), strict=True):
        written = encode_entry(entry)
        if raw[0] == written[0] or formats["journal"] == current["journal"]:
            assert written.hex() == raw.hex()
    for records in logs.data.values():
        for record in records:
            raw = dict(record.headers() or ()).get(TXCTL_HEADER)
            if raw is not None and formats["control"] == current["control"]:
                control = decode_control(raw)
                encode = encode_marker if isinstance(control, Marker) else encode_data_control
                assert encode(control).hex() == raw.hex()


def test_what_todays_code_writes_is_kept() -> None:
    """Whoever changes what is written keeps a new set: `python -m tests.golden.generate NAME`.

    The older ones stay as they are.
    """
    newest, logs = SETS[-1], generate()
    kept = files.read(newest)
    formats = files.formats_of(newest)
    assert {name: formats[name] for name in files.current_formats()} == files.current_formats()
    assert [raw.hex() for raw in logs.journal] == [raw.hex() for raw in kept.journal]
    assert logs.offsets == kept.offsets
    assert logs.data.keys() == kept.data.keys()
    for partition, records in logs.data.items():
        assert _values(records) == _values(kept.data[partition]), partition


def _values(records: list[FakeRecord]) -> list[tuple[object, ...]]:
    return [(r.at, r.header_list, r.payload, r.record_key) for r in records]
