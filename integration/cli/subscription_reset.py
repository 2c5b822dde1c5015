"""`logtx subscription reset` and `delete`: queues that begin anew, and queues that are no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from .asking import AsJson, Timeout, asking
from .connection import Kafka
from .subscription_parts import Name, bound_text, look, old_build_told, parse_topic_or_partition
from .text import parse_time_ms, print_json, print_rows, printable

if TYPE_CHECKING:
    from ..inspect.subscription_starts import NewStart, Target

_LACK: Final = "can't end subscriptions"
Execute = Annotated[
    bool, typer.Option("--execute", help="Do it. Without, it only shows what would be done.")
]


def reset_subscription(
    name: Name,
    *,
    kafka: Kafka,
    to_earliest: Annotated[
        bool, typer.Option("--to-earliest", help="To the first messages that the topics have.")
    ] = False,
    to_latest: Annotated[
        bool, typer.Option("--to-latest", help="To the ends: only what comes from now on.")
    ] = False,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="To the first records stamped then or later, as 2026-11-23T12:00Z. A partition"
            " that has none begins at its end.",
        ),
    ] = None,
    to_offset: Annotated[
        int | None,
        typer.Option(min=0, metavar="OFFSET", help="To this offset, in each partition."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC",
            help="Only partitions of this topic, or one of them, as 'orders[0]'. May be repeated.",
        ),
    ] = None,
    execute: Execute = False,
    timeout: Timeout = 10.0,
    as_json: AsJson = False,
) -> None:
    """Let a subscription begin anew: show what that does, or do it.

    All messages from the new start on come again, whatever became of them, and all before are
    deleted. A transaction's messages are delivered together, at its marker: that decides.

    Stop the consumers first: a reset is refused while one is attached, and a second after it left.
    It is refused, too, while a transaction acknowledges messages (`logtx subscription show` names
    it). What was given out before can't be acknowledged any more: a consumer that comes back late
    learns that from SubscriptionResetError.

    Examples:

    ```
    logtx subscription reset invoicing --to-earliest --bootstrap-servers localhost:9092
    logtx subscription reset invoicing --to-datetime 2026-11-23T12:00Z --execute
    logtx subscription reset invoicing --to-offset 1000 --topic 'orders[0]' --execute
    ```
    """
    from ..inspect.subscription_starts import new_starts

    target = _target(to_earliest, to_latest, to_datetime, to_offset)
    where = [parse_topic_or_partition(text) for text in topic or ()]
    with asking(kafka, timeout) as (log, admin):
        row = look(log, admin, name, timeout)
        starts = new_starts(log, row, target, where, timeout_s=timeout)
        if execute:
            assert row.transaction_group is not None, "it was asked for by its name"
            with old_build_told(_LACK):
                offsets = {each.partition: each.then for each in starts}
                admin.reset_subscription(row.transaction_group, row.info, offsets)
    if as_json:
        print_json({"subscription": name, "executed": execute, "partitions": _json(starts)})
        return
    columns = ("topic", "partition", "deleted to", "then", "depth", "then")
    print_rows(columns, [_row(each) for each in starts])
    if execute:
        typer.echo(printable(f"subscription {name} was reset"))
    else:
        typer.echo("Nothing was changed: add --execute")


def delete_subscription(
    name: Name, *, kafka: Kafka, execute: Execute = False, timeout: Timeout = 10.0
) -> None:
    """Forget a subscription, and what became of its messages: show what that does, or do it.

    Stop the consumers first, as for `reset`. A consumer that subscribes later makes the
    subscription anew, of a kind of its own, and begins where its `auto.offset.reset` says.

    The name stays bound to its transaction group. `logtx group unbind NAME` ends that, so that it
    may belong to another one, or be a consumer group.

    Examples:

    ```
    logtx subscription delete invoicing --bootstrap-servers localhost:9092
    logtx subscription delete invoicing --execute --bootstrap-servers localhost:9092
    ```
    """
    with asking(kafka, timeout) as (log, admin):
        row = look(log, admin, name, timeout)
        assert row.transaction_group is not None, "it was asked for by its name"
        if not execute:
            depth = "an unknown number of" if row.depth is None else row.depth
            typer.echo(
                printable(
                    f"subscription {name} of {len(row.partitions)} partitions would be forgotten,"
                    f" with {depth} offsets that are not acknowledged. Nothing was changed: add"
                    " --execute"
                )
            )
            return
        with old_build_told(_LACK):
            admin.delete_subscription(row.transaction_group, row.info)
    typer.echo(
        printable(
            f"subscription {name} is forgotten; its name stays bound to transaction group"
            f" {row.transaction_group} (logtx group unbind {name})"
        )
    )


def _target(
    to_earliest: bool, to_latest: bool, to_datetime: str | None, to_offset: int | None
) -> Target:
    from ..inspect.subscription_starts import Target

    given = (to_earliest, to_latest, to_datetime is not None, to_offset is not None)
    if sum(given) != 1:
        raise typer.BadParameter(
            "give one of --to-earliest, --to-latest, --to-datetime and --to-offset"
        )
    return Target(
        earliest=to_earliest,
        latest=to_latest,
        time_ms=None if to_datetime is None else parse_time_ms(to_datetime),
        offset=to_offset,
    )


def _row(each: NewStart) -> tuple[Any, ...]:
    topic, number = each.partition.key
    return topic, number, bound_text(each.now), each.then, each.depth, each.depth_then


def _json(starts: list[NewStart]) -> list[dict[str, Any]]:
    return [
        {
            "topic": each.partition.topic,
            "partition": each.partition.partition,
            "topic_id": each.partition.topic_id,
            "deleted_to": list(each.now),
            "new_start": each.then,
            "depth": each.depth,
            "new_depth": each.depth_then,
        }
        for each in starts
    ]
