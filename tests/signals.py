"""Raises an exception wherever a signal handler's may come, one point after the other."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

from confluent_kafka import KafkaError, KafkaException

KINDS = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "MemoryError": MemoryError,
    "KafkaException": lambda: KafkaException(KafkaError(KafkaError._TRANSPORT)),
}


@cache
def signal_points(code: CodeType) -> frozenset[int]:
    """Returns the offsets of instructions before which CPython may run a signal handler."""
    instructions = list(dis.get_instructions(code))
    behind_calls = (
        this.offset for before, this in pairwise(instructions) if before.opname.startswith("CALL")
    )
    own = (i.offset for i in instructions if i.opname in ("RESUME", "JUMP_BACKWARD"))
    return frozenset((*behind_calls, *own))


@contextmanager
def traced(trace: Callable[[FrameType, str, Any], Any]) -> Iterator[None]:
    """Traces this thread; frames that `trace` asks it of tell of each instruction."""
    before = sys.gettrace()
    # CPython 3.12 tells of instructions only if a frame wants it before `settrace` is called.
    sys._getframe().f_trace_opcodes = True
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class Tracer:
    """Raises at one point of some modules where a signal may come, and counts these."""

    def __init__(self, modules: str, at: int, make: Callable[[], BaseException]) -> None:
        self.points = 0
        self.where = ""
        self._modules = modules
        self._at = at
        self._make = make

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(self._modules):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in signal_points(frame.f_code):
            self.points += 1
            if self.points == self._at:
                self.where = f"{module}:{frame.f_lineno}"
                raise self._make()
        return self._trace

    @contextmanager
    def on(self) -> Iterator[None]:
        """Traces this thread."""
        with traced(self._trace):
            yield
