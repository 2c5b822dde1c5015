"""`logtx coordinator` with a sampler: SIGUSR1 starts it, SIGUSR2 stops it and writes the profile.

Without those signals it behaves like the command.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from types import FrameType

from logtx.integration.cli.main import main

from .profiling import Sampler


def _install(path: Path) -> None:
    running: list[Sampler] = []

    def start(_signal: int, _frame: FrameType | None) -> None:
        sampler = Sampler()
        sampler.__enter__()
        running.append(sampler)

    def stop(_signal: int, _frame: FrameType | None) -> None:
        if running:
            sampler = running.pop()
            sampler.__exit__(None, None, None)
            text = json.dumps([asdict(thread) for thread in sampler.threads])
            # Renamed into place, so that a reader never sees half of the file.
            part = path.with_suffix(".part")
            part.write_text(text)
            part.rename(path)

    signal.signal(signal.SIGUSR1, start)
    signal.signal(signal.SIGUSR2, stop)


if __name__ == "__main__":
    profile, program = sys.argv.pop(1), sys.argv.pop(1)
    assert program == "logtx", program
    _install(Path(profile))
    main()
