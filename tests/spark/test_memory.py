"""A job of the command line gives its memory back: Arrow takes it from the C library. No Java."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

import pyarrow as pa

from celery_redis_plus.spark.layers import BYTES_A_GROUP, LAYOUTS, write
from celery_redis_plus.spark.manifest import PARTIALS
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.schema import MOMENT
from tests.support.event_streams import START_MS

PROGRAM = """
import sys
from celery_redis_plus.cli.main import main
main(["spark", "compact", "--root", sys.argv[1]])
import pyarrow
print(pyarrow.default_memory_pool().backend_name)
"""


def test_a_job_of_the_command_line_takes_memory_from_the_c_library(tmp_path):
    pytest.importorskip("pyspark", reason="needs the extra `spark`, as the command does")
    (tmp_path / "checkpoint").mkdir()
    ran = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], capture_output=True, text=True, check=False, timeout=120)
    assert ran.stdout.splitlines() == ["nothing to compact", "system"], ran.stderr


def test_the_minutes_of_a_busy_day_are_read_a_few_at_a_time(tmp_path):
    minutes, schema = 40, LAYOUTS[PARTIALS].schema
    durations = bytes(500_000)
    columns = {field.name: pa.repeat(pa.scalar(0, pa.int64()), minutes) for field in schema if field.type == pa.int64()}
    columns |= {"table": pa.repeat("queues", minutes), "key": pa.repeat("celery", minutes)}
    columns["minute"] = pa.array([(START_MS + 60_000 * minute) * 1000 for minute in range(minutes)], MOMENT)
    columns |= dict.fromkeys(("wait", "run"), pa.array([durations] * minutes, schema.field("wait").type))
    storage = opened(tmp_path)
    write(storage, "x.parquet", pa.table({field.name: columns[field.name] for field in schema}, schema=schema), LAYOUTS[PARTIALS])
    metadata = storage.metadata("x.parquet")
    assert metadata.num_rows == minutes
    sizes = [metadata.row_group(number).num_rows * 2 * len(durations) for number in range(metadata.num_row_groups)]
    assert max(sizes) <= BYTES_A_GROUP
