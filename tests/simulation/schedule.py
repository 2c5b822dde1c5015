"""Virtual time, and the parties that live in it: they crash, pause and come back."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

Act = Callable[[], None]


class Scheduler:
    """Runs acts in the order of their times; acts of the same time in the order they were given."""

    def __init__(self) -> None:
        """Begins at time 0 with nothing to do."""
        self.now_ms = 0
        self._acts: list[tuple[int, int, Act]] = []
        self._given = 0

    def after(self, delay_ms: int, act: Act) -> None:
        """Runs `act` when `delay_ms` have passed."""
        self._given += 1
        heapq.heappush(self._acts, (self.now_ms + delay_ms, self._given, act))

    def run_until(self, time_ms: int) -> None:
        """Lets time pass until `time_ms`, and runs what is due."""
        acts = self._acts
        while acts and acts[0][0] <= time_ms:
            self.now_ms, _, act = heapq.heappop(acts)
            act()
        self.now_ms = time_ms


class Party:
    """A process. What it has planned dies with it, and waits while it is paused."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        """Begins alive."""
        self.name = name
        self.alive = True
        self.paused = False
        self._after = scheduler.after
        self._life = 0
        self._held: list[tuple[int, Act]] = []

    def later(self, delay_ms: int, act: Act) -> None:
        """Runs `act` after `delay_ms`, unless this life ends before."""
        self._after(delay_ms, partial(self._do, self._life, act))

    def _do(self, life: int, act: Act) -> None:
        if life != self._life or not self.alive:
            return
        if self.paused:
            self._held.append((life, act))
        else:
            act()

    @property
    def life(self) -> int:
        """Number of this life; every crash begins another one."""
        return self._life

    @property
    def name_in_life(self) -> str:
        """Its name, and which of its lives this is: what it knew ended with the one before."""
        return f"{self.name}.{self.life}"

    def die(self) -> None:
        """Crashes: nothing that was planned happens."""
        self.alive = self.paused = False
        self._life += 1
        self._held.clear()

    def pause(self) -> None:
        """Stops as by SIGSTOP: sees what happens meanwhile only when it wakes up."""
        self.paused = True

    def wake(self) -> None:
        """Goes on where it stood, and learns what happened meanwhile."""
        self.paused = False
        held, self._held = self._held, []
        for life, act in held:
            self._do(life, act)
