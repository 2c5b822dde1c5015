"""Several coordinators in this process over one log, each with a thread and an event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from logtx.coordinator.client.session import CoordinatorClient, SessionOptions
from logtx.coordinator.protocol.commands import Action, Began, Outcome
from logtx.coordinator.runtime.partition import PartitionRuntime, Role
from logtx.coordinator.service import Coordinator, CoordinatorConfig
from logtx.journal.control import BranchRange, TopicPartition
from logtx.journal.logs.interface import Log
from logtx.journal.txid import TxId

TIMEOUT_S = 20.0
PARTITIONS = 4


class Node:
    """One coordinator, which can be stopped, killed and held."""

    def __init__(self, log: Log, **settings: Any) -> None:
        settings.setdefault("listen", "127.0.0.1:0")
        settings.setdefault("journal_partitions", PARTITIONS)
        self.config = CoordinatorConfig(bootstrap_servers=log.bootstrap_servers, **settings)
        self._log = log
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.coordinator = self.call(self._make())
        self.alive = True
        try:
            self.call(self.coordinator.start())
        except BaseException:
            self.kill()
            raise

    async def _make(self) -> Coordinator:
        return Coordinator(self.config, _Unclosed(self._log))

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Runs a coroutine on the coordinator's loop; returns its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(TIMEOUT_S + 20)

    @property
    def address(self) -> str:
        """Where clients reach it."""
        return self.coordinator.address

    @property
    def runtimes(self) -> dict[int, PartitionRuntime]:
        """Its runtime of each journal partition."""
        return self.coordinator._runtimes

    @property
    def serving(self) -> set[int]:
        """Journal partitions that it serves."""
        return {p for p, r in self.runtimes.items() if r.role is Role.SERVING}

    def leave(self) -> None:
        """Leaves as on SIGTERM."""
        self._end(give=True)

    def kill(self) -> None:
        """Ends it without telling any other."""
        self._end(give=False)

    def _end(self, *, give: bool) -> None:
        if not self.alive:
            return
        self.alive = False
        self.call(self.coordinator.stop(give=give))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(TIMEOUT_S)

    def hold(self, seconds: float) -> threading.Thread:
        """Stops its event loop for a while; its connections and its producer live on."""
        self.loop.call_soon_threadsafe(time.sleep, seconds)
        waiting = threading.Thread(target=time.sleep, args=(seconds,))
        waiting.start()
        return waiting


class _Unclosed:
    """A log that all nodes share: `close` does nothing."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def close(self) -> None:
        """Does nothing: the test closes the log."""


@dataclass
class Cluster:
    """The coordinators of one test."""

    log: Log
    nodes: list[Node] = field(default_factory=list)

    def join(self, **settings: Any) -> Node:
        """Starts another coordinator."""
        self.nodes.append(Node(self.log, **settings))
        return self.nodes[-1]

    def joined(self, count: int) -> list[Node]:
        """Starts `count` coordinators, and waits until the partitions are spread among them."""
        nodes = [self.join() for _ in range(count)]
        self.settled()
        return nodes

    def settled(self) -> None:
        """Waits until living coordinators serve all partitions, and have an even share each."""
        until(lambda: self.is_served() and self.spread() <= 1)

    def is_served(self) -> bool:
        """Whether each partition is served exactly once."""
        owned = [p for n in self.nodes if n.alive for p in n.serving]
        return sorted(owned) == list(range(PARTITIONS))

    def spread(self) -> int:
        """Difference between the most and the least partitions of a living coordinator."""
        loads = [len(n.serving) for n in self.nodes if n.alive]
        return max(loads) - min(loads)

    def owner(self, partition: int) -> Node:
        """Returns the coordinator that serves a partition."""
        found: list[Node] = []

        def is_one() -> bool:
            found[:] = [n for n in self.nodes if n.alive and partition in n.serving]
            return len(found) == 1

        until(is_one)
        return found[0]


@contextmanager
def cluster_of(log: Log) -> Iterator[Cluster]:
    """Yields a cluster without coordinators; stops it in the end."""
    cluster = Cluster(log)
    try:
        yield cluster
    finally:
        for node in cluster.nodes:
            node.kill()


def until(holds: Callable[[], bool], timeout_s: float = TIMEOUT_S) -> None:
    """Waits until something holds, for a bounded time."""
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.005)


def ask(method: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
    """Calls a method of a client and waits for its reply."""
    replies: queue.SimpleQueue[Any] = queue.SimpleQueue()
    method(*args, on_reply=replies.put, **kwargs)
    return replies.get(timeout=TIMEOUT_S + 5)


class Committer:
    """A producer that begins and commits all the time, and keeps the answers."""

    def __init__(self, log: Log, topic: str, *, group: str = "default", name: str = "p") -> None:
        self._client = CoordinatorClient(
            log, SessionOptions(producer_id=name, transaction_group=group, timeout_s=TIMEOUT_S)
        )
        self._client.connect()
        self._writes: dict[TopicPartition, tuple[BranchRange, ...]] = {
            (topic, 0): (BranchRange(0, 0, 0, 1),)
        }
        self.committed: list[TxId] = []
        self.refused: list[Any] = []
        self.worst_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            started_s = time.monotonic()
            reply = ask(self._client.begin, timeout_ms=60_000)
            if isinstance(reply, Began):
                txid = reply.txid
                reply = ask(self._client.end, txid, Action.COMMIT, self._writes)
                if isinstance(reply, Outcome) and reply.state.commits:
                    self.committed.append(txid)
                else:
                    self.refused.append(reply)
            else:
                self.refused.append(reply)
            self.worst_s = max(self.worst_s, time.monotonic() - started_s)

    def progress(self, count: int = 5) -> None:
        """Waits until `count` more transactions are committed."""
        goal = len(self.committed) + count
        until(lambda: len(self.committed) >= goal)

    def stop(self) -> None:
        """Stops; keeps the answers."""
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        self._client.close()
