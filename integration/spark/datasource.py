"""Defines the format "logtx", from which Spark makes readers and writers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource

from ...journal.errors import ConfigError
from .columns import check_columns
from .errors import NotRegisteredError
from .keeper_client import KeeperAddress
from .options import SinkOptions
from .shipping import Shipped
from .worker import keep_importers

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .sink import BatchSink

FORMAT: Final = "logtx"


class LogtxDataSource(Shipped, DataSource):
    """Makes readers of committed records, and writers of transactions.

    `register` gives Spark a subclass that knows the keeper's address. Spark pickles the class for
    planners, and its instances for everything else.
    """

    keeper: KeeperAddress | None = None
    """None in a class that was not registered."""
    _travelled = False
    """Whether another process made this instance."""

    def __init__(self, options: dict[str, str]) -> None:
        """Makes one in a planner, with these options."""
        super().__init__(options)
        keep_importers()

    @classmethod
    def name(cls) -> str:
        """Returns the format's name."""
        return FORMAT

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restores the instance in another process."""
        super().__setstate__(state)
        self._travelled = True
        keep_importers()

    def schema(self) -> str:
        """Returns the source's columns as Spark's DDL.

        Raises:
            ConfigError: an option is missing, unknown or out of range.
        """
        from .frames import schema
        from .planning import SourceOptions

        return schema(headers=SourceOptions.parse(self.options).include_headers)

    def reader(self, schema: StructType) -> Any:  # noqa: ARG002
        """Makes the reader of `spark.read`."""
        from .planning import SourceOptions
        from .source import BatchSource

        return BatchSource(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> Any:  # noqa: ARG002, N802 - Spark's name
        """Makes the reader of `spark.readStream`."""
        from .planning import SourceOptions
        from .source import StreamSource

        return StreamSource(SourceOptions.parse(self.options), self._keeper(), self.options)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """In the planner: begins a job's transaction."""
        if overwrite:
            raise ConfigError("a log is only appended to: write with mode('append')")
        sink = self._sink(schema)
        sink.begin(stream=False)
        return sink

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """In the planner: begins a micro-batch's transaction. In the committer: begins nothing."""
        # Spark asks to overwrite in the output mode "complete": each micro-batch brings the whole
        # result. A log keeps all of them, as with Kafka's own sink.
        del overwrite
        sink = self._sink(schema)
        # The planner makes its instance from the class; the committer gets a pickled instance.
        if not self._travelled:
            sink.begin(stream=True)
        return sink

    def _sink(self, schema: StructType) -> BatchSink:
        from .sink import BatchSink

        options = SinkOptions.parse(self.options)
        check_columns({f.name: f.dataType.simpleString() for f in schema.fields}, options.topic)
        return BatchSink(self._keeper(), options)

    def _keeper(self) -> KeeperAddress:
        if self.keeper is None:
            raise NotRegisteredError(
                "the format needs the session's keeper: call logtx.spark.register(spark) first"
            )
        return self.keeper


def registered(address: KeeperAddress) -> type[LogtxDataSource]:
    """Returns the class to register with Spark.

    No module has it under its name, so Spark pickles all of it, with the address.
    """
    return type("RegisteredLogtxDataSource", (LogtxDataSource,), {"keeper": address})
