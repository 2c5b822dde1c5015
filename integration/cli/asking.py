"""Asks the coordinators of all journal partitions; used by most commands.

A listing asks every owner at the same time, each for up to `--timeout` seconds. If an owner can't
be reached, it reports that, shows the answers of the others, and ends with exit status 3. If none
answers, the command says how to start a coordinator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from rich.console import Console

from ...journal.errors import LogtxError
from .cluster import absence_told, open_cluster
from .connection import Kafka
from .text import printable

if TYPE_CHECKING:
    from ...coordinator.client.admin import AdminQueries
    from ...journal.logs.interface import Log

EXIT_FAILED: Final = 1
"""Exit status: something that was asked for could not be done."""
EXIT_INCOMPLETE: Final = 3
"""Exit status: not every journal partition answered, so the output is incomplete."""

Timeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds to wait for each coordinator's answer.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

_Item = TypeVar("_Item")


@contextmanager
def asking(kafka: Kafka, timeout_s: float) -> Iterator[tuple[Log, AdminQueries]]:
    """Provides the cluster's log, and the questions of operators to its coordinators."""
    from ...coordinator.client.admin import AdminQueries
    from ...coordinator.client.tls import tls_of

    with (
        open_cluster(kafka) as log,
        closing(AdminQueries(log, timeout_s=timeout_s, tls=tls_of(kafka))) as admin,
        absence_told(kafka),
    ):
        yield log, admin


@dataclass(frozen=True, slots=True)
class Unreachable:
    """A journal partition that did not answer."""

    partition: int
    error: LogtxError


def everywhere(
    admin: AdminQueries, ask: Callable[[int], Iterable[_Item]]
) -> tuple[list[_Item], list[Unreachable]]:
    """Asks all journal partitions. Returns the answers, and the partitions that gave none.

    Raises:
        CoordinatorNotAvailableError: none gave an answer.
    """
    partitions = range(admin.partition_count())

    def one(partition: int) -> list[_Item] | Unreachable:
        try:
            return list(ask(partition))
        except LogtxError as error:
            return Unreachable(partition, error)

    with ThreadPoolExecutor(min(len(partitions), 32)) as pool:
        answers = list(pool.map(one, partitions))
    found = [item for answer in answers if isinstance(answer, list) for item in answer]
    unreachable = [answer for answer in answers if isinstance(answer, Unreachable)]
    if len(unreachable) == len(partitions):
        raise unreachable[0].error
    return found, unreachable


def report(unreachable: Sequence[Unreachable]) -> None:
    """Prints the partitions that did not answer; if there are any, exits with `EXIT_INCOMPLETE`."""
    if not unreachable:
        return
    for each in unreachable:
        complain(f"journal partition {each.partition} did not answer: {each.error}")
    raise typer.Exit(EXIT_INCOMPLETE)


def complain(sentence: str) -> None:
    """Prints what went wrong, on stderr."""
    console = Console(stderr=True, highlight=False)
    console.print(printable(sentence), style="red", markup=False, soft_wrap=True)


def unreachable_json(unreachable: Sequence[Unreachable]) -> list[dict[str, Any]]:
    """Returns the partitions that did not answer, for `--json`."""
    return [{"partition": u.partition, "error": str(u.error)} for u in unreachable]
