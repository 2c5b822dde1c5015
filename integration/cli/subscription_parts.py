"""What the commands of `logtx subscription` share: how a subscription is looked at, and named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from ...journal.errors import NotSupportedError, UnknownSubscriptionError

if TYPE_CHECKING:
    from ...coordinator.client.admin import AdminQueries
    from ...journal.logs.interface import Log
    from ...journal.spans import MessageId
    from ..inspect.subscriptions import PartitionRow, SubscriptionRow

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The subscription: the consumers' group.id.")
]


def look(
    log: Log, admin: AdminQueries, name: str, timeout_s: float, *, available_max: int = 0
) -> SubscriptionRow:
    """Returns a subscription as it is now, with some of the spans that may be given out.

    Raises:
        UnknownSubscriptionError: there is none of this name.
        NotSupportedError: a coordinator of an older build answers.
    """
    from ..inspect.subscriptions import subscription_rows

    try:
        found = admin.subscription(name, available_max=available_max)
    except NotSupportedError as error:
        raise old_build(error) from error
    (row,) = subscription_rows(log, [found], timeout_s=timeout_s)
    return row


def old_build(error: NotSupportedError) -> NotSupportedError:
    """Returns what an operator is told when a coordinator knows no such request."""
    return NotSupportedError(
        f"a coordinator of an older build answers, which tells nothing of subscriptions ({error}):"
        " upgrade all coordinators"
    )


def parse_place(text: str) -> tuple[str, int]:
    """Parses a partition, as in orders[0]. Raises BadParameter."""
    match = re.fullmatch(r"(.+)\[(\d+)\]", text)
    if match is None:
        raise typer.BadParameter(
            f"{text!r} is no partition, as in 'orders[0]'", param_hint="TOPIC[PARTITION]"
        )
    return match[1], int(match[2])


def find_part(row: SubscriptionRow, topic: str, number: int) -> PartitionRow:
    """Returns a partition of a subscription, of the topic that has its name now.

    Raises:
        UnknownSubscriptionError: it has none such.
    """
    for each in row.partitions:
        if each.info.partition.key == (topic, number) and not each.info.former:
            return each
    raise UnknownSubscriptionError(
        f"subscription {row.info.group!r} has no partition {topic}[{number}]:"
        f" logtx subscription show {row.info.group} lists those that it has. A topic that was"
        " created anew joins when a consumer attaches"
    )


def bound_text(at: MessageId) -> str:
    """Shows where all before is deleted: within what is delivered at an offset, or before it."""
    return f"{at.offset}" if at.sequence == 0 and at.nth == 0 else f"within {at.offset}"
