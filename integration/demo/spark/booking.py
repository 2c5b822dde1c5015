"""Turns flights into enriched ones and into ledger entries, in Arrow batches, on executors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from ..flights import decode_flight, encode_entry
from ..ledger import entries_of

SCHEMA: Final = "key binary, value binary"
_KM: Final = 1.609344
"""Kilometres of a mile."""


def enrich(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields each flight as JSON, keyed by its route, with kilometres and speed.

    Args:
        batches: flights in Avro's binary form, in a single column.
    """
    for batch in batches:
        keys: list[bytes] = []
        values: list[bytes] = []
        for raw in batch.column(0).to_pylist():
            flight = decode_flight(raw)
            km, minutes = flight["distance"] * _KM, flight["air_time"]
            speed = None if not minutes else round(km * 60 / minutes)
            keys.append(f"{flight['origin']}-{flight['dest']}".encode())
            values.append(json.dumps({**flight, "km": round(km), "km_per_h": speed}).encode())
        columns = [pa.array(keys, pa.binary()), pa.array(values, pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, ["key", "value"])


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
