"""What the keeper asks Spark about its application: queries, checkpoints, whether it runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from .datasource import FORMAT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)


class Application:
    """An application of which nothing is known."""

    def read_checkpoint(self, path: str) -> str | None:
        """Reads a file of a checkpoint, wherever Spark keeps it.

        Returns None if there is no such file, or it can't be read.
        """
        del path
        return None

    def checkpoint_of(self, name: str | None, query_id: str | None) -> str | None:
        """Returns the checkpoint of a query, by name or by id; None: unknown."""
        del name, query_id
        return None

    def run_of(self, query_id: str) -> str | None:
        """Returns the id of a query's present run; None: unknown."""
        del query_id
        return None

    def runs(self) -> bool:
        """Returns whether the application runs. If not, no job of it will be committed."""
        return True

    def reads_to_the_end(self, options: Mapping[str, str]) -> bool:
        """Returns whether a query with a source of these options has Trigger.AvailableNow.

        False if that can't be found out. The query then keeps its limit, and leaves the rest to its
        next run.
        """
        del options
        return False


class SparkApplication(Application):
    """The application of a session, and of all other sessions of its driver."""

    def __init__(self, spark: SparkSession) -> None:
        """Asks this session's JVM."""
        self._spark = spark

    def read_checkpoint(self, path: str) -> str | None:
        """Reads it on this machine or on any of Hadoop's file systems."""
        parsed = urlparse(path)
        # A path without a scheme is one of Spark's default file system, whatever lies on this
        # machine.
        if parsed.scheme == "file":
            local = Path(parsed.path)
            if local.is_file():
                return local.read_text()
        try:
            jvm: Any = self._spark._jvm
            place = jvm.org.apache.hadoop.fs.Path(path)
            files = place.getFileSystem(self._spark._jsc.hadoopConfiguration())
            if not files.exists(place):
                return None
            stream = files.open(place)
            try:
                return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()
        except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
            _LOG.warning("checkpoint_not_read path=%s error=%s", path, error)
            return None

    def checkpoint_of(self, name: str | None, query_id: str | None) -> str | None:
        """Returns it from a query that runs, or from the session's settings."""
        try:
            roots = {
                str(query.resolvedCheckpointRoot())
                for query in self._queries()
                if query_id == _id_of(query) or (query_id is None and name == query.name())
            }
            root = self._spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
            _LOG.warning("checkpoint_not_known query=%s error=%s", query_id or name, error)
            return None
        if roots:
            # Queries of several sessions may have one name. The tasks tell which one writes.
            return roots.pop() if len(roots) == 1 else None
        return None if name is None or root is None else f"{root.rstrip('/')}/{name}"

    def run_of(self, query_id: str) -> str | None:
        """Returns it from the query, if that runs."""
        try:
            found = (q for q in self._queries() if _id_of(q) == query_id)
            return next((str(query.runId().toString()) for query in found), None)
        except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
            _LOG.warning("run_not_known query=%s error=%s", query_id, error)
            return None

    def runs(self) -> bool:
        """Returns whether the session's context is not stopped."""
        try:
            context: Any = self._spark.sparkContext._jsc
            return context is not None and not context.sc().isStopped()
        except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
            _LOG.warning("application_not_known error=%s", error)
            return False

    def reads_to_the_end(self, options: Mapping[str, str]) -> bool:
        """Looks through the driver's queries."""
        try:
            found = {
                "AvailableNow" in str(query.trigger())
                for query in self._queries()
                if any(options == each for each in source_options(query))
            }
        except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
            _LOG.warning("trigger_not_known error=%s", error)
            return False
        if len(found) > 1:
            _LOG.warning(
                "trigger_not_known: a query with Trigger.AvailableNow and another one read with"
                " equal options, so both keep the limit; give one of them a maxRecordsPerTrigger"
                " that differs by one"
            )
        return found == {True}

    def _queries(self) -> list[Any]:
        """Returns Spark's objects of the queries that run, in any session of the driver."""
        session: Any = self._spark._jsparkSession
        return list(session.sharedState().activeStreamingQueries().values())


def _id_of(query: Any) -> str:
    return str(query.id().toString())


def source_options(query: Any) -> list[dict[str, str] | None]:
    """Returns the options of each source of a query, with names in lower case.

    None stands for a source of another format. There are no sources while the query is only being
    started. Raises what py4j raises.
    """
    sources = _each(query.sources())
    if not sources:
        return []
    # Spark tells the options of a running source in no other way.
    found: dict[int, dict[str, str]] = {}
    for leaf in _each(query.logicalPlan().collectLeaves()):
        if leaf.getClass().getSimpleName() == "StreamingDataSourceV2ScanRelation":
            relation = leaf.relation()
            if relation.table().name() == FORMAT:
                options = dict(relation.options())
                found[leaf.stream().hashCode()] = {k.lower(): v for k, v in options.items()}
    # A source that is used twice is told once.
    return [found.get(each) for each in dict.fromkeys(source.hashCode() for source in sources)]


def _each(sequence: Any) -> list[Any]:
    """Returns what a sequence of Scala holds."""
    return [sequence.apply(number) for number in range(sequence.size())]
