"""Adds the commands that work only in a checkout of the repository: `logtx demo` and `logtx chaos`.

Both are large, and a service that uses logtx needs neither. So the wheel leaves them out, and each
command then says where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Final

import typer

from ...journal.errors import NotSupportedError
from .connection import with_kafka

_PROJECT: Final = __name__.rsplit(".", 3)[0]
COMMANDS: Final = {
    "demo": (f"{_PROJECT}.integration.demo", "Show logtx at work."),
    "chaos": (f"{_PROJECT}.chaos", "Attack a cluster, and check what its clients saw."),
}
"""Name of each command → the package with its `command.py`, and one sentence of help without it."""


def add_commands(app: typer.Typer) -> None:
    """Adds each command: as it is in a checkout, otherwise as an error that says where it is.

    Packages are looked up by name: the wheel has none of them, and `chaos` lies above this room.
    """
    for name, (package, summary) in COMMANDS.items():
        if find_spec(package) is not None:
            command = getattr(import_module(f"{package}.command"), name)
            takes_kafka = "kafka" in signature(command).parameters
            app.command(name)(with_kafka(command) if takes_kafka else command)
        else:
            app.command(
                name,
                help=f"{summary} Only in a checkout of the repository: `make {name}`.",
                context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
            )(_say_where(name))


def _say_where(name: str) -> Callable[[], None]:
    def say() -> None:
        raise NotSupportedError(
            f"`logtx {name}` is not part of the installed package: clone logtx's repository and run"
            f" `make {name}` there"
        )

    return say
