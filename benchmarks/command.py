"""What the commands of the benchmarks share: their options, and how they end with an error."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console

Rounds = Annotated[int, typer.Option(min=1, help="Rounds of each side.")]
Repetitions = Annotated[int, typer.Option(min=1, help="Repetitions.")]
Scale = Annotated[float, typer.Option(min=0.001, max=10, help="Length of a round, as a share.")]
WriteDocs = Annotated[
    bool, typer.Option("--write-docs", help="Write the chapter of docs/benchmarks.md.")
]


def some_of(known: Collection[str], default: str = "all") -> Any:
    """Returns an option that takes some of these names: see `chosen`.

    Args:
        known: all names.
        default: says what is measured without the option.
    """
    return typer.Option(help=f"One of {', '.join(known)}; may be repeated. [default: {default}]")


def chosen(
    asked: Sequence[str] | None, known: Collection[str], default: Collection[str] | None = None
) -> list[str]:
    """Returns what is measured.

    Args:
        asked: the value of an option of `some_of`.
        known: all names.
        default: what is measured without the option; None: all.

    Raises:
        BadParameter: a name is not known.
    """
    for name in asked or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}")
    return list(asked or (known if default is None else default))


@contextmanager
def ended_by(console: Console, *errors: type[Exception]) -> Iterator[None]:
    """Shows an error of these types without its trace, and ends the command with status 1."""
    try:
        yield
    except errors as error:
        console.print(str(error), style="red", markup=False)
        raise typer.Exit(1) from error
