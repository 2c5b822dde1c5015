"""Errors of Spark jobs. Each text is one sentence that names the way out."""

from __future__ import annotations

from ...journal.errors import ConfigError, LogtxError


class SparkError(LogtxError):
    """Base of the errors that occur only with Spark."""


class PySparkMissingError(SparkError, ImportError):
    """PySpark is not installed; it is an extra of logtx."""


class JavaMissingError(SparkError):
    """No Java was found that Spark starts on."""


class NotRegisteredError(SparkError):
    """The format was used in a session without `logtx.spark.register`."""


class KeeperError(SparkError):
    """The keeper in the driver's Python can't be reached: run the job again."""


class SchemaError(ConfigError, SparkError):
    """A DataFrame's columns do not follow Kafka's convention."""

    code = 0  # never crosses the wire; there, the parent's code would be read as the parent


class BatchGapError(SparkError):
    """Micro-batches are missing between the last committed one and this: written elsewhere."""


class ReplayDiffersError(SparkError):
    """A micro-batch is repeated with other input than it was committed with."""
