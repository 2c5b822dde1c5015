"""What a coordinator process prints once it serves, for whoever started it. Imports little."""

from __future__ import annotations

from pathlib import Path
from typing import Final

READY: Final = "coordinator ready on "
"""Its address follows."""


def says_ready(output: Path, *, from_byte: int = 0) -> bool:
    """Whether the coordinator that prints into a file serves, or stands by.

    Args:
        output: of the process; it may have been written to before.
        from_byte: where it began to.
    """
    with output.open("rb") as printed:
        printed.seek(from_byte)
        return READY.encode() in printed.read()
