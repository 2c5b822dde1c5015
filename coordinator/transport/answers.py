"""Hands out what came on streams, by one thread for all of them.

With a thread of its own, each stream would cost a change of threads for each answer. One thread
hands out what came in one message for many streams, one after the other.

- *Order.* What came on one stream is handed out in order, and by one thread at a time.
- *Who holds it up.* Whoever takes an answer may be kept: by a callback of the application, or by a
  lock that Ctrl-C left behind. Then another thread hands out to all others, `STUCK_S` later. What
  comes on the stream of the one who is kept waits until it goes on.
- *Threads* begin when something came, and one of them stays. What it has handed out, it forgets.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from typing import Final, Protocol

_LOG = logging.getLogger(__name__)

STUCK_S: Final = 0.1
"""How long one stream's answers may take before another thread goes on with the others. With less,
a busy machine begins threads that nobody needs; with more, the others wait for longer."""
_LOOK_MS: Final = round(STUCK_S * 1_000)
_SPARE_S: Final = 1.0
"""How long a second thread stays that has nothing to do."""


class Receiver(Protocol):
    """Something that answers have come for."""

    def hand_out(self) -> None:
        """Hands out what came; does nothing if another thread is about to. Raises nothing."""


class Answers:
    """The threads of this process that hand out answers; safe from any thread."""

    def __init__(self) -> None:
        """Has no thread yet."""
        self._due: queue.SimpleQueue[Receiver] = queue.SimpleQueue()
        self._began_s: dict[threading.Thread, float | None] = {}
        """Thread → since when it hands out to one receiver, monotonic clock; None: it waits."""
        self._guard = threading.Lock()
        """Held by a thread that asks whether it is to end."""

    def came(self, receiver: Receiver) -> None:
        """Has a thread hand out to the receiver, soon."""
        self._due.put(receiver)
        self.look_after()

    def look_after(self) -> int | None:
        """Begins another thread if something is due, and each one is held up.

        Returns:
            In how many ms to call it again; None: whenever something came.
        """
        if self._due.empty():
            return None
        now_s = time.monotonic()
        if not any(b is None or now_s - b < STUCK_S for b in list(self._began_s.values())):
            self._begin(now_s)
        return _LOOK_MS

    def after_fork(self) -> None:
        """Forgets the parent's threads, in a child."""
        self._due, self._began_s = queue.SimpleQueue(), {}
        self._guard = threading.Lock()

    def _begin(self, now_s: float) -> None:
        thread = threading.Thread(target=self._run, name="logtx-answers", daemon=True)
        self._began_s[thread] = now_s  # Whoever looks meanwhile counts on it.
        try:
            thread.start()
        except RuntimeError as error:
            # The process has too many threads, or it ends. Whoever is here stands in for it.
            self._began_s.pop(thread, None)
            _LOG.warning("no_thread_for_answers error=%s", error)
            while (receiver := self._next(0)) is not None:
                receiver.hand_out()
        except BaseException:
            self._began_s.pop(thread, None)  # Ctrl-C, maybe before it began.
            raise

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while True:
                self._began_s[me] = None
                receiver = self._next(None if len(self._began_s) == 1 else _SPARE_S)
                if receiver is None:
                    if self._is_spare(me):
                        return
                    continue
                self._began_s[me] = time.monotonic()
                receiver.hand_out()
                del receiver  # While the thread waits, it keeps nothing of the application alive.
        finally:
            self._began_s.pop(me, None)

    def _next(self, timeout_s: float | None) -> Receiver | None:
        try:
            return self._due.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def _is_spare(self, me: threading.Thread) -> bool:
        """Returns whether another thread waits for the same, and this one is to end."""
        with self._guard:
            others = [s for t, s in list(self._began_s.items()) if t is not me]
            if None in others:
                del self._began_s[me]
                return True
        return False


ANSWERS: Final = Answers()
os.register_at_fork(after_in_child=ANSWERS.after_fork)
