"""Values of which each is known from its number, and none is like another."""

from __future__ import annotations

import random
from hashlib import blake2b
from typing import Final

NUMBER_BYTES: Final = 8
_BLOCK: Final = random.Random(5).randbytes(1 << 16)
_STEP: Final = 31


class Payload:
    """The values of one transaction."""

    def __init__(self, size: int, count: int) -> None:
        """Nothing is made yet.

        Args:
            size: bytes of each value.
            count: of values.
        """
        if not NUMBER_BYTES <= size < len(_BLOCK):
            raise ValueError(f"values of {size} bytes")
        self.size, self.count = size, count

    def value(self, number: int) -> bytes:
        """The value of this number."""
        length = self.size - NUMBER_BYTES
        start = number * _STEP % (len(_BLOCK) - length)
        return number.to_bytes(NUMBER_BYTES, "big") + _BLOCK[start : start + length]

    def digest(self) -> str:
        """Of all values, in order."""
        found = blake2b()
        for number in range(self.count):
            found.update(self.value(number))
        return found.hexdigest()
