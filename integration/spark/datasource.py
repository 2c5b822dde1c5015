"""The format "logtx": what Spark is given, and makes readers and writers from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSource

from ...journal.errors import ConfigError
from .columns import check_columns
from .errors import NotRegisteredError
from .keeper_client import KeeperAddress
from .options import SinkOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from .sink import BatchSink

FORMAT: Final = "logtx"


class LogtxDataSource(DataSource):
    """Reads committed records, and writes transactions.

    `register` gives Spark a subclass that knows the keeper's address; Spark pickles the class for
    planners, and its instances for everything else.
    """

    keeper: KeeperAddress | None = None
    _travelled = False
    """Whether this instance was made in another process."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Arrive in another process."""
        self.__dict__.update(state)
        self._travelled = True

    def schema(self) -> str:
        """Columns of the source.

        Raises:
            ConfigError: an option is missing, unknown or out of range.
        """
        from .frames import schema
        from .planning import SourceOptions

        return schema(headers=SourceOptions.parse(self.options).include_headers)

    def reader(self, schema: StructType) -> Any:  # noqa: ARG002
        """Of `spark.read`."""
        from .planning import SourceOptions
        from .source import BatchSource

        return BatchSource(SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> Any:  # noqa: ARG002, N802 - Spark's name
        """Of `spark.readStream`."""
        from .planning import SourceOptions
        from .source import StreamSource

        return StreamSource(SourceOptions.parse(self.options), self._keeper())

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """In the planner: begin a job's transaction."""
        sink = self._sink(schema, overwrite)
        sink.begin(stream=False)
        return sink

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        """In the planner: begin a micro-batch's transaction. In the committer: only be asked."""
        sink = self._sink(schema, overwrite)
        # The planner makes its instance from the class; the committer is sent one.
        if not self._travelled:
            sink.begin(stream=True)
        return sink

    def _sink(self, schema: StructType, overwrite: bool) -> BatchSink:
        from .sink import BatchSink

        if overwrite:
            raise ConfigError("a log is only appended to: write with mode('append')")
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
    """The class to give to Spark: it is found in no module, so Spark pickles all of it."""
    return type("RegisteredLogtxDataSource", (LogtxDataSource,), {"keeper": address})
