"""`logtx subscription skip`: passes over messages of a queue."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple, cast

import typer

from ...journal.errors import ConfigError, NotAllowedError
from .asking import EXIT_FAILED, Timeout, asking, complain
from .connection import Kafka
from .subscription_parts import Name, find_part, look, parse_place
from .text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...consumer.core.pending import Record
    from ...coordinator.client.admin import AdminQueries
    from ...coordinator.protocol.queues import AckResult
    from ...journal.logs.interface import Log
    from ...journal.spans import Span
    from ..inspect.subscriptions import PartitionRow

OFFSETS_MAX: Final = 10_000
"""Most offsets that one command names, for it looks at the record of each. More take longer, and
`--before` takes any number."""


class _Named(NamedTuple):
    """What one argument names."""

    text: str
    first: int
    last: int
    sequence: int | None = None
    """Commit sequence of the one transaction that is meant, of those placed at the offset."""

    @property
    def offset_count(self) -> int:
        """Number of its offsets."""
        return self.last + 1 - self.first


def skip_messages(
    name: Name,
    place: Annotated[
        str, typer.Argument(metavar="TOPIC[PARTITION]", help="The partition, as in 'orders[0]'.")
    ],
    offsets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OFFSET...",
            help="Offsets, ranges of them with both ends, or placed transactions: 17 20-29 30@5.",
        ),
    ] = None,
    *,
    kafka: Kafka,
    before: Annotated[
        int | None,
        typer.Option(min=1, metavar="OFFSET", help="All that is delivered before this offset."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Do it. Without, only what would be done is checked.")
    ] = False,
    timeout: Timeout = 10.0,
) -> None:
    """Pass over messages of a subscription: nobody gets them any more, and nobody works them off.

    They count as rejected, and become no dead letters. A consumer that works on one of them loses
    it. What an unfinished transaction acknowledges stays as it is, and exit status 1 says so:
    abort that transaction first (`logtx subscription show`, `logtx txn abort`).

    A transaction's messages are delivered together, at the offset of its marker: that one names all
    of them. The offset of one of its records is refused.

    In a topic in metadata mode, a transaction's messages are delivered before the record at some
    offset. To name that one passes over the record alone. A range, and `--before`, have all that is
    delivered between. The transaction alone is named by its commit sequence, as in 17@5.

    Examples:

    ```
    logtx subscription skip invoicing 'orders[0]' 17 20-29 --bootstrap-servers localhost:9092
    logtx subscription skip invoicing 'orders[0]' 17 --execute --bootstrap-servers localhost:9092
    logtx subscription skip invoicing 'orders[0]' --before 1000 --execute
    ```
    """
    from ...journal.acks import Acks

    topic, number = parse_place(place)
    named = _parse(offsets or (), before)
    with asking(kafka, timeout) as (log, admin):
        row = look(log, admin, name, timeout)
        part = find_part(row, topic, number)
        _check_in_log(part, named)
        whole, home = before is not None, _home_of(admin, part)
        spans = [
            _span(log, part, each, timeout, whole=whole, may_be_placed=home is not None)
            if each.sequence is None
            else _span_of_placed(log, home, part, each, timeout)
            for each in named
        ]
        if not execute:
            left = sum(_left(part, span) for span in spans)
            placed = sum(each.sequence is not None for each in named)
            transactions = "transaction" if placed == 1 else "transactions"
            and_placed = f" and {placed} placed {transactions}" if placed else ""
            typer.echo(
                f"up to {left} offsets{and_placed} of {topic}[{number}] would be passed over."
                " Nothing was changed: add --execute"
            )
            return
        assert row.transaction_group is not None, "it was asked for by its name"
        acks = [Acks(part.info.partition, tuple(spans))]
        results = admin.skip(row.transaction_group, row.info, acks)
    told = [f"{topic}[{number}] {each.text}" for each in named]
    _report(name, told, results)


def _report(name: str, ranges: Sequence[str], results: Sequence[AckResult]) -> None:
    from ...coordinator.protocol.queues import AckResult

    for each, result in zip(ranges, results, strict=True):
        typer.echo(printable(f"{each}: {_told(result)}"))
    if AckResult.PENDING in results:
        complain(
            "some of it is acknowledged by a transaction that is not finished, and was left as it"
            f" is: see logtx subscription show {name}"
        )
        raise typer.Exit(EXIT_FAILED)


# ---- what is to be skipped ----------------------------------------------------------------------


def _parse(offsets: Sequence[str], before: int | None) -> list[_Named]:
    named = [_parse_one(text) for text in offsets]
    if (before is None) == (not named):
        raise typer.BadParameter("give offsets, or --before an offset", param_hint="OFFSET")
    if sum(each.offset_count for each in named) > OFFSETS_MAX:
        raise typer.BadParameter(
            f"name {OFFSETS_MAX} offsets at most, or --before an offset", param_hint="OFFSET"
        )
    return named if before is None else [_Named(f"0-{before - 1}", 0, before - 1)]


def _parse_one(text: str) -> _Named:
    match = re.fullmatch(r"(\d+)(?:-(\d+)|@(\d{1,18}))?", text)
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else -1
    if match is None or first > last:
        raise typer.BadParameter(
            f"{text!r} is no offset, as in 17, no range, as in 20-29, and no placed transaction, as"
            " in 30@5",
            param_hint="OFFSET",
        )
    if match[3]:
        return _Named(text, first, last, int(match[3]))
    return _Named(f"{first}-{last}", first, last)


def _check_in_log(part: PartitionRow, named: list[_Named]) -> None:
    where = f"{part.info.partition.topic}[{part.info.partition.partition}]"
    if part.end is None:
        raise ConfigError(f"no broker tells where {where} ends: try again")
    for each in named:
        # At the end itself, transactions may be placed.
        is_placed = each.sequence is not None
        if each.last >= part.end + is_placed:
            name = "places up to" if is_placed else "offsets below"
            raise ConfigError(
                f"{where} ends at {part.end}, and has no offset {each.last} yet: name {name} its"
                " end"
            )


def _home_of(admin: AdminQueries, part: PartitionRow) -> int | None:
    """Returns the home that may have placed transactions in a partition; None if none has."""
    topic = admin.describe_topic(part.info.partition.topic)
    mode = topic.info
    is_its = mode.mode_offset >= 0 and mode.topic_id == part.info.partition.topic_id
    return topic.home if is_its else None


def _span_of_placed(
    log: Log, home: int | None, part: PartitionRow, named: _Named, timeout_s: float
) -> Span:
    """Returns the span of one placed transaction.

    A sequence that the home has not reached could be that of a later one, which would be passed
    over unseen.

    Raises:
        NotAllowedError: nothing can be placed in the partition.
        ConfigError: nothing is decided at this commit sequence.
    """
    from ...journal.places import Adoption
    from ...journal.reader import JOURNAL_TOPIC, RecordsTrimmedError, read_entries
    from ...journal.records.types import PrepareCommit
    from ...journal.spans import MessageId, Span

    topic, sequence = part.info.partition.topic, named.sequence
    assert sequence is not None, "it is asked for one that is placed"
    if home is None:
        raise NotAllowedError(
            f"{topic} is not in metadata mode, so nothing is placed in it: name {named.first},"
            " where a transaction's marker lies"
        )
    end = log.end_offset(JOURNAL_TOPIC, home, timeout_s=timeout_s)
    entries = read_entries(log, home, sequence, min(end, sequence + 1), timeout_s=timeout_s)
    try:
        with closing(entries):
            decided = any(isinstance(e.record, PrepareCommit | Adoption) for _, e in entries)
    except RecordsTrimmedError:
        decided = True  # Long ago: what is torn may be as old.
    if not decided:
        raise ConfigError(
            f"{named.text}: nothing is committed at {JOURNAL_TOPIC}[{home}] offset {sequence}: give"
            " the commit sequence that an error names, or `logtx subscription peek` under `at`"
        )
    return Span(MessageId(named.first, sequence), MessageId(named.first, sequence + 1))


def _span(
    log: Log,
    part: PartitionRow,
    named: _Named,
    timeout_s: float,
    *,
    whole: bool,
    may_be_placed: bool,
) -> Span:
    """Returns the span of what is delivered at these offsets.

    It ends right behind the last message: what comes next is named from there on, and would be
    touched by a longer one.

    Args:
        log: the log of the topic.
        part: its partition.
        named: the offsets.
        timeout_s: longest wait for records, in seconds.
        whole: whether all that is delivered before is in the span. If not, it must have no single
            records of transactions, which are delivered elsewhere (trap 133).
        may_be_placed: whether a home may have placed transactions in the partition.

    Raises:
        NotAllowedError: it has one.
    """
    from ...consumer.core.headers import is_marker, txid_of
    from ...consumer.malformed import make_readable
    from ...journal.reader import read_records
    from ...journal.spans import AT_OFFSET, MessageId, Span

    topic, number = part.info.partition.key
    _, first, last, _ = named
    assert part.log_start is not None, "its end is known"
    messages, start = 1, max(part.log_start, last if whole else first)
    read = read_records(log, topic, number, start, last + 1, timeout_s=timeout_s)
    for message in read:
        make_readable([message])
        record = cast("Record", message)
        marks = is_marker(record)
        if not whole and not marks and txid_of(record) is not None:
            raise NotAllowedError(
                f"the record at offset {record.offset()} of {topic}[{number}] is of a transaction,"
                " whose messages are delivered together at its marker, or where it is placed: name"
                " that, as `logtx subscription peek` shows it under `at`, or pass over all that is"
                " delivered --before an offset"
            )
        if record.offset() == last and marks:
            messages = _message_count(record)
    # What is placed at the first offset is delivered before the record there, which alone was named
    # (trap 155). Where nothing can be placed, the gap before that record goes with it.
    lo = MessageId(first, AT_OFFSET) if may_be_placed and not whole else MessageId(first)
    return Span(lo, MessageId(last, AT_OFFSET, messages))


def _message_count(marker: Record) -> int:
    from ...consumer.core.headers import control_of
    from ...journal.control import Marker, decode_control

    control = decode_control(control_of(marker))
    assert isinstance(control, Marker), "it is one"
    return max(1, sum(each.count for each in (*control.branches, *control.sidecar)))


def _left(part: PartitionRow, span: Span) -> int:
    """Returns the most offsets of a span that can be passed over."""
    from ...journal.spans import Span

    lo = max(span.lo, part.info.start)
    return Span(lo, span.hi).offset_count if lo < span.hi else 0


def _told(result: AckResult) -> str:
    return {
        "done": "passed over",
        "deleted": "was acknowledged before",
        "pending": "acknowledged by a transaction",
    }[result.value]
