import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from logtx.consumer import fetching
from logtx.consumer.fetching import NativeFetcher
from logtx.consumer.range_reader.reading import CONSUMER
from logtx.integration.inspect.sums import sum_up
from logtx.integration.spark.clients import (
    AGE_MAX_S,
    CLIENTS,
    IDLE_MAX,
    IDLE_S,
    Clients,
    lend_fetcher,
    lend_log,
)
from logtx.journal.errors import ConfigError
from logtx.journal.fetcher import PollingFetcher
from logtx.journal.native import loading
from logtx.journal.txid import TxId

from ...consumer.logs import Transactions
from ...extension import use_extension


@dataclass(eq=False)
class Client:
    closed: bool = False

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@dataclass
class World:
    now_s: float = 100.0
    made: list[Client] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clients = Clients(lambda: self.now_s)

    def make(self) -> Client:
        self.made.append(Client())
        return self.made[-1]

    def use(self, kind: str = "log", **settings: str) -> Client:
        with self.clients.lend(kind, settings, self.make) as client:
            assert not client.closed
            return client


@pytest.fixture
def world() -> World:
    return World()


def test_s15_a_client_is_lent_again(world: World) -> None:
    first = world.use(user="a", servers="b")
    assert world.use(servers="b", user="a") is first
    world.clients.close()
    assert first.closed


def test_other_settings_are_another_client(world: World) -> None:
    first = world.use(password="old")
    assert world.use(password="new") is not first
    assert world.use(kind="branches", password="old") is not first
    assert not first.closed


def test_each_client_has_one_borrower(world: World) -> None:
    with world.clients.lend("log", {}, world.make) as first:
        assert world.use() is not first


def test_what_failed_is_closed(world: World) -> None:
    with pytest.raises(ValueError, match="no"), world.clients.lend("log", {}, world.make) as first:
        raise ValueError("no")
    assert first.closed
    assert world.use() is not first


def test_a_reader_that_stops_early_gives_it_back(world: World) -> None:
    def read() -> object:
        with world.clients.lend("log", {}, world.make):
            yield 1
            yield 2

    reading = read()
    next(reading)  # type: ignore[call-overload]
    reading.close()  # type: ignore[attr-defined]
    world.use()
    assert [client.closed for client in world.made] == [False]


def test_what_nobody_uses_is_closed(world: World) -> None:
    first = world.use(name="a")
    world.now_s += IDLE_S / 2
    second = world.use(name="b")
    world.now_s += IDLE_S / 2
    world.clients._sweep_late()
    assert (first.closed, second.closed) == (True, False)


def test_an_old_one_is_not_lent(world: World) -> None:
    first = world.use()
    for _ in range(int(AGE_MAX_S / IDLE_S * 2)):
        world.now_s += IDLE_S / 2
        last = world.use()
    assert first.closed
    assert not last.closed
    assert len(world.made) == 2


def test_they_are_bounded_in_number(world: World) -> None:
    used = [world.use(number=str(n)) for n in range(IDLE_MAX + 2)]
    assert [client.closed for client in used] == [True] * 2 + [False] * IDLE_MAX


def test_an_unclosable_client_harms_nobody(world: World, caplog: pytest.LogCaptureFixture) -> None:
    first = world.use()
    first.closed = True
    world.clients.close()
    assert "client_not_closed" in caplog.text


def test_a_log_needs_brokers() -> None:
    with pytest.raises(ConfigError, match="bootstrap"), lend_log({}):
        pass


_FORKING = """
import os, socket, sys
from logtx.integration.spark.clients import CLIENTS, lend_log
broker = socket.create_server(("127.0.0.1", 0))
broker.settimeout(30)
settings = {"bootstrap.servers": "127.0.0.1:%d" % broker.getsockname()[1]}
def consumer():
    with lend_log(settings) as log:
        found = log.consumer({"group.id": "any"})
        found.close()
        return log, found
mine = consumer()
assert consumer() == mine, "a consumer is lent again"
with lend_log({**settings, "client.id": "lent"}) as lent:
    log = lent.consumer({"group.id": "any"})
    # A thread that looks up an address at the fork would leave a lock of the C library locked in
    # the child, for ever. One that has connected looks up no more (trap 274).
    connections = [broker.accept(), broker.accept()]
    child = os.fork()
if not child:
    assert not CLIENTS._idle or CLIENTS._idle[0].client is not lent
    del log, lent
    theirs = consumer()
    assert theirs[0] is not mine[0] and theirs[1] is not mine[1], "the parent's"
    del mine
    sys.exit(7)
status = os.waitpid(child, 0)[1]
assert consumer() == mine
sys.exit(0 if os.waitstatus_to_exitcode(status) == 7 else 1)
"""


def test_a_forked_child_leaves_its_parents_clients_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORKING],
        env=dict(os.environ),
        timeout=60,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_trap_298_what_the_extension_has_read_is_not_read_in_python_later(
    mock_cluster: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_extension(monkeypatch)
    assert loading.find_reader().extension is not None
    kafka, topic = {"bootstrap.servers": mock_cluster}, unique("topic")
    try:
        with lend_log(kafka) as log:
            Transactions(log).append(topic, [b"a", b"b"], [("TxId", TxId(0, 0, 1).to_bytes())])
            # It opens a consumer of its own, by the log.
            sums = [sum_up(log, (topic, 0), (0, 2)) for _ in range(3)]
        assert [groups[0].records for groups in sums] == [2, 2, 2]
    finally:
        CLIENTS.close()


def test_a_fetcher_is_lent_again_and_reads_nothing_meanwhile(
    mock_cluster: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_extension(monkeypatch)
    assert loading.find_reader().extension is not None
    kafka, topic = {"bootstrap.servers": mock_cluster}, unique("topic")
    lent: list[Any] = []
    try:
        with lend_log(kafka) as log:
            Transactions(log).append(topic, [b"a", b"b", b"c"])
            for start in (0, 2, 1):
                with lend_fetcher(log, kafka, CONSUMER, records=1) as fetcher:
                    lent.append(fetcher)
                    fetcher.assign(topic, 0, start)
                    found: list[Any] = []
                    while len(found) < 3 - start:
                        found += [record.value() for record in fetcher.fetch(10, 5).records]
                    assert found == [b"a", b"b", b"c"][start:]
                assert lent[0]._consumer.assignment() == []
        assert {type(each) for each in lent} == {NativeFetcher}
        assert len({id(each) for each in lent}) == 1
    finally:
        CLIENTS.close()


def test_a_small_task_of_a_new_process_tries_nothing(
    mock_cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_extension(monkeypatch)
    monkeypatch.setattr(fetching, "_asked_records", 0)
    kafka = {"bootstrap.servers": mock_cluster}
    try:
        with lend_log(kafka) as log, lend_fetcher(log, kafka, CONSUMER, records=1_000) as fetcher:
            assert isinstance(fetcher, PollingFetcher)
        assert loading.READING.found is None
    finally:
        CLIENTS.close()
