"""`logtx journal`: decisions about the journal that only an operator can make."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ...journal.errors import (
    ConfigError,
    CoordinatorNotAvailableError,
    LogtxError,
    RequestTimedOutError,
)
from ...journal.txid import TxId
from .cluster import open_cluster
from .connection import Kafka, with_kafka

if TYPE_CHECKING:
    from ...coordinator.client.admin import AdminQueries

ASK_TIMEOUT_S: Final = 3.0
"""How long to look for a running coordinator. A smaller value could miss a slow one, which would
write to the journal beside the repair; a larger one delays each repair."""

journal = typer.Typer(
    no_args_is_help=True, help="Repair the journal: decisions that only an operator can make."
)


@journal.command("accept-loss")
@with_kafka
def accept_loss(
    partition: Annotated[int, typer.Argument(min=0, help="Number of the journal partition.")],
    *,
    end: Annotated[
        int, typer.Option(min=1, help="The highest end that the coordinators' errors name.")
    ],
    kafka: Kafka,
) -> None:
    """Continue a journal partition whose tail the brokers lost, and give up the lost records.

    Coordinators refuse to serve such a partition; their errors name the end that the brokers had
    acknowledged. If a replica still has the tail, restore it from there. Otherwise stop all
    coordinators, run this command, and start them again. It fills the lost offsets with records
    that mean nothing, so that no TxId is used twice.

    Everything that was begun, decided or committed in the lost part counts as never having
    happened. The records of such transactions are not delivered, except where their markers were
    already written.

    Examples:

    ```
    logtx journal accept-loss 3 --end 18233 --bootstrap-servers localhost:9092
    ```
    """
    from ...coordinator.client.admin import AdminQueries
    from ...coordinator.client.tls import tls_of
    from ...coordinator.runtime.lost_tail import fill_lost_tail

    tls = tls_of(kafka)
    with (
        open_cluster(kafka) as log,
        closing(AdminQueries(log, timeout_s=ASK_TIMEOUT_S, tls=tls)) as admin,
    ):
        if _somebody_answers(admin, partition):
            raise ConfigError(
                "a coordinator is running: stop all of them first, for one that has read what was"
                " lost would go on with it"
            )
        next_offset = fill_lost_tail(log, partition, end)
    typer.echo(f"journal partition {partition} goes on at {next_offset}; start the coordinators")


def _somebody_answers(admin: AdminQueries, partition: int) -> bool:
    try:
        admin.outcome(TxId(partition, 0, 0))
    except (CoordinatorNotAvailableError, RequestTimedOutError):
        return False
    except LogtxError:
        return True  # A coordinator answered, for example that it can't serve the partition.
    return True
