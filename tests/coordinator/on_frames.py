"""Lets a test's coordinators and clients speak frames, in the place of gRPC.

Coordinators listen for both, and say their gRPC address everywhere; each connection is made to the
address for frames that belongs to it. So a test needs no word of it but the fixture `transport`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from logtx.coordinator.client import attached, metadata, queries, session
from logtx.coordinator.client.framed import CALL_DEADLINES, FramedCalls, FramedConnection
from logtx.coordinator.client.framed_metadata import FramedMetadata
from logtx.coordinator.membership import peers
from logtx.coordinator.membership.framed_link import FramedLink
from logtx.coordinator.protocol.frames import Deadlines
from logtx.coordinator.server.opened import Opened
from logtx.coordinator.service import Coordinator
from logtx.coordinator.transport.on_loop import Listener

from . import scripted
from .transport.served import PATIENT

UNHURRIED: Final = Deadlines(hello_ms=20_000, ping_after_ms=500, pong_ms=5_000)
"""Of clients: a test's machine may be busy, and no test stops a process."""
ASKED: Final = replace(UNHURRIED, hello_ms=CALL_DEADLINES.hello_ms)


class OnFrames:
    """Every coordinator that starts listens for frames, too, and every client connects there."""

    def __init__(self) -> None:
        self.addresses: dict[str, str] = {}
        """Address for gRPC → that for frames."""
        self.listeners: dict[str, Listener] = {}
        self.connected: list[str] = []
        """Kinds of connections that were made."""
        self._lock = threading.Lock()

    def address(self, kind: str, address: str) -> str:
        """Returns where to connect to instead; an address without a coordinator stays."""
        with self._lock:
            self.connected.append(kind)
            return self.addresses.get(address, address)

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Begins."""
        start, stop = Coordinator.start, Coordinator.stop

        async def started(coordinator: Coordinator) -> None:
            await start(coordinator)
            await self._listen(coordinator)

        async def stopped(coordinator: Coordinator, *, give: bool = True) -> None:
            listener = self.listeners.pop(coordinator.address, None)
            await stop(coordinator, give=give)
            if listener is not None:
                await listener.stop()

        patch.setattr(Coordinator, "start", started)
        patch.setattr(Coordinator, "stop", stopped)
        for module in (session, attached):
            patch.setattr(module, "Connection", self._connection)
        patch.setattr(scripted, "LISTENING", self.addresses)
        patch.setattr(queries, "GrpcCalls", self._calls)
        patch.setattr(metadata, "GrpcMetadata", self._metadata)
        patch.setattr(peers, "GrpcLink", self._link)

    async def _listen(self, coordinator: Coordinator) -> None:
        assert coordinator._metadata is not None
        assert coordinator._ownership is not None
        served = Opened(
            coordinator._streams, coordinator._metadata.service, coordinator._ownership.peers
        )
        listener = Listener(served.serve, deadlines=PATIENT)
        port = await listener.start("127.0.0.1:0")
        self.listeners[coordinator.address] = listener
        self.addresses[coordinator.address] = f"127.0.0.1:{port}"

    def _connection(self, address: str, connect: Any, encode: Any) -> FramedConnection[Any]:
        there = self.address("session", address)
        made = FramedConnection[Any](there, connect, encode, deadlines=UNHURRIED)
        vars(made)["address"] = address  # what the finder knows it by
        return made

    def _calls(self, address: str) -> FramedCalls:
        return FramedCalls(self.address("calls", address), deadlines=ASKED)

    def _metadata(self, address: str) -> FramedMetadata:
        return FramedMetadata(self.address("metadata", address), deadlines=ASKED)

    def _link(self, address: str, more_s: float = 0.0) -> FramedLink:
        listener = self.listeners.get(address)
        alive = None if listener is None else listener.alive
        return FramedLink(self.address("peers", address), more_s, alive=alive)


@pytest.fixture(params=["grpc", "frames"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What coordinators and clients speak: None for gRPC; it has seen each connection else."""
    if request.param == "grpc":
        yield None
        return
    frames = OnFrames()
    frames.install(monkeypatch)
    yield frames
