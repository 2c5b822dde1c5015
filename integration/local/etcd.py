"""Runs an etcd of one member on this machine, for tests and `logtx up`."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Final

from .errors import EtcdNotFoundError, ProcessDiedError
from .ports import HOST, accepts, pick_ports
from .processes import LOG_LINES, Child

INSTALL: Final = "install it, as with: sudo apt-get install etcd-server"
START_TIMEOUT_S: Final = 30.0
"""Longest start until it accepts connections; it syncs its disk first."""
COMPACTED_AFTER: Final = "5m"
"""How long etcd keeps old values of keys: a watcher that lags for longer begins again."""
_POLL_S: Final = 0.02
"""Pause between two looks whether it accepts connections."""


def find_etcd() -> str | None:
    """Returns the path of the program, or None if it is not installed."""
    return shutil.which("etcd")


class LocalEtcd(Child):
    """One etcd, at the same ports at each start."""

    def __init__(self, directory: Path, *, quota_bytes: int | None = None) -> None:
        """Prepares the process; `start` runs it.

        Args:
            directory: where its data and its log are.
            quota_bytes: size at which it takes no more; None: etcd's default, 2 GB.

        Raises:
            EtcdNotFoundError: it is not installed; the message names the command.
        """
        program = find_etcd()
        if program is None:
            raise EtcdNotFoundError(f"No etcd was found on the PATH: {INSTALL}.")
        super().__init__("etcd", directory / "etcd.log", ())
        self._program = program
        self._directory = directory
        self.quota_bytes = quota_bytes
        """Size at which it takes no more, from the next start on; None: etcd's default."""
        self.port, self._peer_port = pick_ports(2)
        self._started_s = 0.0

    @property
    def endpoint(self) -> str:
        """host:port where it answers."""
        return f"{HOST}:{self.port}"

    @property
    def data(self) -> Path:
        """The directory that holds all it knows."""
        return self._directory / "etcd"

    def _whole_command(self) -> list[str]:
        client, peer = f"http://{self.endpoint}", f"http://{HOST}:{self._peer_port}"
        quota = self.quota_bytes
        return [
            self._program,
            *("--name", "logtx", "--data-dir", str(self.data)),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"logtx={peer}"),
            *("--auto-compaction-mode", "periodic", "--auto-compaction-retention", COMPACTED_AFTER),
            *(() if quota is None else ("--quota-backend-bytes", str(quota))),
        ]

    def start(self) -> None:
        """Starts it, or its successor. Raises as `Child.start`."""
        self._started_s = time.monotonic()
        super().start()

    @property
    def is_ready(self) -> bool:
        """Whether it accepts connections.

        Raises:
            ProcessDiedError: it died, or does not accept any within `START_TIMEOUT_S`.
        """
        if accepts(self.port):
            return True
        self.check()
        if time.monotonic() - self._started_s > START_TIMEOUT_S:
            raise ProcessDiedError(
                f"The etcd did not answer within {START_TIMEOUT_S:.0f} s; its log is {self.log}.",
                self.last_lines(LOG_LINES),
            )
        return False

    def await_ready(self) -> None:
        """Waits until it accepts connections, for a limited time. Raises as `is_ready`."""
        while not self.is_ready:
            time.sleep(_POLL_S)
