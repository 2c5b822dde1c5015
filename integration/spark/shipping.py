"""Lets an executor whose Python has no logtx say so in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

_dumps: Any = cloudpickle.dumps


class Shipped:
    """Base of what Spark's driver pickles for executors."""

    def __getstate__(self) -> dict[str, Any]:
        """Returns what another process needs."""
        return dict(self.__dict__)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes it over."""
        self.__dict__.update(state)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles it with a function that needs no logtx to be restored."""
        return _opener(), (_dumps((type(self), self.__getstate__())),)


def _opener() -> Callable[[bytes], Any]:
    # No module has this function under its name, so cloudpickle sends all of it. It may use nothing
    # of this module.
    def opened(raw: bytes) -> Any:
        import pickle
        import sys

        try:
            kind, state = pickle.loads(raw)
        except ImportError as error:
            raise ImportError(
                f"the Python of this executor ({sys.executable}) can't import logtx ({error}): ship"
                " an environment with it, as by --archives, or set spark.pyspark.python to one that"
                " has it; docs/spark.md says how"
            ) from error
        made = kind.__new__(kind)
        made.__setstate__(state)
        return made

    return opened
