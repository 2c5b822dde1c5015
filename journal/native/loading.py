"""Finds the C extension, and tries it once per process before anything relies on it.

It takes librdkafka's functions from the library that confluent-kafka has loaded, and is told its
handles as a plugin of librdkafka. All of that may be missing: the extension itself where there was
no C compiler, plugins in a librdkafka of a distribution, a function in an old one. So a mock
cluster in this process has to see some records counted right.
"""

from __future__ import annotations

import os
import sysconfig
import threading
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from struct import pack
from typing import Any, Final, NamedTuple, TypeVar, cast

from confluent_kafka import Consumer, Message, Producer, TopicPartition, cimpl

from ..logs.interface import LogConsumer, LogProducer
from .interface import Handle, HeaderRun, Reader

VARIABLE: Final = "LOGTX_NATIVE"
"""Environment variable; "0" switches the extension off, and "1" on, as it is without."""
_PLUGINS: Final = "plugin.library.paths"
_TRIAL_S: Final = 1.5
"""Bounds a trial. That of a producer takes 5 ms, of a consumer 30, and more on a busy machine,
where a shorter time would let clients go without the extension."""
_CONNECT_S: Final = 1.0
"""Bounds a trial where no connection within the machine can be had, or no further file opened."""
_OTHERS_S: Final = 2 * _TRIAL_S
"""How long a thread waits for the trial of another one."""
_MOCK: Final = {"bootstrap.servers": "", "test.mock.num.brokers": 1, "log_level": 0}
_Client = TypeVar("_Client")


class Found(NamedTuple):
    """What was found in this process."""

    extension: Any
    """The module; None: everything goes through Python."""
    reason: str
    """Why it is None."""


_NOT_YET: Final = Found(None, "it is being tried")
"""For who can't wait for the trial that decides."""


class Once:
    """Looks for something; the first call decides for the process."""

    def __init__(self, look: Callable[[], Found]) -> None:
        """Has not looked yet.

        Args:
            look: looks.
        """
        self._look = look
        self.found: Found | None = None
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Lets a child look itself: the thread that did in the parent is not there."""
        self._guard = threading.RLock()
        self._is_looking = False

    def __call__(self) -> Found:
        """Returns what was found. Waits for a thread that looks, but not for ever."""
        if self.found is not None:
            return self.found
        if not self._guard.acquire(timeout=_OTHERS_S):
            return _NOT_YET
        try:
            # A signal handler may come while this thread looks, and so may a finalizer. If it makes
            # a client, that one goes without: nobody could go on if it waited.
            if self.found is None and self._is_looking:
                return _NOT_YET
            self.found = self.found or self._looked()
            return self.found
        finally:
            self._guard.release()

    def _looked(self) -> Found:
        try:
            self._is_looking = True
            return self._look()
        finally:
            self._is_looking = False


FINDING: Final = Once(lambda: _look())  # noqa: PLW0108 - it is defined below
COUNTING: Final = Once(lambda: _tried(FINDING().extension, _try))
READING: Final = Once(lambda: _tried(find().extension, _try_reader))
DECODING: Final = Once(lambda: _tried(FINDING().extension, _try_decoder))


def find() -> Found:
    """Looks for the extension, and tries it; the first call decides for the process."""
    found = FINDING()
    return found if found.extension is None else COUNTING()


def find_reader() -> Found:
    """Looks for the extension as `find`, and tries also whether it reads."""
    found = find()
    return found if found.extension is None else READING()


def find_decoder() -> Found:
    """Looks for the extension, and tries whether it decodes. That needs no librdkafka."""
    found = FINDING()
    return found if found.extension is None else DECODING()


def has_tried_reader() -> bool:
    """Returns whether `find_reader` knows the answer: it takes no time any more."""
    return READING.found is not None


def described() -> str:
    """Says which way records take in this process."""
    found, reads = find(), find_reader()
    if found.extension is None:
        return f"pure Python: {found.reason}"
    return "native" if reads.extension is not None else f"native, reads in Python: {reads.reason}"


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
    if extension is None or not _takes_plugin(settings):
        return make(settings), None
    return _opened(extension, make, settings)


def opened_consumer(
    make: Callable[[Mapping[str, Any]], LogConsumer], settings: Mapping[str, Any]
) -> tuple[LogConsumer, Reader | None]:
    """Makes a consumer that a reader can read, where that is possible.

    Args:
        make: makes a consumer with some settings.
        settings: the settings.

    Returns:
        The consumer, and its reader; None: it reads by itself.

    Raises:
        KafkaException: librdkafka refuses the settings.
    """
    extension = find_reader().extension
    if extension is None or not _takes_plugin(settings):
        return make(settings), None
    return _opened_consumer(extension, make, settings)


def _opened(
    extension: Any,
    make: Callable[[Mapping[str, Any]], LogProducer],
    settings: Mapping[str, Any],
) -> tuple[LogProducer, Handle | None]:
    producer, handle = _made(extension, extension.Handle, make, settings)
    return producer, handle if handle.is_counting else None


def _opened_consumer(
    extension: Any,
    make: Callable[[Mapping[str, Any]], LogConsumer],
    settings: Mapping[str, Any],
) -> tuple[LogConsumer, Reader | None]:
    consumer, reader = _made(extension, extension.Reader, make, settings)
    return consumer, reader if reader.is_reading else None


def _takes_plugin(settings: Mapping[str, Any]) -> bool:
    """Returns whether a plugin can join those of the application. Else confluent-kafka says why."""
    return isinstance(settings.get(_PLUGINS, ""), str | os.PathLike)


def is_for_extension(settings: Mapping[str, Any]) -> bool:
    """Returns whether `opened` or `opened_consumer` has made these settings."""
    extension = COUNTING.found.extension if COUNTING.found is not None else None
    paths = str(settings.get(_PLUGINS, "")).split(";")
    return extension is not None and extension.__file__ in paths


def _made(
    extension: Any,
    part: Callable[[Callable[[], _Client]], Any],
    make: Callable[[Mapping[str, Any]], _Client],
    settings: Mapping[str, Any],
) -> tuple[_Client, Any]:
    # Makes a client with the plugin. Returns it, and the part of the extension that was told it.
    paths = [given] if (given := str(settings.get(_PLUGINS, ""))) else []
    with_plugin = {**settings, _PLUGINS: ";".join((*paths, extension.__file__))}
    made: list[_Client] = []

    def make_one() -> _Client:
        made.append(make(with_plugin))
        return made[0]

    told = part(make_one)
    return made[0], told


def _look() -> Found:
    if (value := os.environ.get(VARIABLE, "").strip()) not in ("", "1"):
        return Found(None, f"{VARIABLE} is {value}")
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Found(None, "it needs a Python with the interpreter lock")
    try:
        extension = import_module("._extension", __package__)
    except ImportError:
        return Found(None, "the extension was not built")
    except Exception as error:  # noqa: BLE001 - whatever it is, Python alone goes on
        return Found(None, repr(error))
    return Found(extension, "")


def _tried(extension: Any, trial: Callable[[Any], str | None]) -> Found:
    try:
        flaw = trial(extension)
    except Exception as error:  # noqa: BLE001 - whatever it is, Python alone goes on
        flaw = repr(error)
    # Nothing is logged: a handler may make a client of its own, and would wait for this trial.
    return Found(extension, "") if flaw is None else Found(None, flaw)


def _try(extension: Any) -> str | None:
    """Sends three records to a mock cluster in this process. Returns what was wrong, or None."""
    extension.load(cimpl.__file__)
    until_s = time.monotonic() + _TRIAL_S
    producer, handle = _opened(
        extension, lambda made: cast(LogProducer, Producer(dict(made))), {**_MOCK, "linger.ms": 0}
    )
    if handle is None:
        return "librdkafka did not load the plugin"
    try:
        # Fails where nothing can be reached, and `flush` would wait.
        cast(Any, producer).list_topics(timeout=_CONNECT_S)
        count = handle.count(b"0123456789abcdef", b"control", {"trial": None}, None)
        taken = [count.produce("trial", b"v", None, 0, 0) for _ in range(3)]
        unknown = count.produce("another", b"v", None, 0, 0)
        count.close()
        producer.flush(max(until_s - time.monotonic(), 0))
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


def _try_reader(extension: Any) -> str | None:
    """Reads three records of a mock cluster in this process. Returns what was wrong, or None."""
    extension.load_reader(cimpl.__file__, Message)
    until_s = time.monotonic() + _TRIAL_S
    settings = {**_MOCK, "group.id": "trial", "enable.auto.commit": False}
    consumer, reader = _opened_consumer(
        extension, lambda made: cast(LogConsumer, Consumer(dict(made))), settings
    )
    if reader is None:
        return "librdkafka did not load the plugin"
    producer = None
    try:
        broker = next(iter(consumer.list_topics(timeout=_CONNECT_S).brokers.values()))
        producer = Producer({"bootstrap.servers": f"{broker.host}:{broker.port}", "log_level": 0})
        for key, value in ((None, b"v"), (b"k", None), (b"k", b"v")):
            producer.produce("trial", value, key, 0, headers=[("TxId", b"0123456789abcdef")])
        producer.flush(max(until_s - time.monotonic(), 0))
        # Else it may look for the topic after a second.
        consumer.list_topics("trial", max(until_s - time.monotonic(), 0))
        reader.take_over("trial", 0)
        consumer.assign([TopicPartition("trial", 0, 0)])
        taken: list[Any] = []
        runs: list[HeaderRun] = []
        while len(taken) < 3 and time.monotonic() < until_s:
            parts, _events = reader.read(3)
            taken += [message for part in parts for message in part[2]]
            runs += [(headers, count) for part in parts for headers, count in part[3] or ()]
            reader.wait(10)
        seen = [(m.offset(), m.key(), m.value()) for m in taken]
        if seen != [(0, None, b"v"), (1, b"k", None), (2, b"k", b"v")]:
            return f"the trial read {seen}"
        if {headers for headers, _ in runs} != {(("TxId", b"0123456789abcdef"),)}:
            return f"the trial read the headers {runs}"
        return _try_columns(taken) or _try_packing(taken, type(taken[0]))
    finally:
        reader.close()
        if producer is not None:
            producer.purge()
            producer.close()
        consumer.close()


def _try_columns(messages: list[Any]) -> str | None:
    """Makes columns of the trial's records. Returns what was wrong, or None."""
    keys, values, offsets, _times, runs = type(messages[0]).columns(messages, 2)
    expected = (b"\6", pack("4i", 0, 0, 1, 2), b"kk", 1), (b"\5", pack("4i", 0, 1, 1, 2), b"vv", 1)
    if (keys, values) != expected or offsets != pack("3q", 0, 1, 2):
        return f"the trial made the columns {keys}, {values} and {offsets!r}"
    length = sum(run[-1] for run in runs)
    return None if length == len(messages) else f"the trial made the columns' runs {runs}"


def _try_decoder(extension: Any) -> str | None:
    """Decodes three values. Returns what was wrong, or None."""
    decoder = extension.Decoder(((1, 2, ("l", None, (), "")),))
    seen = [decoder.decode(raw) for raw in (b"\1\2\6", b"\1\2", b"\2\1\6")]
    return None if seen == [3, None, None] else f"the trial decoded {seen}"


def _try_packing(messages: list[Any], light: Any) -> str | None:
    """Packs the trial's records and unpacks them. Returns what was wrong, or None."""
    runs, count = light.packable(messages, 0, len(messages), 2**30), len(messages)
    content = light.pack(b"front", messages, 0, count)
    back = light.unpack(content, 5, messages[0].topic(), messages[0].partition(), runs, count)
    seen, expected = list(map(_facts, back)), list(map(_facts, messages))
    return None if seen == expected else f"the trial unpacked {seen}"


def _facts(message: Any) -> tuple[object, ...]:
    return (
        *(message.offset(), message.key(), message.value(), message.headers()),
        *(message.timestamp(), message.leader_epoch()),
    )
