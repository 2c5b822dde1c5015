"""`logtx journal`: what only an operator can decide about the journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from ...journal.errors import (
    ConfigError,
    CoordinatorNotAvailableError,
    LogtxError,
    RequestTimedOutError,
)
from ...journal.logs.open import open_log
from ...journal.txid import TxId
from .admin import Servers

if TYPE_CHECKING:
    from ...coordinator.client.admin import AdminQueries

ASK_TIMEOUT_S: Final = 3.0

journal = typer.Typer(no_args_is_help=True, help="Decide what only an operator can.")


@journal.command("accept-loss")
def accept_loss(
    partition: Annotated[int, typer.Argument(min=0, help="The journal partition.")],
    *,
    end: Annotated[
        int, typer.Option(min=1, help="The highest end that a coordinator's error names.")
    ],
    bootstrap_servers: Servers,
) -> None:
    """Go on with a journal partition whose tail the brokers lost, and give up what was lost.

    Coordinators refuse such a partition, and say which offset was acknowledged. Restore it from a
    replica if there is one. Else stop all coordinators, run this, and start them again: the lost
    offsets are filled with records that mean nothing, so that no TxId is used twice. What was
    begun, decided or committed in the lost part was never so from then on; records of such
    transactions are not delivered, save where their markers were written already.

    Examples:

    ```
    logtx journal accept-loss 3 --end 18233 --bootstrap-servers localhost:9092
    ```
    """
    from ...coordinator.client.admin import AdminQueries
    from ...coordinator.runtime.lost_tail import fill_lost_tail

    log = open_log({"bootstrap.servers": bootstrap_servers})
    admin = AdminQueries(log, timeout_s=ASK_TIMEOUT_S)
    try:
        if _somebody_answers(admin, partition):
            raise ConfigError(
                "a coordinator is running: stop all of them first, for one that has read what was"
                " lost would go on with it"
            )
        next_offset = fill_lost_tail(log, partition, end)
    finally:
        admin.close()
        log.close()
    typer.echo(f"journal partition {partition} goes on at {next_offset}; start the coordinators")


def _somebody_answers(admin: AdminQueries, partition: int) -> bool:
    try:
        admin.outcome(TxId(partition, 0, 0))
    except (CoordinatorNotAvailableError, RequestTimedOutError):
        return False
    except LogtxError:
        return True  # Such as that it can't serve the partition.
    return True
