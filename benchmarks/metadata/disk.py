"""What a round adds to the broker's logs beside the application's records."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

_LENGTH: Final = struct.Struct(">qi")
"""Base offset of a batch, and how many bytes follow. Source: Kafka's message format."""


class Disk:
    """The broker's log files, without indexes."""

    def __init__(self, data_dir: Path) -> None:
        """Takes the broker's data directory."""
        self._data_dir = data_dir

    def sizes(self) -> dict[Path, int]:
        """Returns the size of each log file."""
        found = {}
        for path in self._data_dir.rglob("*.log"):
            if path.stem.isdigit() and not path.parent.name.startswith("__cluster_metadata"):
                found[path] = path.stat().st_size
        return found

    def of(self, topic: str) -> int:
        """Returns the bytes of all log files of a topic."""
        sizes = self.sizes().items()
        return sum(size for path, size in sizes if path.parent.name.rpartition("-")[0] == topic)

    def overhead(self, before: Mapping[Path, int], topic: str, value: bytes) -> int:
        """Returns the bytes that came since `before` beside the batches of records.

        Args:
            before: an earlier result of `sizes`.
            topic: the topic of the records.
            value: the value of each record; no other batch of the topic holds these bytes.
        """
        return sum(
            size - before.get(path, 0) - self._records(path, before.get(path, 0), topic, value)
            for path, size in self.sizes().items()
        )

    @staticmethod
    def _records(path: Path, start: int, topic: str, value: bytes) -> int:
        if path.parent.name.rpartition("-")[0] != topic:
            return 0
        return sum(len(batch) for batch in batches(path.read_bytes()[start:]) if value in batch)


def batches(data: bytes) -> Iterator[bytes]:
    """Yields the batches of a part of a log file that begins with one."""
    place = 0
    while place + _LENGTH.size <= len(data):
        _, length = _LENGTH.unpack_from(data, place)
        end = place + _LENGTH.size + length
        if length <= 0 or end > len(data):
            return  # Log files may be longer than what was written to them.
        yield data[place:end]
        place = end
