"""Hands out what came on streams, by one thread for all of them.

With a thread of its own, each stream would cost a change of threads for each answer. One thread
hands out what came in one message for many streams, one after the other.

- *Order.* What came on one stream is handed out in order, and by one thread at a time.
- *Who holds it up.* Whoever takes an answer may be kept: by a callback of the application, or by a
  lock that Ctrl-C left behind. Then another thread hands out to all others, `STUCK_S` later. What
  comes on the stream of the one who is kept waits until it goes on.
- *Threads* begin when something came, and end where another one waits.
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


class Receiver(Protocol):
    """Something that answers have come for."""

    def hand_out(self) -> None:
        """Hands out what came; does nothing if another thread is about to. Raises nothing."""


class Answers:
    """The threads of this process that hand out answers; safe from any thread.

    At most one of them waits. The others are kept, or have just begun.
    """

    def __init__(self) -> None:
        """Has no thread yet."""
        self._due: queue.SimpleQueue[Receiver] = queue.SimpleQueue()
        self._began_s: dict[threading.Thread, float | None] = {}
        """Thread → since when it hands out to one receiver, monotonic clock; None: it waits."""
        self._guard = threading.Lock()
        """Held by a thread that is about to wait."""
        self._was_refused = False

    def came(self, receiver: Receiver) -> None:
        """Has a thread hand out to the receiver, soon.

        Whoever calls it calls `look_after`, too, until that returns None.
        """
        self._due.put(receiver)
        self.look_after()

    def look_after(self) -> int | None:
        """Begins further threads if something is due, and each one is kept.

        Returns:
            In how many ms to call it again; None: once something came.
        """
        if self._due.empty():
            return None
        now_s = time.monotonic()
        began_s = self._began_s.copy().values()  # Others change it meanwhile.
        if not any(b is None or now_s - b < STUCK_S for b in began_s):
            # As many again: if all of these are kept, too, it must not take one look for each.
            for _ in range(min(max(len(began_s), 1), self._due.qsize())):
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
        except BaseException as error:
            self._began_s.pop(thread, None)
            # Python itself raises RuntimeError if Ctrl-C comes while it waits for the thread.
            if not isinstance(error, RuntimeError) or thread.ident is not None:
                raise
            # The process has too many threads, or it ends. Who calls this may hold a lock that the
            # answers need, so it can't stand in. One that is kept may go on, or the next look finds
            # a thread.
            if not self._was_refused:
                self._was_refused = True
                _LOG.warning("no_thread_for_answers error=%s", error)

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while self._stays(me):
                receiver = self._due.get()
                self._began_s[me] = time.monotonic()
                receiver.hand_out()
                del receiver  # While the thread waits, it keeps nothing of the application alive.
        finally:
            self._began_s.pop(me, None)

    def _stays(self, me: threading.Thread) -> bool:
        """Returns whether this thread is to wait; False if another one does."""
        with self._guard:
            others = self._began_s.copy()
            others.pop(me, None)
            if None in others.values() and self._due.empty():
                return False
            self._began_s[me] = None
        return True


ANSWERS: Final = Answers()
os.register_at_fork(after_in_child=ANSWERS.after_fork)
