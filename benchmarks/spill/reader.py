"""The consumer's process: `python -m benchmarks.spill.reader` and a `Reading` as JSON.

It imports no more than an application would, for its memory is measured. It prints its reports as
JSON objects, one a line: how many records are `pending`, when the `first` one came, which share is
`delivered`, and in the end `done`, with what was read and how long that took.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

import logtx

BATCH: Final = 1_000
"""Most records of one `consume`."""
IDLE_S: Final = 0.25
"""Time between reports of what is pending, while nothing is delivered."""
BUSY_S: Final = 1.0
"""Time between reports of how much is delivered."""


class WrongRecordError(Exception):
    """What was delivered is not what was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What to read."""

    servers: str
    topic: str
    count: int
    """Records to be delivered."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the consumer, beyond its defaults."""
    check: bool = False
    """Whether to compute a digest of all values, in order, which costs time."""
    timeout_s: float = 600.0

    def to_json(self) -> str:
        """Returns the reading as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Returns the reading that `to_json` wrote."""
        return cls(**json.loads(text))


def peak_rss_bytes() -> int | None:
    """Returns the most memory this process ever had resident; None if the kernel doesn't say."""
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def read(reading: Reading, tell: Callable[..., None]) -> None:
    """Reads until everything is delivered; reads each value and its headers.

    Raises:
        TimeoutError: it takes longer than `reading.timeout_s`.
        WrongRecordError: an event came instead of a record, or the last record is another.
    """
    config = {"bootstrap.servers": reading.servers, "group.id": f"read-{reading.topic}"}
    config |= {"enable.auto.commit": False, **reading.settings}
    digest = blake2b()
    with logtx.Consumer(config) as consumer:
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        consumer.assign([TopicPartition(reading.topic, 0, OFFSET_BEGINNING)])
        left, last_number, told_s = reading.count, -1, began_s
        while left:
            now_s = time.perf_counter()
            if now_s - told_s > BUSY_S:
                told_s = now_s
                tell(delivered=1 - left / reading.count)
            if now_s - began_s > reading.timeout_s:
                raise TimeoutError(f"{left} of {reading.count} records did not come")
            # The first one alone: `consume` would wait for a full batch.
            batch = consumer.consume(1 if left == reading.count else min(BATCH, left), IDLE_S)
            if not batch:
                tell(pending=consumer.stats()["pending_records"])
                continue
            if left == reading.count:
                tell(first=now_s - began_s)
            left -= len(batch)
            for message in batch:
                value = message.value()
                message.headers()
                if message.error() is not None or value is None:
                    raise WrongRecordError(f"offset {message.offset()}: {message.error()}")
                if reading.check:
                    digest.update(value)
            del message, value
            last_number = int.from_bytes(batch[-1].value()[:8], "big")
        seconds, cpu_s = time.perf_counter() - began_s, time.thread_time() - began_cpu_s
        spilled_bytes = consumer.stats()["spilled_bytes"]
    if last_number != reading.count - 1:
        raise WrongRecordError(f"the last record is number {last_number}")
    tell(
        done=True,
        seconds=seconds,
        cpu_s=cpu_s,
        spilled_bytes=spilled_bytes,
        digest=digest.hexdigest() if reading.check else None,
        peak_rss_bytes=peak_rss_bytes(),
    )


def _tell(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    read(Reading.from_json(sys.argv[1]), _tell)
