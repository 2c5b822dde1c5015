"""A librdkafka that reports what a test wants, and a copy of the extension that uses it."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from logtx.journal.native.interface import Handle

FAKE = Path(__file__).with_name("fake_librdkafka.c")


class Header(ctypes.Structure):
    """A header as `fake_librdkafka.c` has it."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p), ("size", ctypes.c_size_t))


class Librdkafka:
    """The fake one, and the copy of the extension that has loaded it."""

    def __init__(self, extension: Any, folder: Path) -> None:
        library = folder / "fake.so"
        compiler = shutil.which("cc")
        if compiler is None:
            pytest.skip("there is no C compiler")
        subprocess.run([compiler, "-shared", "-fPIC", "-o", library, FAKE], check=True, timeout=300)
        copied = folder / Path(extension.__file__).name
        shutil.copyfile(extension.__file__, copied)
        loader = ExtensionFileLoader("_extension", str(copied))
        spec = spec_from_file_location("_extension", copied, loader=loader)
        assert spec is not None
        self.extension = module_from_spec(spec)
        loader.exec_module(self.extension)
        # Not CDLL: what it is called within keeps the interpreter lock.
        self._library = ctypes.PyDLL(str(library))
        self._library.fake_make.restype = ctypes.c_void_p
        self.hook = ctypes.c_void_p.in_dll(self._library, "fake_hook")
        """Address of what is called within a report."""
        self._latency_us = ctypes.c_int64.in_dll(self._library, "fake_latency_us")
        self._init = ctypes.PyDLL(str(copied)).conf_init
        self.extension.load(str(library))

    def producer(self) -> tuple[int, Handle]:
        """Makes one. Returns its address, and its handle."""
        made: list[int] = []
        handle = self.extension.Handle(lambda: made.append(self._library.fake_make(self._init)))
        assert handle.is_counting
        return made[0], handle

    def report(
        self,
        producer: int,
        key: tuple[str, int],
        offset: int,
        code: int,
        txid: bytes | None,
        *,
        is_pythons: bool = False,
        after_ms: int = 1,
    ) -> None:
        """Reports a record to the extension, as librdkafka does before it does so to Python."""
        self._latency_us.value = after_ms * 1000
        self._library.fake_report(
            ctypes.c_void_p(producer),
            key[0].encode(),
            ctypes.c_int32(key[1]),
            ctypes.c_int64(offset),
            code,
            txid,
            b"",
            ctypes.c_size_t(0),
            int(is_pythons),
        )

    def report_headers(
        self,
        producer: int,
        key: tuple[str, int],
        offset: int,
        headers: Sequence[tuple[bytes, bytes | None]],
        *,
        is_pythons: bool,
    ) -> None:
        """Reports a record that has these headers; their names have no zero byte."""
        given = [Header(name, value, len(value or b"")) for name, value in headers]
        self._library.fake_report_headers(
            ctypes.c_void_p(producer),
            key[0].encode(),
            ctypes.c_int32(key[1]),
            ctypes.c_int64(offset),
            (Header * len(given))(*given),
            ctypes.c_size_t(len(given)),
            int(is_pythons),
        )

    def destroy(self, producer: int) -> None:
        """Frees one."""
        self._library.fake_destroy(ctypes.c_void_p(producer))
