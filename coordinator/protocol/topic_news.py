"""What coordinators tell each other of the topics that had a name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

TopicAges: TypeAlias = Mapping[str, tuple[tuple[int, str], ...]]
"""Data topic → (since how many ms it is known, id) of each topic that had the name, the latest
last. Ages and no times: clocks of two processes have nothing in common."""
