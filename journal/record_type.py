"""The numbers of the types of journal records, which `journal.records` encodes."""

from __future__ import annotations

from enum import IntEnum


class RecordType(IntEnum):
    """Type byte of a journal record. A number is never given to another type."""

    OWNER = 1
    PRODUCER = 2
    BEGIN = 3
    ADD_PARTITIONS = 4
    ADD_OFFSETS = 5
    PREPARE_COMMIT = 6
    PREPARE_ABORT = 7
    COMMITTED = 8
    ABORTED = 9
    BIND = 10
    ADD_ACKS = 11
    # Numbers given to types that this version neither writes nor reads: PREPARE 12, EXTEND 14
    # (decision 0018 has no use for it).
    CLAIM = 13
    PLACED = 15
    SNAPSHOT = 16
    FORGET = 17
    ADD_WRITES = 18
    MODE = 19
    ADOPT = 20
    SUBSCRIBE = 21
    ACK = 22
