"""Sessions on frames and sessions over gRPC refuse each other: real gRPC at the other end."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from logtx.coordinator.client.connection import CHANNEL_OPTIONS
from logtx.coordinator.protocol.frames import (
    CLIENT_DEADLINES,
    COORDINATOR_DEADLINES,
    Ended,
    Endpoint,
    State,
)
from logtx.coordinator.protocol.strangers import Role
from logtx.journal.errors import FrameError

TIMEOUT_S = 30.0


def now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def run(end: Endpoint, connection: socket.socket) -> list[Ended]:
    """Runs one end over a socket until it is closed; returns which ends were told."""
    told: list[Ended] = []
    with connection:
        while True:
            data = end.to_send()
            if data:
                connection.sendall(data)
            if end.state is State.LINGERING:
                connection.shutdown(socket.SHUT_WR)
            if end.state is State.CLOSED:
                return told
            due = end.next_due_ms
            connection.settimeout(None if due is None else max(due - now_ms(), 1) / 1_000)
            try:
                received = connection.recv(65_536)
            except TimeoutError:
                events = end.tick(now_ms())
            except ConnectionResetError:
                events = end.receive_end()
            else:
                events = end.receive(received, now_ms()) if received else end.receive_end()
            told += [event for event in events if isinstance(event, Ended)]


def test_a_client_of_before_is_refused_at_once_and_both_are_told() -> None:
    refused: list[Ended] = []

    def serve(listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # it was shut down
                return
            end = Endpoint(
                Role.COORDINATOR,
                window_bytes=1_000,
                deadlines=COORDINATOR_DEADLINES,
                now_ms=now_ms(),
            )
            refused.extend(run(end, connection))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        try:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            with grpc.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
                call = channel.stream_stream("/logtx.Coordinator/Session")
                with pytest.raises(grpc.RpcError) as broken:
                    list(call(iter([b""]), timeout=TIMEOUT_S))
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(TIMEOUT_S)
    assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "HTTP status 426" in broken.value.details()
    assert 1 <= len(refused) < 10, "gRPC connects again in its own time"
    for ended in refused:
        assert isinstance(ended.error, FrameError)
        assert "install the coordinator's version of logtx at the client" in str(ended.error)


def test_a_coordinator_of_before_is_refused_at_once() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        end = Endpoint(Role.CLIENT, window_bytes=1_000, deadlines=CLIENT_DEADLINES, now_ms=now_ms())
        (ended,) = run(end, socket.create_connection(("127.0.0.1", port), TIMEOUT_S))
    finally:
        server.stop(0).wait(TIMEOUT_S)
    assert isinstance(ended.error, FrameError), ended
    assert "older versions of logtx" in str(ended.error)
