"""Formats a broker's storage, from the second time on without Kafka's own tool.

The tool is a JVM that takes over a second of CPU. It writes two files: `meta.properties` has the
ids of the cluster, the broker and the directory; `bootstrap.checkpoint` has the levels of Kafka's
features, which are the same for all brokers of one version. So this keeps the second file, and
writes the first one itself.
"""

from __future__ import annotations

import base64
import logging
import os
import shutil
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_LOG = logging.getLogger(__name__)

_FEATURES: Final = "bootstrap.checkpoint"
_IDS: Final = "meta.properties"


def is_formatted(data: Path) -> bool:
    """Returns whether a broker can start in this directory."""
    return (data / _IDS).exists()


@dataclass(frozen=True, slots=True)
class Features:
    """What Kafka's tool wrote for one version of Kafka, kept for the next storages."""

    kept: Path
    """File in the cache; another version of Kafka needs another one."""

    def format(self, data: Path, *, cluster_id: str, broker_id: int) -> bool:
        """Formats the storage in `data`.

        Returns False if nothing is kept yet: then the tool has to do it. Raises OSError if `data`
        can't be written.
        """
        try:
            features = self.kept.read_bytes()
        except OSError:
            return False
        data.mkdir(parents=True, exist_ok=True)
        (data / _FEATURES).write_bytes(features)
        # The ids last: with them the storage counts as formatted.
        ids = f"version=1\ncluster.id={cluster_id}\nnode.id={broker_id}\ndirectory.id={new_id()}\n"
        partial = data / f"{_IDS}.tmp"
        partial.write_text(ids)
        partial.replace(data / _IDS)
        return True

    def keep(self, data: Path) -> None:
        """Keeps what the tool has written into `data`. A cache that can't be written is no loss."""
        written, partial = data / _FEATURES, self.kept.with_suffix(f".{uuid.uuid4().hex[:8]}.part")
        if not written.exists():
            return
        try:
            self.kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(written, partial)
            os.replace(partial, self.kept)
        except OSError as error:
            _LOG.warning("features_unwritable path=%s error=%s", self.kept, error.strerror)


def new_id() -> str:
    """Returns a new id, as Kafka writes those of clusters and directories."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
