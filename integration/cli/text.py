"""Prints for people and for programs; makes text from elsewhere safe for a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import typer
from rich.console import Console
from rich.table import Table

from ...journal.txid import TxId

SHOWN_MAX: Final = 50
"""Most rows of a table on a terminal; `--json` shows all."""
_WIDE: Final = 10_000
"""Columns of what is no terminal: nothing is cut or wrapped there."""


_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_txid(text: str) -> TxId:
    """Parses a TxId, such as "3-9f3ac1d2e4b7-17042". Raises BadParameter."""
    try:
        return TxId.parse(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a TxId, as in 3-9f3ac1d2e4b7-17042") from error


def parse_age_ms(text: str) -> int:
    """Parses an age such as "90s", "5m" or "2h". Returns milliseconds. Raises BadParameter."""
    match = re.fullmatch(r"(\d+)(ms|s|m|h|d)", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not an age, as in 90s, 5m or 2h")
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_time_ms(text: str) -> int:
    """Parses a time with its zone, as 2026-11-23T12:00Z. Returns milliseconds since 1970.

    Raises:
        BadParameter: it is something else.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a time, as in 2026-11-23T12:00Z") from error
    if at.tzinfo is None:
        raise typer.BadParameter(f"{text!r} has no zone: write {text}Z for UTC, or {text}+01:00")
    return round(at.timestamp() * 1000)


def printable(text: str) -> str:
    """Returns a text with its control and format characters escaped, such as \\\\x1b.

    Names come from whoever connected to a coordinator, and a terminal would obey what is in them.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_json(value: Any) -> None:
    """Prints a value as JSON."""
    json.dump(value, sys.stdout, indent=2)
    sys.stdout.write("\n")


def print_rows(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Prints a table. On a terminal long texts are folded, not cut, and there are at most
    `SHOWN_MAX` rows."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_WIDE)
    shown = rows[:SHOWN_MAX] if console.is_terminal else rows
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in shown:
        table.add_row(*("" if value is None else printable(str(value)) for value in row))
    console.print(table)
    if len(rows) > len(shown):
        console.print(f"… and {len(rows) - len(shown)} more; --json shows all")


def show_time(wall_ms: int | None) -> str | None:
    """Formats milliseconds since 1970 as ISO 8601, UTC."""
    if wall_ms is None:
        return None
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds")
