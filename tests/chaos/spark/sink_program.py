"""Streams the rows of a folder of Parquet into tasks: `python sink_program.py URL FOLDER CHECKPOINT`."""

from __future__ import annotations

import sys

from celery_redis_plus.spark.session import session

if __name__ == "__main__":
    url, folder, checkpoint = sys.argv[1:]
    spark = session("sink", master="local[2,4]", config={"spark.log.level": "OFF"})
    rows = spark.readStream.schema("id bigint, args array<string>, rank int").option("maxFilesPerTrigger", 2).parquet(folder)
    query = (
        rows.writeStream.format("celery_task")
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
