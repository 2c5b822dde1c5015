"""The jars of Spark's own Kafka connector, which logtx is compared with: locked and checked.

Only the jars that PySpark lacks. `connector_jars` returns their paths, for a new session's
settings.

    python -m logtx.benchmarks.spark.jars --lock   resolve again and rewrite the lock
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from logtx.integration.local.errors import LocalKafkaError
from logtx.integration.local.jars import Wanted, ensure_jars, write_lock
from logtx.integration.spark.errors import PySparkMissingError

SPARK_VERSION: Final = "4.0.0"
"""The newest version of which Maven Central has both the connector and its token provider."""
LOCK_PATH: Final = Path(__file__).with_name("jars.lock")


def connector_jars() -> list[str]:
    """Returns the paths of the connector's jars; downloads them once, verifies them each time.

    Raises:
        LocalKafkaError: the jars can't be had; the message is one sentence.
    """
    return [str(path) for path in ensure_jars(lock=LOCK_PATH)]


def _pyspark_jars() -> set[str]:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise PySparkMissingError(
            "pyspark is missing: install it with `pip install 'logtx[spark]'`"
        )
    return {path.name for path in Path(found.origin).with_name("jars").glob("*.jar")}


def main() -> int:
    """Downloads and verifies, or resolves with `--lock`. On failure prints why and returns 1."""
    parser = argparse.ArgumentParser(prog="python -m logtx.benchmarks.spark.jars")
    parser.add_argument("--lock", action="store_true", help="resolve anew and rewrite jars.lock")
    try:
        if parser.parse_args().lock:
            there = _pyspark_jars()
            wanted = Wanted(
                title=f"Spark {SPARK_VERSION}'s Kafka connector",
                coordinates=(f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK_VERSION}",),
                is_there=lambda name: name in there,
            )
            print(f"{LOCK_PATH.name}: {write_lock(LOCK_PATH, wanted=wanted)} jars")
        else:
            print("\n".join(connector_jars()))
    except LocalKafkaError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
