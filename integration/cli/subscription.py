"""`logtx subscription`: what became of the messages of queues, and how to pass over some."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import typer

from ...journal.errors import (
    ConfigError,
    NotAllowedError,
    NotSupportedError,
    UnknownSubscriptionError,
)
from .asking import (
    EXIT_FAILED,
    AsJson,
    Timeout,
    asking,
    complain,
    everywhere,
    report,
    unreachable_json,
)
from .connection import Kafka, with_kafka
from .text import print_json, print_rows, printable, show_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...consumer.core.pending import Record
    from ...coordinator.client.admin import AdminQueries
    from ...coordinator.protocol.queues import AckResult, SubscriptionInfo
    from ...journal.logs.interface import Log
    from ...journal.spans import MessageId, Span
    from ..inspect.subscriptions import PartitionRow, SubscriptionRow

OFFSETS_MAX: Final = 10_000
"""Most offsets that one command names, for it looks at the record of each. More take longer, and
`--before` takes any number."""

subscription = typer.Typer(
    no_args_is_help=True,
    help="Show what became of the messages of queues, and pass over some.",
)

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The subscription: the consumers' group.id.")
]


@subscription.command("list")
@with_kafka
def list_subscriptions(*, kafka: Kafka, timeout: Timeout = 10.0, as_json: AsJson = False) -> None:
    """Show all subscriptions, and how much each has to work off.

    `depth` is the number of offsets that are not acknowledged, with those of markers and of aborted
    records between them. `oldest` is when the first record among them was written: empty if there
    is none, or if no broker tells in time. Exit status 3 means that not every journal partition
    answered.

    Examples:

    ```
    logtx subscription list --bootstrap-servers localhost:9092
    ```
    """
    from ..inspect.subscriptions import subscription_rows

    with asking(kafka, timeout) as (log, admin):

        def ask(partition: int) -> list[tuple[str | None, SubscriptionInfo]]:
            try:
                found = list(admin.subscriptions(partition))
            except NotSupportedError as error:
                raise _old_build(error) from error
            return [(admin.bound(info.group).transaction_group, info) for info in found]

        answers, unreachable = everywhere(admin, ask)
        rows = subscription_rows(log, answers, timeout_s=timeout)
    if as_json:
        found = [_summary_json(row) for row in rows]
        print_json({"subscriptions": found, "unreachable": unreachable_json(unreachable)})
    elif rows:
        columns = (
            *("subscription", "transaction group", "kind", "topics", "consumers", "depth"),
            "oldest",
        )
        print_rows(columns, [_summary(row) for row in rows])
    else:
        typer.echo("no subscription")
    report(unreachable)


@subscription.command("show")
@with_kafka
def show_subscription(
    name: Name, *, kafka: Kafka, timeout: Timeout = 10.0, as_json: AsJson = False
) -> None:
    """Show each partition of a subscription, its consumers, and the transactions that acknowledge.

    All before `deleted to` is acknowledged. `pending` is what transactions acknowledge that are not
    finished, `leased` what consumers work on; both are part of the `depth`. `age` is that of the
    first record that is not acknowledged. If `starts at`, where the topic's log starts, lies above
    `deleted to`, then retention has taken messages that nobody worked off.

    What was given out again, and rejected, is counted since the coordinator took over.

    Examples:

    ```
    logtx subscription show invoicing --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (log, admin):
        row = _look(log, admin, name, timeout)
    if as_json:
        print_json(_json(row))
        return
    info = row.info
    typer.echo(
        printable(
            f"{info.group}: {info.kind.value}, transaction group {row.transaction_group}, given out"
            f" again {info.redelivered}, rejected {info.rejected}"
        )
    )
    columns = (
        *("topic", "partition", "starts at", "ends at", "deleted to", "pending", "leased"),
        *("depth", "age"),
    )
    print_rows(columns, [_partition(each) for each in row.partitions])
    if info.consumers:
        print_rows(
            ("consumer", "topics", "leased", "state"),
            [
                (f"{c.consumer:016x}", ", ".join(c.topics), c.leased, _state(gone=c.gone))
                for c in info.consumers
            ],
        )
    else:
        typer.echo("no consumer is attached")
    for txid in dict.fromkeys(txid for part in info.partitions for txid in part.txids):
        typer.echo(printable(f"transaction {txid} acknowledges some (logtx txn describe {txid})"))


@subscription.command("skip")
@with_kafka
def skip_messages(
    name: Name,
    place: Annotated[
        str, typer.Argument(metavar="TOPIC[PARTITION]", help="The partition, as in 'orders[0]'.")
    ],
    offsets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OFFSET...",
            help="Offsets, or ranges of them with both ends: 17 20-29.",
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
    delivered between.

    Examples:

    ```
    logtx subscription skip invoicing 'orders[0]' 17 20-29 --bootstrap-servers localhost:9092
    logtx subscription skip invoicing 'orders[0]' 17 --execute --bootstrap-servers localhost:9092
    logtx subscription skip invoicing 'orders[0]' --before 1000 --execute
    ```
    """
    from ...coordinator.protocol.queues import AckResult
    from ...journal.acks import Acks

    topic, number = _parse_place(place)
    ranges = [_parse_range(text) for text in offsets or ()]
    if (before is None) == (not ranges):
        raise typer.BadParameter("give offsets, or --before an offset", param_hint="OFFSET")
    if sum(last + 1 - first for first, last in ranges) > OFFSETS_MAX:
        raise typer.BadParameter(
            f"name {OFFSETS_MAX} offsets at most, or --before an offset", param_hint="OFFSET"
        )
    if before is not None:
        ranges = [(0, before - 1)]
    with asking(kafka, timeout) as (log, admin):
        row = _look(log, admin, name, timeout)
        part = _part(row, topic, number)
        _check_in_log(part, ranges)
        whole, may_be_placed = before is not None, _may_be_placed(admin, part)
        spans = [
            _span(log, part, first, last, timeout, whole=whole, may_be_placed=may_be_placed)
            for first, last in ranges
        ]
        if not execute:
            left = sum(_left(part, span) for span in spans)
            typer.echo(
                f"up to {left} offsets of {topic}[{number}] would be passed over. Nothing was"
                " changed: add --execute"
            )
            return
        results = admin.skip(name, [Acks(part.info.partition, tuple(spans))])
    for (first, last), result in zip(ranges, results, strict=True):
        typer.echo(printable(f"{topic}[{number}] {first}-{last}: {_told(result)}"))
    if AckResult.PENDING in results:
        complain(
            "some of it is acknowledged by a transaction that is not finished, and was left as it"
            f" is: see logtx subscription show {name}"
        )
        raise typer.Exit(EXIT_FAILED)


def _look(log: Log, admin: AdminQueries, name: str, timeout_s: float) -> SubscriptionRow:
    from ..inspect.subscriptions import subscription_rows

    try:
        found = admin.subscription(name)
    except NotSupportedError as error:
        raise _old_build(error) from error
    (row,) = subscription_rows(log, [found], timeout_s=timeout_s)
    return row


def _old_build(error: NotSupportedError) -> NotSupportedError:
    return NotSupportedError(
        f"a coordinator of an older build answers, which tells nothing of subscriptions ({error}):"
        " upgrade all coordinators"
    )


# ---- what is to be skipped ----------------------------------------------------------------------


def _parse_place(text: str) -> tuple[str, int]:
    match = re.fullmatch(r"(.+)\[(\d+)\]", text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no partition, as in 'orders[0]'", param_hint="TOPIC[PARTITION]"
        )
    return match[1], int(match[2])


def _parse_range(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    first = int(match[1]) if match else 0
    last = int(match[2] or match[1]) if match else -1
    if first > last:
        raise typer.BadParameter(
            f"{text!r} is no offset, as in 17, and no range, as in 20-29", param_hint="OFFSET"
        )
    return first, last


def _part(row: SubscriptionRow, topic: str, number: int) -> PartitionRow:
    for each in row.partitions:
        if each.info.partition.key == (topic, number) and not each.info.former:
            return each
    raise UnknownSubscriptionError(
        f"subscription {row.info.group!r} has no partition {topic}[{number}]:"
        f" logtx subscription show {row.info.group} lists those that it has. A topic that was"
        " created anew joins when a consumer attaches"
    )


def _check_in_log(part: PartitionRow, ranges: list[tuple[int, int]]) -> None:
    last = max(last for _, last in ranges)
    where = f"{part.info.partition.topic}[{part.info.partition.partition}]"
    if part.end is None:
        raise ConfigError(f"no broker tells where {where} ends: try again")
    if last >= part.end:
        raise ConfigError(
            f"{where} ends at {part.end}, and has no offset {last} yet: name offsets below its end"
        )


def _may_be_placed(admin: AdminQueries, part: PartitionRow) -> bool:
    """Returns whether a home may have placed transactions in a partition."""
    mode = admin.describe_topic(part.info.partition.topic).info
    return mode.mode_offset >= 0 and mode.topic_id == part.info.partition.topic_id


def _span(
    log: Log,
    part: PartitionRow,
    first: int,
    last: int,
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
        first: first offset.
        last: last offset.
        timeout_s: longest wait for records, in seconds.
        whole: whether all that is delivered before is in the span. If not, it must have no single
            records of transactions, which are delivered elsewhere (trap 133).
        may_be_placed: whether a home may have placed transactions in the partition.

    Raises:
        NotAllowedError: it has one.
    """
    from ...consumer.core.headers import is_marker, txid_of
    from ...journal.reader import read_records
    from ...journal.spans import AT_OFFSET, MessageId, Span

    topic, number = part.info.partition.key
    assert part.log_start is not None, "its end is known"
    messages, start = 1, max(part.log_start, last if whole else first)
    read = read_records(log, topic, number, start, last + 1, timeout_s=timeout_s)
    for record in cast("Iterator[Record]", read):
        marks = is_marker(record)
        if not whole and not marks and txid_of(record) is not None:
            raise NotAllowedError(
                f"the record at offset {record.offset()} of {topic}[{number}] is of a transaction,"
                " whose messages are delivered together at its marker: name the offset of the"
                " marker, or pass over all that is delivered --before an offset"
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


# ---- what is shown ------------------------------------------------------------------------------


def _state(*, gone: bool) -> str:
    return "gone" if gone else "attached"


def _summary(row: SubscriptionRow) -> tuple[Any, ...]:
    return (
        row.info.group,
        row.transaction_group,
        row.info.kind.value,
        ", ".join(row.topics),
        len(row.info.consumers),
        row.depth,
        show_time(row.oldest_ms),
    )


def _summary_json(row: SubscriptionRow) -> dict[str, Any]:
    return {
        "subscription": row.info.group,
        "transaction_group": row.transaction_group,
        "kind": row.info.kind.value,
        "topics": row.topics,
        "consumers": len(row.info.consumers),
        "depth": row.depth,
        "oldest_ms": row.oldest_ms,
    }


def _partition(row: PartitionRow) -> tuple[Any, ...]:
    info = row.info
    return (
        info.partition.topic,
        info.partition.partition,
        row.log_start,
        "topic is no more" if info.former else row.end,
        _bound(info.start),
        info.pending,
        info.leased,
        row.depth,
        None if row.oldest_ms is None else f"{_age_s(row.oldest_ms):.0f} s",
    )


def _bound(at: MessageId) -> str:
    """Shows where all before is deleted: within what is delivered at an offset, or before it."""
    return f"{at.offset}" if at.sequence == 0 and at.nth == 0 else f"within {at.offset}"


def _age_s(written_ms: int) -> float:
    return max(0.0, time.time() - written_ms / 1000)


def _json(row: SubscriptionRow) -> dict[str, Any]:
    return {
        **_summary_json(row),
        "consumers": [
            {
                "consumer": f"{each.consumer:016x}",
                "topics": list(each.topics),
                "leased": each.leased,
                "gone": each.gone,
            }
            for each in row.info.consumers
        ],
        "redelivered": row.info.redelivered,
        "rejected": row.info.rejected,
        "partitions": [
            {
                "topic": each.info.partition.topic,
                "partition": each.info.partition.partition,
                "topic_id": each.info.partition.topic_id,
                "former": each.info.former,
                "start": each.log_start,
                "end": each.end,
                "deleted_to": list(each.info.start),
                "pending": each.info.pending,
                "leased": each.info.leased,
                "depth": each.depth,
                "oldest_ms": each.oldest_ms,
                "transactions": [str(txid) for txid in each.info.txids],
            }
            for each in row.partitions
        ],
    }
