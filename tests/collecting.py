"""Runs something whenever Python collects garbage: within nearly any call, and at any time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def at_each_collection(call: Callable[[], object]) -> Iterator[None]:
    """Calls `call` at each collection, of which there is one for every few objects that are made.

    A finalizer may do so anywhere, and let another thread run. From Python 3.12 on it is called
    between two steps of Python, and no longer within one.
    """
    before, is_calling = gc.get_threshold(), False

    def collected(phase: str, _info: dict[str, int]) -> None:
        nonlocal is_calling
        if phase == "start" and not is_calling:
            is_calling = True
            call()
            # Python keeps 2,000 pairs for who wants one next, and to make those collects nothing.
            kept.append([(number, number) for number in range(2_100)])
            is_calling = False

    kept: list[object] = []
    gc.callbacks.append(collected)
    gc.set_threshold(1)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)
        kept.clear()
