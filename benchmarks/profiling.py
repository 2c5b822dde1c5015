"""Measures where a process's CPU time goes, per thread.

Every few milliseconds a sampler looks at each thread, and books the CPU time that the thread has
used since the last look on the line where it is now. So waiting costs nothing, and a thread of
librdkafka, which has no Python stack, is still seen by its CPU time. Lines that call into C
carry the time spent there. The main thread samples itself, by a timer of CPU time. A thread samples
the others; it sees them most often where they give up the GIL.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Final, Self

INTERVAL_S: Final = 0.002
"""Time between samples. Shorter sees more, and slows down what is measured."""
SWITCH_S: Final = 0.0005
"""Switch interval of the GIL while sampling. With Python's default of 5 ms the sampler would look
only when a thread gives up the GIL."""
_ROOT: Final = Path(__file__).resolve().parent.parent
_TASKS: Final = Path("/proc/self/task")
_TICKS_PER_S: Final = 100
"""Unit of the CPU times in /proc (Linux's USER_HZ)."""
_BELOW: Final = ("<string>", "<frozen", "multiprocessing/", "python3.", "typer/", "benchmarks/w")
"""Files whose functions call everything else, so that their time says nothing."""
_OWN_NAME: Final = "profile-sampler"


@dataclass(slots=True)
class ThreadProfile:
    """One thread, or all native threads of one name."""

    name: str
    native: bool
    cpu_s: float
    """CPU seconds used while it was sampled."""
    wall_s: float
    """How long it was sampled."""
    lines: dict[str, float] = field(default_factory=dict)
    """CPU seconds by the line that was running: "file:line function"."""
    functions: dict[str, float] = field(default_factory=dict)
    """CPU seconds by function, with everything that it called."""

    @property
    def share(self) -> float:
        """Share of one core that it used."""
        return self.cpu_s / self.wall_s if self.wall_s else 0.0


class Sampler:
    """Samples this process. A context manager; then `threads` is the profile, busiest first."""

    def __init__(self) -> None:
        self.threads: list[ThreadProfile] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=_OWN_NAME, daemon=True)
        self._cpu_s: dict[int, float] = {}
        self._used_s: Counter[int] = Counter()
        self._lines: dict[int, Counter[str]] = {}
        self._functions: dict[int, Counter[str]] = {}
        self._names: dict[int, str] = {}

    def __enter__(self) -> Self:
        """Begins to sample; may be called on the main thread only."""
        self._switch_s = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        self._native = _native_cpu_s()
        self._started_s = time.monotonic()
        self._main = threading.get_ident()
        self._names[self._main] = threading.current_thread().name
        self._lines[self._main], self._functions[self._main] = Counter(), Counter()
        self._cpu_s[self._main] = time.thread_time()
        self._former = signal.signal(signal.SIGPROF, self._on_timer)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops, and makes the profile."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, self._former)
        self._stop.set()
        own = self._thread.native_id
        self._thread.join()
        sys.setswitchinterval(self._switch_s)
        wall_s = time.monotonic() - self._started_s
        found = [
            ThreadProfile(
                self._names[i],
                native=False,
                cpu_s=self._used_s[i],
                wall_s=wall_s,
                lines=dict(self._lines[i].most_common(12)),
                functions=dict(self._functions[i].most_common(16)),
            )
            for i in self._names
        ]
        before = self._native
        native: Counter[str] = Counter()
        for tid, (name, cpu_s) in _native_cpu_s().items():
            if tid == own:
                continue  # Joined, but not gone from the system yet.
            native[name] += cpu_s - before.get(tid, (name, 0.0))[1]
        found += [
            ThreadProfile(name, native=True, cpu_s=cpu_s, wall_s=wall_s)
            for name, cpu_s in native.items()
        ]
        self.threads = sorted(
            (t for t in found if t.share >= 0.005), key=lambda t: t.cpu_s, reverse=True
        )

    def _on_timer(self, _signal: int, frame: FrameType | None) -> None:
        cpu_s = time.thread_time()
        used_s, self._cpu_s[self._main] = cpu_s - self._cpu_s[self._main], cpu_s
        if frame is not None:
            self._book(self._main, frame, used_s)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_S):
            frames = sys._current_frames()
            for thread in threading.enumerate():
                ident = thread.ident
                if ident is None or ident in (self._main, self._thread.ident):
                    continue
                if ident not in frames:
                    continue
                try:
                    cpu_s = time.clock_gettime(time.pthread_getcpuclockid(ident))
                except OSError:
                    continue  # It has just ended.
                used_s = cpu_s - self._cpu_s.get(ident, cpu_s)
                self._cpu_s[ident] = cpu_s
                self._names[ident] = thread.name
                self._book(ident, frames[ident], used_s)

    def _book(self, ident: int, frame: FrameType, used_s: float) -> None:
        self._used_s[ident] += used_s
        lines = self._lines.setdefault(ident, Counter())
        functions = self._functions.setdefault(ident, Counter())
        lines[f"{_place(frame.f_code)}:{frame.f_lineno} {frame.f_code.co_name}"] += used_s
        seen = set()
        above: FrameType | None = frame
        while above is not None:
            seen.add(above.f_code)
            above = above.f_back
        for code in seen:
            name = _function(code)
            if name is not None:
                functions[name] += used_s


@cache
def _place(code: CodeType) -> str:
    path = Path(code.co_filename)
    for root in (_ROOT / ".ns" / "logtx", _ROOT):
        if path.is_relative_to(root) and ".venv" not in path.parts:
            return str(path.relative_to(root))
    return "/".join(path.parts[-2:])


@cache
def _function(code: CodeType) -> str | None:
    place = _place(code)
    return None if place.startswith(_BELOW) else f"{place} {code.co_qualname}"


def _native_cpu_s() -> dict[int, tuple[str, float]]:
    """Returns thread id → (name, CPU seconds so far) for the threads that are not Python's."""
    known = {t.native_id for t in threading.enumerate()}
    found = {}
    if not _TASKS.is_dir():
        return {}
    for task in _TASKS.iterdir():
        if int(task.name) in known:
            continue
        try:
            text = (task / "stat").read_text()
        except OSError:
            continue
        name = text[text.index("(") + 1 : text.rindex(")")].split(":broker")[0]
        fields = text[text.rindex(")") + 2 :].split()
        found[int(task.name)] = name, (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return found
