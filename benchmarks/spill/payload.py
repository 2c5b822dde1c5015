"""Values that follow from their numbers, and are all different."""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Any, Final

NUMBER_BYTES: Final = 8
"""Bytes of a value's number, with which it begins."""
_BLOCK: Final = random.Random(5).randbytes(1 << 16)
"""Where values take their other bytes from: random, so that nothing compresses them."""
_STEP: Final = 31
"""Bytes between the places in `_BLOCK` where two successive values begin."""


class Payload:
    """The values of one transaction."""

    def __init__(self, size: int, count: int) -> None:
        """Keeps the sizes; `value` makes the values.

        Args:
            size: bytes of each value.
            count: number of values.
        """
        if not NUMBER_BYTES <= size < len(_BLOCK):
            raise ValueError(f"values of {size} bytes")
        self.size, self.count = size, count

    def value(self, number: int) -> bytes:
        """Returns the value of this number."""
        length = self.size - NUMBER_BYTES
        start = number * _STEP % (len(_BLOCK) - length)
        return number.to_bytes(NUMBER_BYTES, "big") + _BLOCK[start : start + length]

    def digest(self) -> str:
        """Returns the digest of all values, in order."""
        found = blake2b()
        for number in range(self.count):
            found.update(self.value(number))
        return found.hexdigest()


def number_of(message: Any) -> int:
    """Returns the number of a message whose value is a `Payload`'s."""
    return int.from_bytes(message.value()[:NUMBER_BYTES], "big")
