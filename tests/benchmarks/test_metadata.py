"""The benchmark of metadata mode: what is counted on disk, its rows, and its sides on a broker."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logtx.benchmarks.metadata import __main__ as command
from logtx.benchmarks.metadata.disk import Disk, batches
from logtx.benchmarks.metadata.parts import PARTS
from logtx.benchmarks.metadata.topics import INDEX_INTERVAL_BYTES, warm
from logtx.benchmarks.store.rows import measured
from logtx.journal.logs.memory.log import MemoryLog


def batch(offset: int, payload: bytes) -> bytes:
    return struct.pack(">qi", offset, len(payload)) + payload


def test_batches_end_where_the_file_is_only_reserved() -> None:
    first, second = batch(0, b"one"), batch(1, b"other")
    assert list(batches(first + second)) == [first, second]
    assert list(batches(first + bytes(64))) == [first]
    assert list(batches(first + second[:-1])) == [first]


def test_what_is_not_a_batch_of_records_is_counted_in_all_logs(tmp_path: Path) -> None:
    data, journal = tmp_path / "topic-1-0", tmp_path / "journal-0"
    for each in (data, journal, tmp_path / "__cluster_metadata-0"):
        each.mkdir()
        (each / "00000000000000000000.log").write_bytes(batch(0, b"value"))
        (each / "00000000000000000000.index").write_bytes(b"index")
    disk = Disk(tmp_path)
    before = disk.sizes()
    assert len(before) == 2
    marker, record = batch(1, b"marker"), batch(2, b"a value")
    with (data / "00000000000000000000.log").open("ab") as file:
        file.write(marker + record)
    with (journal / "00000000000000000000.log").open("ab") as file:
        file.write(record)
    (tmp_path / "__cluster_metadata-0" / "00000000000000000000.log").write_bytes(b"more")
    assert disk.overhead(before, "topic-1", b"value") == len(marker) + len(record)


def test_the_row_of_plain_records_has_a_difference_as_its_goal() -> None:
    assert command.plain_row([1.0, 2.0, 3.0], [3.0, 3.5, 9.0])[1:] == [
        "2",
        "3.5",
        "1.5",
        "≤ 1.5, met",
    ]
    assert command.plain_row([1.0], [3.0])[-1] == "≤ 1.5, **missed**"


def test_the_metadata_store_is_measured_in_the_same_table() -> None:
    found = [command.store_row(row) for row in measured(2_000, print)]
    assert {len(row) for row in found} == {len(command._COLUMNS)}
    assert "RocksDB: transactions of 2 writes projected" in found[0][0]
    assert found[0][-1].startswith("≤ 20, ")


def test_a_part_run_writes_no_document() -> None:
    app = command.typer.Typer()
    app.command()(command.metadata)
    for arguments in (["--part", "plain"], ["--scale", "0.1"]):
        result = CliRunner().invoke(app, [*arguments, "--write-docs"])
        assert result.exit_code == 2
    assert CliRunner().invoke(app, ["--part", "nothing"]).exit_code == 2


def test_each_partition_is_warm_when_its_second_batch_lies_behind_the_interval_of_its_index(
    memory_log: MemoryLog,
) -> None:
    memory_log.create_topic("wide", partitions=3)
    warm(memory_log, {"wide": 3})
    for partition in range(3):
        assert memory_log.end_offset("wide", partition) == 2
    assert INDEX_INTERVAL_BYTES >= 4_096


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_part_runs() -> None:
    app = command.typer.Typer()
    app.command()(command.metadata)
    result = CliRunner().invoke(app, ["--rounds", "1", "--scale", "0.05"])
    assert result.exit_code == 0, result.output
    for wanted in ("sealed", "backlog", "plain record", "decision to finished"):
        assert wanted in result.output
    assert len(PARTS) == 6
