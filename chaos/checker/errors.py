"""Why a run can't be judged. What is wrong with the system under test is an anomaly instead."""

from __future__ import annotations


class CheckError(Exception):
    """A run can't be judged; the message says why."""


class BrokenHistoryError(CheckError):
    """A history file is not what a recorder writes: judging the rest would be guessing."""


class BrokenLogError(CheckError):
    """A dumped log is cut short, or holds bytes that are no logtx record."""


class DumpError(CheckError):
    """The brokers did not give their logs in time; heal the cluster and dump again."""
