"""An older commit of this repository, whose coordinators run beside today's: an upgrade.

    python -m logtx.chaos.previous DIRECTORY MODULE [ARGUMENT…]

becomes `python -m MODULE ARGUMENT…` with the logtx whose files `unpack` wrote to DIRECTORY.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

from .errors import ChaosError

MODULE: Final = "logtx.chaos.previous"
_CHECKOUT: Final = Path(__file__).resolve().parent.parent
_IMPORT_PATH: Final = ".ns"
"""The directory of a checkout in which Python finds the package `logtx`."""
_OF_GRPC: Final = "coordinator/protocol/coordinator_pb2_grpc.py"
"""A file that a commit has whose coordinators speak gRPC."""
_OF_STREAMS: Final = "coordinator/protocol/multiplex.py"
"""A file that a commit has whose coordinators know streams."""
_GIT_S: Final = 60.0
"""Bounds git, which takes a second."""


def unpack(ref: str, directory: Path) -> Path:
    """Writes the files of a commit, a tag or a branch to a directory. Returns the directory.

    It reads the repository, and leaves no worktree behind in it.

    Raises:
        ChaosError: git does not know it, this is no checkout, or today's clients can't use its
            coordinators.
    """
    command = ["git", "-C", str(_CHECKOUT), "archive", "--format=tar", ref]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_GIT_S, check=True)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").strip()
        raise ChaosError(
            f"There is no {ref!r} to upgrade from ({said}): name a commit or a tag, as in "
            "--upgrade-from HEAD~10."
        ) from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ChaosError(f"git can't unpack {ref!r}: {error}.") from error
    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as files:
        # It is our own repository: its link `.ns/logtx -> ..` stays within the directory.
        files.extractall(directory, filter="tar")
    if (directory / _OF_GRPC).exists():
        raise ChaosError(
            f"Coordinators of {ref!r} speak gRPC, and refuse today's clients and coordinators: that"
            " upgrade stops all of them before it starts today's. Name a later commit."
        )
    if not (directory / _OF_STREAMS).exists():
        raise ChaosError(
            f"Coordinators of {ref!r} know no streams, and today's clients have no other sessions:"
            " such an upgrade replaces all coordinators before the clients. Name a later commit."
        )
    return directory


def launcher_of(directory: Path) -> tuple[str, str]:
    """Returns module and argument that start a process of the logtx in a directory."""
    return MODULE, str(directory)


def _main() -> None:
    directory, *command = sys.argv[1:]
    path = str(Path(directory) / _IMPORT_PATH)
    # exec keeps the process id, and the signal that ends the process with its parent.
    os.execve(sys.executable, [sys.executable, "-m", *command], {**os.environ, "PYTHONPATH": path})


if __name__ == "__main__":
    _main()
