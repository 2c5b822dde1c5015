"""The line that a coordinator process prints once it serves. Imports little."""

from __future__ import annotations

from pathlib import Path
from typing import Final

READY: Final = "coordinator ready on "
"""Start of the line; the coordinator's address follows."""


def says_ready(output: Path, *, from_byte: int = 0) -> bool:
    """Returns whether the coordinator that prints into a file serves or stands by.

    Args:
        output: file with the output of the process; it may hold older output.
        from_byte: where the output of this process begins.
    """
    with output.open("rb") as printed:
        printed.seek(from_byte)
        return READY.encode() in printed.read()
