"""A stand-in for RocksDB, for tests that need many families or a disk of a certain size."""

from __future__ import annotations

from typing import Any


class Table:
    """A column family."""

    def __init__(self, disk: Disk) -> None:
        self.values: dict[bytes, bytes] = {}
        self._disk = disk

    def put(self, key: bytes, value: bytes, _options: Any) -> None:
        self._disk.take(len(value))
        self.values[key] = value

    def get(self, key: bytes, default: bytes | None, _options: Any) -> bytes | None:
        return self.values.get(key, default)


class Disk:
    """Takes `room` bytes and then refuses. Opened in place of an `Rdict`; keeps what it took."""

    def __init__(self, room: int = 10**9) -> None:
        self.room = room
        self.refused = 0
        self.tables: dict[str, Table] = {}

    def open(self, _path: str, _options: Any) -> Disk:
        self.tables = {}
        return self

    def take(self, size: int) -> None:
        if size > self.room:
            self.refused += 1
            # rocksdict's text, word for word.
            raise Exception(  # noqa: TRY002
                "IO error: No space left on device: While appending to file: /tmp/000013.sst: "
                "No space left on device"
            )
        self.room -= size

    def create_column_family(self, name: str, _options: Any) -> Table:
        assert name not in self.tables
        self.tables[name] = Table(self)
        return self.tables[name]

    def drop_column_family(self, name: str) -> None:
        self.room += sum(map(len, self.tables.pop(name).values.values()))

    def close(self) -> None:
        for name in list(self.tables):
            self.drop_column_family(name)
