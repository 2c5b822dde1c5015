"""Virtual time, and parties that live in it: they crash, pause and come back."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

Act = Callable[[], None]


class Scheduler:
    """Acts in the order of their times; those of one time in the order they were given."""

    def __init__(self) -> None:
        """Begin at 0 with nothing to do."""
        self.now_ms = 0
        self._acts: list[tuple[int, int, Act]] = []
        self._given = 0

    def after(self, delay_ms: int, act: Act) -> None:
        """Do this when so much time has passed."""
        self._given += 1
        heapq.heappush(self._acts, (self.now_ms + delay_ms, self._given, act))

    def run_until(self, time_ms: int) -> None:
        """Let time pass."""
        acts = self._acts
        while acts and acts[0][0] <= time_ms:
            self.now_ms, _, act = heapq.heappop(acts)
            act()
        self.now_ms = time_ms


class Party:
    """A process: what it has planned dies with it, and waits while it is paused."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        """Alive."""
        self.name = name
        self.alive = True
        self.paused = False
        self._scheduler = scheduler
        self._life = 0
        self._held: list[tuple[int, Act]] = []

    def later(self, delay_ms: int, act: Act) -> None:
        """Do this in some time, if this life lasts so long."""
        self._scheduler.after(delay_ms, partial(self._do, self._life, act))

    def _do(self, life: int, act: Act) -> None:
        if life != self._life or not self.alive:
            return
        if self.paused:
            self._held.append((life, act))
        else:
            act()

    @property
    def life(self) -> int:
        """Number of this life: another one after every crash."""
        return self._life

    def die(self) -> None:
        """Crash: nothing that was planned happens."""
        self.alive = self.paused = False
        self._life += 1
        self._held.clear()

    def pause(self) -> None:
        """Stop as by SIGSTOP: what happens meanwhile is seen on waking up."""
        self.paused = True

    def wake(self) -> None:
        """Go on where it stood, and learn what happened meanwhile."""
        self.paused = False
        held, self._held = self._held, []
        for life, act in held:
            self._do(life, act)
