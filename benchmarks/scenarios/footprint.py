"""What a process that does nothing costs: its memory, and the time to import logtx."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from typing import Final

from ..clients import CONNECT_TIMEOUT_S, CONSUMER, PRODUCER, delete_topics, make_topic, shown
from ..model import Better, Comparison, Context, Sample, Scenario

TOPIC: Final = "bench-footprint"
IDLE_S: Final = 2.0
"""How long a client has been idle when its memory is looked at: it has connected by then."""
_MEMORY: Final = """
import sys, time
from logtx.benchmarks import clients
servers, topic, idle_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
{client}
time.sleep(idle_s)
with open("/proc/self/status", encoding="ascii") as status:
    print(next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) / 1024)
"""
_CONSUME: Final = """
import {module}
client = {module}.Consumer(clients.consumer_config(servers, "idle"))
client.subscribe([topic])
client.poll(idle_s)
"""
_IMPORT: Final = """
import time
began_s = time.perf_counter()
{what}
print((time.perf_counter() - began_s) * 1e3)
"""
_PROGRAMS: Final = {
    "kafka-producer": _MEMORY.format(
        client='client = clients.kafka_producer(servers, "idle-kafka")'
    ),
    "logtx-producer": _MEMORY.format(
        client='client = clients.logtx_producer(servers, "idle-logtx")'
    ),
    "kafka-consumer": _MEMORY.format(client=_CONSUME.format(module="confluent_kafka")),
    "logtx-consumer": _MEMORY.format(client=_CONSUME.format(module="logtx")),
    "logtx": _IMPORT.format(what="import logtx"),
    "kafka-clients": _IMPORT.format(what="from confluent_kafka import Consumer, Producer"),
    "logtx-clients": _IMPORT.format(what="from logtx import Consumer, Producer"),
}
"""Side → a program that prints its figure."""


class Fresh:
    """Runs a program in a new process, and takes the figure that it prints."""

    def __init__(self, context: Context, program: str) -> None:
        """Keeps the parameters.

        Args:
            context: of the run.
            program: name of the side.
        """
        self._context = context
        self._program = program

    def open(self) -> None:
        """Does nothing: each round has a process of its own."""

    def close(self) -> None:
        """Does nothing."""

    def measure(self) -> Sample:
        """Runs it."""
        idle_s = self._context.sized(IDLE_S, 0.2)
        ended = subprocess.run(
            [
                *(sys.executable, "-c", _PROGRAMS[self._program]),
                *(self._context.bootstrap_servers, TOPIC, str(idle_s)),
            ],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=CONNECT_TIMEOUT_S * 2 + idle_s,
        )
        return Sample(float(ended.stdout))


def _prepare(context: Context) -> None:
    make_topic(context.bootstrap_servers, TOPIC, 2)


def _finish(context: Context) -> None:
    delete_topics(context.bootstrap_servers, [TOPIC])


def _nothing(_context: Context) -> None:
    """An import needs no topic."""


def _sides(*names: str) -> dict[str, partial[Fresh]]:
    return {name: partial(Fresh, program=name) for name in names}


MEMORY: Final = Scenario(
    name="memory",
    title="Memory of an idle process",
    unit="MB",
    better=Better.LOWER,
    method=(
        "A new process makes a producer, or a consumer of an empty topic, and is idle for "
        f"{IDLE_S:g} s. Measured: its resident memory."
    ),
    settings=(shown(PRODUCER), shown(CONSUMER)),
    sides=_sides("kafka-producer", "logtx-producer", "kafka-consumer", "logtx-consumer"),
    comparisons=tuple(
        Comparison(
            title=f"memory of an idle {client}'s process",
            kafka=f"kafka-{client}",
            logtx=f"logtx-{client}",
            floor=60,
        )
        for client in ("producer", "consumer")
    ),
    prepare=_prepare,
    finish=_finish,
)

IMPORT: Final = Scenario(
    name="import",
    title="Import",
    unit="ms",
    better=Better.LOWER,
    method=(
        "A new process imports logtx, which loads what is asked for; or the classes Consumer and "
        "Producer of either side. Measured: the time of the import statement."
    ),
    settings=("Python's compiled files are cached",),
    sides=_sides("logtx", "kafka-clients", "logtx-clients"),
    comparisons=(
        Comparison(title="import logtx", logtx="logtx", floor=100),
        Comparison(
            title="import of Consumer and Producer", kafka="kafka-clients", logtx="logtx-clients"
        ),
    ),
    prepare=_nothing,
    finish=_nothing,
)
