"""What the tasks of the Spark query do: one record for each input record, and the history of it.

Tasks run in Python workers of Spark. They write to the history of their driver's life.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ...integration.spark.sink import BATCH_ID_PROPERTY
from ..recorder import Recorder
from ..settings import HISTORY, Settings
from .record import Value

SCHEMA: Final = "key binary, value binary, partition int"


@dataclass(frozen=True)
class Run:
    """One run of the query: its name for each micro-batch, and what its tasks need. Picklable."""

    directory: Path
    """Of the chaos run."""
    process: str
    """The driver, with its life."""
    number: int
    """Counts the runs of the query within the life."""
    settings: Settings

    def operation(self, batch_id: int) -> str:
        """Returns the name of a micro-batch's transaction."""
        return f"{self.process}/{self.number}.{batch_id}"

    def begun(self, batch_id: int) -> Path:
        """Returns a file that is there once the history has the operation."""
        return self.directory / "spark" / self.operation(batch_id).replace("/", "-")

    def outputs(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields one output for each input record; writes each to the history before."""
        from pyspark import TaskContext

        context: Any = TaskContext.get()
        batch_id = int(context.getLocalProperty(BATCH_ID_PROPERTY))
        with Recorder(self.directory / HISTORY, self.process, joins=True) as recorder:
            for batch in batches:
                if batch.num_rows:
                    self._begin(recorder, batch_id)
                    yield self._outputs(recorder, self.operation(batch_id), batch)

    def _begin(self, recorder: Recorder, batch_id: int) -> None:
        try:
            os.close(os.open(self.begun(batch_id), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return  # An earlier task of the micro-batch wrote it; there is one at a time.
        recorder.write("begin", op=self.operation(batch_id))

    def _outputs(self, recorder: Recorder, operation: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        rows = []
        columns = (batch.column(name).to_pylist() for name in ("value", "partition", "offset"))
        for raw, partition, offset in zip(*columns, strict=True):
            key = Value.decode(raw).key
            name = f"{operation}:{partition}:{offset}"
            value = Value(key, name, operation, (partition, offset))
            to = self.settings.partition_of(key)
            recorder.write(
                "append",
                op=operation,
                topic=self.settings.spark_topic,
                partition=to,
                k=key,
                v=value.value,
                i=value.source,
            )
            rows.append((str(key).encode(), value.encode(), to))
        keys, values, partitions = zip(*rows, strict=True)
        return pa.RecordBatch.from_arrays(
            [
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
                pa.array(partitions, pa.int32()),
            ],
            ["key", "value", "partition"],
        )
