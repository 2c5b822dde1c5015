"""Python's cyclic garbage collector, kept out of where it finds nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SERVER_THRESHOLD: Final = 20_000
"""Containers that live on, from one collection of the youngest to the next; Python's own is 700."""


def collect_seldom() -> None:
    """For a process of ours, which leaves circles behind in rare events alone (a lost connection).

    What it loaded by now, its modules above all, is never looked at again; and transactions in
    flight, a dozen containers each, are not looked at several times while they are. That was a
    fourteenth of a busy coordinator's CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(SERVER_THRESHOLD)


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cyclic garbage collection in this block, which must not wait for anything long.

    For blocks that make very many containers which almost all live on: the collector, woken by
    every 700, would look at them again and again and free none. That was a fifth of the CPU that a
    record costs a consumer, a quarter of a coordinator's load of its journal, and half of a
    snapshot's first chunk. What is garbage is collected right after the block. Another thread that
    switches the collector off meanwhile finds it on again.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
