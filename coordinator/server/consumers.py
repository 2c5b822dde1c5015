"""The consumers of queues that are attached to this coordinator, by their streams.

A consumer's stream is its sign of life: when it breaks, the consumer has a moment to attach again,
then what it had is given to others. A consumer that attaches again while its former stream has not
ended yet must not be taken for gone when that one ends at last: so the latest stream counts, and it
counts from when Attach came, not from when that is answered.

Lives on the coordinator's event loop.
"""

from __future__ import annotations

import time

from ...journal.errors import LogtxError, NotSupportedError, SessionClosedError
from ...journal.records.codec import WITH_ERAS, WITH_QUEUES
from ..membership.members import Members
from ..protocol.commands import Attach
from .stream import Replies, Stream


class Consumers:
    """Knows which stream is whose."""

    def __init__(self) -> None:
        """Begins without consumers."""
        self.members: Members | None = None
        """Tells what other coordinators read; None: there are none."""
        self._streams: dict[tuple[int, str, int], Stream] = {}

    def check_builds(self) -> None:
        """Refuses a queue while another coordinator would stop at its records.

        Raises:
            NotSupportedError: names that coordinator.
        """
        self._check_format(WITH_QUEUES, "with queues", "attach again")

    def check_builds_for_eras(self) -> None:
        """Refuses to end an era of a subscription while another coordinator would stop at that.

        Raises:
            NotSupportedError: names that coordinator.
        """
        self._check_format(WITH_ERAS, "in which subscriptions are reset or deleted", "ask again")

    def _check_format(self, needed: int, what: str, then: str) -> None:
        others = self.members.reached(time.monotonic()) if self.members is not None else []
        for other in others:
            if other.journal_format < needed:
                raise NotSupportedError(
                    f"the coordinator at {other.address} does not read journals {what}: upgrade"
                    f" it, then {then}"
                )

    def join(self, partition: int, command: Attach, out: Replies) -> Stream:
        """Returns the stream of a consumer. A former one of the same consumer ends."""
        stream = Stream(partition, out, consumer=(command.group, command.consumer))
        key = partition, command.group, command.consumer
        former = self._streams.get(key)
        self._streams[key] = stream
        if former is not None:
            former.end(SessionClosedError("the consumer attached by another connection"))
        return stream

    def left(self, stream: Stream) -> bool:
        """Notes that a stream broke. Returns whether its consumer has no other one."""
        assert stream.consumer is not None, "it is a consumer's"
        key = (stream.partition, *stream.consumer)
        if self._streams.get(key) is not stream:
            return False
        del self._streams[key]
        return True

    def close(self, partition: int, error: LogtxError) -> None:
        """Ends the streams of a journal partition's consumers. They attach again."""
        for key in [k for k in self._streams if k[0] == partition]:
            self._streams.pop(key).end(error)
