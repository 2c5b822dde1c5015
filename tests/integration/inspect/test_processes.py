"""The audit in processes: the same verdict as in one, and what happens when one dies."""

from __future__ import annotations

import os
import signal

import pytest

from logtx.integration.inspect import processes
from logtx.integration.inspect.processes import audit, pieces_of
from logtx.integration.testing import Cluster
from logtx.journal.errors import ConfigError, LogtxError, UnknownTopicError


def test_pieces() -> None:
    size = processes.PIECE_OFFSETS
    spans = {("t", 0): (5, 2 * size + 6), ("t", 1): (3, 3)}
    assert list(pieces_of(spans)) == [
        (("t", 0), (5, size + 5)),
        (("t", 0), (size + 5, 2 * size + 5)),
        (("t", 0), (2 * size + 5, 2 * size + 6)),
    ]


def test_what_is_asked_wrongly(logtx_memory_cluster: Cluster) -> None:
    kafka = {"bootstrap.servers": logtx_memory_cluster.bootstrap_servers}
    with pytest.raises(ConfigError, match="at least one process"):
        audit(kafka, processes=0)
    with pytest.raises(UnknownTopicError):
        audit(kafka, ["nowhere"])


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_a_process_that_dies(logtx_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = logtx_cluster.topic(1)
    with logtx_cluster.producer().begin_transaction() as txn:
        txn.produce(topic, b"x")
    begun: list[int] = []
    kafka = {"bootstrap.servers": logtx_cluster.bootstrap_servers}
    monkeypatch.setattr(processes, "_sum", _die)
    with pytest.raises(LogtxError, match="a process of the audit died"):
        audit(kafka, [topic], processes=2, begun=begun.append)
    assert len(begun) == 1


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
