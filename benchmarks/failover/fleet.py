"""Several `logtx coordinator` processes on one Kafka, started as a user would start them."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Final

from logtx.coordinator.protocol.checkpoint import Checkpoint
from logtx.integration.local.ports import HOST, pick_ports
from logtx.integration.local.processes import CoordinatorChild
from logtx.journal.logs.interface import Log
from logtx.journal.reader import COORDINATORS_GROUP, JOURNAL_TOPIC

_POLL_S: Final = 0.02
"""Time between two looks at who owns what."""


class CoordinatorFailedError(Exception):
    """Coordinators did not do what a measurement needs."""


def coordinator_child(servers: str, directory: Path, *options: str) -> CoordinatorChild:
    """Returns a coordinator, not started, with a fixed address: it can be started repeatedly."""
    port = pick_ports(1)[0]
    name = f"coordinator-{port}"
    log = directory / f"{name}.log"
    return CoordinatorChild(name, log, servers, *options, listen=f"{HOST}:{port}")


class Fleet:
    """Coordinators of one cluster, and which of them owns what. A context manager."""

    def __init__(self, log: Log, directory: Path, count: int, *options: str) -> None:
        servers = log.bootstrap_servers
        self._log = log
        self._epochs: dict[int, int] = {}
        """Newest epoch seen of each journal partition."""
        self.members = [coordinator_child(servers, directory, *options) for _ in range(count)]

    def __enter__(self) -> Fleet:
        """Starts them one after another; the first creates the topics."""
        try:
            for member in self.members:
                member.start()
                member.await_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exception: object) -> None:
        """Kills all that run."""
        for member in self.members:
            member.kill()

    def owner(self, partition: int) -> CoordinatorChild:
        """Returns the member that published last that it owns a journal partition.

        Raises:
            CoordinatorFailedError: it is none of the members.
        """
        checkpoint = self.published(partition)
        address = checkpoint.address if checkpoint else ""
        for member in self.members:
            if member.address == address:
                return member
        raise CoordinatorFailedError(f"journal partition {partition} is owned by {address!r}")

    def published(self, partition: int) -> Checkpoint | None:
        """Returns the hint that clients follow; None if there is none."""
        committed = self._log.group_offset(COORDINATORS_GROUP, JOURNAL_TOPIC, partition)
        return Checkpoint.from_group_offset(committed)

    def await_settled(self, partitions: int, quiet_s: float, timeout_s: float) -> dict[int, str]:
        """Waits until all owners run, have an even share, and none changed for `quiet_s`.

        Returns:
            Journal partition → address of its owner.

        Raises:
            CoordinatorFailedError: the owners did not settle within `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        owners: dict[int, tuple[str, int]] = {}
        since_s = time.monotonic()
        running = {m.address for m in self.members if m.is_running}
        while time.monotonic() - since_s < quiet_s:
            if time.monotonic() > deadline_s:
                raise CoordinatorFailedError(f"owners still change: {owners}")
            published = {p: self.published(p) for p in range(partitions)}
            found = {
                p: (c.address, c.epoch)
                for p, c in published.items()
                # A stopped owner that wakes up publishes late over the new owner's hint.
                if c is not None and c.epoch >= self._epochs.get(p, -1)
            }
            self._epochs.update({p: epoch for p, (_, epoch) in found.items()})
            load = Counter(address for address, _ in found.values())
            alive = load.keys() <= running
            even = max(load.values(), default=0) - min((load[a] for a in running), default=0) <= 1
            if found != owners or len(found) < partitions or not alive or not even:
                owners, since_s = found, time.monotonic()
            time.sleep(_POLL_S)
        return {p: address for p, (address, _) in owners.items()}
