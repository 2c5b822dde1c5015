"""`logtx subscription peek`: the next messages of a queue."""

from __future__ import annotations

import base64
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .asking import AsJson, Timeout, asking
from .connection import Kafka
from .subscription_parts import Name, find_part, look, parse_place
from .text import print_json, print_rows, show_time

if TYPE_CHECKING:
    from ...journal.spans import MessageId
    from ..inspect.queue_peek import PeekedMessage

SHOWN_BYTES: Final = 60
"""Most bytes that are shown of a key or a value; `--json` has all of them."""


def peek_messages(
    name: Name,
    place: Annotated[
        str | None,
        typer.Argument(
            metavar="TOPIC[PARTITION]", help="One partition, as in 'orders[0]'; all without."
        ),
    ] = None,
    *,
    kafka: Kafka,
    limit: Annotated[
        int, typer.Option(min=1, max=1_000, help="Most messages of each partition.")
    ] = 10,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Show the next messages that would be given out. Nothing is leased, and nothing changes.

    They are read as consumers read them: a transaction's messages together, at its marker, whose
    offset `at` tells; or at its place, with its commit sequence, as 17@5 (metadata mode). What
    consumers have, what transactions acknowledge and what a delay holds back is not shown. A
    queue at work goes on meanwhile: some may be given out by now.

    Examples:

    ```
    logtx subscription peek invoicing --bootstrap-servers localhost:9092
    logtx subscription peek invoicing 'orders[0]' --limit 100 --json
    ```
    """
    from ..inspect.queue_peek import AVAILABLE_MAX, QueuePeeker

    wanted = None if place is None else parse_place(place)
    with asking(kafka, timeout) as (log, admin):
        row = look(log, admin, name, timeout, available_max=AVAILABLE_MAX)
        parts = [each for each in row.partitions if not each.info.former]
        if wanted is not None:
            parts = [find_part(row, *wanted)]
        with closing(QueuePeeker(log, kafka, name, timeout_s=timeout)) as peeker:
            found = [message for part in parts for message in peeker.peek(part, limit)]
    if as_json:
        print_json([_json(each) for each in found])
    elif found:
        columns = ("topic", "partition", "at", "offset", "time", "key", "value", "headers")
        print_rows((*columns, "transaction"), [_row(each) for each in found])
    else:
        typer.echo("no message")


def _row(each: PeekedMessage) -> tuple[Any, ...]:
    value = each.failure if each.failure is not None else _shown(each.value)
    return (
        *each.partition.key,
        _place(each.place),
        each.offset,
        show_time(each.written_ms),
        _shown(each.key),
        value,
        len(each.headers) or None,
        each.txid,
    )


def _place(at: MessageId) -> str:
    """Shows where a message is delivered: an offset; `@` and the commit sequence of a placed
    transaction, as `logtx subscription skip` takes it; and which one of its transaction it is."""
    sequence = _sequence(at)
    placed = "" if sequence is None else f"@{sequence}"
    return f"{at.offset}{placed}" + (f" +{at.nth}" if at.nth else "")


def _sequence(at: MessageId) -> int | None:
    """Returns the commit sequence of a placed transaction; None: it has a marker, or is plain."""
    from ...journal.spans import AT_OFFSET

    return at.sequence if 0 < at.sequence < AT_OFFSET else None


def _shown(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    text = raw[:SHOWN_BYTES].decode(errors="replace")
    return text if len(raw) <= SHOWN_BYTES else f"{text}… ({len(raw)} bytes)"


def _json(each: PeekedMessage) -> dict[str, Any]:
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "place": {
            "offset": each.place.offset,
            "sequence": _sequence(each.place),
            "nth": each.place.nth,
        },
        "offset": each.offset,
        "written_ms": each.written_ms,
        "key": _text(each.key),
        "value": _text(each.value),
        "headers": [{"name": name, "value": _text(value)} for name, value in each.headers],
        "transaction": None if each.txid is None else str(each.txid),
        "failure": each.failure,
    }


def _text(raw: bytes | None) -> str | dict[str, str] | None:
    """Returns bytes as JSON has them: a text if they are one, or in Base64."""
    if raw is None:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode()}
