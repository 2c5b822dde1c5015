"""Pauses Python's cyclic garbage collector where it costs time and frees nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

SERVER_THRESHOLD: Final = 20_000
"""Net new containers that start a collection of the youngest generation; Python's default is 700.

A smaller number costs CPU, a larger one lets garbage in cycles stay longer.
"""


def collect_seldom() -> None:
    """Makes the collector run seldom, in a process of ours (not in an application's).

    Such a process leaves garbage in cycles only in rare events (a lost connection). From now on the
    collector skips what is loaded already, the modules above all, and no longer looks several times
    at transactions in flight, a dozen containers each. That had taken a fourteenth of a busy
    coordinator's CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(SERVER_THRESHOLD)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses the collector in this block, which must not wait for anything long.

    For blocks that make very many containers, almost all of which live on: woken by every 700, the
    collector would look at them again and again and free none. That took a fifth of the CPU that a
    record costs a consumer, a quarter of the time in which a coordinator loads its journal, and
    half of that of a snapshot's first chunk. Garbage is collected right after the block. If another
    thread switches the collector off meanwhile, it is on again afterwards.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
