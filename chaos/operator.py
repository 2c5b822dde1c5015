"""The operator of a run: switches topics between markers and metadata mode, under load.

It asks the coordinators as `logtx topics set-mode` does, and reaches them as clients do. A switch
that is not made in time is gone on with at the next call, as operators are told to.
"""

from __future__ import annotations

import time
from typing import Final

from ..coordinator.client.admin import AdminQueries
from ..journal.errors import LogtxError
from ..journal.logs.interface import Log
from ..journal.modes import Mode
from .errors import ChaosError
from .recorder import Recorder
from .settings import Settings

_ANSWER_S: Final = 20.0
"""Bounds each request. A coordinator answers when it has looked the topic up, which takes five
seconds if nothing is hurt."""
_SWITCH_S: Final = 25.0
"""Bounds each call: a switch takes five seconds if nothing is hurt."""
_PAUSE_S: Final = 0.5
"""Pause after a switch that was not made."""
_SETTLED_S: Final = 60.0
"""Bounds the wait for each switch when nothing is hurt any more."""
_OTHER: Final = {Mode.MARKERS: Mode.METADATA, Mode.METADATA: Mode.MARKERS}


class Operator:
    """Switches the topics of one run. Not thread-safe: one thread at a time."""

    def __init__(self, clients_log: Log, settings: Settings, recorder: Recorder) -> None:
        """Prepares it; nothing is switched.

        Args:
            clients_log: through the proxies.
            settings: of the run.
            recorder: of the nemesis.
        """
        self._settings = settings
        self._recorder = recorder
        self._groups = settings.switched_topics
        self._topics = list(self._groups)
        self._wanted = dict.fromkeys(self._topics, Mode.MARKERS)
        self._is_made = dict.fromkeys(self._topics, True)
        self._queries = AdminQueries(clients_log, timeout_s=_ANSWER_S)

    def begin(self) -> None:
        """Switches the topics that begin in metadata mode. Raises ChaosError."""
        for topic in self._settings.first_in_metadata:
            self._wanted[topic], self._is_made[topic] = Mode.METADATA, False
        self.settle()

    def switch(self, number: int) -> bool:
        """Switches a topic to the other mode, or goes on with what was asked last.

        Returns whether it is made.
        """
        topic = self._topics[number]
        if self._is_made[topic]:
            self._wanted[topic], self._is_made[topic] = _OTHER[self._wanted[topic]], False
        return self._try(topic, _SWITCH_S)

    def settle(self) -> None:
        """Makes every switch that was begun. Raises ChaosError if one is not made in time."""
        for topic in self._topics:
            until_s = time.monotonic() + _SETTLED_S
            while not self._is_made[topic]:
                left_s = until_s - time.monotonic()
                if left_s <= 0:
                    raise ChaosError(
                        f"{topic} is not switched to {self._wanted[topic]} {_SETTLED_S:.0f} s after"
                        " everything was healed."
                    )
                self._try(topic, min(left_s, _SWITCH_S))

    def made_anew(self, topic: str) -> None:
        """Notes that a topic was deleted: it begins with markers again."""
        if topic in self._wanted:
            self._wanted[topic], self._is_made[topic] = Mode.MARKERS, True

    def _try(self, topic: str, limit_s: float) -> bool:
        mode = self._wanted[topic]
        self._recorder.write("fault", what="switch", target=topic, to=mode)
        try:
            self._queries.set_topic_mode(
                topic, mode, transaction_group=self._groups[topic], timeout_s=limit_s
            )
        except LogtxError as error:
            self._recorder.write("note", note=f"{topic} to {mode}: {error!r}")
            time.sleep(_PAUSE_S)
            return False
        self._is_made[topic] = True
        self._recorder.write("fault", what="switched", target=topic, to=mode)
        return True

    def close(self) -> None:
        """Closes the queries."""
        self._queries.close()
