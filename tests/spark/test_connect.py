"""Both formats work in a session of Spark Connect, which knows no `sparkContext`. A program of its own: it starts a server."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from celery_redis_plus.keys import Keys
from celery_redis_plus.spark.python_command import python_command
from celery_redis_plus.spark.session import PACKAGE_PARENT
from tests.spark.conftest import MISSING
from tests.support.event_streams import add_events, lives

#: What `pip install pyspark[connect]` adds.
PACKAGES = ("grpc", "grpc_status", "google.rpc", "zstandard")
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from celery_redis_plus.spark.session import register
url = sys.argv[1]
spark = SparkSession.builder.remote("local[2]").config("spark.log.level", "OFF").getOrCreate()
register(spark)
events = spark.read.format("celery_redis").option("url", url).load()
rows = spark.range(20).selectExpr("id", "array(id) as args")
rows.write.format("celery_task").mode("append").options(url=url, task="t", idColumn="id", argsColumn="args").save()
print(type(spark).__module__, events.count(), events.where("event = 'published'").count())
spark.stop()
"""


def lacks(name):
    try:
        return find_spec(name) is None
    except ModuleNotFoundError:
        return True


def test_formats_in_a_session_of_spark_connect(redis_client, broker_url, tmp_path):
    if MISSING:
        pytest.skip(MISSING)
    if missing := [name for name in PACKAGES if lacks(name)]:
        pytest.skip(f"Spark Connect needs {', '.join(missing)}: pip install 'pyspark[connect]'")
    made = lives(100)
    add_events(redis_client, "mail", made)
    env = {**os.environ, "PYTHONPATH": str(PACKAGE_PARENT), "PYSPARK_PYTHON": python_command(), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", PROGRAM, broker_url]
    ran = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=550)
    assert ran.returncode == 0, ran.stderr[-3000:]
    kind, count, published = ran.stdout.split()[-3:]
    assert "connect" in kind
    assert (int(count), int(published)) == (len(made), sum(event.event == "published" for event in made))
    assert redis_client.zcard(Keys("").queue("celery").ready) == 20
