"""How long a partition's end is doubted before a committed transaction is passed over for it.

The broker that leads a partition tells its end, or one that led it and does not know yet that
another does now. A broker that stood still (a long pause of its JVM, a frozen machine) answers what
waited for it with the end of before. That end may lie below markers that the new leader took
meanwhile. A reader that believes it passes over a transaction whose marker is still to come.

So the commit sequences decide where they can: ends stand in commit-sequence order, and what is
higher than the last one met lies ahead, whatever end is told. Where nothing was met yet, an end is
believed when a second look, `LOOKS_APART_S` after the first one was answered, told it too: by then
the former leader has heard of its successor.

What would go wrong otherwise: trap 63.
"""

from __future__ import annotations

from typing import Final

LOOKS_APART_S: Final = 5.0
"""Shortest time between the answer to a first look and the question of the second, which is
believed. A former leader that runs again hears of its successor within a second or two. A longer
time holds up, for as long, a serializable reader that begins in a partition without markers."""
CONTRADICTED_APART_S: Final = 60.0
"""The same where what was read contradicts the end: a marker should lie ahead, or a TxId lies
behind the journal's end. A longer time keeps stray records in memory for longer. A shorter one
loses a commit if a broker is cut off from the others, and not from its readers, for as long."""
