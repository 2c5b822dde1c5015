"""`logtx chaos`, which only a checkout has.

The harness is larger than what it attacks, and no user runs it. So the wheel leaves it out, and
the command says where it is.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Final

import typer

from ...journal.errors import NotSupportedError

_PACKAGE: Final = f"{__name__.rsplit('.', 3)[0]}.chaos"


def add_chaos(app: typer.Typer) -> None:
    """Adds `logtx chaos`: the harness in a checkout, elsewhere one sentence that says where it is.

    The harness is found by its name, because it imports this room and not the other way round.
    """
    if find_spec(_PACKAGE) is not None:
        app.command()(import_module(f"{_PACKAGE}.command").chaos)
    else:
        app.command(
            name="chaos",
            context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        )(_say_where)


def _say_where() -> None:
    """Attack a cluster of three brokers, and check what its clients saw. Only in a checkout."""
    raise NotSupportedError(
        "`logtx chaos` is not part of the installed package: clone logtx's repository and run"
        " `make chaos` there"
    )
