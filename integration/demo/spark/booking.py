"""Turns flights into enriched ones and into ledger entries, in Arrow batches, on executors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from ..flights import Flight, decode_flight, encode_entry
from ..ledger import entries_of

SCHEMA: Final = "key binary, value binary"
_KM: Final = 1.609344
"""Kilometres of a mile."""


def enrich(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields each flight as JSON, keyed by its route, with kilometres and speed.

    Args:
        batches: flights in Avro's binary form, in a single column.
    """
    return _made_of(batches, _enriched)


def book(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yields two entries for each flight, keyed by airport; argument as `enrich`."""
    return _made_of(batches, _booked)


def _enriched(flight: Flight) -> Iterator[tuple[bytes, bytes]]:
    km, minutes = flight["distance"] * _KM, flight["air_time"]
    speed = None if not minutes else round(km * 60 / minutes)
    value = json.dumps({**flight, "km": round(km), "km_per_h": speed})
    yield f"{flight['origin']}-{flight['dest']}".encode(), value.encode()


def _booked(flight: Flight) -> Iterator[tuple[bytes, bytes]]:
    for entry in entries_of(flight):
        yield entry.airport.encode(), encode_entry(entry._asdict())


def _made_of(
    batches: Iterable[pa.RecordBatch], records: Callable[[Flight], Iterable[tuple[bytes, bytes]]]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        made = [r for raw in batch.column(0).to_pylist() for r in records(decode_flight(raw))]
        columns = [pa.array([record[at] for record in made], pa.binary()) for at in (0, 1)]
        yield pa.RecordBatch.from_arrays(columns, ["key", "value"])
