"""A session that somebody else started finds the formats, whatever Python is the first on its PATH."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("pyspark", reason="needs the extra `spark`")

from tests.spark.conftest import MISSING
from tests.support.event_streams import add_events, lives

CODE = """
from celery_redis_plus.spark.session import register
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
frame = spark.read.format("celery_redis").option("url", {url!r}).load()
print("ROWS", frame.count())
# A function of one's own runs in the same processes.
print("IN", frame.mapInPandas(lambda batches: batches, frame.schema).count())


def pythons(batches):
    import sys
    import pandas
    import pyspark

    for _ in batches:
        zips = [path for path in sys.path if path.endswith(".zip")]
        yield pandas.DataFrame({{"where": [pyspark.__file__], "zips": [str(zips)]}})


print("ZIPS", *spark.range(1).mapInPandas(pythons, "where string, zips string").first())
"""


@pytest.mark.skipif(bool(MISSING), reason=MISSING or "it is there")
def test_a_session_of_an_environment_that_is_not_on_the_path(broker_url, redis_client, tmp_path):
    count = add_events(redis_client, "celery", lives(100))
    foreign = {"VIRTUAL_ENV", "PYTHONPATH", "SPARK_HOME"}
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK") and name not in foreign}
    env |= {"PATH": "/usr/local/bin:/usr/bin:/bin", "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(url=broker_url)],
        cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert [line for line in done.stdout.splitlines() if line.startswith(("ROWS", "IN"))] == [f"ROWS {count}", f"IN {count}"], (
        done.stdout + done.stderr
    )[-4000:]
    # Python compiles what it imports from a zip at each start, and Spark waits ten seconds for one.
    assert "ZIPS" in done.stdout
    assert "pyspark.zip" not in done.stdout.partition("ZIPS")[2]
