"""Whether the extension is found, and what goes on without it: everything, and silently."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer

from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.native import loading

from ...children import in_child
from ...extension import look_again

_PRODUCES = """
from logtx.journal.logs.memory.log import MemoryLog
from logtx.journal.native import loading
producer, handle = loading.opened(MemoryLog("m").producer, {})
assert handle is None
print(loading.described())
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    """Runs the program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", _PRODUCES],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def run_unhurried(**environment: str) -> subprocess.CompletedProcess[str]:
    """Runs it again where the machine was too busy for its trial."""
    ended = run(**environment)
    for _ in range(9):
        if ended.stdout == "native\n":
            break
        ended = run(**environment)
    return ended


@pytest.mark.parametrize("value", ["0", " 0", "no"])
def test_the_environment_switches_it_off(value: str) -> None:
    ended = run(LOGTX_NATIVE=value)
    told = f"pure Python: LOGTX_NATIVE is {value.strip()}\n"
    assert (ended.stdout, ended.stderr) == (told, "")


@pytest.mark.parametrize("value", ["", "1"])
def test_it_is_on_without_a_word_of_the_environment(extension: Any, value: str) -> None:
    del extension
    ended = run_unhurried(LOGTX_NATIVE=value)
    assert (ended.stdout, ended.stderr) == ("native\n", "")


def test_a_process_says_nothing_unasked(extension: Any) -> None:
    del extension
    ended = run_unhurried()
    assert (ended.stdout, ended.stderr) == ("native\n", "")


def broken(**changed: Any) -> SimpleNamespace:
    return SimpleNamespace(__file__="/nowhere.so", **{"load": lambda _path: None, **changed})


def raising(error: Exception) -> Any:
    def call(*_arguments: object) -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (ImportError("no such module"), "was not built"),
        (broken(load=raising(OSError("there is no rd_kafka_producev"))), "rd_kafka_producev"),
        (broken(Handle=raising(MemoryError())), "MemoryError"),
        (broken(Handle=lambda make: (make(), SimpleNamespace(is_counting=False))[1]), "nowhere"),
    ],
    ids=["not built", "another librdkafka", "no memory", "no such plugin"],
)
def test_what_is_missing_leaves_everything_to_python(
    monkeypatch: pytest.MonkeyPatch, module: Any, reason: str
) -> None:
    def imported(*_name: object) -> Any:
        if isinstance(module, Exception):
            raise module
        return module

    look_again(monkeypatch)
    monkeypatch.setattr(loading, "import_module", imported)
    assert loading.find().extension is None
    assert reason in loading.described()
    producer, handle = loading.opened(MemoryLog("m").producer, {"linger.ms": 0})
    assert handle is None
    assert len(producer) == 0


def test_a_trial_that_counts_wrong_is_noticed(
    extension: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Handle:
        """Counts as the extension does, and one record more."""

        def __init__(self, make: Any) -> None:
            self._handle = extension.Handle(make)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._handle, name)

        def count(self, *arguments: Any) -> Any:
            count = self._handle.count(*arguments)
            count.produce("trial", b"v", None, 0, 0)
            return count

    module = SimpleNamespace(__file__=extension.__file__, load=extension.load, Handle=Handle)
    look_again(monkeypatch)
    monkeypatch.setattr(loading, "import_module", lambda *_: module)
    assert loading.find().extension is None
    assert "the trial counted" in loading.described()


class HalfBroken:
    """The extension, with another Reader."""

    def __init__(self, extension: Any, reader: Any) -> None:
        self._extension = extension
        self.Reader = reader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._extension, name)


class ReadsTooMuch:
    """Reads as the extension does, and each record twice."""

    def __init__(self, make: Any, extension: Any) -> None:
        self._reader = extension.Reader(make)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    def read(self, limit: int) -> Any:
        parts, events = self._reader.read(limit)
        return [(topic, n, 2 * found, runs, size) for topic, n, found, runs, size in parts], events


@pytest.mark.parametrize(
    ("reader", "reason"),
    [
        (lambda _extension: raising(MemoryError()), "MemoryError"),
        (lambda _extension: lambda make: (make(), SimpleNamespace(is_reading=False))[1], "plugin"),
        (lambda extension: lambda make: ReadsTooMuch(make, extension), "the trial read"),
    ],
    ids=["no memory", "no such plugin", "reads wrong"],
)
def test_what_cant_read_may_count_all_the_same(
    extension: Any, monkeypatch: pytest.MonkeyPatch, reader: Any, reason: str
) -> None:
    module = HalfBroken(extension, reader(extension))
    look_again(monkeypatch)
    monkeypatch.setattr(loading, "import_module", lambda *_: module)
    assert loading.find().extension is module
    assert loading.find_reader().extension is None
    assert loading.described().startswith("native, reads in Python: ")
    assert reason in loading.described()
    consumer, told = loading.opened_consumer(MemoryLog("m").consumer, {"group.id": "g"})
    assert told is None
    consumer.close()


def test_a_free_threaded_python_does_without(monkeypatch: pytest.MonkeyPatch) -> None:
    look_again(monkeypatch)
    monkeypatch.setattr(loading.sysconfig, "get_config_var", lambda _name: 1)
    assert "interpreter lock" in loading.described()


def test_plugins_of_the_application_stay(extension: Any) -> None:
    seen: list[str] = []

    def make(settings: Any) -> Any:
        seen.append(settings["plugin.library.paths"])
        return Producer({"bootstrap.servers": ""})

    _, handle = loading.opened(make, {"plugin.library.paths": "/its/own.so"})
    assert handle is None
    assert seen == [f"/its/own.so;{extension.__file__}"]


def test_a_path_of_the_application_may_be_an_object(extension: Any) -> None:
    seen: list[str] = []

    def make(settings: Any) -> Any:
        seen.append(settings["plugin.library.paths"])
        return Producer({"bootstrap.servers": ""})

    loading.opened(make, {"plugin.library.paths": Path("/its/own.so")})
    assert seen == [f"/its/own.so;{extension.__file__}"]


@pytest.mark.parametrize("value", [None, 5])
def test_confluent_kafka_says_what_is_wrong_with_the_applications_plugins(
    extension: Any, value: object
) -> None:
    del extension
    settings = {"bootstrap.servers": "", "plugin.library.paths": value}
    told = []
    for make in (Producer, lambda given: loading.opened(Producer, given)):
        with pytest.raises((KafkaException, TypeError)) as raised:
            make(settings)
        told.append(str(raised.value))
    assert told[0] == told[1]


def test_who_asks_within_the_trial_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler, or a finalizer, makes a client while the same thread tries."""
    within: list[str] = []

    def look() -> loading.Found:
        within.append(loading.described())
        return loading.Found(None, "tried")

    monkeypatch.setattr(loading, "_look", look)
    assert loading.described() == "pure Python: tried"
    assert within == ["pure Python: it is being tried"]


@contextmanager
def tried_by_another_thread(monkeypatch: pytest.MonkeyPatch, reason: str) -> Iterator[None]:
    """Lets another thread try it until the end, and then find this reason to go without."""
    tries, may_end = threading.Event(), threading.Event()

    def look() -> loading.Found:
        tries.set()
        assert may_end.wait(60)
        return loading.Found(None, reason)

    monkeypatch.setattr(loading, "_look", look)
    thread = threading.Thread(target=loading.find)
    thread.start()
    try:
        assert tries.wait(20)
        yield
    finally:
        may_end.set()
        thread.join()


def test_a_thread_waits_for_anothers_trial_no_longer_than_one_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loading, "_OTHERS_S", 0.05)
    with tried_by_another_thread(monkeypatch, "tried"):
        assert loading.described() == "pure Python: it is being tried"
    assert loading.described() == "pure Python: tried"


def test_a_trial_without_a_connection_is_given_up_soon(
    extension: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del extension
    nobody = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    look_again(monkeypatch)
    monkeypatch.setattr(loading, "_MOCK", nobody)
    monkeypatch.setattr(loading, "_CONNECT_S", 0.2)
    assert "_TRANSPORT" in loading.described()


def test_a_child_of_a_process_that_tries_it_waits_for_nobody_trap_234(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def look_in_child() -> str:
        monkeypatch.setattr(loading, "_look", lambda: loading.Found(None, "tried in the child"))
        return loading.described()

    with tried_by_another_thread(monkeypatch, "tried in the parent"):
        assert in_child(look_in_child) == "pure Python: tried in the child"
    assert loading.described() == "pure Python: tried in the parent"
