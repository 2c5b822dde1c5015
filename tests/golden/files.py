"""A set of golden logs on disk: a record a line, as JSON.

Journal and offsets records are hex, with their type beside it for people. In data partitions
values are text and headers hex; records in a row that differ by a rising number at the end of
their value share a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from logtx.journal.control import VERSION as CONTROL_VERSION
from logtx.journal.control import TopicPartition
from logtx.journal.record_type import RecordType
from logtx.journal.records.codec import FORMAT_VERSION
from logtx.journal.sidecar import is_sidecar, sidecar_of

from ..consumer.records import FakeRecord

HERE = Path(__file__).parent
FORMATS = "formats.json"
EXPECTED = "expected.txt"
_JOURNAL = "journal.jsonl"
_OFFSETS = "offsets.jsonl"
_DATA = "data-{}-{}.jsonl"
_RUN_MIN = 10
"""Fewer records than this are written one by one."""
_NUMBERED = re.compile(rb"(.*\D)(0|[1-9]\d*)")

OffsetsRecord = tuple[bytes, bytes | None]
"""Key and value of a record in ``__transaction_offsets``."""


@dataclass(frozen=True, slots=True)
class GoldenLogs:
    """What lies in the log."""

    journal: list[bytes]
    """Values of the journal partition, from offset 0."""
    data: dict[TopicPartition, list[FakeRecord]]
    """Records of each data partition, from offset 0."""
    offsets: list[OffsetsRecord]

    def partitions(self) -> dict[TopicPartition, list[FakeRecord]]:
        """Those that consumers read: all but sidecars."""
        return {key: records for key, records in self.data.items() if not is_sidecar(key[0])}

    def aside(self, partition: TopicPartition) -> list[FakeRecord]:
        """Records of the sidecar of a partition."""
        return self.data.get((sidecar_of(partition[0]), partition[1]), [])


def sets() -> list[Path]:
    """All that are kept, oldest first."""
    found = [path.parent for path in HERE.glob(f"*/{FORMATS}")]
    return sorted(found, key=_age)


def _age(path: Path) -> tuple[str, int, str]:
    formats = formats_of(path)
    return formats["kept_since"], formats["journal"], path.name


def current_formats() -> dict[str, int]:
    """The versions that today's code writes."""
    return {"journal": FORMAT_VERSION, "control": CONTROL_VERSION}


def formats_of(directory: Path) -> dict[str, Any]:
    """The versions that a set was written in, and since when it is kept."""
    found: dict[str, Any] = json.loads((directory / FORMATS).read_text())
    return found


# ---- writing ------------------------------------------------------------------------------------


def write(logs: GoldenLogs, directory: Path, kept_since: str) -> None:
    """Keep a new set; raises FileExistsError where there is one of that name."""
    directory.mkdir()
    formats = {"kept_since": kept_since, **current_formats()}
    (directory / FORMATS).write_text(json.dumps(formats, indent=1) + "\n")
    _write_lines(directory / _JOURNAL, map(_journal_line, range(len(logs.journal)), logs.journal))
    _write_lines(directory / _OFFSETS, map(_offsets_line, logs.offsets))
    for (topic, partition), records in logs.data.items():
        _write_lines(directory / _DATA.format(topic, partition), _data_lines(records))


def _write_lines(path: Path, lines: Iterator[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _journal_line(offset: int, value: bytes) -> dict[str, Any]:
    return {"offset": offset, "type": RecordType(value[1]).name, "hex": value.hex()}


def _offsets_line(record: OffsetsRecord) -> dict[str, Any]:
    key, value = record
    return {"key": key.hex(), "value": None if value is None else value.hex()}


def _data_lines(records: Sequence[FakeRecord]) -> Iterator[dict[str, Any]]:
    at = 0
    while at < len(records):
        count = _run_length(records, at)
        if count < _RUN_MIN:
            count = 1
        yield _data_line(records[at], count)
        at += count


def _run_length(records: Sequence[FakeRecord], at: int) -> int:
    first = records[at]
    matched = _NUMBERED.fullmatch(first.payload or b"")
    if matched is None:
        return 1
    prefix, number = matched[1], int(matched[2])
    count = 1
    while at + count < len(records):
        record = records[at + count]
        same = (record.header_list, record.record_key) == (first.header_list, first.record_key)
        if not same or record.payload != prefix + b"%d" % (number + count):
            break
        count += 1
    return count


def _data_line(record: FakeRecord, count: int) -> dict[str, Any]:
    line: dict[str, Any] = {"offset": record.at}
    if count > 1:
        line["count"] = count
    if record.record_key is not None:
        line["key"] = record.record_key.decode("ascii")
    if record.payload is not None:
        line["value"] = record.payload.decode("ascii")
    if record.header_list is not None:
        line["headers"] = [
            [name, None if raw is None else raw.hex()] for name, raw in record.header_list
        ]
    return line


# ---- reading ------------------------------------------------------------------------------------


def read(directory: Path) -> GoldenLogs:
    """A set that is kept."""
    data: dict[TopicPartition, list[FakeRecord]] = {}
    for path in sorted(directory.glob(_DATA.format("*", "*"))):
        _, topic, partition = path.stem.split("-")
        data[topic, int(partition)] = [r for line in _lines(path) for r in _data_records(line)]
    for records in data.values():
        assert [record.at for record in records] == list(range(len(records)))
    return GoldenLogs(
        [bytes.fromhex(line["hex"]) for line in _lines(directory / _JOURNAL)],
        data,
        [
            (bytes.fromhex(line["key"]), _bytes(line["value"]))
            for line in _lines(directory / _OFFSETS)
        ],
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else bytes.fromhex(text)


def _data_records(line: dict[str, Any]) -> Iterator[FakeRecord]:
    headers = None
    if "headers" in line:
        headers = [(name, _bytes(raw)) for name, raw in line["headers"]]
    key = line["key"].encode() if "key" in line else None
    value = line["value"].encode() if "value" in line else None
    if "count" not in line:
        yield FakeRecord(line["offset"], headers, value, key)
        return
    matched = _NUMBERED.fullmatch(value or b"")
    assert matched is not None, line
    for number in range(line["count"]):
        text = matched[1] + b"%d" % (int(matched[2]) + number)
        yield FakeRecord(line["offset"] + number, headers, text, key)
