"""Keeps an archive of Kafka's loaded classes, which halves a broker's start (class data sharing).

A JVM spends half of a broker's start on loading and verifying some 7,000 classes. It can write
them to an archive when it ends, and map that archive at the next start. The first broker that
runs without an archive writes one at its orderly end (2 s more, once; 50 MB in the cache). Later
starts use it: a broker answers after 1.3 s in place of 2.3 s.

The archive is never needed. A JVM checks that it fits the JVM and the jars, and starts without it
if it does not.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .java import Java

_LOG = logging.getLogger(__name__)

_SIGTERM_STATUS: Final = 143
"""Exit status of a JVM that ended in order after SIGTERM: 128 and the signal's number."""
_ABANDONED_S: Final = 3600.0
"""Age at which an unfinished archive is deleted: its JVM was killed. A smaller value could delete
one that a slow machine is still writing."""
_QUIET: Final = "-Xlog:cds*=error"  # else a JVM prints a line for each class that it leaves out


@dataclass(frozen=True, slots=True)
class ClassData:
    """The archive for one JVM and one set of jars."""

    archive: Path

    @classmethod
    def of(cls, java: Java, jars: Sequence[Path], *, cache: Path) -> ClassData:
        """Returns the archive that a JVM with these jars can use, whether or not it exists yet.

        Args:
            java: the JVM; another version needs another archive.
            jars: the class path; a JVM refuses an archive whose jars have another size or time.
            cache: directory that holds archives; made when the first is written.
        """
        program = java.program.resolve()
        parts = [str(program), str(java.major), str(program.stat().st_mtime_ns)]
        parts += [f"{jar} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars]
        digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
        return cls(cache / f"kafka-{digest}.jsa")

    def training(self) -> Training | None:
        """Begins an attempt to write the archive, and deletes what killed JVMs left of theirs.

        Returns None if the archive exists or its directory can't be written.
        """
        if self.archive.exists():
            return None
        directory = self.archive.parent
        try:
            directory.mkdir(parents=True, exist_ok=True)
            for left in directory.glob("*.part"):
                if time.time() - left.stat().st_mtime > _ABANDONED_S:
                    left.unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("class_data_unwritable path=%s error=%s", directory, error.strerror)
            return None
        return Training(self.archive, self.archive.with_suffix(f".{uuid.uuid4().hex[:8]}.part"))

    def options(self) -> list[str]:
        """Returns the Java options that use the archive; none while it does not exist."""
        if not self.archive.exists():
            return []
        return [_QUIET, f"-XX:SharedArchiveFile={self.archive}"]


@dataclass(frozen=True, slots=True)
class Training:
    """One JVM's attempt to write the archive. If several run at once, the last one wins."""

    archive: Path
    part: Path
    """File that the JVM writes to, so that no other JVM maps half an archive."""

    def options(self) -> list[str]:
        """Returns the Java options that write the archive at the JVM's orderly end."""
        return [_QUIET, f"-XX:ArchiveClassesAtExit={self.part}"]

    def finish(self, exit_status: int) -> None:
        """Publishes the archive if the JVM ended in order, otherwise deletes what it wrote."""
        try:
            if exit_status == _SIGTERM_STATUS and self.part.exists():
                os.replace(self.part, self.archive)
            else:
                self.part.unlink(missing_ok=True)
        except OSError as error:
            _LOG.warning("class_data_unwritable path=%s error=%s", self.archive, error.strerror)
