"""The Spark session of the demo's two Spark applications."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

from ...spark.session import SHORT_LIVED, local_session

_MASTER: Final = "local[2]"
"""Two cores: the demo shares the machine with Kafka and a coordinator."""
_MEMORY: Final = "768m"
"""Memory of the JVM's heap. Less may not be enough for the audit, more is taken from Kafka."""


def session_at(directory: Path) -> AbstractContextManager[Any]:
    """Provides a session on this machine alone, with its files in `directory`.

    Raises:
        JavaMissingError: there is no Java that Spark starts on.
    """
    settings = {**SHORT_LIVED, "spark.sql.shuffle.partitions": "2"}
    return local_session(directory, _MASTER, _MEMORY, settings)
