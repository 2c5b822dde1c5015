"""Where the demo's Spark application keeps its checkpoint."""

from __future__ import annotations

from typing import Final

CHECKPOINT: Final = "checkpoint"
"""Name of Spark's checkpoint in the application's directory."""
BACKUP: Final = "checkpoint-backup"
"""Name of a copy of it, made when the driver was killed first."""
