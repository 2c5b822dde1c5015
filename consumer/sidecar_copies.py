"""Reading copies of ranges of sidecars: records as their originals, and where to read on. Pure.

`journal.relocation` says what a copy is.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any, Final, cast

from ..journal.relocation import Headers, Origin, Relocation, origin_of, original_headers


class Original:
    """A record of a copy, with what its original had."""

    __slots__ = ("_headers", "_origin", "_record")

    def __init__(self, record: Any, origin: Origin, headers: Headers) -> None:
        self._record, self._origin = record, origin
        self._headers = original_headers(headers, origin)

    def offset(self) -> int:
        return self._origin.offset

    def headers(self) -> Headers:
        return self._headers

    def key(self) -> Any:
        return self._record.key()

    def value(self) -> Any:
        return self._record.value()

    def timestamp(self) -> tuple[int, int]:
        return self._origin.timestamp

    def __len__(self) -> int:
        return len(self._record)


def originals(records: Sequence[Any], moved: Relocation, from_offset: int) -> list[Original]:
    """Returns those records of a copy whose originals had this offset, or a higher one.

    Args:
        records: what was fetched of the sidecar, in order.
        moved: where the copy lies.
        from_offset: the lowest offset of an original to return.
    """
    found = []
    for record in records:
        try:
            headers = cast(Headers, record.headers() or [])
        except SystemError:
            continue  # Somebody else's: the name of a header is not UTF-8.
        origin = origin_of(headers)
        if origin is None or (origin.copy_id, origin.txid) != (moved.copy_id, moved.txid):
            continue
        if origin.offset >= from_offset:  # In the order of the originals, so each comes once.
            found.append(Original(record, origin, headers))
            from_offset = origin.offset + 1
    return found


class CopyPlaces:
    """Where in a copy its originals are read from: from the nearest place that was passed before.

    A copy has others' records between its own, so only reading tells where an original's copy
    lies. A queue reads a range in many leases: each from the copy's first record on would fetch as
    many records as the square of their number.
    """

    def __init__(self, moved: Relocation) -> None:
        """Knows the copy's first record alone."""
        self.moved: Final = moved
        self._originals: Final = [0]
        self._places: Final = [moved.first]

    def of(self, original: int) -> int:
        """Returns the offset from which the copies of this original, and of all behind, follow."""
        return self._places[bisect_right(self._originals, original) - 1]

    def passed(self, upto: int, place: int) -> None:
        """Notes that the copies of all originals below `upto` lie below `place`."""
        index = bisect_left(self._originals, upto)
        if index == len(self._originals) or self._originals[index] != upto:
            self._originals.insert(index, upto)
            self._places.insert(index, place)
        # If no original came meanwhile, reading is to go on all the same.
        self._places[index] = max(self._places[index], place)
