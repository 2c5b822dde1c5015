"""Finds the C extension, and tries it once per process before anything relies on it.

It takes librdkafka's functions from the library that confluent-kafka has loaded, and is told its
handles as a plugin of librdkafka. All of that may be missing: the extension itself where there was
no C compiler, plugins in a librdkafka of a distribution, a function in an old one. So a mock
cluster in this process has to see some records counted right.
"""

from __future__ import annotations

import logging
import os
import sysconfig
import threading
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, Final, NamedTuple, cast

from confluent_kafka import Producer, cimpl

from ..logs.interface import LogProducer
from .interface import Handle

_LOG = logging.getLogger(__name__)

VARIABLE: Final = "LOGTX_NATIVE"
"""Environment variable; "1" switches the extension on."""
_PLUGINS: Final = "plugin.library.paths"
_TRIAL_S: Final = 3.0
"""Longest wait for the records of the trial, which takes 5 ms."""


class Found(NamedTuple):
    """What was found in this process."""

    extension: Any
    """The module; None: everything goes through Python."""
    reason: str
    """Why it is None."""


_guard = threading.Lock()
_found: Found | None = None


def _renew_guard() -> None:
    """Lets a child try the extension itself: the thread that did in the parent is not there."""
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_renew_guard)


def find() -> Found:
    """Looks for the extension, and tries it; the first call decides for the process."""
    global _found
    if _found is None:
        with _guard:
            _found = _found or _look()
    return _found


def described() -> str:
    """Says which way records take in this process."""
    found = find()
    return "native" if found.extension is not None else f"pure Python: {found.reason}"


def opened(
    make: Callable[[Mapping[str, Any]], LogProducer], settings: Mapping[str, Any]
) -> tuple[LogProducer, Handle | None]:
    """Makes a producer that counts, where that is possible.

    Args:
        make: makes a producer with some settings.
        settings: the settings.

    Returns:
        The producer, and its handle; None: it does not count.

    Raises:
        KafkaException: librdkafka refuses the settings.
    """
    extension = find().extension
    if extension is None:
        return make(settings), None
    return _opened(extension, make, settings)


def _opened(
    extension: Any,
    make: Callable[[Mapping[str, Any]], LogProducer],
    settings: Mapping[str, Any],
) -> tuple[LogProducer, Handle | None]:
    paths = [settings[_PLUGINS]] if settings.get(_PLUGINS) else []
    counting = {**settings, _PLUGINS: ";".join((*paths, extension.__file__))}
    made: list[LogProducer] = []

    def make_one() -> LogProducer:
        made.append(make(counting))
        return made[0]

    handle: Handle = extension.Handle(make_one)
    return made[0], handle if handle.is_counting else None


def _look() -> Found:
    if os.environ.get(VARIABLE, "").strip() != "1":
        return Found(None, f"{VARIABLE} is not 1")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Found(None, "it needs a Python with the interpreter lock")
    try:
        extension = import_module("._extension", __package__)
        extension.load(cimpl.__file__)
        flaw = _try(extension)
    except ImportError:
        return Found(None, "the extension was not built")
    except Exception as error:  # noqa: BLE001 - whatever it is, Python alone goes on
        flaw = repr(error)
    if flaw is None:
        return Found(extension, "")
    _LOG.info("extension_not_used reason=%s", flaw)
    return Found(None, flaw)


def _try(extension: Any) -> str | None:
    """Sends three records to a mock cluster in this process. Returns what was wrong, or None."""
    settings = {
        "bootstrap.servers": "",
        "test.mock.num.brokers": 1,
        "linger.ms": 0,
        "log_level": 0,
    }
    producer, handle = _opened(
        extension, lambda made: cast(LogProducer, Producer(dict(made))), settings
    )
    if handle is None:
        return "librdkafka did not load the plugin"
    try:
        count = handle.count(b"0123456789abcdef", b"control", {"trial": None}, None)
        taken = [count.produce("trial", b"v", None, 0, 0) for _ in range(3)]
        unknown = count.produce("another", b"v", None, 0, 0)
        count.close()
        producer.flush(_TRIAL_S)
        told = (count.is_settled, count.failure(), count.reports, count.unreported)
        seen = (taken, unknown, told, count.spans())
        expected = ([1, 2, 3], 0, (True, None, 3, 0), [("trial", 0, 0, 2, 3)])
        if seen != expected or handle.changed() != [count]:
            return f"the trial counted {seen}"
    finally:
        handle.detach()
        producer.purge()
        producer.close()
    return None
