"""Connects Spark: exactly-once input and output, and recovery from committed IOVs.

Names are loaded when they are first used, and PySpark with them. `docs/spark.md` says how it works
and what to submit.

Imports `journal`, `producer`, `consumer`, the coordinator's client, `groups`, `inspect`, and the
search for a Java of `local`. Never starts a Kafka or a coordinator.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .errors import PySparkMissingError

if TYPE_CHECKING:
    from .auditing import audit, findings
    from .compacting import export_to_topic
    from .exporting import export
    from .monitoring import last_commit, progress
    from .recovery import iov_history, iovs, read, reset_group, resume, starting_offsets
    from .session import register
    from .shared import transaction

__all__ = [
    "audit",
    "export",
    "export_to_topic",
    "findings",
    "iov_history",
    "iovs",
    "last_commit",
    "progress",
    "read",
    "register",
    "reset_group",
    "resume",
    "starting_offsets",
    "transaction",
]

_HOMES = {
    "audit": ".auditing",
    "findings": ".auditing",
    "export": ".exporting",
    "export_to_topic": ".compacting",
    "iov_history": ".recovery",
    "iovs": ".recovery",
    "last_commit": ".monitoring",
    "progress": ".monitoring",
    "read": ".recovery",
    "register": ".session",
    "reset_group": ".recovery",
    "resume": ".recovery",
    "starting_offsets": ".recovery",
    "transaction": ".shared",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for package in ("pyspark", "pyarrow"):
        if find_spec(package) is None:
            raise PySparkMissingError(
                f"the package {package} is missing: install it with `pip install 'logtx[spark]'`"
            )
    value: object = getattr(import_module(_HOMES[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
