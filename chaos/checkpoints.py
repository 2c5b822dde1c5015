"""The checkpoints of the Spark query, and an older copy that is put back.

The nemesis copies and restores while the driver is dead; the driver begins a new one when the query
refuses what was restored.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

PLACE: Final = "spark"
"""Directory of the query in a run's directory."""


class Checkpoints:
    """The checkpoint that the query has now, and what was done to it."""

    def __init__(self, directory: Path) -> None:
        """Looks into the directory of a run."""
        self.place: Final = directory / PLACE
        self.place.mkdir(exist_ok=True)
        self._number = self.place / "number"
        self._backup = self.place / "backup"
        self._restored = self.place / "restored"
        self._driver = self.place / "driver"

    @property
    def number(self) -> int:
        """How many the query has had before it."""
        return int(self._number.read_text()) if self._number.exists() else 0

    @property
    def path(self) -> Path:
        """The query's checkpoint."""
        return self.place / f"checkpoint-{self.number}"

    @property
    def is_restored(self) -> bool:
        """Whether it was restored, and the query has not refused it nor gone on yet."""
        return self._restored.exists()

    @property
    def has_backup(self) -> bool:
        """Whether there is a copy, of this one or of an earlier one."""
        return self._backup.exists()

    def back_up(self) -> None:
        """Keeps a copy of it instead of an earlier copy."""
        shutil.rmtree(self._backup, ignore_errors=True)
        shutil.copytree(self.path, self._backup)

    def restore(self) -> None:
        """Puts the copy in its place."""
        self._restored.touch()
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.copytree(self._backup, self.path)

    def begin_anew(self) -> None:
        """Lets the query have a new one."""
        self._number.write_text(str(self.number + 1))
        self.goes_on()

    def goes_on(self) -> None:
        """Notes that what was restored is settled."""
        self._restored.unlink(missing_ok=True)

    def take(self, life: int) -> None:
        """Notes which life of the driver started last."""
        self._driver.write_text(str(life))

    def is_taken(self, life: int) -> bool:
        """Returns whether a later life of the driver has started."""
        return int(self._driver.read_text()) > life
