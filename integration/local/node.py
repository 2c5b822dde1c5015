"""Runs one broker of a local cluster, as a child process.

Its state machine is small: stopped → running → (paused ↔ running) → stopped. The cluster gives it
what it runs on (ports, files, the cluster's id), and also holds the data directory.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .class_data import ClassData, Training
from .directory import BrokerDir, Ports
from .errors import BrokerNotRunningError, BrokerStartError, DataDirError
from .java import Java
from .ports import HOST, accepts, check_port
from .processes import KILL_TIMEOUT_S, LOG_LINES, await_stopped, last_lines, spawn
from .storage import Features, is_formatted
from .topics import live_brokers

_FORMAT_TIMEOUT_S: Final = 120
"""Longest run of Kafka's storage tool. It takes a second; a busy machine may need far longer."""
_POLL_S: Final = 0.05
"""Pause between two looks at starting brokers; each look costs some 10 ms per broker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a broker runs on, while its cluster holds the data directory."""

    java: Java
    jars: Sequence[Path]
    class_data: ClassData
    features: Features
    heap_max_mib: int
    java_options: Sequence[str]
    cluster_id: str
    ports: Ports
    properties: Mapping[str, str]


class Broker:
    """Runs one broker. `LocalCluster` makes the brokers, and starts and stops them together.

    Use an object from one thread at a time; different brokers may be used from different threads.
    """

    def __init__(
        self, broker_id: int, directory: BrokerDir, *, start_timeout_s: float, stop_timeout_s: float
    ) -> None:
        self.id: Final = broker_id
        """Kafka's `node.id`, from 1 on."""
        self._dir = directory
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._setup: Setup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._training: Training | None = None
        self._log_start = 0
        """Size of the log in bytes when the process was started: earlier processes wrote those."""

    @property
    def client_port(self) -> int:
        """Port on which it listens for clients, whatever port they are told."""
        return self._begun().ports.client

    @property
    def direct_server(self) -> str:
        """`host:port` of its listener for other brokers. It answers clients as well, and tells them
        the same kind of listener of the other brokers, so that no proxy is in between."""
        return f"{HOST}:{self._begun().ports.broker}"

    @property
    def log_path(self) -> Path:
        """Path of the broker's own log."""
        return self._dir.server_log

    @property
    def pid(self) -> int:
        """Process id of the running broker. Raises BrokerNotRunningError."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the broker's process is alive (also while paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Exit status if the process ended by itself (-9: another process killed it), or None."""
        return None if self._process is None else self._process.poll()

    def log_tail(self) -> list[str]:
        """Returns the last lines of the broker's log, for a message that says why it died."""
        log = self._dir.server_log
        # A log that is shorter than it was has been rolled.
        start = self._log_start if _size(log) >= self._log_start else 0
        found = last_lines(log, LOG_LINES, from_byte=start)
        return found or last_lines(self._dir.console_log, LOG_LINES)

    def start(self, *, wait: bool = True) -> None:
        """Starts the broker, and waits until it answers and counts itself among the live brokers.

        Does nothing if it is running. Without a majority of the cluster's brokers none of them
        becomes ready: then start several with `wait=False`, or all with `LocalCluster.start`.

        Raises:
            BrokerNotRunningError: the cluster is not started.
            PortInUseError, BrokerStartError: it can't start; it is then not running.
        """
        setup = self._begun()
        if self.is_running:
            return
        for port in (setup.ports.client, setup.ports.broker, setup.ports.controller):
            check_port(port)
        self._launch(setup)
        if wait:
            try:
                await_ready([self], frozenset({self.id}), self._start_timeout_s)
            except BaseException:
                self.kill()
                raise

    def stop(self) -> None:
        """Stops the broker in order: sends SIGTERM, waits, then sends SIGKILL.

        Does nothing if it is stopped. Kafka waits for a majority of its brokers here; without one
        it gets SIGKILL in the end.
        """
        self.ask_to_stop()
        self.await_end(time.monotonic() + self._stop_timeout_s)
        self.kill()

    def kill(self) -> None:
        """Kills the broker (SIGKILL), like a crash. Does nothing if it is stopped."""
        process = self._process
        if process is not None:
            if process.poll() is None:
                process.kill()
            status = process.wait(KILL_TIMEOUT_S)
            self._process = None
            if self._training is not None:
                self._training.finish(status)
                self._training = None

    def restart(self) -> None:
        """Stops the broker in order and starts it; keeps address and records. Raises as `start`."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Sends SIGSTOP and waits: the broker is alive but silent, and its connections stay open.

        Raises BrokerNotRunningError.
        """
        process = self._running()
        process.send_signal(signal.SIGSTOP)
        await_stopped(process)

    def resume(self) -> None:
        """Sends SIGCONT, to end a pause. Raises BrokerNotRunningError."""
        self._running().send_signal(signal.SIGCONT)

    # --- for the cluster

    def configure(self, setup: Setup) -> None:
        """Writes its files, and formats its storage if that is new. Raises a LocalKafkaError."""
        self._setup = setup
        self._dir.write(setup.properties)
        data = self._dir.kafka_data
        if is_formatted(data):
            return
        try:
            formatted = setup.features.format(data, cluster_id=setup.cluster_id, broker_id=self.id)
        except OSError as error:
            raise DataDirError(f"Cannot write to {data} ({error.strerror}).") from error
        if not formatted:
            self._run_storage_tool(setup)
            setup.features.keep(data)

    def withdraw(self) -> None:
        """Forbids to start the broker, because the cluster gives the data directory back."""
        self._setup = None

    def known_brokers(self) -> frozenset[int]:
        """Returns the brokers' ids that this one takes for alive; none if it doesn't answer."""
        setup = self._begun()
        if not accepts(setup.ports.client):  # its listeners open one after the other
            return frozenset()
        return live_brokers(self.direct_server, setup.cluster_id)

    def check(self) -> None:
        """Raises BrokerStartError if its process has ended."""
        status = self.exit_status
        if status is not None:
            raise BrokerStartError(
                f"Kafka's broker {self.id} ended while starting (exit status {status}); "
                f"its log is {self._dir.server_log}.",
                self.log_tail(),
            )

    def ask_to_stop(self) -> None:
        """Sends SIGTERM, and ends a pause. Does nothing if the broker is stopped."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            process.send_signal(signal.SIGCONT)  # a paused process would not see SIGTERM

    def await_end(self, deadline_s: float) -> bool:
        """Waits for the process to end, until `deadline_s` (of `time.monotonic`).

        Returns whether it has ended.
        """
        if self._process is None:
            return True
        try:
            self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        return True

    def _begun(self) -> Setup:
        if self._setup is None:
            raise BrokerNotRunningError("The local Kafka is not started: call start().")
        return self._setup

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise BrokerNotRunningError(
                f"Broker {self.id} of the local Kafka is not running: call start()."
            )
        return self._process

    def _java_command(self, setup: Setup, *options: str) -> list[str]:
        return [
            str(setup.java.program),
            f"-Xmx{setup.heap_max_mib}M",
            "-Xms32M",  # otherwise it starts with all of the maximum, and keeps it
            "-XX:+UseSerialGC",  # few threads, as other programs use this machine
            "-Djava.awt.headless=true",
            *setup.java_options,
            *options,
            f"-Dlog4j2.configurationFile={self._dir.log4j}",
            "-cp",
            os.pathsep.join(str(jar) for jar in setup.jars),
        ]

    def _run_storage_tool(self, setup: Setup) -> None:
        command = [  # ends in a second
            *self._java_command(setup, "-XX:TieredStopAtLevel=1", *setup.class_data.options()),
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={setup.cluster_id}",  # with "=", because an id may begin with "-"
            f"--config={self._dir.properties}",
            "--ignore-formatted",
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_FORMAT_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BrokerStartError(f"Cannot run {setup.java.program}: {error}.") from error
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).decode(errors="replace").splitlines()
            raise DataDirError(
                f"Kafka cannot format its storage in {self._dir.kafka_data}.", lines[-LOG_LINES:]
            )

    def _launch(self, setup: Setup) -> None:
        # One broker of a cluster is enough to write the archive, which takes 2 s of CPU.
        self._training = setup.class_data.training() if self.id == 1 else None
        share = (self._training or setup.class_data).options()
        command = [*self._java_command(setup, *share), "kafka.Kafka", str(self._dir.properties)]
        try:
            self._dir.console_log.write_bytes(b"")
            self._log_start = _size(self._dir.server_log)
            self._process = spawn(command, output=self._dir.console_log)
        except OSError as error:
            raise DataDirError(
                f"Cannot write the broker's log {self._dir.console_log} ({error.strerror})."
            ) from error


def await_ready(brokers: Sequence[Broker], known: frozenset[int], timeout_s: float) -> None:
    """Waits until each of `brokers` answers and takes all of `known` for alive.

    Topics can then be created on these. Raises BrokerStartError if a broker ends, or after
    `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    waiting = list(brokers)
    while True:
        for broker in brokers:
            broker.check()
        waiting = [broker for broker in waiting if not known <= broker.known_brokers()]
        if not waiting:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(_POLL_S)
    late = waiting[0]
    raise BrokerStartError(
        f"Kafka's broker {late.id} did not answer within {timeout_s:g} s; "
        f"its log is {late.log_path}.",
        late.log_tail(),
    )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
