"""Dumped logs as files: gzip of JSON lines, first a head and then one line per record.

    logs/data/<topic>-<partition>.jsonl.gz        every record, aborted ones and markers too
    logs/sidecars/<topic>-<partition>.jsonl.gz    the sidecars of topics, by the sidecar's name
    logs/committed/<topic>-<partition>.jsonl.gz   Kafka's system: what read_committed gives
    logs/journal/<partition>.jsonl.gz             the journal

Each byte is written as one character of text (Latin-1): JSON keeps it, and people can read what is
text. A record is [offset, value, [[header, value], …]].
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from .errors import BrokenLogError

DATA, SIDECARS, COMMITTED, JOURNAL = "data", "sidecars", "committed", "journal"
_LEVEL: Final = 1
"""Compression level of gzip. A higher one takes longer; the logs are small for what they tell."""
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode

Headers = list[tuple[str, bytes | None]]


class RawRecord(NamedTuple):
    """A record as it is in a log."""

    offset: int
    value: bytes | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a dumped partition."""

    topic: str
    partition: int
    start: int
    end: int
    """Offset behind its last record; for read_committed, the last stable offset."""
    end_before_data: int = 0
    """For the journal: its end before the data partitions were read."""


def write_log(directory: Path, kind: str, head: Head, records: Iterable[RawRecord]) -> None:
    """Writes one dumped partition."""
    name = f"{head.partition}" if kind == JOURNAL else f"{head.topic}-{head.partition}"
    path = directory / kind / f"{name}.jsonl.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", encoding="ascii", compresslevel=_LEVEL) as out:
        out.write(_ENCODE(asdict(head)) + "\n")
        for offset, value, headers in records:
            row = [offset, _text(value), [[name, _text(raw)] for name, raw in headers]]
            out.write(_ENCODE(row) + "\n")


def read_logs(directory: Path, kind: str) -> Iterator[tuple[Head, Iterator[RawRecord]]]:
    """Yields every dumped partition of a kind.

    Read the records of one before you ask for the next.

    Raises:
        BrokenLogError: a file is cut short, or has no head.
    """
    for path in sorted((directory / kind).glob("*.jsonl.gz")):
        lines = _lines(path)
        first = next(lines, None)
        if not isinstance(first, dict):
            raise BrokenLogError(f"{path} has no head; dump it again")
        yield Head(**first), (_record(line) for line in lines)


def _lines(path: Path) -> Iterator[Any]:
    try:
        with gzip.open(path, "rt", encoding="ascii") as lines:
            yield from map(json.loads, lines)
    except (OSError, EOFError, ValueError) as error:
        raise BrokenLogError(f"{path} is cut short: {error!r}; dump it again") from error


def _record(row: Any) -> RawRecord:
    offset, value, headers = row
    return RawRecord(offset, _raw(value), [(name, _raw(raw)) for name, raw in headers])


def _text(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("latin-1")


def _raw(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")
