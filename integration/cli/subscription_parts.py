"""What the commands of `logtx subscription` share: how a subscription is looked at, and named."""

from __future__ import annotations

import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from ...journal.errors import NotSupportedError, UnknownSubscriptionError

if TYPE_CHECKING:
    from collections.abc import Iterator

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

    with old_build_told("tells nothing of subscriptions"):
        found = admin.subscription(name, available_max=available_max)
    (row,) = subscription_rows(log, [found], timeout_s=timeout_s)
    return row


@contextmanager
def old_build_told(lack: str) -> Iterator[None]:
    """Tells an operator what to do when a coordinator knows no such request.

    Args:
        lack: what such a coordinator does not do, as "tells nothing of subscriptions".

    Raises:
        NotSupportedError: in place of the coordinator's.
    """
    try:
        yield
    except NotSupportedError as error:
        raise NotSupportedError(
            f"a coordinator of an older build is there, which {lack} ({error}): upgrade all"
            " coordinators"
        ) from error


def parse_place(text: str) -> tuple[str, int]:
    """Parses a partition, as in orders[0]. Raises BadParameter."""
    topic, number = parse_topic_or_partition(text)
    if number is None:
        raise typer.BadParameter(
            f"{text!r} is no partition, as in 'orders[0]'", param_hint="TOPIC[PARTITION]"
        )
    return topic, number


def parse_topic_or_partition(text: str) -> tuple[str, int | None]:
    """Parses a topic, or a partition, as in orders[0]. Returns None as the number of a topic."""
    match = re.fullmatch(r"(.+)\[(\d+)\]", text)
    return (text, None) if match is None else (match[1], int(match[2]))


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
