"""A sidecar on a broker is compacted, and consumers go on in the copies."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import logtx
from logtx.coordinator.core.trimming import Noted
from logtx.coordinator.server.compacting import Copier, plan_partitions
from logtx.coordinator.server.trimming import look_at
from logtx.journal.logs.interface import Log
from logtx.journal.sidecar import sidecar_of

from .coordinator.clusters import until
from .parameters import KAFKA
from .test_end_to_end import MakeTopic, cluster, consumer, producer, servers, values
from .test_sidecars import committed

__all__ = ["cluster", "consumer", "producer", "servers"]
TIMEOUT_S = 20.0


@pytest.fixture(params=["memory", KAFKA])
def transport(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_consumer_goes_on_in_copies(
    log: Log,
    producer: logtx.Producer,
    consumer: Callable[..., logtx.Consumer],
    make_topic: MakeTopic,
    unique: Callable[[str], str],
) -> None:
    topic, group = make_topic(), unique("group")
    sidecar = sidecar_of(topic)
    committed(producer, topic, *(f"a {n}" for n in range(6)))
    aborted = producer.begin_transaction(sidecar=True)
    for number in range(100):
        aborted.produce(topic, str(number), partition=0)
    producer.flush(TIMEOUT_S)
    aborted.abort()
    committed(producer, topic, "b")
    # Six, a hundred and one records, and three markers.
    until(lambda: log.end_offset(sidecar, 0) == 110)
    expected = [*(f"a {n}".encode() for n in range(6)), b"b"]
    reader = consumer(topic, group_id=group, enable_auto_commit="false")
    for wanted in expected[:2]:
        message = reader.poll(TIMEOUT_S)
        assert message is not None
        assert message.value() == wanted
    reader.commit(asynchronous=False)
    reader.close()
    for start in (110, 117):
        seen = look_at(log, [sidecar], print)
        assert isinstance(seen[sidecar, 0].noted, Noted)
        planned = plan_partitions(log, seen, share=1.0, grace_s=0.1)
        copier = Copier(log)
        copier.run(planned)
        copier.close()
        assert log.start_offset(sidecar, 0) == start, "copies of copies come behind"
        assert values(consumer(topic), 7) == expected
    again = consumer(topic, group_id=group, enable_auto_commit="false")
    assert values(again, 5) == expected[2:]
