"""The finder's search over streams whose answers the test gives."""

from __future__ import annotations

import queue
import time

from logtx.coordinator.client.finder import Finder
from logtx.coordinator.client.pursuit import PATIENCE_MIN_S
from logtx.coordinator.protocol import coordinator_pb2 as pb
from logtx.coordinator.protocol.checkpoint import Checkpoint
from logtx.coordinator.protocol.commands import Connected
from logtx.coordinator.protocol.replies import encode_reply
from logtx.journal.errors import LogtxError

CONNECTED = encode_reply(0, Connected(generation=0, partition=0, incarnation=1, epoch=1))


class FakeStream:
    """A stream to an address; the test decides what it returns."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.ended = "closed"
        self.failure: LogtxError | None = None
        self.frames: queue.SimpleQueue[pb.ServerFrame | None] = queue.SimpleQueue()

    def receive(self) -> pb.ServerFrame | None:
        return self.frames.get(timeout=10)

    def close(self) -> None:
        self.frames.put(None)


def test_a_search_that_goes_on_has_forgotten_the_attempts_it_dropped() -> None:
    made: list[FakeStream] = []

    def connect(address: str) -> FakeStream:
        stream = FakeStream(address)
        made.append(stream)
        if address == "takes":
            stream.frames.put(pb.ServerFrame(replies=[CONNECTED]))
        return stream

    finder = Finder(lambda: Checkpoint(offset=0, epoch=1, address="takes"), connect, Connected)
    for _ in range(3):
        found = finder.find()
        assert found is not None
        assert found.stream.address == "takes"
        finder.lost(found, "silent", served=False)
        # As long as the finder would have waited for the silent one.
        time.sleep(PATIENCE_MIN_S * 1.2)
    finder.close()
    assert "silent" in {stream.address for stream in made}
