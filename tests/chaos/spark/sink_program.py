"""Streams the rows of a folder of Parquet into tasks: `python sink_program.py URL FOLDER CHECKPOINT MASTER MARKS`.

In each micro-batch one of Spark's tasks fails in its middle, and one is so slow that Spark begins it a second time elsewhere, if
the master has two executors. The folder of marks gets a file for each attempt: BATCH.PARTITION.ATTEMPT.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from celery_redis_plus.spark.session import session

if TYPE_CHECKING:
    from pandas import DataFrame

SCHEMA = "id bigint, args array<string>, rank int"
FAILING, SLOW = 0, 1
CONFIG = {
    "spark.log.level": "OFF",
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.2",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}


def disturbed(batches: Iterator[DataFrame]) -> Iterator[DataFrame]:
    """Yield the rows, at times too slowly, at times not all."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    partition, attempt = context.partitionId(), context.attemptNumber()
    (marks / f"{context.getLocalProperty('streaming.sql.batchId')}.{partition}.{attempt}").touch()
    for batch in batches:
        yield batch
        if partition == FAILING and attempt == 0:
            raise RuntimeError("this Spark task fails in the middle")
        if partition == SLOW and attempt == 0:
            time.sleep(0.5)


if __name__ == "__main__":
    url, folder, checkpoint, master = sys.argv[1:5]
    marks = Path(sys.argv[5])
    spark = session("sink", master=master, config=CONFIG)
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 4).parquet(folder)
    query = (
        rows.mapInPandas(disturbed, SCHEMA)
        .writeStream.format("celery_task")
        .option("url", url)
        .option("task", "tests.spark.worker_app.note")
        .option("idColumn", "id")
        .option("argsColumn", "args")
        .option("priorityColumn", "rank")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()
