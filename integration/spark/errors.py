"""What can be wrong with a Spark job before a record is touched: one sentence, with the way out."""

from __future__ import annotations

from ...journal.errors import ConfigError, LogtxError


class SparkError(LogtxError):
    """Base of what only happens with Spark."""


class PySparkMissingError(SparkError, ImportError):
    """PySpark is not installed; it is an extra of logtx."""


class JavaMissingError(SparkError):
    """There is no Java that Spark starts on."""


class NotRegisteredError(SparkError):
    """The format was used in a session that `logtx.spark.register` was not called for."""


class KeeperError(SparkError):
    """The driver's Python, which keeps the transactions, can't be reached: run the job again."""


class SchemaError(ConfigError, SparkError):
    """A DataFrame's columns are not those of Kafka's convention."""

    code = 0  # it never crosses the wire, where its parent's would stand for the parent


class BatchGapError(SparkError):
    """Micro-batches between the last committed one and this one were written elsewhere."""


class DataLossError(SparkError):
    """Records that are to be read were deleted by the topic's retention."""
