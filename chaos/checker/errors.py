"""Errors that keep a run from being judged. A fault of the tested system is an anomaly instead."""

from __future__ import annotations


class CheckError(Exception):
    """A run can't be judged; the message says why."""


class BrokenHistoryError(CheckError):
    """A history file is not as a recorder writes it. Judging the rest would be guessing."""


class BrokenLogError(CheckError):
    """A dumped log is cut short, or holds bytes that are not a logtx record."""


class DumpError(CheckError):
    """The brokers did not give their logs in time. Heal the cluster and dump again."""
