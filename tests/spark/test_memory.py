"""A job of the command line gives its memory back, as Arrow takes it from the C library; bodies pass in little. No Java."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow", reason="needs the extra `spark`")

import pyarrow as pa
from pyarrow import dataset

from celery_redis_plus.spark.layers import BYTES_A_GROUP, LAYOUTS, write
from celery_redis_plus.spark.manifest import PARTIALS, files
from celery_redis_plus.spark.roots import opened
from celery_redis_plus.spark.schema import MOMENT
from tests.support.event_streams import START_MS, add_events, lives

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


#: Runs what Spark's Python worker does, then an ingest, and prints how much memory the process has had.
READER = """
import re, sys, threading
from pathlib import Path
from celery_redis_plus.event_log.stream import EventLog
from celery_redis_plus.spark.arrow_ingest import ArrowIngest
from celery_redis_plus.spark.partition_reader import read_range
from celery_redis_plus.spark.read_plan import EventRange
url, root, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with EventLog(url) as log:
    (epoch, _), = log.numberings(["celery"])["celery"].epochs
    read = sum(events.num_rows for events in read_range(log, EventRange("celery", epoch, 1, count)))
ArrowIngest(root, {"url": url}).run(threading.Event(), print, once=True)
# Not `ru_maxrss`, which is that of the process that started this one, if it had more.
status = Path("/proc/self/status").read_text(encoding="ascii")
print(read, int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) // 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_bodies_of_a_megabyte_pass_in_half_a_gigabyte(redis_client, broker_url, tmp_path, weekly):
    """Replies of the server, batches and row groups are bounded by their bytes, however many rows that are."""
    count = 3000 if weekly else 400
    payload = b"{}\n" + random.Random(1).randbytes(1024 * 1024)
    published = [event for event in lives(count) if event.event == "published"]
    for first in range(0, count, 20):
        add_events(redis_client, "celery", published[first : first + 20], payload=payload)
    command = [sys.executable, "-c", READER, broker_url, str(tmp_path / "tables"), str(count)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, ran.stderr[-2000:]
    read, most_mb = map(int, ran.stdout.split())
    assert read == dataset.dataset(files(tmp_path / "tables", "events")).count_rows() == count
    assert most_mb < 512
