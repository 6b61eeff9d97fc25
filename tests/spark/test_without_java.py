"""What works without Java and without PySpark, and what is said of the rest."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="needs the extra `spark`")

from celery_redis_plus.cli.main import main
from celery_redis_plus.errors import SparkUnavailable
from celery_redis_plus.spark import session
from celery_redis_plus.spark.job_arguments import SMALL
from tests.support.event_streams import lives
from tests.support.stored_events import StoredEvents

#: As where PySpark is not installed: an import of it fails.
CODE = """
import sys
sys.modules["pyspark"] = None
from celery_redis_plus.cli.main import main
for line in {lines!r}:
    assert main(["spark", *line, "--root", {root!r}]) == 0, line
"""


@pytest.fixture
def without_java(monkeypatch, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "no-java"))


def test_the_jobs_need_neither_java_nor_pyspark(without_java, tmp_path):
    root = tmp_path / "tables"
    StoredEvents(root).add({"celery": lives(300)})
    lines = [
        ["aggregate"],
        ["check"],
        ["compact"],
        ["report", "--output", str(tmp_path / "report.html"), "--data", str(tmp_path / "data")],
        ["expire", "--before", "2020-01-01"],
        ["aggregate", "--rebuild"],
    ]
    code = CODE.format(lines=lines, root=str(root))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("messages of 2025-11-24") == 2
    assert "<svg" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_large_jobs_are_done_here_where_there_is_no_java(without_java, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("celery_redis_plus.spark.jobs.SMALL", 100)
    StoredEvents(tmp_path).add({"celery": lives(300)})
    assert SMALL > 100
    for job in ("aggregate", "check"):
        assert main(["spark", job, "--root", str(tmp_path)]) == 0
    assert "messages of 2025-11-24" in capsys.readouterr().out


def test_a_disk_that_takes_nothing_is_one_line(without_java, tmp_path, monkeypatch, capsys):
    StoredEvents(tmp_path).add({"celery": lives(10)})

    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("celery_redis_plus.spark.storage.parquet.ParquetWriter", full)
    assert main(["spark", "aggregate", "--root", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}: [Errno 28] No space left on device" in said
    assert len(said.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_an_output_that_takes_nothing_is_named_not_the_tables(without_java, tmp_path, capsys):
    StoredEvents(tmp_path).add({"celery": lives(10)})
    assert main(["spark", "aggregate", "--root", str(tmp_path)]) == 0
    assert main(["spark", "report", "--root", str(tmp_path), "--output", "/dev/full"]) == 1
    assert capsys.readouterr().err.splitlines() == ["celery-redis-plus spark: [Errno 28] No space left on device: '/dev/full'"]


def test_a_reader_of_rows_that_ends_is_no_error(without_java, tmp_path):
    StoredEvents(tmp_path).add({"celery": lives(2000)})
    assert main(["spark", "aggregate", "--root", str(tmp_path)]) == 0
    command = [
        sys.executable,
        "-m",
        "celery_redis_plus",
        "spark",
        "sql",
        "--root",
        str(tmp_path),
        "--format",
        "csv",
        "FROM events",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as job:
        job.stdout.readline()
        job.stdout.close()
        assert job.stderr.read() == ""


def test_the_error_says_what_needs_java(without_java):
    with pytest.raises(
        SparkUnavailable, match=r"Java is missing: install .*Only `replay`, `--engine spark` and your own"
    ) as caught:
        session.check_installed()
    assert "\n" not in str(caught.value)
