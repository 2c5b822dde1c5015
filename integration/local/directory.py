"""Manages a local cluster's data directory: its lock, its memory between starts, its files.

lock                 held by the process that runs the brokers; the text is its process id
state.json           cluster id and ports, so that a restart has the same addresses
broker-<id>/         one for each broker; a single broker's files are in the data directory itself:
  server.properties    written at every start of the cluster
  log4j2.properties
  data/                Kafka's records
  logs/server.log      the broker's log
  logs/console.log     what the Java process printed
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO

from .errors import DataDirError, DataDirInUseError

# Without `shutdownHook = disable` the log ends when SIGTERM arrives, while Kafka is still stopping.
_LOG4J: Final = """\
status = error
shutdownHook = disable
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {directory}/server.log
appender.file.filePattern = {directory}/server.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %m (%c{{1}})%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 10MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports that one broker listens on; 0 if none is chosen."""

    client: int
    broker: int
    """Port for the other brokers, and for this package."""
    controller: int
    """Port for the KRaft quorum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a data directory remembers between starts."""

    cluster_id: str
    brokers: tuple[Ports, ...]
    """Ports of the brokers, in the order of their ids, from 1 on."""


class BrokerDir:
    """The files of one broker. Its methods raise DataDirError."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.kafka_data = self.path / "data"
        self.properties = self.path / "server.properties"
        self.log4j = self.path / "log4j2.properties"
        self.server_log = self.path / "logs" / "server.log"
        self.console_log = self.path / "logs" / "console.log"

    def write(self, properties: Mapping[str, str]) -> None:
        """Writes the broker's configuration files."""
        text = "".join(f"{key}={_escape(value)}\n" for key, value in properties.items())
        try:
            self.server_log.parent.mkdir(parents=True, exist_ok=True)
            self.properties.write_text(text)
            self.log4j.write_text(_LOG4J.format(directory=_escape(str(self.server_log.parent))))
        except OSError as error:
            raise _unwritable(self.path, error) from error


class ClusterDir:
    """A data directory, held from `acquire` to `release`. Its methods raise DataDirError."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._state = self.path / "state.json"
        self._lock: TextIO | None = None

    def broker_dir(self, broker_id: int, brokers: int) -> BrokerDir:
        """Returns the directory of one broker, in a cluster of `brokers` brokers."""
        return BrokerDir(self.path if brokers == 1 else self.path / f"broker-{broker_id}")

    def acquire(self) -> None:
        """Creates the directory if need be, and takes its lock. Does nothing if this object has it.

        Raises DataDirInUseError if another holds the lock.
        """
        if self._lock is not None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a+")
        except OSError as error:
            raise _unwritable(self.path, error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            lock.close()
            raise DataDirInUseError(
                f"{self.path} belongs to a Kafka that is running (started by process {holder}): "
                "stop that one, or choose another data directory."
            ) from error
        self._lock = lock
        try:
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
        except OSError as error:
            self.release()
            raise _unwritable(self.path, error) from error

    def release(self) -> None:
        """Gives the lock back. Does nothing if this object does not hold it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_state(self) -> State | None:
        """Returns what the last start wrote; None before the first."""
        try:
            fields = json.loads(self._state.read_text())
            return State(cluster_id=str(fields["cluster_id"]), brokers=_read_ports(fields))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataDirError(
                f"{self._state} cannot be read ({type(error).__name__}): choose another data "
                f"directory, or delete {self.path} and all its records."
            ) from error

    def write(self, state: State) -> None:
        """Writes down the state for the next start."""
        partial = self._state.with_suffix(".new")
        try:
            partial.write_text(json.dumps(asdict(state), indent=1))
            partial.replace(self._state)
        except OSError as error:
            raise _unwritable(self.path, error) from error


def _read_ports(fields: Mapping[str, Any]) -> tuple[Ports, ...]:
    if "port" in fields:  # as written before there were clusters
        client, controller = int(fields["port"]), int(fields["controller_port"])
        return (Ports(client=client, broker=0, controller=controller),)
    return tuple(
        Ports(
            client=int(each["client"]),
            broker=int(each["broker"]),
            controller=int(each["controller"]),
        )
        for each in fields["brokers"]
    )


def _unwritable(path: Path, error: OSError) -> DataDirError:
    return DataDirError(
        f"Cannot write to the data directory {path} ({error.strerror}): "
        "make it writable, or choose another one."
    )


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\")
