"""Keeps a forked child off the clients of its parent: each call of theirs raises ForkedError there.

A fork copies a client without its threads, with locks that these may have held, and with the
sockets of the parent's connections. A call would wait for ever, and the end of a client would look
for its threads. So nothing ends it in the child: it stays as it is until the process is gone.

The parent pays nothing for that: the calls are replaced in the child, right after the fork.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from typing import Any, Final, NoReturn, Protocol
from weakref import WeakSet

from .errors import ForkedError

_OURS: Final = f"{__name__.partition('.')[0]}."
"""Classes in here have their calls replaced, not those that the application derives from them."""


class Client(Protocol):
    """Something that can't be used in a child."""

    def after_fork(self) -> None:
        """Calls `refuse`, in the child, and makes `close` do nothing.

        Takes no lock and waits for nothing: no other thread runs in the child.
        """


_CLIENTS: Final[WeakSet[Client]] = WeakSet()


def keep_from_children(client: Client) -> None:
    """Makes a client's calls raise ForkedError in each child that is forked from now on.

    `close` does nothing there, so that a child may leave the parent's with blocks.
    """
    _CLIENTS.add(client)


def refuse(client: object, *names: str) -> None:
    """Replaces the client's public methods but `close`, and the methods of these names."""
    kind = type(client)
    ours = (vars(owner) for owner in kind.__mro__ if owner.__module__.startswith(_OURS))
    public = {name for each in ours for name in each if not name.startswith("_")} - {"close"}
    calls = {name for name in public if callable(getattr(kind, name))}
    vars(client).update(dict.fromkeys(calls.union(names), _refusal(kind.__name__)))


def _refusal(kind: str) -> Callable[..., NoReturn]:
    def call(*_: Any, **__: Any) -> NoReturn:
        raise forked_error(kind)

    return call


def forked_error(kind: str) -> ForkedError:
    """Returns the error for a client of the parent."""
    return ForkedError(f"this {kind} belongs to the process that forked this one: make another")


def _abandon() -> None:
    clients = list(_CLIENTS)
    _CLIENTS.clear()
    for client in clients:
        # It is never freed: its end would look for threads that only the parent has.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        client.after_fork()


os.register_at_fork(after_in_child=_abandon)
