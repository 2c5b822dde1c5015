"""Turns flights into ledger entries, in Arrow batches: what the query runs on executors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from ..flights import decode_flight, encode_entry
from ..ledger import entries_of

SCHEMA: Final = "key binary, value binary"


def book(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields two entries for each flight, keyed by airport.

    Args:
        batches: flights in Avro's binary form, in a single column.
    """
    for batch in batches:
        keys: list[bytes] = []
        values: list[bytes] = []
        for flight in batch.column(0).to_pylist():
            for entry in entries_of(decode_flight(flight)):
                keys.append(entry.airport.encode())
                values.append(encode_entry(entry._asdict()))
        columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["key", "value"])
