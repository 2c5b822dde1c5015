"""The proxy on the loopback: carries, cuts, stalls, delays and heals; by link and by process."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from logtx.chaos.proxy import Proxies, Rule
from logtx.chaos.sockets import socket_inode, socket_inodes

HOST = "127.0.0.1"
TIMEOUT_S = 10.0
BIG = os.urandom(4 * 1024 * 1024)
ECHO_CLIENT = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20) as client:
    for line in sys.stdin:
        client.sendall(line.encode())
        try:
            got = client.recv(1000)
        except OSError:
            got = b""
        print(got.decode().strip() or "lost", flush=True)
        if not got:
            break
"""


class Echo(socketserver.BaseRequestHandler):
    """Sends back what comes."""

    def handle(self) -> None:
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Server(socketserver.ThreadingTCPServer):
    """Of echoes."""

    allow_reuse_address = True
    daemon_threads = True


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    with Server((HOST, 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield HOST, server.server_address[1]
        server.shutdown()


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies() as made:
        yield made


@pytest.fixture
def connect(proxies: Proxies, echo: tuple[str, int]) -> Iterator[Callable[[], socket.socket]]:
    """Connects to the link `echo`."""
    port = proxies.add("echo", echo)
    made: list[socket.socket] = []

    def call() -> socket.socket:
        made.append(socket.create_connection((HOST, port), timeout=TIMEOUT_S))
        return made[-1]

    yield call
    for client in made:
        client.close()


def exchange(client: socket.socket, data: bytes) -> bytes:
    client.sendall(data)
    return receive(client, len(data))


def receive(client: socket.socket, count: int) -> bytes:
    found = b""
    while len(found) < count and (more := client.recv(count - len(found))):
        found += more
    return found


def is_lost(client: socket.socket) -> bool:
    try:
        client.sendall(b"x")
        return client.recv(1) == b""
    except (ConnectionError, BrokenPipeError):
        return True


def test_carries_both_ways(connect: Callable[[], socket.socket]) -> None:
    clients = [connect() for _ in range(5)]
    for number, client in enumerate(clients):
        assert exchange(client, b"hello %d" % number) == b"hello %d" % number


def test_carries_more_than_sockets_hold(connect: Callable[[], socket.socket]) -> None:
    client = connect()
    sender = threading.Thread(target=client.sendall, args=(BIG,), daemon=True)
    sender.start()
    time.sleep(0.3)  # nobody reads the echo meanwhile: everything on the way is full
    assert receive(client, len(BIG)) == BIG
    sender.join(TIMEOUT_S)


def test_a_cut_closes_and_refuses_until_healed(
    proxies: Proxies, connect: Callable[[], socket.socket]
) -> None:
    client = connect()
    assert exchange(client, b"a") == b"a"
    proxies.hurt("fault", Rule(cut=True, link="echo"))
    assert is_lost(client)
    assert is_lost(connect())
    proxies.heal("fault")
    assert exchange(connect(), b"b") == b"b"


def test_a_stall_keeps_connections_and_loses_nothing(
    proxies: Proxies, connect: Callable[[], socket.socket]
) -> None:
    client = connect()
    proxies.hurt("fault", Rule(stall=True, link="echo"))
    client.sendall(b"late")
    client.settimeout(0.3)
    with pytest.raises(TimeoutError):
        client.recv(4)
    client.settimeout(TIMEOUT_S)
    proxies.heal("fault")
    assert receive(client, 4) == b"late"
    assert exchange(client, BIG[:100_000]) == BIG[:100_000]


def test_a_delay_keeps_the_order(proxies: Proxies, connect: Callable[[], socket.socket]) -> None:
    client = connect()
    assert exchange(client, b"quick") == b"quick"
    proxies.hurt("fault", Rule(delay_s=0.1, link="echo"))
    started_s = time.monotonic()
    assert exchange(client, b"slow") == b"slow"
    # There and back; the loop's timers may be a tick early.
    assert time.monotonic() - started_s >= 0.19
    client.sendall(b"first ")
    time.sleep(0.02)
    proxies.heal("fault")  # what is on its way comes before what is sent now
    client.sendall(b"second")
    assert receive(client, 12) == b"first second"


def test_rules_go_by_link(proxies: Proxies, echo: tuple[str, int]) -> None:
    ports = {name: proxies.add(name, echo) for name in ("one", "two")}
    clients = {
        name: socket.create_connection((HOST, port), timeout=TIMEOUT_S)
        for name, port in ports.items()
    }
    for client in clients.values():
        assert exchange(client, b"a") == b"a"
    proxies.hurt("fault", Rule(cut=True, link="one"))
    assert is_lost(clients["one"])
    assert exchange(clients["two"], b"b") == b"b"


def test_rules_go_by_client_process(
    proxies: Proxies, echo: tuple[str, int], connect: Callable[[], socket.socket]
) -> None:
    ours = connect()
    port = proxies.add("other", echo)
    with subprocess.Popen(
        [sys.executable, "-c", ECHO_CLIENT, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None

        def ask(line: str) -> str:
            assert other.stdin is not None
            assert other.stdout is not None
            print(line, file=other.stdin, flush=True)
            return other.stdout.readline().strip()

        assert ask("one") == "one"
        proxies.hurt("fault", Rule(cut=True, pid=other.pid))
        assert ask("two") == "lost"
        assert exchange(ours, b"three") == b"three"
        proxies.heal("fault")
        assert other.wait(TIMEOUT_S) == 0


def test_a_link_leads_elsewhere(proxies: Proxies, echo: tuple[str, int]) -> None:
    port = proxies.add("link")
    with socket.create_connection((HOST, port), timeout=TIMEOUT_S) as client:
        assert is_lost(client)
    proxies.lead("link", echo)
    with socket.create_connection((HOST, port), timeout=TIMEOUT_S) as client:
        assert exchange(client, b"a") == b"a"


def test_a_dead_upstream_loses_the_client(proxies: Proxies) -> None:
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        port = proxies.add("dead", (HOST, unused.getsockname()[1]))
        with socket.create_connection((HOST, port), timeout=TIMEOUT_S) as client:
            assert is_lost(client)


def test_either_end_closes_the_other(
    proxies: Proxies, connect: Callable[[], socket.socket]
) -> None:
    client = connect()
    assert exchange(client, b"a") == b"a"
    assert len(proxies._connections) == 1
    client.close()
    deadline_s = time.monotonic() + TIMEOUT_S
    while proxies._connections and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not proxies._connections


def test_a_connection_is_known_by_the_process_it_comes_from(
    connect: Callable[[], socket.socket],
) -> None:
    client = connect()
    local, remote = client.getsockname(), client.getpeername()
    inode = socket_inode(local, remote)
    assert inode == os.fstat(client.fileno()).st_ino
    assert inode in socket_inodes(os.getpid())
    assert inode not in socket_inodes(os.getppid())
    assert socket_inodes(2**22 + 1) == set()
    assert socket_inode((local[0], 1), remote) is None


def test_the_process_of_a_socket_for_both_protocols_is_known(echo: tuple[str, int]) -> None:
    # As some libraries connect to IPv4 addresses.
    with socket.socket(socket.AF_INET6) as client:
        client.connect((f"::ffff:{echo[0]}", echo[1]))
        found = socket_inode((HOST, client.getsockname()[1]), echo)
        assert found == os.fstat(client.fileno()).st_ino


def test_closing_twice_is_closing(echo: tuple[str, int]) -> None:
    made = Proxies()
    port = made.add("echo", echo)
    made.close()
    made.close()
    with pytest.raises(ConnectionError):
        socket.create_connection((HOST, port), timeout=1).close()


def test_a_misleading_link_leads_where_another_one_does_and_back(proxies: Proxies) -> None:
    def answers(text: bytes) -> tuple[str, int]:
        server = socket.create_server((HOST, 0))

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                client.sendall(text)

        threading.Thread(target=serve, daemon=True).start()
        servers.append(server)
        return HOST, server.getsockname()[1]

    def told() -> bytes:
        with socket.create_connection((HOST, port), timeout=TIMEOUT_S) as client:
            return receive(client, 3)

    servers: list[socket.socket] = []
    port = proxies.add("one", answers(b"one"))
    proxies.add("two", answers(b"two"))
    with socket.create_connection((HOST, port), timeout=TIMEOUT_S) as before:
        assert receive(before, 3) == b"one"
        proxies.mislead("one", "two")
        assert is_lost(before)
    assert told() == b"two"
    proxies.lead("two", answers(b"new"))  # its process was started again
    assert told() == b"new"
    proxies.heal_lead("one")
    assert told() == b"one"
    for server in servers:
        server.close()
