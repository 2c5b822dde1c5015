"""PySpark starts its JVM by a fork, also while clients of logtx are at work (finding S10)."""

from __future__ import annotations

import subprocess
import sys

_FORKS = """
import subprocess, sys
import logtx
from logtx.coordinator.embedded import EmbeddedCoordinator
from logtx.coordinator.service import CoordinatorConfig

assert "grpc" not in sys.modules, "it hooks into forks"
coordinator = EmbeddedCoordinator(
    CoordinatorConfig(bootstrap_servers="memory://fork", listen="127.0.0.1:0", journal_partitions=2)
)
coordinator.start()
producer = logtx.Producer({"bootstrap.servers": "memory://fork", "transactional.id": "p"})
for number in range(60):
    # As pyspark.java_gateway does: Python runs in the child before it becomes another program.
    child = subprocess.Popen(["true"], preexec_fn=lambda: None)
    producer.begin_transaction().abort()
    assert child.wait(30) == 0, f"the child of fork {number} died"
producer.close()
coordinator.stop()
"""


def test_s10_a_child_of_a_client_at_work_becomes_another_program() -> None:
    command = [sys.executable, "-c", _FORKS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
