"""The Spark session of the demo's two Spark applications."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from ...spark.session import close_keeper, start_session

_MASTER: Final = "local[2]"
"""Two cores: the demo shares the machine with Kafka and a coordinator."""
_MEMORY: Final = "768m"
"""Memory of the JVM's heap. Less may not be enough for the audit, more is taken from Kafka."""


@contextmanager
def session_at(directory: Path) -> Iterator[Any]:
    """Provides a session on this machine alone, with its files in `directory`.

    Raises:
        JavaMissingError: there is no Java that Spark starts on.
    """
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # The session lives for seconds, too short to gain from the JVM's second compiler.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.shuffle.partitions": "2",
    }
    session = start_session(_MASTER, _MEMORY, settings)
    try:
        yield session
    finally:
        session.stop()
        close_keeper()
