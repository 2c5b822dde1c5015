"""One Apache Kafka broker in KRaft mode, as a child process.

Its state machine is small: stopped → running → (paused ↔ running) → stopped. Starting takes the
data directory's lock and stopping gives it back, however the broker ended.
"""

from __future__ import annotations

import base64
import logging
import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from .child import last_lines, spawn
from .datadir import HOST, DataDir, State, check_port, pick_ports
from .errors import BrokerNotRunningError, BrokerStartError, DataDirError
from .jars import ensure_jars
from .java import Java, find_java
from .topics import answers

_log = logging.getLogger(__name__)

_FORMAT_TIMEOUT_S: Final = 60
_KILL_TIMEOUT_S: Final = 10
_POLL_S: Final = 0.05
_LOG_LINES: Final = 8

_SETTINGS: Final[Mapping[str, str]] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    # Kafka's own topics want three brokers by default, and 50 partitions each.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # After kill -9 a new broker waits until the session of its dead predecessor ends; default 9 s.
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    # Half of our heap at its default of 128 MiB; enough here for 350,000 keys in one pass.
    "log.cleaner.dedupe.buffer.size": str(8 * 1024 * 1024),
    # The default of 3 s waits for more members to join; here it only delays.
    "group.initial.rebalance.delay.ms": "0",
    # Members of Kafka 4's own kind of group are told of changes at their next heartbeat, and one
    # that died is missed after its session: 5 and 45 s by default, and clients can't choose.
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.min.session.timeout.ms": "6000",
    "group.consumer.session.timeout.ms": "10000",
}


class LocalKafka:
    """A real Kafka broker on 127.0.0.1 with its records in `data_dir`.

        with LocalKafka(Path("data")) as kafka:
            producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})

    `port` 0 picks a free port at the first start; the data directory remembers it, so that later
    starts have the same address. `settings` are added to (and win over) the broker's
    configuration. The broker is killed when this process dies in any way. An object is used from
    one thread at a time.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        heap_max_mib: int = 256,
        start_timeout_s: float = 60,
        stop_timeout_s: float = 20,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self._dir = DataDir(data_dir)
        self._port = port
        self._heap_max_mib = heap_max_mib
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._settings = dict(settings or {})
        self._state: State | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """`host:port` for clients; known from the first start on, also while stopped."""
        if self._state is None:
            raise BrokerNotRunningError("The local Kafka was not started yet: call start().")
        return f"{HOST}:{self._state.port}"

    @property
    def data_dir(self) -> Path:
        """The data directory, absolute."""
        return self._dir.path

    @property
    def log_path(self) -> Path:
        """The broker's own log."""
        return self._dir.server_log

    @property
    def pid(self) -> int:
        """Process id of the running broker. Raises BrokerNotRunningError."""
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """Whether the broker's process is alive (also while paused)."""
        return self._process is not None and self._process.poll() is None

    def log_tail(self) -> list[str]:
        """The last lines of the broker's log, for a message that says why it died."""
        return last_lines(self._dir.server_log, _LOG_LINES) or last_lines(
            self._dir.console_log, _LOG_LINES
        )

    def start(self) -> None:
        """Start the broker and wait until it answers (about 3 s; 10 s more for the first download).

        Nothing to do if it is running. Raises a LocalKafkaError; then nothing is left running.
        """
        if self.is_running:
            return
        java, jars = find_java(), ensure_jars()
        self._dir.release()  # of a broker that died by itself
        self._dir.acquire()
        try:
            self._state = self._prepare_state()
            self._dir.write(self._state, self._properties(self._state))
            class_path = os.pathsep.join(str(jar) for jar in jars)
            self._format_once(java, class_path, self._state.cluster_id)
            self._launch(java, class_path)
            self._await_ready(self._state.cluster_id)
        except BaseException:
            self._end_process()
            self._dir.release()
            raise
        _log.info("kafka_started pid=%d bootstrap=%s", self.pid, self.bootstrap_servers)

    def stop(self) -> None:
        """Orderly stop: SIGTERM, a bounded wait, then SIGKILL. Nothing to do if it is stopped."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)  # a paused process would not see SIGTERM
            process.terminate()
            try:
                process.wait(self._stop_timeout_s)
            except subprocess.TimeoutExpired:
                _log.warning("kafka_stop_timeout pid=%d", process.pid)
        self.kill()

    def kill(self) -> None:
        """SIGKILL, as a crash would be. Nothing to do if it is stopped."""
        self._end_process()
        self._dir.release()

    def restart(self) -> None:
        """Orderly stop and start; address and records stay. Raises a LocalKafkaError."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: alive, silent, its connections open. Raises BrokerNotRunningError."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause()`. Raises BrokerNotRunningError."""
        self._running().send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise BrokerNotRunningError("The local Kafka is not running: call start().")
        return self._process

    def _prepare_state(self) -> State:
        known = self._dir.read_state()
        if known is None:
            port, controller_port = pick_ports(2)
            known = State(
                cluster_id=base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("="),
                port=self._port or port,
                controller_port=controller_port,
            )
        controller_port = known.controller_port
        if self._port == controller_port:
            (controller_port,) = pick_ports(1)
        state = State(
            cluster_id=known.cluster_id,
            port=self._port or known.port,
            controller_port=controller_port,
        )
        check_port(state.port)
        check_port(state.controller_port)
        return state

    def _properties(self, state: State) -> dict[str, str]:
        clients, controller = f"{HOST}:{state.port}", f"{HOST}:{state.controller_port}"
        return {
            **_SETTINGS,
            "listeners": f"PLAINTEXT://{clients},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{clients}",
            "controller.quorum.voters": f"1@{controller}",
            "log.dirs": str(self._dir.kafka_data),
            **self._settings,
        }

    def _format_once(self, java: Java, class_path: str, cluster_id: str) -> None:
        if (self._dir.kafka_data / "meta.properties").exists():
            return
        command = [
            *self._java_command(java, class_path),
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",  # with "=", for an id may begin with "-"
            f"--config={self._dir.properties}",
            "--ignore-formatted",
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, timeout=_FORMAT_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BrokerStartError(f"Cannot run {java.program}: {error}.") from error
        if done.returncode != 0:
            lines = (done.stdout + done.stderr).decode(errors="replace").splitlines()
            raise DataDirError(
                f"Kafka cannot format its storage in {self._dir.kafka_data}.", lines[-_LOG_LINES:]
            )

    def _java_command(self, java: Java, class_path: str) -> list[str]:
        return [
            str(java.program),
            f"-Xmx{self._heap_max_mib}M",
            "-Xms32M",  # otherwise it starts with all of the maximum, and keeps it
            "-XX:+UseSerialGC",  # few threads: others work on this machine
            "-Djava.awt.headless=true",
            f"-Dlog4j2.configurationFile={self._dir.log4j}",
            "-cp",
            class_path,
        ]

    def _launch(self, java: Java, class_path: str) -> None:
        command = [*self._java_command(java, class_path), "kafka.Kafka", str(self._dir.properties)]
        try:
            self._dir.console_log.write_bytes(b"")
            self._process = spawn(command, output=self._dir.console_log)
        except OSError as error:
            raise DataDirError(
                f"Cannot write the broker's log {self._dir.console_log} ({error.strerror})."
            ) from error

    def _await_ready(self, cluster_id: str) -> None:
        process = self._running()
        deadline = time.monotonic() + self._start_timeout_s
        while time.monotonic() < deadline:
            status = process.poll()
            if status is not None:
                raise BrokerStartError(
                    f"Kafka ended while starting (exit status {status}); "
                    f"its log is {self._dir.server_log}.",
                    self.log_tail(),
                )
            if answers(self.bootstrap_servers, cluster_id):
                return
            time.sleep(_POLL_S)
        raise BrokerStartError(
            f"Kafka did not answer within {self._start_timeout_s:g} s; "
            f"its log is {self._dir.server_log}.",
            self.log_tail(),
        )

    def _end_process(self) -> None:
        process = self._process
        if process is not None:
            if process.poll() is None:
                process.kill()
            process.wait(_KILL_TIMEOUT_S)
            self._process = None
