"""Keys and values of logtx's compacted topics: a version byte, then Avro. Pure."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import fastavro

from .errors import CorruptRecordError, JournalError, UnknownRecordError


@dataclass(frozen=True, slots=True)
class Versioned:
    """Encodes and decodes the records of one topic."""

    version: int
    """The version byte: readers refuse any other."""
    what: str
    """What a record is, as errors name it."""
    other: type[JournalError] = UnknownRecordError
    """Raised for another version."""

    def encode(self, schema: Any, body: Mapping[str, Any]) -> bytes:
        """Returns a body as bytes."""
        out = io.BytesIO()
        out.write(bytes((self.version,)))
        fastavro.schemaless_writer(out, schema, body)
        return out.getvalue()

    def decode(self, schema: Any, raw: bytes | None) -> dict[str, Any]:
        """Returns the body that bytes stand for.

        Raises:
            JournalError: they are of another version; which one `other` says.
            CorruptRecordError: they do not decode.
        """
        if not raw:
            raise CorruptRecordError(f"{self.what} is empty")
        if raw[0] != self.version:
            raise self.other(f"{self.what} is of version {raw[0]}; upgrade this program")
        source = io.BytesIO(raw[1:])
        try:
            body = fastavro.schemaless_reader(source, schema, schema)
        except (ValueError, EOFError, IndexError, TypeError) as error:
            raise CorruptRecordError(f"{self.what} does not decode: {error!r}") from error
        if not isinstance(body, dict) or source.read(1):
            raise CorruptRecordError(f"{self.what} has bytes left over")
        return body
