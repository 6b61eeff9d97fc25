"""The jobs run on a standalone Spark master with two workers, all from the PySpark wheel."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

import pyspark
from pyarrow import dataset

from celery_redis_plus.spark import submit
from celery_redis_plus.spark.manifest import files
from tests.spark.model import aggregate_in_python
from tests.support.event_streams import add_events, lives
from tests.support.waiting import wait_until

BIN = Path(pyspark.__file__).parent / "bin"
LIVES = lives(4000)


@pytest.fixture
def cluster(start, tmp_path):
    """A master with two workers of one core each; returns (URL, the workers' folders)."""
    env = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1", "PYSPARK_PYTHON": sys.executable}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    spark_class = str(BIN / "spark-class")
    place = ("--host", "127.0.0.1", "--webui-port", "0")
    master = start(spark_class, "org.apache.spark.deploy.master.Master", *place, "--port", str(port), env=env)
    url = f"spark://127.0.0.1:{port}"
    wait_until(lambda: f"Starting Spark master at {url}" in master.said, 120)
    folders = [tmp_path / f"worker{number}" for number in (1, 2)]
    for folder in folders:
        words = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder), url)
        start(spark_class, "org.apache.spark.deploy.worker.Worker", *place, *words, env=env)
    wait_until(lambda: len(re.findall("Registering worker", master.said)) == 2, 120)
    return url, folders


def test_the_jobs_run_on_two_workers(start, cluster, redis_client, broker_url, tmp_path, figures):
    count = add_events(redis_client, "celery", LIVES)
    url, folders = cluster
    root = tmp_path / "tables"

    def run(*words):
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "512m",
            "spark.sql.shuffle.partitions": "4",
            # Nothing is run before both workers take part: a job may be over before the second one has started.
            "spark.cores.max": "2",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "240s",
            "spark.executorEnv.EVENTS_URL": broker_url,
        }
        options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
        env = {"EVENTS_URL": broker_url, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
        command = (str(BIN / "spark-submit"), "--master", url, *options, submit.__file__, *words, "--root", str(root))
        return start(*command, env=env).wait()

    said = run("ingest", "--url-env", "EVENTS_URL", "--once", "--batch", "6000")
    assert f"{count:,} events" in said
    assert "4,000 messages" in run("aggregate", "--engine", "spark")
    run("report", "--output", str(tmp_path / "report.html"))
    assert " files are " in run("compact")

    rows = dataset.dataset(files(root, "messages")).to_table(columns=["id", "state", "attempts"]).to_pylist()
    model = aggregate_in_python({"celery": LIVES})["messages"]
    assert {row["id"]: (row["state"], row["attempts"]) for row in rows} == {
        key[1]: (row["state"], row["attempts"]) for key, row in model.items()
    }
    # Of `ingest` and `aggregate`: report and compact use no Spark.
    executors = [len({path.parent.name for path in folder.glob("app-*/*")}) for folder in folders]
    assert executors == [2, 2], "a worker took no part in a job"
    figures(f"{count:,} events through ingest, aggregate, report and compact; jobs by worker: {executors}")
