"""The data directory of a local Kafka: who holds it, what it remembers, the files put into it.

lock                 held by the process that runs the broker; the text is its process id
state.json           cluster id and ports, so that a restart has the same address
server.properties    written at every start
log4j2.properties
data/                Kafka's own
logs/server.log      the broker's log
logs/console.log     what the Java process printed
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, TextIO

from .errors import DataDirError, DataDirInUseError, PortInUseError

HOST: Final = "127.0.0.1"

# Below the kernel's range for outgoing connections (32768 and up): a client that keeps connecting
# to a port from that range, while the broker is down, can be given it as its own source port. It
# then talks to itself, and the broker cannot have its port back.
_FREE_PORTS: Final = range(20_000, 32_768)
_PORT_ATTEMPTS: Final = 200

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
class State:
    """What a data directory remembers between starts."""

    cluster_id: str
    port: int
    """Where clients connect."""
    controller_port: int
    """The node's own KRaft controller, for itself only."""


class DataDir:
    """A data directory, held from `acquire()` to `release()`. Raises DataDirError throughout."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.kafka_data = self.path / "data"
        self.properties = self.path / "server.properties"
        self.log4j = self.path / "log4j2.properties"
        self.server_log = self.path / "logs" / "server.log"
        self.console_log = self.path / "logs" / "console.log"
        self._state = self.path / "state.json"
        self._lock: TextIO | None = None

    def acquire(self) -> None:
        """Create the directory if need be and take its lock; DataDirInUseError if it is held."""
        try:
            self.server_log.parent.mkdir(parents=True, exist_ok=True)
            lock = (self.path / "lock").open("a+")
        except OSError as error:
            raise self._unwritable(error) from error
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
            raise self._unwritable(error) from error

    def release(self) -> None:
        """Give the lock back; nothing to do if it is not held."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_state(self) -> State | None:
        """What the last start wrote; None before the first."""
        try:
            fields = json.loads(self._state.read_text())
            return State(
                cluster_id=str(fields["cluster_id"]),
                port=int(fields["port"]),
                controller_port=int(fields["controller_port"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise DataDirError(
                f"{self._state} cannot be read ({type(error).__name__}): choose another data "
                f"directory, or delete {self.path} and all its records."
            ) from error

    def write(self, state: State, properties: Mapping[str, str]) -> None:
        """Write the state and the broker's configuration files."""
        partial = self._state.with_suffix(".new")
        text = "".join(f"{key}={_escape(value)}\n" for key, value in properties.items())
        try:
            partial.write_text(json.dumps(asdict(state), indent=1))
            partial.replace(self._state)
            self.properties.write_text(text)
            self.log4j.write_text(_LOG4J.format(directory=_escape(str(self.server_log.parent))))
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> DataDirError:
        return DataDirError(
            f"Cannot write to the data directory {self.path} ({error.strerror}): "
            "make it writable, or choose another one."
        )


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\")


def check_port(port: int, *, host: str = HOST) -> None:
    """Raise PortInUseError unless we could listen on this port now."""
    problem = _listen_error(port, host)
    if problem is not None:
        raise PortInUseError(
            f"Port {port} on {host} is not free ({problem.strerror}): "
            "stop what listens there, or choose another port."
        )


def pick_ports(count: int) -> list[int]:
    """So many different ports that are free now. Raises PortInUseError if there are too few."""
    chosen: list[int] = []
    for port in random.sample(_FREE_PORTS, _PORT_ATTEMPTS):
        if _listen_error(port, HOST) is None:
            chosen.append(port)
        if len(chosen) == count:
            return chosen
    raise PortInUseError(
        f"Found no {count} free ports between {_FREE_PORTS.start} and {_FREE_PORTS.stop}."
    )


def _listen_error(port: int, host: str) -> OSError | None:
    with socket.socket() as probe:
        # As Java does: connections of an earlier broker in TIME_WAIT are no obstacle.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as error:
            return error
    return None
